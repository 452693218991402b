"""Is a predicted probability of 10 % right in 10 % of cases? Clicks by bins of the prediction.

Bins are of equal width in log-odds, since most click rates are far below one half. Counts are
integers and sums are exact (`metrics.fixed_point`): they are those of any number of ranks.
"""

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels.twins.numbers.elementary import exp
from neocpu.parallel.transport.comm import Comm
from neocpu.train.watch.metrics import UNIT, fixed_point

LOG_ODDS = np.arange(-8.0, 8.5, 0.5)  # between bins; the outer bins are open


def reliability(
    scores: NDArray[np.float32], labels: NDArray[np.float32], loss: str, comm: Comm
) -> list[dict[str, object]]:
    """Bins that hold samples: their `samples`, and mean `predicted` probability and `label`.

    scores, labels : f32[n] of this rank. loss : "mse" has no probabilities, and no bins.
    Collective.
    """
    if loss == "mse":
        return []
    edges = 1.0 / (1.0 + exp(-LOG_ODDS))
    bins = np.digitize(scores.astype(np.float64), edges)
    count = edges.size + 1
    local_sums = np.zeros((3, count))
    for row, terms in zip(local_sums, (np.ones_like(scores), scores, labels)):
        # fixed point: fp64 sums of these are exact, so ranks may add them in any order
        row[:] = np.bincount(bins, weights=fixed_point(terms), minlength=count)
    rank_sums = np.empty(comm.size * local_sums.size)
    sizes = np.full(comm.size, local_sums.size)
    comm.allgatherv(local_sums.reshape(-1), rank_sums, sizes)
    samples, predicted, clicked = rank_sums.reshape(comm.size, 3, count).sum(axis=0)
    return [
        {
            "samples": int(samples[i] / UNIT),
            "predicted": predicted[i] / samples[i],
            "label": clicked[i] / samples[i],
        }
        for i in np.flatnonzero(samples).tolist()
    ]
