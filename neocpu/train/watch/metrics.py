"""How good are predictions? In numbers that depend neither on the samples' order nor on ranks.

Every number is made of exact sums of its terms, so the order of addition does not matter:

    logloss      mean of -log(p) for clicks, -log(1 - p) for the others, in fp64 (p inside `CLIP`);
                 of batches that were trained on the mean of their losses (`Window`)
    ne           normalised entropy: logloss / entropy of the split's own click rate (He et al.
                 2014; Neo's metric)
    auc          (pairs of a click above a non-click + half of those with equal p) / all such pairs,
                 counted in integers
    calibration  mean p / mean label
    accuracy     share of samples with (p >= 0.5) = label
    mse          mean of (z - y)^2, for `model.loss = mse`

Metrics of groups, such as users, are in `ranking.py`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Bools, Doubles, Floats, Ints
from neocpu.kernels.twins.numbers.elementary import log, log1p
from neocpu.parallel.transport.comm import Comm

CLIP = (2.0**-126, 1.0 - 2.0**-25)  # smallest normal fp32; halfway from 1 to the fp32 below it
UNIT = 2.0**24  # of a fixed-point 1
CANDIDATES = 1024  # keys that each rank offers when ranks divide the range of scores


@dataclass(frozen=True)
class Metrics:
    """Metrics of one split.

    None where one is not defined: a single class, no samples, the other loss. rate : the mean
    label. ranking : metrics of groups (`ranking.py`), {} where no group is asked for.
    """

    samples: int
    logloss: float | None = None
    ne: float | None = None
    auc: float | None = None
    calibration: float | None = None
    accuracy: float | None = None
    mse: float | None = None
    rate: float | None = None
    ranking: Mapping[str, float | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, float | None]:
        """The metrics by name, JSON-able.

        A classifier has no `mse`; a regression has `mse` and `calibration` only, one of classes
        without probabilities `accuracy` only.
        """
        if self.accuracy is not None and self.logloss is None:
            return {"samples": self.samples, "accuracy": self.accuracy, **self.ranking}
        skipped = ("logloss", "ne", "auc", "accuracy") if self.mse is not None else ("mse",)
        skipped = (*skipped, "rate", "ranking")
        values = {name: value for name, value in asdict(self).items() if name not in skipped}
        return values | dict(self.ranking)


def compute(
    scores: Floats, labels: Floats, loss: str, comm: Comm, losses: Floats | None = None
) -> Metrics:
    """Metrics over all ranks' samples: predictions f32[n] and labels f32[n] of this rank.

    Collective.

    loss : "bce" (scores are probabilities) or "mse" (scores are numbers).
    losses : f32[n], of the logits, where they are known; None: those of the scores.
    """
    p = scores.astype(np.float64)
    y = labels.astype(np.float64)
    if loss == "mse":
        return _regression(comm, p, y, (p - y) * (p - y) if losses is None else losses)
    clicked = y == 1
    if losses is None:
        # clipped: an fp32 sigmoid reaches 0 and 1, whose loss is infinite
        terms = y * -log(np.maximum(p, CLIP[0])) + (1.0 - y) * -log1p(-np.minimum(p, CLIP[1]))
    else:
        terms = losses.astype(np.float64)
    right = ((p >= 0.5) == clicked).astype(np.float64)
    soft = ((y != 0) & (y != 1)).astype(np.float64)  # labels that are no class
    count, total_loss, predicted, clicks, correct, unclear = _totals(
        comm, [np.ones_like(p), terms, p, y, right, soft]
    )
    auc = count_auc(scores, clicked, comm)
    n = int(count or 0)
    if not n or total_loss is None or predicted is None or clicks is None:
        return Metrics(n)
    logloss = float(total_loss / n)
    rate = float(clicks / n)
    spread = entropy(rate)
    return Metrics(
        n,
        logloss,
        ne=logloss / spread if spread else None,
        auc=None if unclear else auc,
        calibration=float(predicted / clicks) if clicks else None,
        accuracy=None if unclear or correct is None else float(correct / n),
        rate=rate,
    )


def mean_of(terms: Doubles, comm: Comm) -> float | None:
    """The mean of numbers f64[n] of all ranks, exact but for its last rounding; None of none."""
    count, total = _totals(comm, [np.ones_like(terms), terms])
    return float(total / count) if count and total is not None else None


def fixed_point(terms: Floats) -> Doubles:
    """Terms f32[n] as whole multiples of 2^-24, times 2^24.

    Their sums are exact in fp64 while they stay below 2^29, whatever their order.
    """
    fixed = np.multiply(terms, UNIT, dtype=np.float64)
    return np.rint(fixed, out=fixed)


def binned(bins: Ints, terms: Doubles, count: int) -> Doubles:
    """Sums of terms f64[n] by bin i64[n], f64[count]; each adds its terms in their order."""
    return np.bincount(bins, weights=terms, minlength=count).astype(np.float64)


def entropy(rate: float) -> float:
    """Of a click rate, in nats; 0 where it is 0 or 1."""
    if not 0 < rate < 1:
        return 0.0
    return -(rate * _log(rate) + (1 - rate) * _log(1 - rate))


def _log(x: float) -> float:
    """Natural logarithm, the same on every machine."""
    return float(log(np.array([x]))[0])


def _regression(comm: Comm, z: Doubles, y: Doubles, errors: NDArray[np.floating]) -> Metrics:
    """Metrics of numbers z f64[n] with squared errors [n] for labels y f64[n]."""
    terms = [np.ones_like(z), errors.astype(np.float64), z, y]
    count, squares, predicted, labels = _totals(comm, terms)
    n = int(count or 0)
    if not n or squares is None:
        return Metrics(n)
    return Metrics(
        n,
        mse=float(squares / n),
        calibration=float(predicted / labels) if predicted and labels else None,
    )


def exact_sum(x: Doubles) -> Fraction | None:
    """The sum of fp64 numbers without any rounding; None where one is not finite.

    Numbers of one exponent are added as integers, in halves of 26 bits so that int64 holds 2^36 of
    them.
    """
    if not np.isfinite(x).all():
        return None
    mantissa, exponent = np.frexp(x)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    low = whole & ((1 << 26) - 1)
    high = (whole - low) >> 26
    total = Fraction(0)
    for e in np.unique(exponent).tolist():
        same = exponent == e
        mantissas = (int(high[same].sum()) << 26) + int(low[same].sum())
        total += Fraction(mantissas) * Fraction(2) ** (e - 53)
    return total


def _totals(comm: Comm, terms: Sequence[Doubles]) -> list[Fraction | None]:
    """Exact sums over all ranks of each array; None where a term is not finite."""
    # as text: an exact sum may have more digits than any number that travels
    local_sums = " ".join(_to_text(exact_sum(x)) for x in terms)
    totals: list[Fraction | None] = [Fraction(0)] * len(terms)
    for message in comm.allgather_bytes(local_sums.encode()):
        for i, text in enumerate(message.decode().split(" ")):
            of_rank = _from_text(text)
            total = totals[i]
            totals[i] = None if of_rank is None or total is None else total + of_rank
    return totals


def _to_text(number: Fraction | None) -> str:
    return "nan" if number is None else f"{number.numerator:x}/{number.denominator:x}"


def _from_text(text: str) -> Fraction | None:
    if text == "nan":
        return None
    numerator, denominator = text.split("/")
    return Fraction(int(numerator, 16), int(denominator, 16))


def count_auc(scores: Floats, clicked: Bools, comm: Comm) -> float | None:
    """Exact area under the ROC curve over all ranks, ties counted half.

    None for a single class or a NaN. Collective.

    Ranks agree on ranges of scores, each counts one range, and only sorted counts travel.
    """
    histogram = _histogram(scores, clicked)
    has_nan = bool(np.isnan(scores).any())
    # equal scores meet on one rank, where ties are counted
    histogram = _exchange(histogram, _bounds(histogram.keys, comm), comm)
    clicks = histogram.clicks
    non_clicks = histogram.non_clicks
    totals = np.empty(2 * comm.size, np.int64)  # clicks and non-clicks of each rank's range
    local_totals = np.array([clicks.sum(), non_clicks.sum()], np.int64)
    comm.allgatherv(local_totals, totals, np.full(comm.size, 2))
    lower_ranges = int(totals[1 : 2 * comm.rank : 2].sum())
    below = lower_ranges + np.cumsum(non_clicks) - non_clicks
    # in half pairs: a click counts twice for each non-click below it, once for one of equal score
    halves = int((clicks * (2 * below + non_clicks)).sum())
    counts = np.empty(2 * comm.size, np.int64)
    comm.allgatherv(np.array([halves, has_nan], np.int64), counts, np.full(comm.size, 2))
    pairs = int(totals[::2].sum()) * int(totals[1::2].sum())
    if not pairs or counts[1::2].any():
        return None
    half_pairs: int = sum(counts[::2].tolist())
    # integers of Python: the number of pairs may exceed 2^63
    return half_pairs / (2 * pairs)


class _Histogram(NamedTuple):
    """How many clicks and non-clicks have each score.

    keys : distinct scores as integers of the same order, i64[n] ascending. clicks, non_clicks :
    i64[n].
    """

    keys: Ints
    clicks: Ints
    non_clicks: Ints


def _histogram(scores: Floats, clicked: Bools) -> _Histogram:
    """Histogram of this rank's scores."""
    bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)  # -0 becomes +0
    # floats order as these integers do, so bounds and ties are exact
    keys = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    distinct, inverse = np.unique(keys, return_inverse=True)
    clicks = np.bincount(inverse[clicked], minlength=distinct.size).astype(np.int64)
    non_clicks = np.bincount(inverse[~clicked], minlength=distinct.size).astype(np.int64)
    return _Histogram(distinct, clicks, non_clicks)


def _bounds(keys: Ints, comm: Comm) -> Ints:
    """ranks - 1 keys that divide all ranks' keys about evenly; any bounds give the same count."""
    picked = keys
    if keys.size:
        places = np.linspace(0, keys.size - 1, min(CANDIDATES, keys.size))
        picked = keys[places.astype(np.int64)]
    counts = np.empty(comm.size, np.int64)
    comm.allgatherv(np.array([picked.size], np.int64), counts, np.ones(comm.size, np.int64))
    candidates = np.empty(int(counts.sum()), np.int64)
    comm.allgatherv(np.ascontiguousarray(picked), candidates, counts)
    candidates.sort()
    if not candidates.size:
        return np.zeros(comm.size - 1, np.int64)
    return candidates[np.arange(1, comm.size) * candidates.size // comm.size]


def _exchange(histogram: _Histogram, bounds: Ints, comm: Comm) -> _Histogram:
    """Histogram of all ranks' scores in this rank's range; bounds : between the ranges."""
    keys = histogram.keys
    cuts = np.concatenate([[0], np.searchsorted(keys, bounds), [keys.size]])
    sends = np.diff(cuts)
    recvs = comm.alltoall(sends)
    received = []
    for column in histogram:
        values = np.empty(int(recvs.sum()), np.int64)
        comm.alltoallv(np.ascontiguousarray(column), sends, values, recvs)
        received.append(values)
    distinct, inverse = np.unique(received[0], return_inverse=True)
    clicks = np.zeros(distinct.size, np.int64)
    non_clicks = np.zeros(distinct.size, np.int64)
    np.add.at(clicks, inverse, received[1])
    np.add.at(non_clicks, inverse, received[2])
    return _Histogram(distinct, clicks, non_clicks)


class Window:
    """The predictions of the last `size` batches, for metrics of training.

    Their loss is the one that was minimised, that of the logits, as in the lines between
    measurements: a sample that is predicted with certainty and wrong counts in full.
    """

    def __init__(self, size: int) -> None:
        self._batches: deque[tuple[Floats, Floats, Floats]] = deque(maxlen=size)

    def add(self, scores: Floats, labels: Floats, losses: Floats) -> None:
        """Remember this rank's predictions, labels and losses, f32[b] each, of one batch."""
        # copies: the model's buffers belong to the next batch
        self._batches.append((scores.copy(), labels.copy(), losses.copy()))

    def metrics(self, loss: str, comm: Comm) -> Metrics:
        """Metrics over what is remembered, of all ranks. Collective."""
        empty = (np.empty(0, np.float32),) * 3
        scores, labels, losses = map(np.concatenate, zip(empty, *self._batches))
        return compute(scores, labels, loss, comm, losses)
