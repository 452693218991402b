"""Which bits does neocpu's fused backward give? The kernels of training, or their NumPy twins."""

from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.formats import FORMATS
from neocpu.oracle.canonical import (
    NONE,
    Floats,
    Ints,
    backend_module,
    divided,
    gradient_start,
    lookups_of,
)
from neocpu.oracle.operator import Arrays, Value
from neocpu.oracle.truth.bags import JaggedBatch, TableGeometry
from neocpu.oracle.truth.formats import joined_halves
from neocpu.reference.codecs import LAYOUTS, ROUNDINGS
from neocpu.reference.philox import STOCHASTIC_ROUNDING, tensor_key
from neocpu.reference.rules import RULES, Rule


def optimizer_of(options: dict[str, Value]) -> SparseOptimizer:
    """The optimizer that the options of `backward` describe."""
    known = {spec.name for spec in fields(SparseOptimizer)} - {
        "name",
        "schedule",
        "initial_accumulator_value",
    }
    keys: dict[str, Any] = {key: value for key, value in options.items() if key in known}
    return SparseOptimizer(name=str(options["optimizer"]), **keys)


class Segments(NamedTuple):
    """The lookups of a batch sorted by table and row, as `update.fused` takes them, in its order.

    A segment is the run of lookups of one unique row; W weights are all n or none.
    """

    shards: Ints  # i64[S]: tables that have a lookup
    first: Ints  # i64[S+1]: first segment of each
    unique: Ints  # i64[U]: row of each segment
    starts: Ints  # i64[U+1]: first lookup of each segment
    place: Ints  # i64[n]: where the gradient of each lookup begins
    weights: Floats  # f32[W]


def segments_of(inputs: Arrays, options: dict[str, Value]) -> tuple[JaggedBatch, Segments, Floats]:
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


def states_of(rule: Rule, inputs: Arrays, tables: TableGeometry) -> dict[str, Floats]:
    """Copies of the state arrays, zeros where the inputs have none."""
    sizes = {name: int(tables.first_element[-1]) for name in rule.element_state}
    sizes |= {name: int(tables.first_row[-1]) for name in rule.row_state}
    return {
        name: np.array(inputs.get(name, np.zeros(size)), np.float32).reshape(-1)
        for name, size in sizes.items()
    }


def backward_bits(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical answer of `backward`: weights and states after one step."""
    optimizer = optimizer_of(options)
    rule = RULES[optimizer.name]
    bags, segments, gradient = segments_of(inputs, options)
    tables = bags.tables
    states = states_of(rule, inputs, tables)
    hyper = optimizer.hyper(int(options["step"]))
    element_states = [*(states[name] for name in rule.element_state), NONE, NONE]
    row_states = NONE
    if rule.row_state:
        row_states = np.stack([states[name] for name in rule.row_state], axis=1).reshape(-1)
    name = str(options["weights_format"])
    weights = np.array(inputs["weights"]).reshape(-1)
    halves = np.array(inputs.get("weights_low", ()), np.uint16).reshape(-1)
    where = (
        element_states[0],
        element_states[1],
        row_states,
        tables.first_element[:-1],
        tables.dims,
        tables.dims,
        tables.first_row[:-1],
    )
    module = backend_module("update" if name == "fp32" else "narrow", backend)
    limited = bool(optimizer.max_norm)
    fused = module.fused(rule.name, rule.row_scalars, len(rule.row_state), limited)
    with np.errstate(all="ignore"):
        if name == "fp32":
            fused(weights, *where, *segments, gradient, hyper)
        else:
            codes = weights.view(FORMATS[name].dtype)
            rounding = _rounding(options, tables)
            fused(codes, halves, *where, *segments, gradient, hyper, *rounding, segments.unique)
    for k, state in enumerate(rule.row_state):
        states[state] = row_states.reshape(-1, len(rule.row_state))[:, k].copy()
    outputs: Arrays = {"weights": weights, **states}
    if halves.size:
        outputs["joined"] = joined_halves(weights, halves)
    return outputs


def _rounding(options: dict[str, Value], tables: TableGeometry) -> tuple[Any, ...]:
    """Last arguments of `narrow.fused`: layout, rounding, keys, first rows and columns, step."""
    seed = int(options["seed"])
    count = tables.rows.size
    keys = [tensor_key(seed, STOCHASTIC_ROUNDING, f"table{t}") for t in range(count)]
    zero = np.zeros(count, np.int64)
    return (
        LAYOUTS[str(options["weights_format"])],
        ROUNDINGS[str(options["rounding"])],
        np.array(keys, np.uint64),
        zero,
        zero,
        int(options["step"]),
    )


def unique_gradient_bits(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical answer of `unique_gradient`: touched rows and their exactly merged gradients."""
    bags, segments, gradient = segments_of(inputs, options)
    tables = bags.tables
    table = np.repeat(segments.shards, np.diff(segments.first))
    out_start = np.append(0, np.cumsum(tables.dims[table]))
    out = np.empty(int(out_start[-1]), np.float32)
    hyper = SparseOptimizer("exact_sgd").hyper(1)
    with np.errstate(all="ignore"):
        backend_module("update", backend).merged("exact_sgd")(
            NONE,
            NONE,
            NONE,
            tables.first_element[:-1],
            tables.dims,
            *segments,
            gradient,
            hyper,
            out_start,
            out,
        )
    return {"rows": tables.first_row[table] + segments.unique, "values": out}
