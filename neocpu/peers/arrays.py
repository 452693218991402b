"""How is one table-batched lookup done over plain arrays? FBGEMM-shaped operators without state.

    weights         codes of all tables, one after the other, row-major (`formats.py`)
    rows, dims      [T], the shape of each table
    feature_table   [F], the table of each feature
    indices         the bag of feature f and sample s is indices[offsets[b] : offsets[b+1]],
                    where b = f*B + s
    output          pooled: f32[B, sum of dims]; pooling none: [n, D]; variable batches: flat,
                    feature-major, or rank-major as in FBGEMM

The arithmetic is canonical (`docs/arithmetic.md` §3): rows are decoded exactly, bags summed
exactly, rounded once. Integers may be int32 or int64. Training goes through
`tables/embedding/tbe.py`, which keeps its rows and gives the same bits.
"""

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.formats import FORMATS, INFERENCE
from neocpu.core.types import Elements, Floats, Ints
from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.kernels.rows import lookup as kernels
from neocpu.tables.embedding.bounds import Bounds, bag_cuts, bounds_check

__all__ = ["Bounds", "bounds_check", "lookup", "row_elements", "weight_gradient"]
# `lookup` has an option named bounds_check, which hides the function there.
_bounds = bounds_check
# Poolings of a bag.
POOLING = ("sum", "mean", "none")
# Formats of the output.
OUTPUTS = ("fp32", "fp16", "bf16")
# Stands for "no per-sample weights" in kernels.
NONE = np.empty(0, np.float32)
# Formats of rows; INFERENCE holds those of FBGEMM's inference tables.
_ROWS = FORMATS | INFERENCE
# Dtype of one element of storage.
_DTYPES = {name: np.dtype(form.dtype) for name, form in _ROWS.items()}


class _Entries:
    """The features of a call as kernels take them.

    table : codes of all tables, flat. feature_table : i64[F].
    base, width, stride : i64[F], where the rows of each feature begin in `table`, their columns,
        and elements from one row to the next.
    """

    def __init__(
        self,
        weights: Elements,
        rows: Elements,
        dims: Elements,
        table: Elements,
        format: str,
        alignment: int,
    ) -> None:
        if format not in _DTYPES:
            raise ConfigError(f"weights_format {format!r}: it is one of {', '.join(_DTYPES)}")
        heights = np.asarray(rows, np.int64)
        width = np.asarray(dims, np.int64)
        stride = np.array([row_elements(format, int(d), alignment) for d in width], np.int64)
        sizes = heights * stride
        dtype = _DTYPES[format]
        flat = np.ascontiguousarray(weights).reshape(-1)
        # Codes may come as numbers of either sign or as records: only their width must be right.
        if flat.dtype.itemsize != dtype.itemsize:
            raise ConfigError(
                f"weights of dtype {flat.dtype} are no {format} codes, which take "
                f"{dtype.itemsize} bytes"
            )
        if flat.size != sizes.sum():
            raise ConfigError(f"{flat.size} weights; the tables need {int(sizes.sum())}")
        self.table = (
            # A record of one field names the format, by which kernels are compiled.
            flat.view(dtype) if format == "fp32" else flat.view(np.dtype([(format, dtype)]))
        )
        self.feature_table = np.ascontiguousarray(table, np.int64)
        self.base = (np.cumsum(sizes) - sizes)[self.feature_table]
        self.width = width[self.feature_table]
        self.stride = stride[self.feature_table]

    def reading(self, first: Ints) -> Entries:
        """The record that kernels take; first : i64[K+1], bags (or lookups) of each entry."""
        return Entries(self.base, self.width, self.stride, first)

    def matrix(self, bags: int) -> tuple[Ints, Ints, tuple[int, ...]]:
        """The layout of an output [B, sum of dims]: (place, pitch, shape).

        place : i64[F], where the output of each feature's first bag begins. pitch : i64[F],
            elements from one bag to the next.
        """
        columns = int(self.width.sum())
        samples = bags // max(self.feature_table.size, 1)
        return (
            np.cumsum(self.width) - self.width,
            np.full(self.feature_table.size, columns, np.int64),
            (samples, columns),
        )

    def by_rank(self, batch_sizes: Ints) -> tuple["_Entries", Ints, Ints, tuple[int, ...]]:
        """One entry per feature and rank of variable batches, and the rank-major output's layout.

        batch_sizes i64[F, ranks]. Returns (entries, place, pitch, shape), the last three as in
        `matrix`.
        """
        ranks = batch_sizes.shape[1]
        # The arguments were checked when the features' own entries were made.
        entries = object.__new__(_Entries)
        entries.table = self.table
        entries.feature_table, entries.base, entries.width, entries.stride = (
            np.repeat(array, ranks)
            for array in (self.feature_table, self.base, self.width, self.stride)
        )
        # FBGEMM's order is rank, feature, sample: what goes to a rank is one block.
        elements = (batch_sizes * self.width[:, None]).T  # [ranks, F]
        place = (np.cumsum(elements) - elements.reshape(-1)).reshape(elements.shape).T.reshape(-1)
        return entries, np.ascontiguousarray(place), entries.width, (int(elements.sum()),)


def row_elements(format: str, columns: int, row_alignment: int = 1) -> int:
    """Elements of the format's dtype from one row to the next.

    Rows are padded to a multiple of `row_alignment` bytes.
    """
    size = _ROWS[format].row_bytes(columns)
    return (size + row_alignment - 1) // row_alignment * row_alignment // _DTYPES[format].itemsize


def _pooled_layout(
    entries: _Entries, offsets: Ints, batch_sizes: Elements | None
) -> tuple[_Entries, Ints, Ints, Ints, tuple[int, ...]]:
    """The pooled output's layout: (entries, first bag of each, place, pitch, shape)."""
    if batch_sizes is None:
        cuts = bag_cuts(entries.feature_table.size, offsets, None)
        return entries, cuts, *entries.matrix(offsets.size - 1)
    sizes = np.asarray(batch_sizes, np.int64).reshape(entries.feature_table.size, -1)
    entries, place, pitch, shape = entries.by_rank(sizes)
    return entries, np.append(0, np.cumsum(sizes)).astype(np.int64), place, pitch, shape


def _lookup_weights(per_sample_weights: Elements | None, lookups: int) -> Floats:
    if per_sample_weights is None:
        return NONE
    weights = np.ascontiguousarray(per_sample_weights, np.float32).reshape(-1)
    if weights.size != lookups:
        raise ConfigError(f"{lookups} indices, but {weights.size} per-sample weights")
    # Kernels are compiled for one kind of array: an empty one means no weights.
    return weights if weights.size else NONE


def _one_width(entries: _Entries) -> int:
    widths = np.unique(entries.width)
    if widths.size > 1:
        raise ConfigError(f"pooling none needs tables of one width, not {widths.tolist()}")
    return int(widths[0]) if widths.size else 0


def _check_options(pooling: str, output_format: str = "fp32") -> None:
    for option, value, values in (
        ("pooling", pooling, POOLING),
        ("output_format", output_format, OUTPUTS),
    ):
        if value not in values:
            raise ConfigError(f"{option} {value!r}: it is one of {', '.join(values)}")


def lookup(
    weights: Elements,
    rows: Elements,
    dims: Elements,
    feature_table: Elements,
    indices: Elements,
    offsets: Elements,
    per_sample_weights: Elements | None = None,
    pooling: str = "sum",
    weights_format: str = "fp32",
    output_format: str = "fp32",
    bounds_check: str = "fatal",
    batch_sizes: Elements | None = None,
    outside: int = 0,
    row_alignment: int = 1,
) -> Elements:
    """Embeddings of all features; FBGEMM: TBE forward (training; with `nbit*` formats inference).

    weights, rows, dims, feature_table, indices, offsets : see the top of this file. A row of -1 is
        pruned: it adds nothing, but counts in the length that MEAN divides by.
    per_sample_weights : f32[n] or None; terms are fl(w * x). pooling : sum, mean, or none: one row
        per lookup, as it is.
    weights_format : a name in `neocpu.core.formats.FORMATS`, or nbit8, nbit4, nbit2.
    row_alignment : bytes rows are padded to.
    output_format : fp32, fp16 or bf16; narrow ones are rounded from fp32, nearest even, and come as
        records of that name.
    bounds_check : fatal, warning or ignore, with `outside` (`tables/embedding/bounds.py`).
    batch_sizes : [F] or [F, ranks] where features have batches of their own; the output is flat
        then: rank, feature, sample.

    Raises IndexRangeError for rows and offsets out of range, ConfigError for what does not fit
    together.
    """
    _check_options(pooling, output_format)
    entries = _Entries(weights, rows, dims, feature_table, weights_format, row_alignment)
    checked = _bounds(rows, feature_table, indices, offsets, bounds_check, batch_sizes, outside)
    index = checked.indices
    ends = checked.offsets
    scale = _lookup_weights(per_sample_weights, checked.indices.size)
    if pooling == "none":
        width = _one_width(entries)
        first = ends[bag_cuts(entries.feature_table.size, ends, batch_sizes)]
        out = np.zeros((index.size, width), np.float32)
        lines = Lines(first[:-1] * width, entries.width)
        kernels.gathered_rows(
            entries.table, entries.reading(first), index, scale, lines, out.reshape(-1)
        )
    else:
        entries, cuts, place, pitch, shape = _pooled_layout(entries, ends, batch_sizes)
        out = np.empty(shape, np.float32)
        mean = pooling == "mean"
        bags = Bags(ends, index, scale)
        lines = Lines(place, pitch)
        kernels.pooled_rows(
            entries.table, entries.reading(cuts), bags, mean, lines, out.reshape(-1)
        )
    return out if output_format == "fp32" else _encoded(out, output_format)


def _encoded(out: Floats, format: str) -> Elements:
    from neocpu.core.codecs import LAYOUTS
    from neocpu.kernels.codecs import small_floats as codecs

    codes = np.empty((1, out.size), np.uint16)
    codecs.encode_rows(out.reshape(1, -1), LAYOUTS[format], 0, codes)
    return FORMATS[format].view(codes.reshape(out.shape))


def weight_gradient(
    weights: Elements,
    rows: Elements,
    dims: Elements,
    feature_table: Elements,
    indices: Elements,
    offsets: Elements,
    grad_output: Elements,
    pooling: str = "sum",
    weights_format: str = "fp32",
    bounds_check: str = "fatal",
    batch_sizes: Elements | None = None,
    outside: int = 0,
    row_alignment: int = 1,
) -> Floats:
    """Gradient f32[n] of per-sample weights: row times gradient of the bag, rounded once.

    grad_output f32 in the shape of `lookup`'s output; the other arguments are those of `lookup`,
    as are the errors. MEAN divides the gradient first, fl(g / L). A pruned lookup gets +0.
    FBGEMM: `indice_weights_grad`.
    """
    _check_options(pooling)
    entries = _Entries(weights, rows, dims, feature_table, weights_format, row_alignment)
    checked = _bounds(rows, feature_table, indices, offsets, bounds_check, batch_sizes, outside)
    index = checked.indices
    ends = checked.offsets
    out = np.zeros(checked.indices.size, np.float32)
    shape: tuple[int, ...]
    if pooling == "none":  # every lookup is a bag of its own
        width = _one_width(entries)
        cuts = ends[bag_cuts(entries.feature_table.size, ends, batch_sizes)]
        place = cuts[:-1] * width
        pitch = entries.width
        shape = (index.size, width)
        ends = np.arange(index.size + 1, dtype=np.int64)
    else:
        entries, cuts, place, pitch, shape = _pooled_layout(entries, ends, batch_sizes)
    grad = np.ascontiguousarray(grad_output, np.float32)
    if grad.shape != shape:
        raise ConfigError(f"grad_output has shape {grad.shape}; the output has {shape}")
    kernels.weight_gradients(
        entries.table,
        entries.reading(cuts),
        Bags(ends, index, NONE),
        grad.reshape(-1),
        pooling == "mean",
        Lines(place, pitch),
        out,
    )
    return out
