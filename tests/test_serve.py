"""Does the example that serves a model answer real requests as neocpu predicts?"""

import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from export_runs import columns, exported, samples, scores, train

from neocpu.cli import run

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import serve_http


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of three steps."""
    return train(tmp_path_factory.mktemp("serve"))


@contextmanager
def serving(model: Path) -> Iterator[str]:
    """The address of a server of a model."""
    server = serve_http.server(serve_http.predictor(str(model)), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(url: str, body: object) -> dict[str, list[float]]:
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as response:
        parsed: dict[str, list[float]] = json.load(response)
    return parsed


@pytest.mark.parametrize("kind", ["checkpoint", "onnx", "safetensors"])
def test_requests_are_answered(trained: Path, tmp_path: Path, kind: str) -> None:
    model = trained
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
        model = tmp_path / "model.onnx"
        run(["export", str(trained), str(model)])
    if kind == "safetensors":
        pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
        model = exported(trained, tmp_path / "model.safetensors")
    expected = scores(trained, tmp_path)
    with serving(model) as url:
        predictions = answer(url, columns(samples()))["predictions"]
        assert np.abs(predictions - expected).max() < 1e-6
        with pytest.raises(urllib.error.HTTPError) as wrong:
            answer(url, {"price": [1]})
        assert wrong.value.code == 400 and "error" in json.load(wrong.value)
        wrong.value.close()
