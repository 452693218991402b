"""Is a column one of numbers, and how do they enter the model?

A number enters as it is, as log(1 + x), or standardised: chosen by its spread, and checked with a
small model on rows held out (`probe.py`).
"""

import numpy as np
import polars as pl

from neocpu.core.errors import ConfigError
from neocpu.core.types import Doubles
from neocpu.train.advice.columns import LogColumn
from neocpu.train.advice.probe import Probe, better, losses

CHECKED = 1000  # values whose form is looked at
SHARE = 0.95  # of values that are numbers from which the column is one
LARGEST = float(np.finfo(np.float32).max)  # of a dense column
ALIKE = (0.5, 2.0)  # deviations of numbers that are about as large as standardised ones
CENTRED = 0.5  # deviations from 0 that their mean may be away
# the same of a logarithm, whose values are too much alike beyond; from the second on it serves
# only where it tells more on rows held out
SPREAD = (6.0, 3.0)
SKEWED = 1.0  # from which a logarithm may serve
SKEW_LEFT = 0.5  # share of the skew that it may leave


def present_in(values: pl.Series) -> pl.Series:
    """The values of a column that are not missing."""
    return (values.fill_nan(None) if values.dtype.is_float() else values).drop_nulls()


def numbers_in(present: pl.Series) -> pl.Series:
    """Its values as f64, null where the schema's parser would read no number."""
    numbers = present.cast(pl.Float64, strict=False)
    readable = numbers.is_finite() & (numbers.abs() <= LARGEST)
    return pl.select(pl.when(readable).then(numbers)).to_series().alias(present.name)


def are_numbers(present: pl.Series) -> bool:
    """Are its values numbers, but for a few?"""
    if present.dtype.is_numeric():
        return True
    if present.dtype != pl.String or not present.len():
        return False
    return numbers_in(present).count() >= SHARE * present.len()


def are_whole(numbers: pl.Series) -> bool:
    """Are all numbers integers?"""
    return bool((numbers == numbers.round(0)).all())


def ends(numbers: pl.Series) -> tuple[float, float]:
    """The least and the largest of some numbers."""
    array = numbers.to_numpy()
    return float(array.min()), float(array.max())


def dense_column(values: pl.Series, probe: Probe | None, why: str) -> LogColumn:
    """A dense column: its kind, and how its numbers get a common size.

    probe : None: the values are not those of rows.

    Raises ConfigError for a column without numbers.
    """
    present = present_in(values)
    numbers = numbers_in(present)
    known = numbers.drop_nulls()
    if not known.len():
        raise ConfigError(f"column {values.name!r} has no numbers; it cannot be dense")
    # "60.0" is written as no integer, and so are decimals
    digits = present.filter(numbers.is_not_null()).cast(pl.String).cast(pl.Int64, strict=False)
    whole = are_whole(known) if present.dtype.is_float() else digits.null_count() == 0
    transform, reason = _transform(numbers_in(values), probe)
    low, high = ends(known)
    return LogColumn(
        values.name,
        "dense",
        "int" if whole else "float",
        transform,
        unreadable=numbers.null_count(),
        distinct=known.n_unique(),
        missing=1 - present.len() / max(values.len(), 1),
        why=f"{why} from {low:g} to {high:g}, {reason}",
    )


def _transform(numbers: pl.Series, probe: Probe | None) -> tuple[str, str]:
    """The transform of a column, f64 with nulls, and why.

    The first of those that fit its spread, unless another one is better on rows held out.
    """
    fitting = _fitting(numbers.drop_nulls().to_numpy())
    chosen, reason = next(iter(fitting.items()))
    if probe is None or not probe.serves or len(fitting) == 1:
        return chosen, reason
    sample = probe.sample(numbers).to_numpy()
    scores = {name: losses(probe, transformed(sample, name)) for name in fitting}
    for name in fitting:
        if better(scores[name], scores[chosen]):
            chosen = name
            reason = f"{fitting[name]}, which tells more on rows held out"
    return chosen, reason


def _fitting(numbers: Doubles) -> dict[str, str]:
    """transform -> why it fits numbers f64[n], the likeliest first."""
    mean, deviation = float(numbers.mean()), float(numbers.std())
    standard = {"standard": f"standardised: {mean:.3g} ± {deviation:.3g}"}
    if ALIKE[0] <= deviation <= ALIKE[1] and abs(mean) <= CENTRED * deviation:
        return {"none": f"as they are: {mean:.3g} ± {deviation:.3g}"} | standard
    logs = np.log1p(np.maximum(numbers, 0.0))
    skew = _skew(numbers)
    # the logarithms of years are alike: 7.58 to 7.61
    if numbers.min() < 0 or logs.mean() > SPREAD[0] * logs.std():
        return standard
    if skew < SKEWED or abs(_skew(logs)) > SKEW_LEFT * skew:
        return standard
    zeros = float((numbers == 0).mean())
    shown = f"log1p: skewed by {skew:.1f}" + (f", {100 * zeros:.0f} % zeros" if zeros else "")
    log1p = {"log1p": shown}
    return standard | log1p if logs.mean() > SPREAD[1] * logs.std() else log1p | standard


def _skew(numbers: Doubles) -> float:
    deviation = float(numbers.std())
    if not deviation:
        return 0.0
    return float((((numbers - numbers.mean()) / deviation) ** 3).mean())


def transformed(numbers: Doubles, transform: str) -> Doubles:
    """Numbers f64[n] as they enter the model; NaN is a missing one, which enters as 0."""
    if transform == "log1p":
        numbers = np.log1p(np.maximum(numbers, 0.0))
    elif transform == "standard":
        numbers = (numbers - np.nanmean(numbers)) / (np.nanstd(numbers) or 1.0)
    return np.nan_to_num(numbers)
