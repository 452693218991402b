"""Who runs the stages of a step, in which order? One loop over the schedule, the same for all
kinds of pipelining.

A rank computes the stages of its compute queue in their order. Before a stage it waits for the
exchanges that the stage needs, and after each it starts the exchanges whose needs are met, also
those of coming batches. Nothing here decides by what time it is, so all ranks start exchanges in
one order.

    step i     compute      lookup  bottom  top  upper'  lower' ...             batch i
               exchanges    output, gradient, replicas, sums                    batch i
               ahead        read, copy, input, index, prefetch                  batches i+1 ...

Stages run ahead for tables in slow memory: their rows are brought up before their turn, and the
policy `lookahead` knows rows of batches further away. Lookups of a batch must have arrived by then,
so they travel one step earlier still.

    batch   0        1 … prefetch        … known        one more
            at work  rows on their way   lookups here   lookups on their way
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from neocpu.core.errors import NeocpuError
from neocpu.core.policies import POLICIES
from neocpu.core.stages import EXCHANGE, NONE_AHEAD, PIPELINES, Stage, pipelined
from neocpu.parallel.transport.started import Waitable
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.train.config.memory import MemoryConfig
from neocpu.train.model.mlp import END, BetweenLayers
from neocpu.train.step.turn import BatchLike, Outcome, Turn

if TYPE_CHECKING:
    from neocpu.train.step.dynamic_kinds import DynamicKinds

T = TypeVar("T")
COMPUTE = "compute"


# What a stage does with a batch; exchanges return what is to be waited for, if anything.
Work = Callable[[T], Waitable | None]
Span = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class _Failed:
    """An exchange that could not begin: the error belongs to its batch, and waits for its turn."""

    error: Exception

    def wait(self) -> None:
        raise self.error


@dataclass(eq=False)
class _State:
    """A stage, and how far it is. It holds others that hold it, so nothing large: not its work.

    needs : (stage, batches before) pairs that must be done before. ahead : batches by which it may
    run ahead. followers : exchanges that need it. begun, done : batches that have begun, and that
    are done; under_way : exchanges in between, by batch.
    """

    stage: Stage
    ahead: int
    needs: list[tuple["_State", int]] = field(default_factory=list)
    followers: list["_State"] = field(default_factory=list)
    begun: int = 0
    done: int = 0
    under_way: dict[int, Waitable] = field(default_factory=dict)


def _nothing() -> None:
    """Nothing is under way that has to be polled."""


def _no_span(_: str) -> AbstractContextManager[None]:
    return nullcontext()


class Pipeline(Generic[T]):
    """Runs the stages of one batch after the other, and of coming batches meanwhile.

    stages : the schedule, as `stages.pipelined` makes it for `ahead`.
    work : what a stage does; stages without work take no time.
    items : the batches, taken one by one by the first stage, which has no work of its own.
    ahead : batches by which stages run ahead of their step; others do not.
    span : called with the name of each stage that works; a context for its time.
    poll : called before anything is waited for, so that all that is under way has gone on.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        work: Mapping[str, Work[T]],
        items: Iterator[T],
        ahead: Mapping[str, int] = NONE_AHEAD,
        span: Span = _no_span,
        poll: Callable[[], None] = _nothing,
    ) -> None:
        states = {stage.name: _State(stage, ahead.get(stage.name, 0)) for stage in stages}
        for state in states.values():
            needs = [*((name, 0) for name in state.stage.needs), *state.stage.earlier]
            state.needs = [(states[name], back) for name, back in needs]
            if state.stage.kind == EXCHANGE:
                for name, _ in needs:
                    states[name].followers.append(state)
        self._states = list(states.values())
        local = [state for state in self._states if state.stage.kind != EXCHANGE]
        self._early = [state for state in local if state.stage.queue != COMPUTE]
        self._compute = [state for state in local if state.stage.queue == COMPUTE]
        self._work = work
        self._items = items
        self._span = span
        self._poll = poll
        self._batches: dict[int, T] = {}
        self._now = 0  # the batch whose step it is
        self._end = sys.maxsize  # number of batches, once it is known

    def step(self) -> T | None:
        """All stages of the next batch, and what of coming ones is due; None if there is none.

        Raises whatever a stage raises; an exchange that fails for a coming batch raises in that
        batch's step.
        """
        for state in self._early:
            for batch in range(state.done, self._now + state.ahead + 1):
                self._finish(state, batch)
        if self._now >= self._end:
            return None
        for state in self._compute:
            self._finish(state, self._now)
        for state in self._states:  # exchanges that no stage waited for
            self._finish(state, self._now)
        self._now += 1
        return self._batches.pop(self._now - 1)

    def close(self) -> None:
        """Wait for exchanges that are under way, of batches whose step will not come."""
        for state in self._states:
            for exchange in state.under_way.values():
                with suppress(NeocpuError):  # whoever takes up that batch will meet its error
                    exchange.wait()
            state.under_way.clear()

    def _finish(self, state: _State, batch: int) -> None:
        """See that a stage is done for a batch, and all that it needs."""
        if state.done > batch or batch >= self._end:
            return
        if state.begun <= batch:
            for need, back in state.needs:
                if need.done <= batch - back:
                    self._finish(need, batch - back)
            if batch >= self._end:  # the first stage has met the end meanwhile
                return
            if state.begun <= batch:  # else the last need has started it
                self._begin(state, batch)
        if state.under_way and (exchange := state.under_way.pop(batch, None)) is not None:
            self._poll()
            exchange.wait()
        state.done = batch + 1
        for follower in state.followers:
            self._start(follower)

    def _begin(self, state: _State, batch: int) -> None:
        state.begun = batch + 1
        if state is self._states[0]:
            item = next(self._items, None)
            if item is None:
                self._end = batch
            else:
                self._batches[batch] = item
            return
        work = self._work.get(state.stage.name)
        if work is None:
            return
        try:
            with self._span(state.stage.name):
                exchange = work(self._batches[batch])
        except Exception as error:
            if state.stage.kind != EXCHANGE or batch == self._now:
                raise
            exchange = _Failed(error)
        if exchange is not None:
            state.under_way[batch] = exchange

    def _start(self, state: _State) -> None:
        """Start an exchange for every batch for which it is due and has what it needs."""
        while state.begun <= self._now + state.ahead and state.begun < self._end:
            if any(need.done <= state.begun - back for need, back in state.needs):
                return
            self._begin(state, state.begun)


def ahead(prefetch: int, known: int) -> Mapping[str, int]:
    """Stages of `stages.STEP` and by how many batches they run ahead.

    prefetch : batches whose rows are brought up before their turn. known : batches whose lookups
    have arrived by then.
    """
    known = max(prefetch, known)
    if not known:
        return NONE_AHEAD
    # one more: lookups travel during the step before they must be there
    early = dict.fromkeys(("read", "copy", "input"), known + 1)
    return {**early, "index": known, "prefetch": prefetch}


def look_ahead(plan: MemoryPlan | None, memory: MemoryConfig) -> Mapping[str, int]:
    """As far ahead as the config says, where the plan puts tables in slow memory; else not."""
    if plan is None or plan.plain:
        return NONE_AHEAD
    # only a policy that evicts by next use gains from lookups of batches further away
    known = memory.lookahead if POLICIES[memory.policy].next_use else 0
    return ahead(memory.prefetch, known)


class StepWork(NamedTuple):
    """What the steps of a rank consist of.

    pipeline : a name of `core.stages.PIPELINES`. order : the stages. stages : what each does.
    dynamic : the tables whose rows move, or None. span : as of `Pipeline`. between : polls, and is
    told that a step ends.
    """

    pipeline: str
    order: Sequence[Stage]
    stages: Mapping[str, Work[Turn]]
    dynamic: "DynamicKinds | None"
    span: Span
    between: BetweenLayers


class Steps:
    """Training steps over batches in their order, with what can be done ahead of them.

    Where rows of tables move, a segment of steps ends with no batch under way.

    ahead : batches by which stages run ahead where the tables need it (`pipeline.py`).
    """

    def __init__(
        self,
        work: StepWork,
        batches: Iterator[BatchLike],
        step: int,
        ahead: Mapping[str, int],
    ) -> None:
        self._work = work
        self._ahead = ahead
        self._turns = (Turn(batch, step + i) for i, batch in enumerate(batches))
        self._pipeline = self._segment(step)

    def _segment(self, step: int) -> Pipeline[Turn]:
        """The steps from this one to the next decision on rows; to the end, if there is none."""
        work = self._work
        turns: Iterator[Turn] = self._turns
        if work.dynamic is not None:
            turns = islice(turns, work.dynamic.steps_left(step))
        return Pipeline(
            pipelined(work.pipeline, work.order, self._ahead),
            work.stages,
            turns,
            {**PIPELINES[work.pipeline], **self._ahead},
            work.span,
            work.between,
        )

    def next(self) -> tuple[BatchLike, Outcome]:
        """Train on the next batch; there must be one. Collective. Raises as `TrainStep`."""
        turn = self._pipeline.step()
        assert turn is not None and turn.outcome is not None
        self._work.between(END)
        dynamic = self._work.dynamic
        if dynamic is not None and dynamic.end_step(turn.step):
            self._pipeline = self._segment(turn.step + 1)
        return turn.batch, turn.outcome

    def close(self) -> None:
        """Wait for the exchanges of batches that will not be trained on. Collective."""
        self._pipeline.close()
