"""Which boards may follow a run? One file each; `--metrics NAME` chooses among them.

A tracker is a listener of `RunReport` with an end: it hears every line of metrics.jsonl, and is
closed when the run is over. Its library is imported only when it is chosen.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from neocpu.core.errors import EnvironmentProblem
from neocpu.core.types import Tell

Line: TypeAlias = Mapping[str, Any]  # of metrics.jsonl


class Tracker(Protocol):
    """What follows a run."""

    def __call__(self, line: Line) -> None:
        """Hear a line of metrics.jsonl."""

    def close(self) -> None:
        """The run is over."""


# name -> module of this folder, whose `open_tracker(out, keys)` makes the tracker; what to install
TRACKERS: Mapping[str, tuple[str, str]] = {
    "tensorboard": ("neocpu.serve.report.trackers.tensorboard", "tensorboard"),
    "mlflow": ("neocpu.serve.report.trackers.mlflow", "mlflow-skinny"),
    "wandb": ("neocpu.serve.report.trackers.wandb", "wandb"),
}


def open_tracker(name: str, out: Path, keys: Mapping[str, object]) -> Tracker:
    """The tracker of this name for a run whose results are in `out`.

    keys : of the config, by their dotted names.

    Raises EnvironmentProblem, with what to install, where its library is not there.
    """
    module, package = TRACKERS[name]
    try:
        make: Callable[[Path, Mapping[str, object]], Tracker] = import_module(module).open_tracker
        return make(out, keys)
    except ImportError as error:
        raise EnvironmentProblem(
            f"--metrics {name} needs {package}, which cannot be imported ({error}): "
            f"`pip install {package}`"
        ) from error


@contextmanager
def trackers(
    names: Sequence[str], out: Path, keys: Mapping[str, object], tell: Tell
) -> Iterator[list[Tracker]]:
    """The trackers of these names while a run lasts; arguments as of `open_tracker`.

    What goes wrong when one is closed is told: the run is over, and its results are written.
    """
    opened: dict[str, Tracker] = {}
    try:
        for name in dict.fromkeys(names):
            opened[name] = open_tracker(name, out, keys)
        yield list(opened.values())
    finally:
        for name, tracker in opened.items():
            try:
                tracker.close()
            except Exception as error:
                tell(f"warning: --metrics {name} was not closed well: {error}")


def numbers(line: Line) -> dict[str, float]:
    """What boards draw of a line: {"train/logloss": 0.47, "valid/ndcg_at_5": 0.3, …}."""
    beside = {"step", "samples", "split", "measured"}
    return {
        # MLflow takes no @ in a name
        f"{line['split']}/{name.replace('@', '_at_')}": float(value)
        for name, value in line.items()
        if name not in beside and value is not None
    }
