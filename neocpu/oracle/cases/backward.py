"""Which gradients break a fused backward? Cases of `backward` and `unique_gradient`."""

from collections.abc import Iterator

import numpy as np

from neocpu.core.rules import RULES
from neocpu.oracle.cases.draw import (
    ABOUT,
    Draw,
    Recipe,
    bags,
    coded,
    gradient,
    hot,
    last,
    ragged,
    tables,
)
from neocpu.oracle.cases.updates import EXACT, OPTIONS_OF_RULE, dyadic, halves, plain, states
from neocpu.oracle.operator import Arrays, Case, Value

DECAYS = ("exact_sgd", "exact_rowwise_adagrad", "adam", "lamb")


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for make in (_rules, _decays, _merging, _poolings, _numbers, _limits, _formats, _unique):
        yield from make(recipe)


def _case(
    name: str,
    inputs: Arrays,
    about: str = "",
    rule: str = "exact_rowwise_adagrad",
    **options: Value,
) -> Case:
    name = f"backward-{name}"
    hyper = {"optimizer": rule, **EXACT, **OPTIONS_OF_RULE.get(rule, {}), **options}
    return Case(name, "backward", inputs, hyper, about or ABOUT[name])


def _rules(recipe: Recipe) -> Iterator[Case]:
    for rule in RULES:
        if rule != "none":
            yield _case(
                rule,
                plain(recipe, rule, rule),
                f"{rule} at step 6: shared tables, duplicates, ragged bags",
                rule,
                step=6,
            )
    for rule in ("adam", "partial_rowwise_adam", "lamb", "partial_rowwise_lamb"):
        inputs = plain(recipe, f"{rule}-first", rule)
        # The first step: no state yet.
        inputs |= states(Draw(recipe.seed, "fresh"), rule, inputs, fresh=True)
        yield _case(
            f"{rule}-first-step",
            inputs,
            f"{rule} at step 1, where bias correction matters most",
            rule,
        )
    for rule in ("lamb", "partial_rowwise_lamb", "lars_sgd"):
        inputs = plain(recipe, f"{rule}-zero", rule)
        inputs["weights"][: 3 * int(inputs["dims"][0])] = 0
        yield _case(
            f"{rule}-zero-rows",
            inputs,
            "rows of zeros: the ratio of norms is 1 there, not 0/0",
            rule,
            step=6,
        )


def _decays(recipe: Recipe) -> Iterator[Case]:
    for rule in DECAYS:
        for mode in ("l2", "decoupled"):
            inputs = plain(recipe, f"{rule}-{mode}", rule)
            about = f"{mode} weight decay with {rule}: which rows, once per row, in which order"
            yield _case(
                f"{rule}-{mode}",
                inputs,
                about,
                rule,
                step=6,
                weight_decay=0.125,
                weight_decay_mode=mode,
            )
    rule = "exact_rowwise_adagrad_with_counter"
    inputs = plain(recipe, "counter-decay", rule)
    yield _case(
        "counter-decay",
        inputs,
        rule=rule,
        step=6,
        counter_halflife=-1,
        learning_rate_mode="equal",
        tail_id_threshold=0.0,
        weight_decay=0.25,
        weight_decay_mode="decoupled",
    )


def _merging(recipe: Recipe) -> Iterator[Case]:
    about = "; dyadic gradients merge exactly in every order, so one lost addition shows"
    yield _case(
        "hot-row",
        dyadic(recipe, "hot", 9, 4, [50] * 60, hot),
        "3000 lookups of one row" + about,
        "exact_sgd",
    )
    edges = {
        **dyadic(recipe, "edges", 9, 4, [1] * 2366),
        "indices": np.repeat(np.arange(7), (31, 32, 33, 64, 65, 1025, 1116)),
    }
    edges["indices"] = edges["indices"][
        np.argsort(Draw(recipe.seed, "edges").words(2366), kind="stable")
    ]
    yield _case(
        "warp-and-block",
        edges,
        "rows with 31, 32, 33, 64, 65, 1025 and 1116 duplicates" + about,
        "exact_adagrad",
    )
    yield _case(
        "skewed",
        dyadic(recipe, "skewed", 300, 8, [25] * 40),
        "a thousand lookups, half of them of a few rows" + about,
    )
    draw = Draw(recipe.seed, "backward-last")
    ends = tables(draw, (1000, 3), recipe.widths(3, 5))
    ends |= bags(draw, ends, [[3] * 6, [2] * 6], pick=last)
    ends["grad_output"] = gradient(draw, ends)
    yield _case("last-row", ends)
    dims = recipe.tails()
    wide = tables(draw, (3,) * len(dims), dims)
    wide |= bags(draw, wide, [[2, 1]] * len(dims))
    wide["grad_output"] = gradient(draw, wide)
    yield _case("odd-widths", wide)
    none = tables(draw, (5, 4), recipe.widths(4, 8))
    none |= bags(draw, none, [[], []])
    none["grad_output"] = gradient(draw, none)
    yield _case("empty-batch", none)
    varied = tables(draw, (6, 5), recipe.widths(3, 8), (0, 1, 0))
    varied |= bags(draw, varied, [[2, 0, 3], [], [1, 1, 4, 0, 2]])
    varied["grad_output"] = gradient(draw, varied)
    yield _case(
        "variable-batch",
        varied,
        "every feature has a batch size of its own: flat gradient, feature-major",
    )


def _poolings(recipe: Recipe) -> Iterator[Case]:
    yield _case("mean", plain(recipe, "mean"), pooling="mean")
    yield _case("weighted", plain(recipe, "weighted", weighted=True))
    weighted = plain(recipe, "weighted-mean", "exact_sgd", weighted=True)
    yield _case("weighted-mean", weighted, rule="exact_sgd", pooling="mean")
    pruned = plain(recipe, "pruned", weighted=True)
    pruned["indices"][::2] = -1
    yield _case("pruned", pruned, pooling="mean")
    outside = plain(recipe, "outside")
    outside["indices"][::3] = np.resize([11, 6, -2, 1 << 40], outside["indices"][::3].size)
    yield _case("out-of-range", outside, bounds_check="ignore")
    draw = Draw(recipe.seed, "backward-sequence")
    inputs = tables(draw, (9, 4), recipe.widths(5, 5), (1, 0))
    inputs |= bags(draw, inputs, ragged(draw, 2, 4))
    inputs["grad_output"] = gradient(draw, inputs, "none")
    yield _case("sequence", inputs, pooling="none")


def _numbers(recipe: Recipe) -> Iterator[Case]:
    inputs = plain(recipe, "cancel", "exact_adagrad")
    inputs["grad_output"][1::2] = -inputs["grad_output"][::2]
    inputs["indices"] = np.zeros_like(inputs["indices"])
    inputs["indices"][:] = 2
    yield _case("cancellation", inputs, rule="exact_adagrad")
    for rule in ("exact_adagrad", "exact_rowwise_adagrad", "adam"):
        small = plain(recipe, f"{rule}-eps", rule)
        small |= states(Draw(recipe.seed, "fresh"), rule, small, fresh=True)
        small["grad_output"] = np.ldexp(small["grad_output"], -12).astype(np.float32)
        about = f"{rule}: eps as large as the root of the state, so that where it is added shows"
        yield _case(f"{rule}-eps", small, about, rule, eps=2.0**-8)
    zero = plain(recipe, "zero-gradient", "adam")
    zero["grad_output"][:] = 0
    yield _case("zero-gradient", zero, rule="adam", step=6)
    fresh = plain(recipe, "zero-state", "exact_adagrad")
    fresh["sum"][:] = 0
    fresh["grad_output"][:] = 0
    yield _case("zero-state", fresh, rule="exact_adagrad")
    special = plain(recipe, "specials", "exact_sgd")
    special["grad_output"][0, 0] = np.inf
    special["grad_output"][2, 7] = np.nan
    special["grad_output"][3, 4] = -np.inf
    special["weights"][-1] = np.nan
    special["weights"][3] = np.inf
    yield _case("specials", special, rule="exact_sgd")
    small = plain(recipe, "subnormals", "exact_sgd")
    small["grad_output"] = np.ldexp(small["grad_output"], -140).astype(np.float32)
    small["weights"][:] = np.ldexp(small["weights"], -140).astype(np.float32)
    yield _case("subnormals", small, rule="exact_sgd", learning_rate=0.5)
    huge = plain(recipe, "huge", "exact_adagrad")
    # Squares near 2^140, beyond fp32's 2^128.
    huge["grad_output"] *= np.float32(2.0**70)
    yield _case("overflowing-squares", huge, rule="exact_adagrad")


def _limits(recipe: Recipe) -> Iterator[Case]:
    yield _case("max-gradient", plain(recipe, "max-gradient"), max_gradient=0.5)
    inputs = plain(recipe, "max-norm", "exact_sgd")
    yield _case("max-norm", inputs, rule="exact_sgd", max_norm=2.0)


def _formats(recipe: Recipe) -> Iterator[Case]:
    for name in ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2"):
        for rounding in ("nearest", "stochastic"):
            inputs = plain(recipe, f"rows-{name}-{rounding}")
            inputs["weights"] = coded(inputs["weights"], name)
            about = f"rows of {name}: update in fp32, store with {rounding} rounding"
            yield _case(
                f"rows-{name}-{rounding}",
                inputs,
                about,
                weights_format=name,
                rounding=rounding,
                seed=recipe.seed,
                step=6,
            )
    for rule in ("exact_sgd", "exact_rowwise_adagrad"):
        split = plain(recipe, f"split-{rule}", rule)
        split |= halves(split["weights"])
        about = (
            f"split weights with {rule}: bf16 rows, their lower halves beside them, updated as fp32"
        )
        yield _case(f"split-{rule}", split, about, rule, weights_format="bf16")
    half = plain(recipe, "ties", "exact_sgd")
    # 1 + 2^-8 lies halfway between two bf16 numbers.
    half["weights"] = coded(np.ones_like(half["weights"]), "bf16")
    half["grad_output"][:] = 2.0**-8
    yield _case("rows-bf16-ties", half, rule="exact_sgd", weights_format="bf16", learning_rate=-1.0)


def _unique(recipe: Recipe) -> Iterator[Case]:
    for name, pooling, weighted, about in (
        ("sum", "sum", False, "unique rows of two shared tables and their merged gradients"),
        ("mean", "mean", False, "merged gradients of MEAN bags"),
        ("weighted", "sum", True, "merged gradients of weighted bags"),
    ):
        inputs = plain(recipe, f"unique-{name}", "exact_sgd", weighted=weighted)
        yield Case(
            f"unique-gradient-{name}", "unique_gradient", inputs, {"pooling": pooling}, about
        )
    hot_row = dyadic(recipe, "unique-hot", 9, 4, [50] * 60, hot)
    yield Case(
        "unique-gradient-hot-row",
        "unique_gradient",
        hot_row,
        {},
        "3000 gradients of one row: all of them, exactly",
    )
    unread = {**plain(recipe, "unique-none", "exact_sgd")}
    unread["indices"] = np.full_like(unread["indices"], -1)
    yield Case(
        "unique-gradient-pruned",
        "unique_gradient",
        unread,
        {},
        "all lookups pruned: no row, no value",
    )
