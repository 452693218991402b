"""Which bits does torch give on a CPU? F.embedding_bag and its gradients, and torch.optim's
updates, dense and sparse.

What torch does (docs/semantics.md §6):

* sums are FBGEMM's generated code, as in `mirrors_fbgemm`; bf16 results are rounded half up; MEAN
  divides the sum, which is already in the output's format;
* the dense gradient visits a row's lookups in the order in which std::sort leaves them, one fused
  multiply-add each (MEAN and weights as a factor rounded to fp32); features of one table add up,
  the last one first;
* sparse gradients multiply by the rounded reciprocal of the length instead, and an SGD step takes
  duplicates one by one;
* every optimizer is a chain of operations on whole tensors; `add`, `addcmul` and `lerp` are fused
  multiply-adds; the square root is MKL's (`mirrors_root`).
"""

import math

import numpy as np

from neocpu.oracle.mirrors.order import (
    F,
    Feature,
    Floats,
    Ints,
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
from neocpu.oracle.operator import Arrays, Value

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


def lookup(inputs: Arrays, options: dict[str, Value]) -> Arrays:
    """Bits of `lookup`: F.embedding_bag, or F.embedding where nothing is pooled."""
    form = str(options["weights_format"])
    if form not in FORMATS or options["output_format"] != form:
        raise NoMirror(f"torch returns the format of its tables, which can be {', '.join(FORMATS)}")
    found = []
    for feature in features(inputs, tables(inputs, form)):
        x = feature.rows[feature.indices]
        if options["pooling"] == "none":
            found.append(encoded(x, form))
            continue
        if feature.weights is not None and options["pooling"] == "mean":
            raise NoMirror("torch refuses weights with a MEAN")
        scale = None if feature.weights is None else decoded(encoded(feature.weights, form), form)
        total = encoded(
            running_sums(x, feature.offsets[:-1], feature.lengths, scale), form, half_up=True
        )
        if options["pooling"] == "mean":
            length = decoded(encoded(np.maximum(feature.lengths, 1).astype(np.float32), form), form)
            total = encoded(decoded(total, form) / length[:, None], form)
        found.append(total)
    return {"out": np.concatenate(found, 0 if options["pooling"] == "none" else 1)}


def backward(inputs: Arrays, options: dict[str, Value]) -> Arrays:
    """Bits of `backward`: the dense gradient of embedding_bag, then a step of torch.optim."""
    return _stepped(inputs, options, sparse=False)


def sparse_backward(inputs: Arrays, options: dict[str, Value]) -> Arrays:
    """Bits of `backward` with `sparse=True`: SGD, Adagrad and SparseAdam."""
    return _stepped(inputs, options, sparse=True)


def _stepped(inputs: Arrays, options: dict[str, Value], sparse: bool) -> Arrays:
    name = str(options["optimizer"])
    _refuse(inputs, options, sparse)
    matrices = tables(inputs, "fp32")
    states = _states(inputs, name)
    for t, mine in by_table(inputs, matrices).items():
        state = {key: parts[t] for key, parts in states.items()}
        if sparse:
            _sparse_step(matrices[t], state, mine, inputs, options)
        else:
            gradient = dense_gradient(mine, inputs, options)
            STEPS[name](matrices[t], state, gradient, options)
    return {"weights": flat(matrices), **{key: flat(parts) for key, parts in states.items()}}


def _refuse(inputs: Arrays, options: dict[str, Value], sparse: bool) -> None:
    """Raises NoMirror for what torch does not have."""
    name = str(options["optimizer"])
    mode = str(options["weight_decay_mode"])
    if name not in STATES or (sparse and name in ("momentum_sgd", "exact_rowwise_adagrad")):
        raise NoMirror(
            f"torch has no {name}{' for sparse gradients' if sparse and name in STATES else ''}"
        )
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
    """The states of every table, shaped like it (row-wise: [R, 1]); a momentum that is not given
    starts with the gradient.
    """
    found: dict[str, list[Floats]] = {}
    for key in STATES[name]:
        wide = np.ones_like(inputs["dims"]) if name == "exact_rowwise_adagrad" else inputs["dims"]
        ends = np.cumsum(inputs["rows"] * wide)
        missing = np.nan if key == "momentum_buffer" else 0.0
        given = np.array(inputs.get(key, np.full(int(ends[-1]), missing)), np.float32).reshape(-1)
        sizes = zip(ends.tolist(), inputs["rows"].tolist(), wide.tolist())
        found[key] = [given[end - r * d : end].reshape(r, d).copy() for end, r, d in sizes]
    return found


def dense_gradient(mine: list[Feature], inputs: Arrays, options: dict[str, Value]) -> Floats:
    """Gradient of a whole table, f32[R, D]."""
    total = None
    for feature in reversed(mine):
        x = gradient_of(feature, inputs, options)
        if options["pooling"] == "none":
            order = stable_order(feature.indices)
            factor = None
        else:
            order = introsort_order(feature.indices)
            given = (
                np.ones(len(x)) if feature.weights is None else feature.weights.astype(np.float64)
            )
            factor = (
                given / feature.lengths[feature.bag] if options["pooling"] == "mean" else given
            ).astype(np.float32)
        rows, first, count = segments(feature.indices, order)
        gradient = np.zeros_like(feature.rows)
        gradient[rows] = running_sums(
            x[order], first, count, None if factor is None else factor[order]
        )
        total = gradient if total is None else total + gradient
    return np.zeros(0, np.float32) if total is None else total


def _rate(options: dict[str, Value]) -> float:
    return float(options["learning_rate"])


def _decayed(w: Floats, g: Floats, options: dict[str, Value]) -> Floats:
    """Gradient with the L2 term."""
    decay = float(options["weight_decay"])
    return fused(F(decay), w, g) if decay and options["weight_decay_mode"] == "l2" else g


def _sgd(w: Floats, state: State, g: Floats, options: dict[str, Value]) -> None:
    w[:] = fused(F(-_rate(options)), _decayed(w, g, options), w)


def _momentum(w: Floats, state: State, g: Floats, options: dict[str, Value]) -> None:
    g = _decayed(w, g, options)
    m = state["momentum_buffer"]
    m[:] = g if np.isnan(m).all() else m * F(float(options["momentum"])) + g
    w[:] = fused(F(-_rate(options)), m, w)


def _adagrad(w: Floats, state: State, g: Floats, options: dict[str, Value]) -> None:
    g = _decayed(w, g, options)
    state["sum"][:] = fused(g, g, state["sum"])
    root = mkl_root(state["sum"]) + ADAGRAD_EPS
    w[:] = w + (F(-_rate(options)) * g) / root


def _adam(w: Floats, state: State, g: Floats, options: dict[str, Value]) -> None:
    """Adam; AdamW where the decay is decoupled."""
    beta1 = float(options["beta1"])
    beta2 = float(options["beta2"])
    count = float(int(options["step"]))
    if options["weight_decay"] and options["weight_decay_mode"] == "decoupled":
        w[:] = w * F(1 - _rate(options) * float(options["weight_decay"]))
    g = _decayed(w, g, options)
    m = state["exp_avg"]
    v = state["exp_avg_sq"]
    part = F(1 - beta1)
    m[:] = fused(part, g - m, m) if part < 0.5 else fused(-(g - m), F(1) - part, g)
    v[:] = fused(F(1 - beta2) * g, g, v * F(beta2))
    root = mkl_root(v) / F((1 - beta2**count) ** 0.5) + F(float(options["eps"]))
    w[:] = w + (F(-(_rate(options) / (1 - beta1**count))) * m) / root


def _rowwise(w: Floats, state: State, g: Floats, options: dict[str, Value]) -> None:
    """TorchRec's RowWiseAdagrad: mean of squares as torch's reduction adds them, then as Adagrad."""
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
    """Sums over the last axis as torch.sum adds them: vectors of 8 lanes (single columns where
    there are fewer) in four interleaved sums; then the columns beyond the last vector, then the
    lanes.
    """
    width = x.shape[1]
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
    """Parts 0, 4, 8, … in one sum, 1, 5, … in another; those beyond the last four to the first;
    then the four in order.
    """
    sums = [np.zeros_like(parts[0])] * 4
    whole = len(parts) // 4 * 4
    for k, part in enumerate(parts):
        to = k % 4 if k < whole else 0
        sums[to] = sums[to] + part
    return ((sums[0] + sums[1]) + sums[2]) + sums[3]


def _entries(mine: list[Feature], inputs: Arrays, options: dict[str, Value]) -> tuple[Ints, Floats]:
    """Row numbers and gradients of a table's sparse gradient before its duplicates are merged."""
    found = None
    for feature in reversed(mine):
        x = gradient_of(feature, inputs, options)
        if options["pooling"] == "mean":
            x = x * (F(1) / feature.lengths.astype(np.float32)[feature.bag])[:, None]
        if feature.weights is not None:
            x = x * feature.weights[:, None]
        found = (feature.indices, x) if found is None else _joined(*found, feature.indices, x)
    return found if found is not None else (np.empty(0, np.int64), np.empty((0, 0), np.float32))


def _joined(a: Ints, x: Floats, b: Ints, y: Floats) -> tuple[Ints, Floats]:
    """Sum of two sparse tensors as torch merges them: as if both were sorted; entries that meet by
    chance add up.
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
        values.append(F(0) + value)
        i = i + left
        j = j + right
    return np.array(keys, np.int64), np.array(values, np.float32).reshape(len(keys), x.shape[1])


def _coalesced(keys: Ints, x: Floats) -> tuple[Ints, Floats]:
    """Rows of a sparse gradient, ascending, and their sums. The first entry is copied, not added: a
    -0 alone stays.
    """
    order = introsort_order(keys)
    rows, first, count = segments(keys, order)
    total = running_sums(x[order], first, count)
    if first.size:
        total[(total == 0) & np.logical_and.reduceat(np.signbit(x[order]), first)] = F(-0.0)
    return rows, total


def _sparse_step(
    w: Floats, state: State, mine: list[Feature], inputs: Arrays, options: dict[str, Value]
) -> None:
    keys, x = _entries(mine, inputs, options)
    rate = _rate(options)
    name = str(options["optimizer"])
    if name == "exact_sgd":
        order = stable_order(keys)
        rows, first, count = segments(keys, order)
        for k in range(int(count.max(initial=0))):
            live = np.flatnonzero(count > k)
            w[rows[live]] = fused(F(-rate), x[order[first[live] + k]], w[rows[live]])
        return
    rows, g = _coalesced(keys, x)
    if name == "exact_adagrad":
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
    size = F(-(rate * math.sqrt(1 - beta2**step) / (1 - beta1**step)))
    w[rows] = w[rows] + size * (m[rows] / (mkl_root(v[rows]) + F(float(options["eps"]))))


def unique_gradient(inputs: Arrays, options: dict[str, Value]) -> Arrays:
    """Bits of `unique_gradient`: the sparse gradients, coalesced, of all tables."""
    if options["weights_format"] != "fp32" or options["max_gradient"]:
        raise NoMirror("only gradients of fp32 tables that are not clipped are mirrored")
    start = np.cumsum(inputs["rows"]) - inputs["rows"]
    keys = [np.empty(0, np.int64)]
    values = []
    for t, mine in sorted(by_table(inputs, tables(inputs, "fp32")).items()):
        rows, total = _coalesced(*_entries(mine, inputs, options))
        keys.append(start[t] + rows)
        values.append(total)
    return {"rows": np.concatenate(keys), "values": flat(values)}
