"""Which bits does FBGEMM's CPU library give? Its training module's lookup and fused backward, and
its inference lookup.

What the library does, on x86 with AVX2 or more (docs/semantics.md §6):

* lookups to fp32 from fp32, fp16 and quantised rows are generated code: sums from +0 in the order
  of the lookups, weights by fused multiply-adds, MEAN times the rounded reciprocal of the length,
  weighted or not;
* lookups to fp16 are compiled loops: the same sums; MEAN times 1/L in fp64, and a weighted MEAN is
  not divided;
* backward sorts lookups by row, stably, and adds gradients the same way, MEAN as weights fl(1/L); a
  weighted MEAN is not divided;
* row-wise AdaGrad of fp32 tables of one feature is generated code: eight partial sums of squares,
  then the tree ((0+1)+(2+3))+((4+5)+(6+7)); everything else is compiled loops, contracted to fused
  multiply-adds where GCC did.
"""

import numpy as np

from neocpu.oracle.mirrors.order import (
    F,
    Feature,
    Floats,
    Ints,
    NoMirror,
    by_table,
    encoded,
    features,
    flat,
    fused,
    gradient_of,
    running_sums,
    segments,
    stable_order,
    tables,
)
from neocpu.oracle.operator import Arrays, Value
from neocpu.oracle.truth.bags import SCALED, fused_rows

FLOATS = ("fp32", "fp16")
OPTIMIZERS = ("exact_sgd", "exact_adagrad", "exact_rowwise_adagrad")
DECAYS = {"none": 0, "l2": 1, "decoupled": 2}


def _bounded(inputs: Arrays, options: dict[str, Value]) -> Arrays:
    """Rows out of range as row 0 where the bounds check is not fatal: FBGEMM writes that into the
    caller's array.
    """
    if options.get("bounds_check", "fatal") == "fatal":
        return inputs
    of = inputs["feature_table"]
    batch = (inputs["offsets"].size - 1) // max(inputs["feature_table"].size, 1)
    lookups = np.diff(inputs["offsets"][:: max(batch, 1)]) if batch else np.zeros(of.size, np.int64)
    rows = np.repeat(inputs["rows"][of], lookups)
    outside = (inputs["indices"] < -1) | (inputs["indices"] >= rows)
    return {**inputs, "indices": np.where(outside, 0, inputs["indices"])}


def lookup(inputs: Arrays, options: dict[str, Value]) -> Arrays:
    """Bits of `lookup`: SplitTableBatchedEmbeddingBagsCodegen or, for nbit rows,
    IntNBitTableBatchedEmbeddingBagsCodegen.
    """
    name = str(options["weights_format"])
    out = str(options["output_format"])
    if name in SCALED:
        return {"out": _inference(inputs, options)}
    if name not in FLOATS or out not in FLOATS:
        raise NoMirror(f"FBGEMM's CPU lookup has no {name if name not in FLOATS else out}")
    found = []
    for feature in features(_bounded(inputs, options), tables(inputs, name)):
        x = feature.rows[feature.indices]
        if options["pooling"] == "none":
            found.append(x)
            continue
        x = running_sums(x, feature.offsets[:-1], feature.lengths, feature.weights)
        if options["pooling"] == "mean":
            x = _mean(x, feature, out)
        found.append(x)
    return {"out": encoded(np.concatenate(found, 0 if options["pooling"] == "none" else 1), out)}


def _mean(x: Floats, feature: Feature, out: str) -> Floats:
    """Sums of bags as means."""
    length = np.maximum(feature.lengths, 1)[:, None]
    if out == "fp32":
        return x * np.where(feature.lengths[:, None] > 0, F(1) / length.astype(np.float32), F(0))
    if feature.weights is not None:
        return x
    return (x.astype(np.float64) * (1.0 / length)).astype(np.float32)


def _inference(inputs: Arrays, options: dict[str, Value]) -> Floats:
    """Lookups of quantised rows: scale and bias times the weight first, then the bias is added and
    q*scale fused to it.
    """
    name = str(options["weights_format"])
    out = str(options["output_format"])
    alignment = int(options["row_alignment"])
    if not name.startswith("nbit"):
        raise NoMirror(
            f"no FBGEMM module looks up {name} rows on a CPU: its inference module has nbit8, "
            "nbit4 and nbit2"
        )
    if options["pooling"] == "none":
        raise NoMirror("rows that are only dequantised are compared by `dequantize`")
    parts = [[p.astype(np.float32) for p in row] for row in fused_rows(inputs, name, alignment)]
    found = []
    for feature in features(_bounded(inputs, options), [q for q, _, _ in parts], pruned=True):
        scale, bias = parts[feature.table][1:]
        count = feature.lengths
        total = np.zeros((count.size, feature.rows.shape[1]), np.float32)
        for k in range(int(count.max(initial=0))):
            live = np.flatnonzero(count > k)
            live = live[feature.indices[feature.offsets[live] + k] >= 0]
            at = feature.offsets[live] + k
            row = feature.indices[at]
            s = scale[row]
            b = bias[row]
            if feature.weights is not None:
                s = s * feature.weights[at, None]
                b = b * feature.weights[at, None]
            total[live] = fused(feature.rows[row], s, total[live] + b)
        found.append(_mean(total, feature, "fp32") if options["pooling"] == "mean" else total)
    return encoded(np.concatenate(found, 1), out, half_up=True)


def backward(inputs: Arrays, options: dict[str, Value]) -> Arrays:
    """Bits of `backward`: weights and states after one step."""
    form = str(options["weights_format"])
    optimizer = str(options["optimizer"])
    if optimizer not in OPTIMIZERS:
        raise NoMirror(f"FBGEMM has no {optimizer} on a CPU")
    if form not in FLOATS or "weights_low" in inputs:
        raise NoMirror(
            f"FBGEMM's CPU module does not train {form} rows"
            if form not in FLOATS
            else "no split rows"
        )
    if form == "fp16" and options["rounding"] == "fbgemm":
        raise NoMirror("FBGEMM's CPU module rounds to nearest, whatever is asked")
    matrices = tables(inputs, form)
    state = _state(inputs, optimizer)
    for t, mine in by_table(_bounded(inputs, options), matrices).items():
        if not sum(f.indices.size for f in mine):
            continue
        rows, gradient = merged(mine, inputs, options)
        update = _generated if _is_generated(options, mine) else _compiled
        if optimizer == "exact_sgd":
            update = _sgd
        elif optimizer == "exact_adagrad":
            update = _adagrad
        update(matrices[t], state[t], rows, gradient, options)
    found = {"weights": encoded(flat(matrices), form)}
    return found if optimizer == "exact_sgd" else {**found, "sum": flat(state)}


def _state(inputs: Arrays, optimizer: str) -> list[Floats]:
    """AdaGrad's sums of every table: per element, or per row."""
    sizes = inputs["rows"] * (inputs["dims"] if optimizer == "exact_adagrad" else 1)
    given = np.array(inputs.get("sum", np.zeros(int(sizes.sum()))), np.float32).reshape(-1)
    ends = np.cumsum(sizes).tolist()
    return [given[end - size : end].copy() for end, size in zip(ends, sizes.tolist())]


def weight_gradient(inputs: Arrays, options: dict[str, Value]) -> Arrays:
    """Bits of `weight_gradient`: products with the gradient, column after column, by fused
    multiply-adds; never divided.
    """
    form = str(options["weights_format"])
    if form not in FLOATS or options["pooling"] == "none":
        raise NoMirror(
            f"FBGEMM's CPU module has no gradient of weights for {form} rows, {options['pooling']}"
        )
    found = []
    for feature in features(_bounded(inputs, options), tables(inputs, form)):
        x = feature.rows[feature.indices]
        g = gradient_of(feature, inputs, options)
        total = np.zeros(len(x), np.float32)
        for d in range(x.shape[1]):
            total = fused(g[:, d], x[:, d], total)
        found.append(total)
    return {"per_sample_weights_grad": np.concatenate(found)}


def merged(mine: list[Feature], inputs: Arrays, options: dict[str, Value]) -> tuple[Ints, Floats]:
    """Touched rows of a table, ascending, and their gradients: lookups by row, then by feature, bag
    and place.
    """
    keys = np.concatenate([f.indices for f in mine])
    x = np.concatenate([gradient_of(f, inputs, options) for f in mine])
    weights = None
    if options["pooling"] != "none":
        if mine[0].weights is not None:
            weights = np.concatenate([f.weights for f in mine if f.weights is not None])
        elif options["pooling"] == "mean":
            weights = np.concatenate([(1.0 / f.lengths[f.bag]).astype(np.float32) for f in mine])
    order = stable_order(keys)
    rows, first, count = segments(keys, order)
    return rows, running_sums(x[order], first, count, None if weights is None else weights[order])


def _is_generated(options: dict[str, Value], mine: list[Feature]) -> bool:
    return options["weights_format"] == "fp32" and len(mine) == 1 and options["pooling"] != "none"


def _generated(w: Floats, state: Floats, rows: Ints, g: Floats, options: dict[str, Value]) -> None:
    """Row-wise AdaGrad by generated AVX2 code, which never sees a weight decay; one column is a
    compiled special case.
    """
    width = g.shape[1]
    if width == 1:
        square = g[:, 0] * g[:, 0]
    else:
        lanes = np.zeros((len(g), 8), np.float32)
        padded = np.zeros((len(g), -(-width // 8) * 8), np.float32)
        padded[:, :width] = g
        for k in range(0, padded.shape[1], 8):
            lanes = lanes + padded[:, k : k + 8] * padded[:, k : k + 8]
        pairs = lanes[:, 0::2] + lanes[:, 1::2]
        square = ((pairs[:, 2] + pairs[:, 3]) + (pairs[:, 0] + pairs[:, 1])) / F(width)
    state[rows] = state[rows] + square
    step = F(-float(options["learning_rate"])) / (np.sqrt(state[rows]) + F(float(options["eps"])))
    w[rows] = g * step[:, None] + w[rows]


def _compiled(w: Floats, state: Floats, rows: Ints, g: Floats, options: dict[str, Value]) -> None:
    """Row-wise AdaGrad by a compiled loop: squares of whole quadruples of columns are rounded,
    those of the rest fused.
    """
    rate = F(float(options["learning_rate"]))
    decay = float(options["weight_decay"])
    mode = DECAYS[str(options["weight_decay_mode"])] if decay else 0
    old = w[rows]
    width = g.shape[1]
    total = np.zeros(len(g), np.float32)
    x = fused(F(decay), old, g) if mode == 1 else g
    # what GCC made vectors of
    whole = 0 if mode == 1 and options["weights_format"] == "fp16" else width // 4 * 4
    for d in range(width):
        total = total + x[:, d] * x[:, d] if d < whole else fused(x[:, d], x[:, d], total)
    state[rows] = state[rows] + total / F(width)
    step = rate / (np.sqrt(state[rows]) + F(float(options["eps"])))
    shrink = (np.zeros_like(step), step, np.full_like(step, rate))[mode]
    keep = fused(-shrink, F(decay), F(1))
    new = fused(keep[:, None], old, -(g * step[:, None]))
    w[rows] = codes_rounded(new, options)


def _sgd(w: Floats, state: Floats, rows: Ints, g: Floats, options: dict[str, Value]) -> None:
    """fp32: one fused multiply-add; fp16: the step is rounded to fp16 before it is subtracted."""
    rate = F(float(options["learning_rate"]))
    if options["weights_format"] == "fp32":
        w[rows] = fused(-rate, g, w[rows])
    else:
        w[rows] = codes_rounded(w[rows] - codes_rounded(rate * g, options), options)


def _adagrad(w: Floats, state: Floats, rows: Ints, g: Floats, options: dict[str, Value]) -> None:
    """Squares are fused to the state; root, quotient and difference are fp64 numbers (C's sqrt),
    rounded once at the end.
    """
    matrix = state.reshape(w.shape)
    matrix[rows] = fused(g, g, matrix[rows])
    root = np.sqrt(matrix[rows].astype(np.float64)) + np.float64(F(float(options["eps"])))
    step = (F(float(options["learning_rate"])) * g).astype(np.float64) / root
    if options["weights_format"] == "fp32":
        w[rows] = (w[rows].astype(np.float64) - step).astype(np.float32)
    else:
        w[rows] = codes_rounded(w[rows] - codes_rounded(step.astype(np.float32), options), options)


def codes_rounded(x: Floats, options: dict[str, Value]) -> Floats:
    """x as numbers of the rows' format."""
    return x if options["weights_format"] == "fp32" else x.astype(np.float16).astype(np.float32)
