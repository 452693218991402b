"""Which batch may not be exchanged? One whose lookups would reach outside their tables; the error
names the lookup.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import IndexRangeError
from neocpu.core.jagged import KJT
from neocpu.kernels.exchange.bucketize import first_outside
from neocpu.tables.specs.specs import BatchKey, TableSpec


def wide_rows(kjt: KJT) -> KJT:
    """The batch with its row numbers in i64, as they travel."""
    if kjt.values.dtype == np.int64:
        return kjt
    return replace(kjt, values=kjt.values.astype(np.int64))


def find_refusal(
    kjt: KJT,
    tables: Sequence[TableSpec],
    bags: Sequence[BatchKey],
    samples: int,
    first_sample: int | NDArray[np.int64],
) -> IndexRangeError | None:
    """Why this rank's part of a batch cannot be looked up, or None.

    samples : how many the rank owns. first_sample : position of the first one in the global batch,
    or i64[samples], that of each (messages name samples of the global batch). Rows may be -1
    (pruned) to rows - 1.
    """
    try:
        kjt.check()
    except IndexRangeError as error:
        return error
    if kjt.keys != tuple(bag.key for bag in bags):
        return IndexRangeError(
            f"the batch has keys {kjt.keys}; the tables need {tuple(bag.key for bag in bags)}"
        )
    if kjt.samples != samples:
        return IndexRangeError(
            f"the batch has {kjt.samples} samples where this rank owns {samples}"
        )
    if kjt.weights is None and any(table.weighted for table in tables):
        names = [table.name for table in tables if table.weighted]
        return IndexRangeError(
            f"tables {names} are weighted, but the batch has no per-sample weights"
        )
    limits = np.array([tables[bag.table].rows for bag in bags], np.int64)
    bad = first_outside(kjt.offsets, kjt.values, limits, samples)
    if bad < 0:
        return None
    # empty bags begin at the same lookup: the last that does is the one that has it
    bag = int(np.searchsorted(kjt.offsets, bad, side="right")) - 1
    key = bags[bag // samples]
    sample = bag % samples
    table = tables[key.table]
    position = first_sample + sample if isinstance(first_sample, int) else int(first_sample[sample])
    return IndexRangeError(
        f"feature {key.feature!r}, table {table.name!r}, sample {position} of the batch: "
        f"row {int(kjt.values[bad])} is outside [-1, {table.rows})"
    )
