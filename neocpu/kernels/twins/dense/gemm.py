"""What does a fully connected layer compute, to the bit, forward and backward? The plain twin of
`kernels/dense/gemm.py`.

A chain is written as a loop over the contracted index in which the whole output matrix takes one
step at a time.
"""

from itertools import pairwise

import numpy as np

from neocpu.kernels.twins.numbers.fma import fma


def _chain(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """out[m, n] = chain over ascending s of fma(left[s, m], right[s, n], ·) from +0."""
    out = np.zeros((left.shape[1], right.shape[1]), np.float32)
    for step in range(left.shape[0]):
        out = fma(left[step, :, None], right[step, None, :], out)
    return out


def _tree(leaves: list[np.ndarray]) -> np.ndarray:
    """Sum of a power of two of leaves: left half + right half."""
    if len(leaves) == 1:
        return leaves[0]
    # left + right, of halves: the tree of docs/arithmetic.md §2
    half = len(leaves) // 2
    with np.errstate(all="ignore"):
        return _tree(leaves[:half]) + _tree(leaves[half:])


def layer(x, w, bias, relu, out):
    """out f32[b, n] = relu(x f32[b, k] times w f32[n, k] transposed + bias f32[n]); see
    `kernels.dense.gemm.layer`.
    """
    with np.errstate(all="ignore"):
        value = _chain(x.T, w.T) + bias
    out[:] = np.where(value <= 0, np.float32(0), value) if relu else value


def input_gradient(g, w, gate, out):
    """out f32[b, k] = g f32[b, n] times w f32[n, k], 0 where gate <= 0; see
    `kernels.dense.gemm.input_gradient`.
    """
    value = _chain(g.T, w)
    out[:] = np.where(gate <= 0, np.float32(0), value) if gate.size else value


def weight_gradient(g, x, cuts, out, out_bias):
    """out f32[n, k] = tree over leaves of g transposed times x, out_bias f32[n] of g; see the
    kernel of this name.
    """
    leaves = [slice(a, b) for a, b in pairwise(cuts)]
    out[:] = _tree([_chain(g[leaf], x[leaf]) for leaf in leaves])
    sums = []
    for leaf in leaves:
        total = np.zeros(g.shape[1], np.float32)
        # one sample after the other: NumPy's own sum would add in pairs
        for row in g[leaf]:
            with np.errstate(all="ignore"):
                total = total + row
        sums.append(total)
    if out_bias.size:
        out_bias[:] = _tree(sums)


def symmetric(x, w, first, out):
    """out f32[n, n] = x wᵀ below the diagonal and on it, mirrored above; see the kernel of this
    name.
    """
    lower = np.tril(_chain(x, w) if first else _chain(x.T, w.T))
    out[:] = np.where(np.tri(len(lower), dtype=bool), lower, lower.T)
