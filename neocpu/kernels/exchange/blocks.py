"""How do columns of many tables move between one wide matrix and the messages of an exchange?

As strided blocks. A job describes one block by six numbers, all in elements of flat arrays:

    source, source_stride, target, target_stride, rows, width

Row i of the block has `width` elements, from source + i*source_stride on in one array and from
target + i*target_stride on in the other. One list of jobs packs or unpacks a whole exchange.
"""

from neocpu.kernels.compile.jit import kernel


@kernel
def copy_blocks(source, target, jobs):
    """Copy blocks from one flat array to another.

    Shapes: source [n] f32, f64 or i64, target [m] of the same type, jobs i64[J, 6].
    Source: the permute of FBGEMM's all-to-all pooled operators; Neo.
    Order: none; the blocks of the target must not overlap.
    """
    for j in range(jobs.shape[0]):
        source_start = jobs[j, 0]
        source_stride = jobs[j, 1]
        target_start = jobs[j, 2]
        target_stride = jobs[j, 3]
        width = jobs[j, 5]
        for i in range(jobs[j, 4]):
            a = source_start + i * source_stride
            b = target_start + i * target_stride
            # slices, of a known stride of 1: LLVM copies vectors
            x = source[a : a + width]
            y = target[b : b + width]
            for c in range(width):
                y[c] = x[c]


@kernel
def add_blocks(source, target, jobs):
    """Add blocks of exact words: target = fl64(target + source), source = its rounding error.

    source + target stays the same number; the error is 0 where the sum is not finite. Returns
    whether any error is not zero.
    Shapes: source f64[n] (overwritten in the blocks), target f64[m], jobs i64[J, 6] as in
    `copy_blocks`.
    Source: Knuth's TwoSum; docs/arithmetic.md §3.
    Order: jobs in the given order, so blocks of the target may repeat; blocks of the source must
    not overlap.
    """
    any_error = False
    for j in range(jobs.shape[0]):
        source_start = jobs[j, 0]
        source_stride = jobs[j, 1]
        target_start = jobs[j, 2]
        target_stride = jobs[j, 3]
        width = jobs[j, 5]
        for i in range(jobs[j, 4]):
            a = source_start + i * source_stride
            b = target_start + i * target_stride
            x = source[a : a + width]
            y = target[b : b + width]
            for c in range(width):
                total = y[c] + x[c]
                # Knuth's TwoSum, whichever is larger
                addend = total - y[c]
                error = (y[c] - (total - addend)) + (x[c] - addend)
                # The error of an infinite or NaN sum would be NaN and spoil later sums.
                if total - total != 0.0:
                    error = 0.0
                y[c] = total
                x[c] = error
                any_error |= error != 0.0
    return any_error
