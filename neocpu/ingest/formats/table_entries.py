"""What is wrong in a schema? All of it, said at once: by file, entry, key and choices."""

import difflib
import math
from collections.abc import Mapping
from typing import Any

from neocpu.core.errors import ConfigError

_NAMES = {
    str: "a text in quotes",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
    (dict, list): "a table",
}


class Problems:
    """What is wrong in a schema, all of it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._problems: dict[tuple[str, str], None] = {}

    def add(self, where: str, problem: str) -> None:
        """Note a problem of an entry ("": of the whole), once."""
        self._problems[where, problem] = None

    def check(self) -> None:
        """Raise ConfigError if there is a problem."""
        if not self._problems:
            return
        if len(self._problems) == 1:
            ((where, problem),) = self._problems
            raise ConfigError(f"{self.source}{', ' + where if where else ''}: {problem}")
        problems = [
            f"{where}: {problem}" if where else problem for where, problem in self._problems
        ]
        raise ConfigError(f"{self.source}: {len(problems)} problems: {'; '.join(problems)}")


class SchemaEntry:
    """One TOML table: keys that are unknown or of a wrong type are told, and then left out."""

    def __init__(
        self, problems: Problems, where: str, entries: object, allowed: Mapping[str, object]
    ) -> None:
        self.where = where
        self._problems = problems
        self._entries: dict[str, Any] = {}
        if not isinstance(entries, Mapping):
            self.wrong(f"must be a table, as in [{where}]")
            entries = {}
        for key, value in entries.items():
            if key not in allowed:
                near = difflib.get_close_matches(key, allowed, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(allowed)}"
                self.wrong(f"unknown key {key!r}; {hint}")
            elif not _is_of(value, allowed[key]):
                self.wrong(f"{key} = {value!r:.80} is not {_NAMES[allowed[key]]}")
            else:
                self._entries[key] = value

    def wrong(self, problem: str) -> None:
        self._problems.add(self.where, problem)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str, default: object, choices: tuple[str, ...] = ()) -> Any:
        value = self._entries.get(key, default)
        if choices and value not in choices:
            self.wrong(f"{key} = {value!r:.80}; choose one of {', '.join(choices)}")
            return default
        return value

    def byte(self, key: str) -> str:
        """A text of one byte, or none."""
        value: str = self._entries.get(key, "")
        if len(value.encode("utf-8", "replace")) > 1 or value in ("\n", "\r", "\0"):
            self.wrong(f"{key} = {value!r:.80} must be one ASCII character")
            return ""
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        values = self._entries.get(key, [])
        if not all(isinstance(value, str) and is_utf8(value) for value in values):
            self.wrong(f"{key} must be a list of {'column names' if 'col' in key else 'texts'}")
            return ()
        return tuple(values)

    def columns(self) -> list[tuple[str, str]]:
        """(column, name) pairs of this entry."""
        columns = self.texts("columns")
        if not columns and not self._entries.get("columns"):
            self.wrong("columns must be a list of column names")
        if "name" in self and len(columns) != 1:
            self.wrong("name goes with exactly one column")
        return [(column, self._entries.get("name", column)) for column in columns]

    def fitted(self, column: str) -> tuple[float, ...] | None:
        """The numbers that were fitted for a column."""
        numbers = self._entries.get("fitted", {}).get(column)
        if numbers is None:
            return None
        return self._numbers("fitted", numbers)

    def clip(self) -> tuple[float, float] | None:
        """The range that numbers are moved into."""
        ends = self._numbers("clip", self._entries["clip"]) if "clip" in self else None
        if ends is None:
            return None
        if len(ends) != 2 or ends[0] > ends[1]:
            self.wrong("clip must be two numbers, the smaller first")
            return None
        return ends[0], ends[1]

    def edges(self) -> tuple[float, ...] | None:
        """The edges that the schema gives itself."""
        return self._numbers("edges", self._entries["edges"]) if "edges" in self else None

    def _numbers(self, key: str, numbers: object) -> tuple[float, ...] | None:
        if not isinstance(numbers, list) or not all(_is_of(each, float) for each in numbers):
            self.wrong(f"{key} must be a list of numbers")
            return None
        return tuple(map(float, numbers))


def _is_of(value: object, kind: Any) -> bool:
    """Whether a TOML value is of a type; whole numbers are numbers."""
    if kind is float:
        return isinstance(value, int | float) and type(value) is not bool and _is_finite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _is_finite(value: float) -> bool:
    """Whether a number, of any size, is a finite fp64."""
    return abs(value) < 2**1023 and math.isfinite(value)


def is_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
