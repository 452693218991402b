"""How is a fair time taken? As the median of turns that all contenders of a process take.

One round times every contender once (A B C, A B C, …), so that a slow minute of the machine hits
all of them, and ratios are taken inside a round. Before each timing: a pause, long enough for the
worker threads of the contender before to stop spinning (pools of torch, OpenBLAS and Numba are
different ones and would fight for the cores), the contender's own thread count, and untimed calls
for `settle` seconds, at least one: training has no pauses, and a worker that slept needs
milliseconds until it runs on a core of its own. Whole warm-up rounds (compilation, first touch)
come first and are discarded. A contender that exists at several thread counts is measured at each;
its best median counts.
"""

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neocpu.core.cores import roam

# Cores that this process may use.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# Thread counts at which contenders are measured.
THREADS = sorted({1, CORES})


def nothing(_: int) -> None:
    """Do nothing: the default preparation and the default way to set threads."""


@dataclass
class Contender:
    """One implementation at one thread count.

    run(i) is timed, prepare(i) before it is not; i counts the calls. side: "ours", "rival",
    "limit", or "note", a time that enters no ratio. use(threads) sets the thread count. repeat:
    timed calls of a turn. seconds: one time per round.
    """

    name: str
    side: str
    run: Callable[[int], Any]
    threads: int = 1
    use: Callable[[int], Any] = nothing
    prepare: Callable[[int], Any] | None = None
    repeat: int = 1
    calls: int = 0
    seconds: list[float] = field(default_factory=list)

    def call(self) -> float:
        """Seconds of one call."""
        if self.prepare is not None:
            self.prepare(self.calls)
        start = time.perf_counter()
        self.run(self.calls)
        elapsed = time.perf_counter() - start
        self.calls += 1
        return elapsed

    def turn(self, pause: float, settle: float) -> float:
        """Seconds of a call in this contender's turn.

        A turn is a pause, untimed calls for `settle` seconds, and `repeat` timed calls.
        """
        time.sleep(pause)
        roam()
        self.use(self.threads)
        settled = time.perf_counter() + settle
        self.call()
        while time.perf_counter() < settled:
            self.call()
        return sum(self.call() for _ in range(self.repeat)) / self.repeat

    @property
    def median(self) -> float:
        """Median seconds over the rounds."""
        return statistics.median(self.seconds)


def measure(
    contenders: list[Contender],
    rounds: int,
    warmup: int = 2,
    pause: float = 0.05,
    settle: float = 0.05,
    least: float = 0.01,
) -> None:
    """Fill `seconds` of every contender, in turn.

    Calls are repeated until the timed ones of a turn take `least` seconds together.
    """
    for _ in range(warmup):
        for contender in contenders:
            seconds = contender.turn(pause, settle)
            contender.repeat = max(1, min(1000, int(least / max(seconds, 1e-7)) + 1))
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for contender in contenders:
                contender.seconds.append(contender.turn(pause, settle))
    finally:
        gc.enable()
        roam()


def best(contenders: Iterable[Contender]) -> dict[str, Contender]:
    """The contender of each name with the thread count that has the best median."""
    fastest: dict[str, Contender] = {}
    for contender in contenders:
        if contender.name not in fastest or contender.median < fastest[contender.name].median:
            fastest[contender.name] = contender
    return fastest


def ratio(contender: Contender, ours: Contender) -> dict[str, float]:
    """Time of `contender` divided by ours: median, least and greatest over the rounds."""
    ratios = [a / b for a, b in zip(contender.seconds, ours.seconds, strict=True)]
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def summarise(
    case: str,
    shape: dict[str, Any],
    contenders: list[Contender],
    targets: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Record of one case: every time, and the ratio of each rival's and limit's best to our best,
    and on one thread to ours on one thread.

    targets: the ratio that we aim at, by the contender's name.
    """
    fastest = best(contenders)
    ours = next((c for c in fastest.values() if c.side == "ours"), None)
    alone = next((c for c in contenders if ours and c.name == ours.name and c.threads == 1), None)
    rows = []
    for contender in contenders:
        row: dict[str, Any] = {
            "name": contender.name,
            "side": contender.side,
            "threads": contender.threads,
            "best": fastest[contender.name] is contender,
            "ms": {
                k: f(contender.seconds) * 1e3
                for k, f in (("median", statistics.median), ("min", min), ("max", max))
            },
        }
        if ours is not None and contender is not ours and row["best"]:
            row["ratio"] = ratio(contender, ours)
            if targets and contender.name in targets:
                row["target"] = targets[contender.name]
        if alone is not None and contender is not alone and contender.threads == 1:
            row["ratio_alone"] = ratio(contender, alone)
        rows.append(row)
    return {"case": case, "shape": shape, "rounds": len(contenders[0].seconds), "rows": rows}


def verdict(row: dict[str, Any]) -> str:
    """Whether a row's target was reached; empty without one."""
    if "target" not in row:
        return ""
    word = "reached" if row["ratio"]["median"] >= row["target"] else "MISSED"
    return f"{row['target']:g}x {word}"


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the printed table: contender, threads, ms, range, our speed-up, target, our speed-up
    on one thread.
    """
    times = row["ms"]
    speedup, speedup_alone = (
        f"{row[key]['median']:.2f}x ({row[key]['min']:.2f} to {row[key]['max']:.2f})"
        if key in row
        else ""
        for key in ("ratio", "ratio_alone")
    )
    name = {"ours": "**{}**", "limit": "*{}*"}.get(row["side"], "{}").format(row["name"])
    return [
        name,
        str(row["threads"]),
        f"{times['median']:.2f}",
        f"{times['min']:.2f} to {times['max']:.2f}",
        speedup,
        verdict(row),
        speedup_alone,
    ]


# Columns of the printed table.
HEADER = [
    "contender",
    "threads",
    "median ms",
    "ms, min to max",
    "ours is so many times as fast",
    "aim",
    "thread against thread",
]


# Entries of a shape whose value alone is printed, as in "D 128, fp32, uniform".
VALUES_ALONE = ("format", "distribution")


def shape_text(shape: dict[str, Any]) -> str:
    """A shape in plain words."""
    return ", ".join(
        str(value) if name in VALUES_ALONE else f"{name} {value}" for name, value in shape.items()
    )


def table(record: dict[str, Any]) -> str:
    """Markdown table of one case, aligned so that it reads well in a terminal too."""
    lines = [HEADER, *(cells(row) for row in record["rows"])]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    rows = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    rows.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    shape = shape_text(record["shape"])
    # a note that is a table keeps its lines
    notes = [
        f"\n{note if note[0] == '|' else textwrap.fill(note, 100, break_on_hyphens=False)}"
        for note in record.get("notes", [])
    ]
    return "\n".join(
        [f"### {record['case']}", "", f"{shape}; {record['rounds']} rounds", "", *rows, *notes, ""]
    )


def versions() -> dict[str, str]:
    """Installed versions of all packages that are compared."""
    names = (
        "neocpu",
        "numba",
        "numpy",
        "mpi4py",
        "mpich",
        "torch",
        "fbgemm-gpu-cpu",
        "torchrec",
        "polars",
        "h5py",
        "rocksdict",
        "lmdb",
    )
    installed = {"python": platform.python_version()}
    for name in names:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = "absent"
    return installed


def processor() -> str:
    """Name of the processor, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    vector_units = " with AVX-512" if any("avx512f" in line for line in lines) else ""
    return (names[0] if names else platform.machine()) + vector_units


def machine() -> dict[str, Any]:
    """The machine that was measured, and its load before the start."""
    huge_pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": processor(),
        "cores": CORES,
        "huge_pages": huge_pages.read_text().strip() if huge_pages.exists() else "unknown",
        "load_before": os.getloadavg()[0],
        "openmp": {
            name: os.environ[name]
            for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
            if name in os.environ
        },
    }


def ticks() -> tuple[int, int]:
    """Ticks of all cores that a virtual machine's host has taken away, and all ticks.

    Zeros where the system does not count them.
    """
    status = Path("/proc/stat")
    if not status.exists():
        return 0, 0
    counts = [int(number) for number in status.read_text().splitlines()[0].split()[1:9]]
    return counts[7] if len(counts) > 7 else 0, sum(counts)


def peak() -> float:
    """Peak resident memory of this process in MiB."""
    status = Path("/proc/self/status")
    # getrusage would also count the memory of the parent process before exec.
    if status.exists():
        return (
            next(
                int(line.split()[1])
                for line in status.read_text().splitlines()
                if line.startswith("VmHWM")
            )
            / 1024
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def arguments(
    description: str | None, extra: Callable[[argparse.ArgumentParser], Any] = lambda parser: None
) -> argparse.Namespace:
    """Command line that all benchmarks share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small shapes, few rounds: seconds; says that it runs, not how fast",
    )
    parser.add_argument("--rounds", type=int, help="timed rounds (default: 15, with --quick 2)")
    parser.add_argument("--no-rivals", action="store_true", help="time ours and the limits only")
    parser.add_argument("--json", type=Path, help="write the records to this file")
    extra(parser)
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 2 if options.quick else 15
    return options


def main(
    description: str | None,
    benchmark: Callable[[argparse.Namespace], list[dict[str, Any]]],
    extra: Any = lambda parser: None,
) -> None:
    """Run a benchmark's command line: print its tables, write its JSON."""
    options = arguments(description, extra)
    environment = machine()
    if environment["load_before"] > 0.8:
        print(
            f"note: load average {environment['load_before']:.1f} before the start: "
            "something else runs, times are noise",
            file=sys.stderr,
        )
    before = ticks()
    records = benchmark(options)
    stolen_ticks, total_ticks = (b - a for a, b in zip(before, ticks()))
    environment["stolen"] = stolen_ticks / max(total_ticks, 1)
    for record in records:
        print(table(record))
    if environment["stolen"] > 0.05:
        print(
            f"note: the host kept {environment['stolen']:.0%} of the cores' time for others",
            file=sys.stderr,
        )
    if options.json:
        environment["load_after"] = os.getloadavg()[0]
        result = {
            "machine": environment,
            "versions": versions(),
            "quick": options.quick,
            "records": records,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")
