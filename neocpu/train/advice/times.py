"""Is a column one of times, and in which form?"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from neocpu.ingest.formats.times import hours_of_texts

TIME = re.compile(
    r"(^|_)(time|timestamp|ts|date|datetime|day|hour|created|updated|when)(_|\d*$)"
    r"|(time|timestamp|date)$",
    re.IGNORECASE,
)
CHECKED = 1000  # values whose form is guessed
MOST = 0.98  # share of values of a form from which the column has it
ABSENT = 5  # other texts, which stand for a missing time
ISO = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d.*)?)?")
HOURS = re.compile(r"\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])")
DIGITS = re.compile(r"\d{8,14}(\.\d+)?")
DATED = re.compile(r"(?=.*\d)[\w./, :-]{6,40}")
# formats of strptime; the month before the day where both fit
DATES = ("%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%m-%d-%Y", "%d-%m-%Y")
NAMED_MONTHS = ("%d-%b-%Y", "%d/%b/%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y")
CLOCKS = (" %I:%M:%S %p", " %I:%M %p", " %H:%M:%S", " %H:%M", " %H", "")
FORMATS = (
    *(f"{date}{clock}" for date in (*DATES, *NAMED_MONTHS) for clock in CLOCKS),
    *("%m %d, %Y", "%a %b %d %H:%M:%S %Y", "%d/%b/%Y:%H:%M:%S"),
)
DIGIT_FORMATS = {8: "%Y%m%d", 10: "%Y%m%d%H", 14: "%Y%m%d%H%M%S"}
# seconds since 1970: from 1990, before which there were no logs, to 2040
FIRST, LAST = 631_152_000, 2_208_988_800
UNITS = {"unix": 1, "unix_ms": 1000}
YEARS = 15 * 365 * 86400  # within which half of a log's times are; names are spread wider


class TimeForm(NamedTuple):
    """The form of a column of times, as the schema calls it, and texts in it that are no times."""

    form: str
    absent: tuple[str, ...] = ()


def time_form(name: str, present: pl.Series, is_code: bool) -> TimeForm | None:
    """The form of a column of times, or None.

    is_code : its name says that it names something; its numbers are no times then.
    """
    if present.dtype.is_temporal():
        return TimeForm("iso") if present.dtype in (pl.Date, pl.Datetime) else None
    named = bool(TIME.search(name))
    values = [*map(_digits, present.head(CHECKED).to_list())]
    if not values:
        return None
    if _share(DIGITS.fullmatch, values) == 1.0:
        form = "" if is_code and not named else _of_digits(present, values, named)
        return TimeForm(form) if form else None
    if present.dtype != pl.String:
        return None
    if _share(ISO.fullmatch, values) >= MOST:
        return _checked("iso", present)
    if _share(DATED.fullmatch, values) < MOST:
        return None
    likely = [form for form in FORMATS if len(_unread(form, values)) <= (1 - MOST) * len(values)]
    return _best(likely, present)


def _share(matches: Callable[[str], object], values: Sequence[str]) -> float:
    return sum(map(bool, map(matches, values))) / len(values)


def _digits(value: object) -> str:
    """A value as text; whole seconds that are stored as floats have no point then."""
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def _of_digits(present: pl.Series, values: Sequence[str], named: bool) -> str:
    """The form of a column of digits only, by its name and by its values."""
    if named and _share(HOURS.fullmatch, values) == 1.0:
        return "YYMMDDHH"
    form = DIGIT_FORMATS.get(len(values[0]), "")
    years = all("1990" <= value[:4] <= "2040" for value in values)
    if form and years and present.dtype == pl.String and not _unread(form, values):
        return form
    numbers = present.cast(pl.Float64, strict=False)
    for form, unit in UNITS.items():
        share = numbers.is_between(FIRST * unit, LAST * unit).mean()
        if isinstance(share, float) and share >= MOST and (named or _are_near(numbers, unit)):
            return form
    return ""


def _are_near(numbers: pl.Series, unit: int) -> bool:
    """Are numbers as near each other as a log's times are, and many?"""
    low, high = numbers.quantile(0.25), numbers.quantile(0.75)
    if low is None or high is None or numbers.n_unique() < 0.01 * numbers.len():
        return False
    return 60 * unit < high - low < YEARS * unit


def _unread(form: str, texts: Sequence[str]) -> list[str]:
    """The texts that are no times in a form, as the schema's parser reads it."""
    status = np.zeros(len(texts), np.uint8)
    hours_of_texts([*texts], form, status, 1)
    return [text for text, wrong in zip(texts, status.tolist()) if wrong]


def _best(likely: Sequence[str], present: pl.Series) -> TimeForm | None:
    """The form that leaves out the fewest texts of a column, the first of several.

    In the order of time the first days of a log may be months as well.
    """
    checked = [time for form in likely if (time := _checked(form, present)) is not None]
    return min(checked, key=lambda time: len(time.absent), default=None)


def other_form(time: TimeForm, present: pl.Series) -> str:
    """Another form in which a column's texts are other times, and as many are none; "": none."""
    swapped = {"%d": "%m", "%m": "%d"}
    form = re.sub("%[dm]", lambda part: swapped[part[0]], time.form)
    if form not in FORMATS or form == time.form:
        return ""
    other = _checked(form, present)
    return form if other is not None and other.absent == time.absent else ""


def _checked(form: str, present: pl.Series) -> TimeForm | None:
    """The form, if all texts but a few words are times in it."""
    unread = _unread(form, present.unique(maintain_order=True).to_list())
    # a number may be a value of other columns, and must not be missing there
    if len(unread) > ABSENT or any(re.fullmatch(r"[-+.\d]+", text) for text in unread):
        return None
    return TimeForm(form, tuple(unread))
