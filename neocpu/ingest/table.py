"""How does any other log become a dataset? A TOML file names its columns:

delimiter = ","            # one character; "\\t" for TSV. Default ","
quote = '"'                # optional: fields may be quoted
header = true              # the first line names the columns. Default true
columns = ["y", "price"]   # names, needed where there is no header

[label]                    # leave out for a log without labels
column = "click"
kind = "click"             # click: 0 or 1 (default) | number

[[dense]]
columns = ["price", "age"]
kind = "float"             # int (default) | float
transform = "none"         # log1p | none. Default: --dense-transform

[[category]]
columns = ["site", "user"]
kind = "text"              # text (default) | int | hex | hour | weekday (of YYMMDDHH)
digits = 8                 # hex: at most so many digits. Default 16

[[category]]
columns = ["tags"]
separator = "|"            # a list: "a|b|c"
weight_separator = ":"     # with weights: "a:0.5|b:2"
name = "topics"            # another name for the feature (one column only)
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neocpu.errors import ConfigError
from neocpu.ingest.schema import (
    CATEGORY_KINDS,
    DENSE_KINDS,
    LABEL_KINDS,
    TRANSFORMS,
    CategoryField,
    DenseField,
    LabelField,
    Schema,
)
from neocpu.records import toml_tree

_TOP = {
    "delimiter": str,
    "quote": str,
    "header": bool,
    "columns": list,
    "label": dict,
    "dense": list,
    "category": list,
}
_LABEL = {"column": str, "kind": str}
_DENSE = {"columns": list, "name": str, "kind": str, "transform": str}
_CATEGORY = {
    "columns": list,
    "name": str,
    "kind": str,
    "digits": int,
    "separator": str,
    "weight_separator": str,
}


class _Reader:
    """Reads keys of one TOML table and says where a wrong one is."""

    def __init__(self, path: Path, where: str, entries: Any, allowed: Mapping[str, Any]) -> None:
        self.path = path
        self.where = where
        self.entries = entries
        if not isinstance(entries, dict):
            raise self.error(f"{where} must be a table, as in [{where}]")
        for key, value in entries.items():
            if key not in allowed:
                near = difflib.get_close_matches(key, allowed, 1)
                raise self.error(
                    f"unknown key {key!r}"
                    + (
                        f"; did you mean {near[0]!r}?"
                        if near
                        else f"; allowed: {', '.join(allowed)}"
                    )
                )
            if not isinstance(value, allowed[key]) or (
                isinstance(value, bool) and allowed[key] is not bool
            ):
                raise self.error(f"{key} = {value!r} is not a {allowed[key].__name__}")

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.path}{', ' + self.where if self.where else ''}: {problem}")

    def get(self, key: str, default: Any, choices: tuple[str, ...] = ()) -> Any:
        value = self.entries.get(key, default)
        if choices and value not in choices:
            raise self.error(f"{key} = {value!r}; choose one of {', '.join(choices)}")
        return value

    def byte(self, key: str, default: str) -> str:
        value: str = self.entries.get(key, default)
        empty = key == "delimiter" and not value
        if len(value.encode()) > 1 or empty or value in ("\n", "\r", "\0"):
            raise self.error(f"{key} = {value!r} must be one ASCII character")
        return value

    def columns(self) -> list[tuple[str, str]]:
        """(column, name) pairs of this entry."""
        columns = self.entries.get("columns", [])
        if not columns or not all(isinstance(column, str) for column in columns):
            raise self.error("columns must be a list of column names")
        if "name" in self.entries and len(columns) != 1:
            raise self.error("name goes with exactly one column")
        return [(column, self.entries.get("name", column)) for column in columns]


def _entries(
    path: Path, entries: dict[str, Any], key: str, allowed: Mapping[str, Any]
) -> list[_Reader]:
    return [
        _Reader(path, f"{key} {i}", entry, allowed)
        for i, entry in enumerate(entries.get(key, []), 1)
    ]


def _category(entry: _Reader, column: str, name: str) -> CategoryField:
    separator = entry.byte("separator", "")
    weight = entry.byte("weight_separator", "")
    kind = entry.get("kind", "text", CATEGORY_KINDS)
    digits = entry.get("digits", 16)
    if weight and not separator:
        raise entry.error("weight_separator needs a separator")
    if separator and kind in ("hour", "weekday"):
        raise entry.error(f"a list cannot be of kind {kind}")
    if not 1 <= digits <= 16:
        raise entry.error(f"digits = {digits} must be from 1 to 16")
    return CategoryField(column, name, kind, digits, separator, weight)


def table_schema(path: str | Path, transform: str = "log1p") -> Schema:
    """Read a SCHEMA.toml (the module's docstring shows one).

    Raises ConfigError naming file, entry, key and choices.
    """
    path = Path(path)
    try:
        entries = toml_tree(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # an error of syntax, of UTF-8, a NUL in the path
        raise ConfigError(f"{path}: not a TOML file: {error}") from error
    top = _Reader(path, "", entries, _TOP)
    label = None
    if "label" in entries:
        entry = _Reader(path, "label", entries["label"], _LABEL)
        if "column" not in entries["label"]:
            raise entry.error("column is missing")
        label = LabelField(entries["label"]["column"], entry.get("kind", "click", LABEL_KINDS))
    dense = tuple(
        DenseField(
            column,
            name,
            entry.get("kind", "int", DENSE_KINDS),
            entry.get("transform", transform, TRANSFORMS),
        )
        for entry in _entries(path, entries, "dense", _DENSE)
        for column, name in entry.columns()
    )
    lists = _entries(path, entries, "category", _CATEGORY)
    categories = tuple(
        _category(entry, column, name) for entry in lists for column, name in entry.columns()
    )
    if not dense and not categories:
        raise top.error("no column is used; add [[dense]] or [[category]] entries")
    header = top.get("header", True)
    columns = tuple(top.get("columns", ()))
    if not all(isinstance(column, str) for column in columns):
        raise top.error("columns must be a list of column names")
    if not header and not columns:
        raise top.error("header = false needs columns = [...]")
    delimiter = top.byte("delimiter", ",")
    quote = top.byte("quote", "")
    if quote == delimiter:
        raise top.error(f"quote and delimiter are both {quote!r}")
    schema = Schema(
        "table", label, dense, categories, columns, delimiter, quote, header, f"{path} asks for it"
    )
    return schema.with_columns(list(columns), path) if columns else schema
