"""Does onnxruntime predict what neocpu predicts, from an exported graph?"""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from export_runs import COLUMNS, SCHEMA, columns, exported, samples, scores, train

from neocpu.cli import run
from neocpu.core.errors import CheckpointError, ConfigError
from neocpu.serve.exports import arrays as export_arrays
from neocpu.serve.exports import onnx as export_onnx
from neocpu.serve.exports.raw_values import RawValues
from neocpu.serve.scoring.inspect import load

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of three steps."""
    return train(tmp_path_factory.mktemp("export"))


def predictions(path: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert {each.name for each in session.get_inputs()} == set(inputs)
    return session.run(None, inputs)[0]


def inputs_of(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    """All samples as a whole model takes them, without its other columns."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    card = json.loads(session.get_modelmeta().custom_metadata_map["neocpu"])
    log = columns(samples())
    return RawValues(card).onnx_inputs({name: log[name] for name in names})


def test_the_whole_model(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert run(["export", str(trained), str(path)]) == 0
    expected = scores(trained, tmp_path)
    assert expected.std() > 0.01
    inputs = inputs_of(path, COLUMNS[1:])
    assert np.abs(predictions(path, inputs) - expected).max() < 1e-6
    small = tmp_path / "small.onnx"
    run(["export", str(trained), str(small), "--unlearnt", "zero"])
    assert small.stat().st_size < path.stat().st_size / 20
    assert np.abs(predictions(small, inputs) - expected).max() < 0.01


TOWERS = """model.towers={a=["tags", "id"], b=["user", "site@site", "weekday", "site@user"]}"""
MODELS = {
    "cat, mse, vocabulary": (
        'model.interaction="cat"',
        'model.loss="mse"',
        'data.rows_by="vocabulary"',
        "data.min_count=2",
    ),
    "towers, diagonal, no dense": (
        TOWERS,
        "model.tower.feature_vectors=1",
        "model.tower.joint_vectors=2",
        "model.diagonal=true",
    ),
    "deepfm, dcnv2": (
        'model.interaction=["deepfm", "dcnv2"]',
        'model.wide=["*.wide"]',
        "model.cross.rank=2",
        'tables."site.wide"={features=["site"], rows=40, dim=1}',
        'tables."tags.wide"={features=["tags"], rows=40, dim=1, pooling="mean"}',
    ),
    "kinds": (
        'data.rows_by="code"',
        'tables.site.kind="qr"',
        'tables.user={rows=50, features=["user", "site"], kind="md", own_dim=2}',
        'tables.id={rows=90000, kind="unified", shared_rows=200, chunks=2, weighted=false}',
        'tables.weekday={rows=8, kind="md", blocks=[2], block_dims=[4, 1]}',
        'tables.tags={rows=900, pooling="mean", weighted=true, kind="hash", hash_rows=99}',
        "tables.tags.hashes=2",
        "tables.tags.signed=true",
    ),
    "dhen, dot": (
        'model.interaction=["dhen", "dot"]',
        'model.dhen.modules=["dot", "cross", "attention", "linear"]',
        "model.dhen.tokens=2",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_other_models(tmp_path: Path, name: str) -> None:
    schema = SCHEMA.replace('[[dense]]\ncolumns = ["price", "age"]\nkind = "float"\n', "")
    if "no dense" not in name:
        schema = SCHEMA.replace('kind = "float"', 'kind = "float"\nclip = [2.5, 30]', 1)
    checkpoint = train(tmp_path, *MODELS[name], schema=schema)
    expected = scores(checkpoint, tmp_path, vocabulary="vocabulary" in name)
    run(["export", str(checkpoint), str(tmp_path / "a.onnx")])
    inputs = inputs_of(tmp_path / "a.onnx", COLUMNS[3 if "no dense" in name else 1 :])
    assert np.abs(predictions(tmp_path / "a.onnx", inputs) - expected).max() < 2e-6
    with contextlib.suppress(ImportError):
        from neocpu.serve.exports.torch_model import TorchModel

        scorer = TorchModel.load(exported(checkpoint, tmp_path / "a.safetensors"))
        assert np.abs(scorer.predict(columns(samples())) - expected).max() < 2e-6


def test_rows_and_the_dense_part(trained: Path, tmp_path: Path) -> None:
    run(["export", str(trained), str(tmp_path / "rows.onnx"), "--inputs", "rows"])
    run(["export", str(trained), str(tmp_path / "dense.onnx"), "--part", "dense"])
    model = load(trained)
    random = np.random.default_rng(1)
    raw = random.gamma(2, 10, (3, 2)).astype(np.float32)
    inputs = {"dense": raw}
    pooled = []
    for key, table in (
        ("site@site", "site"),
        ("user", "user"),
        ("site@user", "user"),
        ("id", "id"),
        ("weekday", "weekday"),
    ):
        inputs[key] = random.integers(0, len(model.tables[table]), 3)
        vectors = model.tables[table][inputs[key]]
        if table == "id":
            vectors = (vectors.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        pooled.append(vectors)
    inputs["tags"] = np.array([[5, 7], [9, 0], [0, 0]])
    inputs["tags.count"] = np.array([2, 1, 0])
    inputs["tags.weights"] = np.array([[0.5, 2], [3, 0], [0, 0]], np.float32)
    first, second, third = model.tables["tags"][[5, 7, 9]]
    pooled.append(np.stack([(first / 2 + second * 2) / 2, third * 3, third * 0]))
    whole = predictions(tmp_path / "rows.onnx", inputs)
    vectors = np.concatenate(pooled, axis=1).astype(np.float32)
    dense = np.log1p(raw.astype(np.float64)).astype(np.float32)
    part = predictions(tmp_path / "dense.onnx", {"dense": dense, "pooled": vectors})
    assert np.abs(whole - part).max() < 1e-6


def test_what_is_too_large(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(export_onnx, "AUTO_WHOLE", 100)
    run(["export", str(trained), str(tmp_path / "a.onnx")])
    shown = capsys.readouterr().out
    assert "a.onnx: dense model" in shown and "--unlearnt zero the trained rows" in shown
    monkeypatch.setattr(export_onnx, "LARGEST", 1 << 20)
    with pytest.raises(ConfigError, match=r"an ONNX file holds 2 GiB; --part dense .*--unlearnt"):
        run(["export", str(trained), str(tmp_path / "b.onnx"), "--part", "whole"])
    monkeypatch.undo()
    monkeypatch.setattr(export_arrays, "free_bytes", lambda folder: 5000)
    with pytest.raises(CheckpointError, match=r"4\.9 KiB are free"):
        run(["export", str(trained), str(tmp_path / "b.onnx")])
