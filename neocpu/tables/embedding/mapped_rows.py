"""Row maps at work: rows of a logical table to rows, and signs, of a physical one.

`row_maps.py` has the records, which config and planner read without Numba.
"""

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.kernels.rows.row_maps import map_rows, sign_weights
from neocpu.tables.specs.row_maps import RowMap


def physical_rows(row_map: RowMap, rows: Ints, out: Ints) -> None:
    """Write the row of a physical table for each row i64[n] of the logical one into out i64[n].

    -1: it has none there. `out` may be `rows`.
    """
    map_rows(
        rows,
        row_map.number,
        row_map.divisor,
        row_map.modulus,
        row_map.first,
        np.uint64(row_map.key),
        out,
    )


def sign(row_map: RowMap, rows: Ints, weights: Floats) -> None:
    """Multiply the weights f32[n] of lookups by their signs, where the map is signed.

    rows : i64[n], of the logical table.
    """
    if row_map.signed:
        sign_weights(rows, np.uint64(row_map.key), weights)
