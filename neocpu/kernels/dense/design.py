"""How is a design matrix multiplied by weights, and its transpose by numbers of samples?

A row is a sample. In fp64, each product and each sum rounded. A row's product is one chain over its
entries. The transposed product is a sum over samples: a chain within each leaf of the samples, then
the tree over leaves (`docs/arithmetic.md` §16), column by column, so that columns are spread over
threads and no two write the same number.

The matrix is sparse columns, then dense ones: `SparseLines` by row for products, by column
(`transposed`) for transposed ones, and an array f64[n, m].
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import inlined, kernel, parallel_kernel

_COLUMNS = 512  # of a task, which share scratch arrays
_BLOCK = 4096  # numbers of an inner product's chains


@inlined
def _value(values, entry):
    return values[entry] if values.size else 1.0


@parallel_kernel
def products(rows, dense, weights, out):
    """out = X weights.

    Shapes: rows of s sparse columns, n lines; dense f64[n, m]; weights f64[s + m, K];
    out f64[n, K].
    Order: acc = +0; acc = fl64(acc + fl64(value * weight)) for the row's entries in their order,
    then for its dense columns.
    """
    samples, width = out.shape
    first_dense = weights.shape[0] - dense.shape[1]
    for i in prange(samples):
        first = rows.starts[i]
        last = rows.starts[i + 1]
        if width == 1:
            acc = 0.0
            if rows.values.size:
                for entry in range(first, last):
                    acc += rows.values[entry] * weights[rows.places[entry], 0]
            else:
                for entry in range(first, last):
                    acc += weights[rows.places[entry], 0]
            for column in range(dense.shape[1]):
                acc += dense[i, column] * weights[first_dense + column, 0]
            out[i, 0] = acc
            continue
        for k in range(width):
            out[i, k] = 0.0
        for entry in range(first, last):
            value = _value(rows.values, entry)
            place = rows.places[entry]
            for k in range(width):
                out[i, k] += value * weights[place, k]
        for column in range(dense.shape[1]):
            value = dense[i, column]
            for k in range(width):
                out[i, k] += value * weights[first_dense + column, k]


@inlined
def _add_entries(columns, first, last, numbers, slots, sums):
    """Add entries [first, last) of a column, a chain in each leaf, to sums f64[slots, K]."""
    width = numbers.shape[1]
    if width == 1 and columns.values.size == 0:
        for entry in range(first, last):
            sample = columns.places[entry]
            sums[slots[sample], 0] += numbers[sample, 0]
        return
    for entry in range(first, last):
        sample = columns.places[entry]
        value = _value(columns.values, entry)
        for k in range(width):
            sums[slots[sample], k] += value * numbers[sample, k]


@inlined
def _fold(sums, first, size):
    """The tree over the slots [first, first + size) of a node, in place; its root is at `first`."""
    half = size // 2
    while half:
        for slot in range(first, first + half):
            for k in range(sums.shape[1]):
                sums[slot, k] += sums[slot + half, k]
        half //= 2


@inlined
def _root_of_16(s):
    """The root of `_fold` over all of s f64[16, 1], its levels unrolled."""
    a0 = s[0, 0] + s[8, 0]
    a1 = s[1, 0] + s[9, 0]
    a2 = s[2, 0] + s[10, 0]
    a3 = s[3, 0] + s[11, 0]
    a4 = s[4, 0] + s[12, 0]
    a5 = s[5, 0] + s[13, 0]
    a6 = s[6, 0] + s[14, 0]
    a7 = s[7, 0] + s[15, 0]
    return ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))


@inlined
def _slots_of(leaves, nodes, slots):
    """The slot of each sample's leaf: inside a node the bits of its leaves' numbers reversed.

    So neighbours in the tree are half a node apart, and a level of it is one loop over a run.
    """
    total = nodes[-1, 0] + nodes[-1, 1] if nodes.shape[0] else 0
    of_leaf = np.zeros(total, np.int32)
    for node in range(nodes.shape[0]):
        first = nodes[node, 0]
        size = nodes[node, 1]
        for leaf in range(size):
            slot = 0
            bit = 1
            while bit < size:
                slot = 2 * slot + (1 if leaf & bit else 0)
                bit *= 2
            of_leaf[first + leaf] = first + slot
    for sample in range(leaves.size):
        slots[sample] = of_leaf[leaves[sample]]
    return total


@parallel_kernel
def transposed_products(columns, numbers, leaves, nodes, out):
    """Nodes of the tree of X^T numbers over leaves of samples, for sparse columns.

    Shapes: columns of s lines, whose places are samples, ascending; numbers f64[n, K];
    leaves i32[n], the leaf of each sample, ascending; nodes i64[p, 2], first leaf and size (a power
    of two) of each, ascending, together all leaves; out f64[p, P], P >= s K:
    out[node, column * K + k].
    Order: within a leaf acc = +0; acc = fl64(acc + fl64(value * number)), samples ascending; then
    the binary tree over the leaves of a node.
    """
    width = numbers.shape[1]
    count = columns.starts.size - 1
    slots = np.empty(leaves.size, np.int32)
    total = _slots_of(leaves, nodes, slots)
    whole = nodes.shape[0] == 1 and total == 16  # a single rank, and the leaves that are usual
    for task in prange((count + _COLUMNS - 1) // _COLUMNS):
        sums = np.empty((total, width))
        for column in range(task * _COLUMNS, min((task + 1) * _COLUMNS, count)):
            first = columns.starts[column]
            last = columns.starts[column + 1]
            if first == last:
                out[:, column * width : column * width + width] = 0.0
                continue
            if width == 1 and whole:
                if last == first + 1:
                    sample = columns.places[first]
                    # of -0 the leaf's sum is +0
                    out[0, column] = _value(columns.values, first) * numbers[sample, 0] + 0.0
                    continue
                for slot in range(16):
                    sums[slot, 0] = 0.0
                _add_entries(columns, first, last, numbers, slots, sums)
                out[0, column] = _root_of_16(sums)
                continue
            sums[:] = 0.0
            _add_entries(columns, first, last, numbers, slots, sums)
            for node in range(nodes.shape[0]):
                _fold(sums, nodes[node, 0], nodes[node, 1])
                for k in range(width):
                    out[node, column * width + k] = sums[nodes[node, 0], k]


@parallel_kernel
def dense_transposed(dense, numbers, ends, out):
    """Sums over each leaf of samples of X^T numbers, for dense columns.

    Shapes: dense f64[n, m]; numbers f64[n, K]; ends i64[leaves], the sample behind each leaf;
    out f64[leaves, m, K].
    Order: acc = +0; acc = fl64(acc + fl64(dense * number)), samples ascending; -0 becomes +0.
    """
    for leaf in prange(ends.size):
        first = 0 if leaf == 0 else ends[leaf - 1]
        for column in range(dense.shape[1]):
            for k in range(numbers.shape[1]):
                out[leaf, column, k] = 0.0
        for i in range(first, ends[leaf]):
            for column in range(dense.shape[1]):
                value = dense[i, column]
                for k in range(numbers.shape[1]):
                    out[leaf, column, k] += value * numbers[i, k]
        for column in range(dense.shape[1]):
            for k in range(numbers.shape[1]):
                out[leaf, column, k] += 0.0


@kernel
def transposed(rows, starts, places, values):
    """A sparse matrix by its columns, the rows of each ascending.

    Shapes: rows of n lines and e entries; starts i64[s + 1]; places i32[e]; values f64[e], or
    f64[0] where those of `rows` are.
    """
    starts[:] = 0
    for place in rows.places:
        starts[place + 1] += 1
    for column in range(starts.size - 1):
        starts[column + 1] += starts[column]
    following = starts[:-1].copy()
    for i in range(rows.starts.size - 1):
        for entry in range(rows.starts[i], rows.starts[i + 1]):
            at = following[rows.places[entry]]
            following[rows.places[entry]] = at + 1
            places[at] = i
            if values.size:
                values[at] = rows.values[entry]


@parallel_kernel
def moved(x, share, y, out):
    """out = x + share * y, for vectors f64[n]; out may be one of them.

    Order: fl64(x + fl64(share * y)).
    """
    for i in prange(x.size):
        out[i] = x[i] + share * y[i]


@parallel_kernel
def mean_and_pull(total, samples, penalty, weights, out):
    """out = total / samples + penalty * weights, for vectors f64[n].

    Order: fl64(fl64(total / samples) + fl64(penalty * weights)).
    """
    for i in prange(out.size):
        out[i] = total[i] / samples + penalty[i] * weights[i]


@parallel_kernel
def block_products(x, y, out):
    """Inner products of blocks of 4,096 numbers of two vectors; their sum is `inner_product`.

    Shapes: x, y f64[n]; out f64[ceil(n / 4096)].
    Order: number i of a block goes to chain i mod 8, acc = fl64(acc + fl64(x * y)) from +0; then
    the binary tree over the eight.
    """
    for block in prange(out.size):
        first = block * _BLOCK
        last = min(first + _BLOCK, x.size)
        c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = 0.0
        whole = first + (last - first) // 8 * 8
        for i in range(first, whole, 8):
            c0 += x[i] * y[i]
            c1 += x[i + 1] * y[i + 1]
            c2 += x[i + 2] * y[i + 2]
            c3 += x[i + 3] * y[i + 3]
            c4 += x[i + 4] * y[i + 4]
            c5 += x[i + 5] * y[i + 5]
            c6 += x[i + 6] * y[i + 6]
            c7 += x[i + 7] * y[i + 7]
        rest = last - whole
        if rest > 0:
            c0 += x[whole] * y[whole]
        if rest > 1:
            c1 += x[whole + 1] * y[whole + 1]
        if rest > 2:
            c2 += x[whole + 2] * y[whole + 2]
        if rest > 3:
            c3 += x[whole + 3] * y[whole + 3]
        if rest > 4:
            c4 += x[whole + 4] * y[whole + 4]
        if rest > 5:
            c5 += x[whole + 5] * y[whole + 5]
        if rest > 6:
            c6 += x[whole + 6] * y[whole + 6]
        out[block] = ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7))


def inner_product(x, y):
    """The inner product of two vectors f64[n], by `block_products`, then the tree over blocks.

    Blocks beyond the last, up to a power of two of them, are +0.
    """
    count = -(-x.size // _BLOCK)
    sums = np.zeros(1 << max(count - 1, 0).bit_length())
    block_products(x, y, sums[:count])
    while sums.size > 1:
        sums = sums[0::2] + sums[1::2]
    return float(sums[0])
