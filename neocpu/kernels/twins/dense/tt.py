"""How are rows of a tensor-train table made of its cores, and gradients taken back to them? The
plain twin of `kernels/dense/tt.py`.

Every sum is written over whole arrays: a loop over what is summed, all results at once.
"""

import numpy as np

from neocpu.kernels.twins.numbers.fma import fma

CHAINS = 16  # of a dot product


def _dots(left, right):
    """Sums over the last axis of left * right f32[..., n, k], n of k: chains for each k mod 16,
    then a tree.
    """
    shape = np.broadcast_shapes(left.shape, right.shape)
    sums = np.zeros((*shape[:-1], CHAINS), np.float32)
    for k in range(0, shape[-1], CHAINS):
        sums = fma(left[..., k : k + CHAINS], right[..., k : k + CHAINS], sums)
    with np.errstate(all="ignore"):
        while sums.shape[-1] > 1:
            sums = sums[..., 0::2] + sums[..., 1::2]
    return sums[..., 0]


def _cores(core1, core2, q1):
    """Cores 1 and 2 as f32[n1, q1, R] and f32[n2, R, q2*R]."""
    rank = core1.shape[1] // q1
    return core1.reshape(-1, q1, rank), core2.reshape(-1, rank, core2.shape[1] // rank)


def prefixes(core1, core2, first, second, order, starts, q1, out):
    """Products of rows of cores 1 and 2; see `kernels.dense.tt.prefixes`."""
    left, right = _cores(core1, core2, q1)
    left = left[first]
    right = right[second]
    sums = np.zeros((len(first), q1, right.shape[2]), np.float32)
    for r in range(left.shape[2]):
        sums = fma(left[:, :, r, None], right[:, None, r], sums)
    out[:] = sums.reshape(out.shape)


def rows(prefix, core3, lines, third, rank, out):
    """Rows of the table; see `kernels.dense.tt.rows`."""
    left = prefix.reshape(-1, prefix.shape[1] // rank, 1, rank)[lines]
    right = core3.reshape(-1, 1, core3.shape[1] // rank, rank)[third]
    out[:] = _dots(left, right).reshape(out.shape)


def _segment_chains(order, starts, add, sums):
    """sums[g] = add(sums[g], member) for the members of each group in their order."""
    lengths = np.diff(starts)
    for place in range(int(lengths.max(initial=0))):
        groups = np.flatnonzero(lengths > place)
        sums[groups] = add(sums[groups], order[starts[groups] + place])
    return sums


def prefix_gradients(gradient, core3, third, starts, rank, out):
    """Gradients of prefix products; see `kernels.dense.tt.prefix_gradients`."""
    q3 = core3.shape[1] // rank
    g = gradient.reshape(-1, gradient.shape[1] // q3, q3)
    right = core3.reshape(len(core3), q3, rank)

    def add(sums, pairs):
        for c in range(q3):
            sums = fma(g[pairs, :, c, None], right[third[pairs], None, c], sums)
        return sums

    sums = np.zeros((len(out), out.shape[1] // rank, rank), np.float32)
    out[:] = _segment_chains(np.arange(len(g)), starts, add, sums).reshape(out.shape)


def third_gradients(gradient, prefix, lines, order, starts, rank, out):
    """Gradients of rows of core 3; see `kernels.dense.tt.third_gradients`."""
    q3 = out.shape[1] // rank
    g = gradient.reshape(-1, gradient.shape[1] // q3, q3)
    P = prefix.reshape(-1, prefix.shape[1] // rank, rank)

    def add(sums, pairs):
        for i in range(P.shape[1]):
            sums = fma(g[pairs, i, :, None], P[lines[pairs], None, i], sums)
        return sums

    sums = np.zeros((len(out), q3, rank), np.float32)
    out[:] = _segment_chains(order, starts, add, sums).reshape(out.shape)


def second_gradients(core1, first, gradient, order, starts, q1, out):
    """Gradients of rows of core 2; see `kernels.dense.tt.second_gradients`."""
    left = core1.reshape(-1, q1, core1.shape[1] // q1)
    g = gradient.reshape(-1, q1, gradient.shape[1] // q1)

    def add(sums, nodes):
        for a in range(q1):
            sums = fma(left[first[nodes], a, :, None], g[nodes, a, None], sums)
        return sums

    sums = np.zeros((len(out), left.shape[2], g.shape[2]), np.float32)
    out[:] = _segment_chains(order, starts, add, sums).reshape(out.shape)


def first_gradients(core2, second, gradient, order, starts, runs, q1, out):
    """Gradients of rows of core 1; see `kernels.dense.tt.first_gradients`."""
    rank = out.shape[1] // q1
    right = core2.reshape(-1, 1, rank, core2.shape[1] // rank)[second]
    parts = _dots(gradient.reshape(-1, q1, 1, gradient.shape[1] // q1), right)

    def add(sums, nodes):
        with np.errstate(all="ignore"):
            return sums + parts[nodes]

    sums = np.zeros((len(out), q1, rank), np.float32)
    numbers = np.arange(len(gradient))
    out[:] = _segment_chains(numbers, runs, add, sums).reshape(out.shape)
