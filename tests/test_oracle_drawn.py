"""Are right kernels right on drawn cases, and is a case that fails shrunk, kept and asked again?"""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from neocpu import oracle
from neocpu.core.errors import OracleError
from neocpu.oracle import testing
from neocpu.oracle.cases.covers.drawn import FACTORS, drawn_cases
from neocpu.oracle.operator import Arrays
from neocpu.oracle.repeat import Kernel
from neocpu.oracle.suite import Suite
from neocpu.oracle.verdicts.compare import agrees


def right(op: str) -> Kernel:
    return lambda inputs, options: oracle.run(op, inputs, options, backend="reference")


def first_column_lost_in_long_bags(inputs: Arrays, options: dict) -> np.ndarray:
    out = oracle.run("lookup", inputs, options, backend="reference")["out"].copy()
    if np.diff(inputs["offsets"]).max(initial=0) > 4:
        out[..., 0] = 0
    return out


@pytest.mark.parametrize("op", FACTORS)
def test_a_right_kernel_passes(op: str) -> None:
    report = oracle.check_drawn(op, right(op), draw=8, seed=5)
    assert report and len(report.cases) == 8


@pytest.mark.parametrize("op", FACTORS)
def test_draws_have_all_options_and_repeat(op: str) -> None:
    rows = [drawn.row for drawn in islice(drawn_cases(op, 1, 4), 150)]
    assert rows == [drawn.row for drawn in islice(drawn_cases(op, 1, 4), 150)]
    for factor, values in FACTORS[op].items():
        if factor != "width":  # shapes are drawn themselves
            assert {row[factor] for row in rows} == set(values), factor


def test_a_case_that_fails_is_shrunk_and_kept(tmp_path: Path) -> None:
    wanted = {"weights_format": "fp32", "pooling": "sum"}
    report = oracle.check_drawn(
        "lookup",
        first_column_lost_in_long_bags,
        draw=50,
        seed=1,
        options=wanted,
        folder=tmp_path,
    )
    assert not report
    (outcome,) = report.cases
    lengths = np.diff(outcome.case.inputs["offsets"])
    assert lengths.max() == lengths.sum() <= 9 and outcome.case.inputs["dims"].max() == 4
    (path,) = tmp_path.iterdir()
    assert f"kept as {path}" in str(report)
    with Suite(path) as suite:
        (question,) = suite.values()
        wrong = first_column_lost_in_long_bags(question.case.inputs, question.case.options)
        assert not agrees(question.outputs["out"].truth, wrong)


def test_what_cannot_be_drawn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "MOST_LOOKED_AT", 20)
    with pytest.raises(OracleError, match="segment_sum is not drawn"):
        oracle.check_drawn("segment_sum", right("segment_sum"))
    with pytest.raises(OracleError, match="no case that was drawn"):
        oracle.check_drawn("lookup", right("lookup"), draw=1, options={"pooling": "median"})
