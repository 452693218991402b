"""The plain twin of `neocpu.kernels.touch`: new rows of a shard are found together and made together."""

import numpy as np

from neocpu.reference.philox import uniform_rows


def first_touch(
    rows, cuts, shard, row_base, base, width, row0, column0, key, scale, start0, start1, start_row, touched, table, state0,
    state1, row_state, made,
):  # fmt: skip
    """Make every row that is looked up and does not exist yet; shapes as in the kernel."""
    for h, lo, hi in zip(shard, cuts[:-1], cuts[1:]):
        wanted = np.unique(rows[lo:hi])
        new = wanted[(wanted >= 0) & (touched[row_base[h] + wanted] == 0)]
        touched[row_base[h] + new] = 1
        made[h] += new.size
        values = np.empty((new.size, width[h]), np.float32)
        uniform_rows(key[h], row0[h] + new, column0[h], scale[h], values)
        places = base[h] + new[:, None] * width[h] + np.arange(width[h])
        table[places] = values
        for state, start in ((state0, start0), (state1, start1)):
            if state.size:
                state[places] = start
        if row_state.size:
            row_state[row_base[h] + new] = start_row
