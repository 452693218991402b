"""Which bits does neocpu itself give for an operator? Its kernels, or their twins, called on an operator's flat inputs.

Narrow rows are decoded exactly to fp32 first and encoded at the end, as `docs/arithmetic.md` says; what lies between are the
kernels that train. `backend` is the package that is asked: "kernels" (Numba) or "reference" (NumPy).
"""

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.oracle.records import Arrays, Value
from neocpu.oracle.truth_bags import SCALED, Bags, bags_of, fused_rows
from neocpu.oracle.truth_formats import decode
from neocpu.reference.codecs import LAYOUTS, ROUNDINGS
from neocpu.reference.fma import fma
from neocpu.storage.formats import FORMATS

Floats = NDArray[np.float32]
NONE = np.empty(0, np.float32)


def asked(name: str, backend: str) -> Any:
    """The module of that name among the kernels or among their twins."""
    return import_module(f"neocpu.{backend}.{name}")


def rows32(inputs: Arrays, options: dict[str, Value]) -> Floats:
    """All rows as flat fp32 numbers; row-scaled ones by one fused multiply-add."""
    name = str(options["weights_format"])
    if name not in SCALED:
        return decode(inputs["weights"].reshape(-1), name).astype(np.float32)
    with np.errstate(all="ignore"):
        found = [fma(*(x.astype(np.float32) for x in row)).reshape(-1) for row in fused_rows(inputs, name)]
    return np.concatenate([NONE, *found])


def coded(x: Floats, name: str, backend: str) -> NDArray[Any]:
    """Numbers of any shape as codes of a format, to nearest even: fp32, or records of one field named after the format."""
    if name == "fp32":
        return x
    flat = np.ascontiguousarray(x, np.float32).reshape(1, -1)
    out = np.empty(flat.shape, FORMATS[name].dtype)
    asked("codecs", backend).encode_rows(flat, LAYOUTS[name], ROUNDINGS["nearest"], out)
    return FORMATS[name].view(out).reshape(x.shape)


def lookups_of(inputs: Arrays, options: dict[str, Value]) -> tuple[Bags, NDArray[np.int64], NDArray[np.int64], Floats]:
    """The bags; offsets, rows (-1 reads nothing) and weights of all lookups."""
    bags = bags_of(inputs, options, frozenset())
    rows = np.full(inputs["indices"].size, -1, np.int64)
    rows[bags.place] = bags.at
    weights = np.ascontiguousarray(inputs.get("per_sample_weights", NONE), np.float32)
    return bags, inputs["offsets"].astype(np.int64), rows, weights


def lookup_bits(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical answer of `lookup`."""
    bags, offsets, rows, weights = lookups_of(inputs, options)
    table = rows32(inputs, options)
    if options["pooling"] == "none":
        out = _sequence(bags, table, rows, weights)
    else:
        parts = []
        for f in range(bags.dims.size):
            lo = int(bags.batch[:f].sum())
            part = np.zeros((int(bags.batch[f]), int(bags.dims[f])), np.float32)
            base = bags.tables.element[inputs["feature_table"][f : f + 1].astype(np.int64)]
            ends = offsets[lo : lo + len(part) + 1]
            with np.errstate(all="ignore"):
                asked("pooling", backend).pooled_sum(
                    table, base, bags.dims[f : f + 1], ends, rows, weights, part, np.zeros(1, np.int64)
                )
            if options["pooling"] == "mean":
                part /= np.maximum(np.diff(ends), 1).astype(np.float32)[:, None]
            parts.append(part)
        variable = "batch_sizes" in inputs
        out = np.concatenate([p.reshape(-1) for p in parts]) if variable else _beside(parts, bags)
    return {"out": coded(out, str(options["output_format"]), backend)}


def _beside(parts: list[Floats], bags: Bags) -> Floats:
    return np.concatenate(parts, axis=1) if parts else np.zeros((0, bags.width), np.float32)


def _sequence(bags: Bags, table: Floats, rows: NDArray[np.int64], weights: Floats) -> Floats:
    width = int(bags.dims[0]) if bags.dims.size else 0
    out = np.zeros((rows.size, width), np.float32)
    start = bags.tables.element[bags.table]
    out[bags.place] = table[(start + bags.at * width)[:, None] + np.arange(width)]
    with np.errstate(invalid="ignore", over="ignore"):
        return out * weights[:, None] if weights.size else out


def weight_gradient_bits(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical gradient of the per-sample weights: exact sums of fl(row*grad), rounded once, over L for MEAN."""
    bags, _, rows, _ = lookups_of(inputs, options)
    table, given = rows32(inputs, options), divided(inputs, options, bags)
    out = np.zeros(rows.size, np.float32)
    flat, column = given.reshape(-1), columns_of(inputs, bags)
    for j, bag, at, t in zip(bags.place.tolist(), bags.bag.tolist(), bags.at.tolist(), bags.table.tolist()):
        f, d = int(bags.feature[bag]), int(bags.tables.dims[t])
        start, first = int(bags.tables.element[t]) + at * d, int(column[bag])
        one = np.empty(1, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            terms = table[start : start + d] * flat[first : first + int(bags.dims[f])]
        import_module("neocpu.reference.pooling").round_bag(terms, np.arange(d), NONE, 0, d, 0, 1, 1, one, None)
        out[j] = one[0]
    return {"per_sample_weights_grad": out}


def columns_of(inputs: Arrays, bags: Bags) -> NDArray[np.int64]:
    """Where the gradient of each bag begins in the flat grad_output: i64[bags]."""
    if "batch_sizes" in inputs:
        start = np.cumsum(bags.batch * bags.dims) - bags.batch * bags.dims
        return start[bags.feature] + bags.sample * bags.dims[bags.feature]
    return bags.sample * bags.width + bags.column[bags.feature]


def divided(inputs: Arrays, options: dict[str, Value], bags: Bags) -> Floats:
    """grad_output f32, clipped, and for MEAN divided by the lengths of the bags."""
    given = np.array(inputs["grad_output"], np.float32)
    most = np.float32(options.get("max_gradient", 0.0))
    if most:
        given = np.clip(given, -most, most)
    if options["pooling"] != "mean":
        return given
    flat, first = given.reshape(-1), columns_of(inputs, bags)
    for f, d in enumerate(bags.dims.tolist()):
        mine = np.flatnonzero(bags.feature == f)
        at = first[mine, None] + np.arange(d)
        flat[at] /= np.maximum(bags.length[mine], 1).astype(np.float32)[:, None]
    return flat.reshape(given.shape)
