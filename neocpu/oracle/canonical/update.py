"""Which bits does neocpu's fused backward give? The kernels of training, or their twins, on an
operator's flat inputs.
"""

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.formats import FORMATS
from neocpu.oracle.canonical import NONE, Floats, asked, columns_of, divided, lookups_of
from neocpu.oracle.operator import Arrays, Value
from neocpu.oracle.truth.bags import CaseBags, TableGeometry
from neocpu.oracle.truth.formats import joined_halves
from neocpu.reference.codecs import LAYOUTS, ROUNDINGS
from neocpu.reference.philox import STOCHASTIC_ROUNDING, tensor_key
from neocpu.reference.rules import RULES, Rule

Ints = NDArray[np.int64]


def optimizer_of(options: dict[str, Value]) -> SparseOptimizer:
    """The optimizer that the options of `backward` describe."""
    known = {spec.name for spec in fields(SparseOptimizer)} - {
        "name",
        "schedule",
        "initial_accumulator_value",
    }
    keys: dict[str, Any] = {key: value for key, value in options.items() if key in known}
    return SparseOptimizer(name=str(options["optimizer"]), **keys)


def segments_of(
    inputs: Arrays, options: dict[str, Value]
) -> tuple[CaseBags, dict[str, Any], Floats]:
    """The bags; for `update.fused`: shards, first, unique, starts, place, weights; and the flat
    gradient.
    """
    bags, _, _, weights = lookups_of(inputs, options)
    gradient = divided(inputs, options, bags)
    row = bags.tables.row[bags.table] + bags.at
    order = np.argsort(row, kind="stable")
    _, at = np.unique(row[order], return_index=True)
    unique_table = bags.table[order][at]
    shards, first = np.unique(unique_table, return_index=True)
    if options["pooling"] == "none":
        place = bags.place * gradient.shape[-1]
    else:
        place = columns_of(inputs, bags)[bags.bag]
    found = {
        "shards": shards,
        "first": np.append(first, unique_table.size),
        "unique": bags.at[order][at],
        "starts": np.append(at, order.size),
        "place": place[order],
        "weights": np.ascontiguousarray(weights[bags.place][order]) if weights.size else NONE,
    }
    return bags, found, np.ascontiguousarray(gradient.reshape(-1))


def states_of(rule: Rule, inputs: Arrays, tables: TableGeometry) -> dict[str, Floats]:
    """Copies of the state arrays, zeros where the inputs have none."""
    sizes = {name: int(tables.element[-1]) for name in rule.element_state}
    sizes |= {name: int(tables.row[-1]) for name in rule.row_state}
    return {
        n: np.array(inputs.get(n, np.zeros(size)), np.float32).reshape(-1)
        for n, size in sizes.items()
    }


def backward_bits(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical answer of `backward`: weights and states after one step."""
    optimizer = optimizer_of(options)
    rule = RULES[optimizer.name]
    bags, found, gradient = segments_of(inputs, options)
    tables, states = bags.tables, states_of(rule, inputs, bags.tables)
    hyper = optimizer.hyper(int(options["step"]))
    limited = bool(optimizer.max_norm)
    element = [*(states[n] for n in rule.element_state), NONE, NONE]
    per_row = (
        np.stack([states[n] for n in rule.row_state], axis=1).reshape(-1)
        if rule.row_state
        else NONE
    )
    name = str(options["weights_format"])
    weights = np.array(inputs["weights"]).reshape(-1)
    where = (
        element[0],
        element[1],
        per_row,
        tables.element[:-1],
        tables.dims,
        tables.dims,
        tables.row[:-1],
    )
    halves = np.array(inputs.get("weights_low", ()), np.uint16).reshape(-1)
    module = asked("update" if name == "fp32" else "narrow", backend)
    fused = module.fused(rule.name, rule.row_scalars, len(rule.row_state), limited)
    with np.errstate(all="ignore"):
        if name == "fp32":
            fused(weights, *where, *found.values(), gradient, hyper)
        else:
            codes = weights.view(FORMATS[name].dtype)
            fused(
                codes,
                halves,
                *where,
                *found.values(),
                gradient,
                hyper,
                *_rounding(options, tables),
                found["unique"],
            )
    for k, state in enumerate(rule.row_state):
        states[state] = per_row.reshape(-1, len(rule.row_state))[:, k].copy()
    return {
        "weights": weights,
        **states,
        **({"joined": joined_halves(weights, halves)} if halves.size else {}),
    }


def _rounding(options: dict[str, Value], tables: TableGeometry) -> tuple[Any, ...]:
    """Last arguments of `narrow.fused`: layout, rounding, keys, first rows and columns, step."""
    seed = int(options["seed"])
    count = tables.rows.size
    key = np.array(
        [tensor_key(seed, STOCHASTIC_ROUNDING, f"table{t}") for t in range(count)], np.uint64
    )
    zero = np.zeros(count, np.int64)
    name = str(options["weights_format"])
    rounding = ROUNDINGS[str(options["rounding"])]
    return LAYOUTS[name], rounding, key, zero, zero, int(options["step"])


def unique_gradient_bits(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical answer of `unique_gradient`: touched rows and their exactly merged gradients."""
    bags, found, gradient = segments_of(inputs, options)
    tables = bags.tables
    table = np.repeat(found["shards"], np.diff(found["first"]))
    to = np.append(0, np.cumsum(tables.dims[table]))
    out = np.empty(int(to[-1]), np.float32)
    hyper = SparseOptimizer("exact_sgd").hyper(1)
    with np.errstate(all="ignore"):
        asked("update", backend).merged("exact_sgd")(
            NONE,
            NONE,
            NONE,
            tables.element[:-1],
            tables.dims,
            *found.values(),
            gradient,
            hyper,
            to,
            out,
        )
    return {"rows": tables.row[table] + found["unique"], "values": out}
