"""How is a machine written down? As TOML that a person can read, and change.

`docs/zionex.md` has the format. Presets are found by name (`neocpu/core/presets.py`);
`this-machine` is the file that `neocpu calibrate` wrote for this host.
"""

import json
import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from neocpu.core import presets
from neocpu.core.errors import ConfigError, told_as
from neocpu.core.records import Limits, Reader, toml_tree
from neocpu.core.targets import whole_file
from neocpu.kernels.compile.trust import base_folder
from neocpu.plan.machines.curves import fault
from neocpu.plan.machines.fabric import FabricLevel
from neocpu.plan.machines.machine import (
    COLUMNS,
    FABRIC,
    LINK_CLASSES,
    MEMORIES,
    ComputePeak,
    EmbeddingRates,
    LinkPeak,
    Machine,
    MemoryPeak,
    MoveRates,
    PhaseCosts,
    ProductRates,
    Rates,
    TransferRates,
)
from neocpu.plan.machines.unequal import read_unequal

THIS_MACHINE = "this-machine"

# keys above all sections
_TOP: dict[str, type] = {"name": str, "origin": str, "nodes": int, "ranks_per_node": int}
_SECTIONS: dict[str, type] = {
    **dict.fromkeys(MEMORIES, MemoryPeak),
    **dict.fromkeys(LINK_CLASSES, LinkPeak),
    **dict.fromkeys(FABRIC, FabricLevel),
    "compute": ComputePeak,
}
_CURVES: dict[str, type[Rates]] = {
    "products": ProductRates,
    "embeddings": EmbeddingRates,
    "transfers": TransferRates,
    "moves": MoveRates,
}
_LIMITS = {"nodes": Limits(least=1), "ranks_per_node": Limits(least=1)}


def this_machine_path() -> Path:
    """The file of this host, which need not exist: machines/HOST.toml beside the compiled kernels.

    The folder may be shared by hosts (`NEOCPU_CACHE_DIR`), so each has a file of its own name.
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "-", platform.node()).strip(".") or "host"
    return base_folder() / "machines" / f"{host}.toml"


def preset_names() -> list[str]:
    """Names of the machines that come with the package (`neocpu/core/presets.py`)."""
    return presets.names(presets.MACHINES)


def find(machine: str | Path) -> Path:
    """The file of a machine: a path, the name of a preset, or "this-machine".

    Raises ConfigError where there is no such file.
    """
    path = Path(machine)
    if path.suffix == ".toml" or path.parent != Path():
        return path
    if str(machine) == THIS_MACHINE:
        path = this_machine_path()
        if not path.exists():
            raise ConfigError(
                f"{THIS_MACHINE}: {path} does not exist; `neocpu calibrate` measures this machine "
                "and writes it"
            )
        return path
    preset = presets.path_of(presets.MACHINES, str(machine))
    if preset is None:
        known = ", ".join([*preset_names(), THIS_MACHINE])
        raise ConfigError(
            f"no machine {str(machine)!r}; choose one of {known}, or give the path of a .toml file"
        )
    return preset


def load(machine: str | Path) -> Machine:
    """Read and check a machine, by name or path.

    Raises ConfigError naming the file, the key, its value, and what is allowed.
    """
    path = find(machine)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it is not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the machine: {error.strerror}") from error
    return loads(text, str(path))


def loads(text: str, source: str = "machine") -> Machine:
    """A machine from TOML text; `source` is what messages call it."""
    try:
        tree = toml_tree(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    reader = Reader(source, {}, _LIMITS)
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if key in _TOP:
            values[key] = reader.value(_TOP[key], value, key)
        elif key in _SECTIONS:
            values[key] = reader.record(_SECTIONS[key], value, key)
        elif key in _CURVES:
            values[key] = tuple(_curves(reader, key, value))
        elif key == "phases":
            values[key] = tuple(_phases(reader, value))
        elif key == "unequal":
            values[key] = read_unequal(reader, value)
        else:
            raise reader.unknown(key, [*_TOP, *_SECTIONS, *_CURVES, "phases", "unequal"])
    machine = Machine(**values)
    _check_together(reader, machine)
    return machine


def _curves(reader: Reader, kind: str, entries: object) -> list[Rates]:
    """The curves of one kind, each with points that make a curve."""
    if not isinstance(entries, list):
        raise reader.wrong(kind, f"expected a list of tables [[{kind}]], got {entries!r}")
    record_type = _CURVES[kind]
    sizes_name, rates_name = COLUMNS[record_type]
    records: list[Rates] = []
    for i, entry in enumerate(entries):
        key = f"{kind}[{i}]"
        record = reader.record(record_type, entry, key)
        sizes = getattr(record, sizes_name)
        rates = getattr(record, rates_name)
        if reason := fault(sizes, rates):
            raise reader.wrong(
                f"{key}.{sizes_name}", f"{list(sizes)} with {rates_name} {list(rates)}: {reason}"
            )
        identity = _identity(record)
        if any(_identity(other) == identity for other in records):
            raise reader.wrong(key, "a curve for the same thing is above: " + _in_words(record))
        records.append(record)
    return records


def _phases(reader: Reader, entries: object) -> list[PhaseCosts]:
    """Costs of phases, each phase and number of ranks once."""
    if not isinstance(entries, list):
        raise reader.wrong("phases", f"expected a list of tables [[phases]], got {entries!r}")
    records: list[PhaseCosts] = []
    for i, entry in enumerate(entries):
        key = f"phases[{i}]"
        record = reader.record(PhaseCosts, entry, key)
        if any((r.phase, r.ranks) == (record.phase, record.ranks) for r in records):
            raise reader.wrong(key, f"phase {record.phase}, ranks {record.ranks} is above already")
        records.append(record)
    return records


def _identity(record: Rates) -> tuple[object, ...]:
    """What a curve is of: all fields but its two columns."""
    columns = COLUMNS[type(record)]
    return tuple(getattr(record, spec.name) for spec in fields(record) if spec.name not in columns)


def _in_words(record: Rates) -> str:
    columns = COLUMNS[type(record)]
    names = [spec.name for spec in fields(record) if spec.name not in columns]
    return ", ".join(f"{name} {getattr(record, name)}" for name in names)


def _check_together(reader: Reader, machine: Machine) -> None:
    """Check what depends on several keys."""
    if not machine.name:
        raise reader.wrong("name", 'a machine needs a name, for example name = "my-cluster"')
    for memory in MEMORIES:
        peak = getattr(machine, memory)
        if peak.capacity_bytes and not peak.bandwidth_bytes_per_s:
            raise reader.wrong(
                f"{memory}.bandwidth_bytes_per_s", "0, but a memory with capacity needs a bandwidth"
            )
    if not machine.hbm.capacity_bytes and not machine.ddr.capacity_bytes:
        raise reader.wrong(
            "hbm.capacity_bytes", "0, as is ddr.capacity_bytes: one of them must hold the tables"
        )
    for link, count, others in (
        ("inside_node", machine.ranks_per_node, "ranks_per_node"),
        ("between_nodes", machine.nodes, "nodes"),
    ):
        if count > 1 and not getattr(machine, link).bandwidth_bytes_per_s:
            raise reader.wrong(
                f"{link}.bandwidth_bytes_per_s", f"0, but {others} is {count}: they need a link"
            )
    for level in FABRIC:
        ratio = getattr(machine, level).oversubscription
        if ratio < 1:
            raise reader.wrong(f"{level}.oversubscription", f"{ratio} is too small; at least 1")
    if not machine.compute.fp32_flops_per_s:
        raise reader.wrong("compute.fp32_flops_per_s", "0, but every rank can add fp32 numbers")


# ---- writing ----


def text(
    machine: Machine, heading: Sequence[str] = (), notes: Mapping[str, str] | None = None
) -> str:
    """A machine as TOML, which `loads` reads back as an equal one.

    heading : lines of comment at the top. notes : comments by section ("hbm") or key
        ("hbm.capacity_bytes").
    """
    notes = notes or {}
    lines = [f"# {line}".rstrip() for line in heading]
    lines += ["", *(f"{key} = {_literal(getattr(machine, key))}" for key in _TOP)]
    for section in _SECTIONS:
        lines += ["", *_noted(f"[{section}]", notes.get(section, ""))]
        record = getattr(machine, section)
        for spec in fields(record):
            line = f"{spec.name} = {_literal(getattr(record, spec.name))}"
            lines += _noted(line, notes.get(f"{section}.{spec.name}", ""))
    for kind in (*_CURVES, "phases", "unequal"):
        for record in getattr(machine, kind):
            lines += ["", f"[[{kind}]]"]
            lines += [
                f"{spec.name} = {_literal(getattr(record, spec.name))}" for spec in fields(record)
            ]
    return "\n".join(lines).lstrip("\n") + "\n"


def _noted(line: str, note: str) -> list[str]:
    return [f"{line}  # {note}" if note else line]


def _literal(value: str | float | tuple[float, ...]) -> str:
    """A value as TOML writes it."""
    if isinstance(value, str):
        # a basic string of TOML is one of JSON, but for the control character that JSON lets
        # through
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}"
    # digits grouped for people; beyond that an exponent is easier to read
    if value.is_integer() and value < 1e9:
        return f"{int(value):_}"
    # the shortest text that reads back as the same number
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def check_writable(path: Path) -> None:
    """Raise ConfigError if a file of this name could not be written, before it is worth a lot."""
    with told_as(ConfigError, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def save(path: Path, content: str | bytes) -> None:
    """Write a machine's file so that readers see all of it or nothing. Raises ConfigError."""
    check_writable(path)
    with told_as(ConfigError, path), whole_file(path) as draft:
        draft.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
