"""How do runs become one page? Templates of this folder, filled with what the other files find."""

from collections.abc import Sequence
from dataclasses import dataclass

from neocpu.core.errors import NeocpuError
from neocpu.core.html import html_page
from neocpu.core.types import JsonObject
from neocpu.core.units import bytes_text
from neocpu.parallel.transport.comm import Comm
from neocpu.serve.report import charts, details, quality
from neocpu.serve.report.runs import Run, differing
from neocpu.train.checkpoint.folder import checkpoint_of
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.run.verdict import baseline_of
from neocpu.train.watch.results import silent

SPLITS = ("test", "valid", "progressive", "train")  # the first that was measured says how good
METRICS = ("logloss", "mse", "ne", "auc", "calibration")


@dataclass(frozen=True)
class Overview:
    """A run's line in the table on top; numbers as text, "" where it has none."""

    run: Run
    colour: int
    split: str
    metrics: dict[str, str]
    speed: str
    seconds: str
    memory: str


def page(runs: Sequence[Run]) -> str:
    """The HTML page of these runs, the same for the same files."""
    plans = [details.plan_bars(run) for run in runs]
    curves = charts.curves(runs)
    calibration = charts.calibration(runs)
    overviews = [_overview(run, number) for number, run in enumerate(runs)]
    return html_page(
        "neocpu.serve.report",
        "report.html",
        runs=runs,
        overviews=overviews,
        metric_names=[name for name in METRICS if any(o.metrics[name] for o in overviews)],
        charts=[*curves, *([calibration] if calibration else [])],
        differing=[
            (key, [details.show(value) for value in values]) for key, values in differing(runs)
        ],
        doubts=[(run.name, line) for run in runs for line in quality.doubts(run)],
        bodies=[
            {
                "run": run,
                "colour": overview.colour,
                "changed": details.changed_keys(run),
                "plan": plan,
                "matrix": details.matrix(run),
                "tables": [*quality.tables(run), *details.tables(run)],
            }
            for run, overview, plan in zip(runs, overviews, plans)
        ],
        show=details.show,
        frame=charts,
    )


def _overview(run: Run, number: int) -> Overview:
    """The line of a run: its last measurement of the best split for it."""
    by_split: dict[str, JsonObject] = dict(run.summary.get("metrics") or {})
    if not by_split:
        by_split = {line["split"]: line for line in run.lines}
    split = next((name for name in SPLITS if name in by_split), "")
    values = by_split.get(split, {})
    speed = run.summary.get("samples_per_second")
    memory = run.summary.get("memory_per_rank")
    seconds = run.summary.get("seconds")
    return Overview(
        run=run,
        colour=number % charts.COLOURS + 1,
        split=split,
        metrics={
            name: f"{values[name]:.5f}" if isinstance(values.get(name), float) else ""
            for name in METRICS
        },
        speed=f"{speed:,.0f}" if speed else "",
        seconds=f"{seconds:,.1f}" if seconds else "",
        memory=bytes_text(memory) if memory else "",
    )


def with_baseline(run: Run, comm: Comm) -> JsonObject:
    """The summary of a run with a baseline, fitted to its train data, which must still be there.

    Where it cannot be fitted, a problem of the run says why.
    """
    try:
        with CheckpointFile(checkpoint_of(run.folder)) as file:
            config = file.config(())
        return {**run.summary, "baseline": baseline_of(config, comm, run.folder, silent)}
    except NeocpuError as error:
        run.problems.append(f"no baseline: {error}")
        return run.summary
