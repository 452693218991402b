"""What is a table kind? A way to keep the rows of one logical table in ordinary physical ones.

A kind says, in one file: its keys in the config, which physical tables there are and how their
rows start, which row of each stands for a row of the logical table (`tables/specs/specs.py`),
and which operation makes the logical row of the physical ones (`train/model/operations/`, with its
adjoint). Everything else sees ordinary tables. Nothing here needs Numba or MPI.

Read `hash.py` first, then `qr.py`: formula, initial values and source at the top; the keys; then
`expand`, which makes the tables; checks of keys last. docs/kinds.md compares all kinds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import NamedTuple

from neocpu.core.errors import ConfigError
from neocpu.tables.specs.compositions import Composition, Expanded, LogicalTable, whole
from neocpu.tables.specs.specs import TableSpec, TableSpecs


class TableKind(NamedTuple):
    """A table kind.

    keys : the record of its keys in the config, with their defaults.
    expand : all tables of the kind, in the order of the config, to physical tables.

    Raises ConfigError for what does not fit.
    """

    keys: type
    expand: Callable[[Sequence[LogicalTable]], Sequence[Expanded]]


FULL = "full"
# name -> module, record of its keys; imported where a table has keys of kinds or is of one
KINDS = {
    "hash": ("neocpu.tables.kinds.hash", "HashKeys"),
    "qr": ("neocpu.tables.kinds.qr", "QrKeys"),
    "cafe": ("neocpu.tables.kinds.cafe", "CafeKeys"),
    "md": ("neocpu.tables.kinds.md", "MdKeys"),
    "unified": ("neocpu.tables.kinds.unified", "UnifiedKeys"),
    "tt": ("neocpu.tables.kinds.tt", "TtKeys"),
}
KIND_NAMES = (FULL, *KINDS)


def kind_of(name: str) -> TableKind:
    """The kind of a name in `KINDS`."""
    place, keys = KINDS[name]
    module = import_module(place)
    return TableKind(getattr(module, keys), module.expand)


def key_records() -> dict[str, type]:
    """kind -> the record of its keys."""
    return {name: kind_of(name).keys for name in KINDS}


def expand(tables: Sequence[LogicalTable]) -> tuple[tuple[TableSpec, ...], tuple[Composition, ...]]:
    """The physical tables of a config's tables, and how each logical table is composed of them.

    Raises ConfigError for what does not fit, and for two tables of one name.
    """
    expanded: dict[str, Expanded] = {}
    for name in KINDS:
        members = [table for table in tables if table.kind == name]
        if members:
            for table, parts in zip(members, kind_of(name).expand(members), strict=True):
                _check_codes(table.spec, parts.physical)
                signed = tuple(_with_signs(table.spec, part) for part in parts.physical)
                expanded[table.spec.name] = replace(parts, physical=signed)
    in_order = [expanded.get(table.spec.name) or whole(table.spec) for table in tables]
    physical = tuple(part for table in in_order for part in table.physical)
    names = [spec.name for spec in physical]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"tables.{name}: a part of another table would have this name too; rename it"
            )
    return physical, tuple(table.composition for table in in_order)


def _with_signs(spec: TableSpec, part: TableSpec) -> TableSpec:
    """The part, weighted where its lookups have signs.

    Weights of the log count beside the signs if the logical table, `spec`, has them.
    """
    # without signs, lookups have weights where the log has them
    if not any(row_map.signed for row_map in part.maps):
        return part
    maps = tuple(
        row_map if spec.weighted else replace(row_map, log_weights=False) for row_map in part.maps
    )
    return replace(part, maps=maps, weighted=True)


def _check_codes(spec: TableSpec, parts: TableSpecs) -> None:
    """Raise ConfigError where parts of a table with same codes do not keep to them."""
    alone = bool(parts) and all(set(part.features) == set(spec.features) for part in parts)
    if spec.same_codes and not (alone and all(part.same_codes for part in parts)):
        raise ConfigError(
            f"tables.{spec.name}.same_codes: its rows stand in a table with other features; choose "
            "another kind, or leave same_codes out"
        )
