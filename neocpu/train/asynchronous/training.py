"""How do servers and trainers of one rank take some steps, and what do all ranks have then?

While steps go on, each rank serves, and its workers train. Then no call is under way, and all ranks
gather the dense half, so that measurements, checkpoints and the digest are those of any run.
"""

import copy
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np

from neocpu.core.errors import EnvironmentProblem, RpcError, TrainingError
from neocpu.ingest.loader import Batch
from neocpu.kernels.compile.threads import threading_layer, use_threads
from neocpu.parallel.rpc.agent import RpcAgent
from neocpu.parallel.rpc.failures import PeerLost
from neocpu.parallel.rpc.futures import Future
from neocpu.train.asynchronous.clock import StalenessClock
from neocpu.train.asynchronous.roles import RankRoles, keys_of_servers
from neocpu.train.asynchronous.server import ParameterServer
from neocpu.train.asynchronous.worker import Wiring, Worker
from neocpu.train.step.schedule import BatchSchedule
from neocpu.train.step.turn import Outcome
from neocpu.train.step.world import World, dense_optimizer, model_of

Listener = Callable[[Batch, Outcome, int], None]
Stops = Callable[[], bool]
ENDS = "training ends: "  # before what a rank says that failed


class LateAnswers:
    """The answers of one rank that wait for workers of any, until one can not go on.

    Attribute: agent, set before the first call comes.
    """

    def __init__(self) -> None:
        self.agent: RpcAgent | None = None
        self._lock = threading.Lock()
        self._waiting: list[Future] = []
        self._reason = ""

    def later(self) -> Future:
        """An answer that is not known yet. Raises RpcError once a worker has failed."""
        assert self.agent is not None
        with self._lock:
            if self._reason:
                raise RpcError(self._reason)
            future = self.agent.future("other workers")
            self._waiting = [*(other for other in self._waiting if not other.done()), future]
        return future

    def abort(self, reason: str) -> None:
        """A worker has failed: nobody waits for it any more."""
        with self._lock:
            self._reason = self._reason or reason
            waiting = self._waiting
            self._waiting = []
        for future in waiting:
            future.fail(RpcError(reason))


class AsynchronousTraining:
    """The servers and workers of one rank; methods are collective.

    world : whose tables and dense half are trained; it steps no batch itself. schedule : of all
    samples. done : steps that were taken before.

    Attributes: done, steps that every worker has taken; lead, the most that one was ahead of the
    slowest; moved, bytes of arrays in calls of this rank's workers.
    """

    def __init__(self, world: World, schedule: BatchSchedule, done: int) -> None:
        self.world = world
        self.done = done
        self.lead = 0
        config = world.config
        self.roles = RankRoles(world.comm.size, config.training.asynchronous)
        cuts = self.roles.cuts(world.model.flat.size).tolist()
        spans = [(rank, slice(lo, hi)) for rank, (lo, hi) in enumerate(pairwise(cuts)) if lo < hi]
        wiring = Wiring(
            self.roles,
            config.training.leaves,
            keys_of_servers(world.plan, world.model.first_column, self.roles.servers),
            spans,
        )
        self._cuts = cuts
        self._numbers = self.roles.workers_of(world.comm.rank)
        self._workers = self._make_workers(wiring)
        self._batches = [self._batches_of(schedule, number) for number in self._numbers]
        self._failure: BaseException | None = None
        if len(self._workers) > 1 and threading_layer() == "workqueue":
            raise EnvironmentProblem(
                "training.asynchronous.threads needs Numba's omp or tbb threading layer; install "
                "a libgomp, or `pip install tbb`"
            )

    def _make_workers(self, wiring: Wiring) -> list[Worker]:
        """The workers of this rank, on one copy of the dense parameters and its rule's states."""
        world = self.world
        workers: list[Worker] = []
        self._flat = world.model.flat.copy()
        states = None
        for number in self._numbers:
            model = model_of(world.config, world.model.layout.dense_features, self._flat)
            dense = None
            if self.roles.keys.elastic_every:
                dense = dense_optimizer(world.config, model, world.comm)
                states = dense.state = states or dense.state
            workers.append(Worker(number, wiring, model, dense))
        # models begin with initial values, the run perhaps with others
        self._flat[...] = world.model.flat
        return workers

    def _batches_of(self, schedule: BatchSchedule, worker: int) -> Iterator[Batch]:
        """The batches of a worker, which reads no samples but its own."""
        loader = copy.copy(schedule.loader)
        loader.share = replace(loader.share, rank=worker, ranks=self.roles.workers)
        return replace(schedule, loader=loader).batches(self.done)

    @property
    def moved(self) -> int:
        """Bytes of arrays in calls of this rank's workers."""
        return sum(worker.bytes for worker in self._workers)

    def run(self, last: int, listen: Listener, stops: Stops) -> None:
        """All workers take the steps to `last`, or fewer where any rank is to stop.

        listen : is called after each step of this rank's first worker. stops : is this rank to
        stop?

        Raises what fails here, or RpcError for what fails on another rank.
        """
        if not self.roles.keys.elastic_every:
            self._flat[...] = self.world.model.flat
        comm = self.world.comm
        answers = LateAnswers()
        server = ParameterServer(self.world, self.roles, answers.later)
        clock = StalenessClock(
            self.roles.workers, self.roles.keys.staleness, last, self.done, answers.later
        )
        server.functions.add("begin", clock.begin, quick=True)
        server.functions.add("abort", answers.abort, quick=True)
        patience = self.world.config.parallel.timeout or math.inf
        try:
            with RpcAgent(comm, server.functions, timeout=math.inf, patience=patience) as agent:
                answers.agent = agent
                # nobody calls before all can answer
                comm.barrier()
                self._work(agent, last, listen, stops)
        except RpcError as error:
            told = error.said if isinstance(error, PeerLost) else str(error)
            _, ends, reason = told.rpartition(ENDS)
            if not ends:
                raise
            # what the rank said that failed first, whichever is heard first
            raise TrainingError(reason) from error
        self._gather(clock, last)

    # ---- workers ----

    def _work(self, agent: RpcAgent, last: int, listen: Listener, stops: Stops) -> None:
        """Let all workers of this rank work; the first in this thread."""
        if not self._workers:
            return
        beside = [
            threading.Thread(target=self._work_beside, args=(agent, place, last), daemon=True)
            for place in range(1, len(self._workers))
        ]
        for thread in beside:
            thread.start()
        try:
            self._steps(agent, 0, last, listen, stops)
        except BaseException as error:
            self._abort(agent, error)
        for thread in beside:
            thread.join()
        if self._failure is not None:
            agent.close(f"{ENDS}{self._failure}")
            raise self._failure

    def _work_beside(self, agent: RpcAgent, place: int, last: int) -> None:
        use_threads(1)
        try:
            self._steps(agent, place, last, lambda batch, outcome, step: None, lambda: False)
        except BaseException as error:  # raised by the rank's first thread
            self._abort(agent, error)

    def _abort(self, agent: RpcAgent, error: BaseException) -> None:
        """End the waiting of all workers of all ranks for one that failed."""
        # what comes later follows from the first
        self._failure = self._failure or error
        reason = f"{ENDS}{error}"
        for rank in self.roles.servers:
            with suppress(RpcError):
                agent.rpc_async(rank, "abort", reason)

    def _steps(
        self,
        agent: RpcAgent,
        place: int,
        last: int,
        listen: Listener,
        stops: Stops,
    ) -> None:
        worker = self._workers[place]
        number = self._numbers[place]
        clock_rank = self.roles.servers[0]
        for step in range(self.done + 1, last + 2):
            if not agent.rpc_sync(clock_rank, "begin", number, step, stops()):
                return
            batch = next(self._batches[place])
            listen(batch, worker.step(agent, batch, step), step)

    # ---- after the last step ----

    def _gather(self, clock: StalenessClock, last: int) -> None:
        """Bring the dense half of all servers, and what the clock knows, to all ranks."""
        world = self.world
        comm = world.comm
        counts = np.diff(self._cuts).astype(np.int64)
        own = slice(self._cuts[comm.rank], self._cuts[comm.rank + 1])
        for array in (world.model.flat, *world.dense.state.values()):
            comm.allgatherv(array[own].copy(), array, counts, what="dense gather")
        ends_early = clock.begun if comm.rank == self.roles.servers[0] else 0
        self.done = comm.largest(ends_early, what="steps taken")
        self.lead = max(self.lead, comm.largest(clock.lead, what="steps ahead"))
