"""Which histories break training? Cases of the operator `trajectory`.

Rows that are skipped and touched again, evaluations in between, schedules of the learning rate.
"""

from collections.abc import Iterator

import numpy as np

from neocpu.oracle.cases.draw import ABOUT, Draw, Recipe, bags, coded, gradient, ragged, tables
from neocpu.oracle.cases.updates import OPTIONS_OF_RULE, SCHEDULED, states
from neocpu.oracle.operator import Arrays, Case, Value

RATES = np.array([0.0625, 0.125, 0.125, 0.0625, 0.03125, 0.03125])  # warm-up, then decay


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for rule in (
        "exact_sgd",
        "momentum_sgd",
        "exact_adagrad",
        "exact_rowwise_adagrad",
        "exact_rowwise_adagrad_with_counter",
        "adam",
        "partial_rowwise_adam",
        "lamb",
        "rowwise_rmsprop",
    ):
        about = (
            f"{rule}: six batches with a schedule, the third and fifth only evaluated; rows "
            "rest and come back"
        )
        yield _case(recipe, rule, rule, about)
    yield _case(recipe, "adam-decoupled", "adam", weight_decay=0.125, weight_decay_mode="decoupled")
    yield _case(recipe, "rowwise-adagrad-fp16", "exact_rowwise_adagrad", weights_format="fp16")
    yield _case(recipe, "sgd-bf16", "exact_sgd", weights_format="bf16")
    yield _case(
        recipe, "sgd-bf16-stochastic", "exact_sgd", weights_format="bf16", rounding="stochastic"
    )
    yield _case(recipe, "weighted-mean", "exact_sgd", pooling="mean", weighted=True)
    yield _case(recipe, "adagrad-mean", "exact_adagrad", pooling="mean")


def _case(
    recipe: Recipe, name: str, rule: str, about: str = "", weighted: bool = False, **options: Value
) -> Case:
    draw = Draw(recipe.seed, f"trajectory-{name}")
    table_inputs = tables(draw, (8, 5), recipe.widths(4, 4), (1, 0))
    inputs: Arrays = {
        **table_inputs,
        **states(draw, rule, table_inputs, fresh=True),
        "learning_rates": RATES,
    }
    inputs["training"] = np.array([1, 1, 0, 1, 0, 1])
    for k in range(RATES.size):
        batch = bags(draw, table_inputs, ragged(draw, 2, 4, 5), weighted=weighted)
        # even steps touch even rows only: the others rest and come back
        batch["indices"] = batch["indices"] // 2 * 2 if k % 2 == 0 else batch["indices"]
        batch["indices"][3::7] = -1
        step_inputs = {**batch, "grad_output": gradient(draw, {**table_inputs, **batch})}
        inputs |= {f"step{k}/{key}": array for key, array in step_inputs.items()}
    inputs["weights"] = coded(inputs["weights"], str(options.get("weights_format", "fp32")))
    name = f"trajectory-{name}"
    hyper = {"optimizer": rule, **SCHEDULED, **OPTIONS_OF_RULE.get(rule, {}), **options}
    return Case(name, "trajectory", inputs, hyper, about or ABOUT[name])
