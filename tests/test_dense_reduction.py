"""Is the sum of dense gradients the same tree of additions for every number of ranks?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.core.trees import climb
from neocpu.parallel.exchange.dense_reduction import DenseReduction, sum_leaves
from neocpu.parallel.exchange.wire_formats import WireSpec
from neocpu.parallel.exchange.wires import Wire
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads

PROFILE = settings(deadline=None, derandomize=True, max_examples=20)


def leaf_values(parameters: int, leaves: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((leaves, parameters)) * 2.0 ** rng.integers(
        -30, 30, (leaves, parameters)
    )
    return values.astype(np.float32)


def tree_sum(values: np.ndarray) -> np.ndarray:
    """The definition: adjacent pairs first."""
    while len(values) > 1:
        values = values[0::2] + values[1::2]
    return values[0]


def reduce(comm: Comm, values: np.ndarray, times: int = 1) -> np.ndarray:
    leaves, parameters = values.shape
    reduction = DenseReduction(comm, parameters, leaves)
    every = {(leaf, 1): values[leaf] for leaf in range(leaves)}
    nodes = {node: climb(every, *node) for node in reduction.nodes[comm.rank]}
    for _ in range(times):
        result = reduction.start(nodes).wait()
    return result.copy()


@PROFILE
@given(st.integers(0, 40), st.sampled_from([1, 2, 4, 16]), st.integers(1, 9), st.integers(0, 2**32))
def test_any_ranks_give_the_tree_sum(parameters: int, leaves: int, ranks: int, seed: int) -> None:
    values = leaf_values(parameters, leaves, seed)
    expected = tree_sum(values).tobytes()
    for result in run_threads(ranks, lambda comm: reduce(comm, values, times=2)):
        assert result.tobytes() == expected


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


def reduce_on_a_wire(comm: Comm, values: np.ndarray) -> np.ndarray:
    leaves, parameters = values.shape
    reduction = DenseReduction(comm, parameters, leaves, Wire(WireSpec("fp16")))

    def node(lo: int, size: int) -> np.ndarray:
        out = np.empty(parameters, np.float32)
        leaf = lambda number, to: np.copyto(to, values[lo + number])  # noqa: E731
        sum_leaves(leaf, size, reduction.wire, out, Buffers())
        return out

    for _ in range(2):
        total = reduction.start({key: node(*key) for key in reduction.nodes[comm.rank]}).wait()
    return total.copy()


@PROFILE
@given(st.integers(0, 40), st.sampled_from([1, 2, 16]), st.integers(1, 6), st.integers(0, 2**32))
def test_on_a_wire_every_node_is_rounded(
    parameters: int, leaves: int, ranks: int, seed: int
) -> None:
    values = (leaf_values(parameters, leaves, seed) % 100).astype(np.float32)
    level = rounded(values)
    while len(level) > 1:
        level = rounded(level[0::2] + level[1::2])
    for result in run_threads(ranks, lambda comm: reduce_on_a_wire(comm, values)):
        assert result.tobytes() == level[0].tobytes()


def test_alone_it_needs_no_copy() -> None:
    values = leaf_values(5, 4, 1)
    total = tree_sum(values)
    reduction = DenseReduction(SingleComm(), 5, 4)
    assert reduction.nodes == [[(0, 4)]]
    assert reduction.reduce({(0, 4): total}) is total


def test_wrong_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="owns the nodes"):
        DenseReduction(SingleComm(), 5, 4).start({(0, 2): np.zeros(5, np.float32)})
