"""A small right embedding kernel in fp32 NumPy, and wrong versions of it: are they named?

`python -m tests.oracle_mutations [SUITE.h5]` asks them all and prints what the oracle calls each.
`answers(case, bug)` answers a case of the operators lookup, weight_gradient, unique_gradient and
backward, with one bug or none; None where this kernel does not know how. A bug is a name that the
code below asks for; NAMES has those of the switches that may be told for it, none where only
silence is right.
"""

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.oracle.answers import Answers
from neocpu.oracle.cases.draw import coded
from neocpu.oracle.checking import check_suite
from neocpu.oracle.operator import Case
from neocpu.oracle.report import Report
from neocpu.oracle.suite import Suite
from neocpu.oracle.truth.bags import SCALED, rows_of
from neocpu.oracle.truth.formats import joined_halves

F = np.float32
Array = np.ndarray[Any, Any]
SUBNORMAL = F(2.0**-126)


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
    kept: int = 0  # lookups of its bag that read a row
    total: float = 0.0  # of the weights of its bag


def lookups_of(case: Case, bug: str) -> tuple[list[Lookup], int]:
    """All lookups in the order of the batch, and the number of bags."""
    inputs = case.inputs
    offsets = inputs["offsets"].astype(np.int64)
    features = inputs["feature_table"]
    sizes = inputs.get("batch_sizes")
    if sizes is None:
        sizes = np.full(features.size, (offsets.size - 1) // max(features.size, 1))
    owners = [(f, b) for f, size in enumerate(sizes.tolist()) for b in range(size)]
    weights = inputs.get("per_sample_weights")
    lookups = []
    for bag, (f, b) in enumerate(owners):
        first = int(offsets[bag])
        end = int(offsets[bag + 1])
        length = end - first
        if bug == "first bag of a feature shifted" and b == 0:
            first = max(first - 1, 0)
        if bug == "bag ends one late":
            end = min(end + 1, int(offsets[-1]))
        if bug == "drops last lookup":
            end = max(end - 1, first)
        if bug == "unrolled by 4 without tail":
            end = first + length // 4 * 4
        if bug == "at most 32 lookups":
            end = min(end, first + 32)
        if bug == "at most 1024 lookups":
            end = min(end, first + 1024)
        if bug == "reverses weights in bags":
            pass
        table = int(features[f])
        if bug == "feature as table" and f < len(inputs["rows"]):
            table = f if inputs["dims"][f] == inputs["dims"][table] else table
        in_bag = []
        for j in range(first, end):
            row = int(inputs["indices"][j])
            if row >= inputs["rows"][table] or row < -1:
                continue
            if row < 0:
                if bug == "pruned reads row 0":
                    row = 0
                elif bug == "pruned reads last row":
                    row = int(inputs["rows"][table]) - 1
                else:
                    continue
            weight = None
            if weights is not None and bug != "ignores weights":
                place = j
                if bug == "weights restart in bag":
                    place = j - first
                if bug == "reverses weights in bags":
                    place = first + end - 1 - j
                weight = float(weights[place])
            in_bag.append(Lookup(bag, f, b, table, row, weight, j, length))
        for lookup in in_bag:
            lookup.kept = len(in_bag)
            lookup.total = float(sum(x.weight or 0.0 for x in in_bag))
        lookups += in_bag
    return lookups, len(owners)


def scaled(x: Array, lookup: Lookup, options: Any, bug: str) -> Array:
    """A row or gradient times its weight, over its bag's length for MEAN."""
    if lookup.weight is not None:
        x = x * F(lookup.weight)
    if options["pooling"] == "mean":
        length = lookup.length
        if bug == "mean not divided" or (bug == "mean x weights" and lookup.weight is not None):
            return x
        if bug == "mean by kept":
            length = lookup.kept
        if bug == "mean by length + 1":
            length += 1
        if bug == "mean squared":
            length *= length
        if bug == "mean by sum of weights" and lookup.weight is not None:
            return x / F(lookup.total)
        if bug == "mean not divided in long bags" and length > 8:
            return x
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
    lookups, bags = lookups_of(case, bug)
    if options["pooling"] == "none":
        out = np.zeros((inputs["indices"].size, int(dims[0]) if dims.size else 0), F)
        for x in lookups:
            row = tables[x.table][x.row]
            out[x.position] = row if x.weight is None else row * F(x.weight)
        return {"out": coded(out, str(options["output_format"]))}
    pooled: list[Array | None] = [None] * bags
    narrow = str(options["output_format"])
    for x in lookups:
        row = tables[x.table][x.row]
        if bug == "flushes subnormals":
            row = np.where(np.abs(row) < SUBNORMAL, F(0), row)
        if bug == "only first 1024 columns":
            row = np.where(np.arange(row.size) < 1024, row, F(0))
        if bug == "last column 0":
            row = np.where(np.arange(row.size) < row.size - 1, row, F(0))
        if bug == "max instead of sum" and pooled[x.bag] is not None:
            pooled[x.bag] = np.maximum(pooled[x.bag], scaled(row, x, options, bug))
            continue
        term = scaled(row, x, options, bug)
        previous = pooled[x.bag]
        if previous is None:
            previous = np.zeros(row.size, F)
            if bug == "accumulator kept" and x.bag:
                before = pooled[x.bag - 1]
                if before is not None and before.size == row.size:
                    previous = before.copy()
        value = previous + term
        if bug == "sums in output format" and narrow in ("fp16", "bf16"):
            value = decoded(coded(value.astype(F), narrow), narrow)
        pooled[x.bag] = value.astype(F)
    offsets = np.append(0, np.cumsum(dims))
    sizes = inputs.get("batch_sizes")
    owners = owners_of(case)
    if sizes is None:
        batch = bags // max(dims.size, 1)
        out = np.zeros((batch, int(dims.sum())), F)
        for bag, (f, b) in enumerate(owners):
            if pooled[bag] is not None:
                out[b, offsets[f] : offsets[f + 1]] = pooled[bag]
    else:
        parts = [
            np.zeros(int(dims[f]), F) if pooled[bag] is None else pooled[bag]
            for bag, (f, _) in enumerate(owners)
        ]
        out = np.concatenate([np.zeros(0, F), *parts])
    if bug == "output divided by batch" and out.ndim == 2:
        out = out / F(max(out.shape[0], 1))
    return {"out": coded(out, narrow)}


def decoded(codes: Array, name: str) -> Array:
    """Codes of a narrow format as fp32."""
    from neocpu.oracle.truth.formats import decode

    return decode(codes, name).astype(F)


def owners_of(case: Case) -> list[tuple[int, int]]:
    """Feature and sample of every bag."""
    inputs = case.inputs
    count = inputs["feature_table"].size
    sizes = inputs.get("batch_sizes")
    if sizes is None:
        sizes = np.full(count, (inputs["offsets"].size - 1) // max(count, 1))
    return [(f, b) for f, size in enumerate(sizes.tolist()) for b in range(size)]


def gradient_rows(case: Case, lookups: Iterable[Lookup], bug: str) -> Iterable[Array]:
    """The gradient that reaches each lookup, before weight and length."""
    inputs = case.inputs
    grad = inputs["grad_output"].astype(F)
    most = F(case.options.get("max_gradient", 0.0))
    if most and bug not in ("gradient not clipped", "clips merged gradient"):
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
            sample = x.sample
            if bug == "gradient of next sample":
                sample = min(sample + 1, grad.shape[0] - 1)
            yield grad[sample, columns[x.feature] : columns[x.feature + 1]]


def merged(case: Case, bug: str) -> dict[tuple[int, int], Array]:
    """Merged gradients by table and row, and the single ones where a bug needs them."""
    options = case.options
    lookups, _ = lookups_of(case, bug)
    terms: dict[tuple[int, int], list[Array]] = {}
    for x, g in zip(lookups, gradient_rows(case, lookups, bug)):
        term = g if bug == "backward ignores weights" else scaled(g, x, options, bug)
        if bug == "backward ignores weights" and options["pooling"] == "mean":
            term = g / F(x.length)
        if bug == "world size 4":
            term = term / F(4)
        terms.setdefault((x.table, x.row), []).append(term.astype(F))
    sums = {}
    for key in sorted(terms):
        g = terms[key]
        n = len(g)
        if bug == "last duplicate wins":
            g = g[-1:]
        if bug == "first duplicate wins":
            g = g[:1]
        if bug == "loses a middle duplicate" and n > 2:
            g = g[: n // 2] + g[n // 2 + 1 :]
        if bug == "loses second duplicate" and n > 1:
            g = g[:1] + g[2:]
        if bug == "at most 32 duplicates":
            g = g[:32]
        if bug == "at most 1024 duplicates":
            g = g[:1024]
        if bug == "duplicates unrolled by 4":
            g = g[: n // 4 * 4]
        if bug == "averages duplicates":
            g = [sum(g[1:], g[0]) / F(n)]
        total = np.zeros(len(terms[key][0]), F)
        for term in g:
            total = (total + term).astype(F)
            if bug == "merges in fp16":
                total = total.astype(np.float16).astype(F)
            if bug == "merges in bf16":
                total = decoded(coded(total, "bf16"), "bf16")
        if bug == "merges 5% less":
            total = total * F(0.95)
        most = F(options.get("max_gradient", 0.0))
        if most and bug == "clips merged gradient":
            total = np.clip(total, -most, most)
        sums[key] = total
    if bug == "sequential updates":
        return {key: np.stack(terms[key]) for key in sorted(terms)}
    if bug == "squares before merge":
        return {key: np.stack([sums[key], *terms[key]]) for key in sorted(terms)}
    return sums


def unique_gradient(case: Case, bug: str) -> dict[str, Array]:
    """Touched rows and their merged gradients."""
    bug = "" if bug in ("sequential updates", "squares before merge") else bug
    sums = merged(case, bug)
    first = np.append(0, np.cumsum(case.inputs["rows"]))
    rows = np.array([first[t] + r for t, r in sums], np.int64)
    return {"rows": rows, "values": np.concatenate([np.zeros(0, F), *sums.values()]).astype(F)}


def weight_gradient(case: Case, bug: str) -> dict[str, Array]:
    """Dot products of rows and gradients."""
    tables = tables_of(case)
    out = np.zeros(case.inputs["indices"].size, F)
    lookups, _ = lookups_of(case, bug)
    for x, g in zip(lookups, gradient_rows(case, lookups, bug)):
        dot = (tables[x.table][x.row] * g).sum(dtype=F)
        if bug == "weight gradient times weight" and x.weight is not None:
            dot = dot * F(x.weight)
        if bug == "row sum as weight gradient":
            dot = tables[x.table][x.row].sum(dtype=F)
        if case.options["pooling"] == "mean" and bug != "mean not divided":
            dot = dot / F(x.length)
        out[x.position] = dot
    return {"per_sample_weights_grad": out}


def root(s: Array, eps: Array, bug: str) -> Array:
    """The divisor of adaptive rules."""
    if bug == "eps inside root":
        return np.sqrt(s + eps)
    if bug == "no eps":
        return np.sqrt(s)
    if bug == "eps as floor":
        return np.maximum(np.sqrt(s), eps)
    if bug == "no root":
        return s + eps
    if bug == "eps squared":
        return np.sqrt(s) + eps * eps
    return np.sqrt(s) + eps


def mean_square(g: Array, bug: str) -> Array:
    """Of a row."""
    total = (g * g).sum(dtype=F)
    if bug == "sum of squares":
        return total
    width = g.size
    if bug == "mean over D padded to 32":
        width = -(-width // 32) * 32
    if bug == "mean over D padded to 128":
        width = -(-width // 128) * 128
    if bug == "max of squares":
        return (g * g).max()
    return total / F(width)


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


def update(w: Array, g: Array, s: dict[str, Array], o: Any, bug: str, squares: Any) -> Array:
    """One step of one row; states are replaced in s. squares: of the single gradients, or None."""
    rule = o["optimizer"]
    lr = F(o["learning_rate"])
    eps = F(o["eps"])
    b1 = F(o["beta1"])
    b2 = F(o["beta2"])
    wd = F(o["weight_decay"])
    mu = F(o["momentum"])
    t = int(o["step"])
    if bug == "step off by one late":
        t -= 1
    if bug == "step off by one early":
        t += 1
    if bug == "betas swapped":
        b1, b2 = b2, b1
    if bug == "learning rate twice":
        lr = lr * lr
    if bug == "wrong learning rate":
        lr = lr * F(1.03)
    if bug == "fp16 hyper-parameters":
        lr, eps, wd, mu = (F(np.float16(x)) for x in (lr, eps, wd, mu))
    if bug == "decay sign":
        wd = -wd
    mode = o["weight_decay_mode"] if wd and bug != "no decay" else "none"
    if bug == "decay swapped":
        mode = {"l2": "decoupled", "decoupled": "l2"}.get(mode, mode)
    if bug == "ascends":
        g = -g
    plain = g
    if mode == "l2":
        g = g + wd * w
    keep = F(1)
    if mode == "decoupled":
        keep = F(1) - (wd if bug == "decay without rate" else lr * wd)
    square = g * g if squares is None else squares
    if bug == "decay not in state":
        square = plain * plain
    if rule == "exact_sgd":
        step = lr * g
    elif rule == "momentum_sgd":
        scale = (F(1) - mu) if bug == "dampened" else F(1)
        m = mu * s["momentum_buffer"] + scale * g
        s["momentum_buffer"] = m
        step = lr * (g + mu * m if bug == "nesterov" else m)
    elif rule == "lars_sgd":
        gn = np.sqrt((plain * plain).sum(dtype=F))
        wn = np.sqrt((w * w).sum(dtype=F))
        trust = F(1)
        if gn != 0 and wn != 0 and bug != "no trust ratio":
            trust = F(o["eta"]) * wn / (gn + (wd * wn if mode == "l2" else F(0)))
        m = mu * s["momentum_buffer"] + lr * trust * g
        s["momentum_buffer"] = m
        step = m
    elif rule == "exact_adagrad":
        old = s["sum"]
        s["sum"] = old + square
        step = lr * g / root(old if bug == "old state used" else s["sum"], eps, bug)
    elif rule == "exact_rowwise_adagrad":
        old = s["sum"]
        mean = mean_square(g, bug) if squares is None else squares.mean(dtype=F)
        if bug == "decay not in state":
            mean = mean_square(plain, bug)
        s["sum"] = old + mean
        step = lr / root(old if bug == "old state used" else s["sum"], eps, bug) * g
    elif rule == "rowwise_rmsprop":
        gap = F(t) - s["prev_iter"] if s["prev_iter"] > 0 else F(1)
        keep2 = max(F(o["min_shrinkage"]), F(1) - min(F(1), lr * F(o["ar_alpha"]) * gap))
        if bug == "no shrinkage":
            keep2 = F(1)
        s["square_avg"] = b2 * s["square_avg"] + (F(1) - b2) * mean_square(g, bug)
        s["prev_iter"] = F(t)
        return keep2 * (keep * w) - lr / root(s["square_avg"], eps, bug) * g
    else:
        rowwise = rule.startswith("partial")
        c1 = F(1) - b1 if bug != "beta without complement" else F(1)
        s["exp_avg"] = b1 * s["exp_avg"] + c1 * g
        second = mean_square(g, bug) if rowwise else square
        if rowwise and squares is not None:
            second = squares.mean(dtype=F)
        s["exp_avg_sq"] = b2 * s["exp_avg_sq"] + (F(1) - b2) * second
        k1 = F(1) - b1 ** F(t)
        k2 = F(1) - b2 ** F(t)
        if bug == "no bias correction":
            k1 = k2 = F(1)
        if bug == "no second bias correction":
            k2 = F(1)
        if bug == "no first bias correction":
            k1 = F(1)
        if bug == "corrects after root":
            step = s["exp_avg"] / k1 / (root(s["exp_avg_sq"], eps, bug) / np.sqrt(k2))
        else:
            step = s["exp_avg"] / k1 / root(s["exp_avg_sq"] / k2, eps, bug)
        if "lamb" in rule:
            if mode == "decoupled":
                step = step + wd * w
            keep = F(1)
            sn = np.sqrt((step * step).sum(dtype=F))
            wn = np.sqrt((w * w).sum(dtype=F))
            ratio = wn / sn if sn != 0 and wn != 0 else F(1)
            if bug == "no trust ratio":
                ratio = F(1)
            if bug == "trust ratio inverted" and wn != 0:
                ratio = sn / wn
            step = ratio * step
        step = lr * step
    if bug == "decay after step":
        return keep * (w - step)
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
    before = {name: array.copy() for name, array in states.items()}
    first_row = np.append(0, np.cumsum(rows))
    first_element = np.append(0, np.cumsum(rows * dims))
    for (t, r), gradients in merged(case, bug).items():
        steps = gradients if bug == "sequential updates" else [gradients]
        squares = None
        if bug == "squares before merge":
            steps = [gradients[0]]
            squares = (gradients[1:] * gradients[1:]).sum(0, dtype=F)
        for g in steps:
            place = {
                name: (
                    first_row[t] + r
                    if name in per_row
                    else slice(first_element[t] + r * dims[t], first_element[t] + (r + 1) * dims[t])
                )
                for name in names
            }
            s = {name: states[name][place[name]].copy() for name in names}
            w = update(tables[t][r], g, s, o, bug, squares)
            if o["max_norm"] and bug != "no max norm":
                norm = np.sqrt((w * w).sum(dtype=F))
                if norm > F(o["max_norm"]):
                    w = w * (F(o["max_norm"]) / norm)
            if bug == "skips last column":
                w[-1] = tables[t][r][-1]
            tables[t][r] = w
            for name in names:
                states[name][place[name]] = s[name]
    if bug == "state not written":
        states = before
    flat = np.concatenate([np.zeros(0, F), *(table.reshape(-1) for table in tables)])
    return {"weights": coded(flat.astype(F), str(o["weights_format"])), **states}


OPERATORS = {
    "lookup": lookup,
    "weight_gradient": weight_gradient,
    "unique_gradient": unique_gradient,
    "backward": backward,
}

# bug: names that may be told for it; none where only silence is right
NAMES: dict[str, tuple[str, ...]] = {
    "first bag of a feature shifted": (),
    "bag ends one late": ("bag_ends_late",),
    "drops last lookup": ("last_lookup_dropped",),
    "unrolled by 4 without tail": ("bag_tail_dropped_4",),
    "at most 32 lookups": ("bag_capped_32",),
    "at most 1024 lookups": ("bag_capped_1024",),
    "reverses weights in bags": (),
    "feature as table": ("feature_is_table",),
    "pruned reads row 0": ("pruned_reads_row_0",),
    "pruned reads last row": ("pruned_reads_last_row",),
    "ignores weights": ("weights_ignored",),
    "weights restart in bag": ("weights_restart",),
    "mean not divided": ("mean_not_divided",),
    "mean x weights": ("weighted_mean_not_divided", "weighted_mean_backward_not_divided"),
    "mean by kept": ("mean_counts_kept",),
    "mean by length + 1": ("sum_scaled",),
    "mean squared": ("mean_divided_twice",),
    "mean by sum of weights": ("weighted_mean_by_plain_weights", "weighted_mean_by_weights"),
    "mean not divided in long bags": ("mean_not_divided",),
    "flushes subnormals": ("subnormals_flushed",),
    "only first 1024 columns": ("tail_of_row",),
    "last column 0": ("tail_of_row",),
    "max instead of sum": (),
    "accumulator kept": (),
    "sums in output format": ("accumulated_narrow",),
    "output divided by batch": ("constant_factor",),
    "gradient not clipped": ("clip_ignored",),
    "clips merged gradient": ("clip_after_merge",),
    "gradient of next sample": ("gradient_of_next_sample",),
    "backward ignores weights": ("gradient_without_weights",),
    "world size 4": ("divided_by_4",),
    "last duplicate wins": ("last_duplicate_wins",),
    "first duplicate wins": ("first_duplicate_wins",),
    "loses a middle duplicate": ("duplicate_lost",),
    "loses second duplicate": ("duplicate_lost",),
    "at most 32 duplicates": ("duplicates_capped_32",),
    "at most 1024 duplicates": ("duplicates_capped_1024",),
    "duplicates unrolled by 4": ("duplicate_tail_dropped_4",),
    "averages duplicates": ("duplicates_averaged",),
    "merges in fp16": ("merged_in_fp16",),
    "merges in bf16": ("merged_in_bf16",),
    "merges 5% less": (),
    "sequential updates": ("duplicates_in_sequence",),
    "squares before merge": ("squares_before_merge",),
    "weight gradient times weight": ("weight_gradient_times_weight",),
    "row sum as weight gradient": ("gradient_without_grad_output",),
    "eps inside root": ("eps_inside_root",),
    "no eps": ("eps_missing",),
    "eps as floor": ("eps_as_floor",),
    "no root": ("root_missing",),
    "eps squared": ("eps_missing",),  # 2^-40
    "sum of squares": ("square_sum_not_mean",),
    "mean over D padded to 32": ("mean_over_padded_32",),
    "mean over D padded to 128": ("mean_over_padded_128",),
    "max of squares": (),
    "step off by one late": ("step_counted_late",),
    "step off by one early": ("step_counted_early",),
    "betas swapped": ("betas_swapped",),
    "learning rate twice": ("rate_twice",),
    "wrong learning rate": (),
    "fp16 hyper-parameters": ("hyper_in_fp16",),
    "decay sign": ("decay_sign_flipped",),
    "no decay": ("weight_decay_ignored",),
    "decay swapped": ("weight_decay_swapped",),
    "decay without rate": ("decay_without_rate",),
    "decay not in state": ("decay_not_in_state",),
    "ascends": ("sign_flipped",),
    "dampened": ("momentum_dampened",),
    "nesterov": ("nesterov",),
    "no trust ratio": ("ratio_missing",),
    "trust ratio inverted": ("ratio_inverted",),
    "old state used": ("update_before_state",),
    "no shrinkage": ("shrinkage_ignored",),
    "beta without complement": ("moment_not_weighted",),
    "no bias correction": ("bias_correction_missing",),
    "no first bias correction": ("first_correction_missing",),
    "no second bias correction": ("second_correction_missing",),
    "corrects after root": ("sparse_adam_eps",),
    "decay after step": ("decay_after_step",),
    "no max norm": ("max_norm_ignored",),
    "skips last column": ("tail_of_row",),
    "state not written": ("states_not_stored",),
}


def answers(case: Case, bug: str = "") -> dict[str, Array] | None:
    """The answer of the kernel with a bug, or without; None where it does not know how."""
    kernel = OPERATORS.get(case.op)
    if kernel is None:
        return None
    with np.errstate(all="ignore"):
        return kernel(case, bug)


def answered(questions: Suite, bug: str, most: int = 3000) -> dict[str, Array]:
    """Answers of all cases that are small enough, by CASE/OUT."""
    arrays = {}
    for name, question in questions.items():
        lookups = question.case.inputs.get("indices", np.empty(0)).size
        outputs = answers(question.case, bug) if lookups <= most else None
        arrays |= {f"{name}/{out}": array for out, array in (outputs or {}).items()}
    return arrays


def told_names(report: Report) -> tuple[str, ...]:
    """The names of the first strong finding."""
    strong = [f for f in report.findings if f.strong]
    return strong[0].diagnosis.names if strong else ()


def main(path: Path, bugs: Iterable[str]) -> None:
    """Ask all bugs, and print what is told of each."""
    counts = {"right": 0, "silent": 0, "WRONG": 0, "not caught": 0}
    with Suite(path) as questions:
        known = dict(questions.items())
        report = check_suite(known, Answers(answered(known, "")))  # type: ignore[arg-type]
        print(report.headline())
        if not report:
            print(report)
        for bug in bugs:
            arrays = answered(known, bug)  # type: ignore[arg-type]
            start = time.perf_counter()
            report = check_suite(known, Answers(arrays))
            seconds = time.perf_counter() - start
            names = told_names(report)
            verdict = "silent"
            if report:
                verdict = "not caught"
            elif names:
                verdict = "right" if set(names) & set(NAMES[bug]) else "WRONG"
            counts[verdict] += 1
            conclusion = " | ".join(report.conclusion()[:3])[:230]
            failed = f"{report.count('failed')} of {len(report.cases)}"
            print(f"{verdict:10} {bug}: {failed}, {seconds:.1f} s: {conclusion}", flush=True)
    print(counts)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or NAMES)
