"""Does an exported model have all that serving it takes, and does it predict the same?"""

import json
from pathlib import Path

import numpy as np
import pytest
from export_runs import columns, exported, samples, scores, train

from neocpu.cli import run
from neocpu.core.errors import CheckpointError, ConfigError
from neocpu.serve.exports import arrays as export_arrays
from neocpu.serve.exports.scorer import StoredTable
from neocpu.serve.scoring.inspect import load
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.state.initial import in_format

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")

KEYS = ["site@site", "user", "site@user", "id", "weekday", "tags"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of three steps."""
    return train(tmp_path_factory.mktemp("export"))


def test_a_model_has_all_that_serving_takes(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    assert run(["export", str(trained), str(path)]) == 0
    model = load(trained)
    with safetensors.safe_open(path, framework="numpy") as file:
        card = json.loads(file.metadata()["neocpu"])
        assert card["digest"] == model.digest and card["config"]["toml"] == model.config.text
        assert card["version"] == 1, "the first readers know this model"
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
    with pytest.raises(CheckpointError, match=r"needs .* of disk, but 4\.9 KiB are free"):
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


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_scaled_rows_are_kept(form: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
    from neocpu.serve.exports.torch_model import EmbeddingTable

    spec = TableSpec("t", 9, 5, ("t",), format=form)
    weight = np.random.default_rng(1).standard_normal((9, 5)).astype(np.float32)
    values = in_format(spec, weight, "reference")
    stored = StoredTable(spec, 0, 9, "initial")
    facts = {"name": "t", "rows": 9, "dim": 5, "pooling": "sum", **stored.facts()}
    table = EmbeddingTable(facts, torch.from_numpy(stored.encode(values)), None)
    assert stored.whole and stored.row_bytes < 20
    numbers = table.lookup(torch.arange(9)).numpy()
    assert np.allclose(numbers, values["weight"], rtol=2**-23, atol=0)


@pytest.mark.parametrize("options", [{}, {"narrow": False}])
def test_torch_predicts_the_same(trained: Path, tmp_path: Path, options: dict[str, bool]) -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
    from neocpu.serve.exports.torch_model import TorchModel

    path = exported(trained, tmp_path / "a.safetensors", **options)
    scorer = TorchModel.load(path)
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
        TorchModel.load(cut)
