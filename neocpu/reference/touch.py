"""When does a row come into being? The plain twin of `kernels/touch.py`."""

import numpy as np

from neocpu.reference.philox import uniform_rows


def find_untouched(rows, chunk, origin, touched, fresh, count):
    """Lookups of rows that do not exist yet, chunk by chunk; see `kernels.touch.find_untouched`."""
    for t in range(origin.size):
        mine = rows[chunk[t] : chunk[t + 1] if origin[t] >= 0 else chunk[t]]
        mine = origin[t] + mine[mine >= 0]
        mine = mine[touched[mine] == 0]
        count[t] = mine.size
        fresh[chunk[t] : chunk[t] + mine.size] = mine


def claim_rows(chunk, count, touched, fresh):
    """Mark rows and bring each once to the front of fresh; returns how many; see
    `kernels.touch.claim_rows`.
    """
    asked = np.concatenate([fresh[a : a + n] for a, n in zip(chunk, count)] + [fresh[:0]])
    names, at = np.unique(asked, return_index=True)
    new = asked[np.sort(at[touched[names] == 0], kind="stable")]
    touched[new] = 1
    fresh[: new.size] = new
    return new.size


def make_rows(
    fresh,
    row_base,
    base,
    width,
    row0,
    column0,
    key,
    scale,
    start0,
    start1,
    start_row,
    table,
    state0,
    state1,
    row_state,
):
    """Initial values and states of rows; see `kernels.touch.make_rows`."""
    for number in fresh:
        h = int(np.flatnonzero(row_base <= number)[-1])
        row = int(number - row_base[h])
        line = slice(int(base[h] + row * width[h]), int(base[h] + (row + 1) * width[h]))
        values = np.empty((1, int(width[h])), np.float32)
        uniform_rows(key[h], row0[h] + np.array([row]), int(column0[h]), scale[h], values)
        table[line] = values[0]
        for state, start in ((state0, start0), (state1, start1)):
            if state.size:
                state[line] = start
        row_state[number * start_row.size : (number + 1) * start_row.size] = start_row
