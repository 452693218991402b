"""Did an update leave rows with numbers that are not finite?

A gradient that is finite may have an infinite square, or sum: then a row is frozen, since its step
is divided by an infinite state, and nothing else shows it. Only large gradients can do that.
"""

import numpy as np

from neocpu.core.errors import TrainingError
from neocpu.core.types import Floats, FloatsByName, Ints
from neocpu.tables.specs.specs import TableSpec

# 2^31 lookups of one row with gradients below this have a sum whose square is finite
RISK = 2.0**30


def peak(numbers: Floats) -> float:
    """The largest size of the numbers; NaN where one is NaN, 0 without any."""
    if not numbers.size:
        return 0.0
    # two passes without a copy: an array of sizes would be written and read again
    return max(float(numbers.max()), -float(numbers.min()))


def at_risk(gradient: Floats, weights: Floats) -> bool:
    """Whether lookups with these gradients, and weights if there are any, can overflow."""
    # `not <`, as any comparison with NaN is false
    return not peak(gradient) * max(peak(weights), 1.0) < RISK


def refuse_overflow(
    spec: TableSpec, first: int, rows: Ints, state: FloatsByName, slots: Ints, step: int
) -> None:
    """Raise TrainingError for a row that is not finite after its update.

    first : row of the table that local row 0 of the shard is. rows, slots : i64[n], local rows that
    were updated, and where in `state` they are.
    """
    for name, values in state.items():
        updated = values[slots]
        finite = np.isfinite(updated).all(axis=tuple(range(1, updated.ndim)))
        if not finite.all():
            row = first + int(rows[np.argmin(finite)])
            raise TrainingError(
                f"step {step}: {name} of row {row} of table {spec.name} is not finite after the "
                "update: its gradient was too large for fp32; lower the learning rates, or set "
                "optimizer.sparse.max_gradient"
            )
