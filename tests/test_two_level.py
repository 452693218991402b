"""Do exchanges through the ranks of a node bring what direct ones bring, with fewer messages?"""

from functools import partial

import numpy as np
import pytest
from test_dense_reduction import leaf_values, tree_sum

from neocpu.core.trees import climb
from neocpu.parallel.exchange.dense_reduction import TwoLevelReduction, dense_reduction
from neocpu.parallel.exchange.peers import Peers
from neocpu.parallel.exchange.two_level import TwoLevelComm, two_level
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.threads import run_threads as run_ranks

# ranks, ranks per node: even nodes, an uneven last one, one that serves several places
run_threads = partial(run_ranks, timeout=20.0)
LAYOUTS = [(4, 2), (8, 2), (6, 3), (3, 2), (7, 3), (5, 4), (8, 3)]


def other_node(report: dict) -> np.ndarray:
    """(messages, bytes) between nodes, of all verbs."""
    return np.sum([list(entry["other_node"].values()) for entry in report.values()], axis=0)


@pytest.mark.parametrize("table", [False, True])
def test_the_published_example(table: bool) -> None:
    """8 ranks on 4 nodes, 12 features of 16 columns, 8 samples of each rank (SPTT, DMT)."""
    ranks = 8
    samples = np.full(ranks, 8)
    columns = 16 * np.array([2, 1] * 4)
    counts = np.outer(columns, samples)

    def body(comm: Comm, levels: int) -> np.ndarray:
        if levels == 2:
            comm = two_level(comm)
        send = np.arange(counts[comm.rank].sum(), dtype=np.float32) + 1000 * comm.rank
        recv = np.empty(counts[:, comm.rank].sum(), np.float32)
        known = counts if table and levels == 2 else None
        arguments = send, counts[comm.rank], recv, counts[:, comm.rank]
        if isinstance(comm, TwoLevelComm):
            comm.start_alltoallv(*arguments, table=known).wait()
        else:
            comm.start_alltoallv(*arguments).wait()
        return recv, other_node(comm.traffic())

    direct = run_threads(ranks, partial(body, levels=1), ranks_per_node=2)
    relayed = run_threads(ranks, partial(body, levels=2), ranks_per_node=2)
    for (one, _), (two, _) in zip(direct, relayed):
        assert np.array_equal(one, two)
    assert direct[0][1].tolist() == [48, 36864]
    assert relayed[0][1].tolist() == [24, 36864]


def trade(comm: Comm, tables: list[np.ndarray], dtype: type) -> list[np.ndarray]:
    """What arrives of several exchanges that are under way together, awaited in another order by
    every rank.
    """
    requests = []
    arrays = []
    for number, counts in enumerate(tables):
        send = (np.arange(counts[comm.rank].sum()) + 31 * number + 7 * comm.rank).astype(dtype)
        recv = np.empty(counts[:, comm.rank].sum(), dtype)
        table = {"table": counts} if number % 3 == 0 else {}
        requests.append(
            comm.start_alltoallv(send, counts[comm.rank], recv, counts[:, comm.rank], **table)
        )
        arrays.append((send, recv))
    comm.barrier()
    for number in np.random.default_rng(comm.rank).permutation(len(requests)).tolist():
        requests[number].wait()
        requests[number].wait()
    return [recv for _, recv in arrays]


def every_way(
    comm: Comm, tables: list[np.ndarray], gathered: np.ndarray, levels: int
) -> list[np.ndarray]:
    """What arrives of exchanges on two queues and of a gather."""
    if levels == 2:
        comm = two_level(comm)
        assert isinstance(comm, TwoLevelComm)
    arrived = trade(comm, tables, np.float64) + trade(comm.queue("x"), tables, np.uint8)
    send = np.arange(gathered[comm.rank], dtype=np.int32) + 100 * comm.rank
    recv = np.empty(gathered.sum(), np.int32)
    comm.allgatherv(send, recv, gathered)
    assert comm.largest(comm.rank) == comm.size - 1
    assert comm.split(comm.rank % 2).allgather_bytes(b"x")[0] == b"x"
    return [*arrived, recv]


def test_any_layout_moves_the_same_bytes() -> None:
    for seed, (ranks, per_node) in enumerate(LAYOUTS):
        rng = np.random.default_rng(seed)
        tables = [
            rng.integers(0, 40, (ranks, ranks)) * rng.integers(0, 2, (ranks, ranks))
            for _ in range(5)
        ]
        body = partial(every_way, tables=tables, gathered=rng.integers(0, 9, ranks))
        direct = run_threads(ranks, partial(body, levels=1), ranks_per_node=per_node)
        relayed = run_threads(ranks, partial(body, levels=2), ranks_per_node=per_node)
        for one, two in zip(direct, relayed):
            assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_ranks_dealt_out_to_nodes_in_turn() -> None:
    """Nodes that are no runs of ranks: what arrives is put into the order of ranks."""
    counts = np.arange(36).reshape(6, 6) % 5

    def body(comm: Comm) -> bool:
        comm.nodes = np.array([0, 1, 1, 0, 1, 0])
        comm._links = np.where(comm.nodes == comm.nodes[comm.rank], 1, 2)
        arrived = trade(two_level(comm), [counts, counts], np.int32)
        expected = trade(comm.queue("direct"), [counts, counts], np.int32)
        return all(np.array_equal(a, b) for a, b in zip(arrived, expected))

    assert all(run_threads(6, body))


def test_one_node_needs_no_relay() -> None:
    assert run_threads(3, lambda comm: two_level(comm) is comm) == [True] * 3
    assert run_threads(3, lambda comm: two_level(comm) is comm, ranks_per_node=1) == [True] * 3


def reduce(comm: Comm, values: np.ndarray, levels: int) -> tuple[list[bytes], int, bool]:
    """Sums of two reductions, bytes between nodes, and whether the reduction has two levels."""
    if levels == 2:
        comm = two_level(comm)
    leaves, parameters = values.shape
    reduction = dense_reduction(comm, parameters, leaves)
    every = {(leaf, 1): values[leaf] for leaf in range(leaves)}
    nodes = {node: climb(every, *node) for node in reduction.nodes[comm.rank]}
    sums = [reduction.start(nodes).wait().tobytes(), reduction.reduce(nodes).tobytes()]
    return sums, other_node(comm.traffic())[1], isinstance(reduction, TwoLevelReduction)


@pytest.mark.parametrize("leaves", [2, 8, 32])
def test_the_dense_tree_is_the_same(leaves: int) -> None:
    for ranks, per_node in LAYOUTS:
        for parameters in (0, 1, 37):
            values = leaf_values(parameters, leaves, ranks)
            expected = [tree_sum(values).tobytes()] * 2
            body = partial(reduce, values=values)
            direct = run_threads(ranks, partial(body, levels=1), ranks_per_node=per_node)
            relayed = run_threads(ranks, partial(body, levels=2), ranks_per_node=per_node)
            for sums, _, levels in relayed:
                assert sums == expected
                assert levels == (ranks % per_node == 0)
            if parameters == 37 and relayed[0][2]:
                assert relayed[0][1] < direct[0][1]


def test_a_second_run_makes_no_more_comms() -> None:
    """MPI has room for some 2,000 of them."""

    def body(comm: Comm) -> bool:
        first = two_level(comm)
        again = two_level(comm)
        queues = first.queue("input") is again.queue("input")
        peers = [Peers(comm, 2, 4) for _ in range(2)]
        return first is again and queues and peers[0].across is peers[1].across

    assert run_threads(4, body, ranks_per_node=2) == [True] * 4
