"""Are the bytes of scaled rows and blocks those that the definition gives, on rows that break
codecs as well?
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.codecs import INT8_VARIANTS, MX_ROUNDINGS
from neocpu.core.formats import FORMATS, WIRES
from neocpu.kernels.codecs import inference as codecs_inference
from neocpu.kernels.codecs import mx as codecs_mx
from neocpu.kernels.codecs import rows as codecs_rows
from neocpu.kernels.twins.codecs import inference as inference_twin
from neocpu.kernels.twins.codecs import mx as mx_twin
from neocpu.kernels.twins.codecs import rows as rows_twin
from neocpu.kernels.twins.numbers.philox import STOCHASTIC_ROUNDING, tensor_key
from tests.cases import FILLS, assert_same, floats

KEY = tensor_key(7, STOCHASTIC_ROUNDING, "a table")
COLUMNS = st.sampled_from([1, 2, 3, 4, 7, 8, 9, 16, 20, 31, 32, 33, 40, 63, 64, 70, 100])


def hard_rows(rng, columns, each=2):
    """Rows f32[R, columns]: all kinds of numbers; NaN here, there and everywhere; constants; beyond
    fp16; tiny ranges.
    """
    shape = (each, columns)
    kinds = [floats(rng, shape, fill) for fill in FILLS]
    kinds.append(
        rng.choice(np.float32([np.nan, 1e38, -1e38, 3, 1e-3, np.inf, -np.inf, -0.0, 0]), shape)
    )
    kinds.append(np.where(rng.random(shape) < 0.05, np.float32(np.nan), floats(rng, shape, "wild")))
    kinds += [
        np.full(shape, value, np.float32)
        for value in (np.nan, np.inf, -np.inf, 1e5, -1e38, 0, -0.0, 1e-45, 3)
    ]
    kinds += [
        sign * rng.choice(np.float32([0, -0.0, 1, np.nan]), shape, p=[0.2, 0.2, 0.55, 0.05])
        for sign in (1, -1)
    ]
    kinds.append((6e4 + rng.random(shape)).astype(np.float32))
    kinds.append((rng.random(shape) * 3e-9).astype(np.float32))
    kinds.append(
        np.ldexp(rng.standard_normal(shape), rng.integers(-149, 127, (each, 1))).astype(np.float32)
    )
    return np.concatenate(kinds)


def written(module, name, x, *options, width):
    out = np.full((len(x), width), 7, np.uint8)
    with np.errstate(all="ignore"):
        getattr(module, name)(x, *options, out)
    return out


def read(module, name, codes, *options, columns):
    out = np.full((len(codes), columns), 7, np.float32)
    with np.errstate(all="ignore"):
        getattr(module, name)(codes, *options, out)
    return out


def check(kernels, twin, name, x, *options, width, reader, reader_options=()):
    """Both write the same bytes, and read these and any others alike; returns the bytes."""
    answer = written(kernels, name, x, *options, width=width)
    np.testing.assert_array_equal(answer, written(twin, name, x, *options, width=width))
    noise = np.random.default_rng(0).integers(0, 256, answer.shape, dtype=np.uint8)
    for codes in (answer, noise):
        numbers = (
            read(module, reader, codes, *reader_options, columns=x.shape[1])
            for module in (kernels, twin)
        )
        assert_same(*numbers)
    return answer


@given(seed=st.integers(0, 2**32), columns=COLUMNS)
def test_rows_of_integers(seed, columns):
    rng = np.random.default_rng(seed)
    x = hard_rows(rng, columns)
    for name, variant in INT8_VARIANTS.items():
        width = (
            WIRES["int8_gpu"].row_bytes(columns)
            if name == "gpu"
            else FORMATS["int8"].row_bytes(columns)
        )
        check(
            codecs_rows,
            rows_twin,
            "quantize_int8",
            x,
            variant,
            width=width,
            reader="dequantize_int8",
        )
    for bits in (4, 2, 8):
        width = (columns * bits + 7) // 8 + 4
        check(
            codecs_rows,
            rows_twin,
            "quantize_nbit",
            x,
            bits,
            width=width,
            reader="dequantize_nbit",
            reader_options=(bits,),
        )
    numbers = rng.integers(0, 1 << 40, len(x))
    for bits in (8, 4, 2):
        width = FORMATS[f"int{bits}"].row_bytes(columns)
        both = (
            written(m, "quantize_randomly", x, bits, KEY, numbers, 3, width=width)
            for m in (codecs_rows, rows_twin)
        )
        np.testing.assert_array_equal(*both)


@given(seed=st.integers(0, 2**32), columns=COLUMNS)
def test_rows_of_fp8_and_blocks_of_mx4(seed, columns):
    rng = np.random.default_rng(seed)
    x = hard_rows(rng, columns)
    for backward, name in ((0, "fp8_row_forward"), (1, "fp8_row_backward")):
        check(
            codecs_rows,
            rows_twin,
            "quantize_fp8_row",
            x,
            backward,
            width=WIRES[name].row_bytes(columns),
            reader="dequantize_fp8_row",
            reader_options=(backward,),
        )
    numbers = rng.integers(0, 1 << 40, len(x))
    for rounding in MX_ROUNDINGS.values():
        check(
            codecs_mx,
            mx_twin,
            "quantize_mx4",
            x,
            rounding,
            KEY,
            numbers,
            3,
            width=WIRES["mx4"].row_bytes(columns),
            reader="dequantize_mx4",
        )


@given(
    seed=st.integers(0, 2**32),
    columns=COLUMNS,
    bits=st.sampled_from([8, 4, 2]),
    size=st.sampled_from([4, 8]),
    last=st.integers(0, 1),
    alignment=st.sampled_from([1, 16]),
)
def test_rows_of_inference_tables(seed, columns, bits, size, last, alignment):
    x = hard_rows(np.random.default_rng(seed), columns, 1)
    form = FORMATS[f"int{bits}"]
    options = (0,) if bits == 8 else (bits,)
    name = "int8" if bits == 8 else "nbit"
    fused = written(codecs_rows, f"quantize_{name}", x, *options, width=form.row_bytes(columns))
    width = -(-(form.data_bytes(columns) + size) // alignment) * alignment
    codes = written(
        codecs_inference, "pack_inference", fused, form.header_bytes, size, last, width=width
    )
    np.testing.assert_array_equal(
        codes,
        written(
            inference_twin, "pack_inference", fused, form.header_bytes, size, last, width=width
        ),
    )
    numbers = [
        read(module, "dequantize_inference", codes, bits, size, last, columns=columns)
        for module in (codecs_inference, inference_twin)
    ]
    assert_same(*numbers)
    if size == 8 or bits < 8:  # the scales are what they were, so are the numbers
        back = (bits,) if bits < 8 else ()
        assert_same(
            numbers[0], read(codecs_rows, f"dequantize_{name}", fused, *back, columns=columns)
        )


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (0, 0), (3, 0)])
def test_tables_without_rows_or_columns(rows, columns):
    x = np.zeros((rows, columns), np.float32)
    options = (KEY, np.arange(rows), 1)
    for kernels, twin, name, arguments, width in (
        (codecs_rows, rows_twin, "quantize_int8", (0,), columns + 8),
        (codecs_rows, rows_twin, "quantize_nbit", (4,), (columns + 1) // 2 + 4),
        (codecs_rows, rows_twin, "quantize_randomly", (4, *options), (columns + 1) // 2 + 4),
        (codecs_mx, mx_twin, "quantize_mx4", (0, *options), WIRES["mx4"].row_bytes(columns)),
    ):
        answer, expected = (written(m, name, x, *arguments, width=width) for m in (kernels, twin))
        np.testing.assert_array_equal(answer, expected)


def test_golden_bytes_of_one_row():
    """The rows drawn in docs/formats.md."""
    x = np.float32([[-1.0, -0.5, 0.0, 0.25, 1.5]])
    number = np.zeros(1, np.int64)
    for module, name, options, width, golden in (
        (codecs_rows, "quantize_int8", (0,), 13, "00 33 66 80 ff a1 a0 20 3c 00 00 80 bf"),
        (codecs_rows, "quantize_int8", (1,), 16, "00 33 66 80 ff 00 00 00 a1 a0 20 3c 00 00 80 bf"),
        (codecs_rows, "quantize_nbit", (4,), 7, "30 86 0f 55 31 00 bc"),
        (codecs_rows, "quantize_nbit", (2,), 6, "54 03 ab 3a 00 bc"),
        (
            codecs_rows,
            "quantize_fp8_row",
            (0,),
            16,
            "f2 ea 00 62 77 00 00 00 00 00 20 3f 00 00 00 00",
        ),
        (
            codecs_rows,
            "quantize_fp8_row",
            (1,),
            16,
            "f9 f5 00 71 7b 00 00 00 55 55 15 3f 00 00 00 00",
        ),
        (codecs_mx, "quantize_mx4", (2, KEY, number, 0), 17, "ce 20 07" + 13 * " 00" + " 7d"),
        (codecs_mx, "quantize_mx4", (4, KEY, number, 0), 17, "ac 10 05" + 13 * " 00" + " 7e"),
    ):
        assert written(module, name, x, *options, width=width).tobytes().hex(" ") == golden, (
            name,
            options,
        )
    fused = written(codecs_rows, "quantize_int8", x, 0, width=13)
    for size, last, width, golden in (
        (4, 0, 16, "05 21 00 bc 00 33 66 80 ff" + 7 * " 00"),
        (4, 1, 9, "00 33 66 80 ff 05 21 00 bc"),
        (8, 0, 13, "a1 a0 20 3c 00 00 80 bf 00 33 66 80 ff"),
    ):
        codes = written(codecs_inference, "pack_inference", fused, 8, size, last, width=width)
        assert codes.tobytes().hex(" ") == golden


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_reading_back_is_within_half_a_step(bits):
    x = np.random.default_rng(4).standard_normal((200, 33)).astype(np.float32)
    name, options = ("int8", (0,)) if bits == 8 else ("nbit", (bits,))
    fused = written(
        codecs_rows, f"quantize_{name}", x, *options, width=FORMATS[f"int{bits}"].row_bytes(33)
    )
    back = read(
        codecs_rows, f"dequantize_{name}", fused, *((bits,) if bits < 8 else ()), columns=33
    )
    step = np.ptp(x, axis=1, keepdims=True) / ((1 << bits) - 1)
    assert (np.abs(back - x) <= step * (0.5 + (1e-4 if bits == 8 else 2**-9))).all()


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_random_rows_are_fair_and_do_not_know_their_neighbours(bits):
    x = np.random.default_rng(5).uniform(-1, 1, (64, 32)).astype(np.float32)
    width = FORMATS[f"int{bits}"].row_bytes(32)
    numbers = np.arange(64)
    name, options = ("dequantize_int8", ()) if bits == 8 else ("dequantize_nbit", (bits,))
    total = np.zeros(x.shape)
    trials = 200
    for step in range(trials):
        codes = written(codecs_rows, "quantize_randomly", x, bits, KEY, numbers, step, width=width)
        total += read(codecs_rows, name, codes, *options, columns=32)
    size = np.ptp(x, axis=1, keepdims=True) / ((1 << bits) - 1)
    inside = (x > x.min(1, keepdims=True)) & (x < x.max(1, keepdims=True))
    error = ((total / trials - x) / size)[inside]
    assert abs(error.mean()) < 5 * 0.5 / np.sqrt(trials * error.size) + (0 if bits == 8 else 2e-3)
    order = np.random.default_rng(6).permutation(64)
    shuffled = written(
        codecs_rows, "quantize_randomly", x[order], bits, KEY, numbers[order], step, width=width
    )
    np.testing.assert_array_equal(codes[order], shuffled)


def test_int8_epsilon_destroys_a_narrow_row():
    """eps = 1e-8 of FBGEMM's CPU code: a range of 3e-9 is read back as 6.9e-10. The GPU's 1e-20
    does not.
    """
    x = np.float32([[0, 1e-9, 3e-9]])
    cpu = read(
        codecs_rows,
        "dequantize_int8",
        written(codecs_rows, "quantize_int8", x, 0, width=11),
        columns=3,
    )
    gpu = read(
        codecs_rows,
        "dequantize_int8",
        written(codecs_rows, "quantize_int8", x, 1, width=12),
        columns=3,
    )
    assert abs(cpu[0, 2] / 3e-9 - 0.23) < 0.01 and abs(gpu[0, 2] / 3e-9 - 1) < 1e-6


def test_where_nan_goes():
    """It vanishes (code 0, the row's minimum), and takes with it what its lane had seen: the true
    minimum here.
    """
    x = np.float32([[-5, 1, 1, 1, 1, 1, 1, 1, np.nan, 2, 2, 2, 2, 2, 2, 2]])
    codes = written(codecs_rows, "quantize_int8", x, 0, width=24)
    assert read(codecs_rows, "dequantize_int8", codes, columns=16)[0, 8] == 1
    assert codes[0, -4:].view(np.float32)[0] == 1, "the minimum of the row is -5"
    assert codes[0, 0] == (-6 * 255) & 255, "and -5 is written as a code that wrapped around"


def test_mx4_exponents():
    """Around a power of two and around sqrt(2), where a rounded logarithm errs."""
    numbers = np.zeros(1, np.int64)
    zero = np.uint64(0)
    powers = np.float32(2.0) ** np.arange(-120, 120, 20, dtype=np.float32)
    for exponent, power in zip(range(-120, 120, 20), powers):
        below = np.nextafter(power, np.float32(0))
        above = np.nextafter(power, np.float32(np.inf))
        root = np.float32(1.4142135) * power
        for value, rounding, expected in (
            (below, "floor", -1),
            (power, "floor", 0),
            (above, "floor", 0),
            (below, "ceil", 0),
            (power, "ceil", 0),
            (above, "ceil", 1),
            (root, "nearest", 0),
            (np.nextafter(root, np.float32(np.inf)), "nearest", 1),
            (np.float32(1.75) * power, "even", 0),
            (np.nextafter(np.float32(1.75) * power, above * 2), "even", 1),
        ):
            codes = written(
                codecs_mx,
                "quantize_mx4",
                np.float32([[value]]),
                MX_ROUNDINGS[rounding],
                zero,
                numbers,
                0,
                width=17,
            )
            assert int(codes[0, 16]) - 127 == max(exponent + expected - 2, -127), (value, rounding)


def test_mx4_stochastic_exponent_is_fair():
    """The mantissa is rounded to one bit by chance: 1.625 becomes 2, the next exponent, one time in
    four.
    """
    x = np.full((4000, 1), 1.625, np.float32)
    codes = written(codecs_mx, "quantize_mx4", x, 3, KEY, np.arange(4000), 1, width=17)
    assert abs((codes[:, 16] == 126).mean() - 0.25) < 0.04 and set(codes[:, 16]) == {125, 126}


@pytest.mark.parametrize("module", [codecs_rows, rows_twin])
def test_what_is_no_number_is_the_largest_fp8_code_with_one_sign(module):
    """Machines give the NaN of 0 times infinity either sign, which must not reach the bytes."""
    x = np.float32([[np.inf, 0.0, 1.0], [-np.inf, -0.0, -1.0], [-np.nan, 2.0, -2.0]])
    codes = written(module, "quantize_fp8_row", x, 0, width=12)[:, :3]
    assert codes.tolist() == [[0x77, 0x00, 0x00], [0x77, 0x80, 0x80], [0x77, 0x77, 0xF7]]
