"""How do gradients find their way back through calls? The message that carried a variable there
carries its gradient here (distributed autograd, FAST mode of PyTorch's RPC).

    with agent.gradients.begin() as context:
        loss = agent.rpc_sync(1, "loss", agent.rpc_sync(2, "vectors", rows), labels)
        context.backward(loss)
        context.gradient(weights)        # of a parameter of this rank, in this pass

A message of a pass notes on both sides which variables it had: a sent node here, a received node
there, under one path. On the way back a rank counts once what each of its nodes waits for, taking
for granted that every message that it sent is needed. Gradients of parameters are added up in the
pass, not in the parameters: passes that run at once do not mix.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Self

import numpy as np

from neocpu.core.errors import RpcError
from neocpu.parallel.rpc.caller import Caller
from neocpu.parallel.rpc.failures import BadMessage
from neocpu.parallel.rpc.forks import integers
from neocpu.parallel.rpc.futures import Future
from neocpu.parallel.rpc.tape import (
    Gradient,
    LocalPass,
    Path,
    TapeFrame,
    TapeNode,
    Variable,
    check_pass,
    current_frame,
    entered,
    ordered_sum,
)
from neocpu.parallel.rpc.values import Value
from neocpu.parallel.transport.mail import MOST_BODIES

# In paths: after everything that a function did, and the mark of its answer's own path.
LAST = 1 << 62
ANSWER = -1
# Passes that are remembered to be over.
RELEASED = 64


class PassId(NamedTuple):
    """The number of a pass: the rank that began it, and how many it had begun."""

    rank: int
    serial: int


class GradientContext:
    """A pass that this rank began. A context manager: at its end all ranks forget the pass."""

    def __init__(self, gradients: "Gradients", number: PassId) -> None:
        self.number = number
        self._gradients = gradients
        self._block: AbstractContextManager[None] | None = None
        self._over = False

    def backward(self, root: Variable) -> None:
        """Bring the gradients of `root` (of the sum of its numbers) to all ranks; once a pass.

        Raises RpcError for a value without a gradient, and where a message of the pass carried a
        variable whose value the root does not depend on, though something else does: see
        `docs/rpc.md`.
        """
        self._check_open()
        self._gradients.backward(self.number, root)

    def gradient(self, parameter: Variable) -> Gradient:
        """The gradient of a parameter of this rank; None: the root does not depend on it."""
        return self._gradients.gradient(self.passed(), parameter)

    def passed(self) -> PassId:
        """The number of the pass, which has gradients now. Raises RpcError."""
        self._check_open()
        if not self._gradients.counted(self.number):
            raise RpcError("a context has no gradients before its backward pass")
        return self.number

    def _check_open(self) -> None:
        if self._over:
            raise RpcError(
                "the block of this context is over, and its gradients are forgotten; do all that "
                "needs them within the block"
            )

    def __enter__(self) -> Self:
        if self._block is not None:
            raise RpcError("a context has one block; begin another context")
        self._block = entered(TapeFrame(self.number, ()))
        self._block.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._block is not None
        self._block.__exit__(None, None, None)
        self._over = True
        self._gradients.release(self._gradients.rank, self.number)


class Gradients:
    """The passes of all ranks, as far as they are on this one. agent : that carries them."""

    def __init__(self, agent: Caller) -> None:
        self.rank = agent.rank
        self._agent = agent
        self._serials = itertools.count(1)
        self._lock = threading.Lock()
        self._passes: dict[PassId, LocalPass] = {}
        self._released: deque[PassId] = deque(maxlen=RELEASED)
        agent.own_functions |= {
            ".backward": self._backward,
            ".starved": self._starved,
            ".release": self._release,
        }

    def begin(self) -> GradientContext:
        """A pass of this rank; calls and operations of this thread in its block belong to it."""
        return GradientContext(self, PassId(self.rank, next(self._serials)))

    def passes(self) -> int:
        """Passes that this rank knows of."""
        with self._lock:
            return len(self._passes)

    def counted(self, number: PassId) -> bool:
        """Has a pass gone back on this rank?"""
        return self._pass(number).counted

    def gradient(self, number: PassId, parameter: Variable) -> Gradient:
        """As of `GradientContext.gradient`; on any rank, for its own parameters."""
        local = self._pass(number)
        with local.lock:
            return ordered_sum(local.terms.get(parameter, ()))

    # ---- on the way there ----

    def calling(self, to: int) -> tuple[Value, "MessageVariables"]:
        """What a call that this thread makes says of its pass, and how variables travel in it."""
        frame = current_frame()
        if frame is None:
            return None, MessageVariables(self)
        number = _number_of(frame)
        path = frame.next_path()
        local = self._pass(number)
        if local.over:
            return None, MessageVariables(self)
        with local.lock:
            local.touched.add(to)
        return (*number, *path), MessageVariables(self, frame, path)

    def called(self, header: Value) -> TapeFrame | None:
        """The frame of a function, from what its call said. Raises BadMessage."""
        if header is None:
            return None
        if not isinstance(header, tuple) or len(header) < 3:
            raise BadMessage("a call says of its pass what no pass is")
        numbers = integers(header, len(header))
        number = PassId(*numbers[:2])
        self._pass(number)
        return TapeFrame(number, tuple(numbers[2:]))

    def answering(self, frame: TapeFrame | None) -> "MessageVariables":
        """How variables travel in the answer of a function."""
        if frame is None:
            return MessageVariables(self)
        return MessageVariables(self, frame, (*frame.path, ANSWER))

    def sent(self, number: PassId, path: Path, to: int, variable: Variable) -> int:
        """A variable goes into a message of a pass; its number among those of the message."""
        local = self._pass(number)
        with local.lock:
            local.touched.add(to)
            node = local.sent.get(path)
            if node is None:
                # an answer comes after all that its function did
                own = (*path[:-1], LAST) if path[-1] == ANSWER else path
                node = TapeNode(own, number, (), lambda gradients: gradients, outputs=0)
                local.sent[path] = node
            node.inputs.append(variable)
            node.outputs += 1
            return node.outputs - 1

    def unsent(self, number: PassId, path: Path) -> None:
        """The message of a path is not sent after all."""
        local = self._pass(number)
        with local.lock:
            local.sent.pop(path, None)

    def received(self, number: PassId, path: Path, source: int, place: int) -> tuple[TapeNode, int]:
        """A variable came in a message of a pass: the node that takes its gradient back."""
        local = self._pass(number)
        with local.lock:
            node = local.received.get(path)
            if node is None:
                node = TapeNode(path, number, (), lambda gradients: (), outputs=0)
                node.back = self._shipper(number, path, source)
                local.received[path] = node
            node.outputs = max(node.outputs, place + 1)
            return node, place

    # ---- on the way back ----

    def backward(self, number: PassId, root: Variable) -> None:
        """As of `GradientContext.backward`."""
        if not isinstance(root, Variable) or root.node is None or root.node.context != number:
            raise RpcError(
                "the root of a backward pass has to be computed within its context, from a "
                "variable whose gradient is wanted"
            )
        local = self._pass(number)
        if local.counted:
            raise RpcError("a context has one backward pass; begin another context")
        node = root.node

        def begin() -> None:
            local.count([node])
            local.deliver(node, root.output, ((), 0), np.ones_like(root.array))
            local.arrived(node)

        done = self._agent.future("a backward pass")
        self._advance(local, begin, done)
        done.wait()
        others = [rank for rank in range(self._agent.size) if rank != self.rank]
        answers = [self._agent.call(rank, ".starved", tuple(number)) for rank in others]
        starved = {rank: answer.wait() for rank, answer in zip(others, answers)}
        starved[self.rank] = local.starved()
        for rank, paths in starved.items():
            if paths:
                raise RpcError(
                    f"gradients are missing on rank {rank}, for what was computed at {paths}: a "
                    "message of this context carried a variable on which the root does not depend; "
                    "send its array, or call that function outside of the context"
                )

    def _advance(self, local: LocalPass, begin: Callable[[], None], done: Future) -> None:
        """Go back as far as this rank can; `done` is over when all that it set off is."""
        with local.lock:
            _own.calls = []
            try:
                begin()
                local.drain()
            except Exception as error:
                done.fail(error)
            calls: list[Future] = _own.calls
        _when_all(calls, done)

    def _shipper(
        self, number: PassId, path: Path, source: int
    ) -> Callable[[list[Gradient]], Sequence[Gradient]]:
        def ship(gradients: list[Gradient]) -> Sequence[Gradient]:
            values = (tuple(number), path, list(gradients))
            _own.calls.append(self._agent.call(source, ".backward", values))
            return ()

        return ship

    def _backward(self, source: int, number: object, path: object, gradients: object) -> Future:
        local = self._passes.get(PassId(*integers(number, 2)))
        node = None if local is None or not isinstance(path, tuple) else local.sent.get(path)
        if local is None or node is None or not isinstance(gradients, list):
            raise BadMessage(f"gradients of a message {path} that was not sent")
        answered = self._agent.future("a backward pass")

        def begin() -> None:
            local.count(())
            for output, gradient in enumerate(gradients):
                if gradient is not None:
                    local.deliver(node, output, ((), output), gradient)
            local.arrived(node)

        self._agent.run(lambda: self._advance(local, begin, answered))
        return answered

    def _starved(self, source: int, *number: int) -> list[str]:
        local = self._passes.get(PassId(*integers(number, 2)))
        return [] if local is None else local.starved()

    # ---- the end ----

    def release(self, source: int, number: PassId) -> None:
        """Forget a pass, and let the ranks that were called within it do so too."""
        with self._lock:
            local = self._passes.pop(number, None)
            self._released.append(number)
        if local is not None:
            for rank in local.touched - {self.rank, source}:
                self._agent.note(rank, ".release", *number)

    def _release(self, source: int, *number: int) -> None:
        self.release(source, PassId(*integers(number, 2)))

    def _pass(self, number: PassId) -> LocalPass:
        with self._lock:
            if number in self._released:
                # a call that nobody waited for goes on: what it notes is not kept
                return LocalPass(over=True)
            return self._passes.setdefault(number, LocalPass())


_own = threading.local()  # calls that the part of a pass makes that this thread goes back through


class MessageVariables:
    """How variables travel in one message: as arrays, with the path of the message in a pass."""

    def __init__(
        self, gradients: Gradients, frame: TapeFrame | None = None, path: Path = ()
    ) -> None:
        self._gradients = gradients
        self._frame = frame
        self._path = path

    def pack(self, thing: object, to: int) -> tuple[Value, ...]:
        """A variable; only its array, where its gradient is not wanted or there is no pass."""
        assert isinstance(thing, Variable)
        # a parameter changes in place, and may while the message is under way
        array = thing.array.copy() if thing.node is None else thing.array
        if self._frame is None or not thing.needs:
            return (array,)
        number = _number_of(self._frame)
        check_pass(self._frame, [thing], "a call")
        place = self._gradients.sent(number, self._path, to, thing)
        return (array, tuple(number), self._path, place)

    def cancel(self, values: tuple[Value, ...]) -> None:
        """The message is not sent: no gradient will come."""
        if self._frame is not None and len(values) > 1:
            self._gradients.unsent(_number_of(self._frame), self._path)

    def unpack(self, source: int, values: tuple[Value, ...]) -> Variable:
        """The variable that came. Raises BadMessage."""
        array = values[0] if values else None
        if not isinstance(array, np.ndarray) or len(values) not in (1, 4):
            raise BadMessage("a variable in it has no array")
        if len(values) == 1:
            return Variable(array, needs=False)
        number = PassId(*integers(values[1], 2))
        path = values[2]
        place = values[3]
        if (
            not isinstance(path, tuple)
            or not isinstance(place, int)
            or not 0 <= place < MOST_BODIES
        ):
            raise BadMessage("a variable in it has no path")
        node, output = self._gradients.received(number, path, source, place)
        return Variable(array, node=node, output=output)


def _number_of(frame: TapeFrame) -> PassId:
    assert isinstance(frame.context, PassId)
    return frame.context


def _when_all(calls: Sequence[Future], done: Future) -> None:
    """Finish `done` when all calls are over; fail it with the first that fails."""
    left = itertools.count(len(calls) - 1, -1)

    def over(call: Future) -> None:
        error = call.error()
        if error is not None:
            done.fail(error)
        # a count is taken in one step, whichever threads come here
        if next(left) <= 0:
            done.finish(None)

    for call in calls:
        call.then(over)
    if not calls:
        done.finish(None)
