"""What is a path in a config relative to? To the file that it is written in.

Paths of `--set` and of command lines are relative to the current folder, as in any program. A
config from text alone (`config.loads` without a folder, a checkpoint of an older version) has no
file, so its paths are relative to the current folder too.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neocpu.errors import ConfigError
from neocpu.records import toml_tree

# keys whose values are a path, or a list of paths
INPUTS = (
    "data.train",
    "data.valid",
    "data.test",
    "data.schema",
    "data.vocabulary",
    "parallel.plan",
    "parallel.machine",
    "training.init_from",
)
OUTPUTS = ("memory.folder",)
PATH_KEYS = (*INPUTS, *OUTPUTS)


class PlacedPath(NamedTuple):
    """A relative path of a config file: its key, as it is written, and where it leads."""

    key: str
    written: str
    path: str


def beside(folder: str | Path, written: str) -> str:
    """A path written in a file of `folder`, seen from the current folder."""
    joined = os.path.join(folder, written)
    plain = os.path.normpath(joined)
    # "a/link/../b" is another file where the link leads elsewhere
    return plain if os.path.realpath(plain) == os.path.realpath(joined) else joined


def place_paths(tree: dict[str, Any], folder: str | Path) -> list[PlacedPath]:
    """Replace relative paths of a TOML tree that stands in `folder`; returns what was replaced.

    folder : "": the current one, from which paths start as they are. Values that are no paths, and
    values of a wrong type, stay.
    """
    if not folder:
        return []
    placed: list[PlacedPath] = []
    for key, section, name in _entries(tree):
        value = section[name]
        if isinstance(value, list):
            paths = [beside(folder, item) if _relative(key, item) else item for item in value]
            section[name] = paths
            placed += [
                PlacedPath(key, item, path)
                for item, path in zip(value, paths)
                if _relative(key, item)
            ]
        elif _relative(key, value):
            section[name] = beside(folder, value)
            placed.append(PlacedPath(key, value, section[name]))
    return placed


def refuse_misplaced(
    placed: Sequence[PlacedPath], source: str, folder: str | Path, set_keys: Sequence[str]
) -> None:
    """Raise ConfigError for an input that is not beside the config but in the current folder.

    Before paths were relative to the config, that file would have been read. A run neither guesses
    nor fails with a bare "no such file": the message says which two places were looked at.

    source, folder : the config and where it lies. set_keys : keys that were overridden, whose paths
    in the file do not matter.
    """
    for key, written, path in placed:
        overridden = any(key == name or key.startswith(f"{name}.") for name in set_keys)
        if overridden or key not in INPUTS or os.path.exists(path) or not os.path.exists(written):
            continue
        fitting = os.path.relpath(written, folder)
        raise ConfigError(
            f"{source}: {key}: {written!r} is not beside the config ({path} does not exist), but "
            f"in the current folder; paths in a config are relative to its file: write {fitting!r} "
            f"there, or give --set {key}={written}"
        )


def absolute_paths(tree: Mapping[str, Any], placed: Mapping[str, Any]) -> tuple[str, ...]:
    """Overrides `key=value` that make relative paths of a config absolute.

    tree : the TOML tree as written, overrides applied. placed : the same with the paths of its file
    placed. Text, overrides and these together mean the same files in any current folder.
    """
    values = {key: section[name] for key, section, name in _entries(placed)}
    overrides = []
    for key, section, name in _entries(tree):
        written = section[name] if isinstance(section[name], list) else [section[name]]
        if not any(_relative(key, item) for item in written):
            continue
        value = values[key]
        if isinstance(value, list):
            value = [os.path.abspath(item) if _relative(key, item) else item for item in value]
        elif _relative(key, value):
            value = os.path.abspath(value)
        overrides.append(f"{key}={json.dumps(value, ensure_ascii=False)}")
    return tuple(overrides)


def moved(text: str, folder: str | Path, target: str | Path) -> str:
    """The text of a config in `folder` for a file in the folder `target`, comments and all.

    Its relative paths are written anew, so that they lead to the same files. Raises ConfigError
    where a path is written in a way that cannot be replaced.
    """
    tree = toml_tree(text)
    if os.path.realpath(folder) == os.path.realpath(target):
        return text
    lines = text
    for placed in place_paths(tree, folder):
        new = json.dumps(os.path.relpath(placed.path, target), ensure_ascii=False)
        for quote in "\"'":
            lines = lines.replace(f"{quote}{placed.written}{quote}", new)
    there = toml_tree(lines)
    place_paths(there, target)
    if _real_paths(there) != _real_paths(tree):
        raise ConfigError(
            f"the paths of the config in {folder} cannot be written for a file in {target}; make "
            "them absolute, or write the file beside the config"
        )
    return lines


def _real_paths(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The files that the keys of a placed tree lead to."""
    files = {}
    for key, section, name in _entries(tree):
        value = section[name]
        paths = value if isinstance(value, list) else [value]
        files[key] = [os.path.realpath(item) if _path(key, item) else item for item in paths]
    return files


def _entries(tree: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(key, its section, its name there) of the keys for paths that a tree has."""
    for key in PATH_KEYS:
        section_name, name = key.split(".")
        section = tree.get(section_name)
        if isinstance(section, dict) and name in section:
            yield key, section, name


def _path(key: str, value: Any) -> bool:
    """Is a value of a key a path, rather than a name, nothing, or of a wrong type?"""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    if key == "parallel.plan":
        return value.endswith(".json")
    if key == "parallel.machine":
        return value.endswith(".toml") or Path(value).parent != Path()
    return True


def _relative(key: str, value: Any) -> bool:
    return _path(key, value) and not os.path.isabs(value)
