"""What may stand in a message, what is no message, and who may be called? Calls themselves:
`spmd_rpc.py`.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from neocpu.core.errors import RpcError
from neocpu.core.types import Elements
from neocpu.parallel.rpc import messages, values
from neocpu.parallel.rpc.agent import RpcAgent
from neocpu.parallel.rpc.failures import BadMessage, PeerLost, RemoteError
from neocpu.parallel.rpc.functions import Functions
from neocpu.parallel.rpc.messages import MessageKind, Outgoing
from neocpu.parallel.rpc.peers import Liveness
from neocpu.parallel.rpc.snapshots import snapshot
from neocpu.parallel.rpc.workers import Workers
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.mail import BodyPool, Letter
from neocpu.parallel.transport.threads import run_threads
from neocpu.parallel.watch.rank_page import process_fields

SHAPES = of_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.sampled_from(values.DTYPES).flatmap(lambda dtype: of_numpy.arrays(dtype, SHAPES))
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | ARRAYS
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner)
    ),
    max_leaves=12,
)
CALL = Outgoing(MessageKind.CALL, "f", 7)


def letter_of(*items: object) -> Letter:
    return Letter(0, *messages.compose(1, CALL, items))


@settings(max_examples=50)
@given(st.lists(VALUES, max_size=4))
@example([np.arange(3000.0).reshape(2, -1)[:, ::2]])
def test_values_come_as_they_were_sent(sent: list[object]) -> None:
    message = messages.read(letter_of(*sent))
    assert (message.source, message.kind, message.name, message.call) == (
        0,
        MessageKind.CALL,
        "f",
        7,
    )
    assert typed(message.values()) == typed(sent)


def test_values_within_values_are_sent_as_deep_as_is_said() -> None:
    deep: Any = 7
    for _ in range(values.DEEPEST):
        deep = [deep]
    assert messages.read(letter_of(deep)).values() == [deep]
    for value in ([deep], {"a": deep}):
        with pytest.raises(BadMessage, match=f"{values.DEEPEST} deep"):
            letter_of(value)


def typed(value: object) -> object:
    """A value with its type and bits, to be compared."""
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape, value.tobytes())
    if isinstance(value, float):
        return np.float64(value).tobytes()
    if isinstance(value, list | tuple):
        return [type(value), *map(typed, value)]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return (type(value), value)


ALL_KINDS = letter_of(
    None, [True, (5, 0.5)], {"a": "text"}, b"bytes", np.arange(6.0), np.zeros(2000, np.int64)
)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), st.data())
@example([(24, 9), (25, 8), (26, 1), (33, 255)], None)
def test_a_damaged_message_is_refused_or_read(
    changes: list[tuple[int, int]], data: st.DataObject | None
) -> None:
    head = bytearray(ALL_KINDS.head)
    for at, value in changes:
        head[at % len(head)] = value
    cut = data.draw(st.integers(0, len(head))) if data is not None else len(head)
    answered(Letter(0, bytes(head), [*ALL_KINDS.bodies]))
    answered(Letter(0, bytes(head[:cut]), ALL_KINDS.bodies[: cut % 2]))


@given(st.binary(max_size=80), st.integers(0, 40))
def test_any_bytes_after_a_header_are_refused_or_read(noise: bytes, total: int) -> None:
    start = messages._HEADER.pack(messages.MAGIC, messages.VERSION, 1, 0, 0, total)
    answered(Letter(0, start + noise, []))
    answered(Letter(0, noise, []))


def answered(letter: Letter) -> None:
    """Nothing but values or BadMessage comes of it."""
    try:
        messages.read(letter).values()
    except BadMessage as problem:
        assert 10 < len(str(problem)) < 300


def test_no_length_is_believed() -> None:
    def read(*codes: int, bodies: tuple[Elements, ...] = ()) -> None:
        start = messages._HEADER.pack(messages.MAGIC, messages.VERSION, 1, 0, 0, 1)
        messages.read(Letter(0, start + bytes(codes), list(bodies))).values()

    many = (255, 255, 255, 255)
    huge = (0, 0, 0, 0, 0, 1, 0, 0)  # 2**40
    with pytest.raises(BadMessage, match="ends 4294967290 bytes within a value"):
        read(5, *many, 1, 1, 1, 1, 1)
    with pytest.raises(BadMessage, match="announces 4294967295 values in 2 bytes"):
        read(10, *many, 0, 0)
    with pytest.raises(BadMessage, match="within a value"):
        read(7, 11, 1, *huge)
    with pytest.raises(BadMessage, match="array of 8796093022208 bytes came with 8"):
        read(8, 11, 1, *huge, bodies=(np.zeros(8, np.uint8),))
    with pytest.raises(BadMessage, match="-1 elements"):
        read(7, 11, 1, *(255,) * 8)
    with pytest.raises(BadMessage, match="nested more than 32 deep"):
        read(*(9, 1, 0, 0, 0) * 40, 0)
    with pytest.raises(BadMessage, match="no handle has the kind 0"):
        read(12, 0, 9, 0, 0, 0, 0)
    with pytest.raises(BadMessage, match="at most 16777216"):
        messages.compose(0, CALL, ["x" * (1 << 24)])


def test_a_rank_that_sends_what_is_no_message_is_lost_and_no_other() -> None:
    def body(comm: Comm) -> str:
        functions = Functions()
        functions.add("echo", lambda value: value)
        agent = RpcAgent(comm, functions)
        told = ""
        if comm.rank == 1:
            # a call whose values cannot be read is answered, and the next one too
            number, call = agent._calls.begin(0, "echo", 30.0)
            head = messages.compose(0, Outgoing(MessageKind.CALL, "echo", number), [None, 5])[0]
            agent._mail.send(0, head[:-3])
            with pytest.raises(RemoteError, match="ends 3 bytes within a value"):
                call.wait()
            assert agent.rpc_sync(0, "echo", 2) == 2
            agent._mail.send(0, b"GET / HTTP/1.1\r\n\r\n\r\n")
        comm.barrier()
        if comm.rank == 0:
            with pytest.raises(PeerLost) as lost:
                for _ in range(1000):
                    agent.rpc_sync(1, "echo", 0)
            told = str(lost.value)
            assert agent.rpc_sync(2, "echo", 3) == 3
        comm.barrier()
        agent.close()
        return told

    told = run_threads(3, body, timeout=30)[0]
    assert "rank 1 on" in told
    assert "sent a message that cannot be read: it begins with b'GET '" in told


def test_names_are_taken_once_and_looked_up_exactly() -> None:
    functions = Functions()
    functions.add("lookup", len)
    with pytest.raises(RpcError, match="two functions are called 'lookup'"):
        functions.add("lookup", len)
    for name in ("", ".delete", "x" * 256, "\ud800", len):
        with pytest.raises(RpcError, match="text of 1 to 255 bytes that does not begin with a dot"):
            functions.add(name, len)  # type: ignore[arg-type]
    with pytest.raises(RpcError, match="text of 1 to 255 bytes"):
        functions.function(len)  # type: ignore[arg-type]  # a decorator without its brackets
    with pytest.raises(RpcError, match="'size' is to be a int, which is no function"):
        functions.add("size", 3)  # type: ignore[arg-type]
    with pytest.raises(RpcError, match="no function 'lookpu'; did you mean 'lookup'"):
        functions.of("lookpu")


class _Facts:
    """A comm whose second rank is another process."""

    rank = 0

    def __init__(self, process: int) -> None:
        self.process = process

    def allgather_bytes(self, own: bytes) -> list[bytes]:
        host, key, _, _ = json.loads(own)
        started = process_fields(Path(f"/proc/{self.process}"))[19]
        return [own, json.dumps([host, key, self.process, started]).encode()]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of processes")
def test_a_process_that_has_ended_is_seen_at_once() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    peers = Liveness(_Facts(process.pid), 30.0)  # type: ignore[arg-type]
    peers.check(1)
    assert not peers.lost(1)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and its number not yet free
    peers.check(1)
    assert f"rank 1 on {os.uname().nodename} is lost: its process {process.pid} has ended" in str(
        peers.error(1)
    )
    process.communicate()


def test_bodies_are_used_again_when_nobody_holds_them() -> None:
    pool = BodyPool(limit=450_000)
    first = pool.take(100_000)
    address = first.ctypes.data
    view = first.view(np.float32)[5:]
    del first
    assert pool.take(100_000).ctypes.data != address
    del view
    assert pool.take(90_000).ctypes.data == address
    # blocks of a size that is not asked for any more make room, those that are held do not
    held = [pool.take(200_000) for _ in range(3)]
    assert sum(pool.has(array.base) for array in held) == 2
    del held
    large = pool.take(400_000)
    assert pool.has(large.base)
    assert pool.take(90_000).size == 90_000


def test_what_a_function_still_holds_is_copied_and_nothing_else() -> None:
    pool = BodyPool()
    held = np.zeros(5)
    items: list[Any] = [np.ones(4), (np.ones(3), held), pool.take(70_000), {"a": held}]
    addresses = [array.ctypes.data for array in (items[0], items[1][0], items[2])]
    frozen: list[Any] = snapshot(items, pool)
    assert [array.ctypes.data for array in (frozen[0], frozen[1][0], frozen[2])] == addresses
    held += 1
    assert frozen[1][1].sum() == frozen[3]["a"].sum() == 0
    masked = np.ma.masked_array([1, 2], [0, 1])
    assert isinstance(snapshot([masked], pool)[0], np.ma.MaskedArray)
    view = pool.take(70_000)
    shared: list[Any] = snapshot([view[5:]], pool)
    assert shared[0].ctypes.data != view[5:].ctypes.data


def test_a_function_that_waits_lets_one_other_run_and_goes_on_before_the_next() -> None:
    workers = Workers(1, "worker")
    answered = threading.Event()
    over = threading.Event()
    seen: list[str] = []

    def waits() -> None:
        seen.append("waits")
        with workers.waiting():
            answered.wait(20)
        seen.append("goes on")

    def runs() -> None:
        seen.append("runs")
        answered.set()
        # the one that waited may go on now, but for this one
        over.wait(0.05)
        seen.append("ends")

    for task in (waits, runs, lambda: seen.append("next"), over.set):
        workers.put(task)
    assert over.wait(20)
    assert seen == ["waits", "runs", "ends", "goes on", "next"]
    workers.close()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("\ud800", "character 0 is half of one"),
        ({1.5: 2}, "key of type float"),
        ({np.int64(3): 1}, "key of type int64"),
        (np.ma.masked_array([1, 2], [0, 1]), "its data and its mask"),
        (np.array([1, 2], ">f4"), "dtype >f4 cannot be sent"),
        (np.array([None]), "dtype object cannot be sent"),
    ],
)
def test_what_would_not_arrive_as_it_is_is_not_sent(value: object, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        messages.compose(1, CALL, [value])


def test_calls_that_cannot_be_are_refused_and_leave_nothing() -> None:
    functions = Functions()
    functions.add("echo", lambda value: value)
    for wrong in ({"threads": 0}, {"timeout": "1"}, {"patience": np.nan}):
        with pytest.raises(RpcError, match=r"threads; it needs 1|to be seconds above 0"):
            RpcAgent(SingleComm(), functions, **wrong)  # type: ignore[arg-type]
    with RpcAgent(SingleComm(), functions) as agent:
        for to in ("0", 0.0, None, -1):
            with pytest.raises(RpcError, match="does not exist; there are ranks 0 to 0"):
                agent.rpc_async(to, "echo", 1)  # type: ignore[arg-type]
        for name in (".bye", "x" * 300, 5):
            with pytest.raises(RpcError, match="does not begin with a dot"):
                agent.rpc_async(0, name, 1)  # type: ignore[arg-type]
        for timeout in (0, -1, np.nan, "3"):
            with pytest.raises(RpcError, match=r"timeout is .* seconds above 0"):
                agent.rpc_async(0, "echo", 1, timeout=timeout)  # type: ignore[arg-type]
        with pytest.raises(BadMessage):
            agent.remote(0, "echo", {1})
        assert agent.references.owned() == 0
        assert agent.remote(np.int64(0), "echo", 2).to_here() == 2  # type: ignore[arg-type]
        other = RpcAgent(SingleComm(), functions)
        with pytest.raises(BadMessage, match="of another agent"):
            other.rpc_sync(0, "echo", agent.references.own(1))
        other.close()
        # the end of the block finds it closed, and does not wait for anybody
        agent.shutdown(20.0)


def test_a_rank_alone_calls_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = Functions()
    functions.add("add", lambda a, b: a + b)
    for quick in (True, False):
        functions.add(f"echo {quick}", lambda array: array, quick)
    copied: list[object] = []
    monkeypatch.setattr("neocpu.parallel.rpc.snapshots._copy", copied.append)
    with RpcAgent(SingleComm(), functions) as agent:
        array = np.zeros(5)
        assert np.array_equal(agent.rpc_sync(0, "add", array, 1), np.ones(5))
        assert agent.remote(0, "add", 1, 2).local_value() == 3
        # arrays that come in one message or in several go back as they came
        for size in (10, 3000, 100_000):
            for name in ("echo True", "echo False"):
                assert np.array_equal(agent.rpc_sync(0, name, np.ones(size)), np.ones(size))
    assert not copied


def test_who_closes_its_agent_waits_for_nothing_of_its_own() -> None:
    """The first function waits for the end of the test; the others never begin."""
    functions = Functions()
    ended = threading.Event()
    functions.add("wait", ended.wait)
    agent = RpcAgent(SingleComm(), functions)
    calls = [agent.rpc_async(0, "wait", 20.0) for _ in range(2)]
    reference = agent.remote(0, "wait", 20.0)
    agent.close("it is late")
    ended.set()
    assert all(call.done() for call in calls)
    for call in calls:
        with pytest.raises(PeerLost, match=r"rank 0 on .* left: it is late while 'wait', called"):
            call.wait()
    # done, or the next line would wait for ever
    assert agent.references._entry(reference.value_id).outcome.done()
    with pytest.raises(PeerLost, match="left: it is late"):
        reference.local_value()
