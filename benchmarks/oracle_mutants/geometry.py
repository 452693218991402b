"""Which lookups does a batch have? Bags, rows and addresses, as a kernel finds them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from benchmarks.oracle_mutants.formats import RowScaled, SmallFloats
from benchmarks.oracle_mutants.questions import Array


@dataclass
class Batch:
    """The arrays of one call, and what follows from them."""

    rows: Array
    dims: Array
    tables: Array  # of each feature
    indices: Array
    offsets: Array
    weights: Array | None  # of each lookup
    batch_sizes: Array  # of each feature
    variable: bool
    options: dict[str, Any]
    row_factors: Array | None = None  # that lookups multiply rows by, of all tables

    @property
    def features(self) -> range:
        """Numbers of the features."""
        return range(len(self.tables))

    def of(self, feature: int, part: "Lookups") -> Array:
        """The row numbers of a feature's lookups, as they are given."""
        return self.indices[part.position]


class Lookups(NamedTuple):
    """Lookups of one feature, bag by bag."""

    sample: Array
    place: Array  # in the bag
    position: Array  # among all lookups


def spread(begins: Array, ends: Array) -> Lookups:
    """The lookups of bags from begin to end."""
    lengths = np.maximum(ends - begins, 0)
    sample = np.repeat(np.arange(len(begins)), lengths)
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Lookups(sample, place, begins[sample] + place)


class Geometry(SmallFloats, RowScaled):
    """Bags, rows and where they are in memory."""

    def batch(self, inputs: dict[str, Array], options: dict[str, Any], step: str = "") -> Batch:
        """The batch of a call; step: the prefix of a trajectory's step."""
        tables = inputs["feature_table"].astype(np.int64)
        offsets = inputs[f"{step}offsets"].astype(np.int64)
        variable = "batch_sizes" in inputs
        size = (len(offsets) - 1) // max(len(tables), 1)
        batch_sizes = inputs["batch_sizes"] if variable else np.full(len(tables), size)
        return Batch(
            rows=inputs["rows"].astype(np.int64),
            dims=inputs.get("dims", np.ones_like(inputs["rows"])).astype(np.int64),
            tables=self.tables_of_features(tables, inputs["rows"]),
            indices=self.index_values(inputs[f"{step}indices"]),
            offsets=self.offset_values(offsets),
            weights=inputs.get(f"{step}per_sample_weights"),
            batch_sizes=batch_sizes.astype(np.int64),
            variable=variable,
            options=options,
        )

    def tables_of_features(self, tables: Array, rows: Array) -> Array:
        """The table of each feature."""
        return tables

    def index_values(self, indices: Array) -> Array:
        """Row numbers as the kernel loads them."""
        return indices.astype(np.int64)

    def offset_values(self, offsets: Array) -> Array:
        """Offsets as the kernel loads them."""
        return offsets

    def first_bags(self, batch: Batch) -> Array:
        """The number of each feature's first bag."""
        return np.cumsum(batch.batch_sizes) - batch.batch_sizes

    def bag_bounds(self, batch: Batch, feature: int) -> tuple[Array, Array]:
        """Begins and ends of a feature's bags."""
        first = int(self.first_bags(batch)[feature])
        bags = first + self.bag_numbers(batch, feature)
        last = len(batch.offsets) - 1
        begins = batch.offsets[np.clip(bags, 0, last)]
        ends = batch.offsets[np.clip(bags + 1, 0, last)]
        return self.begins(begins, batch), self.ends(ends, begins, batch)

    def bag_numbers(self, batch: Batch, feature: int) -> Array:
        """Bags of a feature, counted from its first."""
        return np.arange(batch.batch_sizes[feature])

    def begins(self, begins: Array, batch: Batch) -> Array:
        """Where bags begin."""
        return begins

    def ends(self, ends: Array, begins: Array, batch: Batch) -> Array:
        """Where bags end."""
        return ends

    def lengths(self, batch: Batch, feature: int) -> Array:
        """Lookups of each bag, pruned ones too; what MEAN divides by."""
        first = int((np.cumsum(batch.batch_sizes) - batch.batch_sizes)[feature])
        return np.diff(batch.offsets[first : first + int(batch.batch_sizes[feature]) + 1])

    def lookups(self, batch: Batch, feature: int) -> Lookups:
        """The lookups of a feature."""
        begins, ends = self.bag_bounds(batch, feature)
        total = len(batch.indices)
        part = spread(np.clip(begins, 0, total), np.clip(ends, 0, total))
        kept = self.kept(batch, feature, part)
        return part if kept is None else Lookups(*(column[kept] for column in part))

    def kept(self, batch: Batch, feature: int, part: Lookups) -> Array | None:
        """Which lookups the loops reach: a mask or places; None is all of them."""
        return None

    def row_numbers(self, batch: Batch, feature: int, part: Lookups) -> tuple[Array, Array]:
        """Rows of lookups, and whether they are read at all."""
        row = batch.of(feature, part)
        inside = self.inside(row, int(batch.rows[batch.tables[feature]]))
        return np.where(inside, row, 0), inside

    def inside(self, row: Array, rows: int) -> Array:
        """Does the table have that row?"""
        return (row >= 0) & (row < rows)

    def bases(self, batch: Batch, widths: Array) -> Array:
        """Where each table begins in the memory of all."""
        sizes = batch.rows * widths
        return np.cumsum(sizes) - sizes

    def row_stride(self, batch: Batch, table: int, width: int) -> int:
        """Elements from one row to the next."""
        return width

    def address(self, base: int, row: Array, stride: int) -> Array:
        """The first element of rows."""
        return base + row * stride

    def read(self, flat: Array, batch: Batch, table: int, row: Array, name: str) -> Array:
        """Rows as fp32[n, D]."""
        columns = int(batch.dims[table])
        alignment = int(batch.options.get("row_alignment", 1))
        widths = np.array([self.row_width(name, int(d), alignment) for d in batch.dims])
        width = int(widths[table])
        base = int(self.bases(batch, widths)[table])
        first = self.address(base, row, self.row_stride(batch, table, width))
        place = np.clip(first[:, None] + np.arange(width), 0, max(flat.size - 1, 0))
        codes = flat.reshape(-1)[place] if len(row) else np.zeros((0, width), flat.dtype)
        return self.loaded(self.decode(codes, name, columns), batch)

    def loaded(self, x: Array, batch: Batch) -> Array:
        """Rows in registers."""
        return x

    def decode(self, codes: Array, name: str, columns: int) -> Array:
        """Codes of rows as fp32."""
        if name == "fp32":
            return codes.astype(np.float32)
        if name in ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2"):
            return self.decode_small(codes, name)
        return self.decode_rows(codes, name, columns)

    def lookup_weights(self, batch: Batch, feature: int, part: Lookups) -> Array | None:
        """The weight of each lookup."""
        return None if batch.weights is None else batch.weights[part.position]

    def column_starts(self, batch: Batch) -> Array:
        """The first column of each feature."""
        widths = batch.dims[batch.tables]
        return np.cumsum(widths) - widths
