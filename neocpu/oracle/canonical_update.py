"""Which bits does neocpu's fused backward give? The kernels of training, or their twins, on an operator's flat inputs."""

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.oracle.canonical import NONE, Floats, asked, coded, columns_of, divided, lookups_of, rows32
from neocpu.oracle.records import Arrays, Value
from neocpu.oracle.truth_bags import Bags, Tables
from neocpu.reference.codecs import LAYOUTS, ROUNDINGS
from neocpu.reference.philox import STOCHASTIC_ROUNDING, tensor_key
from neocpu.reference.rules import RULES, Rule
from neocpu.storage.formats import FORMATS

Ints = NDArray[np.int64]


def optimizer_of(options: dict[str, Value]) -> SparseOptimizer:
    """The optimizer that the options of `backward` describe."""
    known = {spec.name for spec in fields(SparseOptimizer)} - {"name", "schedule", "initial_accumulator_value"}
    return SparseOptimizer(name=str(options["optimizer"]), **{k: v for k, v in options.items() if k in known})  # type: ignore[arg-type]


def segments_of(inputs: Arrays, options: dict[str, Value]) -> tuple[Bags, dict[str, Any], Floats]:
    """The bags; for `update.fused`: shards, first, unique, starts, place, weights; and the flat gradient."""
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


def states_of(rule: Rule, inputs: Arrays, tables: Tables) -> dict[str, Floats]:
    """Copies of the state arrays, zeros where the inputs have none."""
    sizes = {name: int(tables.element[-1]) for name in rule.element_state}
    sizes |= {name: int(tables.row[-1]) for name in rule.row_state}
    return {n: np.array(inputs.get(n, np.zeros(size)), np.float32).reshape(-1) for n, size in sizes.items()}


def backward_bits(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical answer of `backward`: weights and states after one step."""
    optimizer = optimizer_of(options)
    rule = RULES[optimizer.name]
    bags, found, gradient = segments_of(inputs, options)
    tables, states = bags.tables, states_of(rule, inputs, bags.tables)
    weights, hyper = rows32(inputs, options).copy(), optimizer.hyper(int(options["step"]))
    element = [*(states[n] for n in rule.element_state), NONE, NONE]
    per_row = np.stack([states[n] for n in rule.row_state], axis=1).reshape(-1) if rule.row_state else NONE
    fused = asked("update", backend).fused(rule.name, rule.row_scalars, len(rule.row_state), bool(optimizer.max_norm))
    with np.errstate(all="ignore"):
        fused(
            weights, element[0], element[1], per_row,
            tables.element[:-1], tables.dims, tables.dims, tables.row[:-1],
            *found.values(), gradient, hyper,
        )  # fmt: skip
    for k, name in enumerate(rule.row_state):
        states[name] = per_row.reshape(-1, len(rule.row_state))[:, k].copy()
    return {"weights": _stored(inputs, options, weights, bags, found, backend), **states}


def _stored(
    inputs: Arrays, options: dict[str, Value], weights: Floats, bags: Bags, found: dict[str, Any], backend: str
) -> NDArray[Any]:
    """The updated rows in their format, all others as they were."""
    name, rounding = str(options["weights_format"]), str(options["rounding"])
    if name == "fp32":
        return weights
    out = np.array(inputs["weights"]).reshape(-1)
    for i, t in enumerate(found["shards"].tolist()):
        rows, d = found["unique"][found["first"][i] : found["first"][i + 1]], int(bags.tables.dims[t])
        at = bags.tables.element[t] + rows[:, None] * d + np.arange(d)
        if rounding != "stochastic":
            codes = coded(weights[at], name, backend)
        else:
            codes = np.empty(at.shape, FORMATS[name].dtype)
            key = tensor_key(int(options["seed"]), STOCHASTIC_ROUNDING, f"table{t}")
            asked("codecs", backend).encode_rows_randomly(
                weights[at], LAYOUTS[name], ROUNDINGS["stochastic"], key, rows, 0, int(options["step"]), codes
            )
        out[at] = codes if not out.dtype.names and not codes.dtype.names else _alike(codes, out.dtype)
    return out


def _alike(codes: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(codes).view(dtype)


def unique_gradient_bits(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical answer of `unique_gradient`: touched rows and their exactly merged gradients."""
    bags, found, gradient = segments_of(inputs, options)
    starts, tables = found["starts"], bags.tables
    table = np.repeat(found["shards"], np.diff(found["first"]))
    pooling = asked("pooling", "reference")
    values = []
    with np.errstate(all="ignore"):
        for u, t in enumerate(table.tolist()):
            out = np.empty(int(tables.dims[t]), np.float32)
            pooling.round_bag(
                gradient, found["place"], found["weights"], starts[u], starts[u + 1], 0, 1, out.size, out, None
            )
            values.append(out)
    return {"rows": tables.row[table] + found["unique"], "values": np.concatenate([NONE, *values])}
