"""What bounds a step? Its seconds by the part of the machine that they are spent on."""

from neocpu.plan.cost.seconds import StepSeconds
from neocpu.plan.search.answer import Answer

EXCHANGES = ("input", "output", "gradient")
MEMORY_WORK = ("lookup", "update")
NAMES = {
    "between_nodes": "links between nodes",
    "inside_node": "links inside nodes",
    "own": "copies within a rank",
    "hbm": "HBM bandwidth",
    "ddr": "DDR bandwidth",
    "below": "memories below the fast one",
    "compute": "compute",
    "latency": "latency of exchanges",
    "calls": "calls of a step",
}


def bounding(answer: Answer) -> dict[str, float]:
    """Seconds of a step by what they are spent on, most first.

    Of the project's own model by parts of the machine, of others by their phases. Where all ranks
    wait after every phase, the slowest rank of each counts, else the slowest of all.
    """
    model = answer.model
    if model.synchronised:
        slowest = answer.loads.max(axis=0)
    else:
        slowest = answer.loads[answer.loads.sum(axis=1).argmax()]
    by_phase = dict(zip(model.phases, slowest.tolist()))
    if isinstance(model, StepSeconds):
        seconds = _by_part(model, by_phase)
    else:
        seconds = by_phase | {"the same for all plans": model.fixed_seconds}
    order = sorted(seconds, key=lambda name: (-seconds[name], name))
    return {NAMES.get(name, name): seconds[name] for name in order if seconds[name] > 0}


def limiting_link(model: StepSeconds) -> str:
    """The link class that exchanges of all ranks wait for; of one rank alone there is none."""
    if model.layout.ranks == 1:
        return "own"
    inside, between = model.links.shares
    cost = model.links.byte_seconds
    if between * cost["between"] > inside * cost["inside"]:
        return "between_nodes"
    return "inside_node" if inside else "between_nodes"


def _by_part(model: StepSeconds, by_phase: dict[str, float]) -> dict[str, float]:
    link = limiting_link(model)
    memory = model.machine.fast
    dense_link = "between_nodes" if model.layout.everybody.nodes > 1 else "inside_node"
    copies_link = link
    if model.layout.replica_groups > 1:
        copies_link = "between_nodes" if model.layout.copies.nodes > 1 else "inside_node"
    fixed = model.fixed
    seconds = dict.fromkeys(NAMES, 0.0)
    seconds[link] += sum(by_phase[phase] for phase in EXCHANGES)
    seconds[copies_link] += by_phase["replicas"]
    seconds[memory] += sum(by_phase[phase] for phase in MEMORY_WORK)
    seconds["below"] += by_phase["prefetch"]
    seconds["compute"] += fixed["dense_forward"] + fixed["dense_backward"]
    seconds[dense_link] += fixed["dense_exchange"]
    seconds[memory] += fixed["dense_update"]
    seconds["latency"] += fixed["latency"]
    # of a machine on which our own step was measured
    seconds["calls"] += fixed["calls"]
    return seconds
