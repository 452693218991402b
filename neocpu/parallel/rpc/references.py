"""How long does a rank keep a value that others refer to? Until none of them does any more.

A value has a number, (rank that asked for it, count), and an owner, the rank that holds it. Every
`RRef` of it on any rank is a *fork* with a number of its own; the owner keeps the set of forks, and
drops the value when it is empty.

    remote       the caller names value and fork; the owner enters both before the function runs
    owner sends  it enters the new fork, then sends it
    user sends   a fork of another rank to a third: the receiver asks the owner (.fork), and when
                 the owner has entered it, tells the sender (.accept), who holds its own until then
    to the owner it finds the value that it has, and tells the sender
    delete       `RRef.delete`, or nobody holds the object any more: the owner is told (.delete), as
                 soon as no fork made from it is on its way

Letters from one rank to one other come in order, so an owner enters a fork before it reads that it
is deleted. Letters of different ranks come in any order, and a value does not die while a reference
to it travels: whoever sent it holds a fork until the owner knows the new one. The garbage collector
may run in any thread at any moment: it puts a fork on a list, and whoever reads letters sends what
is there.
"""

import itertools
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Self

from neocpu.core.errors import RpcError
from neocpu.parallel.rpc.caller import Caller
from neocpu.parallel.rpc.calls import FETCH
from neocpu.parallel.rpc.failures import BadMessage
from neocpu.parallel.rpc.forks import GlobalId, HeldFork, OwnedValue, global_id, integers
from neocpu.parallel.rpc.futures import Future
from neocpu.parallel.rpc.values import Value


class RRef:
    """A reference to a value of rank `owner`. Made by `RpcAgent.remote` and `References.own`, or by
    receiving one.

    As a context manager it deletes itself at the end.
    """

    def __init__(self, references: "References", owner: int, value: GlobalId, fork: GlobalId):
        self.owner = owner
        self.value_id = value
        self.fork_id = fork
        self._references = references
        # no method of the object itself, which would keep it alive
        self._finalizer = weakref.finalize(self, references.release, owner, value, fork)
        self._finalizer.atexit = False

    def to_here(self, timeout: float | None = None) -> Value:
        """The value, sent here; once its function has returned. Raises the function's error."""
        self._check()
        return self._references.fetch(self, timeout)

    def local_value(self) -> Value:
        """The value itself, on its owner; once its function has returned."""
        self._check()
        return self._references.local_value(self)

    def is_owner(self) -> bool:
        """Is the value here?"""
        return self.owner == self._references.rank

    def delete(self) -> None:
        """Refer to the value no more; a second call does nothing."""
        self._finalizer()

    @property
    def deleted(self) -> bool:
        """Does it refer to nothing any more?"""
        return not self._finalizer.alive

    def _check(self) -> None:
        if self.deleted:
            raise RpcError(f"this reference to a value of rank {self.owner} was deleted")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def __repr__(self) -> str:
        return f"RRef(owner={self.owner}, value={tuple(self.value_id)})"


class References:
    """The values of one rank that others refer to, and its references to values of others."""

    def __init__(self, agent: Caller) -> None:
        self.rank = agent.rank
        self._agent = agent
        self._lock = threading.RLock()
        self._counts = itertools.count(1)
        self._entries: dict[GlobalId, OwnedValue] = {}
        self._held: dict[GlobalId, HeldFork] = {}
        # fork on its way -> the one that it was made from, and the rank that it goes to
        self._parents: dict[GlobalId, tuple[GlobalId, int]] = {}
        self._releases: deque[tuple[int, GlobalId, GlobalId]] = deque()
        self._alive: weakref.WeakSet[RRef] = weakref.WeakSet()
        agent.own_functions |= {
            ".remote": self._remote,
            FETCH: self._fetch,
            ".fork": self._fork,
            ".accept": self._accept,
            ".delete": self._delete,
        }

    # ---- what users call ----

    def own(self, value: Value) -> RRef:
        """A reference to a value of this rank, to be sent to others."""
        number = self._new_id()
        outcome = self._agent.future("a value of this rank")
        outcome.finish(value)
        with self._lock:
            self._entries[number] = OwnedValue(outcome)
            self._entries[number].begun = True
            return self._own_reference(number)

    def create(self, to: int, name: str, args: tuple[Value, ...], timeout: float | None) -> RRef:
        """`RpcAgent.remote`."""
        value = self._new_id()
        fork = self._new_id()
        if to == self.rank:
            # it may be asked for before the call to oneself was read
            with self._lock:
                self._entry_or_new(value)
        reference = self._reference(to, value, fork)
        try:
            self._agent.call(to, ".remote", (name, tuple(value), tuple(fork), args), timeout)
        except BaseException:
            with self._lock:
                self._entries.pop(value, None)
            raise
        return reference

    def fetch(self, reference: RRef, timeout: float | None) -> Value:
        """`RRef.to_here`."""
        if reference.is_owner():
            return self._entry(reference.value_id).outcome.wait(timeout or math.inf)
        values = (tuple(reference.value_id),)
        return self._agent.call(reference.owner, FETCH, values, timeout).wait()

    def local_value(self, reference: RRef) -> Value:
        """`RRef.local_value`."""
        if not reference.is_owner():
            raise RpcError(
                f"the value is on rank {reference.owner}, this is rank {self.rank}; to_here() "
                "brings it"
            )
        return self._entry(reference.value_id).outcome.wait()

    def owned(self) -> int:
        """Values of this rank to which somebody refers."""
        with self._lock:
            return len(self._entries)

    def held(self) -> int:
        """Forks that this rank holds of values of others, and those being deleted."""
        with self._lock:
            return len(self._held)

    # ---- handles: references among values ----

    def pack(self, thing: object, to: int) -> tuple[Value, ...]:
        """A new fork of a reference, for rank `to`."""
        assert isinstance(thing, RRef)
        fork = self._new_id()
        with self._lock:
            thing._check()
            if thing._references is not self:
                raise BadMessage("a reference of another agent cannot be sent")
            if thing.is_owner():
                self._entry(thing.value_id).forks[fork] = to
            else:
                self._held[thing.fork_id].children.add(fork)
                self._parents[fork] = (thing.fork_id, to)
        return (thing.owner, *thing.value_id, *fork)

    def cancel(self, values: tuple[Value, ...]) -> None:
        """A fork that `pack` made will not be sent."""
        owner, *numbers = integers(values, 5)
        fork = GlobalId(*numbers[2:])
        if owner == self.rank:
            self._drop(GlobalId(*numbers[:2]), fork)
        else:
            self._arrived(fork)

    def unpack(self, source: int, values: tuple[Value, ...]) -> RRef:
        """The reference that came from a rank. Raises BadMessage."""
        owner, *numbers = integers(values, 5)
        value = GlobalId(*numbers[:2])
        fork = GlobalId(*numbers[2:])
        if not 0 <= owner < self._agent.size:
            raise BadMessage(f"it refers to a value of rank {owner}, which does not exist")
        if owner == self.rank:
            with self._lock:
                if value not in self._entries:
                    raise BadMessage(f"it refers to a value {tuple(value)} that is not here")
                if source == self.rank:
                    return self._watched(RRef(self, owner, value, fork))
                reference = self._own_reference(value)
            self._agent.note(source, ".accept", tuple(fork))
            return reference
        if source != owner:
            asked = self._agent.call(owner, ".fork", (tuple(value), tuple(fork)))
            asked.then(lambda _: self._agent.note(source, ".accept", tuple(fork)))
        return self._reference(owner, value, fork)

    # ---- deletion ----

    def release(self, owner: int, value: GlobalId, fork: GlobalId) -> None:
        """Nobody holds a reference any more: it is deleted soon. Any thread, at any moment."""
        self._releases.append((owner, value, fork))

    def send_releases(self) -> None:
        """Delete what is released, as far as it may be."""
        while self._releases:
            owner, value, fork = self._releases.popleft()
            with self._lock:
                held = self._held.get(fork)
                if held is not None:
                    held.released = True
            if held is not None:
                self._delete_if_settled(fork)
            elif owner == self.rank:
                self._drop(value, fork)

    def delete_all(self) -> None:
        """Delete all references of this rank."""
        with self._lock:
            alive = list(self._alive)
        for reference in alive:
            reference.delete()

    def settled(self) -> bool:
        """Is no reference to be deleted, or on its way?"""
        with self._lock:
            waiting = any(held.released for held in self._held.values())
            return not self._releases and not self._parents and not waiting

    def forget(self, rank: int) -> None:
        """A rank is lost: it refers to nothing any more, and takes in nothing."""
        with self._lock:
            for number, entry in list(self._entries.items()):
                for fork in [fork for fork, holder in entry.forks.items() if holder == rank]:
                    self._drop(number, fork)
            for fork in [fork for fork, held in self._held.items() if held.owner == rank]:
                del self._held[fork]
            sent = [fork for fork, (_, to) in self._parents.items() if to == rank]
        for fork in sent:
            self._arrived(fork)

    def abandon(self, error: RpcError) -> None:
        """This rank leaves: whoever waits here for a value that is not made yet gets the error."""
        with self._lock:
            outcomes = [entry.outcome for entry in self._entries.values()]
        for outcome in outcomes:
            outcome.fail(error)

    def _delete_if_settled(self, fork: GlobalId) -> None:
        with self._lock:
            held = self._held.get(fork)
            if held is None or not held.released or held.children:
                return
            del self._held[fork]
        self._agent.note(held.owner, ".delete", tuple(held.value), tuple(fork))

    def _drop(self, value: GlobalId, fork: GlobalId) -> None:
        with self._lock:
            entry = self._entries.get(value)
            if entry is not None and entry.forks.pop(fork, None) is not None and not entry.forks:
                del self._entries[value]

    # ---- what other ranks call ----

    def _remote(self, source: int, name: object, value: object, fork: object, args: object) -> None:
        if not isinstance(args, tuple):
            raise BadMessage("arguments that are no tuple")
        with self._lock:
            entry = self._entry_or_new(global_id(value))
            if entry.begun:
                raise BadMessage("a value that is here already is made again")
            entry.begun = True
            entry.forks[global_id(fork)] = source
        outcome = entry.outcome
        try:
            function = self._agent.functions.of(str(name)).function
            self._agent.run(lambda: _evaluate(function, args, outcome))
        # the value of a call that failed is its error, for whoever asks
        except RpcError as problem:
            outcome.fail(problem)

    def _fetch(self, source: int, value: object) -> Future:
        return self._entry(global_id(value)).outcome

    def _fork(self, source: int, value: object, fork: object) -> None:
        # the call that makes the value may still be on its way from a third rank
        with self._lock:
            self._entry_or_new(global_id(value)).forks[global_id(fork)] = source

    def _accept(self, source: int, fork: object) -> None:
        self._arrived(global_id(fork))

    def _delete(self, source: int, value: object, fork: object) -> None:
        self._drop(global_id(value), global_id(fork))

    # ---- inside ----

    def _new_id(self) -> GlobalId:
        return GlobalId(self.rank, next(self._counts))

    def _entry_or_new(self, value: GlobalId) -> OwnedValue:
        if value not in self._entries:
            self._entries[value] = OwnedValue(self._agent.future("a value of this rank"))
        return self._entries[value]

    def _entry(self, value: GlobalId) -> OwnedValue:
        entry = self._entries.get(value)
        if entry is None:
            raise RpcError(f"rank {self.rank} has no value {tuple(value)} any more")
        return entry

    def _reference(self, owner: int, value: GlobalId, fork: GlobalId) -> RRef:
        with self._lock:
            self._held[fork] = HeldFork(owner, value)
        return self._watched(RRef(self, owner, value, fork))

    def _own_reference(self, value: GlobalId) -> RRef:
        """A reference on the owner, which is a fork like those of others."""
        fork = self._new_id()
        with self._lock:
            self._entry(value).forks[fork] = self.rank
        return self._watched(RRef(self, self.rank, value, fork))

    def _watched(self, reference: RRef) -> RRef:
        with self._lock:
            self._alive.add(reference)
        return reference

    def _arrived(self, fork: GlobalId) -> None:
        """A fork that was on its way has been entered."""
        with self._lock:
            if fork not in self._parents:
                return
            parent, _ = self._parents.pop(fork)
            if parent in self._held:
                self._held[parent].children.discard(fork)
        self._delete_if_settled(parent)


def _evaluate(function: Callable[..., object], args: tuple[object, ...], outcome: Future) -> None:
    """Run a function whose value stays here."""
    try:
        outcome.finish(function(*args))
    except BaseException as error:
        outcome.fail(error)
