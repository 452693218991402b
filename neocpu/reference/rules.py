"""Which optimizers exist, what do they remember, and what is their formula? The registry, and the twin of `kernels/rules.py`.

A rule works on one row in phases:  terms (products whose column trees give row scalars) -> update.
This file imports NumPy only, so the config and `--help` can list the rules without Numba. Formulas: docs/arithmetic.md §5.
"""

from dataclasses import dataclass

import numpy as np

HYPER = ("lr", "eps", "beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "correction1", "correction2", "l2", "keep")


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
