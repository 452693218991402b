"""What is each column of a log for? A guess from its name and values, with the reason.

Nothing here is certain, so every guess says what it rests on, and callers may name roles
themselves. Label, dense number, category, list of categories, time, or left out: because it names
the row, holds one value only, or gives the label away.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from neocpu.core.errors import ConfigError
from neocpu.ingest.formats.avazu import avazu_schema
from neocpu.ingest.formats.criteo import DENSE, criteo_schema
from neocpu.train.advice.labels import guess_label, label_kind
from neocpu.train.advice.look import Log

ITEM_SEPARATORS = ("|", ";", ",", " ")
WEIGHT_SEPARATOR = ":"
UNIQUE = 0.98  # share of distinct values from which a column names the row
FEW_ROWS = 20  # fewer say nothing about that
LISTS = 0.2  # share of values with a separator from which they are lists
NUMBERS = 0.99  # share of values that are numbers from which the column is one
TIME = re.compile(
    r"(^|_)(time|timestamp|ts|date|datetime|day|hour|created|updated)(_|$)", re.IGNORECASE
)
CODE = re.compile(
    r"(^|_)(id|ids|code|type|category|cat|zip|postcode|group|cluster|hash|user|item)$"
    r"|(?-i:[a-z]I[dD]s?$)",  # userId
    re.IGNORECASE,
)
# forms of times, by what the schema calls them
TIMES = {
    "YYMMDDHH": re.compile(r"\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])"),
    "iso": re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?"),
    "unix": re.compile(r"1\d{9}"),
    "unix_ms": re.compile(r"1\d{12}"),
}
DAY_FIRST = re.compile(r"\d\d?[./]\d\d?[./]\d{4}([ T].*)?")
DECIMAL_COMMA = re.compile(r"-?\d[\d.]*,\d+")
LARGE = 5  # numbers beyond are made smaller by a transform
CHECKED = 1000  # values whose form is looked at


@dataclass(frozen=True)
class LogColumn:
    """One column: its role and what was seen.

    role : "label", "dense", "category", "list", "time" or "left out". kind : of the schema: "click"
    or "number" of a label, "int" or "float" of a dense column, "text", "int" or "hex" of
    categories. transform : of a dense column. separator, weight_separator : of a list. distinct :
    values (of a list: of its items); `grown`, how many the whole log may have. missing : share of
    empty fields. items : per row. source : the column that a feature is made of, if that is
    another. why : the reason, a phrase.
    """

    name: str
    role: str
    kind: str = ""
    transform: str = ""
    time: str = ""
    separator: str = ""
    weight_separator: str = ""
    distinct: int = 0
    grown: int = 0
    frequent: int = 0
    missing: float = 0.0
    items: float = 1.0
    source: str = ""
    why: str = ""


@dataclass(frozen=True)
class Roles:
    """What callers say themselves; a column that they do not name is guessed.

    min_count : values are counted as frequent from so many rows on.
    """

    label: str = ""
    dense: Collection[str] = ()
    categories: Collection[str] = ()
    left_out: Collection[str] = ()
    min_count: int = 1


def columns_of(log: Log, roles: Roles) -> list[LogColumn]:
    """Every column of a log with its role. Raises ConfigError for names that the log lacks."""
    frame = log.frame
    for name in (roles.label, *roles.dense, *roles.categories, *roles.left_out):
        if name and name not in frame.columns:
            raise ConfigError(
                f"no column {name!r}; the log has {', '.join(map(repr, frame.columns[:60]))}"
            )
    if log.kind == "criteo":
        return [*_known(log, roles, criteo_schema().used[: 1 + DENSE], "hex")]
    if log.kind == "avazu" and roles.label in ("", "click"):
        return [*_known(log, roles, ["click"], "text", frozenset(avazu_schema().used))]
    label = roles.label or guess_label(frame)
    columns = []
    for name in frame.columns:
        if name == label:
            kind, why = label_kind(frame[name])
            columns.append(LogColumn(name, "label", kind, why=why))
        else:
            columns.append(_guess(log, name, roles, label))
    if not any(column.role in ("category", "list", "time") for column in columns):
        # a DLRM needs a table, so whole numbers are taken for codes
        columns = [_as_category(log, column, roles) for column in columns]
    return columns


def _as_category(log: Log, column: LogColumn, roles: Roles) -> LogColumn:
    """A dense column of whole numbers as a category, for a log that has no other categories."""
    if column.kind != "int" or column.role != "dense" or column.name in roles.dense:
        return column
    return _category(log, log.frame[column.name], column.name, "text", roles.min_count)


def _known(
    log: Log, roles: Roles, plain: Sequence[str], kind: str, used: frozenset[str] = frozenset()
) -> Iterator[LogColumn]:
    """The columns of a known log: first the label, then `plain` dense ones, then categories."""
    for name in log.frame.columns:
        values = log.frame[name]
        missing = values.null_count() / max(values.len(), 1)
        if name == plain[0]:
            yield LogColumn(name, "label", "click", missing=missing, distinct=values.n_unique())
        elif name in plain:
            yield LogColumn(name, "dense", "int", "log1p", missing=missing)
        elif used and name not in used:
            yield LogColumn(name, "left out", why="the format does not use it")
        elif name == "hour" and log.kind == "avazu":
            yield LogColumn(name, "time", time="YYMMDDHH", why="a time YYMMDDHH")
        else:
            yield _category(log, values, name, kind, roles.min_count)


def _guess(log: Log, name: str, roles: Roles, label: str) -> LogColumn:
    """The role of a column that is not the label."""
    values = log.frame[name]
    missing = values.null_count() / max(values.len(), 1)
    if name in roles.left_out:
        return LogColumn(name, "left out", why="as asked")
    if name in roles.categories:
        return _category(log, values, name, "text", roles.min_count)
    if values.dtype.is_nested():
        return _list_column(log, values, roles.min_count)
    present = values.drop_nulls()
    if name in roles.dense:
        return _dense(present, missing, "as asked")
    distinct = present.n_unique()
    if distinct <= 1:
        return LogColumn(name, "left out", why="one value in all rows")
    # before numbers: 2024010112 is a time in a column of that name
    if form := _time(name, present):
        return LogColumn(name, "time", time=form, missing=missing, why=f"a time, {form}")
    if why := _not_read(log, present):
        return LogColumn(name, "left out", distinct=distinct, why=why)
    # in a few rows any column may have different values
    if (why := _names_row(present, distinct)) and log.frame.height >= FEW_ROWS:
        return LogColumn(name, "left out", distinct=distinct, why=why)
    if _gives_away(log.frame, name, label):
        why = f"each of its values goes with one value of {label}: it may be known only afterwards"
        return LogColumn(name, "left out", distinct=distinct, why=why)
    # codes are often numbers, and their order means nothing
    if _numbers(present) and not is_code(name, present, distinct):
        return _dense(present, missing, "numbers")
    if separator := _separator(present, distinct):
        return _text_list(log, values, separator, roles.min_count)
    return _category(log, values, name, "text", roles.min_count)


def _not_read(log: Log, present: pl.Series) -> str:
    """Which form of a time or a number its texts have that a schema cannot read; "": none."""
    if present.dtype != pl.String:
        return ""
    values = present.head(CHECKED).to_list()
    if all(map(DAY_FIRST.fullmatch, values)):
        return "a time in a form that is not read; write it as 2024-01-31 12:00"
    semicolons = log.dialect is not None and log.dialect.delimiter == ";"
    if semicolons and all(map(DECIMAL_COMMA.fullmatch, values)):
        return "numbers with a decimal comma, which is not read; write them with a point"
    return ""


def _names_row(present: pl.Series, distinct: int) -> str:
    """Why a column names the row rather than something that rows share; "" if it does not."""
    if distinct < UNIQUE * present.len():
        return ""
    if not _numbers(present):
        return "a value of its own in nearly every row: it names the row"
    numbers = present.cast(pl.Float64, strict=False).drop_nulls()
    whole = bool((numbers == numbers.round(0)).all())
    if whole and (numbers.is_sorted() or CODE.search(present.name)):
        return "whole numbers, another in every row: it names the row"
    return ""


def _gives_away(frame: pl.DataFrame, name: str, label: str) -> bool:
    """Does every value that occurs repeatedly go with one of several values of the label?"""
    if frame[label].n_unique() == 1:
        return False
    pair = frame.select(pl.col(name).cast(pl.String), pl.col(label).alias("__label")).drop_nulls()
    groups = pair.group_by(name).agg(
        pl.len().alias("__rows"), pl.col("__label").n_unique().alias("__labels")
    )
    # one or two rows agree with their label by chance
    repeated = groups.filter(pl.col("__rows") > 2)
    pure = repeated.filter(pl.col("__labels") == 1)
    covered = int(repeated["__rows"].sum())
    return 1 < repeated.height == pure.height and covered > 0.5 * pair.height


def _numbers(present: pl.Series) -> bool:
    if present.dtype.is_numeric():
        return True
    if present.dtype != pl.String:
        return False
    return present.cast(pl.Float64, strict=False).count() >= NUMBERS * present.len()


def _time(name: str, present: pl.Series) -> str:
    """The form of a column of times; "": it is none."""
    if present.dtype.is_temporal():
        return "iso" if present.dtype in (pl.Date, pl.Datetime) else ""
    values = [str(value) for value in present.head(CHECKED).to_list()]
    for form, pattern in TIMES.items():
        # numbers are times only where their name says so
        if (form == "iso" or TIME.search(name)) and all(map(pattern.fullmatch, values)):
            return form
    return ""


def is_code(name: str, present: pl.Series, distinct: int) -> bool:
    """Is a column of numbers one of names? By its own name, or by large numbers with gaps."""
    numbers = present.cast(pl.Float64, strict=False).drop_nulls()
    if not bool((numbers == numbers.round(0)).all()):
        return False
    if CODE.search(name):
        return True
    low, high = _ends(numbers)
    return low >= 1000 and distinct < 0.01 * (high - low) and distinct < 0.5 * numbers.len()


def _ends(numbers: pl.Series) -> tuple[float, float]:
    return float(numbers.min()), float(numbers.max())  # type: ignore[arg-type]


def _dense(present: pl.Series, missing: float, why: str) -> LogColumn:
    """A dense column: its kind, and how its numbers get a common size.

    log1p where they are positive and spread widely, standardised where they are large otherwise.
    """
    numbers = present.cast(pl.Float64, strict=False).drop_nulls()
    if not numbers.len():
        raise ConfigError(f"column {present.name!r} has no numbers; it cannot be dense")
    whole = (
        present.cast(pl.Int64, strict=False).null_count() == 0
    )  # "60.0" is written as no integer
    if present.dtype.is_float():
        whole = bool((numbers == numbers.round(0)).all())
    low, high = _ends(numbers)
    transform = "none"
    if max(abs(low), abs(high)) > LARGE:
        # log1p takes negative numbers as 0
        transform = "log1p" if low >= 0 else "standard"
    return LogColumn(
        present.name,
        "dense",
        "int" if whole else "float",
        transform,
        distinct=numbers.n_unique(),
        missing=missing,
        why=f"{why} from {low:g} to {high:g}",
    )


def _separator(present: pl.Series, distinct: int) -> str:
    """What separates the items of a column of lists; "": its values are no lists.

    Lists have a separator in many values, and fewer distinct items than lists.
    """
    text = present.cast(pl.String).head(100 * CHECKED)
    for separator in ITEM_SEPARATORS:
        share = text.str.contains(separator, literal=True).mean()
        if not isinstance(share, float) or share < LISTS:
            continue
        items = text.str.split(separator).list.explode()
        # items of lists recur in many of them; parts of other texts do not
        if _item_codes(items, _weighted(items)).n_unique() < 0.5 * min(distinct, text.len()):
            return separator
    return ""


def _weighted(items: pl.Series) -> bool:
    """Do all items end with a separator and a number?"""
    shown = [str(item) for item in items.drop_nulls().head(CHECKED).to_list()]
    return bool(shown) and all(
        re.search(rf"{WEIGHT_SEPARATOR}-?\d+(\.\d*)?$", item) for item in shown
    )


def _item_codes(items: pl.Series, weighted: bool) -> pl.Series:
    if not weighted:
        return items
    return items.str.replace(rf"{WEIGHT_SEPARATOR}[^{WEIGHT_SEPARATOR}]*$", "")


def _text_list(log: Log, values: pl.Series, separator: str, min_count: int) -> LogColumn:
    lists = values.cast(pl.String).str.split(separator)
    items = lists.list.explode().drop_nulls()
    weighted = _weighted(items)
    codes = _item_codes(items, weighted)
    column = _category(log, codes, values.name, "text", min_count)
    return LogColumn(
        values.name,
        "list",
        "text",
        separator=separator,
        weight_separator=WEIGHT_SEPARATOR if weighted else "",
        distinct=column.distinct,
        grown=column.grown,
        frequent=column.frequent,
        missing=values.null_count() / max(values.len(), 1),
        items=items.len() / max(values.len(), 1),
        why=f"its values hold {separator!r}",
    )


def _list_column(log: Log, values: pl.Series, min_count: int) -> LogColumn:
    """A list column of Parquet or a frame."""
    if not isinstance(values.dtype, pl.List) or isinstance(values.dtype.inner, pl.List):
        return LogColumn(values.name, "left out", why=f"its type {values.dtype} is not read")
    items = values.list.explode().drop_nulls()
    column = _category(log, items, values.name, "text", min_count)
    return LogColumn(
        values.name,
        "list",
        "int" if items.dtype.is_integer() else "text",
        distinct=column.distinct,
        grown=column.grown,
        frequent=column.frequent,
        missing=values.null_count() / max(values.len(), 1),
        items=items.len() / max(values.len(), 1),
        why="a column of lists",
    )


def _category(log: Log, values: pl.Series, name: str, kind: str, min_count: int) -> LogColumn:
    """A category with its distinct values: now, in the whole log, and those seen often."""
    present = values.drop_nulls()
    counts = present.value_counts()["count"] if present.len() else pl.Series([0])
    distinct = present.n_unique()
    return LogColumn(
        name,
        "category",
        kind,
        distinct=distinct,
        grown=_grown(present, distinct, log),
        frequent=int((counts >= min_count).sum()),
        missing=values.null_count() / max(values.len(), 1),
    )


def _grown(present: pl.Series, distinct: int, log: Log) -> int:
    """Distinct values that the whole log may have: they grow as a power of rows (Heaps' law)."""
    if log.whole or not distinct:
        return distinct
    # how fast values are new in what was looked at tells how many are still to come
    half = present.head(present.len() // 2).n_unique()
    power = min(math.log2(distinct / max(half, 1)), 1.0)
    return math.ceil(distinct * (log.rows / log.frame.height) ** power)


def by_role(columns: Sequence[LogColumn]) -> Mapping[str, list[LogColumn]]:
    """role -> its columns, in the log's order."""
    roles: dict[str, list[LogColumn]] = {}
    for column in columns:
        roles.setdefault(column.role, []).append(column)
    return roles
