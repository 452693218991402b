"""Which hour, day or month is a time? Times as hours since 1970, and their codes.

A log says the time as YYMMDDHH (Avazu), in seconds or milliseconds since 1970 (`unix`, `unix_ms`;
of UTC), as ISO 8601 (2014-10-21, 2014-10-21T05:00:30.5Z), or in a format of strptime. A text that
names its offset from UTC becomes a time of UTC; others are taken as they are written.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Bytes, Doubles, Ints
from neocpu.ingest.formats.schema import HOURS

if TYPE_CHECKING:
    import polars as pl

FIRST_HOUR = -719_162 * 24  # 0001-01-01 00:00
LAST_HOUR = 2_932_897 * 24 - 1  # 9999-12-31 23:00
ZONE = r"([+-])(\d{2}):?(\d{2})$"
ISO_FORMATS = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d")


def hours_of_digits(times: Ints, status: Bytes, wrong: int) -> Ints:
    """Hours since 1970 of times YYMMDDHH, i64[n]; status u8[n] gets `wrong` where there is none."""
    year = times // 10**6
    month = times // 10**4 % 100
    day = times // 100 % 100
    hour = times % 100
    good = (
        (times >= 0)
        & (year < 100)
        & (month >= 1)
        & (month <= 12)
        & (day >= 1)
        & (hour < 24)
        & (status == 0)
    )
    # Two digits of a year are of this century: 2000 is 30 years after 1970.
    months = np.where(good, 12 * (30 + year) + month - 1, 0)
    # NumPy's calendar knows how long months are, leap years too.
    first = months.astype("M8[M]").astype("M8[D]").astype(np.int64)
    good &= day <= (months + 1).astype("M8[M]").astype("M8[D]").astype(np.int64) - first
    status[(status == 0) & ~good] = wrong
    return np.where(good, 24 * (first + day - 1) + hour, 0)


def hours_of_seconds(seconds: Doubles, status: Bytes, wrong: int) -> Ints:
    """Hours since 1970 of seconds since then, f64[n], in years 1 to 9999."""
    hours = np.floor(seconds / 3600.0)
    # Compared as fp64, before numbers beyond int64 are converted.
    good = (hours >= FIRST_HOUR) & (hours <= LAST_HOUR) & (status == 0)
    status[(status == 0) & ~good] = wrong
    return np.where(good, hours, 0.0).astype(np.int64)


def hours_of_texts(texts: list[str], form: str, status: Bytes, wrong: int) -> Ints:
    """Hours since 1970 of texts in a form: "iso" or a format of strptime."""
    import polars as pl

    series = pl.Series(texts, dtype=pl.String)
    formats: tuple[str, ...] = (form,)
    offsets = pl.Series([0] * len(texts), dtype=pl.Int64)
    if form == "iso":
        series = series.str.replace("T", " ", literal=True).str.replace("Z$", "")
        offsets = _offsets(series)
        series = series.str.replace(ZONE, "").str.replace(r" (\d{2})$", " $1:00")
        formats = ISO_FORMATS
    elif _lacks_minutes(form):
        series = series + "00"
        formats = (form + "%M",)
    micros = pl.Series([None] * len(texts), dtype=pl.Int64)
    for each in formats:
        moments = series.str.to_datetime(each, time_unit="us", strict=False).cast(pl.Int64)
        # The first form that fits a text counts: later ones only fill what is still null.
        micros = micros.zip_with(micros.is_not_null(), moments)
    hours = (micros - offsets) // 3_600_000_000
    good = (hours.is_between(FIRST_HOUR, LAST_HOUR).fill_null(False)).to_numpy() & (status == 0)
    status[(status == 0) & ~good] = wrong
    values: Ints = hours.fill_null(0).to_numpy()
    return np.where(good, values, 0)


def _lacks_minutes(form: str) -> bool:
    """Whether a format has hours only; polars wants minutes too."""
    return "%H" in form and "%M" not in form


def _offsets(series: "pl.Series") -> "pl.Series":
    """The offset from UTC that ends each text, in microseconds; 0 where there is none."""
    import polars as pl

    parts = series.str.extract_groups(ZONE).struct
    minutes = parts.field("2").cast(pl.Int64) * 60 + parts.field("3").cast(pl.Int64)
    negative = (parts.field("1") == "-").fill_null(False)
    return minutes.zip_with(~negative, -minutes).fill_null(0) * 60_000_000


def time_codes(kind: str, hours: Ints, status: Bytes) -> NDArray[np.uint64]:
    """Codes of times in hours since 1970; 0 where there is none."""
    days = hours // 24
    if kind == "hour":
        codes = hours % 24 + 1
    elif kind == "weekday":
        codes = (days + 3) % 7 + 1  # day 0, 1970-01-01, was a Thursday
    else:
        dates = days.astype("M8[D]")
        months = dates.astype("M8[M]")
        month = months.astype(np.int64) % 12 + 1
        day = (dates - months.astype("M8[D]")).astype(np.int64) + 1
        year = dates.astype("M8[Y]").astype(np.int64) + 1970
        codes = {"day": day, "month": month, "date": year * 10_000 + month * 100 + day}[kind]
    return np.where(status == 0, codes, 0).astype(np.uint64)


def format_fault(form: str) -> str:
    """Why a form of times cannot be used, or ""."""
    import polars as pl

    if "%" not in form:
        return f"must be {HOURS}, unix, unix_ms, iso, or a format as %Y-%m-%d %H:%M:%S"
    try:
        pl.Series(["2014"]).str.to_datetime(form + "%M" * _lacks_minutes(form), strict=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError) as error:
        return f"is not a format of strptime: {str(error).splitlines()[0][:200]}"
    return ""
