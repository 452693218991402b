"""Does the plugin tell which tests neocpu answered? pytest runs three small ones in a process."""

import os
import sys
from pathlib import Path

import pytest

from tests.jobs import ran

pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")

TESTS = """
import torch

from neocpu.peers.fbgemm.installing import CLASSES

SPLIT = CLASSES["SplitTableBatchedEmbeddingBagsCodegen"]


def test_sums():
    sums = torch.ops.fbgemm.asynchronous_complete_cumsum(torch.tensor([1, 2]))
    assert sums.tolist() == [0, 1, 3]


def test_constructor():
    assert SPLIT([(4, 8)]).rows == [4]


def test_arithmetic():
    assert 1 + 1 == 2
"""


def _output(folder: Path, *options: str) -> str:
    (folder / "test_calls.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "neocpu.peers.fbgemm.plugin", *options, "test_calls.py"]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    result = ran(command, cwd=folder, env=environment)
    return result.stdout + result.stderr


def test_the_plugin_names_tests_that_do_not_reach_neocpu(tmp_path: Path) -> None:
    output = _output(tmp_path)
    assert "neocpu answered in 1 of 3 passed tests" in output
    assert "constructs modules only: test_calls.py::test_constructor" in output
    assert "never calls neocpu: test_calls.py::test_arithmetic" in output


def test_operators_raise_on_request(tmp_path: Path) -> None:
    output = _output(tmp_path, "--neocpu-raise")
    assert "1 failed, 2 passed" in output
    assert "asynchronous_complete_cumsum was called" in output
