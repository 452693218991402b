"""Are words rounded once, exactly, however many there are and whatever they hold?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.kernels.numbers import rounding
from neocpu.kernels.twins.numbers import rounding as twin
from neocpu.kernels.twins.numbers.exact import exact_sum, exact_sums
from tests.cases import FILLS, assert_same, floats


def words(rng, shape, fill):
    """fp64 words as shards send them: small exact sums of fp32 numbers."""
    return floats(rng, shape, fill).astype(np.float64) * rng.integers(1, 1 << 20, shape)


@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    rows=st.integers(0, 70) | st.just(3 * rounding.RUN + 1),
    columns=st.sampled_from([1, 4, 9]),
)
def test_sum_words(seed, fill, rows, columns):
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        counts = rng.integers(1, 5, rows)
        addends = words(rng, (int(counts.sum()), columns), fill)
        order = rng.permutation(len(addends))
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        answer, expected = (np.full((rows, columns), 7, np.float32) for _ in "ab")
        rounding.sum_words(addends, order, starts, answer)
        twin.sum_words(addends, order, starts, expected)
        assert_same(answer, expected)


@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    groups=st.integers(0, 4),
    samples=st.integers(0, 5),
    extras=st.integers(0, 6),
)
def test_combine_words(seed, fill, groups, samples, extras):
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        parts = rng.integers(1, 4, groups)
        width = rng.integers(1, 9, groups)
        group_start = np.concatenate([[0], np.cumsum(parts)]).astype(np.int64)
        sizes = np.repeat(width, parts)
        stride = sizes + rng.integers(0, 3, sizes.size)
        source = (np.cumsum(stride * samples) - stride * samples).astype(np.int64)
        recv = words(rng, int((stride * samples).sum()), fill)
        keys = np.sort(rng.integers(0, max(1, groups * samples), extras if groups * samples else 0))
        extra_start = np.concatenate(
            [[0], np.cumsum(width[keys // max(1, samples)] if keys.size else [])]
        ).astype(np.int64)
        extra = words(rng, int(extra_start[-1]), fill)
        column = np.cumsum(width) - width + 1
        answer, expected = (np.full((samples, 2 + int(width.sum())), 7, np.float32) for _ in "ab")
        for module, out in ((rounding, answer), (twin, expected)):
            parts = rounding.WordParts(recv, group_start, source, stride, width, column)
            further = rounding.FurtherWords(keys, extra_start, extra)
            module.combine_words(parts, further, out)
        assert_same(answer, expected)


@given(seed=st.integers(0, 2**32), samples=st.integers(0, 9), fill=st.sampled_from(FILLS))
def test_divide_columns(seed, samples, fill):
    rng = np.random.default_rng(seed)
    x = floats(rng, (samples, 12), fill)
    lengths = rng.integers(0, 5, (4, samples)).astype(np.int32)
    key = np.array([3, 0])
    column = np.array([1, 7])
    width = np.array([4, 5])
    answer = x.copy()
    expected = x.copy()
    with np.errstate(all="ignore"):
        rounding.divide_columns(answer, lengths, key, column, width)
        twin.divide_columns(expected, lengths, key, column, width)
    assert_same(answer, expected)


@given(seed=st.integers(0, 2**32), fill=st.sampled_from(FILLS), n=st.integers(0, 9))
def test_round_words(seed, fill, n):
    with np.errstate(all="ignore"):
        addends = words(np.random.default_rng(seed), n, fill)
        answer = np.float32(rounding.round_words(addends, n, np.empty(n)))
        assert_same(np.array([answer]), np.array([twin.round_words(addends, n, np.empty(n))]))


def kernel_sum(addends):
    return rounding.round_words(np.array(addends, np.float64), len(addends), np.empty(9))


@pytest.mark.parametrize("rounded", [exact_sum, kernel_sum])
def test_words_are_rounded_as_ieee_says(rounded):
    tie = [1.0, 2.0**-24]
    assert rounded(tie) == 1.0
    assert rounded([*tie, 2.0**-149]) == np.nextafter(np.float32(1), np.float32(2))
    assert rounded([*tie, -(2.0**-149)]) == 1.0
    assert rounded([2.0**60, 2.0**36, 1.0]) == 2.0**60 + 2.0**37
    assert rounded([2.0**70, 1.0, 2.0**24 - 2.0**70]) == 2.0**24  # a tie in two parts
    assert rounded([3.0, 2.0**-23]) == 3.0 and rounded([3.0 + 2.0**-22, 2.0**-23]) == 3.0 + 2.0**-21
    largest = float(np.finfo(np.float32).max)
    assert rounded([largest, 2.0**102]) == largest and rounded([largest, 2.0**103]) == np.inf
    assert str(rounded([-0.0, -0.0])) == "0.0" and str(rounded([])) == "0.0"
    assert rounded([np.inf, 1.0]) == np.inf and np.isnan(rounded([np.inf, -np.inf]))


@pytest.mark.parametrize("exponents", [(-149, 127), (-149, -120), (-3, 2), (100, 128)])
def test_sums_of_columns_are_those_of_each_column(exponents):
    rng = np.random.default_rng(0)
    for shape in ((0, 3), (1, 5), (2, 0), (7, 64), (300, 30)):
        with np.errstate(all="ignore"):
            signs = rng.choice([-1, 0, 1], shape)
            numbers = np.ldexp(signs * (1 + rng.random(shape)), rng.integers(*exponents, shape))
            terms = numbers.astype(np.float32)
        terms[1:2] = -terms[:1]
        assert_same(exact_sums(terms), np.float32([exact_sum(column) for column in terms.T]))


def test_one_fp32_number_is_itself():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 20000, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    x = np.where(np.isfinite(x), x, np.float32(1))
    assert_same(np.float32([exact_sum([v]) for v in x]), x + np.float32(0))
    sums = np.float32([exact_sum(pair) for pair in x.reshape(-1, 2)])
    with np.errstate(all="ignore"):
        assert_same(sums, x[0::2] + x[1::2])
