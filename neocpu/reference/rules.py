"""Which optimizers exist, what do they remember, and what is their formula? The registry, and the twin of `kernels/rules.py`.

A rule here updates many rows at once, in place: w, g f32[U, D], element states e0, e1 f32[U, D], row state r f32[U, 1], and
`mean` f32[U, 1], the mean squares of the rows. Every NumPy operation is one IEEE operation per element: the kernels' bits.
This file imports NumPy only, so the config and `--help` can list the rules without Numba. Formulas: docs/arithmetic.md §5.
"""

from dataclasses import dataclass

import numpy as np

HYPER = (
    "lr",
    "eps",
    "beta1",
    "one_minus_beta1",
    "beta2",
    "one_minus_beta2",
    "correction1",
    "correction2",
    "l2",
    "keep",
)


@dataclass(frozen=True)
class Rule:
    """One optimizer: names of its state tensors per element and per row, and how many row scalars its update reads."""

    name: str
    element_state: tuple[str, ...] = ()
    row_state: tuple[str, ...] = ()
    row_scalars: int = 0
    accumulator: str | None = None  # state tensor that starts at `initial_accumulator_value`


RULES = {
    rule.name: rule
    for rule in (
        Rule("exact_sgd"),
        Rule("exact_adagrad", element_state=("sum",), accumulator="sum"),
        Rule("exact_rowwise_adagrad", row_state=("sum",), row_scalars=1, accumulator="sum"),
        Rule("adam", element_state=("exp_avg", "exp_avg_sq")),
    )
}


def named(hyper):
    """The numbers of `hyper` f32[10] by name."""
    return dict(zip(HYPER, np.asarray(hyper, np.float32)))


def regularise(w, g, hyper):
    """g += l2 * w; without L2 nothing is added (0 * w could be NaN)."""
    l2 = named(hyper)["l2"]
    if l2:
        g += l2 * w


def decay(w, hyper):
    """w *= keep."""
    keep = named(hyper)["keep"]
    if keep != 1:
        w *= keep


def square_sum(g):
    """Sums of squares f32[U] of the rows of g f32[U, D]: a binary tree, adjacent pairs first, absent columns +0."""
    level = g * g
    size = 1 << max(0, level.shape[1] - 1).bit_length()
    level = np.pad(level, ((0, 0), (0, size - level.shape[1])))
    while level.shape[1] > 1:
        level = level[:, 0::2] + level[:, 1::2]
    return level[:, 0]


def exact_sgd(w, g, e0, e1, r, mean, hyper):
    """w -= lr * g"""
    decay(w, hyper)
    w -= named(hyper)["lr"] * g


def exact_adagrad(w, g, e0, e1, r, mean, hyper):
    """sum += g^2; w -= lr * g / (sqrt(sum) + eps)"""
    h = named(hyper)
    e0 += np.square(g)
    decay(w, hyper)
    w -= (h["lr"] * g) / (np.sqrt(e0) + h["eps"])


def exact_rowwise_adagrad(w, g, e0, e1, r, mean, hyper):
    """sum += mean(g^2); w -= lr / (sqrt(sum) + eps) * g"""
    h = named(hyper)
    r += mean
    decay(w, hyper)
    w -= h["lr"] / (np.sqrt(r) + h["eps"]) * g


def adam(w, g, e0, e1, r, mean, hyper):
    """Adam with bias correction by the global step"""
    h = named(hyper)
    e0[...] = h["beta1"] * e0 + h["one_minus_beta1"] * g
    e1[...] = h["beta2"] * e1 + h["one_minus_beta2"] * np.square(g)
    decay(w, hyper)
    w -= h["lr"] * (e0 * h["correction1"] / (np.sqrt(e1 * h["correction2"]) + h["eps"]))
