"""In what order is a sum over leaves (samples, columns) taken? In one fixed binary tree.

It is the same however the leaves are spread over ranks.

Leaf l of n (a power of two) sits at the bottom; node (lo, size) covers leaves [lo, lo+size) and is
left + right. A rank that owns leaves [lo, hi) sends the maximal aligned nodes inside that range;
whoever receives all of them climbs to the root. The additions are the same ones for every split, so
the bits are too (`docs/arithmetic.md` §3).
"""

from collections.abc import Iterator, Mapping
from typing import Any

Node = tuple[int, int]


def leaf_cuts(samples: int, leaves: int) -> list[int]:
    """First sample of every leaf and the end: leaf l holds samples [cuts[l], cuts[l+1])."""
    return [leaf * samples // leaves for leaf in range(leaves + 1)]


def rank_leaves(rank: int, ranks: int, leaves: int) -> tuple[int, int]:
    """Leaves [lo, hi) of a rank; empty for some ranks when there are more ranks than leaves."""
    return rank * leaves // ranks, (rank + 1) * leaves // ranks


def rank_samples(rank: int, ranks: int, samples: int, leaves: int) -> tuple[int, int]:
    """Samples [lo, hi) of a batch that a rank owns: exactly those of its leaves."""
    lo, hi = rank_leaves(rank, ranks, leaves)
    return lo * samples // leaves, hi * samples // leaves


def aligned_nodes(lo: int, hi: int) -> Iterator[Node]:
    """Maximal aligned nodes (start, size) inside leaves [lo, hi), ascending."""
    while lo < hi:
        # the largest power of two that divides lo; 0 is divided by all of them
        size = lo & -lo or 1 << (hi - lo).bit_length()
        while lo + size > hi:
            size >>= 1
        yield lo, size
        lo += size


def climb(nodes: Mapping[Node, Any], lo: int, size: int) -> Any:
    """Value of node (lo, size) from those of the nodes below; None where all leaves are absent."""
    if (lo, size) in nodes or size == 1:
        return nodes.get((lo, size))
    left = climb(nodes, lo, size // 2)
    right = climb(nodes, lo + size // 2, size // 2)
    if left is None or right is None:
        return right if left is None else left
    return left + right
