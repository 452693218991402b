"""Which values has a category, or a list of categories, and how many in the whole log?"""

import math
import re
from dataclasses import replace

import polars as pl

from neocpu.ingest.formats.field_values import FALSE_WORDS, TRUE_WORDS
from neocpu.ingest.formats.files.frame_file import Hint
from neocpu.train.advice.columns import LogColumn
from neocpu.train.advice.look import Log
from neocpu.train.advice.numbers import are_numbers, are_whole, numbers_in, present_in

ITEM_SEPARATORS = ("|", ";", ",", " ", "^")
NUMBER_SEPARATORS = (" ", ",", ";", "|")
WEIGHT_SEPARATOR = ":"
LISTS = 0.2  # share of values with a separator from which they are lists
CHECKED = 1000  # values whose form is looked at
LARGEST_INTEGER = 2**53  # up to which a float says which integer it is
# as an integer is written; 007 and +7 are other texts than 7
BRACKETS = r"^[\[(].*[\])]$"
GROUPED = r"^-?\d{1,3}(\.\d{3})+,\d+$|^-?\d{1,3}(,\d{3})+\.\d+$"
MONEY = r"^-?[$€£¥] ?-?\d{1,3}(,?\d{3})*(\.\d+)?$"
PLAIN = r"^-?\d{1,3}([.,]\d+)?$"
INTEGER = r"^(0|-?[1-9]\d*)$"
TRUTHS = [word.decode() for word in (*TRUE_WORDS, *FALSE_WORDS)]


def category(log: Log, values: pl.Series, name: str, min_count: int, kind: str = "") -> LogColumn:
    """A category with its distinct values: now, in the whole log, and those seen often.

    kind : how its values are read; "": by their form. min_count : from which a value is seen often.
    """
    present = present_in(values)
    counts = present.value_counts()["count"] if present.len() else pl.Series([0])
    distinct = present.n_unique()
    return LogColumn(
        name,
        "category",
        kind or ("int" if are_integers(present) else "text"),
        distinct=distinct,
        grown=_grown(present, distinct, log),
        frequent=int((counts >= min_count).sum()),
        missing=1 - present.len() / max(values.len(), 1),
    )


def are_integers(present: pl.Series) -> bool:
    """Are all values integers, whatever they are stored as, so that 5 and 5.0 are one value?

    Truths are 1 and 0, so that true of Parquet and True of pandas' CSV are one value as well.
    """
    if present.dtype.is_float():
        # an empty column has no values that could tell
        within = present.is_finite() & (present.abs() < LARGEST_INTEGER)
        return present.len() > 0 and bool(within.all()) and are_whole(present)
    if present.dtype == pl.UInt64:
        return bool((present < 2**63).all())
    if present.dtype != pl.String:
        return present.dtype.is_integer() or present.dtype == pl.Boolean
    # of more than 64 bits there is no code
    if present.len() and present.is_in(TRUTHS).all():
        return True
    if not present.len() or present.cast(pl.Int64, strict=False).null_count():
        return False
    return bool(present.str.contains(INTEGER).all())


def _grown(present: pl.Series, distinct: int, log: Log) -> int:
    """Distinct values that the whole log may have: they grow as a power of rows (Heaps' law)."""
    if log.whole or not distinct:
        return distinct
    # how fast values are new in what was looked at tells how many are still to come
    half = present.head(present.len() // 2).n_unique()
    power = min(math.log2(distinct / max(half, 1)), 1.0)
    return math.ceil(distinct * (log.rows / log.frame.height) ** power)


def unread_form(present: pl.Series) -> str:
    """Why the texts of a column are in a form that no field has; "": they are not."""
    if present.dtype != pl.String or not present.len():
        return ""
    text = present.head(CHECKED).str.strip_chars()
    if text.str.contains(BRACKETS).all():
        return (
            "lists in brackets, which text is not read with; write a|b|c or 0.1 0.2, or lists as "
            "JSON or Parquet"
        )
    grouped = text.str.contains(GROUPED).any() and text.str.contains(f"{GROUPED}|{PLAIN}").all()
    money = text.str.contains(MONEY).all() and text.str.contains(",", literal=True).any()
    if grouped or money:
        return "numbers with marks between thousands, which are not read; write 1234.5 for 1,234.5"
    return ""


def number_width(values: pl.Series, named: bool) -> tuple[int, str]:
    """(how many numbers each field holds, what separates them) of a column of vectors.

    named : the user says that it is one; else whole numbers in lists are names rather than sizes.
    (0, ""): its fields hold other things, or not as many numbers each.
    """
    present = values.drop_nulls()
    if isinstance(present.dtype, pl.List | pl.Array):
        lists = present.cast(pl.List(present.dtype.inner))
        kind = present.dtype.inner
        numbers = kind.is_numeric() and (named or kind.is_float())
        return (_width(lists) if present.len() and numbers else 0), ""
    if present.dtype != pl.String:
        return 0, ""
    for separator in NUMBER_SEPARATORS:
        lists = present.str.split(separator)
        items = lists.head(CHECKED).list.explode()
        numbers = are_numbers(items) and numbers_in(items).null_count() == 0
        points = named or items.str.contains(".", literal=True).any()
        if numbers and points and _width(lists):
            return _width(lists), separator
    return 0, ""


def _width(lists: pl.Series) -> int:
    """The length of all lists, if it is one and more than 1; else 0."""
    lengths = lists.list.len()
    return int(lengths[0]) if lengths.n_unique() == 1 and lengths[0] > 1 else 0


def list_separator(present: pl.Series, distinct: int) -> str:
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


def forced_kind(hint: Hint) -> str:
    """The kind that a file's form gives a category; "": the values say it."""
    # a token may be any text, an index of libsvm is an integer even where none is looked at
    return hint.kind if hint.kind == "int" else ""


def weight_separator(present: pl.Series, separator: str) -> str:
    """What separates the items of lists from their weights; "": they have none."""
    items = present.cast(pl.String).str.split(separator).list.explode()
    return WEIGHT_SEPARATOR if _weighted(items) else ""


def text_list(log: Log, values: pl.Series, hint: Hint, min_count: int) -> LogColumn:
    """A column of lists as text."""
    items = values.cast(pl.String).str.split(hint.separator).list.explode().drop_nulls()
    codes = _item_codes(items, bool(hint.weight_separator))
    column = category(log, codes, values.name, min_count, forced_kind(hint))
    return replace(
        column,
        role="list",
        separator=hint.separator,
        weight_separator=hint.weight_separator,
        missing=values.null_count() / values.len(),
        items=items.len() / values.len(),
        why=f"its values hold {hint.separator!r}",
    )


def list_column(log: Log, values: pl.Series, min_count: int) -> LogColumn:
    """A list column of Parquet or a frame."""
    if not isinstance(values.dtype, pl.List | pl.Array) or values.dtype.inner.is_nested():
        return LogColumn(values.name, "left out", why=f"its type {values.dtype} is not read")
    lists = values.cast(pl.List(values.dtype.inner))
    items = lists.filter(lists.list.len() > 0).list.explode().drop_nulls()
    return replace(
        category(log, items, values.name, min_count),
        role="list",
        missing=values.null_count() / values.len(),
        items=items.len() / values.len(),
        why="a column of lists",
    )
