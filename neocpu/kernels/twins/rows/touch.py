"""When does a row get its initial values? The plain twin of `kernels/rows/touch.py`."""

import numpy as np

from neocpu.kernels.twins.numbers.philox import uniform_rows


def _exist(bits, numbers):
    """Which of these rows exist? bool[n]"""
    return np.unpackbits(bits.view(np.uint8), bitorder="little")[numbers] == 1


def find_untouched(rows, chunk, origin, bits, fresh, count):
    """Lookups of rows that do not exist yet, chunk by chunk; see
    `kernels.rows.touch.find_untouched`.
    """
    for t in range(origin.size):
        looked_up = rows[chunk[t] : chunk[t + 1] if origin[t] >= 0 else chunk[t]]
        numbers = origin[t] + looked_up[looked_up >= 0]
        missing = numbers[~_exist(bits, numbers)]
        count[t] = missing.size
        fresh[chunk[t] : chunk[t] + missing.size] = missing


def claim_rows(chunk, count, bits, fresh):
    """Mark rows and bring each once to the front of fresh; returns their number; see
    `kernels.rows.touch.claim_rows`.
    """
    numbers = np.concatenate([fresh[a : a + n] for a, n in zip(chunk, count)] + [fresh[:0]])
    unique, at = np.unique(numbers, return_index=True)
    new = numbers[np.sort(at[~_exist(bits, unique)], kind="stable")]
    np.bitwise_or.at(bits, new // 64, np.uint64(1) << (new % 64).astype(np.uint64))
    fresh[: new.size] = new
    return new.size


def make_rows(fresh, places, initial, table, states, row_state):
    """Initial values and states of rows; see `kernels.rows.touch.make_rows`."""
    per_row = initial.row_states.size
    for number in fresh:
        h = int(np.flatnonzero(places.row_base <= number)[-1])
        row = int(number - places.row_base[h])
        width = int(places.width[h])
        first = int(places.base[h] + row * width)
        values = np.empty((1, width), np.float32)
        rows = places.row0[h] + np.array([row])
        uniform_rows(initial.key[h], rows, int(places.column0[h]), initial.scale[h], values)
        table[first : first + width] = values[0] + initial.mean[h]
        for state, start in zip(states, initial.states):
            state[first : first + width] = start
        row_state[number * per_row : (number + 1) * per_row] = initial.row_states
