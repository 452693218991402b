"""What if a part of the machine were faster? The same machine with one number multiplied."""

from dataclasses import fields, replace
from typing import Any

from neocpu.core.errors import ConfigError
from neocpu.plan.machines.machine import (
    COLUMNS,
    EMBEDDING_WORK,
    FABRIC,
    LINK_CLASSES,
    MEMORIES,
    Machine,
)

# short names of what is often scaled
ALIASES = {
    "nic": "between_nodes.bandwidth",
    "nvlink": "inside_node.bandwidth",
    "pcie": "host_device.bandwidth",
}
COUNTS = ("nodes", "ranks_per_node")


def scaled(machine: Machine, key: str, factor: float) -> Machine:
    """The machine with one quantity multiplied, and the curves that hang on it.

    key : `section.quantity`, with or without the unit ("between_nodes.bandwidth",
        "compute.fp32_flops", "hbm.capacity"), `nodes`, `ranks_per_node`, or one of ALIASES.

    Curves of a link go as latency + bytes / bandwidth does: f times the bandwidth is f times the
    rate at f times the size, f times the latency the same rate at f times the size. Curves of moves
    go as min(operations x bytes, bandwidth): f times the bandwidth is f times the rate at f times
    the size, f times the operations the same rate at 1/f of the size. Rates of products and
    embeddings are multiplied.

    Costs of phases are dropped: nobody knows what they would be.

    Raises ConfigError for a key that does not exist, a factor that is not above 0, and numbers of
    nodes or ranks that would not be whole.
    """
    # they were measured on the machine as it is
    machine = replace(machine, phases=())
    if not 0 < factor < float("inf"):
        raise ConfigError(f"machine.{key}: the factor {factor} must be a number above 0")
    if key in COUNTS:
        count = _whole(key, getattr(machine, key) * factor)
        return _with(machine, {key: count})
    section, name = _quantity(machine, key)
    record = getattr(machine, section)
    value = getattr(record, name) * factor
    value = _whole(key, value) if type(getattr(record, name)) is int else value
    values = {name: value}
    if name == "latency_s" and section in LINK_CLASSES:
        # what a message takes to start goes with what an exchange does
        values["message_s"] = record.message_s * factor
    changed = _with(machine, {section: replace(record, **values)})
    return _scaled_curves(changed, section, name, factor)


def changed(machine: Machine, key: str, text: str) -> Machine:
    """The machine with one quantity multiplied ("2x") or set ("4"), and the curves that hang on it.

    key : as for `scaled`. A quantity that was 0 has no curves: it is only set.

    Raises ConfigError as `scaled` does, and for a text that is neither.
    """
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        raise ConfigError(
            f"machine.{key}: {text!r} is neither a factor like 2x nor a number like 4"
        ) from None
    if text.endswith("x"):
        return scaled(machine, key, value)
    if not 0 <= value < float("inf"):
        raise ConfigError(f"machine.{key}: {text} must be a number, at least 0")
    if key in COUNTS:
        return _with(machine, {key: _whole(key, value)})
    section, name = _quantity(machine, key)
    record = getattr(machine, section)
    current = getattr(record, name)
    if type(current) is int and value != int(value):
        raise ConfigError(f"machine.{key}: {text} is not a whole number")
    if current and value > 0:
        return scaled(machine, key, value / current)
    number = int(value) if type(current) is int else value
    return _with(machine, {section: replace(record, **{name: number})})


def _quantity(machine: Machine, key: str) -> tuple[str, str]:
    """(section, name of its field) of a key; ConfigError where there is none."""
    section, _, quantity = ALIASES.get(key, key).partition(".")
    sections = (*MEMORIES, *LINK_CLASSES, *FABRIC, "compute")
    if section not in sections:
        known = ", ".join((*sections, *COUNTS, *ALIASES))
        raise ConfigError(f"machine.{key}: no such quantity; the parts are {known}")
    names = [spec.name for spec in fields(getattr(machine, section)) if spec.name != "shared"]
    name = next((name for name in names if quantity in (name, _without_unit(name))), "")
    if not name:
        short = ", ".join(map(_without_unit, names))
        raise ConfigError(f"machine.{key}: {section} has no {quantity!r}; it has {short}")
    return section, name


def _whole(key: str, value: float) -> int:
    """A number of nodes or ranks; ConfigError unless it is whole and above 0. Bytes are rounded."""
    if key.endswith(("capacity", "capacity_bytes")):
        return round(value)
    if value < 1 or value != int(value):
        raise ConfigError(f"machine.{key}: {value:g} is not a whole number above 0")
    return int(value)


def _without_unit(name: str) -> str:
    """The short name of a quantity: bandwidth_bytes_per_s -> bandwidth."""
    for unit in ("_bytes_per_s", "_per_s", "_bytes", "_s"):
        if name.endswith(unit):
            return name.removesuffix(unit)
    return name


def _scaled_curves(machine: Machine, section: str, name: str, factor: float) -> Machine:
    """The machine with the curves that hang on `section.name` scaled too."""
    if section in LINK_CLASSES:
        rate = factor if name == "bandwidth_bytes_per_s" else 1.0
        return _with_curves(machine, "transfers", "link", section, factor, rate)
    if section == "compute" and name != "launch_s":
        precision = name.removesuffix("_flops_per_s")
        return _with_curves(machine, "products", "precision", precision, 1.0, factor)
    if section in MEMORIES and name == "operations_per_s":
        return _with_curves(machine, "moves", "memory", section, 1.0 / factor, 1.0)
    if section in MEMORIES and name == "bandwidth_bytes_per_s":
        machine = _with_curves(machine, "moves", "memory", section, factor, factor)
        # lookups and updates run at the speed of the memory that holds the tables
        if section == machine.fast:
            for work in EMBEDDING_WORK:
                machine = _with_curves(machine, "embeddings", "work", work, 1.0, factor)
    return machine


def _with_curves(
    machine: Machine, kind: str, key: str, value: str, sizes: float, rates: float
) -> Machine:
    """The machine with the curves of one kind whose `key` is `value` stretched."""
    curves = []
    for record in getattr(machine, kind):
        if getattr(record, key) == value:
            # f times the bandwidth reaches the same part of its peak at f times the size
            curve = record.curve.stretched(sizes, rates)
            columns = COLUMNS[type(record)]
            record = replace(record, **dict(zip(columns, (curve.sizes, curve.rates))))
        curves.append(record)
    return _with(machine, {kind: tuple(curves)})


def _with(machine: Machine, values: dict[str, Any]) -> Machine:
    return replace(machine, **values)
