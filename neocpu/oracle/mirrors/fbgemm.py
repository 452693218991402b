"""Which bits does FBGEMM's CPU library give? Lookup, fused backward, and inference lookup.

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

from neocpu.core.types import Floats, Ints
from neocpu.oracle.mirrors.order import (
    F,
    Feature,
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
from neocpu.oracle.operator import Arrays, Options
from neocpu.oracle.truth.bags import SCALED, fused_rows

FLOATS = ("fp32", "fp16")
OPTIMIZERS = ("exact_sgd", "exact_adagrad", "exact_rowwise_adagrad")
DECAYS = {"none": 0, "l2": 1, "decoupled": 2}


def _bounded(inputs: Arrays, options: Options) -> Arrays:
    """The inputs with row 0 for rows out of range, where the bounds check is not fatal.

    FBGEMM writes that into the caller's array.
    """
    if options.get("bounds_check", "fatal") == "fatal" or "batch_sizes" in inputs:
        return inputs
    feature_table = inputs["feature_table"]
    batch = (inputs["offsets"].size - 1) // max(feature_table.size, 1)
    lookups = np.zeros(feature_table.size, np.int64)
    if batch:
        lookups = np.diff(inputs["offsets"][::batch])
    rows = np.repeat(inputs["rows"][feature_table], lookups)
    outside = (inputs["indices"] < -1) | (inputs["indices"] >= rows)
    return {**inputs, "indices": np.where(outside, 0, inputs["indices"])}


def lookup(inputs: Arrays, options: Options) -> Arrays:
    """Bits of `lookup`: SplitTableBatchedEmbeddingBagsCodegen.

    For nbit rows: IntNBitTableBatchedEmbeddingBagsCodegen.
    """
    name = str(options["weights_format"])
    output_format = str(options["output_format"])
    if name in SCALED:
        return {"out": _inference(inputs, options)}
    for form in (name, output_format):
        if form not in FLOATS:
            raise NoMirror(f"FBGEMM's CPU lookup has no {form}")
    outputs = []
    for feature in features(_bounded(inputs, options), tables(inputs, name)):
        x = feature.rows[feature.indices]
        if options["pooling"] != "none":
            x = running_sums(x, feature.offsets[:-1], feature.lengths, feature.weights)
        if options["pooling"] == "mean":
            x = _mean(x, feature, output_format)
        outputs.append(x)
    axis = 0 if options["pooling"] == "none" else 1
    return {"out": encoded(np.concatenate(outputs, axis), output_format)}


def _mean(sums: Floats, feature: Feature, output_format: str) -> Floats:
    """Sums of bags as means."""
    length = np.maximum(feature.lengths, 1)[:, None]
    if output_format == "fp32":
        # With fp32 output FBGEMM multiplies by a reciprocal in fp32.
        reciprocal = F(1) / length.astype(np.float32)
        return sums * np.where(feature.lengths[:, None] > 0, reciprocal, F(0))
    if feature.weights is not None:
        return sums
    return (sums.astype(np.float64) * (1.0 / length)).astype(np.float32)


def _inference(inputs: Arrays, options: Options) -> Floats:
    """Lookups of quantised rows.

    Scale and bias are multiplied by the weight; then the bias is added and q*scale fused to it.
    """
    name = str(options["weights_format"])
    alignment = int(options["row_alignment"])
    if not name.startswith("nbit"):
        raise NoMirror(
            f"no FBGEMM module looks up {name} rows on a CPU: its inference module has nbit8, "
            "nbit4 and nbit2"
        )
    if options["pooling"] == "none":
        raise NoMirror("rows that are only dequantised are compared by `dequantize`")
    codes = []
    headers = []
    for q, scales, biases in fused_rows(inputs, name, alignment):
        codes.append(q.astype(np.float32))
        headers.append((scales.astype(np.float32), biases.astype(np.float32)))
    outputs = []
    for feature in features(_bounded(inputs, options), codes, pruned=True):
        scales32, biases32 = headers[feature.table]
        count = feature.lengths
        total = np.zeros((count.size, feature.rows.shape[1]), np.float32)
        for k in range(int(count.max(initial=0))):
            longer = np.flatnonzero(count > k)
            # Pruned rows add nothing, though MEAN counts them.
            reading = longer[feature.indices[feature.offsets[longer] + k] >= 0]
            lookups = feature.offsets[reading] + k
            row = feature.indices[lookups]
            scale = scales32[row]
            bias = biases32[row]
            if feature.weights is not None:
                scale = scale * feature.weights[lookups, None]
                bias = bias * feature.weights[lookups, None]
            total[reading] = fused(feature.rows[row], scale, total[reading] + bias)
        outputs.append(_mean(total, feature, "fp32") if options["pooling"] == "mean" else total)
    return encoded(np.concatenate(outputs, 1), str(options["output_format"]), half_up=True)


def backward(inputs: Arrays, options: Options) -> Arrays:
    """Bits of `backward`: weights and states after one step."""
    form = str(options["weights_format"])
    optimizer = str(options["optimizer"])
    if optimizer not in OPTIMIZERS:
        raise NoMirror(f"FBGEMM has no {optimizer} on a CPU")
    if form not in FLOATS:
        raise NoMirror(f"FBGEMM's CPU module does not train {form} rows")
    if "weights_low" in inputs:
        raise NoMirror("no split rows")
    if form == "fp16" and options["rounding"] == "fbgemm":
        raise NoMirror("FBGEMM's CPU module rounds to nearest, whatever is asked")
    matrices = tables(inputs, form)
    states = _states(inputs, optimizer)
    for t, table_features in by_table(_bounded(inputs, options), matrices).items():
        if not sum(feature.indices.size for feature in table_features):
            continue
        rows, gradient = merged(table_features, inputs, options)
        if optimizer == "exact_sgd":
            update = _sgd
        elif optimizer == "exact_adagrad":
            update = _adagrad
        else:
            update = _generated if _is_generated(options, table_features) else _compiled
        update(matrices[t], states[t], rows, gradient, options)
    outputs = {"weights": encoded(flat(matrices), form)}
    return outputs if optimizer == "exact_sgd" else {**outputs, "sum": flat(states)}


def _states(inputs: Arrays, optimizer: str) -> list[Floats]:
    """AdaGrad's sums of every table: per element, or per row."""
    sizes = inputs["rows"] * (inputs["dims"] if optimizer == "exact_adagrad" else 1)
    state = np.array(inputs.get("sum", np.zeros(int(sizes.sum()))), np.float32).reshape(-1)
    ends = np.cumsum(sizes).tolist()
    return [state[end - size : end].copy() for end, size in zip(ends, sizes.tolist())]


def weight_gradient(inputs: Arrays, options: Options) -> Arrays:
    """Bits of `weight_gradient`: dot products, column after column, fused; never divided by L."""
    form = str(options["weights_format"])
    if form not in FLOATS or options["pooling"] == "none":
        raise NoMirror(
            f"FBGEMM's CPU module has no gradient of weights for {form} rows, {options['pooling']}"
        )
    outputs = []
    for feature in features(_bounded(inputs, options), tables(inputs, form)):
        x = feature.rows[feature.indices]
        g = gradient_of(feature, inputs, options)
        total = np.zeros(len(x), np.float32)
        for d in range(x.shape[1]):
            total = fused(g[:, d], x[:, d], total)
        outputs.append(total)
    return {"per_sample_weights_grad": np.concatenate(outputs)}


def merged(table_features: list[Feature], inputs: Arrays, options: Options) -> tuple[Ints, Floats]:
    """Touched rows of a table, ascending, and their gradients.

    The lookups of a row are added in the order of features, bags and places.
    """
    keys = np.concatenate([feature.indices for feature in table_features])
    x = np.concatenate([gradient_of(feature, inputs, options) for feature in table_features])
    factors = _factors(table_features, options)
    order = stable_order(keys)
    rows, first, count = segments(keys, order)
    return rows, running_sums(x[order], first, count, None if factors is None else factors[order])


def _factors(table_features: list[Feature], options: Options) -> Floats | None:
    """What the gradient of each lookup is multiplied by; a weighted MEAN is not divided."""
    if options["pooling"] == "none":
        return None
    weights = [feature.weights for feature in table_features if feature.weights is not None]
    if weights:
        return np.concatenate(weights)
    if options["pooling"] != "mean":
        return None
    # In double, rounded once, as FBGEMM's scale factors are.
    reciprocals = [1.0 / feature.lengths[feature.bag] for feature in table_features]
    return np.concatenate(reciprocals).astype(np.float32)


def _is_generated(options: Options, table_features: list[Feature]) -> bool:
    """Does row-wise AdaGrad run as generated code? Else as a compiled loop."""
    single = len(table_features) == 1
    return single and options["weights_format"] == "fp32" and options["pooling"] != "none"


def _generated(w: Floats, state: Floats, rows: Ints, g: Floats, options: Options) -> None:
    """Row-wise AdaGrad by generated AVX2 code, which never sees a weight decay.

    Rows of one column are a compiled special case.
    """
    width = g.shape[1]
    if width == 1:
        square = g[:, 0] * g[:, 0]
    else:
        lanes = np.zeros((len(g), 8), np.float32)
        # A masked load: missing columns are 0, and add nothing.
        padded = np.zeros((len(g), -(-width // 8) * 8), np.float32)
        padded[:, :width] = g
        for k in range(0, padded.shape[1], 8):
            lanes = lanes + padded[:, k : k + 8] * padded[:, k : k + 8]
        pairs = lanes[:, 0::2] + lanes[:, 1::2]
        # The order of the horizontal additions in the generated code.
        square = ((pairs[:, 2] + pairs[:, 3]) + (pairs[:, 0] + pairs[:, 1])) / F(width)
    state[rows] = state[rows] + square
    step = F(-float(options["learning_rate"])) / (np.sqrt(state[rows]) + F(float(options["eps"])))
    w[rows] = g * step[:, None] + w[rows]


def _compiled(w: Floats, state: Floats, rows: Ints, g: Floats, options: Options) -> None:
    """Row-wise AdaGrad by a compiled loop, made vectors of four columns by GCC.

    Squares of whole vectors are rounded, those of the remaining columns fused.
    """
    rate = F(float(options["learning_rate"]))
    decay = float(options["weight_decay"])
    mode = DECAYS[str(options["weight_decay_mode"])] if decay else 0
    old = w[rows]
    width = g.shape[1]
    total = np.zeros(len(g), np.float32)
    x = fused(F(decay), old, g) if mode == 1 else g
    whole = width // 4 * 4
    if mode == 1 and options["weights_format"] == "fp16":
        whole = 0  # GCC made no vectors of this loop
    for d in range(width):
        # GCC contracts the scalar remainder to a fused operation, the vectors it does not.
        total = total + x[:, d] * x[:, d] if d < whole else fused(x[:, d], x[:, d], total)
    state[rows] = state[rows] + total / F(width)
    step = rate / (np.sqrt(state[rows]) + F(float(options["eps"])))
    shrink = (np.zeros_like(step), step, np.full_like(step, rate))[mode]
    keep = fused(-shrink, F(decay), F(1))
    new = fused(keep[:, None], old, -(g * step[:, None]))
    w[rows] = codes_rounded(new, options)


def _sgd(w: Floats, state: Floats, rows: Ints, g: Floats, options: Options) -> None:
    """fp32: one fused multiply-add; fp16: the step is rounded to fp16 before it is subtracted."""
    rate = F(float(options["learning_rate"]))
    if options["weights_format"] == "fp32":
        w[rows] = fused(-rate, g, w[rows])
    else:
        w[rows] = codes_rounded(w[rows] - codes_rounded(rate * g, options), options)


def _adagrad(w: Floats, state: Floats, rows: Ints, g: Floats, options: Options) -> None:
    """AdaGrad: squares are fused to the state, the rest is fp64 (C's sqrt), rounded at the end."""
    matrix = state.reshape(w.shape)
    matrix[rows] = fused(g, g, matrix[rows])
    root = np.sqrt(matrix[rows].astype(np.float64)) + np.float64(F(float(options["eps"])))
    step = (F(float(options["learning_rate"])) * g).astype(np.float64) / root
    if options["weights_format"] == "fp32":
        w[rows] = (w[rows].astype(np.float64) - step).astype(np.float32)
    else:
        w[rows] = codes_rounded(w[rows] - codes_rounded(step.astype(np.float32), options), options)


def codes_rounded(x: Floats, options: Options) -> Floats:
    """x as numbers of the rows' format."""
    return x if options["weights_format"] == "fp32" else x.astype(np.float16).astype(np.float32)
