"""How do columns of many tables move between one wide matrix and the messages of an exchange? As
strided blocks.

A job is six numbers: `from` and `from_stride`, `to` and `to_stride`, `rows`, `width`: row i of the
block stands at `from + i*from_stride` of a flat array and at `to + i*to_stride` of another, `width`
elements each. One list of jobs packs or unpacks a whole exchange in one call.
"""

from neocpu.kernels._jit import kernel


@kernel
def copy_blocks(source, target, jobs):
    """Copy blocks from one flat array to another.

    Shapes: source [n] f32, f64 or i64, target [m] of the same type, jobs i64[J, 6].
    Source: the permute of FBGEMM's all-to-all pooled operators; Neo.
    Order: none; the blocks of the target must not overlap.
    """
    for j in range(jobs.shape[0]):
        a = jobs[j, 0]
        a_stride = jobs[j, 1]
        b = jobs[j, 2]
        b_stride = jobs[j, 3]
        width = jobs[j, 5]
        for i in range(jobs[j, 4]):
            x = source[a + i * a_stride : a + i * a_stride + width]
            y = target[b + i * b_stride : b + i * b_stride + width]
            for c in range(width):
                y[c] = x[c]


@kernel
def add_blocks(source, target, jobs):
    """Add blocks of exact words to others and leave the rounding errors behind: target =
    fl64(target + source), source = what that lost (0 where the sum is not finite). Returns whether
    any error is not zero.

    Shapes: source f64[n] (overwritten in the blocks), target f64[m], jobs i64[J, 6] as in
    `copy_blocks`.
    Source: Knuth's TwoSum; docs/arithmetic.md §3. source + target is the same number before and
    after.
    Order: jobs in the given order, so blocks of the target may repeat; blocks of the source must
    not overlap.
    """
    lost = False
    for j in range(jobs.shape[0]):
        a = jobs[j, 0]
        a_stride = jobs[j, 1]
        b = jobs[j, 2]
        b_stride = jobs[j, 3]
        width = jobs[j, 5]
        for i in range(jobs[j, 4]):
            x = source[a + i * a_stride : a + i * a_stride + width]
            y = target[b + i * b_stride : b + i * b_stride + width]
            for c in range(width):
                total = y[c] + x[c]
                kept = total - y[c]
                error = (y[c] - (total - kept)) + (x[c] - kept)
                if total - total != 0.0:  # an infinity or a NaN carries its meaning alone
                    error = 0.0
                y[c] = total
                x[c] = error
                lost |= error != 0.0
    return lost
