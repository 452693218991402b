"""How does a TOML tree become dataclasses? By their annotations.

What a key may be beyond its type stands with its field, `Annotated[int, Limits(least=1)]`. An error
names where a key was written, the key, its value, and what is allowed.
"""

import json
import math
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from neocpu.core.errors import ConfigError
from neocpu.core.types import Tree

Paths = tuple[str, ...]
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")  # of TOML
MOST_NESTED = 32  # tables and lists in one another
_EXPECTED = {
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    bool: "true or false",
}


def choose(
    key: str,
    kind: str,
    names: Sequence[str],
    spec: str | Mapping[str, str],
    allowed: Sequence[str],
    default: str,
) -> tuple[str, ...]:
    """What each of the tables `names` gets by the key `key`.

    spec : one of `allowed` for all tables, or {shell pattern: one of them}. A table's exact name
        wins over patterns, of which the first that matches counts; `default` where none does.
    kind : what `allowed` are, for messages.

    Raises ConfigError for a value that is not allowed, or a pattern that matches no table.
    """
    # one name for all tables is a pattern that matches all
    rules = {"*": spec} if isinstance(spec, str) else dict(spec)
    for value in rules.values():
        if value not in allowed:
            near = get_close_matches(str(value), allowed, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{key}: {value!r} is no {kind}{hint} (choose from {', '.join(allowed)})"
            )
    return matched(key, names, rules, default)


def matched(
    key: str, names: Sequence[str], rules: Mapping[str, str], default: str
) -> tuple[str, ...]:
    """As `choose`, of any values. Raises ConfigError for a pattern that matches no table."""
    for pattern in rules:
        if names and not any(pattern == name or fnmatchcase(name, pattern) for name in names):
            parts = [name for name in names if name.startswith(f"{pattern}.")]
            kept = f"; that of this name is kept in {', '.join(parts)}: write {pattern + '.*'!r}"
            raise ConfigError(
                f"{key}: no table matches {pattern!r}{kept if parts else ''}; the tables are "
                f"{', '.join(names)}"
            )
    return tuple(rules.get(name) or _first_match(name, rules, default) for name in names)


def _first_match(name: str, rules: Mapping[str, str], default: str) -> str:
    """Value of the first pattern that matches a name."""
    return next((value for pattern, value in rules.items() if fnmatchcase(name, pattern)), default)


class Limits(NamedTuple):
    """What a key may be.

    choices : of a text, or of each text of a list; (): any.
    least, most : of a whole number; None: 0 (of an item of a list 1), and what 64 bits hold.
    """

    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None


ANYTHING = Limits()


@cache  # a plan file has a record for each of thousands of tables
def limits_of(kind: type) -> Mapping[str, Limits]:
    """What the fields of a dataclass may be."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: next(
            (note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Limits)),
            ANYTHING,
        )
        for name, hint in hints.items()
    }


def limits_at(key: str, limits: Limits, by_key: Mapping[str, Limits]) -> Limits:
    """What a key may be, which stands with its field in `limits`, with its key in `by_key`."""
    return next(
        (known for pattern, known in by_key.items() if fnmatchcase(key, pattern)),
        limits,
    )


class Reader:
    """Turns a TOML tree into records; knows where each key was written, for messages.

    source : the file. set_by : key -> the override that set it. limits : what keys may be, by shell
    patterns of them, in place of what stands with their fields.
    """

    def __init__(
        self, source: str, set_by: Mapping[str, str], limits: Mapping[str, Limits]
    ) -> None:
        self.source = source
        self.set_by = set_by
        self._limits = limits

    def place(self, key: str) -> str:
        """Where a key was written: an override, else the file."""
        for set_key, override in self.set_by.items():
            if key == set_key or key.startswith((f"{set_key}.", f"{set_key}[")):
                return f"--set {override}"
        return self.source

    def wrong(self, key: str, why: str) -> ConfigError:
        """The error that `key` is `why`."""
        return ConfigError(f"{self.place(key)}: {key}: {why}")

    def unknown(self, key: str, known: Sequence[str]) -> ConfigError:
        """The error that there is no such key."""
        prefix, _, name = key.rpartition(".")
        near = get_close_matches(name, known, 1, 0.5)
        hint = f"did you mean {prefix + '.' if prefix else ''}{near[0]}? Known" if near else "known"
        # an override of a key inside, as `--set trainin.steps=1`, is where it was written
        inner = next((set_key for set_key in self.set_by if set_key.startswith(f"{key}.")), key)
        return ConfigError(
            f"{self.place(inner)}: {key}: no such key; {hint} here: {', '.join(known)}"
        )

    def record(self, kind: type, tree: object, key: str) -> Any:
        """A dataclass from a TOML table; fields that the table lacks have their defaults."""
        return replace(kind(), **self.keys(kind, tree, key))

    def keys(self, kind: type, tree: object, key: str, default: object = None) -> dict[str, Any]:
        """The values that a TOML table gives for a dataclass."""
        if not isinstance(tree, Mapping):
            raise self.wrong(key, f"expected a table of keys, got {tree!r}")
        hints = get_type_hints(kind)
        known = [spec.name for spec in fields(kind)]
        for name in tree:
            if name not in known:
                raise self.unknown(f"{key}.{name}", known)
        base = kind() if default is None else default
        limits = limits_of(kind)
        values = {}
        for name, value in tree.items():
            inner = f"{key}.{name}"
            if is_dataclass(hints[name]):
                record = getattr(base, name)
                values[name] = replace(record, **self.keys(type(record), value, inner, record))
            else:
                values[name] = self.value(hints[name], value, inner, limits[name])
        return values

    def value(self, hint: Any, value: object, key: str, limits: Limits = ANYTHING) -> Any:
        """A value of the annotated type, within the limits that stand with its field."""
        if hint in (Paths, str | tuple[str, ...]) and isinstance(value, str):
            self._check(key, value, limits)
            if hint != Paths:
                return value
            return (value,) if value else ()  # `--set data.test=`: none
        if hint == str | tuple[str, ...]:
            names: Paths = self.value(Paths, value, key, limits)
            return names[0] if len(names) == 1 else names
        if get_origin(hint) is tuple:
            if not isinstance(value, list):
                raise self.wrong(key, f"expected a list, got {value!r}")
            return tuple(
                self.value(get_args(hint)[0], item, f"{key}[{i}]", limits)
                for i, item in enumerate(value)
            )
        if get_origin(hint) is Mapping:
            if not isinstance(value, Mapping):
                raise self.wrong(key, f"expected a table of keys, got {value!r}")
            kind = get_args(hint)[1]
            read = self.record if is_dataclass(kind) else self.value
            return {name: read(kind, item, f"{key}.{name}") for name, item in value.items()}
        if hint == float | Mapping[str, float]:
            kind = Mapping[str, float] if isinstance(value, Mapping) else float
            return self.value(kind, value, key)
        if hint == float | str:  # a number, or a word of those that stand with the field
            return self.value(str if isinstance(value, str) else float, value, key, limits)
        if hint == str | Mapping[str, Any] and isinstance(value, Mapping):
            return value  # checked by its owner
        if hint == str | Mapping[str, Any]:
            return self.value(str, value, key, limits)
        if get_origin(hint) is types.UnionType:
            if isinstance(value, str) or (
                isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
            ):
                return value
            raise self.wrong(
                key,
                f'expected a name in quotes, or a table like {{ "C*" = "NAME" }}, got {value!r}',
            )
        # `type`, since true is an int to Python but not to TOML
        if hint is float and type(value) is int:
            # a larger one is no float; it is refused below
            value = float(value) if abs(value) < 2**1023 else math.inf
        if hint is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # as 24e9
        if type(value) is not hint:
            raise self.wrong(key, f"expected {_EXPECTED[hint]}, got {value!r}")
        self._check(key, value, limits)
        return value

    def _check(self, key: str, value: object, limits: Limits) -> None:
        """Raise ConfigError for a value outside its limits."""
        limits = limits_at(key, limits, self._limits)
        allowed = () if isinstance(value, float) else limits.choices
        if allowed and value not in allowed:
            near = get_close_matches(str(value), allowed, 1)
            hint = f"did you mean {near[0]!r}? Choose" if near else "choose"
            raise self.wrong(key, f"{value!r} is not allowed; {hint} one of {', '.join(allowed)}")
        if isinstance(value, str) and "\0" in value:
            raise self.wrong(key, f"{value!r} contains a NUL character")
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise self.wrong(key, f"{value} must be a finite number, at least 0")
        if type(value) is int:
            least = limits.least
            if least is None:
                least = 1 if "[" in key else 0
            most = 2**63 - 1 if limits.most is None else limits.most
            if not least <= value <= most:
                size = "small" if value < least else "large"
                raise self.wrong(key, f"{value} is too {size}; allowed: {least} to {most}")


def changed(record: Any) -> dict[str, object]:
    """The keys of a record that are not at their defaults."""
    defaults = asdict(type(record)())
    return {key: value for key, value in asdict(record).items() if value != defaults[key]}


def toml_text(value: object) -> str:
    """A value as TOML, on one line: text, number, flag, or a list or mapping of these."""
    if isinstance(value, Mapping):
        pairs = (f"{toml_text(key)} = {toml_text(inner)}" for key, inner in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_text, value))}]"
    # TOML has JSON's escapes, but none of halves of a character
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(key: str) -> str:
    """A key as TOML has it, in quotes where it needs them."""
    return key if BARE_KEY.fullmatch(key) else toml_text(key)


def toml_tree(text: str) -> dict[str, Any]:
    """The tree of a TOML text; ValueError where it is not TOML, or nested without measure."""
    try:
        # the parser recurses: a text of brackets alone can exhaust the stack
        tree = tomllib.loads(text)
        _check_depth(tree, MOST_NESTED)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return tree


def _check_depth(tree: Tree | list[object], left: int) -> None:
    """Raise ValueError where tables and lists are nested deeper than that."""
    if not left:
        raise ValueError(f"nested deeper than {MOST_NESTED} tables or lists")
    for value in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(value, dict | list):
            _check_depth(value, left - 1)


def apply_override(tree: dict[str, Any], override: str) -> str:
    """Set one key of a TOML tree by `key=value`; returns the key.

    The value is read as TOML, or taken as a text if it is not. Raises ConfigError for an override
    that is not `key=value`, or a key inside a single value.
    """
    key, equals, text = (part.strip() for part in override.partition("="))
    try:
        # TOML's own parser knows quoted keys and dots within them
        path = _path(toml_tree(f"{key} = 0")) if equals else []
    except ValueError:
        path = []
    if not path:
        raise ConfigError(
            f"--set {override}: write it as key=value, for example training.steps=100"
        )
    try:
        value = toml_tree(f"value = {text}")["value"]
    except ValueError:
        value = text
    for depth, name in enumerate(path[:-1]):
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise ConfigError(
                f"--set {override}: {'.'.join(path[: depth + 1])} is a single value, not a table "
                "of keys"
            )
    tree[path[-1]] = value
    return ".".join(path)


def _path(tree: object) -> list[str]:
    """{"a": {"b": 0}} -> ["a", "b"]."""
    if not isinstance(tree, dict):
        return []
    (name,) = tree
    return [name, *_path(tree[name])]
