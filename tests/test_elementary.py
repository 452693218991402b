"""Are exp, log, log1p, sigmoid, softplus and tanh accurate to about one ulp, and the same bits in
kernel and twin?
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.numbers import elementary
from neocpu.kernels.twins.numbers import elementary as twin

SETTINGS = settings(deadline=None, derandomize=True, max_examples=25)
NAMES = ["exp", "log", "log1p", "sigmoid", "softplus", "tanh"]
TINY = 5e-324
HUGE = np.finfo(np.float64).max
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1,
        -1,
        0.5,
        2,
        np.inf,
        -np.inf,
        np.nan,
        5e-324,
        -5e-324,
        2.2250738585072014e-308,
        1e-310,
        -1e-310,
        1.7976931348623157e308,
        -1.7976931348623157e308,
        709.782712893384,
        709.7827128933841,
        710,
        -745.1332191019412,
        -745.14,
        -708.4,
        -708.39,
        -744,
        1e5,
        -1e5,
        36.7,
        -36.8,
        5.551115123125783e-17,
        -5.551115123125783e-17,
        1.1102230246251565e-16,
        -0.9999999999999999,
        0.41,
        -0.29,
        0.4142135,
        -0.2929,
        9007199254740992,
        1e18,
        0.7071067811865476,
        0.7071067811865475,
        1.4142135623730951,
    ]
)


def both(name, x):
    answer = np.empty_like(x)
    expected = np.empty_like(x)
    getattr(elementary, name + "_array")(x, answer)
    getattr(twin, name + "_array")(x, expected)
    return answer, expected


def inputs(seed, n):
    rng = np.random.default_rng(seed)
    # any bits at all: every exponent, NaN payloads
    wild = rng.integers(0, 2**64, n, dtype=np.uint64).view(np.float64)
    usual = [
        rng.normal(0, 1, n),
        rng.uniform(-760, 720, n),
        rng.normal(0, 1e-3, n),
        rng.exponential(1e4, n),
    ]
    return np.concatenate([SPECIAL, wild, *usual])


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(seed=st.integers(0, 2**32))
def test_kernel_equals_twin(name, seed):
    answer, expected = both(name, inputs(seed, 300))
    assert answer.tobytes() == expected.tobytes()


def exact_log(x: Fraction) -> Fraction:
    """ln x to about 2^-130 by 2 atanh((x-1)/(x+1)) after halving the argument's range."""
    k = 0
    while x > Fraction(3, 2):
        x = x / 2
        k = k + 1
    while x < Fraction(3, 4):
        x = x * 2
        k = k - 1

    def series(y: Fraction) -> Fraction:
        s = Fraction(round((y - 1) / (y + 1) * 2**200), 2**200)
        total = Fraction(0)
        power = s
        n = 1
        while abs(power) > Fraction(1, 2**140) * max(abs(s), Fraction(1, 2**60)):
            total += power / n
            power = Fraction(round(power * s * s * 2**260), 2**260)
            n = n + 2
        return 2 * total

    return series(x) + k * (series(Fraction(4, 3)) + series(Fraction(3, 2)))


def exact_exp(x: Fraction) -> Fraction:
    """e^x, |x| <= 40, to about 2^-120 relative: the Taylor series of x / 2^12, squared twelve
    times.
    """
    y = x / 4096
    term = Fraction(1)
    total = Fraction(1)
    for n in range(1, 40):
        term = Fraction(round(term * y / n * 2**240), 2**240)
        total += term
    for _ in range(12):
        total = Fraction(round(total * total * 2**300), 2**300)
    return total


def ulps(value: float, exact: Fraction) -> float:
    return float(abs(Fraction(value) - exact) / Fraction(math.ulp(float(exact))))


@pytest.mark.parametrize("name", NAMES)
def test_errors_stay_below_one_ulp_or_so(name):
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-30, 30, 60), rng.normal(0, 0.3, 60)])
    if name.startswith("log"):
        x = np.concatenate([np.exp(rng.uniform(-30, 30, 60)), rng.uniform(-0.6, 3, 60)])
        x = x if name == "log1p" else np.abs(x)
    answer, _ = both(name, x)
    if name == "tanh":
        x = np.concatenate([x[np.abs(x) < 20], np.geomspace(1e-20, 1, 60)])
        answer, _ = both(name, x)
    worst = 0.0
    for value, argument in zip(answer.tolist(), map(Fraction, x.tolist())):
        if name == "exp":
            exact = exact_exp(argument)
        elif name == "log":
            exact = exact_log(argument)
        elif name == "log1p":
            exact = exact_log(1 + argument)
        elif name == "tanh":
            e = exact_exp(2 * argument)
            exact = (e - 1) / (e + 1)
        else:
            e = exact_exp(-abs(argument))
            exact = (1 if argument >= 0 else e) / (1 + e)
            exact = exact if name == "sigmoid" else max(argument, Fraction(0)) + exact_log(1 + e)
        worst = max(worst, ulps(value, exact))
    assert worst < (1.0 if name in ("exp", "log", "log1p") else 2.5)


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("exp", [(0, 1), (np.inf, np.inf), (-np.inf, 0), (710, np.inf), (-746, 0), (-744.5, TINY)]),
        ("log", [(1, 0), (0, -np.inf), (np.inf, np.inf), (-1, np.nan), (TINY, -744.4400719213812)]),
        (
            "log1p",
            [(0, 0), (-1, -np.inf), (-2, np.nan), (np.inf, np.inf), (TINY, TINY), (1e-300, 1e-300)],
        ),
        ("sigmoid", [(0, 0.5), (np.inf, 1), (-np.inf, 0), (-HUGE, 0), (HUGE, 1)]),
        ("softplus", [(np.inf, np.inf), (-np.inf, 0), (HUGE, HUGE), (-HUGE, 0)]),
        ("tanh", [(0, 0), (np.inf, 1), (-np.inf, -1), (HUGE, 1), (-23, -1), (TINY, TINY)]),
    ],
)
def test_limits(name, points):
    x = np.array([x for x, _ in points] + [np.nan], np.float64)
    answer, _ = both(name, x)
    np.testing.assert_array_equal(answer, np.array([y for _, y in points] + [np.nan]))


@pytest.mark.parametrize("name", ["log1p", "tanh"])
def test_signs_of_zero_survive(name):
    answer, _ = both(name, np.array([0.0, -0.0]))
    assert np.signbit(answer).tolist() == [False, True]
