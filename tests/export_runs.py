"""Which models do tests of exports train? Features of every kind, tables of several formats."""

from pathlib import Path

import numpy as np

from neocpu.cli import run
from neocpu.parallel.transport.comm import SingleComm
from neocpu.serve.exports.card import data_facts
from neocpu.serve.exports.scorer import export_scorer
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config import config as configs
from neocpu.train.run.trainer import Trainer

SCHEMA = """
[label]
column = "click"
[[dense]]
columns = ["price", "age"]
kind = "float"
[[category]]
columns = ["site", "user"]
[[category]]
columns = ["id"]
kind = "hex"
[[category]]
columns = ["time"]
name = "weekday"
kind = "weekday"
[[category]]
columns = ["tags"]
separator = "|"
weight_separator = ":"
"""
CONFIG = """
[data]
train = "{log}"
format = "table"
schema = "{schema}"
[model]
embedding_dim = 4
bottom = [6, 4]
top = [5, 1]
[tables]
site = { rows = 90000, format = "bf16" }
user = { rows = 50, features = ["user", "site"] }
id = { rows = 90000, format = "bf16_split" }
weekday.rows = 8
tags = { rows = 90000, pooling = "mean", weighted = true }
[optimizer.sparse]
learning_rate = 0.5
[optimizer.dense]
learning_rate = 0.1
[training]
batch_size = 32
threads = 1
"""
COLUMNS = ["click", "price", "age", "site", "user", "id", "time", "tags"]
SAMPLES = 96


def samples() -> list[list[str]]:
    """Rows of the log, as texts."""
    random = np.random.default_rng(2)
    rows = []
    for i in range(SAMPLES):
        tags = "|".join(f"t{random.integers(30)}:{random.random():.3f}" for _ in range(i % 4))
        rows.append(
            [
                str(int(random.random() < 0.3)),
                f"{random.normal():.3f}" if i % 5 else "",
                f"{random.gamma(2, 10):.1f}",
                f"sité-{random.integers(40)}" if i % 7 else "",
                f"u{random.integers(20)}",
                f"{random.integers(1 << 40):x}",
                f"1410{random.integers(21, 31)}{random.integers(24):02}",
                tags + "|t1" * (i % 3 == 1),
            ]
        )
    return rows


def columns(rows: list[list[str]]) -> dict[str, list[str]]:
    """The log's columns by name."""
    return {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}


def train(folder: Path, *overrides: str, schema: str = SCHEMA) -> Path:
    """The checkpoint of three steps."""
    log = folder / "log.csv"
    log.write_text("\n".join([",".join(COLUMNS), *map(",".join, samples())]) + "\n")
    (folder / "schema.toml").write_text(schema)
    text = CONFIG.replace("{log}", str(log)).replace("{schema}", str(folder / "schema.toml"))
    Trainer(configs.loads(text, overrides=overrides), SingleComm(), folder / "out").run()
    (path,) = (folder / "out" / "checkpoints").glob("*.h5")
    return path


def scores(checkpoint: Path, tmp_path: Path, vocabulary: bool = False) -> np.ndarray:
    """What `neocpu predict` says of the log."""
    out = tmp_path / "scores.csv"
    log = converted(checkpoint) if vocabulary else checkpoint.parent.parent.parent / "log.csv"
    options = ["--set", f'data.vocabulary="{log}"'] if vocabulary else []
    run(["predict", str(checkpoint), str(log), "--out", str(out), "--force", *options])
    return np.loadtxt(out, delimiter=",", skiprows=1)[:, 1]


def converted(checkpoint: Path) -> Path:
    """The log as the run converted it."""
    with CheckpointFile(checkpoint) as file:
        return Path(file.data()["splits"]["train"]["files"][0])


def exported(checkpoint: Path, target: Path, **options: object) -> Path:
    with CheckpointFile(checkpoint) as file:
        export_scorer(file, target, data_facts(file), **options)
    return target
