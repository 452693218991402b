"""Is a predicted probability of 10 % right in 10 % of cases? Clicks by bins of the prediction.

Bins of `reliability` are of equal width in log-odds, since most click rates are far below one half;
those of `deciles` hold a tenth of the samples each. Counts are integers and sums are exact
(`metrics.fixed_point`): they are those of any number of ranks.
"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.types import Doubles, Floats, Ints
from neocpu.kernels.twins.numbers.elementary import exp
from neocpu.parallel.transport.comm import Comm
from neocpu.train.watch.metrics import UNIT, Metrics, binned, entropy, fixed_point

Bins = list[dict[str, object]]
LOG_ODDS = np.arange(-8.0, 8.5, 0.5)  # between bins; the outer bins are open
DECILES = 10
OFF = 0.05  # of the clicks, from which their predicted number is told to be wrong
DEVIATIONS = 3.0  # of the number of clicks, which chance seldom exceeds


def reliability(scores: Floats, labels: Floats, loss: str, comm: Comm) -> Bins:
    """Bins that hold samples: their `samples`, and mean `predicted` probability and `label`.

    scores, labels : f32[n] of this rank. loss : "mse" has no probabilities, and no bins.
    Collective.
    """
    if loss == "mse":
        return []
    edges = 1.0 / (1.0 + exp(-LOG_ODDS))
    bins = np.digitize(scores.astype(np.float64), edges)
    return _sums(scores, labels, bins, edges.size + 1, comm)


def deciles(scores: Floats, labels: Floats, loss: str, comm: Comm) -> Bins:
    """As `reliability`, by tenths of all samples in the order of their predictions.

    Equal predictions stay in one bin, so that there may be fewer than ten, of unequal sizes.
    """
    if loss == "mse":
        return []
    bounds = np.unique(_quantiles(scores, DECILES, comm))
    bins = np.searchsorted(bounds, scores, side="right")
    return _sums(scores, labels, bins, bounds.size + 1, comm)


def _quantiles(scores: Floats, parts: int, comm: Comm) -> Floats:
    """The lowest score of all but the first of so many equal parts of all ranks' scores.

    scores : from 0 on. Found byte by byte from the highest: only counts travel.
    """
    keys = np.abs(scores).view(np.int32).astype(np.int64)  # in the order of the scores
    total = int(_of_ranks(np.array([keys.size], np.float64), comm)[0])
    wanted = np.arange(1, parts) * total // parts
    known = np.zeros(parts - 1, np.int64)
    for shift in (24, 16, 8, 0):
        counts = np.zeros((parts - 1, 256))
        for row, prefix in zip(counts, known.tolist()):
            inside = keys[keys >> (shift + 8) == prefix]
            row[:] = np.bincount(inside >> shift & 255, minlength=256)
        upto = np.cumsum(_of_ranks(counts, comm).astype(np.int64), axis=1)
        byte = np.minimum((upto <= wanted[:, None]).sum(axis=1), 255)
        below = np.where(byte > 0, upto[np.arange(parts - 1), byte - 1], 0)
        wanted = wanted - below
        known = known << 8 | byte
    return known.astype(np.int32).view(np.float32)


def _sums(scores: Floats, labels: Floats, bins: Ints, count: int, comm: Comm) -> Bins:
    """What `reliability` says of bins that each sample is in one of."""
    local_sums = np.zeros((3, count))
    for row, terms in zip(local_sums, (np.ones_like(scores), scores, labels)):
        # fixed point: fp64 sums of these are exact, so ranks may add them in any order
        row[:] = binned(bins, fixed_point(terms), count)
    samples, predicted, clicked = _of_ranks(local_sums, comm)
    return [
        {
            "samples": int(samples[i] / UNIT),
            "predicted": predicted[i] / samples[i],
            "label": clicked[i] / samples[i],
        }
        for i in np.flatnonzero(samples).tolist()
    ]


def _of_ranks(numbers: Doubles, comm: Comm) -> Doubles:
    """Sums over all ranks of arrays whose sums are exact in fp64."""
    every = np.empty(comm.size * numbers.size)
    comm.allgatherv(numbers.reshape(-1), every, np.full(comm.size, numbers.size))
    return every.reshape(comm.size, *numbers.shape).sum(axis=0)


def doubts(metrics: Metrics) -> Iterator[str]:
    """What in the metrics of a split says that its model should not be used as it is."""
    rate = metrics.rate
    if metrics.logloss is None or not rate:
        return
    if metrics.ne is not None and metrics.ne > 1:
        yield (
            f"worse than predicting the average: logloss {metrics.logloss:.5f}, that of "
            f"{100 * rate:.2f} % for every sample is {entropy(rate):.5f} (ne {metrics.ne:.3f}); "
            "try fewer epochs, training.patience = 3 or lower learning rates, and look whether "
            "these samples are like those it was trained on"
        )
    if metrics.calibration is None:
        return
    chance = DEVIATIONS * ((1 - rate) / (rate * metrics.samples)) ** 0.5
    off = metrics.calibration - 1
    # a few clicks more or less are no fault of a model
    if abs(off) > max(OFF, chance):
        yield (
            f"predicts {100 * abs(off):.0f} % too {'many' if off > 0 else 'few'} clicks "
            f"(calibration {metrics.calibration:.3f}): probabilities are off, the order of samples "
            "need not be; try to train on newer samples, in the order of time and without "
            "resampling"
        )
