"""Which lookup reads which row for which bag? An operator's flat inputs as one list of lookups,
bent by the switches.

offsets, indices (feature-major) ──► lookup l: bag, feature, sample, table, row, weight
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from neocpu.formats import FORMATS, INFERENCE
from neocpu.oracle.operator import Arrays, Value
from neocpu.oracle.truth.formats import decode
from neocpu.oracle.truth.numbers import SLACK, Real, U

Ints = NDArray[np.int64]
# bits of a code, dtype of scale and bias, whether these stand before the codes
SCALED = {
    name: (form.bits, form.header[0][1], form.header_first)
    for name, form in (FORMATS | INFERENCE).items()
    if form.row_scaled
}


@dataclass(frozen=True)
class TableGeometry:
    """All tables of a case: rows, dims, where each begins among the elements and among the rows of
    all tables.
    """

    rows: Ints
    dims: Ints
    element: Ints  # i64[T+1], first element of a table in the decoded flat array
    row: Ints  # i64[T+1], first row of a table among all rows


@dataclass(frozen=True)
class CaseBags:
    """The bags of a batch and their lookups, those that read nothing left out. Bags are
    feature-major, lookups by bag.
    """

    tables: TableGeometry
    feature: Ints  # i64[bags]: feature, sample, length L (pruned lookups included)
    sample: Ints
    length: Ints
    dims: Ints  # i64[F]: columns of each feature
    column: Ints  # i64[F]: first column of a feature in the output
    width: int  # columns of the output
    batch: Ints  # i64[F]: samples of each feature (all the same, but for variable batches)
    bag: Ints  # i64[m]: bag, place among the inputs' lookups, table, row of each lookup
    place: Ints
    table: Ints
    at: Ints
    weight: Real | None  # f64[m]


def tables_of(inputs: Arrays) -> TableGeometry:
    """The tables that the inputs `rows` and `dims` describe."""
    rows = inputs["rows"].astype(np.int64)
    dims = inputs["dims"].astype(np.int64)
    return TableGeometry(
        rows, dims, np.append(0, np.cumsum(rows * dims)), np.append(0, np.cumsum(rows))
    )


def row_bytes(name: str, columns: int) -> int:
    """Bytes of a row-scaled row: codes, scale and bias."""
    bits, dtype, _ = SCALED[name]
    return -(-columns * bits // 8) + 2 * np.dtype(dtype).itemsize


def rows_of(inputs: Arrays, options: dict[str, Value]) -> tuple[Real, Real, Real]:
    """Values, errors and magnitudes f64[elements] of all rows of all tables, decoded; row-scaled
    ones as q*scale + bias, which kernels compute with one rounding or two.
    """
    name = str(options.get("weights_format", "fp32"))
    codes = inputs["weights"]
    if name not in SCALED:
        value = decode(codes.reshape(-1), name)
        return value, np.zeros(value.size), np.abs(value)
    parts = [
        np.broadcast_arrays(*row)
        for row in fused_rows(inputs, name, int(options.get("row_alignment", 1)))
    ]
    with np.errstate(invalid="ignore", over="ignore"):
        value = np.concatenate([(q * scale + bias).reshape(-1) for q, scale, bias in parts])
        size = np.concatenate(
            [(np.abs(q * scale) + np.abs(bias)).reshape(-1) for q, scale, bias in parts]
        )
    return value, (2 * U * SLACK) * size, size


def fused_rows(inputs: Arrays, name: str, alignment: int = 1) -> Iterator[tuple[Real, Real, Real]]:
    """Codes [rows, D], scales [rows, 1] and biases [rows, 1] of every table of row-scaled rows,
    padded to the alignment.
    """
    bits, dtype, first = SCALED[name]
    codes = inputs["weights"]
    flat = (codes[codes.dtype.names[0]] if codes.dtype.names else codes).reshape(-1)
    at = 0
    shift = np.arange(0, 8, bits, dtype=np.uint8)
    for rows, columns in zip(inputs["rows"].tolist(), inputs["dims"].tolist()):
        data = -(-columns * bits // 8)
        size = row_bytes(name, columns)
        stride = -(-size // alignment) * alignment
        row = flat[at : at + rows * stride].reshape(rows, stride)[:, :size]
        at += rows * stride
        codes_, header = (
            (row[:, size - data :], row[:, : size - data])
            if first
            else (row[:, :data], row[:, data:])
        )
        scale, bias = (header.copy().view(dtype).astype(np.float64)[:, k : k + 1] for k in (0, 1))
        unpacked = (codes_[:, :, None] >> shift) & ((1 << bits) - 1)
        yield unpacked.reshape(rows, data * 8 // bits)[:, :columns].astype(np.float64), scale, bias


def bags_of(inputs: Arrays, options: dict[str, Value], switches: frozenset[str]) -> CaseBags:
    """All bags of a batch. Raises ValueError where a row number is out of range and bounds_check is
    fatal.
    """
    tables = tables_of(inputs)
    features = inputs["feature_table"].astype(np.int64)
    if "feature_is_table" in switches:
        instead = np.arange(features.size) % max(tables.rows.size, 1)
        features = np.where(tables.dims[instead] == tables.dims[features], instead, features)
    offsets = inputs["offsets"].astype(np.int64)
    indices = inputs["indices"].astype(np.int64)
    count = max(features.size, 1)
    batch = (
        inputs["batch_sizes"].astype(np.int64)
        if "batch_sizes" in inputs
        else np.full(count, (offsets.size - 1) // count)
    )
    batch = batch[: features.size]
    feature = np.repeat(np.arange(features.size), batch)
    sample = np.concatenate([np.arange(b) for b in batch] or [np.empty(0, np.int64)])
    lo, hi = _ends(offsets, switches)
    size = np.maximum(hi - lo, 0)
    bag = np.repeat(np.arange(size.size), size)
    place = np.arange(bag.size) - np.repeat(np.cumsum(size) - size, size) + np.repeat(lo, size)
    weight = None
    if "per_sample_weights" in inputs and "weights_ignored" not in switches:
        taken = place - np.repeat(lo, size) if "weights_restart" in switches else place
        weight = inputs["per_sample_weights"].astype(np.float64)[taken]
    table = features[feature[bag]]
    row = indices[place]
    row = _checked(row, tables.rows[table], options, switches)
    keep = row >= 0
    dims = tables.dims[features]
    return CaseBags(
        tables,
        feature,
        sample,
        np.diff(offsets),
        dims,
        _columns(features, dims, switches),
        int(dims.sum()),
        batch,
        bag[keep],
        place[keep],
        table[keep],
        row[keep],
        None if weight is None else weight[keep],
    )


def only(bags: CaseBags, feature: int) -> CaseBags:
    """The same bags with the lookups of one feature."""
    mine = bags.feature[bags.bag] == feature
    weight = None if bags.weight is None else bags.weight[mine]
    found = {name: getattr(bags, name)[mine] for name in ("bag", "place", "table", "at")}
    return replace(bags, weight=weight, **found)


def _ends(offsets: Ints, switches: frozenset[str]) -> tuple[Ints, Ints]:
    """First lookup of every bag, and the one after its last."""
    lo = offsets[:-1]
    hi = offsets[1:]
    n = int(offsets[-1]) if offsets.size else 0
    if "last_lookup_dropped" in switches:
        hi = np.maximum(hi - 1, lo)
    if "bag_ends_late" in switches:
        hi = np.minimum(hi + 1, n)
    if "bag_starts_early" in switches:
        lo = np.maximum(lo - 1, 0)
    if "first_lookup_dropped" in switches:
        lo = np.minimum(lo + 1, hi)
    return lo, hi


def _checked(row: Ints, rows: Ints, options: dict[str, Value], switches: frozenset[str]) -> Ints:
    """Row numbers; -1 where nothing is read: pruned lookups, and those out of range."""
    outside = (row < -1) | (row >= rows)
    if outside.any() and not switches and options.get("bounds_check", "fatal") == "fatal":
        first = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"lookup {first} asks for row {row[first]} of a table with {rows[first]} rows"
        )
    if "out_of_bounds_row_0" in switches:
        row = np.where(outside, 0, row)
    elif "out_of_bounds_wraps" in switches:
        row = np.where(outside, row % np.maximum(rows, 1), row)
    else:
        row = np.where(outside, -1, row)
    return np.where(row == -1, rows - 1, row) if "pruned_reads_last_row" in switches else row


def _columns(features: Ints, dims: Ints, switches: frozenset[str]) -> Ints:
    """First output column of each feature."""
    if "columns_in_table_order" in switches:
        order = np.argsort(features, kind="stable")
        column = np.empty(features.size, np.int64)
        column[order] = np.cumsum(dims[order]) - dims[order]
        return column
    return np.cumsum(dims) - dims
