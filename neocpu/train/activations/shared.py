"""How do several models share one block of memory for their activations?

Each comes with its graph when its world is built; the last one plans for all. Ranks have one order
of operations, that of rank 0; what leaves memory meanwhile is each rank's own choice.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

from neocpu.core.errors import NeocpuError
from neocpu.plan.activations.choose import interleave
from neocpu.plan.activations.graph import StepGraph, name_of
from neocpu.train.activations.away import measured
from neocpu.train.activations.block import ActivationBlock, Activations
from neocpu.train.activations.budget import (
    agree,
    attach,
    holders_of,
    most_samples,
    place_of,
    sizes_away,
)
from neocpu.train.activations.keeping import Keep
from neocpu.train.activations.lifetimes import Lifetimes
from neocpu.train.activations.rehearsal import rehearse
from neocpu.train.activations.rounds import TrainingRounds
from neocpu.train.config.config import Config
from neocpu.train.model.mlp import LOSS
from neocpu.train.step.world import World

NO_LIMIT = 1 << 62


class _SharingModel(NamedTuple):
    """A model with the arrays of its steps."""

    world: World
    lifetimes: Lifetimes
    graph: StepGraph


class SharedActivations:
    """The activations of several models on one rank.

    models : how many there are. budget : bytes of all of them together (0: no limit). spoil : as of
    `ActivationBlock`.

    Attributes: rounds, in which they take turns; block, once all have come; order, its name.
    """

    def __init__(self, models: int, budget: int, spoil: bool = False) -> None:
        self.rounds: TrainingRounds[dict[str, object]] = TrainingRounds(models)
        self.block: ActivationBlock | None = None
        self.order = ""
        self._budget = budget or NO_LIMIT
        self._spoil = spoil
        self._members: dict[int, _SharingModel] = {}

    def keeper(self, model: int) -> Keep:
        """What keeps the activations of a model: as `keep_within`."""
        return partial(self._join, model)

    def _join(self, model: int, config: Config, world: World, folder: Path) -> None:
        """A model's world is built."""
        lifetimes = Lifetimes(world.model, world.step.vectors)
        # a rank without samples takes turns like all others
        graph = rehearse(world.step, lifetimes, max(most_samples(config, world.comm), 1))
        self._members[model] = _SharingModel(world, lifetimes, graph)
        self.rounds.meet(model, partial(self._share, config, world, folder))

    def _share(self, config: Config, world: World, folder: Path) -> None:
        """Plan for all, and put their arrays into one block. Collective."""
        members = [self._members[model] for model in sorted(self._members)]
        graphs = [member.graph for member in members]
        forward = [_place(graph, LOSS) + 1 for graph in graphs]
        make = place_of(config, folder)
        speed = measured(make)
        plan = partial(interleave, graphs, forward, self._budget, speed)
        self.order = world.comm.on_first_rank(lambda: plan()[0])
        error: NeocpuError | None = None
        try:
            schedule = plan((self.order,))[1]
            away = make(sizes_away(schedule))
        except NeocpuError as problem:
            error = problem
        agree(world.comm, error, self._budget)
        holders = {
            name_of(model, name): holder
            for model, member in enumerate(members)
            for name, holder in holders_of(member.graph, member.lifetimes, model).items()
        }
        numbered = [holders[activation.name] for activation in schedule.graph.activations]
        block = ActivationBlock(schedule, numbered, away, len(members), self._spoil)
        operations = [operation.name for operation in schedule.graph.operations]
        for model, member in enumerate(members):
            prefix = name_of(model, "")
            places = {
                name.removeprefix(prefix): at
                for at, name in enumerate(operations)
                if name.startswith(prefix)
            }
            attach(member.world, Activations(block, model, places, self.rounds))
        self.rounds.order = [int(name.partition(":")[0]) for name in operations]
        self.block = block


def _place(graph: StepGraph, name: str) -> int:
    """The number of an operation."""
    return next(at for at, operation in enumerate(graph.operations) if operation.name == name)
