"""How does MLflow follow a run? At MLFLOW_TRACKING_URI, or without it in OUT/mlflow.db.

A resumed run goes on in the same MLflow run, whose number stands in OUT/mlflow-run.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from neocpu.serve.report.trackers import Line, numbers

EXPERIMENT = "neocpu"
LONGEST = 500  # characters of a parameter that every MLflow server takes
TOGETHER = 100  # parameters that a server takes at a time


class Mlflow:
    """Logs to one run of one experiment."""

    def __init__(self, client: MlflowClient, run: str) -> None:
        self._client = client
        self._run = run

    def __call__(self, line: Line) -> None:
        """Log a line's numbers at its step."""
        now = int(1000 * time.time())
        metrics = [Metric(name, x, now, line["step"]) for name, x in numbers(line).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        """Say that the run is finished."""
        self._client.set_terminated(self._run)


def open_tracker(out: Path, keys: Mapping[str, object]) -> Mlflow:
    """The tracker of a run."""
    out.mkdir(parents=True, exist_ok=True)
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{out.resolve()}/mlflow.db"
    client = MlflowClient(tracking_uri=uri)
    note = out / "mlflow-run"
    if note.exists():
        run = note.read_text(encoding="ascii").strip()
        # A run that goes on goes on in the same run of MLflow, too.
        client.update_run(run, status="RUNNING")
        return Mlflow(client, run)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    experiment = client.get_experiment_by_name(name)
    number = experiment.experiment_id if experiment else client.create_experiment(name)
    run = client.create_run(number, run_name=out.name).info.run_id
    parameters = [Param(key, str(value)[:LONGEST]) for key, value in keys.items()]
    # servers refuse more at a time
    for start in range(0, len(parameters), TOGETHER):
        client.log_batch(run, params=parameters[start : start + TOGETHER])
    # last: a run that lacks parameters is not gone on with
    note.write_text(f"{run}\n", encoding="ascii")
    return Mlflow(client, run)
