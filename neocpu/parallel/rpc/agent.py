"""How does a rank call a function of another? Its agent writes a letter, and reads the answer.

    functions = Functions()

    @functions.function("add")
    def add(a, b): return a + b

    with RpcAgent(comm, functions) as agent:               # collective
        total = agent.rpc_sync(1, "add", array, 2.0)       # waits
        future = agent.rpc_async(1, "add", array, 2.0)     # future.wait() has the value
        reference = agent.remote(1, "add", array, 2.0)     # the value stays on rank 1

What is promised, and what is not, is in `docs/rpc.md`.
"""

import math
import time
from collections.abc import Callable
from typing import Self

import numpy as np

from neocpu.core.errors import NeocpuError, RpcError
from neocpu.parallel.rpc import messages
from neocpu.parallel.rpc.calls import OpenCalls
from neocpu.parallel.rpc.ending import ROUND, LastRounds
from neocpu.parallel.rpc.failures import BadMessage, check_seconds, text_of
from neocpu.parallel.rpc.functions import Functions, RpcFunction, check_name
from neocpu.parallel.rpc.futures import Future
from neocpu.parallel.rpc.gradients import Gradients, MessageVariables
from neocpu.parallel.rpc.messages import MessageKind, Outgoing, RpcMessage
from neocpu.parallel.rpc.peers import Liveness
from neocpu.parallel.rpc.progress import Progress
from neocpu.parallel.rpc.references import References, RRef
from neocpu.parallel.rpc.snapshots import snapshot
from neocpu.parallel.rpc.tape import TapeFrame, Variable, entered
from neocpu.parallel.rpc.values import HandleKind, Value
from neocpu.parallel.rpc.workers import Workers
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.mail import BadLetter, Letter, Mail

# Seconds between two looks at deadlines, and at the ranks that are waited for.
SWEEP = 0.05
# Letters that are read before the reader looks whether what it waits for is done.
BATCH = 16
# Names whose letters the end of a job does not count.
UNCOUNTED = frozenset((ROUND, ".ping", ".pong"))


class RpcAgent:
    """What lets a rank call functions of others, and others call its own. Collective.

    comm : the ranks; letters have their own boxes, so other calls on it may go on.
    functions : that others may call.
    threads : functions of this rank that run at a time. 1: in the order in which calls came.
    timeout : seconds that a call may take, unless it says so itself (inf: any).
    patience : seconds of silence after which a rank that is waited for is lost.
    mail : letter boxes of the ranks (None: new ones of the comm).

    Attributes: rank, size; references, what of this rank others refer to (`references.py`);
    gradients, through calls (`gradients.py`).
    """

    def __init__(
        self,
        comm: Comm,
        functions: Functions,
        *,
        threads: int = 1,
        timeout: float = 60.0,
        patience: float = 30.0,
        mail: Mail | None = None,
    ) -> None:
        check_seconds("timeout", timeout)
        check_seconds("patience", patience)
        self.rank = comm.rank
        self.size = comm.size
        self.functions = functions
        self.timeout = timeout
        self._mail = comm.mail() if mail is None else mail
        self._count_letter = comm.count_letter
        self._peers = Liveness(comm, patience)
        self._next_sweep = 0.0
        self._closed = False
        # names of the package's own functions: (source, *values) -> what the answer says
        self.own_functions: dict[str, Callable[..., object]] = {
            ".ping": self._ping,
            ".pong": lambda source: None,
            ".bye": self._bye,
        }
        self._workers = Workers(threads, f"rpc worker of rank {self.rank}")
        self._progress = Progress(self._poll, self._mail, self._workers, f"rpc of rank {self.rank}")
        self._calls = OpenCalls(self._progress, self._peers)
        self.references = References(self)
        self.gradients = Gradients(self)
        self._kinds = [
            HandleKind(RRef, 0, self.references),
            HandleKind(Variable, 1, MessageVariables(self.gradients)),
        ]
        self._ending = LastRounds(self, self._peers, self._progress, self._is_idle)
        self._progress.start()

    # ---- calls ----

    def rpc_sync(self, to: int, name: str, *args: Value, timeout: float | None = None) -> Value:
        """The value of a function of rank `to`.

        args : None, bools, integers, floats, texts, bytes, arrays, `RRef`s, and tuples, lists and
            dicts of these. timeout : seconds (None: the agent's).

        Raises RemoteError where the function failed, PeerLost, CallTimeout, and BadMessage for
        values that cannot be sent.
        """
        return self.rpc_async(to, name, *args, timeout=timeout).wait()

    def rpc_async(self, to: int, name: str, *args: Value, timeout: float | None = None) -> Future:
        """`rpc_sync` that does not wait: its future. Arrays among `args` belong to the call until
        the future is done: change none of them before.
        """
        check_name(name)
        to = self._rank(to)
        header, variables = self.gradients.calling(to)
        return self.call(to, name, (header, *args), timeout, variables)

    def remote(self, to: int, name: str, *args: Value, timeout: float | None = None) -> RRef:
        """A reference to the value of a function of rank `to`, where it stays. Does not wait."""
        check_name(name)
        return self.references.create(self._rank(to), name, args, timeout)

    def call(
        self,
        to: int,
        name: str,
        values: tuple[Value, ...],
        timeout: float | None = None,
        variables: MessageVariables | None = None,
    ) -> Future:
        """Send a call whose values are complete, for this package's own use."""
        seconds = self.timeout if timeout is None else timeout
        check_seconds("timeout", seconds)
        number, call = self._calls.begin(to, name, seconds)
        if call.done():
            return call
        try:
            self._send(to, Outgoing(MessageKind.CALL, name, number), values, variables)
        except BaseException:
            self._calls.give_up(number)
            raise
        return call

    def note(self, to: int, name: str, *values: Value) -> None:
        """Send what needs no answer, for this package's own use; nothing to a rank that is lost."""
        if not self._peers.lost(to):
            self._send(to, Outgoing(MessageKind.NOTE, name, 0), values)

    def future(self, what: str) -> Future:
        """A future that this rank finishes itself: a function that returns one is answered then.
        what : is awaited, for messages.
        """
        return Future(self._progress, what)

    def run(self, task: Callable[[], None]) -> None:
        """Let a worker run a task, which raises nothing, after the calls that came before."""
        self._workers.put(task)

    def _rank(self, to: int) -> int:
        """A rank that can be called. Raises RpcError."""
        if self._closed:
            raise RpcError("this agent is closed: no more calls can be made")
        if not isinstance(to, int | np.integer) or not 0 <= to < self.size:
            raise RpcError(f"rank {to!r} does not exist; there are ranks 0 to {self.size - 1}")
        return int(to)

    def _send(
        self,
        to: int,
        message: Outgoing,
        values: tuple[Value, ...],
        variables: MessageVariables | None = None,
    ) -> None:
        kinds = self._kinds
        if variables is not None:
            kinds = [kinds[0], kinds[1]._replace(handles=variables)]
        head, bodies = messages.compose(to, message, values, kinds, self._mail.largest)
        if message.name not in UNCOUNTED:
            # before it leaves, or it would be read before
            self._ending.count_sent()
        self._count_letter(to, len(head) + sum(body.size for body in bodies))
        self._mail.send(to, head, bodies)

    # ---- reading ----

    def _poll(self) -> bool:
        """Read some letters; did any come?"""
        came = 0
        while came < BATCH:
            letter = self._mail.receive()
            if letter is None:
                break
            came += 1
            self._read(letter)
        self.references.send_releases()
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP
            self._sweep(now)
        return came > 0

    def _read(self, letter: Letter | BadLetter) -> None:
        source = letter.source
        if self._peers.lost(source):
            return
        if isinstance(letter, BadLetter):
            self._lose(source, f"sent a letter that cannot be read: {letter.reason}")
            return
        self._peers.heard(source)
        try:
            message = messages.read(letter, self._kinds)
        except BadMessage as problem:
            self._lose(source, f"sent a message that cannot be read: {problem}")
            return
        if message.kind in (MessageKind.CALL, MessageKind.NOTE):
            self._take_call(message)
        else:
            self._calls.take(message)
        # only now that its function is with the workers: before, nothing would seem under way here
        if message.name not in UNCOUNTED:
            self._ending.count_read()

    def _take_call(self, message: RpcMessage) -> None:
        try:
            values = message.values()
            if message.name.startswith("."):
                self._run_own(message, values)
                return
            function = self.functions.of(message.name)
            task = self._task(function, message, values)
            if function.quick:
                task()
            else:
                self._workers.put(task)
        except NeocpuError as problem:
            self._fail(message, problem)

    def _task(
        self, function: RpcFunction, message: RpcMessage, values: list[Value]
    ) -> Callable[[], None]:
        """Runs a function and answers; raises nothing."""
        frame = self.gradients.called(values[0] if values else None)

        def task() -> None:
            try:
                with entered(frame):
                    result = [function.function(*values[1:])]
                # what nobody else holds need not be copied before it is sent
                values.clear()
                self._answer(message, snapshot(result, self._mail.pool)[0], frame)
            except BaseException as error:
                self._fail(message, error)

        return task

    def _run_own(self, message: RpcMessage, values: list[Value]) -> None:
        function = self.own_functions.get(message.name)
        if function is None:
            raise RpcError(f"there is no function {message.name!r}")
        try:
            self._answer(message, function(message.source, *values))
        except (TypeError, ValueError, KeyError) as error:
            raise BadMessage(f"{message.name!r} with {len(values)} values: {error}") from error

    def _answer(self, message: RpcMessage, result: object, frame: TapeFrame | None = None) -> None:
        """Answer a call, now or when the future that it gave is over."""
        if message.kind is MessageKind.NOTE:
            return
        if isinstance(result, Future):
            result.then(lambda future: self._answer_later(message, future, frame))
            return
        outgoing = Outgoing(MessageKind.ANSWER, "", message.call)
        self._send(message.source, outgoing, (None, result), self.gradients.answering(frame))

    def _answer_later(self, message: RpcMessage, future: Future, frame: TapeFrame | None) -> None:
        error = future.error()
        if error is None:
            try:
                # the future holds its value too, so arrays are copied
                self._answer(message, snapshot([future.wait()], self._mail.pool)[0], frame)
            except RpcError as problem:
                self._fail(message, problem)
        else:
            self._fail(message, error)

    def _fail(self, message: RpcMessage, error: BaseException) -> None:
        if message.kind is MessageKind.NOTE:
            return
        outgoing = Outgoing(MessageKind.FAILURE, "", message.call)
        self._send(message.source, outgoing, (type(error).__name__, text_of(error)))

    # ---- who is there ----

    def _sweep(self, now: float) -> None:
        """End calls that took too long, or whose rank is lost."""
        for rank in self._calls.ranks() - {self.rank}:
            if self._peers.check(rank):
                self.note(rank, ".ping")
            if self._peers.lost(rank):
                self._end_calls(rank)
        self._calls.expire(now)

    def _lose(self, rank: int, reason: str, said: str = "") -> None:
        self._peers.lose(rank, reason, said)
        self._end_calls(rank)

    def _end_calls(self, rank: int) -> None:
        """End the calls of a rank that is lost, and what it held."""
        self._calls.end(rank)
        self.references.forget(rank)

    def _ping(self, source: int) -> None:
        self.note(source, ".pong")

    def _bye(self, source: int, reason: object) -> None:
        self._lose(source, f"left: {reason}", str(reason))

    # ---- the end ----

    def shutdown(self, timeout: float | None = None) -> None:
        """Serve until no rank calls any more, then close. All ranks call it, unless it is closed.

        `ending.py` says when nothing is under way. Then all references are deleted, which none of
        the functions needs any more, and that is waited for too.

        timeout : seconds, as of a call. Raises CallTimeout with the ranks that did not come, and
        PeerLost.
        """
        if self._closed:
            return
        seconds = self.timeout if timeout is None else timeout
        self._ending.wait(seconds)
        self.references.delete_all()
        self._ending.wait(seconds)
        self._progress.wait_for(self._mail.sent)
        self._close()

    def _is_idle(self) -> bool:
        return not self._calls and not self._workers.busy() and self.references.settled()

    def close(self, reason: str = "it closed its agent") -> None:
        """Leave at once. Calls of others that wait for this rank end with PeerLost and the reason;
        so do this rank's own, also those of itself. Not collective.
        """
        if self._closed:
            return
        for rank in range(self.size):
            if rank != self.rank:
                self.note(rank, ".bye", reason[:1000])
                self._lose(rank, "was left: this rank closed its agent")
        self._peers.lose(self.rank, f"left: {reason}")
        self._calls.end(self.rank)
        self.references.abandon(self._peers.error(self.rank))
        self._close()

    def _close(self) -> None:
        self._closed = True
        self._workers.close()
        self._progress.close()
        self._mail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """`shutdown`; or `close` with what happened, where the block raised an error."""
        if error is None:
            self.shutdown(math.inf)
        else:
            self.close(f"it failed with {type(error).__name__}: {error}")
