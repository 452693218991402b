"""Unit 7: do a student's nodes and sums make one tree, whoever adds?"""

from collections.abc import Iterator

import numpy as np

from neocpu.core import trees
from neocpu.core.types import Elements, Ints
from neocpu.oracle.course.unit import Exercise, Problem, Returned, unit_of


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


UNIT = unit_of(
    __file__,
    Exercise(
        function="aligned_nodes",
        returned=(
            Returned("nodes", "integer", "a start and a size for each node", ("node", "field")),
        ),
        problems=node_problems,
        expected=our_nodes,
    ),
    Exercise(
        function="climb",
        returned=(Returned("sum", "float32", "a number for each column", ("column",)),),
        problems=climb_problems,
        expected=our_total,
    ),
)
