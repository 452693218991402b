"""Which sizes break kernels? More than 65,536 rows, samples or lookups, where 16-bit numbers end.

Values are small dyadic numbers that repeat: they add up exactly in any order, so one wrong row
shows, and files that hold them stay small. A grid of CUDA has at most 65,535 blocks in its second
and third dimension.
"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.oracle.cases.draw import Draw, Recipe, bags, gradient, hot
from neocpu.oracle.cases.updates import EXACT, states
from neocpu.oracle.operator import Arrays, Case, Value

ROWS = 70_000
BATCH = 66_000
LOOKUPS = 70_000
PERIOD = 61  # prime: rows 65,536 apart differ
# Rows at the ends of 8, 15 and 16 bits, and of the table.
EDGES = (0, 1, 255, 256, 32_767, 32_768, 65_534, 65_535, 65_536, 65_537, 69_998, 69_999)
# Samples with lookups; bags of all others are empty.
SAMPLES = (0, 255, 256, 32_767, 32_768, 65_534, 65_535, 65_536, 65_999)
ABOUT = "; numbers that add up exactly"


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    yield from _lookups(recipe)
    yield from _updates(recipe)
    yield from _others(recipe)


def _table(recipe: Recipe, rows: int) -> Arrays:
    """One table of rows that repeat after PERIOD rows."""
    width = recipe.width(4)
    period = np.arange(1, PERIOD + 1)[:, None] + np.arange(width)
    numbers = np.resize(period.astype(np.float32) / 16, (rows, width))
    return {
        "weights": numbers.reshape(-1),
        "rows": np.array([rows]),
        "dims": np.array([width]),
        "feature_table": np.array([0]),
    }


def _edge_rows(draw: Draw, rows: int, count: int) -> Ints:
    """Rows at the edges of number types first, then any."""
    edges = np.array(EDGES)[:count]
    return np.concatenate([edges, draw.whole(count - edges.size, 0, rows)])


def _many_rows(recipe: Recipe, name: str) -> Arrays:
    """A table of 70,000 rows, and 40 bags of 5 of them."""
    table = _table(recipe, ROWS)
    return {**table, **bags(Draw(recipe.seed, name), table, [[5] * 40], pick=_edge_rows)}


def _large_batch(recipe: Recipe, name: str) -> Arrays:
    """66,000 bags of a small table, nearly all of them empty."""
    table = _table(recipe, 50)
    lengths = np.zeros(BATCH, np.int64)
    lengths[list(SAMPLES)] = 1 + np.arange(len(SAMPLES)) % 3
    return {**table, **bags(Draw(recipe.seed, name), table, [lengths.tolist()])}


def _gradient(recipe: Recipe, name: str, inputs: Arrays) -> Floats:
    """A gradient of the shape of the pooled output, repeated after PERIOD samples."""
    shape = (inputs["offsets"].size - 1, int(inputs["dims"][0]))
    period = Draw(recipe.seed, f"{name}-gradient").dyadic((PERIOD, shape[1]))
    return np.resize(period, shape)


def _lookups(recipe: Recipe) -> Iterator[Case]:
    name = "lookup-many-rows"
    about = "70,000 rows: row numbers beyond 16 bits" + ABOUT
    yield Case(name, "lookup", _many_rows(recipe, name), {}, about)
    name = "lookup-large-batch"
    about = (
        "B = 66,000, nearly all bags empty: more samples than blocks in a grid's second dimension"
    )
    yield Case(name, "lookup", _large_batch(recipe, name), {}, about)
    name = "lookup-long-bag"
    table = _table(recipe, 50)
    long_bag = {**table, **bags(Draw(recipe.seed, name), table, [[0, LOOKUPS, 1]])}
    options: dict[str, Value] = {"bounds_check": "fatal"}
    yield Case(name, "lookup", long_bag, options, "one bag of 70,000 lookups" + ABOUT)


def _updates(recipe: Recipe) -> Iterator[Case]:
    for rule in ("exact_rowwise_adagrad", "adam"):
        name = f"backward-{rule}-many-rows"
        inputs = _many_rows(recipe, name)
        inputs["grad_output"] = _gradient(recipe, name, inputs)
        period = states(Draw(recipe.seed, name), rule, _table(recipe, PERIOD))
        inputs |= {
            key: np.resize(array, array.size // PERIOD * ROWS) for key, array in period.items()
        }
        options: dict[str, Value] = {"optimizer": rule, **EXACT, "step": 6}
        about = f"{rule} of 70,000 rows: states and rows beyond 16 bits; others stay as they are"
        yield Case(name, "backward", inputs, options, about)
    name = "backward-large-batch"
    inputs = _large_batch(recipe, name)
    inputs["grad_output"] = _gradient(recipe, name, inputs)
    options = {"optimizer": "exact_sgd", **EXACT}
    yield Case(name, "backward", inputs, options, "B = 66,000, nearly all bags empty")
    name = "backward-hottest-row"
    table = _table(recipe, 50)
    inputs = {**table, **bags(Draw(recipe.seed, name), table, [[1000] * 70], pick=hot)}
    inputs["grad_output"] = _gradient(recipe, name, inputs)
    about = "70,000 lookups of one row: counts of duplicates beyond 16 bits" + ABOUT
    yield Case(name, "backward", inputs, options, about)


def _others(recipe: Recipe) -> Iterator[Case]:
    name = "weight-gradient-large-batch"
    inputs = _large_batch(recipe, name)
    inputs["per_sample_weights"] = Draw(recipe.seed, f"{name}-weights").floats(
        inputs["indices"].size
    )
    inputs["grad_output"] = _gradient(recipe, name, inputs)
    yield Case(name, "weight_gradient", inputs, {}, "B = 66,000, nearly all bags empty")
    name = "unique-gradient-many-rows"
    inputs = _many_rows(recipe, name)
    inputs["grad_output"] = gradient(Draw(recipe.seed, f"{name}-gradient"), inputs, exact=True)
    yield Case(name, "unique_gradient", inputs, {}, "unique rows beyond 16 bits" + ABOUT)
    lengths = np.zeros(BATCH, np.int32)
    lengths[list(SAMPLES)] = 3
    about = "66,000 lengths: a running sum over several blocks"
    yield Case("offsets-large", "lengths_to_offsets", {"lengths": lengths}, {}, about)
