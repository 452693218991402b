"""Does the oracle judge kernels of other devices?

The same test on CUDA, on torch's CPU, and in NumPy where torch is not installed.
"""

import os
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from neocpu import oracle
from neocpu.oracle.testing import assert_correct
from tests.jobs import ran

ROOT = Path(__file__).resolve().parent.parent
TORCH = find_spec("torch") is not None


def has_cuda() -> bool:
    if not TORCH:
        return False
    import torch

    return bool(torch.cuda.is_available())


DEVICES = [
    "numpy",
    pytest.param("cpu", marks=pytest.mark.skipif(not TORCH, reason="torch is not installed")),
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not has_cuda(), reason="no torch that sees a CUDA device")
    ),
]


def problem() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "weights": rng.standard_normal(50 * 33, dtype=np.float32),
        "rows": np.array([50]),
        "dims": np.array([33]),
        "feature_table": np.array([0]),
        "indices": rng.integers(0, 50, 300),
        "offsets": np.array([0, 0, 1, 60, 61, 200, 300]),
    }


def pooled(inputs: dict[str, np.ndarray], device: str, divide: bool) -> object:
    """A parallel sum by scattered adds, as a GPU does it: atomics in any order."""
    bag = np.repeat(np.arange(6), np.diff(inputs["offsets"]))
    length = np.maximum(np.diff(inputs["offsets"]), 1).astype(np.float32)[:, None]
    if device == "numpy":
        out = np.zeros((6, 33), np.float32)
        np.add.at(out, bag, inputs["weights"].reshape(50, 33)[inputs["indices"]])
        return out / length if divide else out
    import torch

    rows = (
        torch.from_numpy(inputs["weights"])
        .to(device)
        .view(50, 33)[torch.from_numpy(inputs["indices"]).to(device)]
    )
    sums = torch.zeros(6, 33, device=device).index_add_(0, torch.from_numpy(bag).to(device), rows)
    return sums / torch.from_numpy(length).to(device) if divide else sums


@pytest.mark.parametrize("device", DEVICES)
def test_a_right_kernel_passes_and_a_broken_one_is_diagnosed(device: str) -> None:
    inputs = problem()
    assert_correct("lookup", inputs, pooled(inputs, device, divide=True), {"pooling": "mean"})
    report = oracle.check(
        "lookup", inputs, pooled(inputs, device, divide=False), {"pooling": "mean"}
    )
    assert report.failures[0].diagnoses[0].names == ("mean_not_divided",)
    with pytest.raises(AssertionError, match="mean_not_divided"):
        report.raise_if_failed()


@pytest.mark.skipif(
    not TORCH or find_spec("triton") is None, reason="torch or triton is not installed"
)
def test_a_triton_kernel_passes_and_a_broken_one_is_diagnosed(tmp_path: Path) -> None:
    """On a GPU where there is one, else through Triton's interpreter."""
    questions = tmp_path / "in.npz"
    answered = tmp_path / "out.npz"
    device = "cuda" if has_cuda() else "cpu"
    inputs = problem()
    np.savez(questions, **inputs)
    environment = os.environ | ({} if device == "cuda" else {"TRITON_INTERPRET": "1"})
    command = [
        sys.executable,
        str(ROOT / "tests" / "triton_pooling.py"),
        str(questions),
        str(answered),
        device,
    ]
    done = ran(command, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    with np.load(answered) as answers:
        assert_correct("lookup", inputs, answers["right"])
        report = oracle.check("lookup", inputs, answers["broken"])
    assert report.failures[0].diagnoses[0].names == ("last_lookup_dropped",)


@pytest.mark.skipif(not TORCH, reason="torch is not installed")
def test_bfloat16_tensors_are_read() -> None:
    import torch

    from neocpu.oracle.adapters import format_of, to_numpy

    array = to_numpy(torch.tensor([1.0, -2.0], dtype=torch.bfloat16, requires_grad=True))
    assert format_of(array) == "bf16" and array["bf16"].tolist() == [0x3F80, 0xC000]


def test_the_numpy_example_tells_right_from_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")  # as `python examples/…` does
    runpy.run_path(str(ROOT / "examples" / "oracle_from_numpy.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.startswith("passed") and "mean_not_divided" in shown


@pytest.mark.skipif(not TORCH, reason="torch is not installed")
def test_the_torch_example_passes(tmp_path: Path) -> None:
    done = ran([sys.executable, str(ROOT / "examples" / "oracle_from_torch.py")], cwd=tmp_path)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "torch-report.html").is_file()
