"""A small right embedding kernel in fp32 NumPy, and wrong versions of it, for tests of reports.

`answers(case, bug)` answers a case of the operators lookup, weight_gradient, unique_gradient and
backward, with one bug or none; None where this kernel does not know how. A bug is a name that the
code below asks for. benchmarks/oracle_mutants measures the oracle with many more.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from neocpu.oracle.cases.draw import coded
from neocpu.oracle.operator import Case
from neocpu.oracle.truth.bags import SCALED, rows_of
from neocpu.oracle.truth.formats import decode, joined_halves

F = np.float32
Array = np.ndarray[Any, Any]


@dataclass
class Lookup:
    """One lookup that reads a row."""

    bag: int
    feature: int
    sample: int
    table: int
    row: int
    weight: float | None
    position: int
    length: int  # of its bag


def owners_of(case: Case) -> list[tuple[int, int]]:
    """Feature and sample of every bag."""
    inputs = case.inputs
    count = inputs["feature_table"].size
    sizes = inputs.get("batch_sizes")
    if sizes is None:
        sizes = np.full(count, (inputs["offsets"].size - 1) // max(count, 1))
    return [(f, b) for f, size in enumerate(sizes.tolist()) for b in range(size)]


def lookups_of(case: Case, bug: str) -> list[Lookup]:
    """All lookups in the order of the batch."""
    inputs = case.inputs
    offsets = inputs["offsets"].astype(np.int64)
    weights = inputs.get("per_sample_weights")
    lookups = []
    for bag, (f, b) in enumerate(owners_of(case)):
        first = int(offsets[bag])
        end = int(offsets[bag + 1])
        length = end - first
        if bug == "bag ends one late":
            end = min(end + 1, int(offsets[-1]))
        if bug == "drops last lookup":
            end = max(end - 1, first)
        table = int(inputs["feature_table"][f])
        for j in range(first, end):
            row = int(inputs["indices"][j])
            if row >= inputs["rows"][table] or row < -1:
                continue
            if row < 0:
                if bug != "pruned reads row 0":
                    continue
                row = 0
            weight = None if weights is None else float(weights[j])
            lookups.append(Lookup(bag, f, b, table, row, weight, j, length))
    return lookups


def scaled(x: Array, lookup: Lookup, options: Any, bug: str) -> Array:
    """A row or gradient times its weight, over its bag's length for MEAN."""
    if lookup.weight is not None:
        x = x * F(lookup.weight)
    if options["pooling"] == "mean":
        length = lookup.length
        if bug == "mean by length + 1":
            length += 1
        if bug == "mean squared":
            length *= length
        x = x / F(length)
    return x


def tables_of(case: Case) -> list[Array]:
    """Decoded tables, fp32 [rows, D] each."""
    inputs = dict(case.inputs)
    if "weights_low" in inputs:
        flat = joined_halves(inputs["weights"], inputs["weights_low"])
    else:
        flat = rows_of(inputs, case.options).value.astype(F)
    rows = inputs["rows"]
    dims = inputs["dims"]
    pieces = np.split(flat.reshape(-1), np.cumsum(rows * dims)[:-1])
    return [p.reshape(int(h), int(d)).copy() for p, h, d in zip(pieces, rows, dims)]


def lookup(case: Case, bug: str) -> dict[str, Array]:
    """Pooled rows, or a row for each lookup."""
    tables = tables_of(case)
    options = case.options
    inputs = case.inputs
    dims = inputs["dims"][inputs["feature_table"]].astype(int)
    lookups = lookups_of(case, bug)
    narrow = str(options["output_format"])
    if options["pooling"] == "none":
        out = np.zeros((inputs["indices"].size, int(dims[0]) if dims.size else 0), F)
        for x in lookups:
            row = tables[x.table][x.row]
            out[x.position] = row if x.weight is None else row * F(x.weight)
        return {"out": coded(out, narrow)}
    owners = owners_of(case)
    pooled = [np.zeros(int(dims[f]), F) for f, _ in owners]
    for x in lookups:
        row = tables[x.table][x.row]
        if bug == "only first 1024 columns":
            row = np.where(np.arange(row.size) < 1024, row, F(0))
        value = pooled[x.bag] + scaled(row, x, options, bug)
        if bug == "sums in output format" and narrow in ("fp16", "bf16"):
            value = decode(coded(value.astype(F), narrow), narrow)
        pooled[x.bag] = value.astype(F)
    if "batch_sizes" in inputs:
        out = np.concatenate([np.zeros(0, F), *pooled])
    else:
        offsets = np.append(0, np.cumsum(dims))
        out = np.zeros((len(owners) // max(dims.size, 1), int(dims.sum())), F)
        for (f, b), value in zip(owners, pooled):
            out[b, offsets[f] : offsets[f + 1]] = value
    return {"out": coded(out, narrow)}


def gradient_rows(case: Case, lookups: Iterable[Lookup]) -> Iterable[Array]:
    """The gradient that reaches each lookup, before weight and length."""
    inputs = case.inputs
    grad = inputs["grad_output"].astype(F)
    most = F(case.options.get("max_gradient", 0.0))
    if most:
        grad = np.clip(grad, -most, most)
    dims = inputs["dims"][inputs["feature_table"]].astype(int)
    columns = np.append(0, np.cumsum(dims))
    sizes = inputs.get("batch_sizes")
    first = np.append(0, np.cumsum(sizes * dims)) if sizes is not None else None
    for x in lookups:
        d = int(dims[x.feature])
        if case.options["pooling"] == "none":
            yield grad[x.position]
        elif first is not None:
            start = int(first[x.feature]) + x.sample * d
            yield grad[start : start + d]
        else:
            yield grad[x.sample, columns[x.feature] : columns[x.feature + 1]]


def merged(case: Case, bug: str) -> dict[tuple[int, int], Array]:
    """Merged gradients by table and row."""
    lookups = lookups_of(case, bug)
    terms: dict[tuple[int, int], list[Array]] = {}
    for x, g in zip(lookups, gradient_rows(case, lookups)):
        term = scaled(g, x, case.options, bug).astype(F)
        terms.setdefault((x.table, x.row), []).append(term)
    sums = {}
    for key in sorted(terms):
        g = terms[key]
        n = len(g)
        if bug == "last duplicate wins":
            g = g[-1:]
        if bug == "loses a middle duplicate" and n > 2:
            g = g[: n // 2] + g[n // 2 + 1 :]
        sums[key] = sum(g, np.zeros_like(g[0]))
    return sums


def unique_gradient(case: Case, bug: str) -> dict[str, Array]:
    """Touched rows and their merged gradients."""
    sums = merged(case, bug)
    first = np.append(0, np.cumsum(case.inputs["rows"]))
    rows = np.array([first[t] + r for t, r in sums], np.int64)
    return {"rows": rows, "values": np.concatenate([np.zeros(0, F), *sums.values()]).astype(F)}


def weight_gradient(case: Case, bug: str) -> dict[str, Array]:
    """Dot products of rows and gradients."""
    tables = tables_of(case)
    out = np.zeros(case.inputs["indices"].size, F)
    lookups = lookups_of(case, bug)
    for x, g in zip(lookups, gradient_rows(case, lookups)):
        dot = (tables[x.table][x.row] * g).sum(dtype=F)
        if case.options["pooling"] == "mean":
            dot = dot / F(x.length)
        out[x.position] = dot
    return {"per_sample_weights_grad": out}


def root(s: Array, eps: Array, bug: str) -> Array:
    """The divisor of adaptive rules."""
    return np.sqrt(s + eps) if bug == "eps inside root" else np.sqrt(s) + eps


def mean_square(g: Array, bug: str) -> Array:
    """Of a row."""
    width = g.size
    if bug == "mean over D padded to 32":
        width = -(-width // 32) * 32
    return (g * g).sum(dtype=F) / F(width)


RULES = (
    "exact_sgd",
    "momentum_sgd",
    "lars_sgd",
    "exact_adagrad",
    "exact_rowwise_adagrad",
    "adam",
    "partial_rowwise_adam",
    "lamb",
    "partial_rowwise_lamb",
    "rowwise_rmsprop",
)


def update(w: Array, g: Array, s: dict[str, Array], o: Any, bug: str) -> Array:
    """One step of one row; states are replaced in s."""
    rule = o["optimizer"]
    lr = F(o["learning_rate"])
    eps = F(o["eps"])
    b1 = F(o["beta1"])
    b2 = F(o["beta2"])
    wd = F(o["weight_decay"])
    mu = F(o["momentum"])
    t = int(o["step"])
    mode = o["weight_decay_mode"] if wd else "none"
    plain = g
    if mode == "l2":
        g = g + wd * w
    keep = F(1) - lr * wd if mode == "decoupled" else F(1)
    if rule == "exact_sgd":
        step = lr * g
    elif rule == "momentum_sgd":
        s["momentum_buffer"] = mu * s["momentum_buffer"] + g
        step = lr * s["momentum_buffer"]
    elif rule == "lars_sgd":
        gn = np.sqrt((plain * plain).sum(dtype=F))
        wn = np.sqrt((w * w).sum(dtype=F))
        trust = F(1)
        if gn != 0 and wn != 0:
            trust = F(o["eta"]) * wn / (gn + (wd * wn if mode == "l2" else F(0)))
        step = mu * s["momentum_buffer"] + lr * trust * g
        s["momentum_buffer"] = step
    elif rule == "exact_adagrad":
        old = s["sum"]
        s["sum"] = old + g * g
        step = lr * g / root(old if bug == "old state used" else s["sum"], eps, bug)
    elif rule == "exact_rowwise_adagrad":
        old = s["sum"]
        s["sum"] = old + mean_square(g, bug)
        step = lr / root(old if bug == "old state used" else s["sum"], eps, bug) * g
    elif rule == "rowwise_rmsprop":
        gap = F(t) - s["prev_iter"] if s["prev_iter"] > 0 else F(1)
        shrinkage = max(F(o["min_shrinkage"]), F(1) - min(F(1), lr * F(o["ar_alpha"]) * gap))
        s["square_avg"] = b2 * s["square_avg"] + (F(1) - b2) * mean_square(g, bug)
        s["prev_iter"] = F(t)
        return shrinkage * (keep * w) - lr / root(s["square_avg"], eps, bug) * g
    else:
        s["exp_avg"] = b1 * s["exp_avg"] + (F(1) - b1) * g
        second = mean_square(g, bug) if rule.startswith("partial") else g * g
        s["exp_avg_sq"] = b2 * s["exp_avg_sq"] + (F(1) - b2) * second
        k1 = F(1) - b1 ** F(t)
        k2 = F(1) - b2 ** F(t)
        step = s["exp_avg"] / k1 / root(s["exp_avg_sq"] / k2, eps, bug)
        if "lamb" in rule:
            if mode == "decoupled":
                step = step + wd * w
            keep = F(1)
            sn = np.sqrt((step * step).sum(dtype=F))
            wn = np.sqrt((w * w).sum(dtype=F))
            ratio = wn / sn if sn != 0 and wn != 0 else F(1)
            if bug == "trust ratio inverted" and wn != 0:
                ratio = sn / wn
            step = ratio * step
        step = lr * step
    return keep * w - step


def backward(case: Case, bug: str) -> dict[str, Array] | None:
    """Weights and states after one step."""
    o = case.options
    inputs = case.inputs
    if o["optimizer"] not in RULES or o["rounding"] != "nearest" or "weights_low" in inputs:
        return None
    if o["weight_decay_mode"] not in ("none", "l2", "decoupled") or o["weights_format"] in SCALED:
        return None
    if any(str(o.get(key, "fp32")) != "fp32" for key in ("momentum1_format", "momentum2_format")):
        return None
    tables = tables_of(case)
    rows = inputs["rows"].astype(int)
    dims = inputs["dims"].astype(int)
    names = {
        "momentum_sgd": ("momentum_buffer",),
        "lars_sgd": ("momentum_buffer",),
        "exact_adagrad": ("sum",),
        "exact_rowwise_adagrad": ("sum",),
        "rowwise_rmsprop": ("square_avg", "prev_iter"),
        "exact_sgd": (),
    }.get(str(o["optimizer"]), ("exp_avg", "exp_avg_sq"))
    per_row = {"square_avg", "prev_iter"}
    if o["optimizer"] == "exact_rowwise_adagrad":
        per_row.add("sum")
    if str(o["optimizer"]).startswith("partial"):
        per_row.add("exp_avg_sq")
    elements = int((rows * dims).sum())
    states = {}
    for name in names:
        size = int(rows.sum()) if name in per_row else elements
        states[name] = np.array(inputs.get(name, np.zeros(size)), F).reshape(-1)
    first_row = np.append(0, np.cumsum(rows))
    first_element = np.append(0, np.cumsum(rows * dims))
    for (t, r), g in merged(case, bug).items():
        element = first_element[t] + r * dims[t]
        place = {
            name: first_row[t] + r if name in per_row else slice(element, element + dims[t])
            for name in names
        }
        s = {name: states[name][place[name]].copy() for name in names}
        w = update(tables[t][r], g, s, o, bug)
        if o["max_norm"]:
            norm = np.sqrt((w * w).sum(dtype=F))
            if norm > F(o["max_norm"]):
                w = w * (F(o["max_norm"]) / norm)
        if bug == "skips last column":
            w[-1] = tables[t][r][-1]
        tables[t][r] = w
        for name in names:
            states[name][place[name]] = s[name]
    flat = np.concatenate([np.zeros(0, F), *(table.reshape(-1) for table in tables)])
    return {"weights": coded(flat.astype(F), str(o["weights_format"])), **states}


OPERATORS = {
    "lookup": lookup,
    "weight_gradient": weight_gradient,
    "unique_gradient": unique_gradient,
    "backward": backward,
}


def answers(case: Case, bug: str = "") -> dict[str, Array] | None:
    """The answer of the kernel with a bug, or without; None where it does not know how."""
    kernel = OPERATORS.get(case.op)
    if kernel is None:
        return None
    with np.errstate(all="ignore"):
        return kernel(case, bug)
