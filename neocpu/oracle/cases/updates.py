"""What do the cases of updates share? Hyper-parameters, states, and tables with a gradient.

Hyper-parameters are fp32 numbers (1 - 2^-10, not 0.999), so that a kernel's rounding of them cannot
explain an error; `covers/update.py` has others.
"""

import numpy as np

from neocpu.core.rules import RULES
from neocpu.core.types import Floats
from neocpu.oracle.cases.draw import (
    Draw,
    Pick,
    Recipe,
    bags,
    coded,
    gradient,
    ragged,
    skewed,
    tables,
)
from neocpu.oracle.operator import Arrays, Options, Value
from neocpu.oracle.ops.backward import HYPER
from neocpu.oracle.truth.states import layout_of

EXACT: dict[str, Value] = {
    "learning_rate": 0.0625,
    "eps": 2.0**-20,
    "beta1": 0.875,
    "beta2": 1 - 2.0**-10,
}
# Of trajectories, whose learning rates are an input.
SCHEDULED = {key: value for key, value in EXACT.items() if key != "learning_rate"}
# Options of single rules, beside EXACT.
OPTIONS_OF_RULE: dict[str, dict[str, Value]] = {
    "momentum_sgd": {"momentum": 0.625},
    "lars_sgd": {"momentum": 0.625, "eta": 0.125},
    "ftrl": {"beta": 0.5, "lambda1": 0.125, "lambda2": 0.25},
    "rowwise_rmsprop": {"ar_alpha": 0.25, "min_shrinkage": 0.5},
    "exact_rowwise_adagrad_with_counter": {
        "counter_halflife": 8,
        "learning_rate_mode": "counter_sgd",
        "tail_id_threshold": 2.0,
    },
    "exact_rowwise_adagrad_with_cowclip": {
        "counter_halflife": 8,
        "weight_norm_coefficient": 0.5,
        "lower_bound": 0.125,
    },
    "adam_with_cowclip": {"weight_norm_coefficient": 0.5, "lower_bound": 0.125},
}

assert set(EXACT) <= set(HYPER)


def states(draw: Draw, rule: str, inputs: Arrays, fresh: bool = False) -> Arrays:
    """States of a rule for the tables: zeros if fresh, else as after five steps."""
    record = RULES[rule]
    arrays: Arrays = {}
    elements = int(inputs["weights"].size)
    rows = int(inputs["rows"].sum())
    for name in (*record.element_state, *record.row_state):
        size = elements if name in record.element_state else rows
        if fresh:
            value = np.zeros(size, np.float32)
        elif name == "prev_iter":
            value = draw.whole(size, 0, 6).astype(np.float32)
        elif name == "row_counter":
            value = draw.whole(size, 0, 8).astype(np.float32)
        elif name in ("momentum_buffer", "exp_avg", "linear"):
            value = draw.floats(size, -4, 0)
        else:
            # Sums of squares are not negative.
            value = np.abs(draw.floats(size, -4, 1))
        arrays[name] = value
    return arrays


def plain(
    recipe: Recipe,
    name: str,
    rule: str = "exact_rowwise_adagrad",
    pooling: str = "sum",
    weighted: bool = False,
) -> Arrays:
    """Two tables, three features, ragged bags with many duplicates, states as after five steps."""
    draw = Draw(recipe.seed, f"backward-{name}")
    inputs = tables(draw, (11, 6), recipe.widths(6, 3), (1, 0, 1))
    inputs |= bags(draw, inputs, ragged(draw, 3, 6), weighted=weighted)
    return {**inputs, **states(draw, rule, inputs), "grad_output": gradient(draw, inputs, pooling)}


def dyadic(
    recipe: Recipe, name: str, rows: int, width: int, lengths: list[int], pick: Pick = skewed
) -> Arrays:
    """One table and one feature, whose gradients add up exactly in any order."""
    draw = Draw(recipe.seed, f"backward-{name}")
    inputs = tables(draw, (rows,), recipe.widths(width), exact=True)
    inputs |= bags(draw, inputs, [lengths], pick=pick)
    return {**inputs, "grad_output": gradient(draw, inputs, exact=True)}


def halves(weights: Floats) -> Arrays:
    """fp32 rows as split-SGD keeps them: bf16 rows, and their lower halves."""
    bits = weights.view("<u4")
    upper = (bits >> 16).astype("<u2").view([("bf16", "<u2")])
    return {"weights": upper, "weights_low": bits.astype("<u2")}


def coded_states(inputs: Arrays, options: Options) -> Arrays:
    """The inputs with their states in the formats of the options."""
    formats = layout_of({**HYPER, **options}).formats
    return inputs | {
        name: coded(inputs[name], form) for name, form in formats.items() if name in inputs
    }
