"""What is a path in a config relative to? To the file that it is written in.

Paths of `--set` and of command lines are relative to the current folder, as in any program. A
config from text alone (`config.loads` without a folder, a checkpoint of an older version) has no
file, so its paths are relative to the current folder too. Logs that come with the package are found
by name, and `~/` is the user's own folder, as shells have it.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple, TypeGuard

from neocpu.core.errors import ConfigError
from neocpu.core.presets import log_file, log_path
from neocpu.core.records import toml_text, toml_tree
from neocpu.core.types import Tree

# keys whose values are a path, or a list of paths
LOGS = ("data.train", "data.valid", "data.test")
INPUTS = (
    *LOGS,
    "data.schema",
    "data.vocabulary",
    "parallel.plan",
    "parallel.machine",
    "training.init_from",
)
OUTPUTS = ("memory.folder", "checkpoint.mirror")
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/{1,3}(?=[^/])")
HOME = "~/"
WITHOUT_HOST = ("file", "hdfs")  # in whose addresses one may be left out: hdfs:///logs
PATH_KEYS = (*INPUTS, *OUTPUTS)
SECTIONS = {key.partition(".")[0] for key in PATH_KEYS}


class PlacedPath(NamedTuple):
    """A relative path of a config file: its key, as it is written, and where it leads."""

    key: str
    written: str
    path: str


def is_address(path: str | Path) -> bool:
    """Does a path name a protocol, as `s3://`? `Path` makes one slash of its two, or three."""
    return ADDRESS.match(os.fspath(path)) is not None


def full_address(path: str | Path) -> str:
    """An address with all slashes after its protocol.

    A `Path` of one does not say any more whether hdfs:/logs named a host: ours are texts.
    """
    protocol, _, rest = os.fspath(path).partition(":")
    if rest.startswith("//"):
        return os.fspath(path)
    # with a port it is a host: hdfs://name:8020/logs
    hostless = protocol in WITHOUT_HOST and not re.match(r"/[^/]+:\d+(/|$)", rest)
    return f"{protocol}:{'//' if hostless else '/'}{rest}"


def beside(folder: str | Path, written: str) -> str:
    """A path written in a file of `folder`, seen from the current folder."""
    joined = os.path.join(folder, written)
    plain = os.path.normpath(joined)
    # "a/link/../b" is another file where the link leads elsewhere
    return plain if os.path.realpath(plain) == os.path.realpath(joined) else joined


def place_paths(tree: Tree, folder: str | Path) -> list[PlacedPath]:
    """Replace relative paths of a TOML tree that stands in `folder`; returns what was replaced.

    folder : "": the current one, from which paths start as they are. Values that are no paths, and
    values of a wrong type, stay.
    """
    if not folder:
        return []
    placed: list[PlacedPath] = []

    def place(key: str, written: str) -> str:
        path = beside(folder, written)
        if os.path.isabs(written) or is_address(written) or written.startswith(HOME):
            return written
        # a file beside the config wins over a log of the package with the same name
        if key in LOGS and not os.path.exists(path) and (log := log_file(written)):
            return str(log)
        placed.append(PlacedPath(key, written, path))
        return path

    _change(tree, place)
    return placed


def place_names(tree: Tree) -> None:
    """Replace `~/`, and names of small logs that come with the package, by what they stand for."""

    def place(key: str, path: str) -> str:
        if path.startswith(HOME):
            return os.path.expanduser(path)
        return log_path(path) if key in LOGS else path

    _change(tree, place)


def refuse_misplaced(
    placed: Sequence[PlacedPath], source: str, folder: str | Path, set_keys: Sequence[str]
) -> None:
    """Raise ConfigError for an input that is not beside the config but in the current folder.

    Before paths were relative to the config, that file would have been read. A run neither guesses
    nor fails with a bare "no such file": the message says which two places were looked at.

    source, folder : the config and where it lies.
    set_keys : keys that were overridden, whose paths in the file do not matter.
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


def absolute_paths(tree: Tree, placed: Tree) -> tuple[str, ...]:
    """Overrides `key=value` that make relative paths of a config absolute.

    tree : the TOML tree as written, overrides applied.
    placed : the same with the paths of its file placed. Text, overrides and these together mean the
        same files in any current folder.
    """
    # `_change` writes into sections, and these are the caller's
    values = deepcopy(
        {key: section for key, section in placed.items() if isinstance(section, dict)}
    )
    _change(values, lambda _, path: path if is_address(path) else os.path.abspath(path))
    overrides = []
    for key, section, name in _entries(tree):
        written = section[name]
        items = written if isinstance(written, list) else [written]
        paths = [item for item in items if _is_path(item, key) and not is_address(item)]
        if not all(map(os.path.isabs, paths)):
            section_name, _, _ = key.partition(".")
            value = toml_text(values[section_name][name])
            overrides.append(f"{key}={value}")
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
        # replaced in the text, where comments and order stay as they are
        new = toml_text(os.path.relpath(placed.path, target))
        for quote in "\"'":
            lines = lines.replace(f"{quote}{placed.written}{quote}", new)
    # the same text may stand elsewhere, or be written with escapes: what it means decides
    there = toml_tree(lines)
    place_paths(there, target)
    if _real_paths(there) != _real_paths(tree):
        raise ConfigError(
            f"the paths of the config in {folder} cannot be written for a file in {target}; make "
            "them absolute, or write the file beside the config"
        )
    return lines


def _real_paths(tree: Tree) -> Tree:
    """The files that the keys of a placed tree lead to."""
    real = {section: tree[section] for section in SECTIONS if section in tree}
    _change(real, lambda _, path: path if is_address(path) else os.path.realpath(path))
    return real


def _change(tree: Tree, change: Callable[[str, str], str]) -> None:
    """Replace all paths of a tree by `change(key, path)`."""

    def changed(key: str, value: object) -> object:
        return change(key, value) if _is_path(value, key) else value

    for key, section, name in _entries(tree):
        value = section[name]
        if isinstance(value, list):
            section[name] = [changed(key, item) for item in value]
        else:
            section[name] = changed(key, value)


def _entries(tree: Tree) -> Iterator[tuple[str, dict[str, object], str]]:
    """(key, its section, its name there) of the keys for paths that a tree has."""
    for key in PATH_KEYS:
        section_name, name = key.split(".")
        section = tree.get(section_name)
        if isinstance(section, dict) and name in section:
            yield key, section, name


def _is_path(value: object, key: str) -> TypeGuard[str]:
    """Is a value of a key a path, rather than a name, nothing, or of a wrong type?"""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    if key == "parallel.plan":
        return value.endswith(".json")
    if key == "parallel.machine":
        return value.endswith(".toml") or Path(value).parent != Path()
    return True
