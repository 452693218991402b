"""Which unpooled lookups break backward? Each lookup has a gradient of its own, [n, D]."""

from collections.abc import Iterator

import numpy as np

from neocpu.oracle.cases.draw import Draw, Recipe, bags, coded, gradient, hot, ragged, tables
from neocpu.oracle.cases.updates import EXACT, OPTIONS_OF_RULE, SCHEDULED, states
from neocpu.oracle.operator import Arrays, Case, Value

NONE: dict[str, Value] = {"pooling": "none"}
RATES = np.array([0.0625, 0.125, 0.03125])


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    for make in (_lookups, _backwards, _merged, _trajectories):
        yield from make(seed, Recipe(seed, dim_multiple).narrow)


def _batch(
    draw: Draw, multiple: int, weighted: bool = False, exact: bool = False, varied: bool = False
) -> Arrays:
    """Two tables of one width, three features, many duplicates, some lookups pruned."""
    # One width: without pooling the output is a matrix.
    inputs = tables(draw, (7, 5), (multiple, multiple), (1, 0, 1), exact=exact)
    lengths = [[2, 0, 5], [], [3, 9, 0, 0, 4]] if varied else ragged(draw, 3, 5)
    inputs |= bags(draw, inputs, lengths, weighted=weighted)
    inputs["indices"][4::9] = -1
    return {**inputs, "grad_output": gradient(draw, inputs, "none", exact)}


def _lookups(seed: int, multiple: int) -> Iterator[Case]:
    for name, weighted, varied, about in (
        ("weighted", True, False, "each row times the weight of its lookup; pruned ones are 0"),
        ("variable", False, True, "features of different batch sizes: one row per lookup"),
    ):
        inputs = _batch(Draw(seed, f"sequence-lookup-{name}"), multiple, weighted, varied=varied)
        del inputs["grad_output"]
        yield Case(f"lookup-sequence-{name}", "lookup", inputs, NONE, f"no pooling; {about}")


def _backwards(seed: int, multiple: int) -> Iterator[Case]:
    for rule in ("exact_sgd", "exact_adagrad", "exact_rowwise_adagrad", "adam"):
        draw = Draw(seed, f"sequence-{rule}")
        inputs = _batch(draw, multiple, exact=rule == "exact_sgd")
        inputs |= states(draw, rule, inputs)
        options: dict[str, Value] = {"optimizer": rule, **EXACT, **OPTIONS_OF_RULE.get(rule, {})}
        about = f"{rule}, no pooling: duplicates within and across features, some lookups pruned"
        yield Case(f"backward-sequence-{rule}", "backward", inputs, {**options, **NONE}, about)
    for name, weighted, varied, clipping, about in (
        ("weighted", True, False, {}, "each gradient times the weight of its lookup"),
        (
            "variable",
            False,
            True,
            {},
            "features of different batch sizes: the gradient is by lookup",
        ),
        ("clipped", False, False, {"max_gradient": 0.5}, "gradients of lookups are clipped"),
    ):
        draw = Draw(seed, f"sequence-{name}")
        inputs = _batch(draw, multiple, weighted, varied=varied)
        options = {"optimizer": "exact_sgd", **EXACT, **NONE, **clipping}
        yield Case(f"backward-sequence-{name}", "backward", inputs, options, f"no pooling; {about}")
    draw = Draw(seed, "sequence-fp16")
    inputs = _batch(draw, multiple)
    inputs["weights"] = coded(inputs["weights"], "fp16")
    options = {"optimizer": "exact_sgd", **EXACT, **NONE, "weights_format": "fp16"}
    about = "no pooling; fp16 rows, rounded to nearest after the update"
    yield Case("backward-sequence-fp16", "backward", inputs, options, about)


def _merged(seed: int, multiple: int) -> Iterator[Case]:
    for name, weighted, varied, about in (
        ("", False, False, "no pooling: gradients of a row's lookups add up, over features too"),
        ("-weighted", True, False, "no pooling: each gradient times the weight of its lookup"),
        ("-variable", False, True, "no pooling, features of different batch sizes"),
    ):
        inputs = _batch(Draw(seed, f"sequence-merged{name}"), multiple, weighted, varied=varied)
        yield Case(f"unique-gradient-sequence{name}", "unique_gradient", inputs, NONE, about)
    draw = Draw(seed, "sequence-hot")
    inputs = tables(draw, (3,), (multiple,), exact=True)
    inputs |= bags(draw, inputs, [[100, 0, 157]], pick=hot)
    inputs["grad_output"] = gradient(draw, inputs, "none", exact=True)
    about = "no pooling: 257 gradients of one row, exact in any order"
    yield Case("unique-gradient-sequence-hot", "unique_gradient", inputs, NONE, about)


def _trajectories(seed: int, multiple: int) -> Iterator[Case]:
    for rule, weighted in (("exact_rowwise_adagrad", False), ("adam", False), ("exact_sgd", True)):
        draw = Draw(seed, f"trajectory-sequence-{rule}")
        table_inputs = tables(draw, (7, 5), (multiple, multiple), (1, 0))
        inputs: Arrays = {
            **table_inputs,
            **states(draw, rule, table_inputs, fresh=True),
            "learning_rates": RATES,
            "training": np.array([1, 0, 1]),
        }
        for k in range(RATES.size):
            batch = bags(draw, table_inputs, ragged(draw, 2, 4, 5), weighted=weighted)
            batch["indices"][3::7] = -1
            batch["grad_output"] = gradient(draw, {**table_inputs, **batch}, "none")
            inputs |= {f"step{k}/{key}": array for key, array in batch.items()}
        options = {"optimizer": rule, **SCHEDULED, **OPTIONS_OF_RULE.get(rule, {}), **NONE}
        weights = ", weighted" if weighted else ""
        about = f"{rule} without pooling{weights}: two updates and an evaluation"
        yield Case(f"trajectory-sequence-{rule}", "trajectory", inputs, options, about)
