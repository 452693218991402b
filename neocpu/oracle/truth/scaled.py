"""Which codes, scale and bias may stand for a row that was updated and is stored row-scaled again?

    row in fp32, within its errors ──► least, greatest number ──► bias, scale ──► codes

Decoded, updated in fp32, encoded: a stored row is right if some row within the errors of the update
encodes to it. Each number of it is judged on its own, which accepts a few rows more. The encoders
that docs/formats.md names are all right: those of int8 differ by an epsilon of up to 1e-8 beside
the range, which matters where that is tiny.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from neocpu.core.types import Bools
from neocpu.oracle.operator import Arrays, Truth, Truths
from neocpu.oracle.truth.bags import SCALED, fused_rows, tables_of
from neocpu.oracle.truth.formats import in_format, limits
from neocpu.oracle.truth.numbers import ULP, Bounded, Real

EPSILON = 1.001e-8  # beside the range of an int8 row, at most
# Relative error of (x - bias) * inverse beside those of x, bias and scale.
ROUNDINGS_OF_A_CODE = 4 * ULP
ROUNDED: dict[str, Callable[[Real], Real]] = {
    "nearest": np.rint,
    "away": lambda v: np.floor(v + 0.5),
    "toward_zero": np.floor,
}


@dataclass(frozen=True)
class Interval:
    """Numbers that a correct kernel may hold: from low to high."""

    low: Real
    high: Real

    @property
    def bounded(self) -> Bounded:
        """The middle, and how far either end is from it."""
        middle = (self.low + self.high) / 2
        return Bounded(middle, np.maximum(self.high - middle, middle - self.low))


def interval_of(truth: Truth) -> Bounded:
    """The numbers that a truth allows, as what is computed on; unknown where it allows any."""
    low = truth.reference - truth.bound if truth.lower is None else truth.lower
    high = truth.reference + truth.bound if truth.upper is None else truth.upper
    numbers = Interval(low, high).bounded
    known = np.isfinite(low) & np.isfinite(high)
    return Bounded(np.where(known, numbers.value, 0.0), np.where(known, numbers.error, np.inf))


def parts_of(inputs: Arrays, name: str) -> dict[str, Real]:
    """Codes [elements], scales and biases [rows] of all row-scaled rows of the inputs, in fp64."""
    parts: dict[str, list[Real]] = {"codes": [], "scale": [], "bias": []}
    for table_parts in fused_rows(inputs, name):
        for part, values in zip(parts, table_parts):
            parts[part].append(values.reshape(-1))
    return {part: np.concatenate(values) for part, values in parts.items()}


def stored_tables(inputs: Arrays, name: str, x: Bounded, touched: Bools, rounding: str) -> Truths:
    """The truths of the parts of all rows after an update.

    x : the rows of all tables, flat. touched : bool[rows], whether the update wrote a row; others
        stay as they are in the inputs.
    """
    tables = tables_of(inputs)
    before = parts_of(inputs, name)
    header = header_format(name)
    by_table = []
    for t, columns in enumerate(tables.dims.tolist()):
        elements = slice(tables.first_element[t], tables.first_element[t + 1])
        rows = slice(tables.first_row[t], tables.first_row[t + 1])
        table = x.take(elements).reshape(int(rows.stop - rows.start), columns)
        after = stored_rows(table, name, rounding)
        written = {"codes": np.repeat(touched[rows], columns)}
        by_table.append(
            {
                part: _where(
                    written.get(part, touched[rows]),
                    truth,
                    before[part][elements if part == "codes" else rows],
                )
                for part, truth in after.items()
            }
        )
    formats = {"codes": "fp32", "scale": header, "bias": header}
    return {
        part: _joined([truths[part] for truths in by_table], form) for part, form in formats.items()
    }


def header_format(name: str) -> str:
    """The format of scale and bias of a row-scaled format."""
    return {4: "fp32", 2: "fp16"}[np.dtype(SCALED[name][1]).itemsize]


def stored_rows(x: Bounded, name: str, rounding: str) -> Truths:
    """The truths of codes [U, D], scale [U] and bias [U] of rows x [U, D] in a row-scaled format.

    Unknown where the update is, or where a range may be 0.
    """
    top_code = (1 << SCALED[name][0]) - 1
    header = header_format(name)
    low = x.value - x.error
    high = x.value + x.error
    least = Interval(low.min(1), high.min(1))
    greatest = Interval(low.max(1), high.max(1))
    bias = in_format(least.bounded, header)
    if header != "fp32":
        least = Interval(*limits(least.bounded, header))
    scale = (greatest.bounded - least.bounded) / Bounded.exactly(float(top_code))
    step = Interval(*limits(scale, header))
    epsilon = EPSILON if header == "fp32" else 0.0
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(low + high).all(1) & (step.low > 0) & np.isfinite(step.high)
    codes = _codes(Interval(low, high), least, step, epsilon, top_code, rounding)
    return {
        "codes": _unless(finite[:, None], codes),
        "scale": _unless(finite, in_format(scale, header)),
        "bias": _unless(finite, bias),
    }


def _codes(
    x: Interval, least: Interval, step: Interval, epsilon: float, most: int, rounding: str
) -> Truth:
    """Codes of numbers x [U, D] under a bias and a scale [U], whole numbers up to `most`."""
    with np.errstate(all="ignore"):
        below = (x.low - least.high[:, None]) / (step.high + epsilon / most)[:, None]
        above = (x.high - least.low[:, None]) / step.low[:, None]
        below = np.clip(below * (1 - ROUNDINGS_OF_A_CODE), 0, most)
        above = np.clip(above * (1 + ROUNDINGS_OF_A_CODE), 0, most)
        middle = (below + above) / 2
        if rounding == "stochastic":
            # A code may be anything between what the ends of all intervals allow.
            lower = np.floor(below)
            upper = np.ceil(above)
            reference = middle
            # Between two neighbours only; over a wider range no chance is certain.
            probability = np.where(upper - lower == 1, middle - lower, np.nan)
        else:
            lower, reference, upper = (ROUNDED[rounding](v) for v in (below, middle, above))
            probability = None
    bound = np.maximum(upper - reference, reference - lower)
    return Truth(reference, bound, lower, upper, probability)


def _unless(known: Bools, truth: Truth) -> Truth:
    """The truth where it is known; anything elsewhere."""
    unknown = ~np.broadcast_to(known, truth.reference.shape)
    anything = Truth(
        np.zeros(unknown.shape),
        np.full(unknown.shape, np.inf),
        np.full(unknown.shape, -np.inf),
        np.full(unknown.shape, np.inf),
        np.full(unknown.shape, np.nan),
    )
    return _chosen(unknown, anything, truth)


def _where(written: Bools, after: Truth, before: Real) -> Truth:
    """The flat truth of numbers that were written; of all others, what they were."""
    flat = after.with_arrays({part: x.reshape(-1) for part, x in after.arrays().items()})
    unknown = np.full(before.shape, np.nan)
    return _chosen(~written, Truth(before, np.zeros(before.shape), before, before, unknown), flat)


def _chosen(condition: Bools, yes: Truth, no: Truth) -> Truth:
    """Elements of `yes` where the condition holds, else of `no`; the arrays that `no` has."""
    parts = no.arrays().items()
    return no.with_arrays({part: np.where(condition, getattr(yes, part), x) for part, x in parts})


def _joined(truths: list[Truth], form: str) -> Truth:
    """Flat truths one after the other."""
    by_truth = [truth.arrays() for truth in truths]
    parts = {part: np.concatenate([arrays[part] for arrays in by_truth]) for part in by_truth[0]}
    return replace(truths[0], format=form).with_arrays(parts)
