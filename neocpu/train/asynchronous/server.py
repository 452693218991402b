"""What does a parameter server do? It looks rows up, and updates them and dense parameters.

It serves one call after the other, so no row is read while it is written. With a staleness above 0
each gradient is applied when it comes. With 0 those of a step wait for each other: the bags of all
workers, in their order, are the global batch, and one update from them is what a synchronous run
makes (`docs/arithmetic.md` §3).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neocpu.core.jagged import KJT
from neocpu.core.trees import Node, climb
from neocpu.core.types import Floats, Ints
from neocpu.parallel.embeddings.sharded import ShardedEmbedding
from neocpu.parallel.rpc.functions import Functions
from neocpu.parallel.rpc.futures import Future
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import SingleComm
from neocpu.tables.specs.specs import bags
from neocpu.train.asynchronous.roles import RankRoles

if TYPE_CHECKING:
    from neocpu.train.step.world import World

Calls = dict[int, Floats]  # arrays by worker


class TableServer:
    """The whole tables of a rank, looked up and updated for workers."""

    def __init__(self, world: "World") -> None:
        plan = world.plan
        numbers = [shard.table for shard in plan.local(world.comm.rank)]
        tables = tuple(plan.tables[number] for number in numbers)
        # to itself the rank is alone with its tables, so rows are pooled as by one rank
        own = place(tables, ["table_wise"] * len(tables), 1, 1)
        env = replace(world.embedding.env, plan=own, comm=SingleComm(), first_column=0)
        self._embedding = ShardedEmbedding(env, tbe=world.embedding.tbe)
        self._keys = tuple(bag.key for bag in bags(tables))

    def kjt(self, lengths: NDArray[np.int32], values: Ints, weights: Floats | None) -> KJT:
        """Bags of samples in these tables."""
        return KJT(self._keys, lengths, values, weights)

    def look_up(self, bags_: KJT) -> Floats:
        """Pooled vectors f32[b, columns of these tables]. Raises IndexRangeError."""
        embedding = self._embedding
        out = np.empty((bags_.samples, embedding.columns), np.float32)
        embedding.forward(bags_, bags_.samples).finish(out)
        return out

    def update(self, parts: Sequence[KJT], gradients: Sequence[Floats], step: int) -> None:
        """One step from the gradients f32[b, columns] of some workers' bags."""
        whole = joined(parts)
        if not whole.samples:
            return
        embedding = self._embedding
        batch_input = embedding.start(whole, whole.samples).wait()
        update = embedding.start_update(batch_input, np.concatenate(gradients), step)
        update.update_shards()
        update.update_replicas()
        embedding.exchange.release(batch_input)


def joined(parts: Sequence[KJT]) -> KJT:
    """The bags of all parts as one batch, their samples in that order."""
    if len(parts) == 1:
        return parts[0]
    spans = []
    for key in range(len(parts[0].keys)):
        for part in parts:
            b = part.samples
            spans.append((part, slice(part.offsets[key * b], part.offsets[(key + 1) * b])))
    weights = [part.weights[span] for part, span in spans if part.weights is not None]
    return KJT(
        parts[0].keys,
        np.concatenate([part.lengths for part in parts], axis=1),
        np.concatenate([part.values[span] for part, span in spans]),
        np.concatenate(weights) if len(weights) == len(spans) > 0 else None,
    )


class Gathered:
    """Calls of one function by workers: run each at once, or those of a step together.

    size : calls that are run together, those of so many workers (1: each at once).
    run(step, {worker: array}) : answers them all.
    """

    def __init__(
        self,
        size: int,
        future: Callable[[], Future],
        run: Callable[[int, Calls], object],
    ) -> None:
        self._size = size
        self._future = future
        self._run = run
        self._calls: dict[int, Calls] = defaultdict(dict)
        self._answers: dict[int, Future] = {}

    def __call__(self, worker: int, step: int, array: Floats) -> object:
        """A worker's call; the answer may come later."""
        if self._size == 1:
            return self._run(step, {worker: array})
        answer = self._answers.setdefault(step, self._future())
        calls = self._calls[step]
        calls[worker] = array
        if len(calls) == self._size:
            del self._calls[step], self._answers[step]
            try:
                answer.finish(self._run(step, dict(sorted(calls.items()))))
            except Exception as error:
                # who waits is told; who called last, too
                answer.fail(error)
        return answer


class ParameterServer:
    """One rank's tables and slice of the dense parameters. future : makes answers that come later.

    Attribute: functions, that workers call.
    """

    def __init__(self, world: "World", roles: RankRoles, future: Callable[[], Future]) -> None:
        self._world = world
        self._roles = roles
        self._leaves = world.config.training.leaves
        cuts = roles.cuts(world.model.flat.size)
        rank = world.comm.rank
        self._span = slice(int(cuts[rank]), int(cuts[rank + 1]))
        self._tables = TableServer(world) if world.plan.local(rank) else None
        self._bags: dict[int, KJT] = {}
        size = roles.workers if roles.keys.staleness == 0 else 1
        self.functions = Functions()
        self.functions.add("look_up", self._look_up)
        for name, run in (
            ("update_rows", self._update_rows),
            ("update_dense", self._update_dense),
            ("elastic", self._elastic),
        ):
            self.functions.add(name, Gathered(size, future, run))

    def _look_up(
        self, worker: int, lengths: NDArray[np.int32], values: Ints, weights: Floats | None
    ) -> Floats:
        """Pooled vectors of a worker's bags, which its next gradient is of."""
        assert self._tables is not None
        bags_ = self._bags[worker] = self._tables.kjt(lengths, values, weights)
        return self._tables.look_up(bags_)

    def _update_rows(self, step: int, calls: Calls) -> None:
        """Values : the gradient of the vectors that `look_up` gave last."""
        assert self._tables is not None
        parts = [self._bags.pop(worker) for worker in calls]
        self._tables.update(parts, [*calls.values()], step)

    def _update_dense(self, step: int, calls: Calls) -> Floats:
        """Values : gradients of this rank's slice, f32[nodes, width], of a worker's nodes. The
        slice after its step.
        """
        nodes: dict[Node, Floats] = {}
        for worker, gradients in calls.items():
            nodes |= dict(zip(self._roles.nodes_of(worker, self._leaves), gradients))
        # of one worker the tree has some leaves only, which stand for the others
        gradient = climb(nodes, 0, self._leaves)
        if gradient is not None:
            self._world.dense.step(gradient, step, self._span)
        # the slice goes on to change, perhaps before all have this answer
        return self._world.model.flat[self._span].copy()

    def _elastic(self, step: int, calls: Calls) -> Floats:
        """Values : a worker's slice of the parameters. What it is to take off its own."""
        (own,) = calls.values()
        centre = self._world.model.flat[self._span]
        move = elastic_move(own, centre, self._roles.keys.elastic_rate)
        centre += move
        return move


def elastic_move(own: Floats, centre: Floats, rate: float) -> Floats:
    """What the centre gains, and a trainer loses, when they move towards each other: the moving
    rate times their difference (equations 5 and 6 of Zhang et al. 2015, EASGD).
    """
    return np.float32(rate) * (own - centre)
