"""How does a textbook look a row up in a 32-way cache? It hashes the row to a set and compares the
row with each line of the set.
"""

from functools import cache

import numpy as np
from numba import prange

from neocpu.core.policies import NEVER
from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.scratch import task_body
from neocpu.kernels.simd.cache_sets import WAYS
from neocpu.kernels.tiers import policies
from neocpu.kernels.tiers.cache import CHUNK, mix


@inlined
def probe(row, s, prints, tags):
    """The line of a row in set s, or -1; a line whose print is 0 is empty."""
    for line in range(s * WAYS, (s + 1) * WAYS):
        # the print says only whether the line is empty: comparing tags needs no hash
        if prints[line] != 0 and tags[line] == row:
            return line
    return -1


@parallel_kernel
def locate(ids, prints, tags, out):
    """out[i] = line of ids[i], or -1; arguments as of `kernels.tiers.cache.locate`."""
    sets = np.uint64(prints.size // WAYS)
    for i in prange(ids.size):
        out[i] = -1
        if ids[i] >= 0:
            out[i] = probe(ids[i], np.int64(mix(ids[i]) % sets), prints, tags)


def _fuse_find(touch):
    """Kernel that finds rows, and touches and locks those that are there."""

    @task_body
    def find_chunk(t, rows, now, state, found):
        sets = np.uint64(state.prints.size // WAYS)
        missing = 0
        requested = 0
        for i in range(t * CHUNK, min((t + 1) * CHUNK, rows.ids.size)):
            s = np.int64(mix(rows.ids[i]) % sets)
            line = probe(rows.ids[i], s, state.prints, state.tags)
            requested += rows.counts[i]
            if line >= 0:
                use = rows.use[i] if rows.use.size else NEVER
                touch(line, False, rows.counts[i], use, now, state)
                state.locks[line] += 1
                found.lines[i] = line
            else:
                found.lines[i] = -1 - s
                found.missed[t * CHUNK + missing] = i
                missing += 1
        found.misses[t] = missing
        found.lookups[t] = requested

    @parallel_kernel
    def find(rows, now, state, found):
        for t in prange(found.misses.size):
            find_chunk(t, rows, now, state, found)

    return find


@cache
def finder(policy):
    """The kernel that finds the rows of a batch; arguments as of `kernels.tiers.cache.finder`."""
    return _fuse_find(getattr(policies, f"{policy}_touch"))
