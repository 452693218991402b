"""How does the policy play, and how is it taught? Sequential placements, and REINFORCE on them.

An episode places all tables of a task; its reward comes at the end: minus the predicted cost, as
DreamShard's, here divided by what a perfectly balanced plan would cost. (AutoShard's is the least
rank's cost over the dearest's.) The baseline is the mean of the episodes of one task, the gradient
that of

    sum over steps of -(reward - baseline) log p(action) - 0.001 entropy

AutoShard trains with IMPALA; one process and a learned simulator need no more than this, which is
DreamShard's way. At test time the best-scored rank is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats
from neocpu.plan.learned.costs import LearnedCosts, Loads
from neocpu.plan.learned.greedy_grid import Cutting, PlacedParts
from neocpu.plan.learned.nets import Adam, Array, clipped
from neocpu.plan.learned.policy import COSTS, LATENT, PlacementPolicy

ENTROPY = 1e-3
CLIP = 40.0
TRY_SEED = 11


@dataclass(frozen=True)
class Lesson:
    """How long the policy is taught: tasks, episodes of each, Adam's rate, which falls to 0."""

    updates: int = 300
    episodes: int = 10
    rate: float = 1e-3


@dataclass(frozen=True)
class Played:
    """E episodes: ranks i64[E, T] in the order of the steps; costs as the policy saw them f64[E, T,
    ranks, COSTS]; legal bool[E, T, ranks]; seconds f64[E], inf where a table found no room.
    """

    ranks: Ints
    costs: Floats
    legal: Array
    seconds: Floats


class Game:
    """One task as the policy sees it: its tables in order, and their standardised features.

    capacity : bytes of a rank; inf for no limit. cutting : what is placed, and what every rank has;
    all tables by default.
    """

    def __init__(
        self, costs: LearnedCosts, capacity: float, cutting: Cutting | None = None
    ) -> None:
        self.costs = costs
        self.capacity = capacity
        self.cutting = cutting or Cutting(tuple(range(len(costs.tables))))
        free = np.array(self.cutting.free, np.int64)
        self.places = np.argsort(-costs.single[free], kind="stable")
        self.order = free[self.places]
        self.size = costs.facts[self.order, 0]
        ranks = costs.layout.ranks
        self.share = ranks / max(free.size, 1)
        self.mean_cost = max(float(costs.single[free].sum()) / ranks, 1e-30)
        self.mean_size = max(float(self.size.sum()) / ranks, 1.0)
        large = np.log2(np.maximum(self.size, 1.0)) / 10.0 - 2.0
        scaled = costs.networks.compute.scaling(costs.features)[self.order]
        self.tables = np.concatenate([scaled, large[:, None]], axis=1)

    def play(self, policy: PlacementPolicy, episodes: int, rng: Generator | None) -> Played:
        """Play; without a generator each step takes the best-scored rank."""
        costs = self.costs
        ranks = costs.layout.ranks
        count = self.order.size
        latents = policy.latents(self.tables)
        none = np.zeros(0, np.int64)
        shared = costs.loads(none, none, self.cutting.everywhere)
        hidden = np.repeat(shared.hidden[None], episodes, axis=0)
        facts = np.repeat(np.stack(shared[1:], axis=-1)[None], episodes, axis=0)
        sums = np.zeros((episodes, ranks, LATENT), latents.dtype)
        placed = np.zeros((episodes, count), np.int64)
        seen = np.zeros((episodes, count, ranks, COSTS))
        legal = np.ones((episodes, count, ranks), bool)
        complete = np.ones(episodes, bool)
        lanes = np.arange(episodes)
        now = costs.compute(hidden)
        for step, number in enumerate(self.order.tolist()):
            with_table = costs.compute(hidden + costs.hidden[number])
            size = facts[:, :, 0] + costs.facts[number, 0]
            seen[:, step] = self._view(now, with_table, size)
            legal[:, step] = size <= self.capacity
            possible = legal[:, step].any(axis=1)
            complete &= possible
            # the episode goes on anywhere, so that all of them have as many steps; it earns the
            # least reward
            legal[~possible, step] = True
            logits = policy.logits(latents[step], sums, seen[:, step])
            logits = np.where(legal[:, step], logits, -np.inf)
            if rng is not None:
                # Gumbel's trick: the largest of logits with this noise is a draw from their softmax
                logits = logits - np.log(-np.log(rng.uniform(1e-12, 1.0, logits.shape)))
            rank = logits.argmax(axis=1)
            placed[:, step] = rank
            hidden[lanes, rank] += costs.hidden[number]
            facts[lanes, rank] += costs.facts[number]
            sums[lanes, rank] += latents[step] * self.share
            now[lanes, rank] = with_table[lanes, rank]
        loads = Loads(hidden, *np.moveaxis(facts, -1, 0))
        seconds = np.where(complete, costs.seconds(loads), np.inf)
        return Played(placed, seen, legal, seconds)

    def _view(self, now: Floats, after: Floats, size: Floats) -> Floats:
        """Costs as parts of the mean rank's, f64[E, ranks, COSTS]."""
        dearest = np.maximum(now.max(axis=1, keepdims=True), after.min(axis=1, keepdims=True))
        # a finite number where there is no limit, or the network would see infinities
        room = self.capacity if np.isfinite(self.capacity) else 2 * self.mean_size
        view = [now / self.mean_cost, after / self.mean_cost, after / dearest, size / room]
        return np.stack(view, axis=-1)


def place(
    policy: PlacementPolicy,
    costs: LearnedCosts,
    capacity: float,
    cutting: Cutting | None = None,
    tries: int = 0,
) -> PlacedParts:
    """The placement of the best-scored ranks; seconds inf where a table found no room.

    tries : episodes drawn from the policy beside it, of which the cheapest counts (ours).
    """
    game = Game(costs, capacity, cutting)
    played = [game.play(policy, 1, None)]
    if tries:
        played.append(game.play(policy, tries, np.random.default_rng(TRY_SEED)))
    seconds = np.concatenate([each.seconds for each in played])
    best = int(seconds.argmin())
    ranks = np.zeros(game.order.size, np.int64)
    # back from the order of the steps to that of the cutting
    ranks[game.places] = np.concatenate([each.ranks for each in played])[best]
    return PlacedParts(game.cutting, ranks, float(seconds[best]))


def rewards(game: Game, played: Played) -> Floats:
    """Rewards f64[E]; -10 where a table found no room."""
    reward = -played.seconds / game.mean_cost
    # bounded below, or one hopeless episode would outweigh the others of its task
    return np.where(np.isfinite(played.seconds), np.maximum(reward, -10.0), -10.0)


def surrogate(
    policy: PlacementPolicy, game: Game, played: Played, advantage: Floats
) -> tuple[float, list[Array]]:
    """(the loss of the file's text, its gradients) for episodes that were played."""
    logits, trace = policy.run(game.tables, played.ranks, game.share, played.costs)
    # masked as in play: their chance is 0, and log 0 is kept finite
    logits = np.where(played.legal, logits.astype(np.float64), -1e30)
    logits -= logits.max(axis=2, keepdims=True)
    chances = np.exp(logits)
    chances /= chances.sum(axis=2, keepdims=True)
    logs = np.log(np.maximum(chances, 1e-30))
    onto = played.ranks[:, :, None] == np.arange(chances.shape[2])
    entropy = -(chances * logs).sum(axis=2, keepdims=True)
    episodes = advantage.size
    weight = advantage[:, None, None]
    loss = -(weight * logs * onto).sum() - ENTROPY * entropy.sum()
    # Of log softmax; of the entropy, whose slope by a logit is -p (log p + entropy).
    slope = -weight * (onto - chances) + ENTROPY * chances * (logs + entropy)
    dtype = policy.parameters[0].dtype
    slope = (slope / episodes).astype(dtype)
    return float(loss) / episodes, policy.gradients(trace, played.ranks, game.share, slope)


def teach(draw: Callable[[Generator], Game], lesson: Lesson) -> tuple[PlacementPolicy, list[float]]:
    """(a trained policy, mean rewards by update); `draw` makes a random task."""
    rng = np.random.default_rng(7)
    policy = PlacementPolicy(rng)
    # drawn in fp64, as tests of derivatives need it; fp32 moves half the bytes
    policy.parameters = [parameter.astype(np.float32) for parameter in policy.parameters]
    adam = Adam(policy.parameters, lesson.rate)
    history = []
    for update in range(lesson.updates):
        game = draw(rng)
        played = game.play(policy, lesson.episodes, rng)
        reward = rewards(game, played)
        history.append(float(reward.mean()))
        advantage = (reward - reward.mean()) / (reward.std() + 1e-3)
        _, slopes = surrogate(policy, game, played, advantage)
        adam.step(clipped(slopes, CLIP), lesson.rate * (1 - update / lesson.updates))
    return policy, history
