"""Which rows break fp8 under a scale of each row? Cases of the operator `fp8_rowwise`."""

from collections.abc import Iterator

import numpy as np

from neocpu.oracle.cases.draw import Draw
from neocpu.oracle.operator import Case, Value


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    for backward in (False, True):
        name = "backward" if backward else "forward"
        draw = Draw(seed, f"fp8-rowwise-{name}")
        columns = 64 if dim_multiple > 1 else 37
        x = draw.floats((12, columns), -9, 3)
        x[1] = 0.0
        x[2] = -np.abs(x[2])  # the largest by size is negative
        x[3] *= np.float32(2.0**-40)
        x[4] *= np.float32(2.0**40)
        # ties between codes, under a scale of 1: all are below the limit, 60/64 or 56/64
        x[5] = np.arange(columns) % 56 / np.float32(64)
        x[5, 0] = 0.875 if backward else 0.9375
        x[6] = draw.floats(columns, -40, 3)  # most of them subnormal as codes, or 0
        about = (
            f"{name} format: rows of zeros, of negative, tiny and huge numbers, ties, subnormals"
        )
        yield Case(f"fp8-rowwise-{name}", "fp8_rowwise", {"x": x}, {"backward": backward}, about)
        special = draw.floats((3, columns))
        special[0, 3] = np.nan
        special[1, 2] = np.inf
        about = f"{name} format: of rows with NaN or infinity only the others are judged"
        options: dict[str, Value] = {"backward": backward}
        yield Case(f"fp8-rowwise-{name}-specials", "fp8_rowwise", {"x": special}, options, about)
