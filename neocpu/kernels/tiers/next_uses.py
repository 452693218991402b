"""When is a row used next, as far as the batches that are known say? For caches that look ahead.

Sources: Belady 1966; BagPipe (Agarwal et al., SOSP 2023).
"""

from neocpu.core.policies import NEVER
from neocpu.kernels.compile.jit import kernel


@kernel
def expire(lines, now, state, gone, rows, dirty):
    """Empty those of the lines that no batch in flight uses, and whose rows no batch after `now` is
    known to use: gone[:n], with their rows and whether they were changed. Returns n.

    Shapes: lines i64[n] distinct, -1 and empty ones skipped; now i64; state `CacheState`; gone,
    rows i64[n], dirty bool[n]. Source: the time to live of BagPipe's rows. Order: of `lines`.
    """
    n = 0
    for i in range(lines.size):
        line = lines[i]
        if line < 0 or state.prints[line] == 0 or state.locks[line] > 0:
            continue
        if not now < state.next_use[line] < NEVER:
            gone[n] = line
            rows[n] = state.tags[line]
            dirty[n] = state.dirty[line] != 0
            state.prints[line] = 0
            state.dirty[line] = 0
            n += 1
    return n


@kernel
def batches_ahead(ids, later, starts, out):
    """How many batches ahead each row is used next: out[i] = b + 1 for the first later batch b that
    has ids[i], else 0.

    Shapes: ids i64[n] ascending; batch b is later[starts[b] : starts[b+1]], ascending; starts
    i64[B+1]; out i64[n].
    """
    out[:] = 0
    # both ascend: one pass over each batch, without a search
    for b in range(starts.size - 1):
        j = starts[b]
        last = starts[b + 1]
        for i in range(ids.size):
            while j < last and later[j] < ids[i]:
                j += 1
            if j == last:
                break
            if later[j] == ids[i] and out[i] == 0:
                out[i] = b + 1


@kernel
def expect(lines, use, now, next_use):
    """The rows in these lines will be used by batch `use`: news for those with no known use after
    batch `now`.

    Shapes: lines i64[n], -1 skipped; use, now i64; next_use i64[lines].
    """
    for i in range(lines.size):
        line = lines[i]
        if line >= 0 and (next_use[line] <= now or next_use[line] > use):
            next_use[line] = use
