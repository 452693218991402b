"""Which features and tables become of a log's columns?"""

from dataclasses import replace
from itertools import groupby

import polars as pl

from neocpu.core.records import toml_key
from neocpu.train.advice.categories import category
from neocpu.train.advice.columns import LogColumn, LogColumns
from neocpu.train.advice.look import Log
from neocpu.train.advice.numbers import numbers_in, transformed
from neocpu.train.advice.probe import Probe, better, losses, losses_alone
from neocpu.train.advice.sizes import ModelSizes, rows_of

MOST = 26  # columns of numbers that have tables too
BUCKETS = (4, 32)  # the fewest and most of a column
ROWS_OF_VALUE = 4  # on average, so that the row of a number is learnt
ROWS_OF_BUCKET = 50  # at least, so that its row is learnt


def table_columns(columns: LogColumns, log_kind: str) -> list[LogColumn]:
    """Columns that become features; a time gives the hour of its day and its weekday."""
    features = []
    for column in columns:
        if column.role != "time":
            features.append(_renamed(column))
            continue
        table = _table_name(column.name)
        # Avazu's features have names of their own
        names = ("hour", "weekday")
        if log_kind == "table":
            names = (f"{table}_hour", f"{table}_weekday")
        for name, kind, values in zip(names, ("hour", "weekday"), (24, 7)):
            feature = replace(column, name=name, kind=kind, source=column.name)
            features.append(replace(feature, distinct=values, grown=values, frequent=values))
    return features


def _table_name(column: str) -> str:
    return column.replace("/", "_")  # a table's name is one of its files


def _renamed(column: LogColumn) -> LogColumn:
    """The column under a name that a file may have."""
    name = _table_name(column.name)
    return column if name == column.name else replace(column, name=name, source=column.name)


def dense_inputs(columns: LogColumns) -> list[LogColumn]:
    """Columns that become dense inputs."""
    return [_renamed(column) for column in columns if column.role == "dense"]


def number_tables(log: Log, dense: LogColumns, probe: Probe, alone: bool) -> list[LogColumn]:
    """Categories of columns that are dense as well.

    alone : there are no others, and a DLRM needs a table: numbers that recur get a row for each of
    them, others are cut into buckets. Else only whole numbers that may be codes get rows: in a log
    without names, and where they tell more one by one than by their size.
    """
    single = [column for column in dense if not column.width and not column.unreadable]
    if len(single) > MOST and probe.serves:
        single = sorted(single, key=lambda column: _loss(log, column, probe))
    recurring = [column for column in single if _recurs(log, column)]
    unnamed = log.dialect is not None and not log.dialect.header
    if not alone:
        codes = [each for each in recurring if unnamed or _tells_as_code(log, each, probe)]
        return [_values(log, column) for column in codes[:MOST]]
    return [
        _values(log, column) if column in recurring else _buckets(log, column)
        for column in single[:MOST]
    ]


def _recurs(log: Log, column: LogColumn) -> bool:
    """Is each of a column's whole numbers the value of several rows?"""
    return column.kind == "int" and column.distinct * ROWS_OF_VALUE <= log.frame.height


def _tells_as_code(log: Log, column: LogColumn, probe: Probe) -> bool:
    """Do a column's values tell more, each by itself, than their size does?"""
    if not probe.serves:
        return False
    values = log.frame[column.name]
    sizes = probe.sample(numbers_in(values)).to_numpy()
    by_size = losses(probe, transformed(sizes, column.transform))
    return better(losses_alone(probe, values.cast(pl.String)), by_size)


def _values(log: Log, column: LogColumn) -> LogColumn:
    """A category of a column of whole numbers that is dense too."""
    values = category(log, log.frame[column.name], f"{_table_name(column.name)}_value", 1)
    return replace(values, source=column.name)


def _buckets(log: Log, column: LogColumn) -> LogColumn:
    """A category of buckets of a column of numbers."""
    count = min(max(log.rows // ROWS_OF_BUCKET, BUCKETS[0]), BUCKETS[1])
    return LogColumn(
        f"{_table_name(column.name)}_bucket",
        "category",
        "bucket",
        distinct=count,
        grown=count,
        frequent=count,
        source=column.name,
    )


def _loss(log: Log, column: LogColumn, probe: Probe) -> float:
    """The loss on held-out rows of a model of this column alone."""
    sample = probe.sample(numbers_in(log.frame[column.name])).to_numpy()
    return float(losses(probe, transformed(sample, "standard")).mean())


def groups(columns: LogColumns, *keys: str) -> list[dict[str, object]]:
    """Neighbouring columns that agree in these attributes."""
    alike = []
    for values, members in groupby(columns, lambda c: tuple(getattr(c, key) for key in keys)):
        group = list(members)
        names = [column.name for column in group]
        alike.append({"columns": group, "names": names, **dict(zip(keys, values))})
    return alike


def table_entry(column: LogColumn, sizes: ModelSizes) -> dict[str, str]:
    """One table: its key, its body as TOML and a note about its values."""
    rows = rows_of(column, sizes.rows_by)
    body = f"rows = {rows}"
    if column.role == "list":
        body += ', pooling = "mean"' if not column.weight_separator else ", weighted = true"
    estimate = "" if column.grown == column.distinct else f", about {column.grown:,} in all"
    values = "buckets" if column.kind == "bucket" else "values"
    note = f"{column.distinct:,} {values}{estimate}{missing_note(column)}"
    if column.role == "list":
        note += f"; {column.items:.1f} per row"
    key = toml_key(column.name)
    return {"key": key, "body": body, "note": note}


def missing_note(column: LogColumn) -> str:
    """The share of empty fields and of texts that are no numbers, where there are some."""
    empty = f", {100 * column.missing:.1f} % empty" if column.missing else ""
    if not column.unreadable:
        return empty
    return f"{empty}, {column.unreadable:,} texts that are no numbers count as empty"
