"""Which states and options break single optimizers?

FTRL-Proximal, narrow states, the weight decay `decoupled_global`, averaged rows (ensemble).
"""

from collections.abc import Iterator

import numpy as np

from neocpu.oracle.cases.draw import ABOUT, Draw, Recipe, bags, coded, gradient, ragged, tables
from neocpu.oracle.cases.updates import EXACT, SCHEDULED, coded_states, states
from neocpu.oracle.operator import Arrays, Case, Value
from neocpu.oracle.ops.backward import HYPER
from neocpu.oracle.truth.states import GLOBAL, layout_of


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    yield from _ftrl(recipe)
    yield from _narrow_states(recipe)
    yield from _global_decay(recipe)
    yield from _ensemble(recipe)


def _inputs(recipe: Recipe, name: str, rule: str, fresh: bool = False) -> Arrays:
    """Two tables, three features, ragged bags; states as after five steps, or new."""
    draw = Draw(recipe.seed, f"optimizers-{name}")
    inputs = tables(draw, (11, 6), recipe.widths(8, 4), (1, 0, 1))
    inputs |= bags(draw, inputs, ragged(draw, 3, 6))
    return {**inputs, **states(draw, rule, inputs, fresh), "grad_output": gradient(draw, inputs)}


def _backward(name: str, inputs: Arrays, about: str = "", **options: Value) -> Case:
    name = f"backward-{name}"
    return Case(name, "backward", inputs, {**EXACT, **options}, about or ABOUT[name])


def _ftrl(recipe: Recipe) -> Iterator[Case]:
    small = _inputs(recipe, "ftrl-small", "ftrl", fresh=True)
    small["grad_output"] = np.ldexp(small["grad_output"], -10).astype(np.float32)
    yield _backward("ftrl-small-first", small, optimizer="ftrl", beta=2.0**-6)
    plain = _inputs(recipe, "ftrl-adagrad", "ftrl", fresh=True)
    yield _backward("ftrl-without-regularisation", plain, optimizer="ftrl", beta=0.0)
    near = _inputs(recipe, "ftrl-threshold", "ftrl", fresh=True)
    # Then z is the sum of whole gradients, with no sigma*w.
    near["weights"][:] = 0
    near["grad_output"][:] = np.sign(near["grad_output"])
    near["indices"][:] = np.arange(near["indices"].size) % 6
    yield _backward("ftrl-threshold", near, optimizer="ftrl", lambda1=1.0)
    inputs = _inputs(recipe, "ftrl-zero", "ftrl")
    inputs["grad_output"][:] = 0
    yield _backward(
        "ftrl-zero-gradient", inputs, optimizer="ftrl", beta=0.5, lambda1=0.125, lambda2=0.25
    )
    for mode in ("l2", "decoupled"):
        yield _backward(
            f"ftrl-{mode}",
            _inputs(recipe, f"ftrl-{mode}", "ftrl"),
            f"{mode} weight decay with FTRL: before everything else",
            optimizer="ftrl",
            weight_decay=0.125,
            weight_decay_mode=mode,
        )


def _narrow_states(recipe: Recipe) -> Iterator[Case]:
    for rule, first, second in (
        ("partial_rowwise_adam", "bf16", "fp32"),
        ("adam", "fp16", "bf16"),
        ("exact_rowwise_adagrad", "bf16", "fp32"),
        ("momentum_sgd", "fp16", "fp32"),
    ):
        options: dict[str, Value] = {
            "optimizer": rule,
            "momentum1_format": first,
            "momentum2_format": second,
            "step": 6,
        }
        name = f"{rule}-states-{first}-{second}"
        yield _backward(
            name,
            coded_states(_inputs(recipe, name, rule), options),
            f"states of {rule} in {first} and {second}: update in fp32, store to nearest",
            **options,
        )
    options = {"optimizer": "adam", "momentum1_format": "bf16", "momentum2_format": "bf16"}
    yield _trajectory(recipe, "adam-states-bf16", **options)


def _global_decay(recipe: Recipe) -> Iterator[Case]:
    decay: dict[str, Value] = {
        "optimizer": "exact_rowwise_adagrad",
        "weight_decay": 0.5,
        "weight_decay_mode": GLOBAL,
    }
    for name, options, about in (
        ("", {}, "rows decay for the steps that they missed, those with prev_iter 0 do not"),
        ("-bound", {"decay_lower_bound": 0.96875}, "missed decay is at most 1 - 1/32"),
        ("-before", {"decay_start": 7}, "before decay_start nothing is caught up or noted"),
        ("-bf16", {"weights_format": "bf16"}, "bf16 rows decay as fp32 numbers, rounded once"),
    ):
        inputs = _inputs(recipe, f"global-decay{name}", "exact_rowwise_adagrad")
        # Ages from 0 (never updated) to 5 steps.
        inputs["prev_iter"] = np.arange(17, dtype=np.float32) % 6
        inputs["weights"] = coded(inputs["weights"], str(options.get("weights_format", "fp32")))
        yield _backward(f"global-decay{name}", inputs, about, step=6, **decay, **options)
    yield _trajectory(recipe, "global-decay", **decay)


def _ensemble(recipe: Recipe) -> Iterator[Case]:
    common: dict[str, Value] = {"optimizer": "exact_rowwise_adagrad", "step_ema_coef": 0.75}
    yield _trajectory(recipe, "ensemble", step_ema=1, step_swap=2, **common)
    yield _trajectory(
        recipe,
        "ensemble-scaling",
        step_ema=2,
        step_swap=3,
        step_start=2,
        step_mode="none",
        **common,
    )
    yield _trajectory(recipe, "ensemble-start", step_ema=1, step_swap=3, step_start=2, **common)
    yield _trajectory(
        recipe,
        "ensemble-bf16",
        step_ema=1,
        step_swap=3,
        weights_format="bf16",
        momentum2_format="bf16",
        **common,
    )


def _trajectory(recipe: Recipe, name: str, **options: Value) -> Case:
    """Six batches, the third and fifth only evaluated; every other one looks up even rows alone."""
    rule = str(options["optimizer"])
    draw = Draw(recipe.seed, f"trajectory-{name}")
    inputs = tables(draw, (8, 5), recipe.widths(4, 8), (1, 0))
    inputs |= {
        name: coded(state, layout_of({**HYPER, **options}).formats[name])
        for name, state in states(draw, rule, inputs, fresh=True).items()
    }
    inputs["weights"] = coded(inputs["weights"], str(options.get("weights_format", "fp32")))
    training = np.array([1, 1, 0, 1, 0, 1])
    inputs["training"] = training
    inputs["learning_rates"] = np.full(training.size, 0.0625)
    for k in range(training.size):
        batch = bags(draw, inputs, ragged(draw, 2, 4, 5))
        batch["indices"] = batch["indices"] // 2 * 2 if k % 2 == 0 else batch["indices"]
        step_inputs = {**batch, "grad_output": gradient(draw, {**inputs, **batch})}
        inputs |= {f"step{k}/{key}": array for key, array in step_inputs.items()}
    name = f"trajectory-{name}"
    return Case(name, "trajectory", inputs, {**SCHEDULED, **options}, ABOUT[name])
