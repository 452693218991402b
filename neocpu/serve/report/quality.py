"""What is told of how good a run's model is? Doubts, groups, deciles, and the linear model beside.

As far as its summary has them, whatever version wrote it.
"""

from collections.abc import Mapping, Sequence

from neocpu.core.types import JsonObject
from neocpu.serve.report.details import TextTable
from neocpu.serve.report.runs import Run
from neocpu.train.watch.metrics import Metrics

SPLITS = ("test", "valid")
PLAIN = frozenset(Metrics(0).to_dict()) | {"mse"}  # metrics that are no group's


def doubts(run: Run) -> list[str]:
    """Lines that say why the model should not be used as it is."""
    by_split = run.summary.get("doubts")
    if not isinstance(by_split, Mapping):
        return []
    return [f"{split}: {line}" for split, lines in by_split.items() for line in lines]


def tables(run: Run) -> list[TextTable]:
    """Tables of the summary that have rows."""
    summary = run.summary
    every = (
        _baseline(summary),
        _groups(summary),
        _deciles(summary),
        _importances(run.importances),
    )
    return [table for table in every if table.rows]


def _baseline(summary: JsonObject) -> TextTable:
    """The model and the linear one on the same rows."""
    baseline = summary.get("baseline") or {}
    header = ["", "model", str(baseline.get("model", ""))]
    split = str(baseline.get("split", ""))
    model = (summary.get("metrics") or {}).get(split) or {}
    linear: Mapping[str, object] = baseline.get("metrics") or {}
    rows = [
        [name, f"{model[name]:.5f}", f"{value:.5f}"]
        for name, value in linear.items()
        if isinstance(value, float) and isinstance(model.get(name), float)
    ]
    note = f"on {split}; both learnt from the train split"
    return TextTable("Beside a linear model", note, header, rows)


def _groups(summary: JsonObject) -> TextTable:
    """Metrics of groups by split."""
    metrics = summary.get("metrics") or {}
    splits = [name for name in SPLITS if name in metrics]
    names = dict.fromkeys(name for split in splits for name in metrics[split] if name not in PLAIN)
    rows = [[name, *(_number(metrics[split].get(name)) for split in splits)] for name in names]
    note = "mean over groups; those without a click, or of one label, are left out"
    return TextTable("Order within groups", note, ["", *splits], rows)


def _number(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.5f}" if isinstance(value, float) else ""


def _deciles(summary: JsonObject) -> TextTable:
    """Predicted and clicked shares by tenths of the predictions."""
    by_split = summary.get("deciles") or {}
    split = next((name for name in SPLITS if by_split.get(name)), "")
    bins: Sequence[JsonObject] = by_split.get(split, ())
    rows = [
        [
            f"{number}",
            f"{each['samples']:,}",
            f"{100 * each['predicted']:.3f} %",
            f"{100 * each['label']:.3f} %",
            f"{each['predicted'] / each['label']:.3f}" if each["label"] else "",
        ]
        for number, each in enumerate(bins, 1)
    ]
    note = f"samples of {split} in the order of their predictions, a tenth in each row"
    header = ["tenth", "samples", "predicted", "clicked", "calibration"]
    return TextTable("Calibration by tenths", note, header, rows)


def _importances(importances: JsonObject) -> TextTable:
    """What the model loses with each column."""
    columns: Sequence[JsonObject] = importances.get("columns") or ()
    rows = [
        [
            str(each.get("column", "")),
            *(_number(each.get(name)) for name in ("loss", "loss_spread", "auc", "auc_spread")),
        ]
        for each in columns
    ]
    note = "loss gained and AUC lost when the values of a column are dealt out anew"
    return TextTable(
        "Importance of columns", note, ["column", "loss gained", "±", "auc lost", "±"], rows
    )
