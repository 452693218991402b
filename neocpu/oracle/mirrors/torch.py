"""Which bits does torch give on a CPU? F.embedding_bag, its gradients, torch.optim's updates.

What torch does (docs/semantics.md §6):

* sums are FBGEMM's generated code, as in `mirrors/fbgemm.py`; bf16 results are rounded half up;
  MEAN divides the sum, which is already in the output's format;
* the dense gradient visits a row's lookups in the order in which std::sort leaves them, one fused
  multiply-add each (MEAN and weights as a factor rounded to fp32); features of one table add up,
  the last one first;
* sparse gradients multiply by the rounded reciprocal of the length instead, and an SGD step takes
  duplicates one by one;
* every optimizer is a chain of operations on whole tensors; `add`, `addcmul` and `lerp` are fused
  multiply-adds; the square root is MKL's (`mirrors/root.py`).
"""

import math
from functools import reduce

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.oracle.mirrors.order import (
    F,
    Feature,
    NoMirror,
    by_table,
    decoded,
    encoded,
    features,
    flat,
    fused,
    gradient_of,
    introsort_order,
    running_sums,
    segments,
    stable_order,
    tables,
)
from neocpu.oracle.mirrors.root import mkl_root
from neocpu.oracle.operator import Arrays, Options

FORMATS = ("fp32", "fp16", "bf16")
STATES = {
    "exact_sgd": (),
    "momentum_sgd": ("momentum_buffer",),
    "exact_adagrad": ("sum",),
    "exact_rowwise_adagrad": ("sum",),
    "adam": ("exp_avg", "exp_avg_sq"),
}
State = dict[str, Floats]
ADAGRAD_EPS = F(1e-10)  # torch's and TorchRec's default, as the presets say
WIDEST = 512  # columns from which torch.sum adds in levels


def lookup(inputs: Arrays, options: Options) -> Arrays:
    """Bits of `lookup`: F.embedding_bag, or F.embedding where nothing is pooled."""
    form = str(options["weights_format"])
    if form not in FORMATS or options["output_format"] != form:
        raise NoMirror(f"torch returns the format of its tables, which can be {', '.join(FORMATS)}")
    outputs = []
    for feature in features(inputs, tables(inputs, form)):
        x = feature.rows[feature.indices]
        if options["pooling"] == "none":
            outputs.append(encoded(x, form))
            continue
        if feature.weights is not None and options["pooling"] == "mean":
            raise NoMirror("torch refuses weights with a MEAN")
        # torch takes weights in the table's type only.
        weights = None if feature.weights is None else _rounded(feature.weights, form)
        sums = running_sums(x, feature.offsets[:-1], feature.lengths, weights)
        total = encoded(sums, form, half_up=True)
        if options["pooling"] == "mean":
            # The sum is divided in the output's type, so the length is rounded to it.
            length = _rounded(np.maximum(feature.lengths, 1).astype(np.float32), form)
            total = encoded(decoded(total, form) / length[:, None], form)
        outputs.append(total)
    return {"out": np.concatenate(outputs, 0 if options["pooling"] == "none" else 1)}


def _rounded(x: Floats, form: str) -> Floats:
    """x as numbers of a format."""
    return decoded(encoded(x, form), form)


def backward(inputs: Arrays, options: Options) -> Arrays:
    """Bits of `backward`: the dense gradient of embedding_bag, then a step of torch.optim."""
    return _stepped(inputs, options, sparse=False)


def sparse_backward(inputs: Arrays, options: Options) -> Arrays:
    """Bits of `backward` with `sparse=True`: SGD, Adagrad and SparseAdam."""
    return _stepped(inputs, options, sparse=True)


def _stepped(inputs: Arrays, options: Options, sparse: bool) -> Arrays:
    name = str(options["optimizer"])
    _refuse(inputs, options, sparse)
    matrices = tables(inputs, "fp32")
    states = _states(inputs, name)
    for t, table_features in by_table(inputs, matrices).items():
        state = {key: parts[t] for key, parts in states.items()}
        if sparse:
            _sparse_step(matrices[t], state, table_features, inputs, options)
        else:
            gradient = dense_gradient(table_features, inputs, options)
            STEPS[name](matrices[t], state, gradient, options)
    return {"weights": flat(matrices), **{key: flat(parts) for key, parts in states.items()}}


def _refuse(inputs: Arrays, options: Options, sparse: bool) -> None:
    """Raises NoMirror for what torch does not have."""
    name = str(options["optimizer"])
    mode = str(options["weight_decay_mode"])
    if name not in STATES:
        raise NoMirror(f"torch has no {name}")
    if sparse and name in ("momentum_sgd", "exact_rowwise_adagrad"):
        raise NoMirror(f"torch has no {name} for sparse gradients")
    if options["weights_format"] != "fp32":
        raise NoMirror("updates of narrow tables by torch are not mirrored")
    if "per_sample_weights" in inputs and options["pooling"] != "sum":
        raise NoMirror("torch takes weights with SUM only")
    if options["max_gradient"] or options["max_norm"]:
        raise NoMirror("torch.optim neither clips nor limits norms")
    if options["weight_decay"] and mode != "none":
        if sparse:
            raise NoMirror(
                "torch refuses weight decay with sparse gradients, or applies it to all rows"
            )
        if mode != "l2" and name != "adam":
            raise NoMirror(f"torch's {name} has no {mode} weight decay")


def _states(inputs: Arrays, name: str) -> dict[str, list[Floats]]:
    """The states of every table, shaped like it (row-wise: [R, 1]).

    A momentum that is not an input is NaN: it starts with the gradient.
    """
    states: dict[str, list[Floats]] = {}
    widths = inputs["dims"]
    if name == "exact_rowwise_adagrad":
        widths = np.ones_like(widths)
    ends = np.cumsum(inputs["rows"] * widths)
    for key in STATES[name]:
        missing = np.full(int(ends[-1]), np.nan if key == "momentum_buffer" else 0.0)
        state = np.array(inputs.get(key, missing), np.float32).reshape(-1)
        shapes = zip(ends.tolist(), inputs["rows"].tolist(), widths.tolist())
        states[key] = [state[end - r * d : end].reshape(r, d).copy() for end, r, d in shapes]
    return states


def dense_gradient(table_features: list[Feature], inputs: Arrays, options: Options) -> Floats:
    """Gradient of a whole table, f32[R, D]."""
    gradients = []
    for feature in reversed(table_features):
        x = gradient_of(feature, inputs, options)
        factors = None
        if options["pooling"] == "none":
            order = stable_order(feature.indices)
        else:
            order = introsort_order(feature.indices)
            factors = _factors(feature, options)[order]
        rows, first, count = segments(feature.indices, order)
        gradient = np.zeros_like(feature.rows)
        gradient[rows] = running_sums(x[order], first, count, factors)
        gradients.append(gradient)
    return reduce(np.add, gradients)


def _factors(feature: Feature, options: Options) -> Floats:
    """What the gradient of each lookup is multiplied by: its weight, over L for MEAN."""
    # In fp64: torch divides in double and rounds the factor once.
    weights = np.ones(feature.indices.size)
    if feature.weights is not None:
        weights = feature.weights.astype(np.float64)
    if options["pooling"] == "mean":
        weights = weights / feature.lengths[feature.bag]
    return weights.astype(np.float32)


def _rate(options: Options) -> float:
    return float(options["learning_rate"])


def _decayed(w: Floats, g: Floats, options: Options) -> Floats:
    """Gradient with the L2 term."""
    decay = float(options["weight_decay"])
    return fused(F(decay), w, g) if decay and options["weight_decay_mode"] == "l2" else g


def _sgd(w: Floats, state: State, g: Floats, options: Options) -> None:
    w[:] = fused(F(-_rate(options)), _decayed(w, g, options), w)


def _momentum(w: Floats, state: State, g: Floats, options: Options) -> None:
    g = _decayed(w, g, options)
    m = state["momentum_buffer"]
    # torch's first step copies the gradient; dampening is not applied to it.
    m[:] = g if np.isnan(m).all() else m * F(float(options["momentum"])) + g
    w[:] = fused(F(-_rate(options)), m, w)


def _adagrad(w: Floats, state: State, g: Floats, options: Options) -> None:
    g = _decayed(w, g, options)
    state["sum"][:] = fused(g, g, state["sum"])
    root = mkl_root(state["sum"]) + ADAGRAD_EPS
    w[:] = w + (F(-_rate(options)) * g) / root


def _adam(w: Floats, state: State, g: Floats, options: Options) -> None:
    """Adam; AdamW where the decay is decoupled."""
    beta1 = float(options["beta1"])
    beta2 = float(options["beta2"])
    count = float(int(options["step"]))
    if options["weight_decay"] and options["weight_decay_mode"] == "decoupled":
        w[:] = w * F(1 - _rate(options) * float(options["weight_decay"]))
    g = _decayed(w, g, options)
    m = state["exp_avg"]
    v = state["exp_avg_sq"]
    share = F(1 - beta1)
    # lerp starts from the nearer end
    m[:] = fused(share, g - m, m) if share < 0.5 else fused(-(g - m), F(1) - share, g)
    v[:] = fused(F(1 - beta2) * g, g, v * F(beta2))
    root = mkl_root(v) / F((1 - beta2**count) ** 0.5) + F(float(options["eps"]))
    w[:] = w + (F(-(_rate(options) / (1 - beta1**count))) * m) / root


def _rowwise(w: Floats, state: State, g: Floats, options: Options) -> None:
    """TorchRec's RowWiseAdagrad: the mean of squares as torch.sum adds them, then as Adagrad."""
    g = _decayed(w, g, options)
    state["sum"][:] = state["sum"] + (reduced(g * g) / F(g.shape[1]))[:, None]
    root = mkl_root(state["sum"]) + ADAGRAD_EPS
    w[:] = w + (F(-_rate(options)) * g) / root


STEPS = {
    "exact_sgd": _sgd,
    "momentum_sgd": _momentum,
    "exact_adagrad": _adagrad,
    "adam": _adam,
    "exact_rowwise_adagrad": _rowwise,
}


def reduced(x: Floats) -> Floats:
    """Sums over the last axis as torch.sum adds them.

    Vectors of 8 lanes (single columns where there are fewer than 8) in four interleaved sums; then
    the columns beyond the last vector, then the lanes.
    """
    width = x.shape[1]
    # Too few columns for a vector of AVX2.
    if width < 8:
        return _interleaved([x[:, d] for d in range(width)])
    if width >= WIDEST:
        raise NoMirror(f"torch.sum cascades rows of {WIDEST} columns and more")
    whole = width // 8 * 8
    lanes = _interleaved([x[:, k : k + 8] for k in range(0, whole, 8)])
    total = np.zeros(len(x), np.float32)
    for part in (x[:, whole:], lanes):
        for d in range(part.shape[1]):
            total = total + part[:, d]
    return total


def _interleaved(parts: list[Floats]) -> Floats:
    """The sum of the parts by four sums, which are added in order at the end.

    Parts 0, 4, 8, … go into the first, 1, 5, … into the second; those beyond the last whole four
    into the first.
    """
    sums = [np.zeros_like(parts[0])] * 4
    whole = len(parts) // 4 * 4
    for k, part in enumerate(parts):
        target = k % 4 if k < whole else 0
        sums[target] = sums[target] + part
    return ((sums[0] + sums[1]) + sums[2]) + sums[3]


def _entries(
    table_features: list[Feature], inputs: Arrays, options: Options
) -> tuple[Ints, Floats]:
    """Row numbers and gradients of a table's sparse gradient before its duplicates are merged."""
    entries = None
    for feature in reversed(table_features):
        x = gradient_of(feature, inputs, options)
        if options["pooling"] == "mean":
            x = x * (F(1) / feature.lengths.astype(np.float32)[feature.bag])[:, None]
        if feature.weights is not None:
            x = x * feature.weights[:, None]
        if entries is None:
            entries = (feature.indices, x)
        else:
            entries = _added_sparse(*entries, feature.indices, x)
    if entries is None:
        return np.empty(0, np.int64), np.empty((0, 0), np.float32)
    return entries


def _added_sparse(a: Ints, x: Floats, b: Ints, y: Floats) -> tuple[Ints, Floats]:
    """Sum of two sparse tensors, of rows a with values x and rows b with values y, as torch adds.

    It merges them as if both were sorted; entries whose rows happen to meet are added.
    """
    keys = []
    values = []
    i = 0
    j = 0
    while i < a.size or j < b.size:
        left = j >= b.size or (i < a.size and a[i] <= b[j])
        right = i >= a.size or (j < b.size and b[j] <= a[i])
        keys.append(a[i] if left else b[j])
        value = x[i] + y[j] if left and right else x[i] if left else y[j]
        # torch adds to an output of zeros, so -0 becomes +0.
        values.append(F(0) + value)
        i = i + left
        j = j + right
    return np.array(keys, np.int64), np.array(values, np.float32).reshape(len(keys), x.shape[1])


def _coalesced(keys: Ints, x: Floats) -> tuple[Ints, Floats]:
    """Rows of a sparse gradient, ascending, and their sums.

    The first entry of a row is copied, not added to +0: a sum of -0 alone is -0.
    """
    order = introsort_order(keys)
    rows, first, count = segments(keys, order)
    total = running_sums(x[order], first, count)
    if first.size:
        total[(total == 0) & np.logical_and.reduceat(np.signbit(x[order]), first)] = F(-0.0)
    return rows, total


def _sparse_step(
    w: Floats, state: State, table_features: list[Feature], inputs: Arrays, options: Options
) -> None:
    """A step of SGD, Adagrad or SparseAdam on the rows of a sparse gradient."""
    keys, x = _entries(table_features, inputs, options)
    rate = _rate(options)
    name = str(options["optimizer"])
    if name == "exact_sgd":
        order = stable_order(keys)
        rows, first, count = segments(keys, order)
        # A step for each duplicate: torch's sparse add does not merge them.
        for k in range(int(count.max(initial=0))):
            longer = np.flatnonzero(count > k)
            gradient = x[order[first[longer] + k]]
            w[rows[longer]] = fused(F(-rate), gradient, w[rows[longer]])
        return
    rows, g = _coalesced(keys, x)
    if name == "exact_adagrad":
        # Here square and sum are operations of their own, and not fused.
        state["sum"][rows] = state["sum"][rows] + g * g
        root = mkl_root(state["sum"][rows]) + ADAGRAD_EPS
        w[rows] = fused(F(-rate), g / root, w[rows])
        return
    beta1 = float(options["beta1"])
    beta2 = float(options["beta2"])
    step = int(options["step"])
    m = state["exp_avg"]
    v = state["exp_avg_sq"]
    m[rows] = m[rows] + (g - m[rows]) * F(1 - beta1)
    v[rows] = v[rows] + (g * g - v[rows]) * F(1 - beta2)
    # SparseAdam folds both bias corrections into the step, in double.
    factor = F(-(rate * math.sqrt(1 - beta2**step) / (1 - beta1**step)))
    w[rows] = w[rows] + factor * (m[rows] / (mkl_root(v[rows]) + F(float(options["eps"]))))


def unique_gradient(inputs: Arrays, options: Options) -> Arrays:
    """Bits of `unique_gradient`: the sparse gradients, coalesced, of all tables."""
    if options["weights_format"] != "fp32" or options["max_gradient"]:
        raise NoMirror("only gradients of fp32 tables that are not clipped are mirrored")
    start = np.cumsum(inputs["rows"]) - inputs["rows"]
    keys = [np.empty(0, np.int64)]
    values = []
    for t, table_features in sorted(by_table(inputs, tables(inputs, "fp32")).items()):
        rows, total = _coalesced(*_entries(table_features, inputs, options))
        keys.append(start[t] + rows)
        values.append(total)
    return {"rows": np.concatenate(keys), "values": flat(values)}
