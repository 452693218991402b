"""How do rows decay between their updates? As in FBGEMM's WeightDecayMode.DECOUPLE_GLOBAL.

Lookups of training steps and updates start from rows that have decayed for the steps since their
last update; the module's own rows change in updates only (formula: docs/semantics.md §2).
"""

from dataclasses import replace

import numpy as np
import torch

from neocpu.core.types import Ints
from neocpu.kernels.twins.rows.row_counters import missed_decay
from neocpu.peers.fbgemm.modules.engine import FeatureBatch
from neocpu.peers.fbgemm.modules.narrow import TouchedRows, touched_rows
from neocpu.peers.fbgemm.modules.storage import Storage


def decayed_rows(
    module: Storage, table: Ints, lookup_rows: Ints, step: int, keep: np.float32, bound: float
) -> TouchedRows:
    """The rows of lookups as a training step sees them; arguments of `touched_rows`.

    keep : 1 - lr*wd. bound : the least factor.
    """
    touched = touched_rows(module, table, lookup_rows)
    decayed = []
    for rows, values, prev_iter in zip(
        touched.rows, touched.values, module.split_state("prev_iter")
    ):
        last = prev_iter.numpy()[rows]
        decayed.append(missed_decay(last, step, keep, bound)[:, None] * values)
    # New arrays: the module's own rows change in updates only.
    return touched._replace(values=decayed)


def renumbered(batch: FeatureBatch, touched: TouchedRows) -> FeatureBatch:
    """The batch over the touched rows alone."""
    return replace(batch, indices=touched.renumbered)


def lookup_tables(batch: FeatureBatch) -> Ints:
    """The table of each lookup of a batch: i64[n]."""
    lookups = np.diff(batch.offsets[batch.first_bag])
    return np.repeat(batch.table, lookups)


def note_update(module: Storage, touched: TouchedRows, step: int) -> None:
    """Set `prev_iter` of the touched rows."""
    for rows, prev_iter in zip(touched.rows, module.split_state("prev_iter")):
        prev_iter[torch.from_numpy(rows)] = float(step)
