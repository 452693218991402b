"""Which long sums of ordinary numbers lose a lookup unseen? Cases with a statistical bound.

The dyadic cases of long bags are exact: one lost lookup shows. These have numbers with all 24 bits,
where kernels may differ by rounding; what a lost lookup changes is far beyond what rounding usually
does (`Verdict.warnings`).
"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.types import Floats
from neocpu.oracle.cases.draw import Draw, bags, gradient, hot, tables
from neocpu.oracle.operator import Arrays, Case, Value

ROWS = 4000
LENGTHS = (1000, 10_000)


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    width = max(dim_multiple, 4)
    for length in LENGTHS:
        yield from _lookups(seed, length, width)
    yield from _gradients(seed, width)


def _ordinary(draw: Draw, shape: int | tuple[int, ...]) -> Floats:
    """Numbers of mean 0 with all 24 bits, near a normal distribution of variance 1."""
    count = int(np.prod(shape))
    uniform = draw.words(12 * count).astype(np.float64).reshape(12, count) / 2.0**32
    # Twelve uniform numbers have the variance 1, without a function of libm.
    return (uniform.sum(axis=0) - 6.0).astype(np.float32).reshape(shape)


def _table(draw: Draw, rows: int, width: int) -> Arrays:
    inputs = tables(draw, (rows,), (width,))
    return {**inputs, "weights": _ordinary(draw, rows * width)}


def _lookups(seed: int, length: int, width: int) -> Iterator[Case]:
    kinds: tuple[tuple[str, bool, dict[str, Value]], ...] = (
        ("sum", False, {}),
        ("weighted-mean", True, {"pooling": "mean"}),
    )
    for name, weighted, options in kinds:
        draw = Draw(seed, f"long-{name}-{length}")
        inputs = _table(draw, ROWS, width)
        inputs |= bags(draw, inputs, [[length, 0, length - 1]], weighted=weighted)
        about = (
            f"bags of {length} ordinary numbers ({name}): one lost lookup is within the proven "
            "bound, and far beyond the usual error"
        )
        yield Case(f"lookup-long-{name}-{length}", "lookup", inputs, options, about)


def _gradients(seed: int, width: int) -> Iterator[Case]:
    length = LENGTHS[0]
    sgd: dict[str, Value] = {"optimizer": "exact_sgd", "learning_rate": 0.0625}
    kinds: tuple[tuple[str, dict[str, Value]], ...] = (("unique_gradient", {}), ("backward", sgd))
    for op, options in kinds:
        draw = Draw(seed, f"long-{op}")
        inputs = _table(draw, 3, width)
        inputs |= bags(draw, inputs, [[1] * length], pick=hot)
        inputs["grad_output"] = _ordinary(draw, gradient(draw, inputs).shape)
        about = f"one row with {length} ordinary gradients: a lost one is within the proven bound"
        yield Case(f"{op.replace('_', '-')}-long", op, inputs, options, about)
    draw = Draw(seed, "long-weight-gradient")
    inputs = _table(draw, 5, length)
    inputs |= bags(draw, inputs, [[2, 1]], weighted=True)
    inputs["grad_output"] = _ordinary(draw, gradient(draw, inputs).shape)
    about = f"dot products of {length} columns: a lost column is within the proven bound"
    yield Case("weight-gradient-long", "weight_gradient", inputs, {}, about)
