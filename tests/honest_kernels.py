"""What does a right fp32 kernel answer? Lookups, gradients and updates in some arithmetic.

Written from docs/semantics.md and the formulas of docs/arithmetic.md §5, for arrays that fit the
oracle's operators; every choice that the semantics leave open is drawn.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from neocpu.oracle.truth.bags import SCALED, fused_rows
from neocpu.oracle.truth.formats import FORMATS as NARROW
from neocpu.oracle.truth.formats import decode, nearest
from tests.honest_arithmetic import Arithmetic, Array, F

Arrays = dict[str, Array]
Options = dict[str, Any]


def decoded_tables(a: Arithmetic, inputs: Arrays, options: Options) -> list[Array]:
    """Rows of every table, f32[rows, D]."""
    name = str(options.get("weights_format", "fp32"))
    if name in SCALED:
        rows = fused_rows(inputs, name, int(options.get("row_alignment", 1)))
        as_fp32 = (tuple(x.astype(F) for x in table) for table in rows)
        return [a.multiply_add(q, scale, bias).astype(F) for q, scale, bias in as_fp32]
    flat = decode(inputs["weights"].reshape(-1), name).astype(F)
    sizes = (inputs["rows"] * inputs["dims"]).tolist()
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    return [p.reshape(int(r), int(d)) for p, r, d in zip(parts, inputs["rows"], inputs["dims"])]


def bags(inputs: Arrays) -> Iterator[tuple[int, int, int, int, Array]]:
    """Feature, table, sample, first column, and the lookups of every bag."""
    features = inputs["feature_table"].tolist()
    samples = (inputs["offsets"].size - 1) // max(len(features), 1)
    column = 0
    for f, table in enumerate(features):
        for b in range(samples):
            start, end = inputs["offsets"][f * samples + b : f * samples + b + 2].tolist()
            yield f, table, b, column, np.arange(start, end)
        column += int(inputs["dims"][table])


def scaled(a: Arithmetic, x: Array, weight: Array | None, length: int) -> Array:
    """x times its weights over the length of the bag, in any order; each term by itself."""
    if weight is None:
        return x if length == 1 else a.divide(x, F(length))
    if length == 1:
        return x * weight
    return a.product(x, weight, over=(F(length),))


def lookup(a: Arithmetic, inputs: Arrays, options: Options) -> Arrays:
    """Pooled rows, or rows one by one."""
    tables = decoded_tables(a, inputs, options)
    weights = inputs.get("per_sample_weights")
    if options["pooling"] == "none":
        out = np.zeros((inputs["indices"].size, int(inputs["dims"][0])), F)
        for _, table, _, _, lookups in bags(inputs):
            lookups = lookups[inputs["indices"][lookups] >= 0]
            rows = tables[table][inputs["indices"][lookups]]
            out[lookups] = rows if weights is None else rows * weights[lookups, None]
        return {"out": narrow(out, str(options["output_format"]))}
    if str(options["weights_format"]) in SCALED and a.rng.random() < 0.5:
        return {"out": narrow(factored(a, inputs, options), str(options["output_format"]))}
    dims = inputs["dims"][inputs["feature_table"]]
    samples = (inputs["offsets"].size - 1) // dims.size
    out = np.zeros((samples, int(dims.sum())), F)
    when = a.choose("each", "sum", "factor")
    for _, table, b, column, lookups in bags(inputs):
        length = max(lookups.size, 1) if options["pooling"] == "mean" else 1
        lookups = lookups[inputs["indices"][lookups] >= 0]
        rows = tables[table][inputs["indices"][lookups]]
        weight = None if weights is None else weights[lookups, None]
        if when == "each":
            total = a.sums(scaled(a, rows, weight, length))
        elif when == "factor" and length > 1:
            one = np.ones((len(rows), 1), F)
            factor = a.divide(one if weight is None else weight, F(length))
            total = a.sums(rows, factor)
        else:
            total = a.sums(rows, weight)
            total = total if length == 1 else a.divide(total, F(length))
        out[b, column : column + rows.shape[1]] = total
    return {"out": narrow(out, str(options["output_format"]))}


def dequantize(a: Arithmetic, inputs: Arrays, options: Options) -> Arrays:
    """Numbers of row-scaled rows."""
    codes = inputs["codes"]
    table = {
        "weights": codes.reshape(-1),
        "rows": np.array([len(codes)]),
        "dims": np.array([int(options["columns"])]),
    }
    return {"out": decoded_tables(a, table, {"weights_format": options["format"]})[0]}


def factored(a: Arithmetic, inputs: Arrays, options: Options) -> Array:
    """Pooled row-scaled rows: scale and bias times the weight, then q times that scale is added."""
    name = str(options["weights_format"])
    tables = list(fused_rows(inputs, name, int(options["row_alignment"])))
    weights = inputs.get("per_sample_weights")
    dims = inputs["dims"][inputs["feature_table"]]
    samples = (inputs["offsets"].size - 1) // dims.size
    out = np.zeros((samples, int(dims.sum())), F)
    divide_first = bool(a.rng.random() < 0.5)
    for _, table, b, column, lookups in bags(inputs):
        length = max(lookups.size, 1) if options["pooling"] == "mean" else 1
        lookups = lookups[inputs["indices"][lookups] >= 0]
        q, scale, bias = (x.astype(F)[inputs["indices"][lookups]] for x in tables[table])
        weight = np.ones((lookups.size, 1), F) if weights is None else weights[lookups, None]
        if divide_first and length > 1:
            weight = a.divide(weight, F(length))
        total = np.zeros(q.shape[1], F)
        for codes, s, c in zip(q, scale * weight, bias * weight):
            total = a.multiply_add(codes, np.broadcast_to(s, codes.shape), total + c)
        if not divide_first and length > 1:
            total = a.divide(total, F(length))
        out[b, column : column + q.shape[1]] = total
    return out


def narrow(x: Array, name: str) -> Array:
    """fp32 numbers rounded to a format (values, not codes)."""
    if name == "fp32":
        return x
    return nearest(x.astype(np.float64), NARROW[name]).astype(F)


def clipped(inputs: Arrays, options: Options) -> Array:
    """grad_output, clipped."""
    gradient = inputs["grad_output"]
    most = F(options.get("max_gradient", 0.0))
    return np.clip(gradient, -most, most) if most else gradient


def bag_gradient(
    gradient: Array, options: Options, b: int, columns: slice, lookups: Array
) -> Array:
    """Gradient rows f32[lookups, D] of the lookups of a bag."""
    if options["pooling"] == "none":
        return gradient[lookups]
    row = gradient[b, columns]
    return np.broadcast_to(row, (lookups.size, row.size))


def weight_gradient(a: Arithmetic, inputs: Arrays, options: Options) -> Arrays:
    """Gradients of the per-sample weights."""
    tables = decoded_tables(a, inputs, options)
    out = np.zeros(inputs["indices"].size, F)
    when = a.choose("gradient", "row", "product")
    for _, table, b, column, lookups in bags(inputs):
        length = max(lookups.size, 1) if options["pooling"] == "mean" else 1
        lookups = lookups[inputs["indices"][lookups] >= 0]
        rows = tables[table][inputs["indices"][lookups]]
        columns = slice(column, column + rows.shape[1])
        g = bag_gradient(inputs["grad_output"], options, b, columns, lookups)
        if length > 1 and when == "gradient":
            g = a.divide(g, F(length))
        if length > 1 and when == "row":
            rows = a.divide(rows, F(length))
        products = a.sums(np.ascontiguousarray(rows.T), np.ascontiguousarray(g.T))
        if length > 1 and when == "product":
            products = a.divide(products, F(length))
        out[lookups] = products
    return {"per_sample_weights_grad": out}


def merged(a: Arithmetic, inputs: Arrays, options: Options) -> dict[int, tuple[Array, Array]]:
    """By table: touched rows, ascending, and their merged gradients f32[U, D]."""
    gradient = clipped(inputs, options)
    weights = inputs.get("per_sample_weights")
    single: dict[int, tuple[list[Array], list[Array], list[Array]]] = {}
    as_factor = bool(a.rng.random() < 0.5)
    for _, table, b, column, lookups in bags(inputs):
        length = max(lookups.size, 1) if options["pooling"] == "mean" else 1
        lookups = lookups[inputs["indices"][lookups] >= 0]
        if not lookups.size:
            continue
        columns = slice(column, column + int(inputs["dims"][table]))
        g = bag_gradient(gradient, options, b, columns, lookups)
        weight = None if weights is None else weights[lookups, None]
        factor = np.ones((lookups.size, 1), F)
        if as_factor and (weight is not None or length > 1):
            factor = scaled(a, factor if weight is None else weight, None, length)
        else:
            g = scaled(a, g, weight, length)
        rows, terms, factors = single.setdefault(table, ([], [], []))
        rows.append(inputs["indices"][lookups])
        terms.append(g)
        factors.append(factor)
    out = {}
    for table in sorted(single):
        row, term, factor = (np.concatenate(parts) for parts in single[table])
        unique = np.unique(row)
        sums = []
        for r in unique:
            here = row == r
            if (factor[here] == 1).all():
                sums.append(a.sums(term[here]))
            else:
                sums.append(a.sums(term[here], factor[here]))
        out[table] = (unique, np.stack(sums))
    return out


def unique_gradient(a: Arithmetic, inputs: Arrays, options: Options) -> Arrays:
    """Touched rows and their merged gradients."""
    first_row = np.append(0, np.cumsum(inputs["rows"]))
    gradients = merged(a, inputs, options)
    rows = [first_row[table] + unique for table, (unique, _) in gradients.items()]
    values = [total.reshape(-1) for _, total in gradients.values()]
    return {
        "rows": np.concatenate([np.empty(0, np.int64), *rows]),
        "values": np.concatenate([np.empty(0, F), *values]),
    }


def segment_sum(a: Arithmetic, inputs: Arrays, options: Options) -> Arrays:
    """Sums of segments of rows."""
    ends = inputs["offsets"].tolist()
    sums = [a.sums(inputs["values"][lo:hi]) for lo, hi in pairwise(ends)]
    return {"sums": np.stack(sums)}
