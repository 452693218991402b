"""What do compressed wires cost in quality, and what do they save?

One pass over a real click log for each, several seeds, beside the bytes that a step then sends.

    python -m benchmarks.wire_quality --log criteo_kaggle_40k.tsv.gz

The log is in file order: its first eight tenths train the Kaggle preset in batches of 128, its last
tenth tests it. Every wire rounds at fixed points of a step, so these runs on one rank end with the
bits of runs on any number of ranks. Bytes are those that `plan/cost/traffic` predicts, which are
those that ranks count: all messages between 4 ranks, tables whole, 2,048 samples.
"""

import argparse
import gzip
import json
import os
import tempfile
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.cost.traffic.collectives import total
from neocpu.plan.cost.traffic.demand import MeanDemand, sample_cuts
from neocpu.plan.cost.traffic.step import StepShape, step_traffic
from neocpu.tables.specs.specs import bags
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.model.layout import ModelLayout
from neocpu.train.run.trainer import Trainer

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "data" / "models" / "criteo-kaggle.toml"
SCALE = 65536.0  # of gradients that travel in formats with fp16 scales or with few exponents
# name -> keys of the section [wires]
WIRES: dict[str, dict[str, object]] = {
    "fp32": {},
    "fp16 / bf16": {"forward": "fp16", "backward": "bf16"},
    "bf16 / bf16": {"forward": "bf16", "backward": "bf16"},
    "fp16 / fp16": {"forward": "fp16", "backward": "fp16"},
    "fp16 / fp16, scaled": {"forward": "fp16", "backward": "fp16", "backward_scale": SCALE},
    "fp8 / fp8": {"forward": "fp8", "backward": "fp8"},
    "int8 / int8": {"forward": "int8", "backward": "int8"},
    "int4 / int4, scaled": {"forward": "int4", "backward": "int4", "backward_scale": SCALE},
    "int4 / int4": {"forward": "int4", "backward": "int4"},
    "dense bf16": {"dense": "bf16"},
    "dense fp16, scaled": {"dense": "fp16", "dense_scale": 1024.0},
    "fp16 / bf16, dense bf16": {"forward": "fp16", "backward": "bf16", "dense": "bf16"},
}
SHARES = (("train", 0.8), ("valid", 0.1), ("test", 0.1))
DENSE_FEATURES = 13
RANKS = 4
BATCH = 2048


def split(log: Path, folder: Path) -> list[str]:
    """Overrides that name the parts of a log, which are written into a folder."""
    content = log.read_bytes()
    if log.suffix == ".gz":
        content = gzip.decompress(content)
    lines = content.splitlines(keepends=True)
    first = 0
    for name, share in SHARES:
        last = first + round(share * len(lines))
        (folder / f"{name}.tsv").write_bytes(b"".join(lines[first:last]))
        first = last
    return [f'data.{name}="{folder / name}.tsv"' for name, _ in SHARES]


def overrides(wires: dict[str, object]) -> list[str]:
    """Texts of --set."""
    return [f"wires.{key}={value}" for key, value in wires.items()]


def quality(config: Config, out: Path) -> tuple[float, float]:
    """(logloss, AUC) on the test part after one pass."""
    (summary,) = run_threads(1, lambda comm: Trainer(config, comm, out).run())
    metrics = summary["metrics"]["test"]
    return metrics["logloss"], metrics["auc"]


def step_bytes(config: Config) -> tuple[int, int]:
    """Bytes between ranks of a step: pooled vectors with their gradients, and dense gradients."""
    tables = config.tables
    model = config.model
    dims = tuple(tables[bag.table].dim for bag in bags(tables))
    layout = ModelLayout(
        DENSE_FEATURES,
        dims,
        model.bottom,
        model.top,
        model.interaction,
        model.diagonal,
        model.loss,
    )
    plan = place(tables, ["table_wise"] * len(tables), RANKS, RANKS)
    leaves = config.training.leaves
    step = StepShape(BATCH, leaves, layout.parameters, wires=config.wires.specs)
    calls = step_traffic(plan, step, MeanDemand(tables, {}, sample_cuts(RANKS, BATCH, leaves)))
    apart = ~np.eye(RANKS, dtype=bool)
    sizes = {call.name: int(total(calls, RANKS, call.name)[apart].sum()) for call in calls}
    pooled = sizes["pooled output"] + sizes["pooled gradients"]
    return pooled, sizes["dense slices"] + sizes["dense gather"]


def measure(log: Path, seeds: int, names: list[str], keep: Path | None) -> list[dict[str, object]]:
    """One record for each wire."""
    records: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = [*split(log, folder), "training.batch_size=128", "training.threads=1"]
        for wires in names:
            runs = []
            for seed in range(1, seeds + 1):
                sets = [*common, *overrides(WIRES[wires]), f"training.seed={seed}"]
                config = configs.load(MODEL, sets)
                runs.append(quality(config, folder / f"{len(records)}-{seed}"))
            pooled, dense = step_bytes(config)
            losses, areas = zip(*runs)
            records.append(
                {
                    "wires": wires,
                    "losses": losses,
                    "areas": areas,
                    "pooled": pooled,
                    "dense": dense,
                }
            )
            if keep:
                keep.write_text(json.dumps(records), encoding="utf-8")
    return records


def table(records: list[dict[str, object]]) -> str:
    """The records as a table of Markdown; differences are those of runs of one seed."""
    heads = (
        "wires: forward / backward",
        "logloss",
        "AUC",
        "logloss beside fp32, same seed",
        "MB of pooled vectors and gradients",
        "MB of dense gradients",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    plain = records[0]
    for record in records:
        losses = np.array(record["losses"])
        areas = np.array(record["areas"])
        apart = losses - np.array(plain["losses"])
        several = len(losses) > 1
        spreads = [stdev(x.tolist()) if several else 0.0 for x in (losses, areas, apart)]
        lines.append(
            f"| {record['wires']} | {mean(losses):.5f} ± {spreads[0]:.5f} | "
            f"{mean(areas):.5f} ± {spreads[1]:.5f} | {mean(apart):+.5f} ± {spreads[2]:.5f} | "
            f"{record['pooled'] / 1e6:.2f} | {record['dense'] / 1e6:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    data = Path(os.environ.get("NEOCPU_TEST_DATA", "."))
    parser.add_argument("--log", type=Path, default=data / "criteo_kaggle_40k.tsv.gz")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--wires", action="append", choices=list(WIRES), help="only these")
    parser.add_argument("--keep", type=Path, help="write the records to this file")
    parser.add_argument("--kept", type=Path, help="records of an earlier run; measure nothing")
    options = parser.parse_args()
    if options.kept:
        records = json.loads(options.kept.read_text(encoding="utf-8"))
    else:
        names = options.wires or list(WIRES)
        records = measure(options.log, options.seeds, names, options.keep)
    print(table(records))


if __name__ == "__main__":
    main()
