"""Which bags break the gradient of per-sample weights? Cases of `weight_gradient`."""

from collections.abc import Iterator

from neocpu.oracle.cases.draw import Draw, Recipe, bags, gradient, ragged, tables
from neocpu.oracle.operator import Case


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for name, pooling, about in (
        ("sum", "sum", "gradient of weights of a SUM, some lookups pruned"),
        ("mean", "mean", "gradient of weights of a MEAN: over L"),
    ):
        draw = Draw(recipe.seed, f"weight-gradient-{name}")
        inputs = tables(draw, (11, 7), recipe.widths(33, 5), (1, 0, 1))
        inputs |= bags(draw, inputs, ragged(draw, 3, 5), weighted=True)
        inputs["indices"][::4] = -1
        inputs["grad_output"] = gradient(draw, inputs)
        yield Case(
            f"weight-gradient-{name}", "weight_gradient", inputs, {"pooling": pooling}, about
        )
    draw = Draw(recipe.seed, "weight-gradient-variable")
    inputs = tables(draw, (6, 5), recipe.widths(3, 8), (0, 1, 0))
    inputs |= bags(draw, inputs, [[2, 0, 3], [], [1, 1, 4, 0, 2]], weighted=True)
    inputs["grad_output"] = gradient(draw, inputs)
    about = "every feature has a batch size of its own: flat gradient, feature-major"
    yield Case("weight-gradient-variable-batch", "weight_gradient", inputs, {}, about)
    draw = Draw(recipe.seed, "weight-gradient-wide")
    inputs = tables(draw, (4,), recipe.widths(1025), exact=True)
    inputs |= bags(draw, inputs, [[2, 1]], weighted=True)
    inputs["grad_output"] = gradient(draw, inputs, exact=True)
    yield Case(
        "weight-gradient-wide",
        "weight_gradient",
        inputs,
        {},
        "a row wider than a block; dyadic numbers, so no element may be lost",
    )
