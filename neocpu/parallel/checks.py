"""Which batch may not be exchanged? One whose lookups would reach outside their tables; the error names the lookup."""

from collections.abc import Sequence

import numpy as np

from neocpu.embedding.specs import Bag, TableSpec
from neocpu.errors import IndexRangeError
from neocpu.jagged import KJT


def find_refusal(
    kjt: KJT, tables: Sequence[TableSpec], bags: Sequence[Bag], samples: int, first: int
) -> IndexRangeError | None:
    """Why this rank's part of a batch cannot be looked up, or None.

    `samples`: how many samples the rank owns; `first`: the place of the first one in the global batch (messages name
    samples of the global batch). Rows may be -1 (pruned) to rows - 1.
    """
    try:
        kjt.check()
    except IndexRangeError as error:
        return error
    if kjt.keys != tuple(bag.key for bag in bags):
        return IndexRangeError(f"the batch has keys {kjt.keys}; the tables need {tuple(bag.key for bag in bags)}")
    if kjt.samples != samples:
        return IndexRangeError(f"the batch has {kjt.samples} samples where this rank owns {samples}")
    if kjt.weights is None and any(table.weighted for table in tables):
        names = [table.name for table in tables if table.weighted]
        return IndexRangeError(f"tables {names} are weighted, but the batch has no per-sample weights")
    cuts = kjt.offsets[::samples].tolist() if samples else [0] * (len(bags) + 1)
    for bag, lo, hi in zip(bags, cuts, cuts[1:]):
        rows = kjt.values[lo:hi]
        limit = tables[bag.table].rows
        # one unsigned maximum: -1 becomes 0, whatever lies below becomes huge
        if rows.size and int((rows + 1).view(np.uint64).max()) > limit:
            bad = lo + int(np.flatnonzero((rows < -1) | (rows >= limit))[0])
            sample = int(np.searchsorted(kjt.offsets, bad, side="right")) - 1
            return IndexRangeError(
                f"feature {bag.feature!r}, table {tables[bag.table].name!r}, "
                f"sample {first + sample % samples} of the batch: row {int(kjt.values[bad])} is outside [-1, {limit})"
            )
    return None
