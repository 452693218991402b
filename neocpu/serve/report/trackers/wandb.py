"""How does Weights & Biases follow a run? As its WANDB_* variables say, offline without them.

Files of an offline run are in OUT/wandb; `wandb sync` sends them later.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import wandb

from neocpu.serve.report.trackers import Line, numbers


class Wandb:
    """Logs to one run."""

    def __init__(self, run: "wandb.Run") -> None:
        self._run = run

    def __call__(self, line: Line) -> None:
        """Log a line's numbers at its step."""
        # lines of several splits share a step
        self._run.log({**numbers(line), "step": line["step"], "samples": line["samples"]})

    def close(self) -> None:
        """Say that the run is finished."""
        self._run.finish()


def open_tracker(out: Path, keys: Mapping[str, object]) -> Wandb:
    """The tracker of a run."""
    out.mkdir(parents=True, exist_ok=True)
    online = "WANDB_API_KEY" in os.environ
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "neocpu"),
        name=out.name,
        dir=str(out),
        config=dict(keys),
        mode=os.environ.get("WANDB_MODE", "online" if online else "offline"),
        # W&B would record the terminal, and print into the run's own lines
        settings=wandb.Settings(console="off", silent=True),
    )
    # W&B's own step counts calls, and lines of several splits share a step
    run.define_metric("*", step_metric="step")
    return Wandb(run)
