"""Which bits does neocpu's fused backward give? The kernels of training, or their NumPy twins.

int8 and int4 rows are decoded, updated and encoded again, in the formats of neocpu's row codecs,
which are FBGEMM's on a CPU (docs/formats.md §3). Rows without a gradient keep their bytes.
"""

from itertools import pairwise

import numpy as np

from neocpu.core.codecs import LAYOUTS, ROUNDINGS
from neocpu.core.formats import FORMATS
from neocpu.core.rules import RULES
from neocpu.core.types import Bytes, Elements, Floats
from neocpu.kernels.compile.choice import backend_module
from neocpu.kernels.records import CodedTable, Segments, ShardPlaces
from neocpu.kernels.twins.numbers.philox import STOCHASTIC_ROUNDING, tensor_key
from neocpu.oracle.adapters import codes_of
from neocpu.oracle.canonical import NONE, decoded, divided, encoded, gradient_start, lookups_of
from neocpu.oracle.operator import Arrays, Options
from neocpu.oracle.options import optimizer_of
from neocpu.oracle.truth.bags import SCALED, JaggedBatch, TableGeometry, row_bytes
from neocpu.oracle.truth.formats import joined_halves
from neocpu.oracle.truth.scaled import header_format, parts_of
from neocpu.oracle.truth.states import StateLayout, layout_of
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.storage.row_codecs import RowCodec


def segments_of(inputs: Arrays, options: Options) -> tuple[JaggedBatch, Segments, Floats]:
    """The bags, their segments, and the flat gradient, clipped and divided."""
    bags, _, _, weights = lookups_of(inputs, options)
    gradient = divided(inputs, options, bags)
    global_row = bags.tables.first_row[bags.table] + bags.row
    order = np.argsort(global_row, kind="stable")
    _, first_lookup = np.unique(global_row[order], return_index=True)
    unique_table = bags.table[order][first_lookup]
    shards, first_segment = np.unique(unique_table, return_index=True)
    if options["pooling"] == "none":
        place = bags.position * gradient.shape[-1]
    else:
        place = gradient_start(inputs, bags)[bags.bag]
    sorted_weights = NONE
    if weights.size:
        sorted_weights = np.ascontiguousarray(weights[bags.position][order])
    segments = Segments(
        shards=shards,
        first=np.append(first_segment, unique_table.size),
        unique=bags.row[order][first_lookup],
        starts=np.append(first_lookup, order.size),
        place=place[order],
        weights=sorted_weights,
    )
    return bags, segments, np.ascontiguousarray(gradient.reshape(-1))


def states_of(layout: StateLayout, inputs: Arrays, tables: TableGeometry) -> dict[str, Floats]:
    """Copies of the state arrays as fp32, zeros where the inputs have none."""
    sizes = {name: int(tables.first_element[-1]) for name in layout.element}
    sizes |= {name: int(tables.first_row[-1]) for name in layout.row}
    states = {}
    for name, size in sizes.items():
        array = inputs.get(name, np.zeros(size, np.float32))
        states[name] = decoded(array, layout.formats[name]).reshape(-1)
    return states


def backward_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical answer of `backward`: weights and states after one step."""
    optimizer = optimizer_of(options)
    rule = RULES[optimizer.name]
    bags, segments, gradient = segments_of(inputs, options)
    tables = bags.tables
    layout = layout_of(options)
    states = states_of(layout, inputs, tables)
    hyper = optimizer.hyper(int(options["step"]))
    element_states = rule.element_record(*(states[name] for name in rule.element_state))
    row_states = NONE
    if rule.row_state:
        row_states = np.stack([states[name] for name in rule.row_state], axis=1).reshape(-1)
    name = str(options["weights_format"])
    fused_name = "rows.update" if name == "fp32" or name in SCALED else "rows.narrow"
    fused = backend_module(fused_name, backend).fused(rule, bool(optimizer.max_norm))
    # Copies, as the kernels of training update in place.
    weights = np.array(inputs["weights"]).reshape(-1)
    halves = np.array(inputs.get("weights_low", ()), np.uint16).reshape(-1)
    places = places_of(tables, int(options["seed"]))
    table: Elements | CodedTable = weights
    scaled = ScaledTables(inputs, options, tables, backend) if name in SCALED else None
    if scaled is not None:
        table = scaled.numbers
    elif name != "fp32":
        table = CodedTable(
            codes=weights.view(FORMATS[name].dtype),
            low=halves,
            layout=LAYOUTS[name],
            rounding=ROUNDINGS[str(options["rounding"])],
            step=int(options["step"]),
            rows=segments.unique,
        )
    with np.errstate(all="ignore"):
        fused(table, element_states, row_states, places, segments, gradient, hyper)
    for k, state in enumerate(rule.row_state):
        states[state] = row_states.reshape(-1, len(rule.row_state))[:, k].copy()
    stored = {name: encoded(x, layout.formats[name], backend) for name, x in states.items()}
    if scaled is not None:
        scaled.encode(segments)
        return {**scaled.outputs(), **stored}
    outputs: Arrays = {"weights": weights, **stored}
    if halves.size:
        outputs["joined"] = joined_halves(weights, halves)
    return outputs


def places_of(tables: TableGeometry, seed: int) -> ShardPlaces:
    """Every table as a shard of its own."""
    count = tables.rows.size
    zero = np.zeros(count, np.int64)
    keys = [tensor_key(seed, STOCHASTIC_ROUNDING, f"table{t}") for t in range(count)]
    return ShardPlaces(
        base=tables.first_element[:-1],
        width=tables.dims,
        full_width=tables.dims,
        row_base=tables.first_row[:-1],
        row0=zero,
        column0=zero,
        key=np.array(keys, np.uint64),
    )


def unique_gradient_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical answer of `unique_gradient`: touched rows and their exactly merged gradients."""
    bags, segments, gradient = segments_of(inputs, options)
    tables = bags.tables
    table = np.repeat(segments.shards, np.diff(segments.first))
    out_start = np.append(0, np.cumsum(tables.dims[table]))
    out = np.empty(int(out_start[-1]), np.float32)
    rule = RULES["exact_sgd"]
    hyper = SparseOptimizer(rule.name).hyper(1)
    places = places_of(tables, seed=0)
    merge = backend_module("rows.update", backend).merged(rule)
    none = rule.element_record()
    with np.errstate(all="ignore"):
        merge(NONE, none, places, segments, gradient, hyper, out_start, out)
    return {"rows": tables.first_row[table] + segments.unique, "values": out}


class ScaledTables:
    """Tables of row-scaled rows in the course of an update.

    data : the bytes of each table, u8[rows, bytes]. numbers : all rows decoded, f32[elements].
    """

    def __init__(
        self, inputs: Arrays, options: Options, tables: TableGeometry, backend: str
    ) -> None:
        self.inputs = inputs
        self.name = str(options["weights_format"])
        self.rounding = str(options["rounding"])
        self.tables = tables
        flat = codes_of(inputs["weights"]).reshape(-1)
        stream = f"step{options['step']}/table"
        self.data: list[Bytes] = []
        self.codecs: list[RowCodec] = []
        start = 0
        for t, (rows, columns) in enumerate(zip(tables.rows.tolist(), tables.dims.tolist())):
            size = row_bytes(self.name, columns)
            # A copy: rows without a gradient keep their bytes, all others are written here.
            self.data.append(flat[start : start + rows * size].reshape(rows, size).copy())
            start += rows * size
            # The step is part of the key, so that every update draws other numbers.
            key = tensor_key(int(options["seed"]), STOCHASTIC_ROUNDING, f"{stream}{t}")
            self.codecs.append(
                RowCodec(self.name, columns, self.rounding, int(key), backend=backend)
            )
        decoded = [codec.decode(data).reshape(-1) for codec, data in zip(self.codecs, self.data)]
        self.numbers: Floats = np.concatenate(decoded)

    def encode(self, segments: Segments) -> None:
        """Write the rows that were updated, from `numbers`, rounded."""
        for t, (lo, hi) in zip(segments.shards.tolist(), pairwise(segments.first.tolist())):
            first = self.tables.first_element[t]
            end = self.tables.first_element[t + 1]
            table = self.numbers[first:end].reshape(len(self.data[t]), -1)
            rows = segments.unique[lo:hi]
            self.data[t][rows] = self.codecs[t].encode(table[rows], rows)

    def outputs(self) -> Arrays:
        """Codes, as fp32, of all elements; scale and bias of all rows."""
        weights = np.concatenate([data.reshape(-1) for data in self.data])
        parts = parts_of({**self.inputs, "weights": weights}, self.name)
        header = header_format(self.name)
        formats = {"codes": "fp32", "scale": header, "bias": header}
        return {
            part: encoded(parts[part].astype(np.float32), form, "reference")
            for part, form in formats.items()
        }
