"""What must lookups and updates give where offsets no longer fit in 32 bits?

Operators `lookup_at_scale` and `backward_at_scale`. Tables and gradients of more than 2^31 elements
are in no file: a formula gives them, and the kernel's author fills his memory by it. The oracle
needs none of that memory, because it asks about few rows and samples: it computes the same question
on a compact table that holds these rows alone (`Compact`), with the operators `lookup` and
`backward`.
"""

from dataclasses import dataclass, field

import numpy as np

from neocpu.core.formats import FORMATS
from neocpu.core.types import Floats, Ints
from neocpu.oracle.canonical import encoded, lookup_bits
from neocpu.oracle.canonical.global_decay import backward_bits
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truth, Truths, Value
from neocpu.oracle.ops.backward import BACKWARD, HYPER, STATES
from neocpu.oracle.ops.lookup import BAGS, FLOATS, LOOKUP, TABLES
from neocpu.oracle.options import OneOf, Whole
from neocpu.oracle.truth.bags import TableGeometry, tables_of
from neocpu.oracle.truth.states import layout_of
from neocpu.tables.specs.optimizers import TABLE_RULES

WEIGHTS = 0  # the formula's salt of tables
GRADIENT = 1  # and of gradients
FORMULA = (
    "with lo = e mod 2^32, hi = e div 2^32 and h = (2654435761*lo + 2246822519*hi + "
    "3266489917*salt) mod 2^32, element e is ((h div 2^24) - 128) / 256"
)


def numbers_at(elements: Ints, salt: int) -> Floats:
    """The formula's number of each element, fp32 of the same shape.

    Whole multiples of 2^-8 below 1/2 in magnitude: bf16 and fp16 hold them, too, and sums of
    thousands of them are exact. Elements that differ by 2^31 or 2^32 have different numbers.
    """
    e = elements.astype(np.uint64)
    low = e & np.uint64(0xFFFFFFFF)
    high = e >> np.uint64(32)
    mixed = low * np.uint64(2654435761) + high * np.uint64(2246822519)
    mixed = (mixed + np.uint64(3266489917 * salt)) & np.uint64(0xFFFFFFFF)
    units = (mixed >> np.uint64(24)).astype(np.int64) - 128
    return (units / 256).astype(np.float32)


def wrapped(elements: Ints, item_bytes: int = 1) -> Ints:
    """Element numbers whose offset, in items of so many bytes, is taken modulo 2^32."""
    return elements % (2**32 // item_bytes)


@dataclass
class Compact:
    """The lookups of some samples over tables of just the rows that they, or a check, touch."""

    inputs: Arrays
    options: Options
    bends: frozenset[str]
    samples: Ints  # whose lookups are kept, ascending
    check_rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    geometry: TableGeometry = field(init=False)

    def __post_init__(self) -> None:
        self.geometry = tables_of(self.inputs)
        self.features = self.inputs["feature_table"].astype(np.int64)
        batch = int(self.options["batch"])
        feature, sample = np.divmod(self.inputs["bags"].astype(np.int64), max(batch, 1))
        kept = np.isin(sample, self.samples)
        self.feature = feature[kept]
        self.sample = np.searchsorted(self.samples, sample[kept])
        self.row = self._rows_that_are_read(self.inputs["indices"][kept].astype(np.int64))
        checked_table = np.searchsorted(self.geometry.first_row, self.check_rows, side="right") - 1
        checked_row = self.check_rows - self.geometry.first_row[checked_table]
        # rows of each compact table, ascending: those that are read or checked, at least one
        self.rows_of_table = []
        for table in range(self.geometry.rows.size):
            read = self.row[self.features[self.feature] == table]
            checked = checked_row[checked_table == table]
            # Row 0 too: no table may be empty.
            self.rows_of_table.append(np.unique(np.concatenate([[0], read, checked])))
        self.checked_table = checked_table
        self.checked_row = checked_row

    def _rows_that_are_read(self, row: Ints) -> Ints:
        """Row numbers in their tables, of the lookups that are kept."""
        dim = np.maximum(self.geometry.dims[self.features[self.feature]], 1)
        if "row_offset_32bit" in self.bends:
            # Widths are powers of two, so a wrapped offset is the beginning of a row.
            row = wrapped(row * dim) // dim
        if "byte_offset_32bit" in self.bends:
            item_bytes = np.dtype(FORMATS[str(self.options["weights_format"])].dtype).itemsize
            row = wrapped(row * dim, item_bytes) // dim
        return row

    def tables(self) -> Arrays:
        """Compact tables, with the numbers that the formula gives their rows."""
        codes = []
        name = str(self.options["weights_format"])
        for table, rows in enumerate(self.rows_of_table):
            dim = int(self.geometry.dims[table])
            first = int(self.geometry.first_element[table])
            if "table_offset_32bit" in self.bends:
                first %= 2**32
            elements = first + rows[:, None] * dim + np.arange(dim)
            codes.append(encoded(numbers_at(elements.reshape(-1), WEIGHTS), name, "reference"))
        return {
            "weights": np.concatenate(codes),
            "rows": np.array([rows.size for rows in self.rows_of_table], np.int64),
            "dims": self.geometry.dims,
            "feature_table": self.features,
        }

    def bags(self) -> Arrays:
        """Bags of the samples that are kept: indices into the compact tables, and offsets."""
        table = self.features[self.feature]
        indices = np.empty(self.row.size, np.int64)
        for t, rows in enumerate(self.rows_of_table):
            of_table = table == t
            indices[of_table] = np.searchsorted(rows, self.row[of_table])
        bag = self.feature * self.samples.size + self.sample
        bag_count = self.features.size * self.samples.size
        return {"indices": indices, "offsets": np.searchsorted(bag, np.arange(bag_count + 1))}

    def gradient(self) -> Floats:
        """The formula's gradients of the pooled rows of the samples: fp32[samples, width]."""
        width = int(self.geometry.dims[self.features].sum())
        first = self.samples * width
        if "byte_offset_32bit" in self.bends:
            first = wrapped(first, item_bytes=4)
        return numbers_at(first[:, None] + np.arange(width), GRADIENT)

    def places(self) -> tuple[Ints, Ints]:
        """Elements, and rows, of the compact tables that belong to the rows to be checked."""
        small = tables_of(self.tables())
        row = np.empty(self.check_rows.size, np.int64)
        for t, rows in enumerate(self.rows_of_table):
            of_table = self.checked_table == t
            row[of_table] = np.searchsorted(rows, self.checked_row[of_table])
        elements = [np.empty(0, np.int64)]
        for t, r in zip(self.checked_table.tolist(), row.tolist()):
            dim = int(small.dims[t])
            elements.append(small.first_element[t] + r * dim + np.arange(dim))
        return np.concatenate(elements), small.first_row[self.checked_table] + row


def compact_lookup(
    inputs: Arrays, options: Options, bends: Switches = frozenset()
) -> tuple[Arrays, Options]:
    """Inputs and options of the `lookup` that gives the samples to be checked."""
    samples = inputs["check_samples"].astype(np.int64)
    compact = Compact(inputs, options, bends, samples)
    lookup_options = {name: value for name, value in options.items() if name != "batch"}
    return {**compact.tables(), **compact.bags()}, LOOKUP.complete(lookup_options)


def compact_backward(
    inputs: Arrays, options: Options, bends: Switches = frozenset()
) -> tuple[Arrays, Options, Compact]:
    """Inputs and options of the `backward` that touches the same rows, and where they went."""
    # A row's gradient comes from all samples, so none may be left out.
    samples = np.unique(inputs["bags"].astype(np.int64) % max(int(options["batch"]), 1))
    compact = Compact(inputs, options, bends, samples, inputs["check_rows"].astype(np.int64))
    backward_options = {name: value for name, value in options.items() if name != "batch"}
    small = {**compact.tables(), **compact.bags(), "grad_output": compact.gradient()}
    return small, BACKWARD.complete(backward_options), compact


def _lookup_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    small, lookup_options = compact_lookup(inputs, options, switches)
    return LOOKUP.truth(small, lookup_options, switches)


def _lookup_run(inputs: Arrays, options: Options, backend: str) -> Arrays:
    small, lookup_options = compact_lookup(inputs, options)
    return lookup_bits(small, lookup_options, backend)


def _checked_part(options: Options, name: str, elements: Ints, rows: Ints) -> Ints:
    """Where the checked rows stand in an output of `backward`."""
    return rows if name in layout_of(options).row else elements


def _backward_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    small, rest, compact = compact_backward(inputs, options, switches)
    elements, rows = compact.places()
    outputs = {}
    for name, truth in BACKWARD.truth(small, rest, switches).items():
        place = _checked_part(options, name, elements, rows)
        outputs[name] = _part(truth, place)
    return outputs


def _part(truth: Truth, place: Ints) -> Truth:
    """The truth of some elements of a flat output."""
    return truth.with_arrays({part: array[place] for part, array in truth.arrays().items()})


def _backward_run(inputs: Arrays, options: Options, backend: str) -> Arrays:
    small, rest, compact = compact_backward(inputs, options)
    elements, rows = compact.places()
    outputs = backward_bits(small, rest, backend)
    return {
        name: array[_checked_part(options, name, elements, rows)] for name, array in outputs.items()
    }


def _locate_row(
    inputs: Arrays, options: Options, output: str, index: tuple[int, ...]
) -> dict[str, int]:
    """Table, row and column of an element of the checked rows."""
    tables = tables_of(inputs)
    rows = inputs["check_rows"].astype(np.int64)
    table = np.searchsorted(tables.first_row, rows, side="right") - 1
    k = index[0]
    column = {}
    if output not in layout_of(options).row:
        ends = np.cumsum(tables.dims[table])
        k = int(np.searchsorted(ends, index[0], side="right"))
        column = {"column": int(index[0] - (ends[k] - tables.dims[table[k]]))}
    return {**tables.place_of_row(int(rows[k])), **column}


SHARED = {
    "rows": TABLES["rows"],
    "dims": TABLES["dims"],
    "feature_table": BAGS["feature_table"],
    "bags": Field(
        "bag of each lookup, feature * batch + sample, ascending, int64[n]; all other bags are "
        "empty: offsets = searchsorted(bags, arange(F*batch + 1))",
        ("lookup",),
    ),
    "indices": Field("row number of each lookup, int64[n]", ("lookup",)),
}
SCALE: dict[str, Value] = {
    "pooling": OneOf("sum", ("sum", "mean")),
    "weights_format": OneOf("fp32", FLOATS),
    "batch": Whole(1, 0),
}
TABLE_FORMULA = f"Tables, one after the other, by formula, salt {WEIGHTS}: {FORMULA}."

LOOKUP_AT_SCALE = Operator(
    name="lookup_at_scale",
    about="Pooled lookups in tables, or into an output, of more than 2^31 elements; few samples "
    f"are asked about. {TABLE_FORMULA}",
    inputs={
        **SHARED,
        "check_samples": Field("samples whose pooled rows are the answer, int64[S]", ("sample",)),
    },
    options=SCALE,
    outputs={"out": Field("pooled rows of check_samples, fp32[S, sum of dims]", ("row", "column"))},
    run_=_lookup_run,
    truth_=_lookup_truth,
    locate_=lambda inputs, options, output, index: {
        "sample": int(inputs["check_samples"][index[0]]),
        "column": index[1],
    },
)
BACKWARD_AT_SCALE = Operator(
    name="backward_at_scale",
    about="Fused backward of tables, or from a gradient, of more than 2^31 elements; few rows are "
    f"asked about: touched ones, and ones that must stay. {TABLE_FORMULA} grad_output[batch, sum "
    f"of dims], row-major, by the same formula, salt {GRADIENT}. States begin at 0.",
    inputs={
        **SHARED,
        "check_rows": Field(
            "rows that are the answer, counted over all tables, ascending, int64[R]", ("row",)
        ),
    },
    options={
        **SCALE,
        "optimizer": OneOf("exact_sgd", TABLE_RULES),
        "learning_rate": HYPER["learning_rate"],
        "eps": HYPER["eps"],
    },
    outputs={
        "weights": Field("elements of check_rows after the step, row by row", ("element",)),
        **STATES,
    },
    run_=_backward_run,
    truth_=_backward_truth,
    locate_=_locate_row,
)

OPERATORS = (LOOKUP_AT_SCALE, BACKWARD_AT_SCALE)
