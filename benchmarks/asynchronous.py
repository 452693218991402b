"""What does it cost to wait for each other, and what not to? Synchronous steps against parameter
servers, on a real log.

Each worker's gradient is applied at once, so a run of W workers makes W updates of each batch: it
is to be compared with synchronous runs of smaller batches too.

    python -m benchmarks.asynchronous LOG.tsv.gz RESULTS.jsonl [--seeds 5] [--ranks 2 4]

One job for each number of ranks makes all its runs. Each line of RESULTS is one run; runs that are
in it are not made again, so it can be ended and started anew. At the end it prints means and
standard deviations over the seeds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.launch import (
    get_comm,
    launched,
    mpiexec_command,
    prepare_threads,
    run_guarded,
)

Line = dict[str, Any]

# a small DLRM; the log's last fifth is its test split
CONFIG = """
[data]
format = "criteo"
split = [0.8, 0.0, 0.2]
[model]
embedding_dim = 8
bottom = [32, 8]
top = [32, 1]
[tables.default]
rows = 5000
[tables."C*"]
[training]
batch_size = 128
leaves = 16
epochs = 1
threads = 1
"""
BATCH = 128
# of servers, and two kinds of synchronous runs: of the same batch, and of as many updates
KINDS = ("synchronous", "smaller batches", "0", "4", "64", "-1")


def overrides_of(kind: str, ranks: int) -> list[str]:
    """Those of synchronous training, or of servers with this staleness."""
    if kind == "synchronous":
        return []
    if kind == "smaller batches":
        return [f"training.batch_size={BATCH // ranks}"]
    return ['training.sync="off"', f"training.asynchronous.staleness={kind}"]


def run(comm: Comm, config: Path, log: Path, seed: int, kind: str) -> Line:
    """The figures of one run. Collective."""
    # these read how many threads there are
    from neocpu.train.config import config as configs
    from neocpu.train.run.together import comm_of
    from neocpu.train.run.trainers import trainer_of

    ranks = comm.size
    keys = [f'data.train="{log}"', f"training.seed={seed}", *overrides_of(kind, ranks)]
    settings = configs.load(config, keys)
    with tempfile.TemporaryDirectory() as folder:
        # one folder, that of rank 0
        out = Path(comm.allgather_bytes(folder.encode())[0].decode()) / "out"
        summary = trainer_of(settings)(settings, comm_of(comm), out).run()
        comm.barrier()
    facts = summary.get("asynchronous", {})
    sent = facts.get("bytes_in_calls")
    if sent is None:
        # calls of a rank's own server count too
        links = ("same_rank", "same_node", "other_node")
        sent = sum(each[link]["bytes"] for each in summary["traffic"].values() for link in links)
    return {
        "ranks": ranks,
        "seed": seed,
        "kind": kind,
        "logloss": summary["metrics"]["test"]["logloss"],
        "auc": summary["metrics"]["test"]["auc"],
        "samples_per_second": summary["samples_per_second"],
        "bytes_per_sample": sent / summary["samples"],
        "lead": facts.get("largest_lead", 0),
        "digest": summary["digest"],
    }


def read(results: Path) -> list[Line]:
    """The runs that were made."""
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text().splitlines()]


def job(log: Path, results: Path, seeds: int) -> None:
    """Make the runs that are missing on so many ranks as there are. Collective."""
    comm = get_comm()
    prepare_threads(comm, 1)
    known = {(line["ranks"], line["seed"], line["kind"]) for line in read(results)}
    config = results.with_suffix(".toml")
    # kinds innermost, so that all share the minutes in which the machine is busy
    for seed in range(1, seeds + 1):
        for kind in KINDS:
            if (comm.size, seed, kind) in known:
                continue
            line = run(comm, config, log, seed, kind)
            if comm.rank == 0:
                with results.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def table(lines: list[Line]) -> str:
    """Means and standard deviations over seeds."""
    rows = ["| ranks | staleness | log loss | AUC | samples/s | B a sample | largest lead |"]
    rows.append("|---|---|---|---|---|---|---|")
    groups: dict[tuple[int, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line["ranks"], line["kind"]), []).append(line)
    for (ranks, name), group in groups.items():
        cells = [
            f"{statistics.mean(values):.5f} ± {statistics.pstdev(values):.5f}"
            for values in ([line[key] for line in group] for key in ("logloss", "auc"))
        ]
        speed = statistics.median(line["samples_per_second"] for line in group)
        sent = statistics.mean(line["bytes_per_sample"] for line in group)
        lead = max(line["lead"] for line in group)
        rows.append(
            f"| {ranks} | {name} | {cells[0]} | {cells[1]} | {speed:,.0f} | {sent:,.0f} | {lead} |"
        )
    return "\n".join(rows)


def main(words: Sequence[str]) -> None:
    """Make the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args(words)
    if launched():
        job(options.log.resolve(), options.results, options.seeds)
        return
    options.results.with_suffix(".toml").write_text(CONFIG)
    for ranks in options.ranks:
        command, environment = mpiexec_command(ranks, ["-m", "benchmarks.asynchronous", *words])
        subprocess.run(command, env=environment, check=True)
    print(table(read(options.results)))


if __name__ == "__main__":
    sys.exit(run_guarded(lambda: main(sys.argv[1:])))
