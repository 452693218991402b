"""Which lookup reads which row for which bag? An operator's flat inputs as one list of lookups.

    offsets, indices (feature-major) ──► lookup l: bag, feature, sample, table, row, weight

Switches bend the list: bags that end late, weights that restart in every bag, and so on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from neocpu.core.formats import FORMATS, INFERENCE
from neocpu.core.types import Bools, Ints
from neocpu.oracle.adapters import codes_of
from neocpu.oracle.operator import Arrays, Options, Switches
from neocpu.oracle.truth.bends import bent_limits, limits_by_table
from neocpu.oracle.truth.formats import decode
from neocpu.oracle.truth.numbers import LARGEST, SLACK, TINY, Real, U

# Row-scaled formats: bits of a code, dtype of scale and bias, do these stand before the codes?
SCALED = {
    name: (form.bits, form.header[0][1], form.header_first)
    for name, form in (FORMATS | INFERENCE).items()
    if form.row_scaled
}


@dataclass(frozen=True)
class TableGeometry:
    """Shapes of all tables of a case, and where each begins in flat arrays of all tables."""

    rows: Ints  # i64[T]
    dims: Ints  # i64[T]: columns
    first_element: Ints  # i64[T+1]: in the decoded weights
    first_row: Ints  # i64[T+1]: in an array of one number per row

    def place_of_row(self, number: int) -> dict[str, int]:
        """Table and row of a row counted over all tables."""
        table = int(np.searchsorted(self.first_row, number, side="right")) - 1
        return {"table": table, "row": number - int(self.first_row[table])}

    def place_of_element(self, number: int) -> dict[str, int]:
        """Table, row and column of an element counted over all tables."""
        table = int(np.searchsorted(self.first_element, number, side="right")) - 1
        in_table = number - int(self.first_element[table])
        row, column = divmod(in_table, max(int(self.dims[table]), 1))
        return {"table": table, "row": row, "column": column}


@dataclass(frozen=True)
class JaggedBatch:
    """The bags of a batch (feature-major) and their m lookups (by bag) that read a row."""

    tables: TableGeometry
    # of each bag, i64[bags]
    feature: Ints
    sample: Ints
    length: Ints  # L, lookups that read nothing included
    # of each feature, i64[F]
    dims: Ints  # columns
    column: Ints  # first column in the output
    batch_sizes: Ints  # samples: of all features the same, unless the inputs have batch_sizes
    width: int  # columns of the output
    # of each lookup, i64[m]
    bag: Ints
    position: Ints  # among the lookups of the inputs
    table: Ints
    row: Ints
    weight: Real | None  # f64[m]


def tables_of(inputs: Arrays) -> TableGeometry:
    """The tables that the inputs `rows` and `dims` describe."""
    rows = inputs["rows"].astype(np.int64)
    dims = inputs["dims"].astype(np.int64)
    return TableGeometry(
        rows=rows,
        dims=dims,
        first_element=np.append(0, np.cumsum(rows * dims)),
        first_row=np.append(0, np.cumsum(rows)),
    )


def row_bytes(name: str, columns: int) -> int:
    """Bytes of a row of a row-scaled format: codes, scale and bias."""
    bits, dtype, _ = SCALED[name]
    return -(-columns * bits // 8) + 2 * np.dtype(dtype).itemsize


class DecodedRows(NamedTuple):
    """All rows of all tables as numbers, f64[elements] each."""

    value: Real
    error: Real  # how far a correct kernel's decoded number may be from it
    magnitude: Real  # what an element counts in the bound of a sum: |q*scale| + |bias|, or |value|
    # of rows q*scale + bias: the smallest of |scale| and |bias| that is not 0, and the largest of
    # these and |q*scale|; kernels may multiply each by itself
    parts: tuple[Real, Real] | None = None

    @property
    def scaled(self) -> bool:
        """Whether rows are q*scale + bias."""
        return self.parts is not None

    def factored_error(self, elements: Ints) -> Real:
        """`error` of some elements whose scale and bias are multiplied by something first.

        Then q*scale + bias is rounded twice, though it may be an fp32 number.
        """
        if not self.scaled:
            return self.error[elements]
        rounding = (2 * U * SLACK) * self.magnitude[elements]
        return np.maximum(self.error[elements], np.where(np.isfinite(rounding), rounding, 0.0))


def rows_of(inputs: Arrays, options: Options, switches: Switches = frozenset()) -> DecodedRows:
    """All rows of all tables, decoded.

    Rows of row-scaled formats are q*scale + bias, which kernels compute with one rounding or two;
    with none where both are fp32 numbers.
    """
    name = str(options.get("weights_format", "fp32"))
    codes = inputs["weights"]
    if name not in SCALED:
        value = decode(codes.reshape(-1), name)
        return DecodedRows(value, np.zeros(value.size), np.abs(value))
    values = []
    magnitudes = []
    errors = []
    smallest = []
    largest = []
    with np.errstate(invalid="ignore", over="ignore"):
        for q, scale, bias in fused_rows(
            inputs, name, int(options.get("row_alignment", 1)), switches
        ):
            product = q * scale
            value = product + bias
            magnitude = np.abs(product) + np.abs(bias)
            # No kernel can round what is an fp32 number already, fused or not.
            exact = (product.astype(np.float32) == product) & (value.astype(np.float32) == value)
            error = np.where(exact, 0.0, (2 * U * SLACK) * magnitude + TINY)
            values.append(value.reshape(-1))
            magnitudes.append(magnitude.reshape(-1))
            # q*scale alone may be infinite, fused with the bias it is not
            perhaps = (magnitude > LARGEST) & (np.abs(value) <= LARGEST * (1 + 4 * U))
            error = np.where(perhaps, np.inf, np.where(np.isfinite(value), error, 0.0))
            errors.append(error.reshape(-1))
            parts = (np.abs(product), np.abs(scale), np.abs(bias))
            # A part that is 0 loses nothing below the normal range.
            low = [np.where(part == 0, np.inf, part) for part in parts[1:]]
            smallest.append(np.broadcast_to(np.minimum(*low), q.shape).reshape(-1))
            largest.append(np.maximum(parts[0], np.maximum(*parts[1:])).reshape(-1))
    return DecodedRows(
        value=np.concatenate(values),
        error=np.concatenate(errors),
        magnitude=np.concatenate(magnitudes),
        parts=(np.concatenate(smallest), np.concatenate(largest)),
    )


def fused_rows(
    inputs: Arrays, name: str, alignment: int = 1, switches: Switches = frozenset()
) -> Iterator[tuple[Real, Real, Real]]:
    """Codes [rows, D], scales [rows, 1] and biases [rows, 1] of every table, by table.

    name : the row-scaled format.
    alignment : bytes to a multiple of which each row is padded.
    """
    bits, dtype, header_first = SCALED[name]
    flat = codes_of(inputs["weights"]).reshape(-1)
    shift = np.arange(0, 8, bits, dtype=np.uint8)
    start = 0
    for rows, columns in zip(inputs["rows"].tolist(), inputs["dims"].tolist()):
        code_bytes = -(-columns * bits // 8)
        size = row_bytes(name, columns)
        stride = -(-size // alignment) * alignment
        row = flat[start : start + rows * stride].reshape(rows, stride)[:, :size]
        start += rows * stride
        split = size - code_bytes if header_first else code_bytes
        parts = (row[:, :split], row[:, split:])
        header, codes = parts if header_first else reversed(parts)
        # A copy, as a view of another type needs bytes without gaps.
        scale_and_bias = header.copy().view(dtype).astype(np.float64)
        if "scale_and_bias_swapped" in switches:
            scale_and_bias = scale_and_bias[:, ::-1]
        if "scale_missing" in switches:
            scale_and_bias[:, 0] = 1.0
        if "row_bias_missing" in switches:
            scale_and_bias[:, 1] = 0.0
        places = shift[::-1] if bits < 8 and "high_code_first" in switches else shift
        unpacked = (codes[:, :, None] >> places) & ((1 << bits) - 1)
        q = unpacked.reshape(rows, code_bytes * 8 // bits)[:, :columns].astype(np.float64)
        if "codes_signed" in switches:
            q = np.where(q >= 1 << (bits - 1), q - (1 << bits), q)
        yield q, scale_and_bias[:, :1], scale_and_bias[:, 1:2]


def bags_of(inputs: Arrays, options: Options, switches: Switches) -> JaggedBatch:
    """All bags of a batch.

    Raises ValueError where a row number is out of range and bounds_check is fatal.
    """
    tables = tables_of(inputs)
    features = inputs["feature_table"].astype(np.int64)
    if "feature_is_table" in switches:
        # where the widths agree; else a kernel would read beyond the rows
        same_number = np.arange(features.size) % max(tables.rows.size, 1)
        fits = tables.dims[same_number] == tables.dims[features]
        features = np.where(fits, same_number, features)
    offsets = inputs["offsets"].astype(np.int64)
    indices = inputs["indices"].astype(np.int64)
    count = max(features.size, 1)
    batch_sizes = (
        inputs["batch_sizes"].astype(np.int64)
        if "batch_sizes" in inputs
        else np.full(count, (offsets.size - 1) // count)
    )
    # `count` is at least 1; without features there are no batches.
    batch_sizes = batch_sizes[: features.size]
    feature = np.repeat(np.arange(features.size), batch_sizes)
    sample = np.concatenate([np.arange(b) for b in batch_sizes] or [np.empty(0, np.int64)])
    first, end = _bag_limits(offsets, switches)
    first, end = bent_limits(first, end, switches)
    first, end = limits_by_table(first, end, features[feature], sample, switches)
    length = np.maximum(end - first, 0)
    bag = np.repeat(np.arange(length.size), length)
    in_bag = np.arange(bag.size) - np.repeat(np.cumsum(length) - length, length)
    position = in_bag + np.repeat(first, length)
    weight = None
    if "per_sample_weights" in inputs and "weights_ignored" not in switches:
        weights = inputs["per_sample_weights"].astype(np.float64)
        weight = weights[in_bag if "weights_restart" in switches else position]
        weight = weight * weight if "weights_twice" in switches else weight
    table = features[feature[bag]]
    row = _checked(indices[position], tables.rows[table], options, switches)
    reads = row >= 0
    if "bag_deduplicated" in switches:
        first_of_row = np.unique(np.stack([bag, table, row]), axis=1, return_index=True)[1]
        reads = reads & np.isin(np.arange(row.size), first_of_row)
    dims = tables.dims[features]
    return JaggedBatch(
        tables=tables,
        feature=feature,
        sample=sample,
        # The true lengths: MEAN divides by them whatever a bent loop leaves out.
        length=np.diff(offsets),
        dims=dims,
        column=_columns(features, dims, switches),
        batch_sizes=batch_sizes,
        width=int(dims.sum()),
        bag=bag[reads],
        position=position[reads],
        table=table[reads],
        row=row[reads],
        weight=None if weight is None else weight[reads],
    )


def only(bags: JaggedBatch, chosen: Bools) -> JaggedBatch:
    """The same bags with some of their lookups."""
    return replace(
        bags,
        bag=bags.bag[chosen],
        position=bags.position[chosen],
        table=bags.table[chosen],
        row=bags.row[chosen],
        weight=None if bags.weight is None else bags.weight[chosen],
    )


def numbers_of_runs(bags: JaggedBatch) -> Ints:
    """Of each lookup, i64[m]: how many runs of its row its table had before.

    A run are lookups of one row that follow each other among those of the table.
    """
    order = np.argsort(bags.table, kind="stable")
    row = (bags.tables.first_row[bags.table] + bags.row)[order]
    begins = np.append(True, row[1:] != row[:-1])[: row.size]
    of_row = row[begins]
    by_row = np.argsort(of_row, kind="stable")
    first = np.unique(of_row[by_row], return_index=True)[1]
    count = np.diff(np.append(first, of_row.size))
    number = np.empty(of_row.size, np.int64)
    number[by_row] = np.arange(of_row.size) - np.repeat(first, count)
    numbers = np.empty(row.size, np.int64)
    numbers[order] = number[np.cumsum(begins) - 1]
    return numbers


def in_last_run(bags: JaggedBatch) -> Bools:
    """Of each lookup: is it in the last run of its row?"""
    number = numbers_of_runs(bags)
    row = bags.tables.first_row[bags.table] + bags.row
    last = np.zeros(int(bags.tables.first_row[-1]), np.int64)
    np.maximum.at(last, row, number)
    return number == last[row]


def _bag_limits(offsets: Ints, switches: Switches) -> tuple[Ints, Ints]:
    """First lookup of every bag, and the one after its last."""
    first = offsets[:-1]
    end = offsets[1:]
    lookups = int(offsets[-1]) if offsets.size else 0
    if "last_lookup_dropped" in switches:
        end = np.maximum(end - 1, first)
    if "bag_ends_late" in switches:
        # The last bag has no next one to take from.
        end = np.minimum(end + 1, lookups)
    if "bag_starts_early" in switches:
        first = np.maximum(first - 1, 0)
    if "first_lookup_dropped" in switches:
        first = np.minimum(first + 1, end)
    return first, end


def _checked(row: Ints, rows: Ints, options: Options, switches: Switches) -> Ints:
    """Row numbers; -1 where nothing is read: pruned lookups, and those out of range."""
    outside = (row < -1) | (row >= rows)
    pruned = row == -1
    # A bent model must answer, too: it explains kernels that went on.
    if outside.any() and not switches and options.get("bounds_check", "fatal") == "fatal":
        first = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"lookup {first} asks for row {row[first]} of a table with {rows[first]} rows"
        )
    if "out_of_bounds_row_0" in switches:
        row = np.where(outside, 0, row)
    elif "out_of_bounds_wraps" in switches:
        row = np.where(outside, row % np.maximum(rows, 1), row)
    elif "out_of_bounds_clamped" in switches:
        row = np.where(outside, np.clip(row, 0, rows - 1), row)
    else:
        row = np.where(outside, -1, row)
    if "pruned_reads_row_0" in switches:
        row = np.where(pruned, 0, row)
    return np.where(pruned, rows - 1, row) if "pruned_reads_last_row" in switches else row


def _columns(features: Ints, dims: Ints, switches: Switches) -> Ints:
    """First output column of each feature."""
    if "columns_in_table_order" in switches:
        order = np.argsort(features, kind="stable")
        column = np.empty(features.size, np.int64)
        column[order] = np.cumsum(dims[order]) - dims[order]
        return column
    return np.cumsum(dims) - dims
