"""Which bags break a lookup? Cases of the operator `lookup`."""

from collections.abc import Iterator

import numpy as np

from neocpu.oracle.cases.draw import (
    ABOUT,
    Draw,
    Recipe,
    bags,
    coded,
    hot,
    last,
    ragged,
    scaled_rows,
    skewed,
    tables,
)
from neocpu.oracle.operator import Arrays, Case, Value

INF = float("inf")
NAN = float("nan")


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for make in (_shapes, _poolings, _long, _numbers, _rows, _formats, _outputs):
        yield from make(recipe)


def _case(name: str, inputs: Arrays, about: str = "", **options: Value) -> Case:
    name = f"lookup-{name}"
    return Case(name, "lookup", inputs, options, about or ABOUT[name])


def _plain(
    recipe: Recipe,
    name: str,
    features: tuple[int, ...] = (1, 0, 1),
    batch: int = 5,
    weighted: bool = False,
) -> Arrays:
    draw = Draw(recipe.seed, name)
    inputs = tables(draw, (11, 7), recipe.widths(6, 3), features)
    return {**inputs, **bags(draw, inputs, ragged(draw, len(features), batch), weighted=weighted)}


def _shapes(recipe: Recipe) -> Iterator[Case]:
    draw = Draw(recipe.seed, "shapes")
    inputs = tables(draw, (5, 4), recipe.widths(4, 8))
    yield _case("empty-batch", {**inputs, **bags(draw, inputs, [[], []])})
    yield _case("empty-bags", {**inputs, **bags(draw, inputs, [[0] * 3, [0] * 3])})
    one_column = tables(draw, (3,), recipe.widths(1))
    yield _case("one-column", {**one_column, **bags(draw, one_column, [[2, 0, 1, 5]])})
    one_row = tables(draw, (1,), recipe.widths(4))
    yield _case("one-row", {**one_row, **bags(draw, one_row, [[3, 1]])})
    dims = recipe.tails()
    wide = tables(draw, (3,) * len(dims), dims)
    yield _case("odd-widths", {**wide, **bags(draw, wide, [[2, 1]] * len(dims))})
    hundred_tables = tables(draw, (4,) * 100, recipe.widths(*[4] * 100))
    yield _case(
        "many-tables", {**hundred_tables, **bags(draw, hundred_tables, ragged(draw, 100, 2, 2))}
    )
    varied = tables(draw, (6, 5), recipe.widths(3, 8), (0, 1, 0))
    yield _case(
        "variable-batch",
        {**varied, **bags(draw, varied, [[2, 0, 3], [], [1, 1, 4, 0, 2]])},
        "every feature has a batch size of its own, one has none: flat output",
    )
    shared = _plain(recipe, "shared")
    yield _case("unsorted-shared", shared)
    twins = tables(draw, (6, 9), recipe.widths(4, 4), (1, 1, 0))
    yield _case("equal-tables", {**twins, **bags(draw, twins, ragged(draw, 3, 4))})
    narrow = {
        **shared,
        "indices": shared["indices"].astype(np.int32),
        "offsets": shared["offsets"].astype(np.int32),
    }
    yield _case("int32-indices", narrow)


def _poolings(recipe: Recipe) -> Iterator[Case]:
    yield _case("mean", _plain(recipe, "mean"), pooling="mean")
    yield _case("weighted", _plain(recipe, "weighted", weighted=True))
    yield _case("weighted-mean", _plain(recipe, "weighted-mean", weighted=True), pooling="mean")
    draw = Draw(recipe.seed, "none")
    inputs = tables(draw, (9, 4), recipe.widths(5, 5), (1, 0))
    sequence = {**inputs, **bags(draw, inputs, ragged(draw, 2, 4))}
    yield _case("sequence", sequence, pooling="none")
    pruned = _plain(recipe, "pruned", weighted=True)
    pruned["indices"][::2] = -1
    yield _case("pruned", pruned)
    yield _case("pruned-mean", pruned, pooling="mean")
    outside = _plain(recipe, "outside")
    outside["indices"][::3] = np.resize(
        [11, 12, -2, 1 << 40, -(1 << 40)], outside["indices"][::3].size
    )
    yield _case("out-of-range", outside, bounds_check="ignore")
    thirds = {
        **tables(draw, (9,), recipe.widths(4)),
        "offsets": np.append(0, np.cumsum(np.arange(1, 9))),
    }
    thirds["indices"] = draw.whole(36, 0, 9)
    yield _case("mean-lengths", thirds, pooling="mean")


def _long(recipe: Recipe) -> Iterator[Case]:
    draw = Draw(recipe.seed, "long")
    exact = tables(draw, (50,), recipe.widths(4), exact=True)
    about = "; small dyadic numbers, so every order of additions is exact and one lost lookup shows"
    yield _case(
        "warp-and-block",
        {**exact, **bags(draw, exact, [[31, 32, 33, 64, 65, 127, 128, 129, 1023, 1024, 1025]])},
        "bags of 2^k - 1, 2^k and 2^k + 1 lookups around a warp and a block" + about,
    )
    yield _case(
        "one-for-everything",
        {**exact, **bags(draw, exact, [[0, 0, 3000, 0]])},
        "one bag of 3000 lookups, all others empty" + about,
    )
    yield _case(
        "hot-row",
        {**exact, **bags(draw, exact, [[40] * 50], pick=hot)},
        "every lookup reads the same row" + about,
    )
    real = tables(draw, (200,), recipe.widths(8))
    yield _case("skewed", {**real, **bags(draw, real, [[60] * 20], pick=skewed)})
    ends = tables(draw, (1000, 3), recipe.widths(3, 5))
    yield _case("last-row", {**ends, **bags(draw, ends, [[3] * 6, [2] * 6], pick=last)})


def _table(
    recipe: Recipe,
    rows: list[list[float]],
    picks: list[list[int]],
    weights: list[float] | None = None,
) -> Arrays:
    """One table with these rows and bags of these rows.

    Rows repeat their numbers up to a width that the recipe allows.
    """
    width = recipe.width(len(rows[0]))
    table = [np.resize(np.array(row, np.float32), width) for row in rows]
    inputs: Arrays = {
        "weights": np.concatenate(table),
        "rows": np.array([len(rows)]),
        "dims": np.array([width]),
        "feature_table": np.array([0]),
        "indices": np.array([row for bag in picks for row in bag], np.int64),
        "offsets": np.append(0, np.cumsum([len(bag) for bag in picks])).astype(np.int64),
    }
    if weights is not None:
        inputs["per_sample_weights"] = np.array(weights, np.float32)
    return inputs


def _numbers(recipe: Recipe) -> Iterator[Case]:
    big = 2.0**24
    yield _case(
        "cancellation",
        _table(
            recipe,
            [[big, 1.0], [-big, -1.0], [1.0, 2.0**-24], [0.5, 2.0**-25]],
            [[0, 2, 1], [2, 0, 3, 1, 3], [0, 1]],
        ),
    )
    tiny = 2.0**-149
    yield _case(
        "subnormals",
        _table(
            recipe,
            [[tiny, 3 * tiny], [2.0**-127, -tiny], [2.0**-126, 2.0**-130]],
            [[0], [0, 0, 1], [1, 2], [2, 0]],
        ),
    )
    specials = [[INF, 1.0, -0.0], [-INF, NAN, -0.0], [1.0, 2.0, 0.0], [3e38, -3e38, 1.0]]
    yield _case("specials", _table(recipe, specials, [[0], [0, 1], [1, 2], [0, 2, 2], [2, 2], []]))
    yield _case("overflow", _table(recipe, specials, [[3, 3], [3, 3, 3, 2], [3]]))
    yield _case(
        "weights-of-zero",
        _table(recipe, specials, [[0, 2], [1], [2, 2]], [0.0, 2.0, 0.0, 0.0, -0.0]),
    )
    draw = Draw(recipe.seed, "magnitudes")
    wild = tables(draw, (40,), recipe.widths(6))
    wild["weights"] = draw.floats(wild["weights"].size, -60, 60)
    yield _case("magnitudes", {**wild, **bags(draw, wild, [[12] * 6])})


def _rows(recipe: Recipe) -> Iterator[Case]:
    draw = Draw(recipe.seed, "duplicates")
    inputs = tables(draw, (6,), recipe.widths(5))
    yield _case(
        "duplicates", {**inputs, "indices": np.repeat(np.arange(6), 7), "offsets": np.arange(7) * 7}
    )
    one_row = {**inputs, "indices": np.full(16, 3), "offsets": np.arange(17)}
    yield _case("same-row", one_row)


def _formats(recipe: Recipe) -> Iterator[Case]:
    for name in ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2"):
        inputs = _plain(recipe, name)
        inputs["weights"] = coded(inputs["weights"], name)
        yield _case(
            f"rows-{name}",
            inputs,
            f"rows of {name} codes, decoded exactly, summed in fp32",
            weights_format=name,
        )
    for name in ("int8", "int4", "int2"):
        inputs = _plain(recipe, name)
        inputs["weights"] = scaled_rows(Draw(recipe.seed, name), name, (11, 7), recipe.widths(6, 3))
        yield _case(
            f"rows-{name}",
            inputs,
            f"fused {name} rows: codes, then scale and bias",
            weights_format=name,
        )
    for name in ("nbit8", "nbit4", "nbit2"):
        inputs = _plain(recipe, name)
        inputs["weights"] = scaled_rows(
            Draw(recipe.seed, name), name, (11, 7), recipe.widths(6, 3), 16
        )
        about = (
            f"{name} rows of an inference table: fp16 scale and bias first, rows padded to 16 bytes"
        )
        yield _case(f"rows-{name}", inputs, about, weights_format=name, row_alignment=16)
    codes = np.array([0x7C00, 0xFC00, 0x7E00, 0x8000, 0x0001, 0x03FF, 0x7BFF, 0x3C00], np.uint16)
    special = _table(recipe, [[0.0, 0.0]] * 4, [[0], [1], [2, 3], [3]])
    width = int(special["dims"][0])
    rows = [np.resize(row, width) for row in codes.reshape(4, 2)]
    special["weights"] = np.concatenate(rows).view([("fp16", "<u2")])
    yield _case("fp16-specials", special, weights_format="fp16")


def _outputs(recipe: Recipe) -> Iterator[Case]:
    halves = [
        [1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-25],
        [1 + 2.0**-8, 1 + 3 * 2.0**-8, 3 * 2.0**-25],
        [65519.0, 65520.0, -1e6],
    ]
    ties = _table(recipe, halves, [[0], [1], [2], [0, 1], [2, 0]])
    for name in ("fp16", "bf16"):
        yield _case(
            f"output-{name}-ties",
            ties,
            f"sums halfway between two {name} numbers round to even",
            output_format=name,
        )
        yield _case(
            f"output-{name}",
            _plain(recipe, f"out-{name}", weighted=True),
            f"sums in fp32, rounded once to {name}",
            output_format=name,
        )
        draw = Draw(recipe.seed, f"long-{name}")
        long = tables(draw, (30,), recipe.widths(4))
        yield _case(
            f"output-{name}-long",
            {**long, **bags(draw, long, [[100, 0, 300]])},
            f"long bags with {name} output: sums must not be kept in {name}",
            output_format=name,
        )
