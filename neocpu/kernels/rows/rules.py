"""What does one optimizer do to one row? Each rule here, in phases, as plain functions that compose
into the update kernels.

    <rule>_prepare(w, g, states, hyper)     before any sum; `regularise` where a rule has none
    <rule>_direct(...)                      where a rule has one: g becomes the step's direction,
                                            given the sum of g*g
    <rule>(...)                             new weights and states, given the sums of g*g and w*w:
                                            as many as it reads
    limit_norm(...)                         with optimizer.sparse.max_norm: after the step, given
                                            the sum of the new w*w

All but the first are called as (w, g, states, row, squares, columns, hyper) and write in place:

    w, g        f32[D], a row and its merged gradient
    states      record of f32[D]: the row's element states, under the names that they have in
                `core.rules.RULES` and in checkpoints
    row         record of f32[1]: its row states, likewise
    squares     f32[1] to f32[3]: the sums, over the column tree; then, where a rule counts them,
                the lookups of the row in the batch
    columns     f32: D of the whole row, where it is cut by columns
    hyper       `core.rules.HyperParameters`

Every line is one IEEE operation per column, in the order of docs/arithmetic.md §5. Sources:
FBGEMM's `optimizers.py`, and the papers named there.
"""

import numpy as np

from neocpu.kernels.compile.jit import inlined
from neocpu.kernels.numbers.elementary import exp, log

LN2 = 0.6931471805599453


@inlined
def regularise(w, g, states, hyper):
    """L2: g += wd * w."""
    l2 = hyper.l2
    # not multiplied by 0: a row with an infinity would get NaN
    if l2 != np.float32(0.0):
        for c in range(g.size):
            g[c] = g[c] + l2 * w[c]


@inlined
def decay(w, hyper):
    """Decoupled weight decay: w *= 1 - lr * wd."""
    # 1, without weight decay: no pass over the row
    keep = hyper.keep
    if keep != np.float32(1.0):
        for c in range(w.size):
            w[c] = keep * w[c]


@inlined
def nothing(w, g, states, row, squares, columns, hyper):
    """A phase that a rule does not have."""


@inlined
def limit_norm(w, g, states, row, squares, columns, hyper):
    """w *= max_norm / ||w|| where the norm is larger"""
    norm = np.sqrt(squares[0])
    # false for NaN: a row that diverged is not hidden
    if norm > hyper.max_norm:
        factor = hyper.max_norm / norm
        for c in range(w.size):
            w[c] = factor * w[c]


@inlined
def exact_sgd(w, g, states, row, squares, columns, hyper):
    """w -= lr * g"""
    decay(w, hyper)
    for c in range(w.size):
        w[c] = w[c] - hyper.lr * g[c]


@inlined
def momentum_sgd(w, g, states, row, squares, columns, hyper):
    """m = momentum * m + g; w -= lr * m"""
    decay(w, hyper)
    for c in range(w.size):
        m = hyper.momentum * states.momentum_buffer[c] + g[c]
        states.momentum_buffer[c] = m
        w[c] = w[c] - hyper.lr * m


@inlined
def lars_sgd_prepare(w, g, states, hyper):
    """Nothing: norms are those of the merged gradient and of the row, before weight decay."""


@inlined
def lars_sgd(w, g, states, row, squares, columns, hyper):
    """trust = eta * ||w|| / (||g|| + wd * ||w||); m = momentum * m + lr * trust * (g + wd * w);
    w -= m
    """
    g_norm = np.sqrt(squares[0])
    w_norm = np.sqrt(squares[1])
    trust = np.float32(1.0)
    # ratio 1 where a norm is 0, or a row of zeros would never move
    if g_norm != np.float32(0.0) and w_norm != np.float32(0.0):
        trust = (hyper.eta * w_norm) / (g_norm + hyper.l2 * w_norm)
    rate = hyper.lr * trust
    # only now: FBGEMM takes the norms before weight decay
    regularise(w, g, states, hyper)
    decay(w, hyper)
    for c in range(w.size):
        m = hyper.momentum * states.momentum_buffer[c] + rate * g[c]
        states.momentum_buffer[c] = m
        w[c] = w[c] - m


@inlined
def exact_adagrad(w, g, states, row, squares, columns, hyper):
    """sum += g^2; w -= lr * g / (sqrt(sum) + eps)"""
    decay(w, hyper)
    for c in range(w.size):
        s = states.sum[c] + g[c] * g[c]
        states.sum[c] = s
        w[c] = w[c] - (hyper.lr * g[c]) / (np.sqrt(s) + hyper.eps)


@inlined
def ftrl(w, g, states, row, squares, columns, hyper):
    """n += g^2; z += g - (sqrt(n) - sqrt(old n)) / lr * w; w = 0 where |z| <= lambda1, else
    (sign(z) * lambda1 - z) / ((beta + sqrt(n)) / lr + lambda2)
    """
    decay(w, hyper)
    for c in range(w.size):
        n = states.accumulator[c] + g[c] * g[c]
        root = np.sqrt(n)
        sigma = (root - np.sqrt(states.accumulator[c])) / hyper.lr
        z = (states.linear[c] + g[c]) - sigma * w[c]
        states.accumulator[c] = n
        states.linear[c] = z
        slope = (hyper.beta + root) / hyper.lr + hyper.lambda2
        # `not <=`: a NaN in z goes on to w
        w[c] = np.float32(0.0)
        if not np.abs(z) <= hyper.lambda1:
            w[c] = (np.copysign(hyper.lambda1, z) - z) / slope


@inlined
def exact_rowwise_adagrad(w, g, states, row, squares, columns, hyper):
    """sum += mean(g^2); w -= lr / (sqrt(sum) + eps) * g"""
    # the mean over all columns of the table, also where this shard has some of them only
    s = row.sum[0] + squares[0] / columns
    row.sum[0] = s
    decay(w, hyper)
    step = hyper.lr / (np.sqrt(s) + hyper.eps)
    for c in range(w.size):
        w[c] = w[c] - step * g[c]


@inlined
def elapsed(prev_iter, hyper):
    """Steps since a row was last updated; 1 at its first update."""
    # 0 says that a row was never updated: steps are counted from 1
    return hyper.step - prev_iter if prev_iter > np.float32(0.0) else np.float32(1.0)


@inlined
def count_row(row, hyper):
    """Count this update in row_counter; older ones fade with the half-life, or do not where it is
    negative.
    """
    halflife = hyper.counter_halflife
    if halflife > np.float32(0.0):
        gap = np.float64(elapsed(row.prev_iter[0], hyper))
        # fp64 and one rounding, by our exp: a power of fp32 numbers would need the C library's
        faded = exp(-(gap * LN2) / np.float64(halflife))
        row.row_counter[0] = np.float32(1.0) + np.float32(faded) * row.row_counter[0]
    elif halflife == np.float32(0.0):
        row.row_counter[0] = np.float32(1.0)
    else:
        row.row_counter[0] = row.row_counter[0] + np.float32(1.0)


@inlined
def raised(x, y):
    """x^y of positive fp32 numbers, in fp64, rounded once."""
    return np.float32(exp(np.float64(y) * log(np.float64(x))))


@inlined
def powered(base, n):
    """base^n by binary powering in fp64, rounded once; n a whole number, 1 for n <= 0."""
    result = 1.0
    square = np.float64(base)
    left = np.int64(n)
    # binary powering, from the lowest bit: a defined order, where a library's power has none
    while left > 0:
        if left & 1:
            result *= square
        square *= square
        left >>= 1
    return np.float32(result)


@inlined
def tail_rate(rate, count, hyper):
    """Learning rate of a row of this row_counter, from its plain one, by `learning_rate_mode`."""
    mode = hyper.learning_rate_mode
    if mode < np.float32(0.0) or not count > hyper.tail_id_threshold:
        return rate
    if mode == np.float32(0.0):
        more = raised(hyper.max_counter / (count + np.float32(1.0)), hyper.adjustment_ub)
        # comparisons in this order: a NaN gives the bound (docs/arithmetic.md §5)
        more = more if more < np.float32(10.0) else np.float32(10.0)
        return rate * (more if more > np.float32(1.0) else np.float32(1.0))
    if mode == np.float32(1.0):
        less = raised((count + np.float32(1.0)) / hyper.max_counter, hyper.adjustment_ub)
        less = less if less > np.float32(0.1) else np.float32(0.1)
        return rate * (less if less < np.float32(1.0) else np.float32(1.0))
    return hyper.lr / (np.sqrt(hyper.adjustment_ub * count) + hyper.eps)


@inlined
def exact_rowwise_adagrad_with_counter(w, g, states, row, squares, columns, hyper):
    """exact_rowwise_adagrad whose rate and weight decay depend on how often, and how long ago, a
    row was updated
    """
    gap = elapsed(row.prev_iter[0], hyper)
    count_row(row, hyper)
    count = row.row_counter[0]
    s = row.sum[0] + squares[0] / columns
    row.sum[0] = s
    row.prev_iter[0] = hyper.step
    root = np.sqrt(s) + hyper.eps
    plain = hyper.lr / root
    rate = plain
    keep = np.float32(1.0)
    share = np.float32(0.0)
    if hyper.adjusting != np.float32(0.0):
        rate = tail_rate(plain, count, hyper)
        share = hyper.counter_frequency / count
        if hyper.adagradw != np.float32(0.0):
            if hyper.counter_halflife == np.float32(-1.0):
                rate = plain * np.sqrt(count)
            elif hyper.counter_halflife == np.float32(-2.0):
                top = hyper.lr * count
                rate = (top if top < hyper.adjustment_ub else hyper.adjustment_ub) / root
            lazy = powered(hyper.keep, min(gap, hyper.adjusted_steps) - np.float32(1.0))
            rate = rate * lazy
            keep = hyper.keep * lazy
    # FBGEMM's COUNTER takes weight decay by a row's share of updates, not at every step
    if hyper.decay != np.float32(0.0):
        keep = np.float32(1.0) - (share * hyper.decay) * hyper.lr
    # g holds wd * w: take back what the rate gives it, but for its share
    if hyper.l2 != np.float32(0.0):
        keep = np.float32(1.0) - hyper.l2 * (share * plain - rate)
    for c in range(w.size):
        w[c] = keep * w[c] - rate * g[c]


@inlined
def exact_rowwise_adagrad_with_cowclip(w, g, states, row, squares, columns, hyper):
    """exact_rowwise_adagrad of g * min(1, count * max(coefficient * ||w||, lower) / ||g||)"""
    count_row(row, hyper)
    s = row.sum[0] + squares[0] / columns
    row.sum[0] = s
    row.prev_iter[0] = hyper.step
    limit = hyper.weight_norm_coefficient * np.sqrt(squares[1])
    limit = row.row_counter[0] * (limit if limit > hyper.lower_bound else hyper.lower_bound)
    clip = limit / np.sqrt(squares[0])
    clip = clip if clip < np.float32(1.0) else np.float32(1.0)
    rate = clip * (hyper.lr / (np.sqrt(s) + hyper.eps))
    decay(w, hyper)
    for c in range(w.size):
        w[c] = w[c] - rate * g[c]


@inlined
def rowwise_rmsprop(w, g, states, row, squares, columns, hyper):
    """v = beta2 * v + (1 - beta2) * mean(g^2); w = max(least, 1 - lr * alpha * elapsed) * w - lr /
    (sqrt(v) + eps) * g
    """
    v = hyper.beta2 * row.square_avg[0] + hyper.one_minus_beta2 * (squares[0] / columns)
    shrunk = hyper.shrinkage * elapsed(row.prev_iter[0], hyper)
    row.square_avg[0] = v
    row.prev_iter[0] = hyper.step
    keep = np.float32(1.0) - (shrunk if shrunk < np.float32(1.0) else np.float32(1.0))
    keep = keep if keep > hyper.min_shrinkage else hyper.min_shrinkage
    rate = hyper.lr / (np.sqrt(v) + hyper.eps)
    decay(w, hyper)
    for c in range(w.size):
        w[c] = keep * w[c] - rate * g[c]


@inlined
def adam(w, g, states, row, squares, columns, hyper):
    """Adam with bias correction by the global step"""
    decay(w, hyper)
    for c in range(w.size):
        m = hyper.beta1 * states.exp_avg[c] + hyper.one_minus_beta1 * g[c]
        v = hyper.beta2 * states.exp_avg_sq[c] + hyper.one_minus_beta2 * (g[c] * g[c])
        states.exp_avg[c] = m
        states.exp_avg_sq[c] = v
        # corrections are products with rounded inverses, computed once a step: no division per
        # element
        root = np.sqrt(v * hyper.correction2) + hyper.eps
        w[c] = w[c] - hyper.lr * ((m * hyper.correction1) / root)


@inlined
def adam_with_cowclip(w, g, states, row, squares, columns, hyper):
    """adam of g * min(1, lookups * max(coefficient * ||w||, lower) / ||g||)"""
    limit = hyper.weight_norm_coefficient * np.sqrt(squares[1])
    limit = squares[2] * (limit if limit > hyper.lower_bound else hyper.lower_bound)
    clip = limit / np.sqrt(squares[0])
    # false for NaN (both norms 0): the gradient stays as it is
    if clip < np.float32(1.0):
        for c in range(g.size):
            g[c] = clip * g[c]
    adam(w, g, states, row, squares, columns, hyper)


@inlined
def row_moment(row, squares, columns, hyper):
    """v = beta2 * v + (1 - beta2) * mean(g^2); returns sqrt(corrected v) + eps."""
    v = hyper.beta2 * row.exp_avg_sq[0] + hyper.one_minus_beta2 * (squares[0] / columns)
    row.exp_avg_sq[0] = v
    return np.sqrt(v * hyper.correction2) + hyper.eps


@inlined
def partial_rowwise_adam(w, g, states, row, squares, columns, hyper):
    """Adam with one second moment per row, from mean(g^2)"""
    root = row_moment(row, squares, columns, hyper)
    decay(w, hyper)
    for c in range(w.size):
        m = hyper.beta1 * states.exp_avg[c] + hyper.one_minus_beta1 * g[c]
        states.exp_avg[c] = m
        w[c] = w[c] - hyper.lr * ((m * hyper.correction1) / root)


@inlined
def add_decay(w, g, hyper):
    """g += wd * w, wd the decoupled weight decay: in LAMB it is part of the step."""
    wd = hyper.decay
    if wd != np.float32(0.0):
        for c in range(g.size):
            g[c] = g[c] + wd * w[c]


@inlined
def lamb_prepare(w, g, states, hyper):
    """Adam's moments; g becomes Adam's step, with weight decay, before the rate"""
    regularise(w, g, states, hyper)
    for c in range(w.size):
        m = hyper.beta1 * states.exp_avg[c] + hyper.one_minus_beta1 * g[c]
        v = hyper.beta2 * states.exp_avg_sq[c] + hyper.one_minus_beta2 * (g[c] * g[c])
        states.exp_avg[c] = m
        states.exp_avg_sq[c] = v
        g[c] = (m * hyper.correction1) / (np.sqrt(v * hyper.correction2) + hyper.eps)
    add_decay(w, g, hyper)


@inlined
def lamb(w, g, states, row, squares, columns, hyper):
    """w -= lr * ||w|| / ||step|| * step, the ratio 1 where a norm is 0"""
    g_norm = np.sqrt(squares[0])
    w_norm = np.sqrt(squares[1])
    rate = hyper.lr
    if g_norm != np.float32(0.0) and w_norm != np.float32(0.0):
        rate = rate * (w_norm / g_norm)
    for c in range(w.size):
        w[c] = w[c] - rate * g[c]


@inlined
def partial_rowwise_lamb_direct(w, g, states, row, squares, columns, hyper):
    """Moments as in partial_rowwise_adam; g becomes the step, with weight decay, before the rate"""
    root = row_moment(row, squares, columns, hyper)
    for c in range(w.size):
        m = hyper.beta1 * states.exp_avg[c] + hyper.one_minus_beta1 * g[c]
        states.exp_avg[c] = m
        g[c] = (m * hyper.correction1) / root
    add_decay(w, g, hyper)


@inlined
def partial_rowwise_lamb(w, g, states, row, squares, columns, hyper):
    """LAMB with one second moment per row, from mean(g^2)"""
    lamb(w, g, states, row, squares, columns, hyper)
