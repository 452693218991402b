"""Row maps at work: rows of a logical table to rows, and signs, of a physical one.

`row_maps.py` has the records, which config and planner read without Numba.
"""

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.kernels.rows.row_maps import map_rows, sign_weights
from neocpu.tables.specs.specs import RowMap


def physical_rows(row_map: RowMap, logical_rows: Ints, out: Ints) -> None:
    """Write the row of a physical table for each logical row i64[n] into out i64[n].

    -1: it has none there. `out` may be `logical_rows`.
    """
    map_rows(
        logical_rows,
        row_map.number,
        row_map.divisor,
        row_map.modulus,
        row_map.first,
        np.uint64(row_map.key),
        out,
    )


def sign(row_map: RowMap, logical_rows: Ints, weights: Floats) -> None:
    """Multiply the weights f32[n] of lookups of logical rows i64[n] by their signs, where the map
    is signed.
    """
    if row_map.signed:
        sign_weights(logical_rows, np.uint64(row_map.key), weights)
