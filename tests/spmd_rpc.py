"""Do calls and references work on threads and under MPI, and end, with letters that come late?"""

import gc
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from delays import LateMail
from spmd import spmd
from test_rpc_gradients import same, train, train_rank

from neocpu.core.errors import RpcError
from neocpu.parallel.rpc.agent import RpcAgent
from neocpu.parallel.rpc.failures import BadMessage, CallTimeout, PeerLost, RemoteError
from neocpu.parallel.rpc.functions import Functions
from neocpu.parallel.rpc.futures import Future
from neocpu.parallel.rpc.references import RRef
from neocpu.parallel.transport.comm import Comm


class Dumb(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Rank:
    """The functions of one rank, and what they note."""

    def __init__(self, comm: Comm, seed: int | None = None, **settings: Any) -> None:
        self.comm = comm
        self.seen: list[Any] = []
        self.kept: list[RRef] = []
        self.gate = threading.Event()
        functions = Functions()
        for name in ("add", "note", "relay", "hop", "keep", "read", "grow", "fail", "hang"):
            functions.add(name, getattr(self, name))
        functions.add("echo", lambda *values: list(values), quick=True)
        functions.add("odd", lambda: {1})
        functions.add("impatient", lambda: self.agent.rpc_sync(0, "echo"), quick=True)
        self.state = np.zeros(3000)
        mail = None if seed is None else LateMail(comm.mail(), seed)
        self.agent = RpcAgent(comm, functions, mail=mail, timeout=20.0, **settings)
        # it serves since it was made, and functions need what was assigned just now
        comm.barrier()

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def note(self, value: object) -> None:
        self.seen.append(value)

    def relay(self, to: int, name: str, *args: Any) -> Any:
        return self.agent.rpc_sync(to, name, *args)

    def hop(self, more: int) -> None:
        self.seen.append(more)
        if more:
            self.agent.rpc_async((self.comm.rank + 1) % self.comm.size, "hop", more - 1)

    def keep(self, reference: RRef) -> None:
        self.kept.append(reference)

    def read(self, reference: RRef) -> Any:
        return reference.local_value() if reference.is_owner() else reference.to_here()

    def grow(self) -> Any:
        self.state += 1
        return self.state

    def fail(self, kind: str = "") -> None:
        if kind == "exit":
            sys.exit(3)
        if kind == "dumb":
            raise Dumb
        if kind == "half":
            raise ValueError("these rows do not exist \ud800")
        raise ValueError("these rows do not exist")

    def hang(self) -> None:
        self.gate.wait(60)


@spmd(1, 2, 3)
def calls_bring_values_there_and_back(comm: Comm) -> None:
    rank = Rank(comm)
    to = (comm.rank + 1) % comm.size
    large = np.arange(70_000, dtype=np.float32).reshape(7, -1)
    values = [
        None,
        True,
        -5,
        0.1,
        "é",
        b"\0\1",
        (1, [2, {}]),
        {"a": (), 3: [None]},
        large,
        large[:, ::2],
        np.float32(2.5),
        np.zeros((0, 3), np.int16),
        np.ones(3, bool),
    ]
    with rank.agent as agent:
        came = agent.rpc_sync(to, "echo", *values)
        np.testing.assert_equal(came, values)
        assert [type(value) for value in came[:8]] == [type(value) for value in values[:8]]
        arrays = zip(came[8:], values[8:])
        assert all(a.dtype == np.asarray(b).dtype and a.flags.writeable for a, b in arrays)
        # each of these functions waits for another rank, which waits for the next, in a ring
        assert agent.rpc_sync(to, "relay", comm.rank, "add", large, 1.0)[6, 9] == large[6, 9] + 1
        assert agent.rpc_sync(to, "relay", to, "relay", comm.rank, "add", "x", "y") == "xy"
        # an array that its rank goes on to change is sent as it was
        grown = [agent.rpc_async(to, "grow") for _ in range(5)]
        assert [float(future.wait()[0]) for future in grown] == [1.0, 2.0, 3.0, 4.0, 5.0]
    with pytest.raises(RpcError, match="closed"):
        agent.rpc_sync(to, "echo")
    sent = comm.traffic()["letter"]
    link = "same_rank" if comm.size == 1 else "same_node"
    # the large array travels six times by each rank, half of it twice
    assert 0 < sent[link]["bytes"] - 7 * comm.size * large.nbytes < comm.size * large.nbytes


@spmd(2, 3)
def calls_of_one_rank_start_in_the_order_in_which_they_were_made(comm: Comm) -> None:
    rank = Rank(comm, seed=1)
    with rank.agent as agent:
        for number in range(60):
            # some letters are a message, some several: the small ones must not overtake
            value = np.full(9000 if number % 7 == 0 else 2, number)
            for to in range(comm.size):
                agent.rpc_async(to, "note", (comm.rank, value))
    for source in range(comm.size):
        numbers = [int(value[0]) for who, value in rank.seen if who == source]
        assert numbers == list(range(60))


@spmd(2, 3)
def what_fails_there_is_told_here(comm: Comm) -> None:
    rank = Rank(comm)
    to = comm.size - 1
    with rank.agent as agent:
        with pytest.raises(RemoteError, match=f"rank {to} on .*'fail' failed: .*rows do not") as no:
            agent.rpc_sync(to, "fail")
        assert (no.value.rank, no.value.function, no.value.kind) == (to, "fail", "ValueError")
        for kind, why in (
            ("exit", "SystemExit: 3"),
            ("dumb", "Dumb: it cannot say"),
            ("half", "exist \\\\ud800"),
        ):
            with pytest.raises(RemoteError, match=why):
                agent.rpc_sync(to, "fail", kind)
        with pytest.raises(RemoteError, match="no function 'ecko'; did you mean 'echo'"):
            agent.rpc_sync(to, "ecko")
        with pytest.raises(RemoteError, match="registered as quick waits for 'echo' of rank 0"):
            agent.rpc_sync(to, "impatient")
        with pytest.raises(RemoteError, match="'odd' failed: a set cannot be sent"):
            agent.rpc_sync(to, "odd")
        with pytest.raises(BadMessage, match="dtype complex128 cannot be sent"):
            agent.rpc_sync(to, "echo", np.complex128(1))
        with pytest.raises(BadMessage, match="a set cannot be sent"):
            agent.rpc_sync(to, "echo", set())
        with pytest.raises(BadMessage, match="more than 64 bits"):
            agent.rpc_sync(to, "echo", 1 << 64)
        with pytest.raises(RpcError, match=f"rank {comm.size} does not exist"):
            agent.rpc_sync(comm.size, "echo")
        lost = agent.remote(to, "fail")
        with pytest.raises((RemoteError, ValueError), match="rows do not exist"):
            lost.to_here()
        comm.barrier()
        if comm.rank == 0:
            with pytest.raises(CallTimeout, match=f"rank {to} .*'hang' within 0.2 s; it is there"):
                agent.rpc_sync(to, "hang", timeout=0.2)
            with pytest.raises(
                CallTimeout, match=r"value of this rank was not there within 0\.2 s"
            ):
                agent.remote(0, "hang").to_here(timeout=0.2)
        comm.barrier()
        rank.gate.set()


@spmd(2)
def a_thousand_calls_that_call_back_are_under_way_at_once(comm: Comm) -> None:
    """More than functions may wait: the others begin later."""
    rank = Rank(comm)
    with rank.agent as agent:
        if comm.rank == 0:
            calls = [agent.rpc_async(1, "relay", 0, "add", number, 1) for number in range(1000)]
            assert [call.wait() for call in calls] == list(range(1, 1001))


@spmd(2, 3)
def a_rank_that_leaves_ends_the_calls_that_wait_for_it(comm: Comm) -> None:
    rank = Rank(comm)
    if comm.rank == 1:
        with pytest.raises(ZeroDivisionError), rank.agent:
            until(comm, rank.agent._workers.busy)
            raise ZeroDivisionError("a bug")
        rank.gate.set()
        comm.barrier()
        return
    with pytest.raises(
        PeerLost, match=r"rank 1 on .* left: it failed with ZeroDivisionError: a bug"
    ):
        rank.agent.rpc_sync(1, "hang")
    with pytest.raises(PeerLost, match="left"):
        rank.agent.rpc_sync(1, "echo")
    assert rank.agent.rpc_sync(2 - comm.rank if comm.size == 3 else 0, "echo", 1) == [1]
    comm.barrier()
    with pytest.raises(PeerLost, match="the end of the job"):
        rank.agent.shutdown()
    rank.agent.close()


@spmd(2, 3)
def a_rank_that_says_nothing_is_lost(comm: Comm) -> None:
    rank = Rank(comm, patience=0.3)
    if comm.rank == 1:
        rank.agent._progress.close()  # as a process that was stopped: nobody reads
        comm.barrier()
        comm.barrier()
        rank.agent.close()
        return
    comm.barrier()
    with pytest.raises(PeerLost, match=r"rank 1 on .* has said nothing for .*'echo', called"):
        rank.agent.rpc_sync(1, "echo")
    comm.barrier()
    rank.agent.close()


@spmd(1, 2, 3, 4)
def values_live_as_long_as_references_to_them(comm: Comm) -> None:
    for seed in range(3):
        rank = Rank(comm, seed)
        with rank.agent as agent:
            me = comm.rank
            owner, reader = (me + 1) % comm.size, (me + 2) % comm.size
            # one fork goes from who is no owner to who is none, before the value is even made
            for number in range(5):
                passed = agent.remote(owner, "add", np.full(3, me), number)
                handed_on = agent.rpc_async(reader, "read", passed)
                passed.delete()
                assert handed_on.wait().tolist() == [me + number] * 3  # type: ignore[attr-defined]
            with pytest.raises(RpcError, match="was deleted"):
                passed.to_here()
            reference = agent.remote(owner, "add", np.full(5, me), 100)
            kept = [agent.rpc_async(to, "keep", reference) for to in range(comm.size)]
            reference.delete()
            mine = agent.references.own({"rank": me})
            assert agent.rpc_sync(reader, "read", mine) == {"rank": me}
            assert mine.local_value() == {"rank": me}
            del mine
            for future in kept:
                future.wait()
            comm.barrier()
            values = sorted(int(kept.to_here()[0]) for kept in rank.kept)  # type: ignore[index]
            assert values == [100 + k for k in range(comm.size)]
            # of what this rank owned, the value that others keep is left
            until(comm, lambda: agent.references.owned() == 1)
            comm.barrier()
            rank.kept.clear()
            gc.collect(1)
        assert (agent.references.owned(), agent.references.held()) == (0, 0)


@spmd(2, 3)
def nobody_leaves_while_calls_that_nobody_waits_for_go_on(comm: Comm) -> None:
    rank = Rank(comm, seed=3)
    with rank.agent as agent:
        if comm.rank == 0:
            agent.rpc_async(1, "hop", 40)
    assert sum(comm.allgather_bytes(bytes([len(rank.seen)]))[k][0] for k in range(comm.size)) == 41


@spmd(3)
def drawn_programs_end_with_right_values_and_no_references(comm: Comm) -> None:
    for seed in range(2):
        draws = random.Random(100 * seed + comm.rank)
        rank = Rank(comm, seed)
        with rank.agent as agent:
            held: list[tuple[RRef, float]] = []
            waited: list[tuple[Future, float]] = []
            for number in range(60):
                to = draws.randrange(comm.size)
                chosen = draws.choice(held) if held else None
                match draws.randrange(6) if chosen else 0:
                    case 0:
                        size = draws.choice((1, 3000))
                        value = agent.remote(to, "add", np.full(size, number), comm.rank)
                        held.append((value, number + comm.rank))
                    case 1:
                        waited.append((agent.rpc_async(to, "read", chosen[0]), chosen[1]))
                    case 2:
                        by = (to + 1) % comm.size
                        call = agent.rpc_async(to, "relay", by, "read", chosen[0])
                        waited.append((call, chosen[1]))
                    case 3:
                        agent.rpc_async(to, "keep", chosen[0])
                    case 4:
                        held.remove(chosen)
                        chosen[0].delete()
                    case 5:
                        assert chosen[0].to_here()[0] == chosen[1]  # type: ignore[index]
                del chosen
            for call, expected in waited:
                assert call.wait()[0] == expected  # type: ignore[index]
        assert (agent.references.owned(), agent.references.held()) == (0, 0)


def until(comm: Comm, condition: Callable[[], bool]) -> None:
    """Return when it is so."""
    for _ in range(10_000):
        if condition():
            return
        comm.rest(1e-3)
    raise AssertionError("it never was")


@spmd(3)
def a_model_on_servers_learns_as_in_one_process(comm: Comm) -> None:
    firsts, trained = train_rank(comm, (1, 2), seed=4)
    (alone,), alone_trained = train(1, (0, 0), None)
    same({name: alone[name] for name in firsts[0]}, firsts[0])
    same({name: alone_trained[name] for name in trained}, trained)
    assert comm.allgather_bytes(b" ".join(name.encode() for name in trained)) == [
        b"",
        b"t0 t1",
        b"bottom.w bottom.b top.w top.b",
    ]
