"""What is the formula of each optimizer? The twin of `kernels/rows/rules.py`.

A rule here updates one row, or a whole array of elements, in place; phases and arguments as in the
kernels. Every NumPy operation is one IEEE operation per element: the kernels' bits. Formulas:
docs/arithmetic.md §5.
"""

import numpy as np

from neocpu.kernels.twins.rows.row_counters import count_row, elapsed, powered, tail_rate


def prepare(name):
    """The first phase of a rule."""
    return {"lars_sgd": lars_sgd_prepare, "lamb": lamb_prepare}.get(name, regularise)


def regularise(w, g, states, hyper):
    """L2 weight decay, before anything else: g = fl(g + fl(wd*w)); without it nothing is added (0*w
    could be NaN).
    """
    if hyper.l2:
        g += hyper.l2 * w


def _step_down(w, step, keep) -> None:
    """w = fl(fl(keep*w) - step), keep the decoupled weight decay."""
    w[...] = (w if keep == 1 else keep * w) - step


def limit_norm(w, g, states, row, squares, columns, hyper):
    """w *= max_norm / ||w|| where the norm is larger"""
    norm = np.sqrt(squares[0])
    if norm > hyper.max_norm:
        w *= hyper.max_norm / norm


def exact_sgd(w, g, states, row, squares, columns, hyper):
    """w -= lr * g"""
    _step_down(w, hyper.lr * g, hyper.keep)


def momentum_sgd(w, g, states, row, squares, columns, hyper):
    """m = momentum * m + g; w -= lr * m"""
    m = states.momentum_buffer
    m[...] = hyper.momentum * m + g
    _step_down(w, hyper.lr * m, hyper.keep)


def lars_sgd_prepare(w, g, states, hyper):
    """Nothing: norms are those of the merged gradient and of the row, before weight decay."""


def lars_sgd(w, g, states, row, squares, columns, hyper):
    """trust = eta * ||w|| / (||g|| + wd * ||w||); m = momentum * m + lr * trust * (g + wd * w);
    w -= m
    """
    g_norm, w_norm = np.sqrt(squares)
    trust = np.float32(1)
    if g_norm != 0 and w_norm != 0:
        trust = hyper.eta * w_norm / (g_norm + hyper.l2 * w_norm)
    regularise(w, g, states, hyper)
    m = states.momentum_buffer
    m[...] = hyper.momentum * m + (hyper.lr * trust) * g
    _step_down(w, m, hyper.keep)


def exact_adagrad(w, g, states, row, squares, columns, hyper):
    """sum += g^2; w -= lr * g / (sqrt(sum) + eps)"""
    states.sum[...] += np.square(g)
    _step_down(w, (hyper.lr * g) / (np.sqrt(states.sum) + hyper.eps), hyper.keep)


def ftrl(w, g, states, row, squares, columns, hyper):
    """n += g^2; z += g - (sqrt(n) - sqrt(old n)) / lr * w; w = 0 where |z| <= lambda1, else
    (sign(z) * lambda1 - z) / ((beta + sqrt(n)) / lr + lambda2)
    """
    if hyper.keep != 1:
        w *= hyper.keep
    z = states.linear
    n = states.accumulator
    old_root = np.sqrt(n)
    n += np.square(g)
    root = np.sqrt(n)
    z += g
    z -= (root - old_root) / hyper.lr * w
    slope = (hyper.beta + root) / hyper.lr + hyper.lambda2
    outside = (np.copysign(hyper.lambda1, z) - z) / slope
    w[...] = np.where(np.abs(z) <= hyper.lambda1, np.float32(0), outside)


def exact_rowwise_adagrad(w, g, states, row, squares, columns, hyper):
    """sum += mean(g^2); w -= lr / (sqrt(sum) + eps) * g"""
    row.sum[0] += squares[0] / columns
    _step_down(w, hyper.lr / (np.sqrt(row.sum[0]) + hyper.eps) * g, hyper.keep)


def exact_rowwise_adagrad_with_counter(w, g, states, row, squares, columns, hyper):
    """exact_rowwise_adagrad whose rate and weight decay depend on how often, and how long ago, a
    row was updated
    """
    one = np.float32(1)
    gap = elapsed(row.prev_iter[0], hyper)
    count_row(row, hyper)
    count = row.row_counter[0]
    row.sum[0] += squares[0] / columns
    row.prev_iter[0] = hyper.step
    root = np.sqrt(row.sum[0]) + hyper.eps
    plain = hyper.lr / root
    rate = plain
    keep = one
    share = np.float32(0)
    if hyper.adjusting:
        rate = tail_rate(plain, count, hyper)
        share = hyper.counter_frequency / count
    if hyper.adjusting and hyper.adagradw:
        if hyper.counter_halflife == -1:
            rate = plain * np.sqrt(count)
        if hyper.counter_halflife == -2:
            rate = np.fmin(hyper.lr * count, hyper.adjustment_ub) / root
        lazy = powered(hyper.keep, int(min(gap, hyper.adjusted_steps)) - 1)
        rate = rate * lazy
        keep = hyper.keep * lazy
    if hyper.decay:
        keep = one - share * hyper.decay * hyper.lr
    if hyper.l2:
        keep = one - hyper.l2 * (share * plain - rate)
    w[...] = keep * w - rate * g


def exact_rowwise_adagrad_with_cowclip(w, g, states, row, squares, columns, hyper):
    """exact_rowwise_adagrad of g * min(1, count * max(coefficient * ||w||, lower) / ||g||)"""
    count_row(row, hyper)
    row.sum[0] += squares[0] / columns
    row.prev_iter[0] = hyper.step
    limit = np.fmax(hyper.weight_norm_coefficient * np.sqrt(squares[1]), hyper.lower_bound)
    clip = np.fmin(row.row_counter[0] * limit / np.sqrt(squares[0]), np.float32(1))
    rate = clip * (hyper.lr / (np.sqrt(row.sum[0]) + hyper.eps))
    _step_down(w, rate * g, hyper.keep)


def rowwise_rmsprop(w, g, states, row, squares, columns, hyper):
    """v = beta2 * v + (1 - beta2) * mean(g^2); w = max(least, 1 - lr * alpha * elapsed) * w - lr /
    (sqrt(v) + eps) * g
    """
    one = np.float32(1)
    shrunk = np.fmin(hyper.shrinkage * elapsed(row.prev_iter[0], hyper), one)
    keep = np.fmax(one - shrunk, hyper.min_shrinkage)
    v = hyper.beta2 * row.square_avg[0] + hyper.one_minus_beta2 * (squares[0] / columns)
    row.square_avg[0] = v
    row.prev_iter[0] = hyper.step
    if hyper.keep != 1:
        w *= hyper.keep
    w[...] = keep * w - hyper.lr / (np.sqrt(v) + hyper.eps) * g


def _first_moment(g, states, hyper):
    """m = beta1 * m + (1 - beta1) * g; returns the corrected m."""
    m = states.exp_avg
    m[...] = hyper.beta1 * m + hyper.one_minus_beta1 * g
    return m * hyper.correction1


def _direction(g, states, hyper):
    """Adam's step before its rate; moments are updated."""
    v = states.exp_avg_sq
    v[...] = hyper.beta2 * v + hyper.one_minus_beta2 * np.square(g)
    return _first_moment(g, states, hyper) / (np.sqrt(v * hyper.correction2) + hyper.eps)


def _row_direction(g, states, row, squares, columns, hyper):
    """Adam's step before its rate, with one second moment per row; moments are updated."""
    v = hyper.beta2 * row.exp_avg_sq[0] + hyper.one_minus_beta2 * (squares[0] / columns)
    row.exp_avg_sq[0] = v
    return _first_moment(g, states, hyper) / (np.sqrt(v * hyper.correction2) + hyper.eps)


def adam(w, g, states, row, squares, columns, hyper):
    """Adam with bias correction by the global step"""
    _step_down(w, hyper.lr * _direction(g, states, hyper), hyper.keep)


def adam_with_cowclip(w, g, states, row, squares, columns, hyper):
    """adam of g * min(1, lookups * max(coefficient * ||w||, lower) / ||g||)"""
    limit = np.fmax(hyper.weight_norm_coefficient * np.sqrt(squares[1]), hyper.lower_bound)
    # fmin: 0 / 0, of a gradient of zeros, gives 1
    g *= np.fmin(squares[2] * limit / np.sqrt(squares[0]), np.float32(1))
    adam(w, g, states, row, squares, columns, hyper)


def partial_rowwise_adam(w, g, states, row, squares, columns, hyper):
    """Adam with one second moment per row, from mean(g^2)"""
    direction = _row_direction(g, states, row, squares, columns, hyper)
    _step_down(w, hyper.lr * direction, hyper.keep)


def lamb_prepare(w, g, states, hyper):
    """Adam's moments; g becomes Adam's step, with weight decay, before the rate"""
    regularise(w, g, states, hyper)
    g[...] = _direction(g, states, hyper)
    if hyper.decay:
        g += hyper.decay * w


def lamb(w, g, states, row, squares, columns, hyper):
    """w -= lr * ||w|| / ||step|| * step, the ratio 1 where a norm is 0"""
    g_norm, w_norm = np.sqrt(squares)
    ratio = np.float32(1) if g_norm == 0 or w_norm == 0 else w_norm / g_norm
    w -= hyper.lr * ratio * g


def partial_rowwise_lamb_direct(w, g, states, row, squares, columns, hyper):
    """Moments as in partial_rowwise_adam; g becomes the step, with weight decay, before the rate"""
    g[...] = _row_direction(g, states, row, squares, columns, hyper)
    if hyper.decay:
        g += hyper.decay * w


def partial_rowwise_lamb(w, g, states, row, squares, columns, hyper):
    """LAMB with one second moment per row, from mean(g^2)"""
    lamb(w, g, states, row, squares, columns, hyper)
