"""Which numbers show every bend of an optimizer's formula? One small case for each rule and format.

Hyper-parameters are of the size of what they join, and no number of fp16: eps is as large as a
root, so that where it is added shows, and in which format a kernel holds it. Quick suites have the
cases of fp32 rows. docs/oracle.md §4 has a table of what shows where.
"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.rules import RULES
from neocpu.oracle.cases.covers.lookup import in_format
from neocpu.oracle.cases.draw import Draw, Recipe, bags, gradient, tables
from neocpu.oracle.cases.updates import halves, states
from neocpu.oracle.operator import Arrays, Case, Value

PREFIX = "backward-rule-"
RULE_HYPER: dict[str, Value] = {
    "learning_rate": 1.3,
    "eps": 0.3,
    "beta1": 0.7,
    "beta2": 0.6,
    "weight_decay": 0.2,
    "momentum": 0.7,
    "eta": 0.3,
    "ar_alpha": 0.1,
    "min_shrinkage": 0.6,
    "counter_halflife": 7,
    "weight_norm_coefficient": 0.3,
    "lower_bound": 0.1,
    "beta": 0.3,
    "lambda1": 0.1,
    "lambda2": 0.3,
    "step": 6,
}
NARROW = ("fp16", "bf16", "split", "fp8_e4m3", "fp8_e5m2", "int8", "int4")
MODES = ("l2", "decoupled")
LENGTHS = ((2, 0, 1), (1, 3, 1), (2, 1, 1))  # by feature, by sample
STILL = 3  # row whose gradient and states are 0
FALLING = 1  # row whose second moment falls, where rows have one
LARGE_MOMENT = 64.0  # beside the mean squares of gradients below 4


def shows_rule(case: Case) -> bool:
    """Is it a case of a rule with fp32 rows, which belongs in every suite?"""
    return case.name.startswith(PREFIX) and case.options["weights_format"] == "fp32"


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for number, (name, rule) in enumerate(RULES.items()):
        if not rule.updates:
            continue
        for mode in MODES:
            yield _case(recipe, name, "fp32", mode)
        for place, weights_format in enumerate(NARROW):
            # LAMB's ratio takes away what scales a step as a whole, unless decay joins the step.
            mode = "decoupled" if "lamb" in name else MODES[(number + place) % 2]
            yield _case(recipe, name, weights_format, mode)


def _case(recipe: Recipe, rule: str, weights_format: str, mode: str) -> Case:
    draw = Draw(recipe.seed, f"{PREFIX}{rule}")
    inputs = _inputs(recipe, draw, rule)
    if weights_format == "split":
        inputs |= halves(inputs["weights"])
    else:
        inputs["weights"] = in_format(draw, inputs, weights_format)
    kept = set(RULES[rule].options) | {"learning_rate", "eps", "beta1", "beta2", "step"}
    options = {key: value for key, value in RULE_HYPER.items() if key in kept}
    return Case(
        f"{PREFIX}{rule}-{weights_format}-{mode}",
        "backward",
        inputs,
        {
            "optimizer": rule,
            **options,
            "weights_format": "bf16" if weights_format == "split" else weights_format,
            "weight_decay": RULE_HYPER["weight_decay"],
            "weight_decay_mode": mode,
        },
        f"{rule} of {weights_format} rows: every term of the rule is as large as what it joins",
    )


def _inputs(recipe: Recipe, draw: Draw, rule: str) -> Arrays:
    """Two tables, the first shared by two features; a row of zeros, one at rest, one still."""
    inputs = tables(draw, (5, 3), recipe.widths(4, 12), (1, 0, 0))
    inputs |= bags(draw, inputs, LENGTHS)
    width = int(inputs["dims"][0])
    inputs["weights"][:width] = 0
    # The last lookup of the first table is the only one of the row that does not move.
    first_table = inputs["feature_table"].repeat(
        np.diff(inputs["offsets"]).reshape(len(LENGTHS), -1).sum(1)
    )
    shared = np.flatnonzero(first_table == 0)
    inputs["indices"][shared] = np.resize([0, 1, 2, 1, 0, 2], shared.size)
    inputs["indices"][shared[-1]] = STILL
    inputs["grad_output"] = gradient(draw, inputs)
    inputs["grad_output"][-1, -width:] = 0
    inputs |= states(draw, rule, inputs)
    for name in RULES[rule].element_state:
        inputs[name][STILL * width : (STILL + 1) * width] = 0
    for name in RULES[rule].row_state:
        inputs[name][STILL] = 0
    # In LAMB one falls as it is, and beside a large one the ratio of norms hides other bends.
    if "exp_avg_sq" in RULES[rule].row_state and "lamb" not in rule:
        inputs["exp_avg_sq"][FALLING] = LARGE_MOMENT
    return inputs
