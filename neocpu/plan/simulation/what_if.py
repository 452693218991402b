"""What is different from the config and the machine file? Keys of `--set` that only we know.

    machine.QUANTITY        2x, or a number: see machines/scaling.py (machine.nic=2x)
    wires.forward           format of pooled vectors that travel; also .backward, .partial, .dense
    work.pooling            mean lookups per bag of all tables
    work.pooling.PATTERN    or of those whose names match
    work.precision          of the dense products
    work.dense_features     numbers of a sample besides its lookups
    work.samples_per_rank   of a step; without it the config's training.batch_size over the ranks
    cache.share             part of all rows that fast memory holds, instead of what fits
    readers.per_rank        samples a second that arrive for a rank
    readers.per_node        or for all ranks of a node
    jitter.variation        standard deviation of a stage's seconds over their mean
    jitter.slow_ranks       ranks whose own stages take jitter.slow_by times as long
    faults.node_hours       from fault to fault of a node; with it
    faults.save_s           seconds that a checkpoint holds the run up, and
    faults.restart_s        seconds from a fault until the run goes on
    cost.node_hour          price of a node and hour, and
    cost.node_watts         watts of a node: a million samples cost so much

All other keys are the config's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neocpu.core.errors import ConfigError
from neocpu.core.records import matched
from neocpu.plan.cost.work import WIRE_NAMES, Wires
from neocpu.plan.machines.machine import PRECISIONS, Machine
from neocpu.plan.machines.machine_file import loads
from neocpu.plan.machines.machine_file import text as machine_text
from neocpu.plan.machines.scaling import changed

WIRES = ("forward", "backward", "partial", "dense")


@dataclass(frozen=True)
class WhatIf:
    """What keys said.

    machine : (key, text) pairs. config : overrides that are the config's. wires : (direction,
    format) pairs. pooling_of : (pattern of tables, lookups per bag) pairs. 0 or "": not said.
    """

    machine: tuple[tuple[str, str], ...] = ()
    config: tuple[str, ...] = ()
    wires: tuple[tuple[str, str], ...] = ()
    pooling: float = 0.0
    pooling_of: tuple[tuple[str, float], ...] = ()
    precision: str = ""
    dense_features: int = 0
    samples_per_rank: int = 0
    cache_share: float | None = None
    readers_per_rank: float = 0.0
    readers_per_node: float = 0.0
    jitter_variation: float = 0.0
    jitter_slow_ranks: int = 0
    jitter_slow_by: float = 1.0
    faults_node_hours: float = 0.0
    faults_save_s: float = 0.0
    faults_restart_s: float = 0.0
    cost_node_hour: float = 0.0
    cost_node_watts: float = 0.0

    def of_pooling(self, names: Sequence[str], known: Mapping[str, float]) -> dict[str, float]:
        """Lookups per bag of tables; known : those of the data, by table.

        Raises ConfigError for a pattern that matches no table.
        """
        rules = {pattern: f"{lookups}" for pattern, lookups in self.pooling_of}
        matches = matched("work.pooling", names, rules, "")
        of_all = dict.fromkeys(names, self.pooling) if self.pooling else dict(known)
        return of_all | {name: float(text) for name, text in zip(names, matches) if text}

    def of_wires(self, wires: Wires) -> Wires:
        """The config's wires with their changes."""
        formats: dict[str, Any] = dict(self.wires)
        return replace(wires, **formats)

    def of_machine(self, machine: Machine) -> Machine:
        """The machine with its changes; ConfigError for what a machine cannot be."""
        for key, text in self.machine:
            machine = changed(machine, key, text)
        # read back, so that it is checked as a file is
        return loads(machine_text(machine), "--set machine") if self.machine else machine


NO_CHANGES = WhatIf()
OF_TABLES = "work.pooling."
# Sections of keys, and their fields, that are no part of the step that a plan is priced by.
SIMULATED = ("cache", "readers", "jitter", "faults", "cost")
ONLY_SIMULATED = tuple(name for name in vars(NO_CHANGES) if name.startswith(SIMULATED))


def changes(overrides: Sequence[str]) -> WhatIf:
    """The changes of `key=value` texts; ConfigError names the key and what is allowed."""
    result = WhatIf()
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        text = text.strip().strip("\"'")
        if not equals:
            raise ConfigError(f"--set {override}: expected KEY=VALUE")
        section, _, name = key.partition(".")
        if section == "machine":
            result = replace(result, machine=(*result.machine, (name, text)))
        # the block is a key of the config, and changes what a plan may cut
        elif section == "wires" and name != "block":
            if name not in WIRES:
                known = ", wires.".join((*WIRES, "block"))
                raise ConfigError(f"--set {key}: unknown; choose one of wires.{known}")
            pair = (name, _one_of(key, text, WIRE_NAMES))
            result = replace(result, wires=(*result.wires, pair))
        elif key in _NUMBERS:
            attribute, kind, least = _NUMBERS[key]
            number: Any = _number(key, text, kind, least)
            result = replace(result, **{attribute: number})
        elif key.startswith(OF_TABLES):
            lookups = _number(key, text, float, _NUMBERS["work.pooling"][2])
            pair_of = (key.removeprefix(OF_TABLES), lookups)
            result = replace(result, pooling_of=(*result.pooling_of, pair_of))
        elif key == "work.precision":
            result = replace(result, precision=_one_of(key, text, PRECISIONS))
        # other keys of readers are the config's
        elif section in ("work", *SIMULATED) and section != "readers":
            known = ", ".join([*_NUMBERS, "work.precision"])
            raise ConfigError(f"--set {key}: unknown; keys of the simulator are {known}")
        else:
            result = replace(result, config=(*result.config, override))
    return result


# key -> field of WhatIf, type, least value
_NUMBERS: dict[str, tuple[str, type, float]] = {
    "work.pooling": ("pooling", float, 0.001),
    "work.dense_features": ("dense_features", int, 1),
    "work.samples_per_rank": ("samples_per_rank", int, 1),
    "cache.share": ("cache_share", float, 0.0),
    "readers.per_rank": ("readers_per_rank", float, 0.0),
    "readers.per_node": ("readers_per_node", float, 0.0),
    "jitter.variation": ("jitter_variation", float, 0.0),
    "jitter.slow_ranks": ("jitter_slow_ranks", int, 0),
    "jitter.slow_by": ("jitter_slow_by", float, 0.001),
    "faults.node_hours": ("faults_node_hours", float, 0.001),
    "faults.save_s": ("faults_save_s", float, 0.0),
    "faults.restart_s": ("faults_restart_s", float, 0.0),
    "cost.node_hour": ("cost_node_hour", float, 0.0),
    "cost.node_watts": ("cost_node_watts", float, 0.0),
}


def _one_of(key: str, text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise ConfigError(f"--set {key}: {text!r} is not allowed; one of {', '.join(allowed)}")
    return text


def _number(key: str, text: str, kind: type, least: float) -> float:
    try:
        value: float = kind(text)
    except ValueError:
        raise ConfigError(f"--set {key}: {text!r} is not a number") from None
    most = 1.0 if key == "cache.share" else float("inf")
    if not least <= value <= most or value == float("inf"):
        limit = f"from {least:g} to {most:g}" if most == 1.0 else f"at least {least:g}"
        raise ConfigError(f"--set {key}: {text} must be {limit}")
    return value
