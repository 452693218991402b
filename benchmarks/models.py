"""How good are the models beside the DLRM, on one real log?

Every preset is trained for one pass on the first 80 % of the log with its own layers and rates, and
measured on the rest, from several seeds. A cell is the median over the seeds, with the least and
the greatest value; "dot" and "cat" are the preset dcnv2 with another interaction. All have the same
bottom MLP and, but for their inputs, the same top MLP, so the models differ in size: the table says
how many dense parameters each has.

    python -m benchmarks.models --data criteo_kaggle_40k.tsv.gz
    python -m benchmarks.models --quick        # two seeds; the log of NEOCPU_TEST_DATA
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.towers import split
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.run.trainer import Trainer

LOG = "criteo_kaggle_40k.tsv.gz"
SEEDS = (1, 2, 3, 4, 5)
SETTINGS = ("checkpoint.keep=1", "training.log_every=1000000")
# name -> preset, what is set besides
MODELS = {
    "dot (DLRM)": ("dcnv2", ['model.interaction="dot"']),
    "cat": ("dcnv2", ['model.interaction="cat"']),
    "dcnv2, rank 64": ("dcnv2", []),
    "dcnv2, full": ("dcnv2", ["model.cross.rank=0"]),
    "dcnv2 > dot": ("dcnv2", ['model.interaction=["dcnv2", "dot"]']),
    "wide-deep": ("wide-deep", []),
    "deepfm": ("deepfm", []),
    "dhen": ("dhen", []),
    "dhen with attention": (
        "dhen",
        ['model.dhen.modules=["dot", "cross", "attention", "linear"]'],
    ),
}


def settings(name: str, data: list[str], seed: int) -> Config:
    """The config of one run."""
    preset, sets = MODELS[name]
    return configs.load(preset, [*SETTINGS, *data, *sets, f"training.seed={seed}"])


def train(config: Config) -> tuple[float, float]:
    """Logloss and AUC of the test data after one pass."""
    with tempfile.TemporaryDirectory() as folder:
        measured = Trainer(config, SingleComm(), Path(folder) / "run").run()["metrics"]["test"]
    return measured["logloss"], measured["auc"]


def spread(values: list[float], digits: int) -> str:
    """Median, least and greatest."""
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    """Train all models, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a raw Criteo log, gzip")
    parser.add_argument("--quick", action="store_true", help="two seeds")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    log = options.data or Path(os.environ.get("NEOCPU_TEST_DATA", ".")) / LOG
    prepare_threads(SingleComm())
    print("| model | dense parameters | logloss | AUC |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        data = split(log, Path(folder))
        for name in options.models:
            seeds = SEEDS[:2] if options.quick else SEEDS
            configured = [settings(name, data, seed) for seed in seeds]
            losses, areas = zip(*map(train, configured))
            parameters = configured[0].layout(13).parameters
            row = (name, f"{parameters:,}", spread(list(losses), 4), spread(list(areas), 4))
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
