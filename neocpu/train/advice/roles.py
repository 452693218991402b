"""What is each column of a log for? A guess from its name and values, with the reason.

Nothing here is certain, so every guess says what it rests on, and callers may name roles
themselves. Label, dense number, category, list of categories, time, or left out: because it names
the row, holds one value only, is an outcome itself, or gives the label away.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from neocpu.core.errors import ConfigError, listed
from neocpu.ingest.formats.avazu import avazu_schema
from neocpu.ingest.formats.criteo import DENSE, criteo_schema
from neocpu.ingest.formats.files.frame_file import Hint
from neocpu.ingest.formats.nested import leaf_of
from neocpu.train.advice.categories import (
    LARGEST_INTEGER,
    category,
    forced_kind,
    list_column,
    list_separator,
    number_width,
    text_list,
    unread_form,
    weight_separator,
)
from neocpu.train.advice.columns import LogColumn
from neocpu.train.advice.labels import guess_label, label_column, label_numbers
from neocpu.train.advice.look import Log
from neocpu.train.advice.names import gives_away, names_code, outcome_reason
from neocpu.train.advice.numbers import (
    are_numbers,
    are_whole,
    dense_column,
    ends,
    numbers_in,
    present_in,
)
from neocpu.train.advice.probe import Probe, probe_of
from neocpu.train.advice.sizes import MIN_COUNT
from neocpu.train.advice.times import other_form, time_form

UNIQUE = 0.98  # share of distinct values from which a column names the row
FEW_ROWS = 20  # fewer say nothing about that
OFFSET = 300  # deviations from 0, from which whole numbers are names that begin somewhere
GAPS = 0.01  # share of the whole numbers between the ends that occur, below which they are names
LARGE = (1000, 2**40)  # the least and the highest of such names, at least
SHOWN = 60  # column names in a message


@dataclass(frozen=True)
class Roles:
    """What callers say themselves; a column that they do not name is guessed.

    label, dense, categories, left_out : column names. positive, threshold : of the label, the texts
    or the least number that are a click. min_count : values are counted as frequent from so many
    rows on. classes : which texts of a label are classes, "all" or "some": those of which none says
    yes ("": none). weight : the column of how much rows count ("": none).
    """

    label: str = ""
    dense: Collection[str] = ()
    categories: Collection[str] = ()
    left_out: Collection[str] = ()
    positive: Sequence[str] = ()
    threshold: float | None = None
    min_count: int = MIN_COUNT
    classes: str = ""
    weight: str = ""


@dataclass(frozen=True)
class _Guess:
    """What a guess of one column needs: the log, what callers say, the label and its probe."""

    log: Log
    roles: Roles
    label: str
    probe: Probe


def columns_of(log: Log, roles: Roles) -> list[LogColumn]:
    """Every column of a log with its role. Raises ConfigError for names that the log lacks."""
    frame = log.frame
    for name in (roles.label, *roles.dense, *roles.categories, *roles.left_out, roles.weight):
        if name and name not in frame.columns:
            known = listed([*map(repr, frame.columns)], SHOWN)
            raise ConfigError(f"no column {name!r}; the log has {known}")
    if roles.weight and log.kind != "table":
        raise ConfigError(f"weight {roles.weight}: the columns of this log are known; none is it")
    if log.kind == "criteo":
        return [*_known(log, roles, criteo_schema().used[: 1 + DENSE], "hex")]
    if log.kind == "avazu" and roles.label in ("", "click"):
        return [*_known(log, roles, ["click"], "text", frozenset(avazu_schema().used))]
    if not (roles.label or log.labelled):
        raise ConfigError(
            f"{log.paths[0]}: its rows have no labels: they can be scored, not learnt"
        )
    header = log.dialect is None or log.dialect.header
    values = frame[roles.label or guess_label(frame, header, roles.positive)]
    label = label_column(values, roles.positive, roles.threshold, roles.classes)
    if roles.weight:
        _check_weight(frame[roles.weight], label.name)
    guess = _Guess(log, roles, label.name, probe_of_label(log, label))
    return [label if name == label.name else _column(guess, name) for name in frame.columns]


def _check_weight(values: pl.Series, label: str) -> None:
    """Raise ConfigError for weights that are the label, or no numbers from 0 on."""
    name = values.name
    if name == label:
        raise ConfigError(f"weight {name}: it is the label; name another column")
    numbers = pl.Series([None]) if values.dtype.is_nested() else numbers_in(values)
    if numbers.null_count() or (numbers < 0).any():
        raise ConfigError(f"weight {name}: each row needs a number there, from 0 on")


def probe_of_label(log: Log, label: LogColumn) -> Probe:
    """A probe of the label of a log."""
    return probe_of(label_numbers(log.frame[label.name], label), label.kind == "click")


def _known(
    log: Log, roles: Roles, plain: Sequence[str], kind: str, used: frozenset[str] = frozenset()
) -> Iterator[LogColumn]:
    """The columns of a known log: first the label, then `plain` dense ones, then categories."""
    for name in log.frame.columns:
        values = log.frame[name]
        missing = values.null_count() / values.len()
        if name == plain[0]:
            yield LogColumn(name, "label", "click", missing=missing, distinct=values.n_unique())
        elif name in plain:
            yield LogColumn(name, "dense", "int", "log1p", missing=missing)
        elif used and name not in used:
            yield LogColumn(name, "left out", why="the format does not use it")
        elif name == "hour" and log.kind == "avazu":
            yield LogColumn(name, "time", time="YYMMDDHH", why="a time YYMMDDHH")
        else:
            yield category(log, values, name, roles.min_count, kind)


def _column(guess: _Guess, name: str) -> LogColumn:
    """The role of a column that is not the label."""
    values = guess.log.frame[name]
    roles = guess.roles
    if roles.weight and name == roles.weight:
        return LogColumn(name, "weight", why="how much each row counts in training")
    if name in roles.left_out:
        return LogColumn(name, "left out", why="as asked")
    if name in roles.dense:
        return _dense(values, guess.probe, "as asked:", number_width(values, named=True))
    named = name in roles.categories
    if not named and (reason := outcome_reason(guess.probe, values, guess.label)):
        why = f"{reason}; {_taken_back(name, values)}"
        return LogColumn(name, "left out", distinct=values.n_unique(), why=why)
    if not named and (why := unread_form(present_in(values))):
        return LogColumn(name, "left out", why=why)
    vector = number_width(values, named=False)
    if vector[0] and not named:
        return _dense(values, guess.probe, "vectors of numbers", vector)
    hint = guess.log.hints.get(name, Hint(""))
    if hint.kind == "left out" and not named:
        return LogColumn(name, "left out", why=hint.why)
    if isinstance(leaf_of(values.dtype), pl.Binary | pl.Object | pl.Duration):
        return LogColumn(name, "left out", why=f"its type {values.dtype} is not read; cast it")
    if values.dtype.is_nested():
        return list_column(guess.log, values, roles.min_count)
    if named:
        return category(guess.log, values, name, roles.min_count)
    return _of_values(guess, values, hint)


def _taken_back(name: str, values: pl.Series) -> str:
    """The option that takes a column back."""
    role = "dense" if are_numbers(present_in(values)) else "category"
    return f"--{role} {name} takes it back"


def _dense(values: pl.Series, probe: Probe, why: str, vector: tuple[int, str]) -> LogColumn:
    """A column of numbers, or of vectors of as many numbers each: (how many, their separator)."""
    width, separator = vector
    if not width and values.dtype.is_nested():
        raise ConfigError(
            f"column {values.name!r} is of type {values.dtype}, and its lists are no numbers, or "
            "not as many in each row; it cannot be dense"
        )
    if not width:
        return dense_column(values, probe, why)
    lists = values if values.dtype.is_nested() else values.str.split(separator)
    numbers = lists.cast(pl.List(pl.Float64)).list.explode()
    # one size for all: the numbers of a vector are of one kind
    column = dense_column(numbers.alias(values.name), None, why)
    missing = values.null_count() / values.len()
    return replace(column, kind="float", width=width, separator=separator, missing=missing)


def _of_values(guess: _Guess, values: pl.Series, hint: Hint) -> LogColumn:
    """The role that a column's values show, its name, and what the file's form says of it."""
    log, roles, name = guess.log, guess.roles, values.name
    present = present_in(values)
    missing = 1 - present.len() / values.len()
    distinct = present.n_unique()
    if distinct <= 1:
        return LogColumn(name, "left out", why="one value in all rows")
    if hint.separator:
        return text_list(log, values, hint, roles.min_count)
    # before numbers: 2024010112 is a time in a column of that name
    if time := time_form(name, present, names_code(name)):
        why = f"a time, {time.form}"
        column = LogColumn(name, "time", time=time.form, missing=missing, why=why)
        return replace(column, absent=time.absent, also=other_form(time, present))
    separator = list_separator(present, distinct)
    # in a few rows any column may have different values
    why = _names_row(present, distinct)
    if why and log.frame.height >= FEW_ROWS and separator in ("", " "):
        return LogColumn(name, "left out", distinct=distinct, why=why)
    if gives_away(log.frame, name, guess.label):
        why = (
            f"each of its values goes with one value of {guess.label}: it may be known only "
            f"afterwards; {_taken_back(name, values)}"
        )
        return LogColumn(name, "left out", distinct=distinct, why=why)
    if hint.kind:
        return category(log, values, name, roles.min_count, forced_kind(hint))
    # codes are often numbers, and their order means nothing
    if are_numbers(present) and not is_code(name, present, distinct):
        return dense_column(values, guess.probe, "numbers")
    if separator:
        hint = Hint(separator=separator, weight_separator=weight_separator(present, separator))
        return text_list(log, values, hint, roles.min_count)
    return category(log, values, name, roles.min_count)


def _names_row(present: pl.Series, distinct: int) -> str:
    """Why a column names the row rather than something that rows share; "" if it does not."""
    if distinct < UNIQUE * present.len():
        return ""
    if not are_numbers(present):
        return "a value of its own in nearly every row: it names the row"
    numbers = numbers_in(present).drop_nulls()
    if are_whole(numbers) and (numbers.is_sorted() or names_code(present.name)):
        return "whole numbers, another in every row: it names the row"
    return ""


def is_code(name: str, present: pl.Series, distinct: int) -> bool:
    """Is a column of numbers one of names? By its own name, or by its large numbers."""
    numbers = numbers_in(present).drop_nulls()
    if not are_whole(numbers):
        return False
    if names_code(name):
        return True
    if not numbers.len():  # all infinite
        return False
    low, high = ends(numbers)
    above = _above_least(present, numbers)
    spread = int(above.max())
    if low > OFFSET * float(above.std()) > 0:
        return True
    # amounts are rounded: of 10,000, 20,000 … 500,000 none is left out
    step = 1
    if 0 < spread < LARGEST_INTEGER:
        step = int(np.gcd.reduce(above.astype(np.int64)))
    between = spread / step
    large = low >= LARGE[0] or high >= LARGE[1]
    return large and distinct < GAPS * between and distinct < 0.5 * numbers.len()


def _above_least(present: pl.Series, numbers: pl.Series) -> NDArray[np.generic]:
    """How far whole numbers are above the least of them: exact, though as f64 all may be one.

    numbers : those of the values that are some, f64.
    """
    for dtype in (pl.Int64, pl.UInt64):
        exact = present.cast(dtype, strict=False).drop_nulls()
        if exact.len() == numbers.len():
            # differences beyond int64 wrap around, and are right as uint64
            whole = exact.to_numpy()
            return (whole - whole.min()).astype(np.uint64)
    return (numbers - numbers.min()).to_numpy()
