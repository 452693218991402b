"""Do verdicts follow the rules: bounds, classes of numbers, codes, bits, stochastic rounding?"""

import math

import numpy as np
import pytest

from neocpu import oracle
from neocpu.core.errors import OracleError
from neocpu.oracle.adapters import coded
from neocpu.oracle.operator import Case, Truth
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.verdicts.compare import agrees, compare, judge, malformed

NAN = math.nan
INF = math.inf
CASE = Case("case", "lookup", {}, {}, "")


def truth(reference: list[float], bound: list[float], **more: object) -> Truth:
    return Truth(np.array(reference), np.array(bound), **more)  # type: ignore[arg-type]


def test_bounds_and_classes_of_numbers() -> None:
    expected = truth(
        [1.0, 1.0, NAN, NAN, INF, INF, INF, 0.0, 5.0, 1.0], [0.5, 0.5, 0, 0, 0, 0, 0, 0, INF, 0.5]
    )
    right, ratio = judge(expected, np.array([1.5, 1.6, NAN, 1.0, INF, -INF, 3e38, -0.0, NAN, NAN]))
    assert right.tolist() == [True, False, True, False, True, False, False, True, True, False]
    assert not np.isnan(ratio).any() and ratio[0] == 1.0 and ratio[3] == INF


def test_elements_of_pooled_rows_are_those_of_features() -> None:
    inputs = {"feature_table": np.array([1, 0, 1]), "dims": np.array([2, 3])}
    case = Case("case", "lookup", inputs, {}, "")
    places = [OPERATORS["lookup"].locate(case, "out", (4, column)) for column in range(8)]
    assert [place["feature"] for place in places] == [0, 0, 0, 1, 1, 2, 2, 2]
    assert [place["column"] for place in places] == [0, 1, 2, 0, 1, 0, 1, 2]
    assert [place["table"] for place in places] == [1, 1, 1, 0, 0, 1, 1, 1]


def test_exact_outputs_need_integers_and_equality() -> None:
    expected = Truth(np.array([2**62 + 1, 3]), np.zeros(2), exact=True)
    assert agrees(expected, np.array([2**62 + 1, 3])) and not agrees(expected, np.array([2**62, 3]))
    assert "expected integers" in malformed(expected, np.array([1.0, 3.0]))


def test_codes_of_narrow_formats_are_numbers() -> None:
    expected = truth([1.0, -2.0], [0.0, 0.0], format="bf16")
    codes = np.array([0x3F80, 0xC000], np.uint16)
    assert agrees(expected, codes)
    assert agrees(expected, coded(codes, "bf16"))
    assert agrees(expected, np.float32([1, -2]))
    assert "int64 elements" in malformed(expected, np.array([1, 2]))


def test_the_first_wrong_element_is_located_in_ulps() -> None:
    inputs = {"rows": np.array([2]), "dims": np.array([2]), "feature_table": np.array([0])}
    case = Case("case", "lookup", inputs, OPERATORS["lookup"].complete({}), "")
    expected = Truth(np.ones((3, 2)), np.full((3, 2), 1e-9))
    answer = np.ones((3, 2), np.float32)
    answer[2, 1] += np.float32(2**-22)
    verdict = compare(OPERATORS["lookup"], case, "out", expected, answer)
    assert verdict.wrong == 1 and verdict.first is not None and verdict.first.index == (2, 1)
    assert verdict.first.place == {"sample": 2, "feature": 0, "table": 0, "column": 1}
    assert verdict.first.ulps == 2.0


def test_bits_tell_minus_zero_but_not_one_nan_from_another() -> None:
    expected = truth([0.0, NAN], [1.0, 0.0])
    canonical = np.array([0.0, NAN], np.float32)
    negative = (canonical.view(np.uint32) | np.uint32(1 << 31)).view(np.float32)
    assert compare(OPERATORS["lookup"], CASE, "x", expected, negative).status == "passed"
    op = OPERATORS["segment_sum"]
    verdict = compare(op, CASE, "x", expected, negative, canonical)
    assert verdict.status == "failed" and verdict.wrong == 1


def test_questions_that_make_no_sense_are_refused() -> None:
    inputs = {"weights": np.zeros(4, np.float32)}
    with pytest.raises(OracleError, match="did you mean lookup"):
        oracle.check("lokup", inputs, np.zeros(3))
    with pytest.raises(OracleError, match="did you mean pooling"):
        oracle.check("lookup", inputs, np.zeros(3), {"poling": "mean"})
    with pytest.raises(OracleError, match="needs the input"):
        oracle.check("lookup", inputs, np.zeros(3))
    with pytest.raises(OracleError, match="no preset"):
        oracle.check("lookup", inputs, np.zeros(3), preset="fbgem")
