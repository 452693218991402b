"""Which bags break MAX pooling? Cases of the operators `lookup_max` and `lookup_max_backward`."""

from collections.abc import Iterator

import numpy as np

from neocpu.oracle.cases.draw import (
    NARROW,
    Draw,
    Recipe,
    bags,
    coded,
    gradient,
    hot,
    ragged,
    tables,
)
from neocpu.oracle.operator import Arrays, Case, Value


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    for make in (_bags, _numbers):
        yield from make(seed, Recipe(seed, dim_multiple).narrow)


def _with_backward(
    seed: int, name: str, inputs: Arrays, about: str, exact: bool = True, **options: Value
) -> Iterator[Case]:
    """A case of the lookup, and one of its backward on the same bags."""
    yield Case(f"lookup-max-{name}", "lookup_max", inputs, options, about)
    draw = Draw(seed, f"lookup-max-{name}-gradient")
    backward = {**inputs, "grad_output": gradient(draw, inputs, exact=exact)}
    about = f"gradient; {about}"
    yield Case(f"lookup-max-{name}-backward", "lookup_max_backward", backward, options, about)


def _bags(seed: int, multiple: int) -> Iterator[Case]:
    draw = Draw(seed, "lookup-max")
    shared = tables(draw, (11, 7), (2 * multiple, 2 * multiple), (1, 0, 1))
    inputs = {**shared, **bags(draw, shared, ragged(draw, 3, 5))}
    about = "ragged bags, some of them empty: 0, though all numbers of others may be negative"
    yield from _with_backward(seed, "ragged", inputs, about, exact=False)
    negative = {**inputs, "weights": -np.abs(inputs["weights"])}
    about = "nothing but negative numbers: a maximum that starts at 0 is wrong"
    yield from _with_backward(seed, "negative", negative, about)
    pruned = {**inputs, "indices": inputs["indices"].copy()}
    pruned["indices"][::2] = -1
    about = "every other lookup is -1 (padding): it is not looked at; a bag of nothing else is 0"
    yield from _with_backward(seed, "pruned", pruned, about)
    varied = tables(draw, (6, 5), (multiple, 2 * multiple), (0, 1, 0))
    varied |= bags(draw, varied, [[2, 0, 3], [], [1, 1, 4, 0, 2]])
    about = "every feature has a batch size of its own, one has none: flat output"
    yield from _with_backward(seed, "variable-batch", varied, about)
    long = tables(draw, (300,), (multiple,))
    long |= bags(draw, long, [[31, 32, 33, 1, 257]])
    about = "bags around a warp and beyond a block"
    yield from _with_backward(seed, "long", long, about)
    table = tables(draw, (9,), (multiple,))
    table |= bags(draw, table, [[3] * 70], pick=hot)
    about = "every bag holds one row, three times: 70 gradients add up, not 210"
    yield from _with_backward(seed, "hot-row", table, about)
    wide = tables(draw, (4,), (260 if multiple != NARROW else 259,))
    wide |= bags(draw, wide, [[3, 2]])
    yield from _with_backward(seed, "wide", wide, "rows wider than a block of threads")


def _numbers(seed: int, multiple: int) -> Iterator[Case]:
    draw = Draw(seed, "lookup-max-numbers")
    table = tables(draw, (8,), (multiple,))
    table["weights"] = draw.whole(8 * multiple, -1, 2).astype(np.float32)
    table |= bags(draw, table, [[6] * 12])
    about = "numbers -1, 0 and 1: most maxima are met by several rows, of which the first counts"
    yield from _with_backward(seed, "ties", table, about)
    special = tables(draw, (4,), (multiple,))
    special["weights"].reshape(4, -1)[:, 0] = [np.nan, 1.0, np.inf, -np.inf]
    special["indices"] = np.array([0, 1, 1, 0, 3, 3, 2, 1, 2, 0])
    special["offsets"] = np.array([0, 2, 4, 5, 8, 8, 10])
    about = "a NaN, first in its bag or later, is the maximum; infinities of both signs"
    yield from _with_backward(seed, "specials", special, about)
    for name in ("fp16", "bf16"):
        narrow = tables(draw, (11,), (2 * multiple,))
        narrow["weights"] = coded(narrow["weights"], name)
        narrow |= bags(draw, narrow, [[4, 0, 7, 1]])
        about = f"rows of {name} codes: the maximum of the numbers, not of the codes"
        yield from _with_backward(seed, f"rows-{name}", narrow, about, weights_format=name)
