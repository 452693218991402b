"""Does the pytest plugin ask every case, say what failed, and keep the answers?"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from neocpu.core.errors import OracleError
from neocpu.oracle.answers import read_answers
from neocpu.oracle.testing import assert_matches_oracle, chosen
from tests.jobs import ran

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import numpy as np
import pytest
from neocpu import oracle

def answer(case, **changed):
    options = {**case.options, **changed}
    return oracle.run(case.op, case.inputs, options, backend="reference")

@pytest.mark.oracle("lookup", pooling="mean", weights_format="fp32")
def test_right(oracle_case):
    report = oracle_case.check(answer(oracle_case)["out"])
    assert report and repr(oracle_case).startswith("<case lookup-")

@pytest.mark.oracle("lookup", pooling="mean", weights_format="fp32")
def test_wrong(oracle_case):
    oracle_case.check(answer(oracle_case, pooling="sum"))
"""
CHANGES_AN_INPUT = """
@pytest.mark.oracle("lookup", pooling="mean", weights_format="fp32")
def test_changed(oracle_case):
    out = answer(oracle_case)["out"]
    oracle_case.inputs["weights"][0] = 7
    oracle_case.check(out)
"""
MISNAMED = """
import pytest

@pytest.mark.oracle("lokup")
def test_nothing(oracle_case):
    pass
"""


def run_pytest(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest in another process, with this plugin and no other that is installed."""
    (folder / "test_kernel.py").write_text(text)
    plugins = ["-p", "neocpu.oracle.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers"]
    return ran(
        [sys.executable, "-m", "pytest", "-q", *plugins, *options, "test_kernel.py"],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        timeout=600,
    )


def test_every_case_is_asked_and_failures_are_explained_together(tmp_path: Path) -> None:
    cases = chosen("lookup", pooling="mean", weights_format="fp32")
    done = run_pytest(tmp_path, TESTS, "--oracle-answers", "answers.npz", "--tb=short")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{len(cases)} failed, {len(cases)} passed" in done.stdout
    assert f"{len(cases)} cases, {len(cases)} failed" in done.stdout
    assert f"{len(cases)} of {len(cases)} explained by mean_not_divided" in done.stdout
    assert "weighted_mean_not_divided (" not in done.stdout.rsplit("neocpu oracle", 1)[1]
    assert "report.py" not in done.stdout, "the traceback ends in the test"
    with read_answers(tmp_path / "answers.npz") as answers:
        assert sorted(answers) == sorted(f"{case.name}/out" for case in cases)
        assert np.isfinite(answers["lookup-mean/out"]).all()


def test_options_choose_cases_and_draw_more_and_workers_report_to_one_place(tmp_path: Path) -> None:
    drawn = chosen("lookup", draw=3, seed=5, pooling="mean", weights_format="fp32")[-3:]
    assert all(case.name.startswith("lookup-drawn-5-") for case in drawn)
    assert all(case.options["pooling"] == "mean" for case in drawn)
    choices = ["--oracle-draw", "3", "--oracle-seed", "5", "--oracle-cases", "*-drawn-*"]
    workers = ["-p", "xdist", "-n", "1"]
    done = run_pytest(tmp_path, TESTS, *choices, *workers)
    assert "3 cases, 3 failed" in done.stdout, done.stdout + done.stderr
    assert all(f"test_right[{case.name}]" not in done.stdout for case in drawn)
    refused = run_pytest(tmp_path, TESTS, "--oracle-answers", "a.npz", *workers)
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "of one process" in refused.stderr


def test_no_entry_point_makes_pytest_rewrite_the_package() -> None:
    """pytest would rewrite kernels' assertions, whose cache keys would then reach into pytest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "pytest11" not in project.get("entry-points", {})


def test_a_changed_input_fails_and_an_unknown_operator_is_answered_with_the_nearest(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_misnamed.py").write_text(MISNAMED)
    words = ["--oracle-cases", "lookup-mean", "--continue-on-collection-errors", "--tb=short"]
    done = run_pytest(tmp_path, TESTS + CHANGES_AN_INPUT, *words, "test_misnamed.py")
    assert done.returncode == 1
    assert "inputs/weights: changed an input: 1 elements" in done.stdout
    assert "explained by changed_an_input" in done.stdout
    assert "did you mean lookup" in done.stdout + done.stderr
    with pytest.raises(OracleError, match="did you mean pooling"):
        chosen("lookup", poling="mean")


def test_one_line_asserts_that_an_output_is_right() -> None:
    bags = {"rows": [3], "dims": [2], "feature_table": [0], "indices": [0, 2], "offsets": [0, 1, 2]}
    weights = np.arange(6, dtype=np.float32)
    right = np.array([[0, 1], [4, 5]], np.float32)
    assert_matches_oracle("lookup", right, weights=weights, **bags, pooling="mean")
    with pytest.raises(AssertionError, match="2 of 4 wrong"):
        assert_matches_oracle("lookup", right * [[1], [2]], weights=weights, **bags)
    with pytest.raises(OracleError, match="did you mean weights"):
        assert_matches_oracle("lookup", right, weight=weights, **bags)
