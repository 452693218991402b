"""Which options of updates break each other? A pairwise cover of `backward`, every rule in it.

Most hyper-parameters are numbers that fp32 has not (0.01, 0.9, 0.999, 1e-8), so that how a kernel
rounds them is judged, too; some are dyadic, where a kernel's mistake is told from its rounding.
"""

from collections.abc import Iterator, Sequence

from neocpu.core.rules import RULES
from neocpu.oracle.cases.covers.lookup import (
    about,
    in_format,
    options_of,
    with_indices,
)
from neocpu.oracle.cases.covers.lookup import fits as fits_lookup
from neocpu.oracle.cases.covers.pairwise import Row, pairwise
from neocpu.oracle.cases.draw import Draw, Lengths, Recipe, bags, gradient, tables
from neocpu.oracle.cases.updates import EXACT, OPTIONS_OF_RULE, coded_states, halves, states
from neocpu.oracle.operator import Arrays, Case, Value
from neocpu.oracle.truth.states import GLOBAL, OWNERS, STATE_FORMATS

COUNTER = "exact_rowwise_adagrad_with_counter"
BACKWARD: dict[str, Sequence[Value]] = {
    "optimizer": tuple(name for name, rule in RULES.items() if rule.updates),
    "weights_format": ("fp32", "fp16", "bf16", "split", "fp8_e4m3", "fp8_e5m2", "int8", "int4"),
    "width": ("tails", "wide", "widest"),
    "decay": ("none", "l2", "decoupled", "adagradw", GLOBAL),
    "states": STATE_FORMATS,
    "pooling": ("sum", "mean", "none"),
    "rounding": ("nearest", "stochastic", "fbgemm"),
    "indices": ("in range", "pruned", "out of range"),
    "limit": ("no limit", "max_gradient", "max_norm"),
    "weighted": (False, True),
    "batches": ("fixed", "variable"),
    "index_type": ("int64", "int32"),
    "step": (6, 1),
    "hyper": ("decimal", "dyadic"),
}
CHEAPEST_FIRST = ("width", "hyper")
# Rows of each table, and lengths of bags by feature, by sample: few, so that suites stay small.
ROWS = {"tails": 3, "wide": 2, "widest": 2}
LENGTHS: Lengths = ((2, 0, 3), (1, 4, 0))
SEQUENCES: Lengths = ((2, 0), (1, 1))
VARIABLE: Lengths = ((2, 0, 1), (3, 1))
DECIMAL: dict[str, Value] = {
    "learning_rate": 0.01,
    "eps": 1e-8,
    "beta1": 0.9,
    "beta2": 0.999,
}
DECIMAL_OF_RULE: dict[str, dict[str, Value]] = {
    "momentum_sgd": {"momentum": 0.9},
    "lars_sgd": {"momentum": 0.9, "eta": 0.001},
    "ftrl": {"beta": 0.3, "lambda1": 0.01, "lambda2": 0.003},
    "rowwise_rmsprop": {"ar_alpha": 0.3, "min_shrinkage": 0.1},
    COUNTER: {
        "counter_halflife": 7,
        "learning_rate_mode": "counter_sgd",
        "tail_id_threshold": 2.5,
        "adjustment_ub": 1.1,
    },
    "exact_rowwise_adagrad_with_cowclip": {
        "counter_halflife": 7,
        "weight_norm_coefficient": 0.3,
        "lower_bound": 0.001,
    },
    "adam_with_cowclip": {"weight_norm_coefficient": 0.3, "lower_bound": 0.001},
}


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for k, row in enumerate(pairwise(BACKWARD, fits, CHEAPEST_FIRST)):
        name = f"backward-pair-{k:02}"
        yield Case(
            name, "backward", _inputs(recipe, name, row), options_of_update(recipe, row), about(row)
        )


def fits(row: Row) -> bool:
    """Do these values go together?

    AdaGradW is of the rule with counters, `decoupled_global` of row-wise AdaGrad. fp32 rows
    are not rounded, split ones to nearest only; FBGEMM has a rounding of its own to fp16.
    """
    rows_format = row.get("weights_format", "fp16")
    rounding = row.get("rounding", "nearest")
    return (
        fits_lookup(row)
        and (row.get("decay") != "adagradw" or row.get("optimizer", COUNTER) == COUNTER)
        and _fits_global(row)
        and (rounding == "nearest" or rows_format not in ("fp32", "split"))
        and (rounding != "fbgemm" or rows_format == "fp16")
    )


def _fits_global(row: Row) -> bool:
    """Has the weight decay `decoupled_global` canonical bits with these values?"""
    return row.get("decay") != GLOBAL or (
        row.get("optimizer", OWNERS[GLOBAL]) == OWNERS[GLOBAL]
        and row.get("rounding", "nearest") == "nearest"
        and row.get("weights_format") not in ("split", "int8", "int4")
    )


def _inputs(recipe: Recipe, name: str, row: Row) -> Arrays:
    """Tables, bags, states and a gradient as a row of the cover says.

    One feature for each table in reverse order, and one more that shares the last table.
    """
    draw = Draw(recipe.seed, name)
    dims = {
        "tails": tuple(width for width in recipe.tails()[::2] if width < 512),
        "wide": (recipe.width(12), recipe.tail(1024)),
        "widest": (recipe.width(2048),),
    }[row["width"]]
    if row["pooling"] == "none":
        # Rows that are not pooled stand below each other, so they have one width.
        dims = (max(dims),)
    order = range(len(dims))[::-1]
    inputs = tables(draw, (ROWS[row["width"]],) * len(dims), dims, [*order, len(dims) - 1])
    lengths = VARIABLE if row["batches"] == "variable" else LENGTHS
    if row["pooling"] == "none":
        lengths = SEQUENCES
    features = [lengths[f % len(lengths)] for f in range(len(dims) + 1)]
    inputs |= bags(draw, inputs, features, weighted=row["weighted"])
    return updated_inputs(recipe, draw, inputs, row)


def updated_inputs(recipe: Recipe, draw: Draw, inputs: Arrays, row: Row) -> Arrays:
    """Tables and bags with states, a gradient, and rows in a format, as a row of the cover says."""
    inputs |= states(draw, row["optimizer"], inputs, fresh=row["step"] == 1)
    inputs["grad_output"] = gradient(draw, inputs, row["pooling"], row["hyper"] == "dyadic")
    if row["decay"] == GLOBAL:
        # Before this step: a row cannot have been updated in the future.
        inputs["prev_iter"] = draw.whole(int(inputs["rows"].sum()), 0, row["step"]).astype("<f4")
    inputs = coded_states(with_indices(inputs, row), options_of_update(recipe, row))
    if row["weights_format"] == "split":
        return {**inputs, **halves(inputs["weights"])}
    return {**inputs, "weights": in_format(draw, inputs, row["weights_format"])}


def options_of_update(recipe: Recipe, row: Row) -> dict[str, Value]:
    """The options that a row of the cover says."""
    rule = row["optimizer"]
    options = options_of(row)
    if row["weights_format"] == "split":
        # Split rows are bf16 rows to a kernel, with their lower halves beside them.
        options["weights_format"] = "bf16"
    if row["hyper"] == "dyadic":
        options |= {**EXACT, **OPTIONS_OF_RULE.get(rule, {})}
    else:
        options |= {**DECIMAL, **DECIMAL_OF_RULE.get(rule, {})}
    if row["decay"] != "none":
        options["weight_decay_mode"] = row["decay"]
        options["weight_decay"] = 0.125 if row["hyper"] == "dyadic" else 0.003
    if row["limit"] != "no limit":
        options[row["limit"]] = {"max_gradient": 0.7, "max_norm": 3.1}[row["limit"]]
    seed = recipe.seed
    return {
        **options,
        "optimizer": rule,
        "rounding": row["rounding"],
        "seed": seed,
        "step": row["step"],
        "momentum1_format": row["states"],
    }
