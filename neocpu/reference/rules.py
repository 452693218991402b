"""Which optimizers exist, what do they remember, and what is their formula? The registry, and the twin of `kernels/rules.py`.

A rule here updates one row, or a whole array of elements, in place; arguments as in the kernels. Every NumPy operation is one
IEEE operation per element: the kernels' bits.
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


def _named(hyper) -> dict[str, np.float32]:
    return dict(zip(HYPER, hyper))


def regularise(w, g, e0, e1, r, hyper):
    """L2 weight decay, before anything else: g = fl(g + fl(wd*w)); without it nothing is added (0*w could be NaN)."""
    l2 = _named(hyper)["l2"]
    if l2:
        g += l2 * w


def _step_down(w, step, keep) -> None:
    """w = fl(fl(keep*w) - step), keep the decoupled weight decay."""
    w[...] = (w if keep == 1 else keep * w) - step


def exact_sgd(w, g, e0, e1, r, squares, columns, hyper):
    """w -= lr * g"""
    h = _named(hyper)
    _step_down(w, h["lr"] * g, h["keep"])


def exact_adagrad(w, g, e0, e1, r, squares, columns, hyper):
    """sum += g^2; w -= lr * g / (sqrt(sum) + eps)"""
    h = _named(hyper)
    e0 += np.square(g)
    _step_down(w, (h["lr"] * g) / (np.sqrt(e0) + h["eps"]), h["keep"])


def exact_rowwise_adagrad(w, g, e0, e1, r, squares, columns, hyper):
    """sum += mean(g^2); w -= lr / (sqrt(sum) + eps) * g"""
    h = _named(hyper)
    r += squares[0] / columns
    _step_down(w, h["lr"] / (np.sqrt(r[0]) + h["eps"]) * g, h["keep"])


def adam(w, g, e0, e1, r, squares, columns, hyper):
    """Adam with bias correction by the global step"""
    h = _named(hyper)
    e0[...] = h["beta1"] * e0 + h["one_minus_beta1"] * g
    e1[...] = h["beta2"] * e1 + h["one_minus_beta2"] * np.square(g)
    _step_down(w, h["lr"] * (e0 * h["correction1"] / (np.sqrt(e1 * h["correction2"]) + h["eps"])), h["keep"])
