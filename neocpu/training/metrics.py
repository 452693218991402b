"""How good are predictions? Numbers that do not depend on how the samples are spread over ranks, or
on their order.

Every number is made of exact sums of its terms, so nothing is lost to an order of addition:

    logloss      mean of -log(p) for clicks, -log(1 - p) for the others, in fp64 (p inside `CLIP`)
    ne           normalised entropy: logloss / entropy of the split's own click rate (He et al. 2014; Neo's metric)
    auc          (pairs of a click above a non-click + half of those with equal p) / all such pairs, counted in integers
    calibration  mean p / mean label
    accuracy     share of samples with (p >= 0.5) = label
    mse          mean of (z - y)^2, for `model.loss = mse`
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.parallel.comm import Comm
from neocpu.reference.elementary import log, log1p

F32 = NDArray[np.float32]
CLIP = (2.0**-126, 1.0 - 2.0**-25)  # smallest normal fp32; halfway from 1 to the fp32 below it
SAMPLES = 1024  # keys that each rank offers when ranks divide the range of scores


@dataclass(frozen=True)
class Metrics:
    """Metrics of one split; None where one is not defined (a single class, no samples, the other
    loss).
    """

    samples: int
    logloss: float | None = None
    ne: float | None = None
    auc: float | None = None
    calibration: float | None = None
    accuracy: float | None = None
    mse: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; without `mse` for a classifier, without all but `mse` and `calibration` for a
        regression.
        """
        skipped = ("logloss", "ne", "auc", "accuracy") if self.mse is not None else ("mse",)
        return {name: value for name, value in asdict(self).items() if name not in skipped}


def compute(scores: F32, labels: F32, loss: str, comm: Comm) -> Metrics:
    """Metrics over all ranks' samples: predictions f32[n] and labels f32[n] of this rank.
    Collective.

    loss : "bce" (scores are probabilities) or "mse" (scores are numbers).
    """
    p = scores.astype(np.float64)
    y = labels.astype(np.float64)
    if loss == "mse":
        return _regression(comm, [np.ones_like(p), (p - y) * (p - y), p, y])
    clicked = y == 1
    other = y == 0
    terms = y * -log(np.maximum(p, CLIP[0])) + (1.0 - y) * -log1p(-np.minimum(p, CLIP[1]))
    right = ((p >= 0.5) == clicked).astype(np.float64)
    soft = (~clicked & ~other).astype(np.float64)
    count, total, predicted, wanted, correct, unclear = _totals(
        comm, [np.ones_like(p), terms, p, y, right, soft]
    )
    auc = count_auc(scores, clicked, comm)
    n = int(count or 0)
    if not n or total is None or predicted is None or wanted is None:
        return Metrics(n)
    logloss = float(total / n)
    rate = float(wanted / n)
    entropy = -(rate * _log(rate) + (1 - rate) * _log(1 - rate)) if 0 < rate < 1 else 0.0
    return Metrics(
        n,
        logloss,
        ne=logloss / entropy if entropy else None,
        auc=None if unclear else auc,
        calibration=float(predicted / wanted) if wanted else None,
        accuracy=None if unclear or correct is None else float(correct / n),
    )


def _log(x: float) -> float:
    return float(log(np.array([x]))[0])


def _regression(comm: Comm, terms: Sequence[NDArray[np.float64]]) -> Metrics:
    samples, squares, predicted, wanted = _totals(comm, terms)
    n = int(samples or 0)
    if not n or squares is None:
        return Metrics(n)
    return Metrics(
        n,
        mse=float(squares / n),
        calibration=float(predicted / wanted) if predicted and wanted else None,
    )


def exact_sum(x: NDArray[np.float64]) -> Fraction | None:
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
        here = exponent == e
        total += Fraction((int(high[here].sum()) << 26) + int(low[here].sum())) * Fraction(2) ** (
            e - 53
        )
    return total


def _totals(comm: Comm, terms: Sequence[NDArray[np.float64]]) -> list[Fraction | None]:
    """Exact sums over all ranks of each array; None where a term is not finite."""
    mine = " ".join(
        "nan" if (s := exact_sum(x)) is None else f"{s.numerator:x}/{s.denominator:x}"
        for x in terms
    )
    totals: list[Fraction | None] = [Fraction(0)] * len(terms)
    for told in comm.allgather_bytes(mine.encode()):
        for i, text in enumerate(told.decode().split(" ")):
            total = totals[i]
            if text == "nan" or total is None:
                totals[i] = None
            else:
                numerator, denominator = text.split("/")
                totals[i] = total + Fraction(int(numerator, 16), int(denominator, 16))
    return totals


def count_auc(scores: F32, clicked: NDArray[np.bool_], comm: Comm) -> float | None:
    """Exact area under the ROC curve over all ranks, ties counted half; None for a single class or
    a NaN. Collective.

    Ranks agree on ranges of scores, each counts one range, and only sorted counts travel.
    """
    keys, clicks, others = _count_keys(scores, clicked)
    nan = bool(np.isnan(scores).any())
    bounds = _bounds(keys, comm)
    keys, clicks, others = _exchange(keys, clicks, others, bounds, comm)
    totals = np.empty(2 * comm.size, np.int64)
    mine = np.array([clicks.sum(), others.sum()], np.int64)
    comm.allgatherv(mine, totals, np.full(comm.size, 2))
    below = int(totals[1 : 2 * comm.rank : 2].sum())
    # pairs in halves: a click beats every other below it twice, and one of equal score once
    beaten = below + np.cumsum(others) - others
    halves = int((clicks * (2 * beaten + others)).sum())
    found = np.empty(2 * comm.size, np.int64)
    comm.allgatherv(np.array([halves, nan], np.int64), found, np.full(comm.size, 2))
    pairs = int(totals[::2].sum()) * int(totals[1::2].sum())
    return None if not pairs or found[1::2].any() else sum(found[::2].tolist()) / (2 * pairs)


def _count_keys(scores: F32, clicked: NDArray[np.bool_]) -> tuple[NDArray[np.int64], ...]:
    """Distinct scores as integers in the same order, with their clicks and others."""
    bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)  # -0 becomes +0
    keys = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    distinct, inverse = np.unique(keys, return_inverse=True)
    clicks = np.bincount(inverse[clicked], minlength=distinct.size).astype(np.int64)
    others = np.bincount(inverse[~clicked], minlength=distinct.size).astype(np.int64)
    return distinct, clicks, others


def _bounds(keys: NDArray[np.int64], comm: Comm) -> NDArray[np.int64]:
    """size - 1 keys that divide all ranks' keys evenly, more or less; any bounds give the same
    count.
    """
    picked = (
        keys[np.linspace(0, keys.size - 1, min(SAMPLES, keys.size)).astype(np.int64)]
        if keys.size
        else keys
    )
    counts = np.empty(comm.size, np.int64)
    comm.allgatherv(np.array([picked.size], np.int64), counts, np.ones(comm.size, np.int64))
    offered = np.empty(int(counts.sum()), np.int64)
    comm.allgatherv(np.ascontiguousarray(picked), offered, counts)
    offered.sort()
    if not offered.size:
        return np.zeros(comm.size - 1, np.int64)
    return offered[np.arange(1, comm.size) * offered.size // comm.size]


def _exchange(
    keys: NDArray[np.int64],
    clicks: NDArray[np.int64],
    others: NDArray[np.int64],
    bounds: NDArray[np.int64],
    comm: Comm,
) -> tuple[NDArray[np.int64], ...]:
    """My range of keys from all ranks, sorted and merged: distinct keys, clicks, others."""
    cuts = np.concatenate([[0], np.searchsorted(keys, bounds), [keys.size]])
    sends = np.diff(cuts)
    recvs = comm.alltoall(sends)
    arrived = []
    for column in (keys, clicks, others):
        into = np.empty(int(recvs.sum()), np.int64)
        comm.alltoallv(np.ascontiguousarray(column), sends, into, recvs)
        arrived.append(into)
    distinct, inverse = np.unique(arrived[0], return_inverse=True)
    merged = np.zeros((2, distinct.size), np.int64)
    np.add.at(merged[0], inverse, arrived[1])
    np.add.at(merged[1], inverse, arrived[2])
    return distinct, merged[0], merged[1]


class Window:
    """The predictions of the last `size` batches, for metrics of training."""

    def __init__(self, size: int) -> None:
        self._kept: deque[tuple[F32, F32]] = deque(maxlen=size)

    def add(self, scores: F32, labels: F32) -> None:
        """Remember this rank's predictions f32[b] and labels f32[b] of one batch (copied)."""
        self._kept.append((scores.copy(), labels.copy()))

    def metrics(self, loss: str, comm: Comm) -> Metrics:
        """Metrics over what is remembered, of all ranks. Collective."""
        empty = np.empty(0, np.float32)
        scores = np.concatenate([empty, *(s for s, _ in self._kept)])
        labels = np.concatenate([empty, *(y for _, y in self._kept)])
        return compute(scores, labels, loss, comm)
