"""Unit 7: do a student's nodes and sums make one tree, whoever adds?"""

from collections.abc import Iterator

import numpy as np

from neocpu.core import trees
from neocpu.core.types import Elements, Ints
from neocpu.oracle.course.unit import CourseUnit, Exercise, Problem, Returned, Slip


def our_nodes(lo: int, hi: int) -> Ints:
    """The nodes of `core/trees.py`."""
    return np.array(list(trees.aligned_nodes(lo, hi)), np.int64).reshape(-1, 2)


def our_total(starts: Ints, sizes: Ints, sums: Elements, leaves: int) -> Elements:
    """The root that `core/trees.py` climbs to."""
    nodes = dict(zip(zip(starts.tolist(), sizes.tolist()), sums))
    return np.asarray(trees.climb(nodes, 0, leaves))


def node_problems() -> Iterator[Problem]:
    """Ranges that are one node, that begin or end beside one, that are empty."""
    for about, lo, hi in (
        ("all of 8 leaves: one node", 0, 8),
        ("leaves that begin where no node of their number does", 3, 8),
        ("leaves that end beside a node", 0, 7),
        ("both", 3, 13),
        ("one leaf", 5, 6),
        ("no leaf", 4, 4),
        ("a node in the middle of many leaves", 16, 32),
        ("many leaves", 1, 63),
    ):
        yield Problem(about, {"lo": lo, "hi": hi})


def climb_problem(about: str, leaves: int, ranks: int, seed: int) -> Problem:
    """The nodes that ranks send, each of its leaves, in an order of arrival drawn at random."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((leaves, 3)) * 10.0 ** rng.uniform(-1, 1, (leaves, 1))).astype(
        np.float32
    )
    nodes = [
        node
        for rank in range(ranks)
        for node in trees.aligned_nodes(*trees.rank_leaves(rank, ranks, leaves))
    ]
    bottom = {(leaf, 1): values[leaf] for leaf in range(leaves)}
    arrived = [nodes[k] for k in rng.permutation(len(nodes))]
    return Problem(
        about,
        {
            "starts": np.array([start for start, _ in arrived]),
            "sizes": np.array([size for _, size in arrived]),
            "sums": np.array([trees.climb(bottom, *node) for node in arrived], np.float32),
            "leaves": leaves,
        },
    )


def climb_problems() -> Iterator[Problem]:
    """The same leaves on any number of ranks: the root has the same bits."""
    yield climb_problem("one leaf", 1, 1, 1)
    yield climb_problem("four leaves on four ranks", 4, 4, 2)
    yield climb_problem("four leaves on one rank: the root has arrived", 4, 1, 2)
    for ranks in (2, 3, 5, 8, 16):
        yield climb_problem(f"the same 16 leaves on {ranks} ranks", 16, ranks, 3)


RECURSION = "    return total(0, leaves)\n"
IN_PAIRS = """\
    rows = [nodes[node] for node in sorted(nodes)]
    while len(rows) > 1:
        pairs = [rows[k : k + 2] for k in range(0, len(rows), 2)]
        rows = [pair[0] + pair[1] if len(pair) > 1 else pair[0] for pair in pairs]
    return rows[0]
"""

UNIT = CourseUnit(
    name="trees",
    title="AllToAll and trees",
    reads="units 3 and 6; recursion",
    exercises=(
        Exercise(
            function="aligned_nodes",
            returned=(
                Returned("nodes", "integer", "a start and a size for each node", ("node", "field")),
            ),
            problems=node_problems,
            expected=our_nodes,
            slips=(
                Slip(
                    "every leaf is a node of its own",
                    "join leaves as long as the node begins at a multiple of its size and ends "
                    "inside",
                    (("while lo % (2 * size) == 0 and lo + 2 * size <= hi:", "while False:"),),
                ),
                Slip(
                    "nodes begin anywhere, not at multiples of their size",
                    "a node of size s begins at a multiple of s: else two ranks build other trees",
                    (("lo % (2 * size) == 0 and ", ""),),
                ),
                Slip(
                    "nodes go on beyond the last leaf",
                    "lo + size must not be more than hi",
                    (
                        (
                            "lo % (2 * size) == 0 and lo + 2 * size <= hi",
                            "lo % (2 * size) == 0 and lo + size < hi",
                        ),
                    ),
                ),
                Slip(
                    "a node that would end exactly at hi is cut in two",
                    "hi is behind the last leaf, so a node may end there: <= instead of <",
                    (("lo + 2 * size <= hi", "lo + 2 * size < hi"),),
                ),
            ),
        ),
        Exercise(
            function="climb",
            returned=(Returned("sum", "float32", "a number for each column", ("column",)),),
            problems=climb_problems,
            expected=our_total,
            slips=(
                Slip(
                    "the nodes are added in the order of their arrival",
                    "each node is its left half plus its right half, whatever came first",
                    ((RECURSION, "    return np.cumsum(sums, axis=0, dtype=np.float32)[-1]\n"),),
                ),
                Slip(
                    "the nodes are added from left to right, one after the other",
                    "that is a chain, which is another one for other ranks: add halves",
                    (
                        (
                            RECURSION,
                            (
                                "    order = np.argsort(starts, kind='stable')\n"
                                "    return np.cumsum(sums[order], axis=0, dtype=np.float32)[-1]\n"
                            ),
                        ),
                    ),
                ),
                Slip(
                    "neighbouring nodes are added in pairs, whatever their sizes",
                    "the halves of a node have one size each: a node that covers more leaves waits",
                    ((RECURSION, IN_PAIRS),),
                ),
                Slip(
                    "the nodes are added in fp64 and rounded at the end",
                    "the sums of nodes that ranks have climbed to were rounded to fp32 on the way, "
                    "so all others must be",
                    (
                        (
                            RECURSION,
                            (
                                "    sums = sums.astype(np.float64)\n"
                                "    nodes = {(s, n): x for s, n, x in zip(starts, sizes, sums)}\n"
                                "    return total(0, leaves).astype(np.float32)\n"
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ),
    hints="""\
For aligned_nodes go from lo upwards: the next node begins at lo. Double its size as long as lo
is a multiple of the doubled size and it still ends by hi.

For climb put the nodes into a dictionary by (start, size).

The sum of a node that has not arrived is that of its left half, (start, size // 2), plus that
of its right half, (start + size // 2, size // 2): a function that calls itself.
""",
)
