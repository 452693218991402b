"""In which order does a training step go? Its stages, what each needs, and the stream it runs on.

The step of Neo (ISCA 2022) as `docs/design.md` draws it, as data. A stage waits for the stages that
it needs, of its own batch and of earlier ones, and for the stage before it in its queue. Queues are
the streams of a rank; the exchanges of inputs, of pooled vectors and of dense gradients have a
queue each, as separate communicators would, and share the links below them.

    reader    read
    host          copy       prefetch
    input             input
    compute                           lookup bottom top | upper' lower' bottom' update  dense
    exchange                                 output                  gradient   replicas
    dense                                                     upper_sums lower_sums bottom_sums

The backward pass of the top layers is in two halves, so that sums of dense gradients start while
it runs, as with buckets.
"""

from collections.abc import Sequence
from typing import NamedTuple

LOCAL = "local"
EXCHANGE = "exchange"


class Stage(NamedTuple):
    """A part of a step.

    queue : its stream; stages of one queue run one after the other, in the order of the schedule.
    kind : LOCAL, each rank for itself, or EXCHANGE, all ranks together.
    needs : stages of the same batch. earlier : (stage, batches before) pairs.
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
    "dense": "network: dense",
}

# The order within a queue is the order here. Readers and copies are at most two batches ahead; the
# inputs of a batch travel once the pooled vectors of the batch before have.
STEP: tuple[Stage, ...] = (
    Stage("read", "reader", LOCAL, (), (("copy", 2),)),
    Stage("copy", "host", LOCAL, ("read",), (("lookup", 2),)),
    Stage("input", "input", EXCHANGE, ("copy",), (("output", 1),)),
    Stage("prefetch", "host", LOCAL, ("input",), (("lookup", 1),)),
    Stage("lookup", "compute", LOCAL, ("input", "prefetch"), (("update", 1), ("replicas", 1))),
    Stage("output", "exchange", EXCHANGE, ("lookup",)),
    Stage("bottom_forward", "compute", LOCAL, ("copy",), (("dense_update", 1),)),
    Stage("top_forward", "compute", LOCAL, ("output", "bottom_forward")),
    Stage("upper_backward", "compute", LOCAL, ("top_forward",)),
    Stage("upper_sums", "dense", EXCHANGE, ("upper_backward",)),
    Stage("lower_backward", "compute", LOCAL, ("upper_backward",)),
    Stage("gradient", "exchange", EXCHANGE, ("lower_backward",)),
    Stage("lower_sums", "dense", EXCHANGE, ("lower_backward",)),
    Stage("bottom_backward", "compute", LOCAL, ("lower_backward",)),
    Stage("bottom_sums", "dense", EXCHANGE, ("bottom_backward",)),
    Stage("update", "compute", LOCAL, ("gradient",)),
    Stage("replicas", "exchange", EXCHANGE, ("update",)),
    Stage("dense_update", "compute", LOCAL, ("upper_sums", "lower_sums", "bottom_sums")),
)
# Stages that run ahead of their step where the inputs of coming batches are pipelined.
AHEAD = ("read", "copy", "input")
PIPELINES = ("off", "input", "full")


def pipelined(pipeline: str, stages: Sequence[Stage] = STEP) -> tuple[Stage, ...]:
    """The schedule under a kind of pipelining, one of PIPELINES.

    off : every stage waits for the one before it, in the order of the schedule.
    input : inter-batch; inputs of the next batch are read, copied and exchanged during a step,
        the other stages go one after the other.
    full : also intra-batch; a stage waits for what it needs, nothing else.
    """
    if pipeline == "full":
        return tuple(stages)
    ahead = AHEAD if pipeline == "input" else ()
    serial = [stage for stage in stages if stage.name not in ahead]
    chained: dict[str, Stage] = {}
    for place, stage in enumerate(serial):
        # the first waits for the last of the step before
        before = (serial[place - 1].name,) if place else ()
        previous = () if place else ((serial[-1].name, 1),)
        chained[stage.name] = stage._replace(
            needs=tuple(dict.fromkeys((*stage.needs, *before))),
            earlier=(*stage.earlier, *previous),
        )
    return tuple(chained.get(stage.name, stage) for stage in stages)


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
