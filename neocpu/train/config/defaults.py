"""What does a key mean that a config does not name? Values that serve, and those of older runs.

Keys of records have fixed defaults; those here were chosen by measurement (`python -m
benchmarks.defaults`, docs/start.md), one of them by the size of the data. They may be chosen better
one day, so a run notes them in its checkpoints as if they had been given. A checkpoint that notes
none of them was written by neocpu 0.1.0, whose values it then gets (`BEFORE`), and a run that goes
on keeps those that it began with.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neocpu.core.policies import DEFAULT, POLICIES
from neocpu.core.records import toml_text
from neocpu.core.types import Tree
from neocpu.tables.specs.optimizers import COWCLIPS

Keys = Tree
# of a rule whose rows have one accumulated square, or one for each number
ADAGRAD = ("exact_rowwise_adagrad", "exact_adagrad")
BATCH_SIZE = "training.batch_size"
# what neocpu 0.1.0 took
BEFORE: dict[str, object] = {
    "optimizer.sparse.learning_rate": 0.01,
    "optimizer.dense.name": "sgd",
    "optimizer.sparse.weight_norm_coefficient": 0.0,
    "optimizer.sparse.lower_bound": 0.0,
    BATCH_SIZE: 2048,
}
LEAST_BATCH = 16
MOST_BATCH = 2048  # a step of more samples costs as much per sample


def batch_of(samples: int) -> int:
    """Batch size for so many samples to train on: about 0.12 √samples, a power of two.

    A small log needs small batches: its few steps decide how far the model comes.
    """
    # 0.12: measured by `benchmarks.defaults` on logs of several sizes
    size = 2 ** round(math.log2(max(0.12 * math.sqrt(samples), 1)))
    return min(max(size, LEAST_BATCH), MOST_BATCH)


def unnamed(tree: Tree, begun: bool) -> dict[str, object]:
    """key -> value of the keys above that a TOML tree does not name.

    begun : the tree is of a run that began, which noted what was chosen; what it lacks has the
    values of neocpu 0.1.0. Otherwise values that serve; the batch size is then not among them, as
    it needs the data.
    """
    sparse = _section(tree, "optimizer", "sparse")
    rule = sparse.get("name", ADAGRAD[0])
    values = dict(BEFORE)
    if not begun:
        values["optimizer.dense.name"] = "adagrad"
        if rule in ADAGRAD:
            values["optimizer.sparse.learning_rate"] = 0.04
        del values[BATCH_SIZE]
    if rule in COWCLIPS and not begun:
        # Zheng et al. 2022, section 4: r = 1 and zeta = 1e-5; 0 and 0 would clip all to nothing
        values["optimizer.sparse.weight_norm_coefficient"] = 1.0
        values["optimizer.sparse.lower_bound"] = 1e-5
    if rule not in COWCLIPS:
        del values["optimizer.sparse.weight_norm_coefficient"]
        del values["optimizer.sparse.lower_bound"]
    policy = POLICIES.get(str(_section(tree, "memory").get("policy", DEFAULT)))
    if policy is not None:
        values |= {f"memory.{key}": value for key, value in policy.keys.items()}
    # what a config names is never touched
    return {key: value for key, value in values.items() if not _names(tree, key)}


def _section(tree: Tree, *names: str) -> Tree:
    """A section of a TOML tree; {} where there is none, or something else."""
    for name in names:
        section = tree.get(name)
        if not isinstance(section, Mapping):
            return {}
        tree = section
    return tree


def _names(tree: Tree, key: str) -> bool:
    """Whether a tree names a key, or has something on the way to it that is no section."""
    *path, last = key.split(".")
    for name in path:
        if name not in tree:
            return False
        section = tree[name]
        if not isinstance(section, Mapping):
            return True  # for the reader of the config to refuse
        tree = section
    return last in tree


def names_batch_size(tree: Tree) -> bool:
    """Whether a TOML tree names the batch size."""
    return _names(tree, BATCH_SIZE)


def fill(tree: dict[str, object], values: Keys) -> None:
    """Give a TOML tree these keys."""
    for key, value in values.items():
        *path, last = key.split(".")
        section = tree
        for name in path:
            inner = section.setdefault(name, {})
            assert isinstance(inner, dict)  # `unnamed` gives no keys below a single value
            section = inner
        section[last] = value


def with_key(record: Any, key: str, value: object) -> Any:
    """A record with another value of a dotted key of it, or of records in it."""
    name, _, rest = key.partition(".")
    return replace(
        record, **{name: with_key(getattr(record, name), rest, value) if rest else value}
    )


def value_of(record: object, key: str) -> object:
    """The value of a dotted key."""
    for name in key.split("."):
        record = getattr(record, name)
    return record


def as_overrides(values: Keys) -> list[str]:
    """Keys as overrides `key=value`."""
    return [f"{key}={toml_text(value)}" for key, value in values.items()]
