"""When is a row used next? The plain twin of `kernels/tiers/next_uses.py`, over whole arrays."""

import numpy as np

from neocpu.core.policies import NEVER


def expire(lines, now, state, gone, rows, dirty):
    """Empty lines whose rows are not needed; returns how many.

    See `kernels.tiers.next_uses.expire`.
    """
    inside = lines[lines >= 0]
    known = (state.next_use[inside] > now) & (state.next_use[inside] < NEVER)
    leaving = inside[~known & (state.locks[inside] == 0) & (state.prints[inside] > 0)]
    n = leaving.size
    gone[:n] = leaving
    rows[:n] = state.tags[leaving]
    dirty[:n] = state.dirty[leaving] != 0
    state.prints[leaving] = 0
    state.dirty[leaving] = 0
    return n


def batches_ahead(ids, later, starts, out):
    """How many batches ahead each row is used next, or 0.

    See `kernels.tiers.next_uses.batches_ahead`.
    """
    out[:] = 0
    # from the last batch on, so that the first one that has a row is what stays
    for b in reversed(range(starts.size - 1)):
        out[np.isin(ids, later[starts[b] : starts[b + 1]])] = b + 1


def expect(lines, use, now, next_use):
    """Rows in these lines will be used by a batch; see `kernels.tiers.next_uses.expect`."""
    lines = lines[lines >= 0]
    lines = lines[(next_use[lines] <= now) | (next_use[lines] > use)]
    next_use[lines] = use
