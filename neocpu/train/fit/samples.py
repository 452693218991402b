"""Which samples are fitted, in which order, and what does each weigh?

A sample's loss counts w times, as if its row stood w times in the log; those that weigh 0 are as
rows that are not there: no column, label or mean comes of them.
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.kernels.dense.design import inner_product
from neocpu.train.fit.design import F64, Leaves


@dataclass(frozen=True)
class FitSamples:
    """Samples of a dataset that are fitted.

    order : i64[n], the sample at each position. weights : f64[n], above 0, of each; None: all
    weigh 1. leaves : of this rank.
    """

    data: Dataset
    order: Ints
    weights: F64 | None
    leaves: Leaves

    @property
    def count(self) -> int:
        """How many there are, of all ranks."""
        return self.order.size

    @property
    def own(self) -> Ints:
        """Those of this rank, leaf by leaf."""
        return self.order[self.leaves.positions(self.count)]

    @property
    def own_weights(self) -> F64 | None:
        """The weights of those of this rank."""
        if self.weights is None:
            return None
        return self.weights[self.leaves.positions(self.count)]

    @property
    def total(self) -> float:
        """The sum of all weights."""
        if self.weights is None:
            return float(self.count)
        return inner_product(self.weights, np.ones(self.count))

    @property
    def ends(self) -> Ints:
        """The one of this rank's behind each leaf, i64[leaves]."""
        return self.leaves.rows(self.count, 0, self.count)[1]


def samples_of(data: Dataset, order: Ints, weight: str, leaves: Leaves) -> FitSamples:
    """The samples of data in an order i64[n].

    weight : the label that weighs them ("": all weigh 1). Raises DataError where there is none.
    """
    if not weight:
        return FitSamples(data, order, None, leaves)
    data.check_more("data.sample_weight", [weight])
    weights = data.more_label(weight)[order].astype(np.float64)
    counted = weights > 0
    return FitSamples(data, order[counted], weights[counted], leaves)
