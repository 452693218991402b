"""Which columns does a model need? Those without whose order it predicts worse (Breiman 2001).

The values of one column are dealt out anew among the samples, a category's bag as a whole, and the
same model is measured again. A column that others tell about as well looks less important than it
is.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.file import Samples
from neocpu.ingest.epoch_order import EpochOrder
from neocpu.train.watch.metrics import Metrics

ROWS = 20_000  # measured unless more are asked for
REPEATS = 3


class Importance(NamedTuple):
    """What a model loses with a column, the mean over repeats, and how far repeats are apart.

    loss : increase of the logloss, of the mean squared error where the model regresses. auc : drop
    of the AUC, or None where there is none. loss_spread, auc_spread : half the distance of the
    extremes.
    """

    column: str
    loss: float
    loss_spread: float
    auc: float | None
    auc_spread: float | None


class DealtDataset(Dataset):
    """Some samples of another dataset, of which one column has the values of others of them.

    chosen : i64[n], which samples. column : a feature or a dense column; "": none. order : i64[n],
    whose value of the column each sample has.
    """

    def __init__(self, data: Dataset, chosen: Ints, column: str, order: Ints) -> None:
        # no super().__init__(), which opens files: all else is that of the other
        vars(self).update(vars(data))
        self.rows = chosen.size
        self._whole = data
        self._chosen = chosen
        self._column = column
        self._order = order

    def take(self, samples: Ints, features: Iterable[str] | None = None) -> Samples:
        """Gather samples int64[n], in any order, with the bags of `features` (default: all)."""
        names = list(self.features) if features is None else list(features)
        taken = self._whole.take(self._chosen[samples], names)
        if self._column in names or self._column in self.dense_columns:
            others = self._chosen[self._order[samples]]
            dealt = [self._column] if self._column in names else []
            from_others = self._whole.take(others, dealt)
            taken.features.update(from_others.features)
            for number, name in enumerate(self.dense_columns):
                if name == self._column:
                    taken.dense[:, number] = from_others.dense[:, number]
        return taken


def importances(
    data: Dataset,
    columns: Iterable[str],
    measure: Callable[[Dataset], Metrics],
    repeats: int = REPEATS,
    seed: int = 1,
    rows: int = ROWS,
) -> list[Importance]:
    """The importance of columns, greatest loss first. Collective, as `measure` is.

    columns : features and dense columns. measure : metrics of a dataset. seed : of the deals, the
    same on any ranks. rows : samples that are measured, at most, spread evenly over the data.
    """
    count = min(data.rows, rows)
    chosen = np.arange(count, dtype=np.int64) * data.rows // max(count, 1)
    distinct = list(dict.fromkeys(columns))
    base = measure(DealtDataset(data, chosen, "", chosen))
    result = []
    for number, column in enumerate(distinct):
        measured = []
        for repeat in range(repeats):
            # a deal of its own for each column and repeat
            deal = EpochOrder(count, seed, number * repeats + repeat, True, 1)
            dealt = DealtDataset(data, chosen, column, deal.samples(0, count))
            measured.append(measure(dealt))
        result.append(_importance(column, base, measured))
    return sorted(result, key=lambda each: -each.loss)


def _importance(column: str, base: Metrics, measured: list[Metrics]) -> Importance:
    """What the measurements with a dealt column say beside that without."""
    losses = [_loss(each) - _loss(base) for each in measured]
    areas = [
        base.auc - each.auc for each in measured if base.auc is not None and each.auc is not None
    ]
    loss, loss_spread = _mean(losses)
    if not areas:
        return Importance(column, loss, loss_spread, None, None)
    return Importance(column, loss, loss_spread, *_mean(areas))


def _loss(metrics: Metrics) -> float:
    """What training makes small."""
    loss = metrics.logloss if metrics.mse is None else metrics.mse
    return float("nan") if loss is None else loss


def _mean(values: list[float]) -> tuple[float, float]:
    """The mean, and half the distance of the extremes."""
    return sum(values) / len(values), (max(values) - min(values)) / 2
