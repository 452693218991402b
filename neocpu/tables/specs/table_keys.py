"""Which tables do the keys below [tables] of a config make?

    [tables]
    default = { rows = 1000 }             keys of all tables, unless they say otherwise; no table
    "C*" = { rows = 50_000, dim = 8 }     a pattern: a table for each feature of the log that
                                          matches and that no named table looks up; and keys of the
                                          named tables that match
    C3.rows = 10_000_000                  a named table

A key of a table is what its own entry says, else the first pattern that matches its name and has
the key, else `default`, else the model. With patterns, tables are in the order of the log's
features; those without such a feature follow. Without patterns, they are in the order of the file.
What comes out is equal to the same tables written one by one, and so is its digest.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

from neocpu.core.errors import ConfigError
from neocpu.core.formats import table_format
from neocpu.core.records import Reader
from neocpu.tables.specs.compositions import LogicalTable
from neocpu.tables.specs.specs import TableKeys

DEFAULT = "default"
PATTERN_SIGNS = "*?["
# values of keys as a `Reader` has checked them
KeyValues: TypeAlias = Mapping[str, Any]
KeyRecords: TypeAlias = Callable[[], Mapping[str, type]]


class ModelDefaults(NamedTuple):
    """What the model says of tables that do not: dim, format and rounding."""

    dim: int
    form: str
    rounding: str


def tables_of(
    reader: Reader,
    trees: object,
    features: Callable[[], Sequence[str]],
    model: ModelDefaults,
    kinds: KeyRecords,
) -> tuple[LogicalTable, ...]:
    """The tables that the TOML tree below `tables` makes.

    features : the features of the log, in its order; called where there is a pattern.
    kinds : gives the record of the keys of each table kind; called where a table has such keys.

    Raises ConfigError where there is no table, a pattern matches nothing, or a key is wrong.
    """
    if not isinstance(trees, Mapping):
        raise reader.wrong("tables", f"expected a table of keys, got {trees!r}")
    keys = {name: _read(reader, tree, f"tables.{name}", kinds) for name, tree in trees.items()}
    default = keys.pop(DEFAULT, {})
    if "features" in default:
        raise reader.wrong(
            f"tables.{DEFAULT}.features",
            'features belong to one table; `tables."*" = {}` makes a table for each of the log',
        )
    log = tuple(features()) if any(map(_may_be_pattern, keys)) else ()
    patterns = {
        name: values
        for name, values in keys.items()
        if _may_be_pattern(name) and "features" not in values and name not in log
    }
    named = {name: values for name, values in keys.items() if name not in patterns}
    entries = _with_features(named, patterns, log)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in entries):
            raise _matches_nothing(reader, pattern, (*log, *named))
    if not entries:
        raise reader.wrong(
            "tables",
            "at least one table is needed, for example `tables.C1.rows = 1000`, or "
            '`tables."*".rows = 1000` for a table of each feature of the log',
        )
    tables = []
    for name, own in entries.items():
        matching = [values for pattern, values in patterns.items() if fnmatchcase(name, pattern)]
        inherited = dict(default)
        # the first pattern that matches wins, so it is written last
        for values in reversed(matching):
            inherited |= values
        tables.append(_table(reader, name, own, inherited, model, kinds))
    return tuple(tables)


def _read(reader: Reader, tree: object, key: str, kinds: KeyRecords) -> KeyValues:
    """The keys of an entry: those of all tables as they are meant, those of kinds as written."""
    if not isinstance(tree, Mapping):
        raise reader.wrong(key, f"expected a table of keys, got {tree!r}")
    general = [field.name for field in fields(TableKeys)]
    others = [name for name in tree if name not in general]
    if others:
        of_kinds = {field.name for record in kinds().values() for field in fields(record)}
        for name in others:
            if name not in of_kinds:
                raise reader.unknown(f"{key}.{name}", [*general, *sorted(of_kinds)])
    # keys of kinds are read later, once the kind is known
    known = {name: value for name, value in tree.items() if name in general}
    return {**tree, **reader.keys(TableKeys, known, key)}


def _may_be_pattern(name: str) -> bool:
    return any(sign in name for sign in PATTERN_SIGNS)


def _with_features(
    named: Mapping[str, KeyValues], patterns: Mapping[str, KeyValues], log: Sequence[str]
) -> dict[str, KeyValues]:
    """The keys of named tables and of those that patterns make, in their order."""
    if not patterns:
        return dict(named)
    tables_of_feature: dict[str, list[str]] = {}
    for name, values in named.items():
        for feature in values.get("features", (name,)):
            tables_of_feature.setdefault(feature, []).append(name)
    entries: dict[str, KeyValues] = {}
    for feature in log:
        for name in tables_of_feature.get(feature, ()):
            entries[name] = named[name]
        matches = any(fnmatchcase(feature, pattern) for pattern in patterns)
        if matches and feature not in tables_of_feature:
            entries[feature] = {}
    return entries | {name: values for name, values in named.items() if name not in entries}


def _matches_nothing(reader: Reader, pattern: str, names: Sequence[str]) -> Exception:
    near = get_close_matches(pattern, names, 1)
    hint = f"did you mean {near[0]}? They" if near else "they"
    return reader.wrong(
        f"tables.{pattern}",
        f"matches no feature of a log of data.format and no table; {hint} are {', '.join(names)}",
    )


def _table(
    reader: Reader,
    name: str,
    own: KeyValues,
    inherited: KeyValues,
    model: ModelDefaults,
    kinds: KeyRecords,
) -> LogicalTable:
    """A table from the keys of its own entry and those of patterns and `default`."""
    key = f"tables.{name}"
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise reader.wrong(key, "a table's name may not be empty, '.' or contain '/' or NUL")
    values = {**inherited, **own}
    form = values.get("format") or model.form
    # a rounding for all tables is no mistake of a table that needs none
    if "rounding" not in own and table_format(form).exact:
        values.pop("rounding", None)  # meant for tables of other formats
    general = {field.name for field in fields(TableKeys)}
    keys = TableKeys(**{name: value for name, value in values.items() if name in general})
    if not keys.rows:
        raise reader.wrong(
            key,
            f"its number of rows is missing; write {key}.rows = 1000, or tables.{DEFAULT}.rows for "
            "all tables",
        )
    features = keys.features or (name,)
    if len(set(features)) < len(features):
        raise reader.wrong(f"{key}.features", f"{list(features)} names a feature twice")
    spec = keys.spec(name, features, model.dim, model.form, model.rounding)
    if keys.rounding not in ("", spec.rounding):
        raise reader.wrong(
            f"{key}.rounding",
            f"it has no effect on {spec.format}, which holds every number as it is",
        )
    own_keys = {name: value for name, value in own.items() if name not in general}
    return _of_kind(reader, LogicalTable(spec, keys.kind, None), own_keys, values, keys, kinds)


def _of_kind(
    reader: Reader,
    table: LogicalTable,
    own: KeyValues,
    values: KeyValues,
    keys: TableKeys,
    kinds: KeyRecords,
) -> LogicalTable:
    """The table with the keys of its kind.

    own : keys of kinds in its own entry; those that it inherits may be meant for other kinds.
    """
    key = f"tables.{table.spec.name}"
    record = kinds().get(table.kind) if table.kind != "full" else None
    known = [field.name for field in fields(record)] if record else []
    for name in own:
        if name not in known:
            raise reader.wrong(
                f"{key}.{name}",
                f"a table of kind {table.kind} has no such key; its own keys are "
                f"{', '.join(known) or 'none'}",
            )
    if record is None or table.spec.rows <= keys.kind_above:
        return replace(table, kind="full")
    of_kind = {name: values[name] for name in known if name in values}
    return replace(table, keys=reader.record(record, of_kind, key))


def check_choice(table: str, key: str, value: str, choices: Collection[str]) -> None:
    """Raise ConfigError for a text that is none of the choices. table : its name."""
    if value not in choices:
        raise ConfigError(
            f"tables.{table}.{key}: {value!r} is unknown; choose one of {', '.join(choices)}"
        )


def check_compression(table: str, compression: float) -> None:
    """Raise ConfigError for a compression that makes a table larger; 0: it is not set."""
    if compression and not 1 <= compression < math.inf:
        raise ConfigError(f"tables.{table}.compression: {compression} should be 1 or more")
