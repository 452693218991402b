"""The conformance suite of Comm: what every implementation must do, on any number of ranks."""

import numpy as np
import pytest
from spmd import spmd

from neocpu.core.errors import DataError, Stopped
from neocpu.parallel.transport.abort import Terminated
from neocpu.parallel.transport.comm import Comm

RANKS = (1, 2, 3, 4, 8)
DTYPES = (np.uint8, np.uint16, np.int32, np.int64, np.float32, np.float64, np.bool_)


def counts(comm: Comm, seed: int, largest: int = 5) -> np.ndarray:
    """[W, W] numbers of elements from rank to rank, the same on all ranks; many are zero."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, largest, (comm.size, comm.size)) * rng.integers(
        0, 2, (comm.size, comm.size)
    )


def message(source: int, target: int, count: int, dtype: type) -> np.ndarray:
    """What `source` sends to `target`."""
    return (np.arange(count) * 31 + source * 7 + target * 3).astype(dtype)


def traded(comm: Comm, table: np.ndarray, dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(send, empty receive buffer, expected) of this rank for an exchange of `table` elements."""
    me = comm.rank
    ranks = range(comm.size)
    send = np.concatenate([message(me, q, table[me, q], dtype) for q in ranks])
    expected = np.concatenate([message(q, me, table[q, me], dtype) for q in ranks])
    return send, np.empty(expected.size, dtype), expected


@spmd(*RANKS)
def alltoallv_moves_every_dtype(comm: Comm) -> None:
    for seed, dtype in enumerate(DTYPES):
        table = counts(comm, seed)
        send, recv, expected = traded(comm, table, dtype)
        comm.alltoallv(send, table[comm.rank], recv, table[:, comm.rank])
        np.testing.assert_array_equal(recv, expected)


@spmd(*RANKS)
def alltoallv_of_nothing(comm: Comm) -> None:
    nothing = np.empty(0, np.float32)
    zeros = np.zeros(comm.size, np.int64)
    comm.alltoallv(nothing, zeros, nothing.copy(), zeros)
    comm.allgatherv(nothing, nothing.copy(), zeros)
    assert comm.alltoall(np.empty((comm.size, 0, 3), np.int32)).shape == (comm.size, 0, 3)
    assert comm.allgather_bytes(b"") == [b""] * comm.size


@spmd(*RANKS)
def started_exchanges_overlap_and_may_be_awaited_in_any_order(comm: Comm) -> None:
    flights = []
    for seed in range(6):
        table = counts(comm, seed, largest=40)
        send, recv, expected = traded(comm, table, np.float32)
        flights.append(
            (
                comm.start_alltoallv(send, table[comm.rank], recv, table[:, comm.rank]),
                recv,
                expected,
                send,
            )
        )
    comm.barrier()
    # another order on every rank
    order = np.random.default_rng(comm.rank).permutation(len(flights))
    for i in order.tolist():
        request, recv, expected, _ = flights[i]
        request.wait()
        request.wait()
        np.testing.assert_array_equal(recv, expected)


@spmd(*RANKS)
def alltoall_moves_blocks_of_any_shape(comm: Comm) -> None:
    send = np.stack([np.full((2, 3), 10 * comm.rank + q, np.float64) for q in range(comm.size)])
    got = comm.alltoall(send)
    np.testing.assert_array_equal(
        got, np.stack([np.full((2, 3), 10.0 * q + comm.rank) for q in range(comm.size)])
    )


@spmd(*RANKS)
def allgatherv_concatenates_in_rank_order(comm: Comm) -> None:
    sizes = np.array([(3 * q) % 4 for q in range(comm.size)], np.int64)
    recv = np.empty(int(sizes.sum()), np.float32)
    comm.allgatherv(message(comm.rank, 0, sizes[comm.rank], np.float32), recv, sizes)
    np.testing.assert_array_equal(
        recv, np.concatenate([message(q, 0, n, np.float32) for q, n in enumerate(sizes)])
    )


@spmd(*RANKS)
def small_things(comm: Comm) -> None:
    assert comm.allgather_bytes(b"x" * comm.rank) == [b"x" * q for q in range(comm.size)]
    assert comm.largest(-comm.rank - 1) == -1
    assert comm.largest(comm.rank) == comm.size - 1
    comm.barrier()
    comm.quiet_barrier()


@spmd(*RANKS)
def split_groups_by_color_and_orders_by_key(comm: Comm) -> None:
    part = comm.split(comm.rank % 2, key=-comm.rank)
    members = [q for q in reversed(range(comm.size)) if q % 2 == comm.rank % 2]
    assert (part.size, part.rank) == (len(members), members.index(comm.rank))
    assert part.allgather_bytes(str(comm.rank).encode()) == [str(q).encode() for q in members]
    inner = part.split(part.rank // 2)
    assert inner.size == min(2, part.size - part.rank // 2 * 2)
    inner.barrier()
    np.testing.assert_array_equal(part.nodes, comm.nodes[members])


@spmd(*RANKS)
def agree_raises_the_lowest_ranks_error_everywhere(comm: Comm) -> None:
    comm.agree(None)
    for speaker in {0, comm.size // 2, comm.size - 1}:
        own_error = DataError(f"line {comm.rank} is bad") if comm.rank >= speaker else None
        with pytest.raises(DataError) as caught:
            comm.agree(own_error)
        assert str(caught.value) == f"line {speaker} is bad"
        assert caught.value.spoken_by == speaker  # type: ignore[attr-defined]
        assert (caught.value is own_error) == (comm.rank == speaker)
    with pytest.raises(Stopped, match="stopped by signal 15") as ended:
        comm.agree(Terminated(15) if comm.rank == 0 else None)
    assert ended.value.exit_status == 128 + 15
    with pytest.raises(KeyError if comm.rank == 0 else RuntimeError, match="'k'"):
        comm.agree(KeyError("k") if comm.rank == 0 else None)


@spmd(*RANKS)
def traffic_counts_payload_by_link(comm: Comm) -> None:
    before = comm.traffic()
    table = counts(comm, 5)
    send, recv, _ = traded(comm, table, np.int32)
    for _ in range(2):
        comm.alltoallv(send, table[comm.rank], recv, table[:, comm.rank])
    after = comm.traffic()["alltoallv"]
    assert "alltoallv" not in before
    assert after["calls"] == 2
    own = np.eye(comm.size, dtype=bool)
    same = comm.nodes[:, None] == comm.nodes[None, :]
    for link, mask in (("same_rank", own), ("same_node", same & ~own), ("other_node", ~same)):
        assert after[link] == {
            "messages": 2 * int((table[mask] > 0).sum()),
            "bytes": 8 * int(table[mask].sum()),
        }


@spmd(*RANKS)
def wrong_calls_are_refused_before_anything_is_sent(comm: Comm) -> None:
    ones = np.ones(comm.size, np.int64)
    good = np.zeros(comm.size, np.float32)
    with pytest.raises(ValueError, match="do not describe"):
        comm.alltoallv(good, 2 * ones, good.copy(), ones)
    with pytest.raises(ValueError, match="contiguous"):
        comm.alltoallv(
            np.zeros(2 * comm.size, np.float32)[::2], ones, good.copy(), ones
        ) if comm.size > 1 else (
            comm.alltoallv(np.zeros((1, 1), np.float32), ones, good.copy(), ones)
        )
    with pytest.raises(ValueError, match="receives float64"):
        comm.alltoallv(good, ones, good.astype(np.float64), ones)
    with pytest.raises(ValueError, match="announced"):
        comm.allgatherv(np.zeros(3, np.float32), good.copy(), ones)
    with pytest.raises(ValueError, match="blocks"):
        comm.alltoall(np.zeros((comm.size + 1, 2)))


@spmd(2, 3)
def messages_in_small_chunks_arrive_too(comm: Comm) -> None:
    if type(comm).__name__ != "MpiComm":
        pytest.skip("how an MPI without 64-bit counts is served; threads have no such limit")
    from neocpu.parallel.transport.mpi import MpiComm

    ranks = comm._comm  # type: ignore[attr-defined]
    chunked = MpiComm(ranks.Dup(), ranks_per_node=1, chunked=True, chunk=7, windows=False)
    assert chunked.nodes.tolist() == list(range(comm.size))
    every_verb_moves(chunked)
    small = MpiComm(ranks.Dup(), ranks_per_node=1, chunked=True, chunk=7, windows=False)
    traffic_counts_payload_by_link(small)


@spmd(1, 2, 3, 4, 8)
def messages_arrive_at_ranks_that_sleep_while_they_wait(comm: Comm) -> None:
    if type(comm).__name__ != "MpiComm":
        pytest.skip("how MPI ranks wait that share cores; threads sleep anyway")
    from neocpu.parallel.transport.mpi import MpiComm

    ranks = comm._comm  # type: ignore[attr-defined]
    every_verb_moves(MpiComm(ranks.Dup(), crowd=1.0, chunk=7, windows=False))
    traffic_counts_payload_by_link(MpiComm(ranks.Dup(), crowd=1.0, windows=False))


@spmd(2, 3, 8)
def messages_arrive_without_windows_and_past_full_ones(comm: Comm) -> None:
    if type(comm).__name__ != "MpiComm":
        pytest.skip("how MPI ranks of one host hand each other messages")
    from neocpu.parallel.transport.mpi import MpiComm

    ranks = comm._comm  # type: ignore[attr-defined]
    every_verb_moves(MpiComm(ranks.Dup(), windows=False))
    near = comm._near  # type: ignore[attr-defined]
    assert near is not None
    for data, sizes in ((1 << 20, range(1, 1000)), (1 << 20, range(20, 60)), (128, range(1, 1000))):
        small = MpiComm(ranks.Dup())
        small._near.windows.limit(data)  # type: ignore[union-attr]
        small._near.through_windows = sizes  # type: ignore[union-attr]
        every_verb_moves(small)
    # more exchanges than slots, in which only one rank sends
    counts = np.zeros((comm.size, comm.size), np.int64)
    counts[0, 1] = 5
    flights = []
    for number in range(40):
        send = np.full(int(counts[comm.rank].sum()), number, np.int32)
        recv = np.empty(int(counts[:, comm.rank].sum()), np.int32)
        request = comm.start_alltoallv(send, counts[comm.rank], recv, counts[:, comm.rank])
        flights.append((number, request, recv))
        if number > 20:
            first, oldest, values = flights.pop(0)
            oldest.wait()
            assert (values == first).all()
    for first, oldest, values in reversed(flights):
        oldest.wait()
        assert (values == first).all()


def every_verb_moves(comm: Comm) -> None:
    """What comms must do, once more for one that moves messages in another way."""
    for body in (
        alltoallv_moves_every_dtype,
        alltoallv_of_nothing,
        started_exchanges_overlap_and_may_be_awaited_in_any_order,
        allgatherv_concatenates_in_rank_order,
        small_things,
        split_groups_by_color_and_orders_by_key,
    ):
        body(comm)
