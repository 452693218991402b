"""In which order does a training step go? Its stages, what each needs, and the stream it runs on.

The step of Neo (ISCA 2022) as `docs/design.md` draws it, as data. The simulator prices it
(`engine.py`), and `train/step/pipeline.py` runs it. A stage waits for the stages that it needs, of
its own batch and of earlier ones, and for the stage before it in its queue. Queues are the streams
of a rank; the exchanges of inputs, of pooled vectors, of replicated tables and of dense gradients
have a queue each, as separate communicators have, and share the links below them.

    reader    read
    host       copy  index prefetch
    input        input
    compute            lookup bottom top | upper' lower' merge bottom' update apply dense
    exchange                 output               gradient
    replicas                                               replicas
    dense                                       upper_sums           lower_sums

Where ranks share the work on blocks of dense parameters (Shampoo, Muon), further stages follow: the
updates upper and lower end with directions of a rank's own blocks, which all ranks gather, and all
take their steps along them.

    compute            ... upper_update lower_update            upper_step lower_step
    dense                               upper_directions lower_directions

The backward pass is in three parts: the top MLP but for its first layer (upper), that layer and the
interaction (lower), and the bottom MLP. Its weight gradients are two buckets, upper and the rest;
the sums of the first start while the pass goes on.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

LOCAL = "local"
EXCHANGE = "exchange"
NONE_AHEAD: Mapping[str, int] = MappingProxyType({})


class Stage(NamedTuple):
    """A part of a step.

    queue : its stream; stages of one queue run one after the other, in the order of the schedule.
    kind : LOCAL, each rank for itself, or EXCHANGE, all ranks together.
    needs : stages of the same batch.
    earlier : (stage, batches before) pairs.
    """

    name: str
    queue: str
    kind: str
    needs: tuple[str, ...] = ()
    earlier: tuple[tuple[str, int], ...] = ()


# Queue -> stream, as a trace and the report show it; the network's is chosen by the machine.
QUEUES = {
    "reader": "reader",
    "host": "host copy",
    "compute": "compute",
    "input": "network: inputs",
    "exchange": "network: pooled",
    "replicas": "network: replicas",
    "dense": "network: dense",
}

# The order within a queue is the order here. Readers and copies are at most two batches ahead; the
# inputs of a batch travel once the pooled vectors of the batch before have.
STEP: tuple[Stage, ...] = (
    Stage("read", "reader", LOCAL, (), (("copy", 2),)),
    Stage("copy", "host", LOCAL, ("read",), (("lookup", 2),)),
    Stage("input", "input", EXCHANGE, ("copy",), (("output", 1),)),
    Stage("index", "host", LOCAL, ("input",), (("lookup", 1),)),
    Stage("prefetch", "host", LOCAL, ("index",), (("lookup", 1),)),
    Stage("lookup", "compute", LOCAL, ("input", "prefetch"), (("update", 1), ("apply", 1))),
    Stage("output", "exchange", EXCHANGE, ("lookup",)),
    Stage("bottom_forward", "compute", LOCAL, ("copy",), (("lower_update", 1),)),
    Stage("top_forward", "compute", LOCAL, ("output", "bottom_forward"), (("upper_update", 1),)),
    Stage("upper_backward", "compute", LOCAL, ("top_forward",)),
    Stage("upper_sums", "dense", EXCHANGE, ("upper_backward",)),
    Stage("lower_backward", "compute", LOCAL, ("upper_backward",)),
    Stage("gradient", "exchange", EXCHANGE, ("lower_backward",)),
    Stage("merge", "compute", LOCAL, ("lower_backward",)),
    Stage("replicas", "replicas", EXCHANGE, ("merge",)),
    Stage("bottom_backward", "compute", LOCAL, ("lower_backward",)),
    Stage("lower_sums", "dense", EXCHANGE, ("bottom_backward",)),
    Stage("update", "compute", LOCAL, ("gradient",)),
    Stage("apply", "compute", LOCAL, ("replicas",)),
    Stage("upper_update", "compute", LOCAL, ("upper_sums",)),
    Stage("lower_update", "compute", LOCAL, ("lower_sums",)),
)
# Behind those of a step where ranks share blocks of dense parameters. The next batch computes after
# them, as one stream does.
DIRECTIONS: tuple[Stage, ...] = (
    Stage("upper_directions", "dense", EXCHANGE, ("upper_update",)),
    Stage("lower_directions", "dense", EXCHANGE, ("lower_update",)),
    Stage("upper_step", "compute", LOCAL, ("upper_directions",)),
    Stage("lower_step", "compute", LOCAL, ("lower_directions",)),
)
# Stages that run so many batches ahead of their step where the inputs of coming batches are
# pipelined.
AHEAD = {"read": 1, "copy": 1, "input": 1}
# Kind of pipelining -> stages that run ahead.
PIPELINES: dict[str, Mapping[str, int]] = {"off": NONE_AHEAD, "input": AHEAD, "full": AHEAD}


def pipelined(
    pipeline: str, stages: Sequence[Stage] = STEP, ahead: Mapping[str, int] = NONE_AHEAD
) -> tuple[Stage, ...]:
    """The schedule under a kind of pipelining, a name in PIPELINES.

    off : every stage waits for the one before it, in the order of the schedule.
    input : inter-batch; inputs of the next batch are read, copied and exchanged during a step,
        the other stages go one after the other.
    full : also intra-batch; a stage waits for what it needs, nothing else.
    ahead : batches by which stages run ahead in any case; what they need of earlier batches is
        that much further back.
    """
    early = {**PIPELINES[pipeline], **ahead}
    moved = [_moved(stage, early.get(stage.name, 0)) for stage in stages]
    if pipeline == "full":
        return tuple(moved)
    serial = [stage for stage in moved if not early.get(stage.name)]
    chained: dict[str, Stage] = {}
    for position, stage in enumerate(serial):
        # the first waits for the last of the step before
        before = (serial[position - 1].name,) if position else ()
        previous = () if position else ((serial[-1].name, 1),)
        chained[stage.name] = stage._replace(
            needs=tuple(dict.fromkeys((*stage.needs, *before))),
            earlier=(*stage.earlier, *previous),
        )
    return tuple(chained.get(stage.name, stage) for stage in moved)


def _moved(stage: Stage, batches: int) -> Stage:
    """The stage, running so many batches ahead of its step."""
    further = max(0, batches - AHEAD.get(stage.name, 0))
    earlier = tuple((name, distance + further) for name, distance in stage.earlier)
    return stage._replace(earlier=earlier)


def check(stages: Sequence[Stage]) -> None:
    """Raise ValueError unless stages need only stages above them, or of earlier batches."""
    above: set[str] = set()
    names = {stage.name for stage in stages}
    for stage in stages:
        if missing := set(stage.needs) - above:
            raise ValueError(f"stage {stage.name} needs {sorted(missing)}, which are not above it")
        for name, distance in stage.earlier:
            if name not in names or distance < 1:
                raise ValueError(f"stage {stage.name}: no stage {name!r} {distance} batches before")
        above.add(stage.name)
