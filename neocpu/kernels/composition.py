"""How do vectors of physical tables become those of logical ones? By a list of steps, which every
sample goes through while its rows are in the cache.

A step copies neighbouring columns of one matrix, or adds or multiplies those of two, which may be
the one that is made: out[:, at : at + n] = left[:, ...] + right[:, ...].
"""

from numba import prange

from neocpu.kernels._jit import parallel_kernel

COPY, ADD, MULTIPLY = range(3)
FIRST, SECOND, OUT = range(3)


@parallel_kernel
def compose(steps, first, second, out):
    """Make each row of `out` by the same steps.

    Shapes: steps i64[n, 7]: operation (COPY, ADD, MULTIPLY), first of its columns in `out`, number
    of columns, matrix (FIRST, SECOND, OUT) and first column of the left operand, and of the right
    one (any, to copy); first, second, out f32[b, ...], C-contiguous. Order: steps ascending; each
    operation is rounded.
    """
    matrices = (first, second, out)
    for sample in prange(out.shape[0]):
        for n in range(steps.shape[0]):
            at = steps[n, 1]
            width = steps[n, 2]
            target = out[sample, at : at + width]
            left = matrices[steps[n, 3]][sample, steps[n, 4] : steps[n, 4] + width]
            right = matrices[steps[n, 5]][sample, steps[n, 6] : steps[n, 6] + width]
            if steps[n, 0] == COPY:
                for column in range(width):
                    target[column] = left[column]
            elif steps[n, 0] == ADD:
                for column in range(width):
                    target[column] = left[column] + right[column]
            else:
                for column in range(width):
                    target[column] = left[column] * right[column]
