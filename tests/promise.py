"""Does one job end with one digest however it is run? `python -m tests.promise [--quick |
--pairwise] [--write]`.

Every case of `promise_cases.py` trains the same small job; the cases of a kind of CPU share one
`mpiexec` (`promise_main.py`), but those of one rank, which need none. Digests are compared with
those committed in `promise.json`, which only --write replaces, together with `docs/promise.md`.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from jobs import watched
from promise_cases import CPUS, FAMILIES, MAIN, RANKS, Case, chosen, other_plan, write_data
from promise_draws import RANKS as DRAWN_RANKS
from promise_draws import drawn_cases
from promise_report import markdown

from neocpu.parallel.transport.launch import mpiexec_command

HERE = Path(__file__).resolve().parent
DIGESTS = HERE / "promise.json"
REPORT = HERE.parent / "docs" / "promise.md"
DRAWN_SECONDS = 200.0  # until a way of a drawn config ends, its kernels to be compiled included


@dataclass
class Launch:
    """The cases that one set of processes runs, under one `mpiexec` or, of one rank, without.

    sources : by ranks of a case that is resumed elsewhere, the ranks on which it began.
    threads : ranks are threads of one process, and those to be killed are stopped, or go on where
    a stop has another digest. begin : cases that are begun here, before anything else, for this
    launch or a later one.
    """

    cpu: str
    cases: list[Case]
    sources: dict[int, int]
    threads: bool = False
    begin: list[Case] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        """Of the largest case; smaller ones run on the first of them."""
        begun = [self.sources[case.ranks] for case in self.begin]
        return max([*begun, *(case.ranks for case in self.cases)])

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.cpu}-{self.ranks}"

    def write(self, folder: Path) -> None:
        """The list of jobs that `promise_main.py` reads."""
        jobs = [
            (what, asdict(case), self.sources[case.ranks])
            for what, cases in (("begin", self.begin), ("run", self.cases))
            for case in cases
        ]
        (folder / self.name).write_text(json.dumps(jobs))


def schedule(cases: Mapping[str, Sequence[Case]], threads: bool = False) -> list[Launch]:
    """Launches in order: for each kind of CPU the cases of several ranks, then those of one; as
    threads all together.

    Runs that are resumed elsewhere begin in the first launch, on the host's own CPU.
    """
    counts = sorted({case.ranks for case in cases["host"]})
    sources = dict(zip(counts, [counts[-1], *counts]))
    parts = [{True, False}] if threads else [{False}, {True}]
    launches = [
        Launch(cpu, [case for case in cpu_cases if (case.ranks == 1) in alone], sources, threads)
        for cpu, cpu_cases in cases.items()
        for alone in parts
    ]
    launches = [launch for launch in launches if launch.cases]
    begun = set()
    for case in (case for launch in launches for case in launch.cases):
        key = (case.family, sources[case.ranks], other_plan(case.plan), case.stop)
        if case.how == "elsewhere" and key not in begun:
            begun.add(key)
            launches[0].begin.append(case)
    return launches


def run(launch: Launch, folder: Path, seconds: float = 600.0) -> list[dict[str, Any]]:
    """What every case of a launch reached; RuntimeError says what was printed where one failed or
    took longer.
    """
    launch.write(folder)
    arguments = ["-m", "mpi4py", str(HERE / "promise_main.py"), str(folder), launch.name]
    command, environment = mpiexec_command(launch.ranks, arguments)
    if launch.ranks == 1 or launch.threads:
        command = [sys.executable, *arguments[2:], *["threads"] * launch.threads]
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {
        "PYTHONPATH": path,
        "NUMBA_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
        **CPUS[launch.cpu],
    }
    log = folder / f"{launch.name}.log"
    killed = 0
    while True:
        status = watched(command, environment, log, folder / f"{launch.name}.lines", seconds)
        before = killed
        killed = len(list((folder / f"{launch.name}.out").glob("*.killed")))
        # who was killed by a case goes on in a next life
        if killed == before or status.startswith(("exit status 0", "killed")):
            break
    records = outcomes(launch, folder)
    if status != "exit status 0" or len(records) < len(launch.cases):
        case = launch.cases[len(records)].name if len(records) < len(launch.cases) else "the end"
        raise RuntimeError(
            f"{launch.name}: {status} at {case}:\n{log.read_text(errors='replace')[-6000:]}"
        )
    return records


def outcomes(launch: Launch, folder: Path) -> list[dict[str, Any]]:
    """What `promise_main.py` wrote so far: a record per case, with the CPU."""
    path = folder / f"{launch.name}.lines"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [
        record | {"cpu": launch.cpu, "kind": lines[0][0], "lanes": lines[0][1]}
        for record in lines[1:]
    ]


def disagreements(records: Sequence[Mapping[str, Any]], expected: Mapping[str, str]) -> list[str]:
    """A line for every case whose digest is not the expected one, or whose metrics are not those of
    its family.
    """
    wrong = []
    metrics = {record["family"]: record["metrics"] for record in reversed(records)}
    for record in records:
        case = Case(**{name: record[name] for name in Case.__dataclass_fields__})
        if record["digest"] != expected[case.family]:
            wrong.append(
                f"{record['cpu']}, {case.name}: digest {record['digest']}, not "
                f"{expected[case.family]}"
            )
        elif record["metrics"] != metrics[case.family]:
            wrong.append(f"{record['cpu']}, {case.name}: same digest, but other metrics")
    return wrong


def run_drawn(
    seeds: Sequence[int],
    ways: int,
    tell: Callable[[str], None],
    ranks: Sequence[int] = DRAWN_RANKS,
    folder: Path | None = None,
    threads: bool = False,
) -> list[dict[str, Any]]:
    """So many ways of each drawn config, those that were not refused, all in the same processes;
    what fails is told.

    folder : keeps what was reached, for a call that goes on with it (None: nothing is kept).
    threads : as of a `Launch`.
    """
    started = time.perf_counter()
    cases = [case for seed in seeds for case in drawn_cases(seed, ways, ranks)]
    reached: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="promise-") as name:
        place = Path(name) if folder is None else folder
        if not (place / "day-2.h5").exists():  # the last to be written
            place.mkdir(parents=True, exist_ok=True)
            write_data(place)
        for launch in schedule({"host": cases}, threads):
            reached += run_all_cases(launch, place, tell)
    refused = Counter((r["family"], r["refused"]) for r in reached if r["refused"])
    reached = [record for record in reached if not record["refused"]]
    expected = {record["family"]: record["digest"] for record in reversed(reached)}
    for line in disagreements(reached, expected):
        tell(f"DIFFERS: {line}")
    for (family, why), count in refused.items():
        tell(f"{family}: {count} refused: {why}")
    tell(f"seeds {seeds}: {len(reached)} ways, {time.perf_counter() - started:.0f} s")
    return reached


def run_all_cases(
    launch: Launch, folder: Path, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """What every case of a launch reached; one that ends the processes is told, and the others go
    on in new ones.
    """
    while True:
        try:
            # nothing is seen of those that begin
            return run(launch, folder, DRAWN_SECONDS * (1 + len(launch.begin)))
        except RuntimeError as error:
            tell(f"FAILED: {error}")
        reached = outcomes(launch, folder)
        if len(reached) == len(launch.cases):
            return reached
        failed = asdict(launch.cases[len(reached)]) | {"digest": "", "refused": "it failed"}
        with open(folder / f"{launch.name}.lines", "a") as lines:
            lines.write(json.dumps(failed) + "\n")


def committed() -> dict[str, str]:
    """The digest of every family."""
    return json.loads(DIGESTS.read_text())


def run_all(
    scope: str, ranks: Sequence[int], family: str, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Every case of a scope, or those of one family; failed launches are told, and raised at the
    end.
    """
    cases = {
        cpu: [case for case in cpu_cases if family in ("", case.family)]
        for cpu, cpu_cases in chosen(scope, ranks).items()
    }
    if platform.machine() not in ("x86_64", "AMD64"):
        cases = {"host": cases["host"]}
    records = []
    failed = []
    with tempfile.TemporaryDirectory(prefix="promise-") as name:
        folder = Path(name)
        write_data(folder)
        for launch in schedule(cases):
            started = time.perf_counter()
            try:
                finished = run(launch, folder)
            except RuntimeError as error:
                tell(str(error))
                failed.append(launch.name)
                finished = outcomes(launch, folder)
            records += finished
            tell(
                f"{launch.name}: {len(finished)} of {len(launch.cases)} runs, "
                f"{time.perf_counter() - started:.0f} s"
            )
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")
    return records


def main() -> int:
    """Run, compare, and with --write record."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.promise")
    parser.add_argument("--quick", action="store_true", help="two plans on every rank count")
    parser.add_argument(
        "--pairwise", action="store_true", help="every pair of values once, as CI does"
    )
    parser.add_argument(
        "--family",
        choices=FAMILIES,
        help="only the runs of one; --write then replaces its digest alone",
    )
    parser.add_argument("--ranks", help=f"comma-separated  [default: {','.join(map(str, RANKS))}]")
    parser.add_argument(
        "--write", action="store_true", help="replace the committed digests and docs/promise.md"
    )
    parser.add_argument(
        "--drawn", metavar="A-B", help="configs drawn from the seeds A to B, and nothing else"
    )
    parser.add_argument("--ways", type=int, default=8, help="ways of running each drawn config")
    parser.add_argument(
        "--folder", type=Path, help="keeps what drawn configs reached: a run goes on with it"
    )
    parser.add_argument(
        "--threads",
        action="store_true",
        help="ranks of drawn configs are threads of one process, which start at once",
    )
    options = parser.parse_args()
    scope = "quick" if options.quick else "pairwise" if options.pairwise else "full"
    ranks = [int(count) for count in options.ranks.split(",")] if options.ranks else list(RANKS)
    if options.drawn:
        counts = ranks if options.ranks else DRAWN_RANKS
        return drawn_main(options.drawn, options.ways, counts, options.folder, options.threads)
    if options.write and (scope != "full" or options.ranks):
        parser.error("--write records the full product only")
    if options.quick and options.family not in (None, MAIN):
        parser.error(f"--quick has runs of the family {MAIN} only")
    started = time.perf_counter()
    records = run_all(scope, ranks, options.family or "", lambda text: print(text, flush=True))
    firsts = {record["family"]: record["digest"] for record in reversed(records)}
    wrong = disagreements(records, firsts if options.write else committed())
    for line in wrong:
        print(line)
    if wrong:
        return 1
    seconds = time.perf_counter() - started
    print(f"{len(records)} runs, {seconds:.0f} s, one digest: {firsts[options.family or MAIN]}")
    if options.write:
        digests = committed() | firsts
        DIGESTS.write_text(json.dumps({name: digests[name] for name in FAMILIES}, indent=2) + "\n")
    if options.write and not options.family:
        REPORT.write_text(markdown(records, seconds))
    return 0


def drawn_main(
    seeds: str, ways: int, ranks: Sequence[int], folder: Path | None, threads: bool
) -> int:
    """Run drawn configs; 1: some had two digests, or a launch failed."""
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    low, _, high = seeds.partition("-")
    records = run_drawn(range(int(low), int(high or low) + 1), ways, tell, ranks, folder, threads)
    wrong = sum(line.startswith(("FAILED: ", "DIFFERS: ")) for line in lines)
    configs = len({record["family"] for record in records})
    print(f"{len(records)} ways of {configs} drawn configs, {wrong} with another digest or none")
    return int(wrong > 0)


if __name__ == "__main__":
    # so that processes go with it
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
