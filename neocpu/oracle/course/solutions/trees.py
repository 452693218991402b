"""One tree of additions, whoever adds."""

import numpy as np


def aligned_nodes(lo: int, hi: int) -> np.ndarray:
    """Cut the leaves lo up to hi, without it, into the largest aligned nodes.

    A node (start, size) covers the leaves start up to start + size; size is a power of two and
    start a multiple of it.
    Returns int64[nodes, 2], by start: as few nodes as there can be.
    """
    nodes = []
    while lo < hi:
        size = 1
        while lo % (2 * size) == 0 and lo + 2 * size <= hi:
            size *= 2
        nodes.append((lo, size))
        lo += size
    return np.array(nodes, np.int64).reshape(-1, 2)


def climb(starts: np.ndarray, sizes: np.ndarray, sums: np.ndarray, leaves: int) -> np.ndarray:
    """Add nodes up to the root: left half + right half, in fp32.

    starts, sizes : int64[k], the nodes that ranks have sent, in the order of their arrival. They
        cover the leaves 0 up to `leaves`, a power of two, each once.
    sums : f32[k, D], the sum of each node.
    Returns the root's sum, f32[D].
    """
    nodes = {(start, size): row for start, size, row in zip(starts, sizes, sums)}

    def total(start: int, size: int) -> np.ndarray:
        if (start, size) in nodes:
            return nodes[start, size]
        half = size // 2
        return total(start, half) + total(start + half, half)

    return total(0, leaves)
