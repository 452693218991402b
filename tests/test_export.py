"""Does an exported model have all that serving it takes, and does it predict the same?"""

import json
from pathlib import Path

import numpy as np
import pytest

from neocpu import config as configs
from neocpu.cli import run
from neocpu.errors import CheckpointError, ConfigError
from neocpu.parallel.comm import SingleComm
from neocpu.scoring import export_arrays
from neocpu.scoring.export_card import data_facts
from neocpu.scoring.export_scorer import export_scorer
from neocpu.training.checkpoint.reading import CheckpointFile
from neocpu.training.inspect import load
from neocpu.training.trainer import Trainer

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")

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
KEYS = ["site@site", "user", "site@user", "id", "weekday", "tags"]
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of three steps."""
    folder = tmp_path_factory.mktemp("export")
    log = folder / "log.csv"
    log.write_text("\n".join([",".join(COLUMNS), *map(",".join, samples())]) + "\n")
    (folder / "schema.toml").write_text(SCHEMA)
    text = CONFIG.replace("{log}", str(log)).replace("{schema}", str(folder / "schema.toml"))
    Trainer(configs.loads(text), SingleComm(), folder / "out").run()
    (path,) = (folder / "out" / "checkpoints").glob("*.h5")
    return path


def scores(checkpoint: Path, tmp_path: Path) -> np.ndarray:
    """What `neocpu predict` says of the samples after those that were trained on."""
    out = tmp_path / "scores.csv"
    log = checkpoint.parent.parent.parent / "log.csv"
    run(["predict", str(checkpoint), str(log), "--out", str(out)])
    return np.loadtxt(out, delimiter=",", skiprows=1)[:, 1]


def exported(checkpoint: Path, target: Path, **options: object) -> Path:
    with CheckpointFile(checkpoint) as file:
        export_scorer(file, target, data_facts(file), **options)
    return target


def test_a_model_has_all_that_serving_takes(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    assert run(["export", str(trained), str(path)]) == 0
    model = load(trained)
    with safetensors.safe_open(path, framework="numpy") as file:
        card = json.loads(file.metadata()["neocpu"])
        assert card["digest"] == model.digest and card["config"]["toml"] == model.config.text
        assert file.get_tensor("tables/user/weight").shape == (50, 4)
        learnt = model.tables["tags"].learnt
        assert np.array_equal(file.get_tensor("tables/tags/rows"), learnt)
        assert np.array_equal(file.get_tensor("tables/tags/weight"), model.tables["tags"][learnt])
        assert file.get_slice("tables/site/weight").get_dtype() == "BF16"
        assert not any("sum" in name for name in file.keys())  # noqa: SIM118
    kinds = {feature["name"]: feature["kind"] for feature in card["features"]}
    assert kinds == {
        "site": "text",
        "user": "text",
        "id": "hex",
        "weekday": "weekday",
        "tags": "text",
    }
    assert [feature["key"] for feature in card["features"]] == KEYS
    assert [column["transform"] for column in card["dense"]] == ["log1p", "log1p"]
    assert path.stat().st_size < 60_000


def test_zero_and_fp32(trained: Path, tmp_path: Path) -> None:
    path = exported(trained, tmp_path / "a.safetensors", unlearnt="zero", narrow=False)
    model = load(trained)
    with safetensors.safe_open(path, framework="numpy") as file:
        weight = file.get_tensor("tables/user/weight")
        upper = file.get_tensor("tables/id/weight")
        assert file.get_tensor("tables/site/weight").dtype == np.float32
    never = np.setdiff1d(np.arange(50), model.tables["user"].learnt)
    assert not weight[never].any() and weight.any()
    assert not (upper.view(np.uint32) & 0xFFFF).any() and upper.any()


def test_what_cannot_be_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="ends in"):
        run(["export", str(trained), str(tmp_path / "a.pt")])
    monkeypatch.setattr(export_arrays, "free_bytes", lambda folder: 5000)
    with pytest.raises(CheckpointError, match=r"would take .* but 4\.9 KiB are free"):
        exported(trained, tmp_path / "a.safetensors")
    monkeypatch.undo()
    monkeypatch.setattr(export_arrays, "IN_MEMORY", 0)
    through_a_file = exported(trained, tmp_path / "b.safetensors").read_bytes()
    monkeypatch.undo()
    assert exported(trained, tmp_path / "b.safetensors").read_bytes() == through_a_file
    with pytest.raises(CheckpointError, match="could not be written"):
        exported(trained, tmp_path / "gone" / "a.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["b.safetensors"]


# ---- the module for torch ----


@pytest.mark.parametrize("options", [{}, {"narrow": False}])
def test_torch_predicts_the_same(trained: Path, tmp_path: Path, options: dict[str, bool]) -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
    from neocpu.scoring.torch_model import Scorer

    path = exported(trained, tmp_path / "a.safetensors", **options)
    scorer = Scorer.load(path)
    expected = scores(trained, tmp_path)
    assert np.abs(scorer.predict(columns(samples())) - expected).max() < 1e-6
    model = load(trained)
    rows = np.array([0, 7, 89999, 5, 4])
    import torch

    for table, spec in zip(scorer.tables, model.config.tables):
        inside = rows[rows < spec.rows]
        weight = model.tables[spec.name][inside]
        if spec.format == "bf16_split":
            weight = (weight.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        assert np.array_equal(table.lookup(torch.from_numpy(inside)).numpy(), weight)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        Scorer.load(cut)
