"""How long would a run's traffic take on the machine that `parallel.machine` names?

Reckoned when the run ends, from what was counted (`plan/machines/traffic_time.py`); it decides
nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from neocpu.core.errors import ConfigError
from neocpu.core.types import JsonObject
from neocpu.parallel.transport.comm import Comm

if TYPE_CHECKING:
    from neocpu.plan.machines.machine import Machine


def load_machine(name: str, comm: Comm) -> "Machine | None":
    """The machine of `parallel.machine`, on rank 0; None on others. Collective.

    Raises ConfigError on every rank where there is no such machine, or its file is wrong.
    """
    from neocpu.plan.machines import machine_file

    machine = None
    with comm.agreeing():
        try:
            if comm.rank == 0:
                machine = machine_file.load(name)
        except ConfigError as problem:
            raise ConfigError(f"parallel.machine: {problem}") from problem
    return machine


def report_on_machine(
    machine: "Machine", states: Sequence[JsonObject], ranks_per_node: int
) -> dict[str, object]:
    """`machine` of a run's summary: name, size, and each collective's time there and here.

    states : of each rank, what `Comm.traffic_of_ranks` says. `waited_seconds` is the time here in
    which the rank that waited longest started and awaited a collective, for slower ranks too.
    """
    from neocpu.plan.machines.traffic_time import traffic_time

    times = traffic_time(machine, [state["sent"] for state in states], ranks_per_node)
    collectives = {}
    for verb, time in times.items():
        # the machine's time is that of its slowest rank
        waited = max(state["waited"].get(verb, 0.0) for state in states)
        collectives[verb] = {**time.to_dict(), "waited_seconds": waited}
    return {
        "name": machine.name,
        "nodes": machine.nodes,
        "ranks_per_node": machine.ranks_per_node,
        "collectives": collectives,
    }
