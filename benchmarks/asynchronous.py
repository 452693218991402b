"""What does it cost to wait for each other, and what not to? Synchronous steps against parameter
servers, on a real log.

Each worker's gradient is applied at once, so a run of W workers makes W updates of each batch: it
is to be compared with synchronous runs of smaller batches too.

    python -m benchmarks.asynchronous LOG.tsv.gz RESULTS.jsonl [--seeds 5] [--ranks 2 4]

Each line of RESULTS is one run; runs that are in it are not made again, so it can be ended and
started anew. At the end it prints means and standard deviations over the seeds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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
batch_size = 256
leaves = 16
epochs = 2
threads = 1
"""
BATCH = 256
# of servers, and two kinds of synchronous runs: of the same batch, and of as many updates
KINDS = ("synchronous", "smaller batches", "0", "4", "64", "-1")


def overrides_of(kind: str, ranks: int) -> list[str]:
    """Those of synchronous training, or of servers with this staleness."""
    if kind == "synchronous":
        return []
    if kind == "smaller batches":
        return [f"training.batch_size={BATCH // ranks}"]
    return ['training.sync="off"', f"training.asynchronous.staleness={kind}"]


def run(config: Path, log: Path, ranks: int, seed: int, kind: str) -> Line:
    """The figures of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "neocpu", "train", str(config), "--out", f"{folder}/out"]
        command += ["--ranks", str(ranks)]
        keys = [f'data.train="{log}"', f"training.seed={seed}", *overrides_of(kind, ranks)]
        for key in keys:
            command += ["--set", key]
        subprocess.run(command, check=True, capture_output=True)
        summary = json.loads((Path(folder) / "out" / "run.json").read_text())
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


def main() -> None:
    """Make the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    asked = parser.parse_args()
    lines = []
    if asked.results.exists():
        lines = [json.loads(line) for line in asked.results.read_text().splitlines()]
    known = {(line["ranks"], line["seed"], line["kind"]) for line in lines}
    config = asked.results.with_suffix(".toml")
    config.write_text(CONFIG)
    # seeds outermost, so that all kinds of run share the hours in which the machine is busy
    for seed in range(1, asked.seeds + 1):
        for ranks in asked.ranks:
            for kind in KINDS:
                if (ranks, seed, kind) in known:
                    continue
                lines.append(run(config, asked.log.resolve(), ranks, seed, kind))
                with asked.results.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    print(table(lines))


if __name__ == "__main__":
    main()
