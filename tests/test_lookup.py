"""Do lookups in rows of any format give what the twins say, bit for bit? And are bounds counted and
mended as they should?
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError, IndexRangeError
from neocpu.kernels.compile.jit import kernel
from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.kernels.rows import lookup as kernels
from neocpu.kernels.simd.decoders import number_at, read_row
from neocpu.kernels.twins.rows import lookup as twins
from neocpu.peers import arrays as operators
from neocpu.tables.embedding.bounds import bounds_check
from tests.cases import FILLS, assert_same, bag_offsets, floats, lookups
from tests.workers import covered

NONE = np.empty(0, np.float32)
SMALL = {"fp16": "<u2", "bf16": "<u2", "fp8_e4m3": "u1", "fp8_e5m2": "u1"}
SCALED = ("int8", "int4", "int2", "nbit8", "nbit4", "nbit2")
# what is looked up here; the others' decoders are tested alone
COMPILED = ("fp32", "nbit4")
WIDTHS = (1, 2, 3, 4, 5, 15, 16, 17, 20, 31, 64, 67, 100, 128, 149)


@kernel
def read(table, row, stride, width, out, apart):
    """out, apart = the numbers of one row, read whole and one by one."""
    read_row(table, row, stride, width, out)
    for c in range(width):
        apart[c] = number_at(table, row, stride, c)


def table_of(rng: np.random.Generator, form: str, heights, widths, fill: str = "normal"):
    """(flat table of a format, base, stride of each of some tables); scales and biases of a
    sensible size, mostly.
    """
    stride = np.array([operators.row_elements(form, int(w)) for w in widths], np.int64)
    sizes = heights * stride
    base = np.cumsum(sizes) - sizes
    if form == "fp32":
        return floats(rng, int(sizes.sum()), fill), base, stride
    if form in SMALL:
        dtype = np.dtype(SMALL[form])
        codes = rng.integers(0, 2 ** (8 * dtype.itemsize), int(sizes.sum()), dtype=dtype)
        if fill == "normal":  # no infinity, no NaN
            codes &= dtype.type(
                {"fp16": 0xBBFF, "bf16": 0xBF7F, "fp8_e4m3": 0xBF, "fp8_e5m2": 0xBB}[form]
            )
        return codes.view([(form, dtype)]), base, stride
    data = rng.integers(0, 256, int(sizes.sum()), dtype=np.uint8)
    for first, step, rows in zip(base, stride, heights):
        lines = data[first : first + rows * step].reshape(rows, step)
        words = 4 if form == "int8" else 2
        scale = floats(rng, (rows, 2), fill) * np.float32(0.01)
        with np.errstate(over="ignore"):
            header = scale.astype(f"<f{words}").view(np.uint8)
        if form.startswith("nbit"):
            lines[:, :4] = header
        else:
            lines[:, -2 * words :] = header
    return data.view([(form, "u1")]), base, stride


@pytest.mark.parametrize("form", ["fp32", *SMALL, *SCALED])
@pytest.mark.parametrize("fill", ["normal", "special"])
def test_every_format_is_decoded_exactly(form: str, fill: str) -> None:
    for width in (*WIDTHS, 1023):
        rng = np.random.default_rng(width)
        table, _, stride = table_of(rng, form, np.array([5]), np.array([width]), fill)
        for row in (0, 4):
            numbers = np.full(width + 1, 7, np.float32)
            apart = np.empty(width, np.float32)
            read(table, row * stride[0], stride[0], width, numbers, apart)
            expected = twins.rows_as_numbers(table, 0, stride[0], width, np.array([row]))[0]
            assert_same(numbers[:width], expected)
            assert_same(apart, expected)
            assert numbers[width] == 7


@pytest.mark.parametrize("form", list(SMALL))
def test_every_code_of_a_small_float(form: str) -> None:
    dtype = np.dtype(SMALL[form])
    codes = np.arange(2 ** (8 * dtype.itemsize)).astype(dtype).view([(form, dtype)])
    numbers, apart = np.empty((2, codes.size), np.float32)
    read(codes, 0, codes.size, codes.size, numbers, apart)
    assert_same(numbers, twins.rows_as_numbers(codes, 0, codes.size, codes.size, np.array([0]))[0])
    assert_same(apart, numbers)


def case(seed: int, form: str, fill: str, weighted: bool, one_width: bool = False):
    """Arguments of a lookup: (table, entries, bags, bags of each entry)."""
    rng = np.random.default_rng(seed)
    tables = int(rng.integers(1, 4))
    entries = int(rng.integers(0, 5))
    heights = rng.integers(1, 12, tables)
    widths = np.full(tables, rng.choice(WIDTHS)) if one_width else rng.choice(WIDTHS, tables)
    table, base, stride = table_of(rng, form, heights, widths, fill)
    of = rng.integers(0, tables, entries)
    bags = (
        rng.integers(0, 5, entries) if rng.random() < 0.5 else np.full(entries, rng.integers(0, 5))
    )
    first = np.append(0, np.cumsum(bags)).astype(np.int64)
    offsets = bag_offsets(rng, int(first[-1]), int(rng.choice([0, 1, 3, 30])))
    entry = np.repeat(np.repeat(np.arange(entries), bags), np.diff(offsets))
    rows = np.where(
        rng.random(entry.size) < 0.1,
        -1,
        (rng.random(entry.size) * heights[of][entry]).astype(np.int64),
    )
    weights = floats(rng, rows.size, FILLS[seed % len(FILLS)]) if weighted else NONE
    read = Entries(base[of], widths[of].astype(np.int64), stride[of], first)
    return table, read, Bags(offsets, rows, weights), bags


@pytest.mark.parametrize("form", COMPILED)
@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    weighted=st.booleans(),
    mean=st.booleans(),
)
def test_pooled_rows(form: str, seed: int, fill: str, weighted: bool, mean: bool) -> None:
    with np.errstate(all="ignore"):
        table, entries, bags, count = case(seed, form, fill, weighted)
        sizes = count * entries.width
        lines = Lines(np.cumsum(sizes) - sizes + 1, entries.width)
        pooled, expected = (np.full(int(sizes.sum()) + 2, 7, np.float32) for _ in "ab")
        kernels.pooled_rows(table, entries, bags, mean, lines, pooled)
        twins.pooled_rows(table, entries, bags, mean, lines, expected)
        assert_same(pooled, expected)
        assert (pooled.view(np.int32)[np.isnan(pooled)] == 0x7FC00000).all()


@pytest.mark.parametrize("form", covered(COMPILED, always=("fp32",)))
@given(seed=st.integers(0, 2**32), fill=st.sampled_from(FILLS), weighted=st.booleans())
def test_gathered_rows(form: str, seed: int, fill: str, weighted: bool) -> None:
    with np.errstate(all="ignore"):
        table, entries, bags, _ = case(seed, form, fill, weighted)
        entries = entries._replace(first=bags.offsets[entries.first])
        sizes = np.diff(entries.first) * entries.width
        lines = Lines(np.cumsum(sizes) - sizes + 1, entries.width)
        gathered, expected = (np.full(int(sizes.sum()) + 2, 7, np.float32) for _ in "ab")
        kernels.gathered_rows(table, entries, bags.rows, bags.weights, lines, gathered)
        twins.gathered_rows(table, entries, bags.rows, bags.weights, lines, expected)
        assert_same(gathered, expected)
        assert (gathered.view(np.int32)[np.isnan(gathered)] == 0x7FC00000).all()


@pytest.mark.parametrize("form", covered(COMPILED, always=("fp32",)))
@given(seed=st.integers(0, 2**32), fill=st.sampled_from(FILLS), mean=st.booleans())
def test_weight_gradients(form: str, seed: int, fill: str, mean: bool) -> None:
    with np.errstate(all="ignore"):
        table, entries, bags, count = case(seed, form, fill, False)
        sizes = count * entries.width
        lines = Lines(np.cumsum(sizes) - sizes, entries.width)
        rng = np.random.default_rng(seed)
        grad = floats(rng, int(sizes.sum()), FILLS[seed % len(FILLS)])
        dots, expected = (np.full(bags.rows.size, 7, np.float32) for _ in "ab")
        kernels.weight_gradients(table, entries, bags, grad, mean, lines, dots)
        twins.weight_gradients(table, entries, bags, grad, mean, lines, expected)
        assert_same(dots, expected)


@given(
    seed=st.integers(0, 2**32),
    one=st.sampled_from(FILLS),
    other=st.sampled_from(FILLS),
    width=st.sampled_from(WIDTHS),
)
def test_exact_dot(seed: int, one: str, other: str, width: int) -> None:
    rng = np.random.default_rng(seed)
    x = floats(rng, width, one)
    y = floats(rng, width, other)
    if seed % 3 == 0:  # products that cancel but for the last bits
        half = width // 2
        x[half : 2 * half] = -x[:half]
        y[half : 2 * half] = y[:half]
    words, scratch = np.empty((2, max(width, 16)))
    with np.errstate(all="ignore"):
        product = kernels.exact_dot(x, y, words, scratch)
        expected = twins.exact_dot(x, y, None, None)
    assert_same(np.float32([product]), np.float32([expected]))


def test_a_dot_product_is_rounded_once() -> None:
    # 1 + half an ulp + a little: up
    one = np.float32([1, 2**-12, 2**-60]), np.float32([1, 2**-12, 2**-60])
    words, scratch = np.empty((2, 16))
    assert kernels.exact_dot(*one, words, scratch) == np.float32(1 + 2**-23)
    # 2^-150: half of the smallest number, to even
    tiny = np.float32([2**-75]), np.float32([2**-75])
    assert kernels.exact_dot(*tiny, words, scratch) == 0.0


def plain(seed: int, samples: int, tables: int = 3, width: int | None = None):
    """fp32 inputs of the operators: weights, rows, dims, feature_table, indices, offsets."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 9, tables)
    dims = rng.choice([1, 4, 20], tables) if width is None else np.full(tables, width)
    table = np.append(rng.permutation(tables), 0)  # one table shared
    offsets = bag_offsets(rng, table.size * samples, 4)
    indices = lookups(rng, offsets, rows[table], samples)
    return (
        rng.standard_normal(int((rows * dims).sum()), np.float32),
        rows,
        dims,
        table,
        indices,
        offsets,
    )


@pytest.mark.parametrize("samples", [0, 1, 3])
def test_the_operator_is_the_kernel_that_trains(samples: int) -> None:
    weights, rows, dims, table, indices, offsets = plain(samples, samples)
    base = (np.cumsum(rows * dims) - rows * dims)[table]
    width = dims[table]
    out = np.zeros((samples, int(width.sum())), np.float32)
    entries = Entries(base, width, width, np.arange(width.size + 1) * samples)
    lines = Lines(np.cumsum(width) - width, np.full(width.size, width.sum()))
    bags = Bags(offsets, indices, NONE)
    kernels.pooled_rows(weights, entries, bags, False, lines, out.reshape(-1))
    for kind in (np.int32, np.int64):
        answer = operators.lookup(
            weights, rows, dims, table, indices.astype(kind), offsets.astype(kind)
        )
        assert_same(answer, out)
    mean = operators.lookup(weights, rows, dims, table, indices, offsets, pooling="mean")
    length = np.repeat(np.diff(offsets).reshape(table.size, samples).T, width, axis=1)
    assert_same(mean, out / np.maximum(length, 1).astype(np.float32))


def test_variable_batches_are_flat_and_rank_major() -> None:
    weights, rows, dims, table, indices, offsets = plain(5, 3)
    matrix = operators.lookup(weights, rows, dims, table, indices, offsets)
    sizes = np.array([[1, 2], [3, 0], [2, 1], [0, 3]])
    flat = operators.lookup(weights, rows, dims, table, indices, offsets, batch_sizes=sizes)
    column = np.append(0, np.cumsum(dims[table]))
    parts = []
    for rank in range(2):
        for f in range(4):
            first = sizes[f, :rank].sum()
            parts.append(
                matrix[first : first + sizes[f, rank], column[f] : column[f + 1]].reshape(-1)
            )
    assert_same(flat, np.concatenate(parts))
    grad = operators.weight_gradient(
        weights, rows, dims, table, indices, offsets, flat, batch_sizes=sizes
    )
    assert_same(
        grad, operators.weight_gradient(weights, rows, dims, table, indices, offsets, matrix)
    )


def test_rows_one_by_one() -> None:
    weights, rows, dims, table, indices, offsets = plain(6, 3, width=4)
    weights[:4] = np.float32([-0.0, np.nan, np.inf, -1e-45])
    out = operators.lookup(weights, rows, dims, table, indices, offsets, pooling="none")
    base = np.repeat((np.cumsum(rows) - rows)[table], np.diff(offsets[::3]))
    expected = np.where(indices[:, None] < 0, np.float32(0), weights.reshape(-1, 4)[base + indices])
    assert_same(out, expected)
    assert np.signbit(out[(base + indices == 0) & (indices == 0), 0]).all()
    grad = operators.weight_gradient(
        np.ones_like(weights), rows, dims, table, indices, offsets, expected, pooling="none"
    )
    assert np.isnan(grad[(base == 0) & (indices == 0)]).all() and (grad[indices < 0] == 0).all()


def test_narrow_outputs_are_rounded_from_fp32() -> None:
    weights, rows, dims, table, indices, offsets = plain(7, 3)
    wide = operators.lookup(weights, rows, dims, table, indices, offsets)
    half = operators.lookup(weights, rows, dims, table, indices, offsets, output_format="fp16")
    assert half["fp16"].tobytes() == wide.astype(np.float16).tobytes()
    brain = operators.lookup(weights, rows, dims, table, indices, offsets, output_format="bf16")
    bits = wide.view(np.uint32)
    assert ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes() == brain[
        "bf16"
    ].tobytes()


def test_pruned_lookups_count_in_the_mean() -> None:
    out = operators.lookup(
        np.float32([2, 4]), [2], [1], [0], [0, -1, 1, -1], [0, 4], pooling="mean"
    )
    assert out.tolist() == [[1.5]]


# ---- bounds ----


@given(st.integers(0, 2**32), st.integers(0, 3), st.integers(0, 6))
def test_bounds_kernels_match_their_twins(seed: int, broken: int, bags: int) -> None:
    rng = np.random.default_rng(seed)
    offsets = bag_offsets(rng, bags, 4)
    n = int(offsets[-1]) + int(rng.integers(0, 2))
    wrong = rng.integers(0, bags + 1, broken)
    offsets[wrong] = rng.choice([-(2**62), -2, 0, 1, n, n + 3, 2**62], broken)
    assert kernels.first_malformed(offsets, n) == twins.first_malformed(offsets, n)
    answer = offsets.copy()
    expected = offsets.copy()
    assert kernels.mend_offsets(answer, n) == twins.mend_offsets(expected, n)
    assert answer.tolist() == expected.tolist()
    assert (np.diff(answer) >= 0).all() or broken > 1
    entries = int(rng.integers(0, 4))
    first = np.sort(rng.integers(0, n + 1, entries + 1))
    limit = rng.integers(1, 9, entries)
    rows = rng.integers(-1, 9, n)
    rows[rng.random(n) < 0.1] = rng.choice([-2, 9, -(2**63), 2**63 - 1])
    counts = np.full((4, entries), 7)
    assert kernels.count_outside(first, rows, limit, *counts[:2]) == twins.count_outside(
        first, rows, limit, *counts[2:]
    )
    assert counts[:2].tolist() == counts[2:].tolist()
    answer = rows.copy()
    expected = rows.copy()
    kernels.mend_rows(first, answer, limit, -1)
    twins.mend_rows(first, expected, limit, -1)
    assert answer.tolist() == expected.tolist()


def test_wrong_rows_are_named_counted_and_mended_in_a_copy() -> None:
    rows = np.array([10, 4])
    table = np.array([1, 0, 1])
    indices = np.array([3, 4, -1, 9, -2, 10, 0], np.int32)
    offsets = np.array([0, 1, 2, 4, 4, 6, 7], np.int32)
    indices_before = indices.copy()
    offsets_before = offsets.copy()
    with pytest.raises(
        IndexRangeError,
        match=r"table 1, feature 0, sample 1, position 0: row 4 is outside \[0, 4\)",
    ):
        bounds_check(rows, table, indices, offsets)
    for mode in ("warning", "ignore"):
        bounds = bounds_check(rows, table, indices, offsets, mode)
        assert bounds.indices.tolist() == [3, 0, -1, 9, 0, 0, 0]
        assert (
            bounds.outside.tolist() == [0, 3]
            and bounds.pruned.tolist() == [1, 0]
            and bounds.malformed == 0
        )
    nothing = bounds_check(rows, table, indices, offsets, "warning", outside=-1)
    assert nothing.indices.tolist() == [3, -1, -1, 9, -1, -1, 0]
    assert (indices == indices_before).all() and (offsets == offsets_before).all()


@pytest.mark.parametrize(
    ("offsets", "mended"), [([0, 3, 2], [0, 3, 3]), ([-2, 9, 3], [0, 3, 3]), ([0, 1, 2], [0, 1, 3])]
)
def test_wrong_offsets_are_mended_as_fbgemm_does(offsets: list[int], mended: list[int]) -> None:
    indices = np.array([0, 1, 2])
    with pytest.raises(IndexRangeError, match="offsets"):
        bounds_check([5], [0], indices, np.array(offsets))
    bounds = bounds_check([5], [0], indices, np.array(offsets), "ignore")
    assert bounds.offsets.tolist() == mended and bounds.malformed > 0


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(IndexRangeError, match="offsets has 3 entries"):
        bounds_check([5], [0, 0, 0], [1], [0, 1, 1])
    with pytest.raises(IndexRangeError, match="batch sizes add up to 3 bags"):
        bounds_check([5], [0, 0], [1], [0, 1, 1], batch_sizes=np.array([1, 2]))
    ones = np.ones(6, np.float32)
    with pytest.raises(ConfigError, match="6 weights; the tables need 8"):
        operators.lookup(ones, [2], [4], [0], [0], [0, 1])
    with pytest.raises(ConfigError, match="no fp16 codes"):
        operators.lookup(ones, [2], [3], [0], [0], [0, 1], weights_format="fp16")
    with pytest.raises(ConfigError, match="one width"):
        operators.lookup(ones, [2, 2], [1, 2], [0, 1], [0, 0], [0, 1, 2], pooling="none")
    with pytest.raises(ConfigError, match="per-sample weights"):
        operators.lookup(ones, [2], [3], [0], [0], [0, 1], np.ones(2, np.float32))
    with pytest.raises(ConfigError, match="pooling"):
        operators.lookup(ones, [2], [3], [0], [0], [0, 1], pooling="max")
    with pytest.raises(ConfigError, match="grad_output has shape"):
        operators.weight_gradient(ones, [2], [3], [0], [0], [0, 1], np.ones(3, np.float32))
