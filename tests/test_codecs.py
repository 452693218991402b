"""Is every code of the small floats read and written as its definition says, and is chance fair and
the same on any plan?
"""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.codecs import FBGEMM, HALF_UP, LAYOUTS, NEAREST, STOCHASTIC, TRUNCATE
from neocpu.core.formats import FORMATS, RowFormat, SmallFloat
from neocpu.kernels.codecs import small_floats as codecs
from neocpu.kernels.twins.codecs import small_floats as twin
from neocpu.kernels.twins.numbers.philox import STOCHASTIC_ROUNDING, tensor_key
from tests.cases import FILLS, floats

PEERS = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}
KEY = tensor_key(7, STOCHASTIC_ROUNDING, "a table")


def code_dtype(name):
    return np.uint16 if LAYOUTS[name][0] == 16 else np.uint8


def all_codes(name):
    return np.arange(1 << int(LAYOUTS[name][0]), dtype=code_dtype(name))[None]


def decoded(name, codes, module=codecs):
    out = np.empty(codes.shape, np.float32)
    module.decode_rows(codes, LAYOUTS[name], out)
    return out


def encoded(name, x, rounding=NEAREST, module=codecs):
    out = np.empty(x.shape, code_dtype(name))
    module.encode_rows(x, LAYOUTS[name], rounding, out)
    return out


def drawn(name, x, step=0, rows=None, column0=0, key=KEY, rounding=STOCHASTIC, module=codecs):
    out = np.empty(x.shape, code_dtype(name))
    rows = np.arange(len(x)) if rows is None else rows
    with np.errstate(all="ignore"):
        module.encode_rows_randomly(x, LAYOUTS[name], rounding, key, rows, column0, step, out)
    return out


def hard_numbers(name, seed=0, anything=100_000):
    """Every number of a format, every midpoint, both with their neighbours in fp32; and any bits at
    all.
    """
    numbers = decoded(name, all_codes(name))
    numbers = np.unique(numbers[np.isfinite(numbers)]).astype(np.float64)
    ties = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    ends = np.float32(
        [464, 465, 61440, 65520, 65519.996, 3.3961776e38, 3.4e38, np.inf, -np.inf, np.nan, -np.nan]
    )
    exact = np.concatenate([numbers.astype(np.float32), ties, ends, -ends])
    bits = (
        np.random.default_rng(seed)
        .integers(0, 1 << 32, anything, dtype=np.uint64)
        .astype(np.uint32)
    )
    around = [np.nextafter(exact, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([exact, *around, bits.view(np.float32)])[None]


@pytest.mark.parametrize("name", PEERS)
def test_every_code_is_read_as_others_read_it(name):
    codes = all_codes(name)
    with np.errstate(invalid="ignore"):  # ARM reports a signalling NaN that is widened
        theirs = codes.view(PEERS[name]).astype(np.float32)
    nan = np.isnan(theirs)
    for module in (codecs, twin):
        ours = decoded(name, codes, module)
        np.testing.assert_array_equal(ours[~nan].view(np.uint32), theirs[~nan].view(np.uint32))
        assert set(ours[nan].view(np.uint32)) <= {0x7FC00000, 0xFFC00000}


@pytest.mark.parametrize("name", PEERS)
def test_nearest_even_as_others_write_it(name):
    x = hard_numbers(name, anything=1_000_000)
    nan = np.isnan(x)
    with np.errstate(all="ignore"):
        theirs = x.astype(PEERS[name]).view(code_dtype(name))
    ours = encoded(name, x)
    np.testing.assert_array_equal(ours[~nan], theirs[~nan])
    assert np.isnan(decoded(name, ours[nan][None])).all()


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_twin_writes_the_same_codes(name):
    x = hard_numbers(name)
    for rounding in (NEAREST, TRUNCATE, *((HALF_UP,) if name == "bf16" else ())):
        np.testing.assert_array_equal(encoded(name, x, rounding), encoded(name, x, rounding, twin))
    np.testing.assert_array_equal(
        decoded(name, all_codes(name)).view(np.uint32),
        decoded(name, all_codes(name), twin).view(np.uint32),
    )
    for rounding in (STOCHASTIC, *((FBGEMM,) if name == "fp16" else ())):
        codes, expected = (
            drawn(name, x, 3, column0=5, rounding=rounding, module=m) for m in (codecs, twin)
        )
        np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_can_be_written_never_moves(name):
    codes = all_codes(name)
    x = decoded(name, codes)
    limit = np.int32(LAYOUTS[name][4]).view(np.float32)
    keep = ~np.isnan(x) & (np.abs(x) <= limit)
    for rounding in (NEAREST, TRUNCATE):
        np.testing.assert_array_equal(encoded(name, x, rounding)[keep], codes[keep])
    for step in range(5):
        np.testing.assert_array_equal(drawn(name, x, step)[keep], codes[keep])


def neighbours(name, x):
    """(largest number of the format <= x, smallest >= x), fp64, for finite x within the format."""
    numbers = decoded(name, all_codes(name))
    numbers = np.unique(numbers[np.isfinite(numbers)]).astype(np.float64)
    at = np.searchsorted(numbers, x.astype(np.float64))
    hi = numbers[np.minimum(at, numbers.size - 1)]
    return np.where(hi == x, hi, numbers[np.maximum(at - 1, 0)]), hi


@pytest.mark.parametrize("name", PEERS)
def test_stochastic_rounding_takes_a_neighbour(name):
    x = hard_numbers(name)
    numbers = decoded(name, all_codes(name))
    largest = numbers[np.isfinite(numbers)].max()
    inside = np.abs(x) <= largest
    lo, hi = neighbours(name, np.where(inside, x, np.float32(0)))
    for step in range(3):
        codes = drawn(name, x, step)
        got = decoded(name, codes)
        assert ((got == lo) | (got == hi))[inside].all()
        np.testing.assert_array_equal(codes[~inside], encoded(name, x)[~inside])


@pytest.mark.parametrize("name", PEERS)
def test_stochastic_rounding_is_fair(name):
    """chi-square of how often each number goes up, normal and subnormal, and the mean of all of
    them.
    """
    rng = np.random.default_rng(1)
    smallest = float(decoded(name, all_codes(name))[0, 1])
    normal = rng.uniform(0.5, 4, 500)
    below = smallest * rng.uniform(0, 6, 500)
    x = (np.concatenate([normal, below]) * rng.choice([-1, 1], 1000)).astype(np.float32)
    lo, hi = neighbours(name, x)
    probability = np.where(
        hi > lo, (x.astype(np.float64) - lo) / np.where(hi > lo, hi - lo, 1), 0.5
    )
    trials = 400
    ups = np.zeros(1000)
    mean = np.zeros(1000)
    for step in range(trials):
        got = decoded(name, drawn(name, x[None], step))[0].astype(np.float64)
        ups += got == hi
        mean += (got - x) / np.where(hi > lo, hi - lo, 1)
    sure = (hi == lo) | (probability * trials < 5) | ((1 - probability) * trials < 5)
    z = (ups - probability * trials)[~sure] / np.sqrt(probability * (1 - probability) * trials)[
        ~sure
    ]
    freedom = z.size
    assert freedom > 800
    # five standard deviations of chi-square
    assert abs((z**2).sum() - freedom) < 5 * np.sqrt(2 * freedom)
    assert abs(mean.sum() / (1000 * trials)) < 5 * 0.5 / np.sqrt(1000 * trials)


@given(
    name=st.sampled_from(sorted(PEERS)),
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    rows=st.integers(0, 9),
    columns=st.integers(1, 21),
    first=st.integers(0, 9),
    cut=st.integers(0, 9),
)
def test_any_split_of_a_table_draws_the_same_bits(name, seed, fill, rows, columns, first, cut):
    rng = np.random.default_rng(seed)
    x = floats(rng, (rows, columns), fill)
    numbers = rng.integers(0, 1 << 40, rows)
    whole = drawn(name, x, 5, numbers, first)
    np.testing.assert_array_equal(whole, drawn(name, x, 5, numbers, first, module=twin))
    order = rng.permutation(rows)
    np.testing.assert_array_equal(whole[order], drawn(name, x[order], 5, numbers[order], first))
    cut = min(cut, columns)
    parts = [
        drawn(name, np.ascontiguousarray(part), 5, numbers, at)
        for at, part in ((first, x[:, :cut]), (first + cut, x[:, cut:]))
    ]
    np.testing.assert_array_equal(whole, np.concatenate(parts, axis=1))
    np.testing.assert_array_equal(encoded(name, x), encoded(name, x, module=twin))


def test_half_up_does_to_nan_what_fbgemm_does():
    x = np.array(
        [[0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF, 0x3F808000, 0x3F818000, 0x3F807FFF]], np.uint32
    ).view(np.float32)
    assert encoded("bf16", x, HALF_UP).tolist() == [
        [0x8000, 0x7F80, 0x0000, 0x3F81, 0x3F82, 0x3F80]
    ]
    assert encoded("bf16", x, NEAREST).tolist() == [
        [0x7FC0, 0x7FC0, 0xFFC0, 0x3F80, 0x3F82, 0x3F80]
    ]
    assert encoded("bf16", x, TRUNCATE).tolist() == [
        [0x7FC0, 0x7FC0, 0xFFC0, 0x3F80, 0x3F81, 0x3F80]
    ]


def test_bias_of_the_four_roundings_to_bf16():
    """arXiv 1905.12322: truncation shrinks numbers by 2.8e-3 on average, the others do not; the
    worst errors as derived.
    """
    x = np.random.default_rng(2).standard_normal((100, 1000)).astype(np.float32)
    relative = {
        rounding: (decoded("bf16", codes) / x.astype(np.float64) - 1)
        for rounding, codes in [(r, encoded("bf16", x, r)) for r in (NEAREST, TRUNCATE, HALF_UP)]
        + [(1, drawn("bf16", x))]
    }
    assert -3e-3 < relative[TRUNCATE].mean() < -2.5e-3 and relative[TRUNCATE].min() > -(2.0**-7)
    for rounding in (NEAREST, HALF_UP, STOCHASTIC):
        assert abs(relative[rounding].mean()) < 5e-5
    assert abs(relative[NEAREST]).max() <= 2.0**-8 and abs(relative[STOCHASTIC]).max() < 2.0**-7


def test_small_updates_stagnate_unless_chance_helps():
    weight = {r: np.ones((1, 64), np.float32) for r in (NEAREST, STOCHASTIC)}
    for step in range(1000):
        moved = {r: w + np.float32(1e-3) for r, w in weight.items()}
        weight = {
            NEAREST: decoded("bf16", encoded("bf16", moved[NEAREST])),
            STOCHASTIC: decoded("bf16", drawn("bf16", moved[STOCHASTIC], step)),
        }
    assert (weight[NEAREST] == 1).all() and abs(weight[STOCHASTIC].mean() - 2) < 0.05


def test_fbgemm_trick_is_fair_for_normal_numbers_and_breaks_infinity():
    x = np.full((1, 4000), 1 + 0.3 * 2.0**-10, np.float32)
    got = decoded("fp16", drawn("fp16", x, rounding=FBGEMM))
    assert (
        set(got.ravel()) == {np.float32(1), np.float32(1 + 2.0**-10)}
        and abs((got > 1).mean() - 0.3) < 0.05
    )
    tiny = np.full((1, 4000), 2.5 * 2.0**-24, np.float32)
    assert (decoded("fp16", drawn("fp16", tiny, rounding=FBGEMM)) == 2 * 2.0**-24).all(), (
        "subnormal: never up"
    )
    assert np.isnan(
        decoded("fp16", drawn("fp16", np.full((1, 4), np.inf, np.float32), rounding=FBGEMM))
    ).all()


def test_records_and_layouts_agree():
    for name, form in FORMATS.items():
        assert form.row_bytes(20) == form.row_codes(20) * np.dtype(form.dtype).itemsize
        if name in LAYOUTS:
            assert form.bits == LAYOUTS[name][0] and not form.row_scaled
            assert form.view(all_codes(name)).dtype.names == (name,)
    assert [
        FORMATS[n].row_bytes(20) for n in ("fp32", "fp16", "fp8_e4m3", "int8", "int4", "int2")
    ] == [
        80,
        40,
        20,
        28,
        14,
        9,
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"trains": False}, "does not say trains=True"),
        ({"number": None}, "its codes mean nothing"),
        ({"header": (("scale", "<f4"), ("bias", "<f4"))}, ""),
        ({"header": (("scale", "<f4"),)}, "row-scaled rows are integers of 8 or 4 or 2 bits"),
        ({"bits": 4}, "codes of small floats have 8 or 16 bits"),
        ({"dtype": "<u2"}, "codes of small floats have 8 or 16 bits"),
        ({"number": SmallFloat(16, 5, 1)}, "does not fill 8 bits"),
        ({"number": SmallFloat(8, 5, 1)}, ""),
        ({"number": SmallFloat(8, 6, 1)}, "does not fill 8 bits with 2 or more of exponent"),
        ({"number": SmallFloat(8, 1, 31)}, ""),
        ({"number": SmallFloat(8, 0, 31)}, "does not fill 8 bits"),
        ({"number": SmallFloat(8, 3, 15, limit=0.9)}, "only travels"),
        ({"number": SmallFloat(8, 5, 0)}, "has numbers that fp32 lacks"),
        (
            {"dtype": "<u2", "bits": 16, "number": SmallFloat(16, 1, 15)},
            "has numbers that fp32 lacks",
        ),
    ],
)
def test_a_record_says_why_no_table_is_trained_in_it(changes, why):
    form = RowFormat("own", "|u1", 8, SmallFloat(8, 3, 7), trains=True)._replace(**changes)
    assert why in form.fault() if why else not form.fault()
