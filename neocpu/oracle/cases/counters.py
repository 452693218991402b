"""Which rates and decays by row counters break kernels? Cases of `backward`.

FBGEMM's frequency weighting (rates of tails, AdaGradW), and weight decay of rules that few kernels
decay rightly: LARS, CowClip, row-wise RMSProp.
"""

from collections.abc import Iterator

from neocpu.oracle.cases.draw import ABOUT, Recipe
from neocpu.oracle.cases.updates import EXACT, OPTIONS_OF_RULE, plain
from neocpu.oracle.operator import Case, Value

COUNTER = "exact_rowwise_adagrad_with_counter"
DECAYS = (
    "momentum_sgd",
    "lars_sgd",
    "exact_adagrad",
    "exact_rowwise_adagrad_with_cowclip",
    "adam_with_cowclip",
    "partial_rowwise_adam",
    "partial_rowwise_lamb",
    "rowwise_rmsprop",
)


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for make in (_tails, _adagradw, _decays):
        yield from make(recipe)


def _case(recipe: Recipe, name: str, rule: str, about: str = "", **options: Value) -> Case:
    inputs = plain(recipe, name, rule)
    hyper = {"optimizer": rule, **EXACT, **OPTIONS_OF_RULE.get(rule, {}), "step": 6, **options}
    name = f"backward-{name}"
    return Case(name, "backward", inputs, hyper, about or ABOUT[name])


def _tails(recipe: Recipe) -> Iterator[Case]:
    # mode, max_counter, the threshold as a share of it
    for mode, most, share in (("increase", 6.0, 0.45), ("decrease", 40.0, 0.06)):
        for ratio in (False, True):
            name = f"tail-rate-{mode}" + ("-ratio" if ratio else "")
            about = f"tail_id_lr_{mode} of rows above a count"
            yield _case(
                recipe,
                name,
                COUNTER,
                about + (", a share of max_counter rounded down" if ratio else ""),
                learning_rate_mode=f"tail_id_lr_{mode}",
                counter_halflife=-1,
                max_counter=most,
                tail_id_threshold=share if ratio else 2.5,
                tail_id_threshold_is_ratio=ratio,
                adjustment_ub=1.3,
            )
    yield _case(
        recipe,
        "tail-rate-limits",
        COUNTER,
        learning_rate_mode="tail_id_lr_increase",
        counter_halflife=-1,
        max_counter=900.0,
        tail_id_threshold=0.0,
        adjustment_ub=1.5,
    )
    yield _case(
        recipe,
        "tail-rate-later",
        COUNTER,
        learning_rate_mode="counter_sgd",
        tail_id_threshold=0.0,
        adjustment_iter=6,
    )


def _adagradw(recipe: Recipe) -> Iterator[Case]:
    for name, halflife, words in (
        ("root", -1, "the rate grows with the root of the count"),
        ("count", -2, "the rate grows with the count, up to adjustment_ub"),
        ("fading", 8, "counts fade"),
    ):
        yield _case(
            recipe,
            f"adagradw-{name}",
            COUNTER,
            f"AdaGradW decays weights for the steps that a row missed; {words}",
            weight_decay=0.125,
            weight_decay_mode="adagradw",
            counter_halflife=halflife,
            learning_rate_mode="equal",
            tail_id_threshold=0.0,
            adjustment_ub=0.25,
        )
    yield _case(
        recipe,
        "adagradw-late",
        COUNTER,
        weight_decay=0.125,
        weight_decay_mode="adagradw",
        counter_halflife=-1,
        learning_rate_mode="equal",
        tail_id_threshold=0.0,
        adjustment_iter=3,
    )


def _decays(recipe: Recipe) -> Iterator[Case]:
    for rule in DECAYS:
        for mode in ("l2", "decoupled"):
            yield _case(
                recipe,
                f"{rule}-{mode}",
                rule,
                f"{mode} weight decay with {rule}: once, and of the old weight",
                weight_decay=0.125,
                weight_decay_mode=mode,
            )
    for mode in ("l2", "decoupled"):
        yield _case(
            recipe,
            f"counter-{mode}",
            COUNTER,
            f"{mode} weight decay by row counters with a half-life of 8",
            weight_decay=0.125,
            weight_decay_mode=mode,
        )
