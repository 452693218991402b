"""How do the activations of a run come to keep to `memory.activations`? Its first step is rehearsed
with a few samples, a schedule is chosen, and the model's arrays are put into one block.
"""

from pathlib import Path

from neocpu.core.errors import NeocpuError, TrainingError
from neocpu.core.trees import rank_leaves
from neocpu.parallel.transport.comm import Comm
from neocpu.plan.activations.choose import choose, too_small
from neocpu.plan.activations.graph import StepGraph
from neocpu.plan.activations.schedule import ActivationSchedule
from neocpu.tables.storage.device import Device
from neocpu.train.activations.away import InFile, InMemory, MakeAway, measured
from neocpu.train.activations.block import ActivationBlock, Activations, Holder
from neocpu.train.activations.lifetimes import Lifetimes
from neocpu.train.activations.rehearsal import rehearse
from neocpu.train.config.config import Config
from neocpu.train.step.world import World


def keep_within(config: Config, world: World, folder: Path, spoil: bool = False) -> None:
    """Keep the steps of a world to the config's budget. Collective.

    folder : of files. spoil : as of `ActivationBlock`.

    Raises TrainingError where the budget is too small, StorageError where the folder is, on all
    ranks.
    """
    error: NeocpuError | None = None
    try:
        # a rank without samples has nothing to keep
        if samples := most_samples(config, world.comm):
            _keep(config, world, folder, samples, spoil)
    except NeocpuError as problem:
        error = problem
    agree(world.comm, error, config.memory.activations)


def agree(comm: Comm, error: NeocpuError | None, budget: int) -> None:
    """`comm.agree`, where a budget that is too small is told with what is enough for all ranks."""
    needed = error.least if isinstance(error, TrainingError) else 0
    if least := comm.largest(needed, what="activations"):
        error = too_small(least, budget)
    comm.agree(error)


def _keep(config: Config, world: World, folder: Path, samples: int, spoil: bool) -> None:
    lifetimes = Lifetimes(world.model, world.step.vectors)
    graph = rehearse(world.step, lifetimes, samples)
    make = place_of(config, folder)
    schedule = choose(graph, config.memory.activations, measured(make))
    holders = [*holders_of(graph, lifetimes).values()]
    block = ActivationBlock(schedule, holders, make(sizes_away(schedule)), spoil=spoil)
    operations = {operation.name: at for at, operation in enumerate(graph.operations)}
    attach(world, Activations(block, 0, operations))


def most_samples(config: Config, comm: Comm) -> int:
    """Samples of this rank in a batch, at most."""
    leaves = config.training.leaves
    first, end = rank_leaves(comm.rank, comm.size, leaves)
    return -(-(end - first) * config.training.batch_size // leaves)


def place_of(config: Config, folder: Path) -> MakeAway:
    """What makes the place for what is away."""
    memory = config.memory
    if memory.activations_in == "ddr":
        device = Device(memory.ddr_bandwidth)
        return lambda sizes: InMemory(sizes, device)
    device = Device(memory.ssd_bandwidth, memory.ssd_iops)
    return lambda sizes: InFile(sizes, device, folder)


def sizes_away(schedule: ActivationSchedule) -> dict[int, int]:
    """Bytes of the activations that leave, by number."""
    activations = enumerate(schedule.graph.activations)
    return {number: x.bytes for number, x in activations if schedule.moves(number)}


def holders_of(graph: StepGraph, lifetimes: Lifetimes, model: int = 0) -> dict[str, Holder]:
    """Who has the activations of a model, by name, in the order of its graph."""
    remakes = lifetimes.remakes
    return {
        x.name: Holder(model, lifetimes.buffers[x.name], remakes[x.name].work if x.remake else None)
        for x in graph.activations
    }


def attach(world: World, activations: Activations) -> None:
    """Let the steps of a world tell what they do."""
    world.step.activations = activations
    world.model.between.after = activations.after
