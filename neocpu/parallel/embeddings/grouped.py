"""How are tables looked up of which every replica group has a copy? Inside the group; and copies of
a shard stay equal as those of a data_parallel table do.

    start, lookup, finish    lookups and vectors travel inside the group            (sharded.py)
    update_shards            each copy merges the lookups of its group's samples into exact words;
                             copies exchange those of touched rows, round each sum once, and
                             apply one step to the same rows                        (replicas.py)

TorchRec's 2D parallelism (`DMPCollection`) lets each group take a step of its own, and averages
weights and states now and then; here all copies have the bits of an unsharded table after each
step (`docs/arithmetic.md` §3).
"""

from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np

from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.types import Ints
from neocpu.parallel.embeddings.replicas import Replicas
from neocpu.parallel.embeddings.sharded import ShardedEmbedding, each_once
from neocpu.parallel.exchange.input_dist import Input, find_refusal, wide_rows
from neocpu.parallel.exchange.output_dist import ShardGradients
from neocpu.parallel.exchange.peers import Peers
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.transport.started import Started, Steps
from neocpu.tables.embedding.distinct_bags import expand
from neocpu.tables.embedding.lookups import Words


class GroupedEmbedding(ShardedEmbedding):
    """The pooled tables of a plan with replica groups.

    Attributes: env is that of all ranks; exchange and all_keys are those of the group.
    """

    def __init__(self, env: ShardingEnv) -> None:
        # a group counts as a node, the copies of its shards as peers
        peers = Peers(env.comm, env.plan.group_ranks, env.leaves)
        env.comm.poll_with(peers.inside)
        inside = replace(
            env,
            plan=env.plan.group,
            comm=peers.inside,
            # repeated bags travel as often as they are looked up
            groups=(),
            cuts=partial(_cuts_of_group, env, peers.node),
        )
        super().__init__(inside, env.rank_tables(), env.comm)
        self.env = env
        self._inside = peers.inside
        self._agreement = env.comm.queue("input")
        self._refusals = peers.across.queue("input")
        self._plain = self._shards(with_scalars=False)
        self._waiting = self._shards(with_scalars=True)
        # those that have copies in the other groups
        self._copied_shards = [*self._plain.tolist(), *self._waiting.tolist()]
        shapes = [self.tbe.shards[i] for i in self._copied_shards]
        self._copies = Replicas(
            peers.across,
            [shard.rows[1] - shard.rows[0] for shard in shapes],
            [shard.cols[1] - shard.cols[0] + self.tbe.rule.counts for shard in shapes],
        )

    def start(self, kjt: KJT | InverseKJT, batch: int) -> Started[Input]:
        kjt = wide_rows(expand(kjt) if isinstance(kjt, InverseKJT) else kjt)
        return Started(self._input_of_group(kjt, batch), self.all_keys.input.comm.stream)

    def _input_of_group(self, kjt: KJT, batch: int) -> Steps[Input]:
        comm = self.env.comm
        lo, hi = self.env.sample_cuts(batch)[comm.rank : comm.rank + 2].tolist()
        error = find_refusal(kjt, self.env.plan.tables, self.exchange.bags, hi - lo, lo)
        one = np.ones(self._refusals.size, np.int64)
        refused = np.empty(one.size, np.int32)
        yield self._refusals.start_alltoallv(
            np.full(one.size, error is not None, np.int32),
            one,
            refused,
            one,
            what="peer refusals",
            table=np.ones((one.size, one.size), np.int64),
        )
        # a rank that refuses tells its peers, and these their groups: so all ranks come to agree
        agree = partial(self._agreement.agree, error)
        accepted = None if refused.any() else kjt
        return (yield from self.all_keys.input.steps(accepted, self.exchange.shape(batch), agree))

    def update_shards(self, batch_input: Input, gradients: ShardGradients, step: int) -> None:
        Started(self._update(batch_input, gradients, step), self._inside.stream).wait()

    def _update(self, batch_input: Input, gradients: ShardGradients, step: int) -> Steps[None]:
        """Sum the gradients of this rank's shards over all groups, and update their rows."""
        words: dict[int, tuple[Ints, Words]] = {}
        for layout, lookups, gradient in chain(
            self.terms(batch_input, gradients, with_scalars=False),
            self.terms(batch_input, gradients, with_scalars=True),
        ):
            of_layout = self.tbe.merge_words(layout, lookups, gradient)
            words.update(zip(layout.shards[0].tolist(), of_layout))
        if words:
            summed = yield from self._copies.reduce([words[i] for i in self._copied_shards])
            plain = self._plain.size
            self.tbe.apply_tables(each_once(self._plain), summed[:plain], step)
        if self._any_scalars:
            merged = {}
            if self._waiting.size:
                merge = self.tbe.merge_tables(each_once(self._waiting), summed[plain:], step)
                merged = dict.fromkeys(merge.first, merge)
            yield from self._rounds(merged, step)


def _cuts_of_group(env: ShardingEnv, group: int, batch: int) -> Ints:
    """First sample of each rank of a group among those of the group, and the end."""
    ranks = env.plan.group_ranks
    cuts = env.sample_cuts(batch)[group * ranks : (group + 1) * ranks + 1]
    return cuts - cuts[0]
