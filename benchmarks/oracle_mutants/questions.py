"""What does a suite ask? Its cases, read with h5py and nothing of neocpu."""

from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Question(NamedTuple):
    """One case of a suite."""

    name: str
    op: str
    inputs: dict[str, Array]
    options: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]  # of each output


def read_questions(path: str | Path) -> list[Question]:
    """All cases of a suite file, in its order."""
    with h5py.File(path) as suite:
        return [_question(name, group) for name, group in suite["cases"].items()]


def _question(name: str, group: Any) -> Question:
    inputs = dict(_datasets(group["inputs"])) if "inputs" in group else {}
    options = {key: _plain(value) for key, value in group["options"].attrs.items()}
    shapes = {}
    for path, dataset in _datasets(group["outputs"]):
        if path.endswith("/canonical"):
            shapes[path.removesuffix("/canonical")] = dataset.shape
    return Question(name, _plain(group.attrs["op"]), inputs, options, shapes)


def _datasets(group: Any, prefix: str = "") -> list[tuple[str, Array]]:
    arrays = []
    for key, item in group.items():
        if isinstance(item, h5py.Group):
            arrays += _datasets(item, f"{prefix}{key}/")
        else:
            arrays.append((prefix + key, item[()]))
    return arrays


def _plain(value: Any) -> Any:
    """Attributes as Python values."""
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value
