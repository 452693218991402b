"""Which keys of a config may stand in a Python call, and what do they become? Overrides."""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.records import toml_text
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.train.advice.labels import weight_overrides
from neocpu.train.config.config import SECTIONS, load
from neocpu.train.config.keys import defaults

DOTS = "__"  # stands for a dot, as in scikit-learn's names of nested parameters
# one name for several keys
SHARED = {"learning_rate": ("optimizer.sparse.learning_rate", "optimizer.dense.learning_rate")}


@cache
def short_names() -> dict[str, tuple[str, ...]]:
    """Keys by their last name, where it is that of one key only, and SHARED ones."""
    keys = [
        f"{section}.{entry.name}"
        for section, record in SECTIONS.items()
        if section not in ("data", "optimizer")
        for entry in fields(record)
    ]
    names = [key.rpartition(".")[2] for key in keys]
    unique: dict[str, tuple[str, ...]] = {
        name: (key,) for name, key in zip(names, keys) if names.count(name) == 1
    }
    # a name that optimizers of tables also have would not say whose it is
    reserved = {entry.name for entry in fields(SparseOptimizer)}
    return {name: key for name, key in unique.items() if name not in reserved} | SHARED


def overrides_of(keys: Mapping[str, object]) -> list[str]:
    """`key=value` texts of keyword arguments; None leaves a key as it is.

    Raises ConfigError for a name that is no key of a config.
    """
    overrides = []
    for name, value in keys.items():
        if DOTS in name and name.partition(DOTS)[0] in (*SECTIONS, "tables"):
            paths: tuple[str, ...] = (name.replace(DOTS, "."),)
        elif name in short_names():
            paths = short_names()[name]
        else:
            raise ConfigError(_unknown(name))
        if value is not None:
            overrides += [f"{path}={toml_text(_plain(value))}" for path in paths]
    return overrides


def _unknown(name: str) -> str:
    """That a name is no key, or that of several, and how to write what may be meant."""
    several = [key for key in defaults() if key.rpartition(".")[2] == name]
    if several:
        keys = " or ".join(key.replace(".", DOTS) for key in several)
        return f"{name} alone does not say which key it is; write {keys}"
    if near := get_close_matches(name, short_names(), 1):
        return f"{name} is no key of a config; did you mean {near[0]}?"
    return (
        f"{name} is no key of a config; write its dots as {DOTS}, for example "
        f"training{DOTS}batch_size=128"
    )


def run_overrides(config: Path, keys: Mapping[str, object], weight: str = "") -> list[str]:
    """The overrides of a drafted config for these keyword arguments.

    weight : the column of the samples' weights ("": none).

    All rows are trained on, and the bottom layers end with the width of an embedding, if only that
    is given.
    """
    overrides = overrides_of(keys)
    set_keys = {override.partition("=")[0] for override in overrides}
    if "model.embedding_dim" in set_keys and "model.bottom" not in set_keys:
        # dot products need vectors of one width
        drafted = load(config).model.bottom
        (dim,) = (value for name, value in keys.items() if name.endswith("embedding_dim"))
        overrides.append(f"model.bottom={toml_text([*drafted[:-1], _plain(dim)])}")
    if weight:
        schema = load(config).data.schema
        assert isinstance(schema, Mapping)
        overrides += weight_overrides(schema, weight)
    # The drafted config splits its rows; here valid rows come from eval_set.
    return ["data.split=[]", *overrides]


def _plain(value: object) -> object:
    """A value as TOML has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value) if isinstance(value, Path) else value
