"""How do vectors of physical tables become those of logical ones? By a list of steps, which every
sample goes through while its rows are in the cache.

A step copies neighbouring columns of the first matrix, or adds or multiplies those of the second
one to them. A chain goes on with the columns that are made.
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.simd import prefetch

# ..._ON: the columns that are made already, in place of those of the first matrix
COPY, ADD, MULTIPLY, ADD_ON, MULTIPLY_ON = range(5)
AHEAD = 1024  # floats; steps go to and fro among the columns, which no hardware foresees
LINE = np.uint64(16)  # floats of a cache line


@inlined
def _prefetch(x, at, width):
    for column in range(np.uint64(0), width, LINE):
        prefetch(x, np.int64(at + column) + AHEAD)


@parallel_kernel
def compose(steps, first, second, out):
    """Make each row of `out` by the same steps.

    Shapes: steps u64[n, 5]: operation, first of its columns in `out`, number of columns, first
    column of its left operand in `first` and of the right one in `second` (any, where it has none);
    first, second, out f32[b, ...], C-contiguous. Order: steps ascending; each operation is rounded.
    """
    left = first.reshape(-1)
    right = second.reshape(-1)
    made = out.reshape(-1)
    # all steps of a sample before the next one: what a step made is still in the cache
    for sample in prange(out.shape[0]):
        # unsigned: for a signed index Numba tests at each use whether it counts from the end
        row = np.uint64(sample)
        left_row = row * np.uint64(first.shape[1])
        right_row = row * np.uint64(second.shape[1])
        made_row = row * np.uint64(out.shape[1])
        for n in range(steps.shape[0]):
            at = made_row + steps[n, 1]
            width = steps[n, 2]
            left_at = left_row + steps[n, 3]
            right_at = right_row + steps[n, 4]
            _prefetch(made, at, width)
            _prefetch(left, left_at, width)
            _prefetch(right, right_at, width)
            if steps[n, 0] == COPY:
                for column in range(width):
                    made[at + column] = left[left_at + column]
            elif steps[n, 0] == ADD:
                for column in range(width):
                    made[at + column] = left[left_at + column] + right[right_at + column]
            elif steps[n, 0] == MULTIPLY:
                for column in range(width):
                    made[at + column] = left[left_at + column] * right[right_at + column]
            elif steps[n, 0] == ADD_ON:
                for column in range(width):
                    made[at + column] += right[right_at + column]
            else:
                for column in range(width):
                    made[at + column] *= right[right_at + column]
