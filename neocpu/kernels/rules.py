"""What does one optimizer do to one row? Each rule here, in phases, as plain functions that compose into the update kernels.

    <rule>_prepare(w, g, e0, e1, r, hyper)             before the row scalars; `regularise` where a rule has none
    squares = sum of g*g, sum of w*w                   over the column tree: as many row scalars as the registry says
    <rule>(w, g, e0, e1, r, squares, columns, hyper)   new weights and states, in place
    <rule>_finish(w, square, hyper)                    where a rule has one: after the step, with the new sum of w*w

w, g: row and merged gradient, f32[D]; e0, e1: its element states (size 0 where the rule has none); r: row states f32[1] or
[0]; squares f32[2]; columns: D of the whole row, as fp32; hyper: `reference.rules.HYPER`. Every line is one IEEE operation per
column, in the order of docs/arithmetic.md §5. A LAMB prepares its step in g and reads two scalars; a norm limit is a finish.
"""

import numpy as np

from neocpu.kernels._jit import inlined

LR, EPS, BETA1, REST1, BETA2, REST2, FIX1, FIX2, L2, KEEP = range(10)


@inlined
def regularise(w, g, e0, e1, r, hyper):
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
def nothing(w, square, hyper):
    """The phase after the step of a rule that ends with it."""


@inlined
def exact_sgd(w, g, e0, e1, r, squares, columns, hyper):
    """w -= lr * g"""
    decay(w, hyper)
    lr = hyper[LR]
    for c in range(w.size):
        w[c] = w[c] - lr * g[c]


@inlined
def exact_adagrad(w, g, e0, e1, r, squares, columns, hyper):
    """sum += g^2; w -= lr * g / (sqrt(sum) + eps)"""
    lr, eps = hyper[LR], hyper[EPS]
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
def adam(w, g, e0, e1, r, squares, columns, hyper):
    """Adam with bias correction by the global step"""
    lr, eps, b1, n1, b2, n2 = hyper[LR], hyper[EPS], hyper[BETA1], hyper[REST1], hyper[BETA2], hyper[REST2]
    c1, c2 = hyper[FIX1], hyper[FIX2]
    decay(w, hyper)
    for c in range(w.size):
        m = b1 * e0[c] + n1 * g[c]
        v = b2 * e1[c] + n2 * (g[c] * g[c])
        e0[c], e1[c] = m, v
        w[c] = w[c] - lr * ((m * c1) / (np.sqrt(v * c2) + eps))
