"""What does one optimizer do to one row? Each rule here, in phases, as plain functions that compose
into the update kernels.

    <rule>_prepare(w, g, e0, e1, hyper)        before anything is summed; `regularise` where a rule has none
    <rule>_direct(…)                           where a rule has one: turns g into the step's direction, given the sum of g*g
    <rule>(…)                                  new weights and states, given the sums of g*g and w*w: as many as it reads
    limit_norm(…)                              with optimizer.sparse.max_norm: after the step, given the new sum of w*w

All but the first are called as (w, g, e0, e1, r, squares, columns, hyper). w, g: row and merged
gradient, f32[D]; e0, e1: its element states (size 0 where the rule has none); r: its row states,
f32[n]; squares f32[2]: the sums, over the column tree; columns: D of the whole row, as fp32; hyper:
`reference.rules.HYPER`. They write w, g and the states in place. Every line is one IEEE operation
per column, in the order of docs/arithmetic.md §5. Sources: FBGEMM's `optimizers.py`, and the papers
named there.
"""

import numpy as np

from neocpu.kernels._jit import inlined
from neocpu.kernels.elementary import exp, log

LR, EPS, BETA1, ONE_MINUS_BETA1, BETA2, ONE_MINUS_BETA2, CORRECTION1, CORRECTION2, L2, KEEP = range(
    10
)
DECAY, MOMENTUM, ETA, MAX_NORM, STEP, SHRINK, LEAST_KEEP, HALFLIFE, FREQUENCY, ADJUSTING = range(
    10, 20
)
SINCE, RATE_MODE, ADAGRADW, MOST, TAIL, BOUND, COEFFICIENT, LOWER = range(20, 28)
LN2 = 0.6931471805599453


@inlined
def regularise(w, g, e0, e1, hyper):
    """L2: g += wd * w."""
    l2 = hyper[L2]
    if l2 != np.float32(0.0):
        for c in range(g.size):
            g[c] = g[c] + l2 * w[c]


@inlined
def decay(w, hyper):
    """Decoupled weight decay: w *= 1 - lr * wd."""
    keep = hyper[KEEP]
    if keep != np.float32(1.0):
        for c in range(w.size):
            w[c] = keep * w[c]


@inlined
def nothing(w, g, e0, e1, r, squares, columns, hyper):
    """A phase that a rule does not have."""


@inlined
def limit_norm(w, g, e0, e1, r, squares, columns, hyper):
    """w *= max_norm / ||w|| where the norm is larger"""
    norm = np.sqrt(squares[0])
    if norm > hyper[MAX_NORM]:
        factor = hyper[MAX_NORM] / norm
        for c in range(w.size):
            w[c] = factor * w[c]


@inlined
def exact_sgd(w, g, e0, e1, r, squares, columns, hyper):
    """w -= lr * g"""
    decay(w, hyper)
    lr = hyper[LR]
    for c in range(w.size):
        w[c] = w[c] - lr * g[c]


@inlined
def momentum_sgd(w, g, e0, e1, r, squares, columns, hyper):
    """m = momentum * m + g; w -= lr * m"""
    lr = hyper[LR]
    momentum = hyper[MOMENTUM]
    decay(w, hyper)
    for c in range(w.size):
        m = momentum * e0[c] + g[c]
        e0[c] = m
        w[c] = w[c] - lr * m


@inlined
def lars_sgd_prepare(w, g, e0, e1, hyper):
    """Nothing: norms are those of the merged gradient and of the row, before weight decay."""


@inlined
def lars_sgd(w, g, e0, e1, r, squares, columns, hyper):
    """trust = eta * ||w|| / (||g|| + wd * ||w||); m = momentum * m + lr * trust * (g + wd * w); w
    -= m
    """
    g_norm = np.sqrt(squares[0])
    w_norm = np.sqrt(squares[1])
    trust = np.float32(1.0)
    momentum = hyper[MOMENTUM]
    if g_norm != np.float32(0.0) and w_norm != np.float32(0.0):
        trust = (hyper[ETA] * w_norm) / (g_norm + hyper[L2] * w_norm)
    rate = hyper[LR] * trust
    regularise(w, g, e0, e1, hyper)
    decay(w, hyper)
    for c in range(w.size):
        m = momentum * e0[c] + rate * g[c]
        e0[c] = m
        w[c] = w[c] - m


@inlined
def exact_adagrad(w, g, e0, e1, r, squares, columns, hyper):
    """sum += g^2; w -= lr * g / (sqrt(sum) + eps)"""
    lr = hyper[LR]
    eps = hyper[EPS]
    decay(w, hyper)
    for c in range(w.size):
        s = e0[c] + g[c] * g[c]
        e0[c] = s
        w[c] = w[c] - (lr * g[c]) / (np.sqrt(s) + eps)


@inlined
def exact_rowwise_adagrad(w, g, e0, e1, r, squares, columns, hyper):
    """sum += mean(g^2); w -= lr / (sqrt(sum) + eps) * g"""
    s = r[0] + squares[0] / columns
    r[0] = s
    decay(w, hyper)
    step = hyper[LR] / (np.sqrt(s) + hyper[EPS])
    for c in range(w.size):
        w[c] = w[c] - step * g[c]


@inlined
def elapsed(before, hyper):
    """Steps since a row was last updated; 1 at its first update."""
    return hyper[STEP] - before if before > np.float32(0.0) else np.float32(1.0)


@inlined
def count_row(r, hyper):
    """Count this update of a row in r[2]; older ones fade with the half-life, or do not where it is
    negative.
    """
    halflife = hyper[HALFLIFE]
    if halflife > np.float32(0.0):
        faded = exp(-(np.float64(elapsed(r[1], hyper)) * LN2) / np.float64(halflife))
        r[2] = np.float32(1.0) + np.float32(faded) * r[2]
    elif halflife == np.float32(0.0):
        r[2] = np.float32(1.0)
    else:
        r[2] = r[2] + np.float32(1.0)


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
    while left > 0:
        if left & 1:
            result *= square
        square *= square
        left >>= 1
    return np.float32(result)


@inlined
def tail_rate(rate, times, hyper):
    """Learning rate of a row that was counted `times`, from its plain one, by `learning_rate_mode`."""
    mode = hyper[RATE_MODE]
    if mode < np.float32(0.0) or not times > hyper[TAIL]:
        return rate
    if mode == np.float32(0.0):
        more = raised(hyper[MOST] / (times + np.float32(1.0)), hyper[BOUND])
        more = more if more < np.float32(10.0) else np.float32(10.0)
        return rate * (more if more > np.float32(1.0) else np.float32(1.0))
    if mode == np.float32(1.0):
        less = raised((times + np.float32(1.0)) / hyper[MOST], hyper[BOUND])
        less = less if less > np.float32(0.1) else np.float32(0.1)
        return rate * (less if less < np.float32(1.0) else np.float32(1.0))
    return hyper[LR] / (np.sqrt(hyper[BOUND] * times) + hyper[EPS])


@inlined
def exact_rowwise_adagrad_with_counter(w, g, e0, e1, r, squares, columns, hyper):
    """exact_rowwise_adagrad whose rate and weight decay depend on how often, and how long ago, a
    row was updated
    """
    gap = elapsed(r[1], hyper)
    count_row(r, hyper)
    s = r[0] + squares[0] / columns
    times = r[2]
    r[0] = s
    r[1] = hyper[STEP]
    root = np.sqrt(s) + hyper[EPS]
    plain = hyper[LR] / root
    rate = plain
    keep = np.float32(1.0)
    share = np.float32(0.0)
    if hyper[ADJUSTING] != np.float32(0.0):
        rate = tail_rate(plain, times, hyper)
        share = hyper[FREQUENCY] / times
        if hyper[ADAGRADW] != np.float32(0.0):
            if hyper[HALFLIFE] == np.float32(-1.0):
                rate = plain * np.sqrt(times)
            elif hyper[HALFLIFE] == np.float32(-2.0):
                top = hyper[LR] * times
                rate = (top if top < hyper[BOUND] else hyper[BOUND]) / root
            lazy = powered(hyper[KEEP], min(gap, hyper[SINCE]) - np.float32(1.0))
            rate = rate * lazy
            keep = hyper[KEEP] * lazy
    if hyper[DECAY] != np.float32(0.0):
        keep = np.float32(1.0) - (share * hyper[DECAY]) * hyper[LR]
    # g holds wd * w: take back what the rate gives it, but for its share
    if hyper[L2] != np.float32(0.0):
        keep = np.float32(1.0) - hyper[L2] * (share * plain - rate)
    for c in range(w.size):
        w[c] = keep * w[c] - rate * g[c]


@inlined
def exact_rowwise_adagrad_with_cowclip(w, g, e0, e1, r, squares, columns, hyper):
    """exact_rowwise_adagrad of g * min(1, times * max(coefficient * ||w||, lower) / ||g||)"""
    count_row(r, hyper)
    s = r[0] + squares[0] / columns
    r[0] = s
    r[1] = hyper[STEP]
    limit = hyper[COEFFICIENT] * np.sqrt(squares[1])
    limit = r[2] * (limit if limit > hyper[LOWER] else hyper[LOWER])
    clip = limit / np.sqrt(squares[0])
    clip = clip if clip < np.float32(1.0) else np.float32(1.0)
    rate = clip * (hyper[LR] / (np.sqrt(s) + hyper[EPS]))
    decay(w, hyper)
    for c in range(w.size):
        w[c] = w[c] - rate * g[c]


@inlined
def rowwise_rmsprop(w, g, e0, e1, r, squares, columns, hyper):
    """v = beta2 * v + (1 - beta2) * mean(g^2); w = max(least, 1 - lr * alpha * elapsed) * w - lr /
    (sqrt(v) + eps) * g
    """
    v = hyper[BETA2] * r[0] + hyper[ONE_MINUS_BETA2] * (squares[0] / columns)
    lost = hyper[SHRINK] * elapsed(r[1], hyper)
    r[0] = v
    r[1] = hyper[STEP]
    keep = np.float32(1.0) - (lost if lost < np.float32(1.0) else np.float32(1.0))
    keep = keep if keep > hyper[LEAST_KEEP] else hyper[LEAST_KEEP]
    rate = hyper[LR] / (np.sqrt(v) + hyper[EPS])
    decay(w, hyper)
    for c in range(w.size):
        w[c] = keep * w[c] - rate * g[c]


@inlined
def adam(w, g, e0, e1, r, squares, columns, hyper):
    """Adam with bias correction by the global step"""
    lr = hyper[LR]
    eps = hyper[EPS]
    b1 = hyper[BETA1]
    n1 = hyper[ONE_MINUS_BETA1]
    b2 = hyper[BETA2]
    n2 = hyper[ONE_MINUS_BETA2]
    c1 = hyper[CORRECTION1]
    c2 = hyper[CORRECTION2]
    decay(w, hyper)
    for c in range(w.size):
        m = b1 * e0[c] + n1 * g[c]
        v = b2 * e1[c] + n2 * (g[c] * g[c])
        e0[c] = m
        e1[c] = v
        w[c] = w[c] - lr * ((m * c1) / (np.sqrt(v * c2) + eps))


@inlined
def row_moment(r, squares, columns, hyper):
    """v = beta2 * v + (1 - beta2) * mean(g^2); returns sqrt(corrected v) + eps."""
    v = hyper[BETA2] * r[0] + hyper[ONE_MINUS_BETA2] * (squares[0] / columns)
    r[0] = v
    return np.sqrt(v * hyper[CORRECTION2]) + hyper[EPS]


@inlined
def partial_rowwise_adam(w, g, e0, e1, r, squares, columns, hyper):
    """Adam with one second moment per row, from mean(g^2)"""
    lr = hyper[LR]
    b1 = hyper[BETA1]
    n1 = hyper[ONE_MINUS_BETA1]
    c1 = hyper[CORRECTION1]
    root = row_moment(r, squares, columns, hyper)
    decay(w, hyper)
    for c in range(w.size):
        m = b1 * e0[c] + n1 * g[c]
        e0[c] = m
        w[c] = w[c] - lr * ((m * c1) / root)


@inlined
def add_decay(w, g, hyper):
    """g += wd * w, wd the decoupled weight decay: in LAMB it is part of the step."""
    wd = hyper[DECAY]
    if wd != np.float32(0.0):
        for c in range(g.size):
            g[c] = g[c] + wd * w[c]


@inlined
def lamb_prepare(w, g, e0, e1, hyper):
    """Adam's moments; g becomes Adam's step, with weight decay, before the rate"""
    eps = hyper[EPS]
    b1 = hyper[BETA1]
    n1 = hyper[ONE_MINUS_BETA1]
    c1 = hyper[CORRECTION1]
    b2 = hyper[BETA2]
    n2 = hyper[ONE_MINUS_BETA2]
    c2 = hyper[CORRECTION2]
    regularise(w, g, e0, e1, hyper)
    for c in range(w.size):
        m = b1 * e0[c] + n1 * g[c]
        v = b2 * e1[c] + n2 * (g[c] * g[c])
        e0[c] = m
        e1[c] = v
        g[c] = (m * c1) / (np.sqrt(v * c2) + eps)
    add_decay(w, g, hyper)


@inlined
def lamb(w, g, e0, e1, r, squares, columns, hyper):
    """w -= lr * ||w|| / ||step|| * step, the ratio 1 where a norm is 0"""
    g_norm = np.sqrt(squares[0])
    w_norm = np.sqrt(squares[1])
    rate = hyper[LR]
    if g_norm != np.float32(0.0) and w_norm != np.float32(0.0):
        rate = rate * (w_norm / g_norm)
    for c in range(w.size):
        w[c] = w[c] - rate * g[c]


@inlined
def partial_rowwise_lamb_direct(w, g, e0, e1, r, squares, columns, hyper):
    """Moments as in partial_rowwise_adam; g becomes the step, with weight decay, before the rate"""
    b1 = hyper[BETA1]
    n1 = hyper[ONE_MINUS_BETA1]
    c1 = hyper[CORRECTION1]
    root = row_moment(r, squares, columns, hyper)
    for c in range(w.size):
        m = b1 * e0[c] + n1 * g[c]
        e0[c] = m
        g[c] = (m * c1) / root
    add_decay(w, g, hyper)


@inlined
def partial_rowwise_lamb(w, g, e0, e1, r, squares, columns, hyper):
    """LAMB with one second moment per row, from mean(g^2)"""
    lamb(w, g, e0, e1, r, squares, columns, hyper)
