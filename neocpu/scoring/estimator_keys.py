"""Which keys of a config may stand in a Python call, and what do they become? Overrides."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.config import SECTIONS
from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.errors import ConfigError
from neocpu.training.sweep.trials import toml_text

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
    reserved = {entry.name for entry in fields(SparseOptimizer)}
    return {name: key for name, key in unique.items() if name not in reserved} | SHARED


def overrides_of(keys: Mapping[str, Any]) -> list[str]:
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
            raise ConfigError(
                f"{name} is no key of a config; write its dots as {DOTS}, for example "
                f"training{DOTS}batch_size=128"
            )
        if value is not None:
            overrides += [f"{path}={toml_text(_plain(value))}" for path in paths]
    return overrides


def _plain(value: Any) -> Any:
    """A value as TOML has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value) if isinstance(value, Path) else value
