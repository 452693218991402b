"""How does a look at a log become a config? Through a template, `config.toml.j2`.

write_config(["clicks.csv"], "my") -> my/clicks.toml, which `neocpu train` takes as it is
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined

from neocpu.core.errors import ConfigError, DataError, listed
from neocpu.core.records import toml_text
from neocpu.ingest.formats.frames import as_frame
from neocpu.ingest.targets import refuse_sources
from neocpu.train.advice.look import LOOKED_AT, Log, look
from neocpu.train.advice.roles import LogColumn, Roles, by_role, columns_of
from neocpu.train.advice.sizes import MIN_COUNT, ModelSizes, rows_of, sizes_of
from neocpu.train.config import config as configs

SPLIT = (0.8, 0.1, 0.1)
LEAST_SPLIT = 10  # rows; of fewer no part is measured
MEASURED = 10  # times in a pass that the valid part is measured
SHOWN = 12  # columns of one role on the screen
SAVED = 2  # times in a pass that a checkpoint is written
FRAME = "data.parquet"  # file of a frame beside its config
TITLES = {"dense": "numbers", "category": "categories", "list": "lists", "time": "times"}
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Wishes:
    """What callers of `init` say about their log.

    label, dense, categories, left_out : column names. valid, test : files that are measured on;
    with either the train files are not split. looked_at : bytes of text to look at.
    """

    label: str = ""
    dense: Sequence[str] = ()
    categories: Sequence[str] = ()
    left_out: Sequence[str] = ()
    valid: Sequence[str | Path] = ()
    test: Sequence[str | Path] = ()
    looked_at: int = LOOKED_AT


@dataclass(frozen=True)
class ConfigDraft:
    """A config that was drafted: its text, what it was made of, and lines that say so."""

    text: str
    log: Log
    columns: Sequence[LogColumn]
    sizes: ModelSizes
    said: Sequence[str] = field(default_factory=tuple)


def init(
    data: Any,
    out: str | Path = ".",
    *,
    force: bool = False,
    label: str = "",
    dense: Sequence[str] = (),
    categories: Sequence[str] = (),
    left_out: Sequence[str] = (),
    valid: Sequence[str | Path] = (),
    test: Sequence[str | Path] = (),
) -> Path:
    """Look at a log and write a config that trains on it; returns the config's path.

    data : a path, paths of files with the same columns, or a frame (polars, pandas, Arrow, a
        mapping of arrays), which is written to `data.parquet` beside the config.
    out : folder of the config, or the config itself if it ends with ".toml".
    force : replace files that exist. label, dense, categories, left_out : names of columns whose
        role is not to be guessed. valid, test : files to measure on, instead of a split.

    Raises DataError for files that cannot be read, ConfigError where no label is found, a named
    column is missing, or a file exists.
    """
    wishes = Wishes(label, dense, categories, left_out, valid, test)
    if isinstance(data, str | Path):
        data = [data]
    if isinstance(data, Sequence):
        target = target_of(data, out)
        _check_free(target, force)
        write_config(data, target, wishes)
        return target
    target = target_of([FRAME], out)
    parquet = target.parent / FRAME
    for path in (target, parquet):
        _check_free(path, force)
    target.parent.mkdir(parents=True, exist_ok=True)
    as_frame(data).write_parquet(parquet)
    write_config([parquet], target, wishes)
    return target


def target_of(data: Sequence[str | Path], out: str | Path) -> Path:
    """The config that `out` means: itself if it is a file, else one in that folder."""
    out = Path(out)
    if out.suffix == ".toml" or out.is_file():
        return out
    # a pattern as part-*.csv names files, but is no name
    stem = re.sub(r"[*?\[\]]+", "", Path(data[0]).name.split(".")[0]).strip("-_=")
    return out / f"{stem or 'config'}.toml"


def _check_free(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; force=True replaces it")


def write_config(data: Sequence[str | Path], target: Path, wishes: Wishes) -> ConfigDraft:
    """Draft a config for these files and write it. Raises DataError and ConfigError."""
    # a log that ends with .toml would be overwritten by its config
    refuse_sources(target, map(Path, (*data, *wishes.valid, *wishes.test)))
    drafted = draft(data, target, wishes)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(drafted.text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{target}: cannot be written: {error.strerror}") from error
    return drafted


def draft(data: Sequence[str | Path], target: Path, wishes: Wishes) -> ConfigDraft:
    """The config of a log, whose file will be `target`, checked as `neocpu train` would."""
    log = look(data, wishes.looked_at)
    named = Roles(wishes.label, wishes.dense, wishes.categories, wishes.left_out, MIN_COUNT)
    columns = columns_of(log, named)
    roles = by_role(columns)
    (label,) = roles["label"]
    split = SPLIT if not (wishes.valid or wishes.test) and log.rows >= LEAST_SPLIT else ()
    sizes = sizes_of(log, round(log.rows * (split[0] if split else 1.0)))
    tables = [column for column in columns if column.role in ("category", "list", "time")]
    features = _table_columns(tables, log.kind)
    if not features and log.rows == 1:
        raise DataError(f"{log.paths[0]}: has one row only; nothing can be seen in it")
    if not features:
        raise ConfigError(
            f"{log.paths[0]}: no column looks like a category, and a DLRM needs one; name one with "
            "--category COLUMN (from Python categories=)"
        )
    environment = Environment(
        loader=PackageLoader("neocpu.train.advice", ""),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # a name that the template has and nobody gives is an error, not an empty text
        undefined=StrictUndefined,
        autoescape=False,
    )
    environment.filters["toml"] = toml_text
    environment.filters["comment"] = _comment
    folder = target.parent
    text = environment.get_template("config.toml.j2").render(
        title=target.stem,
        name=_comment(target.name),
        source=_comment(", ".join(path.name for path in log.paths)),
        looked_at=_looked_at(log),
        train=_relative(log.paths, folder),
        valid=_relative(wishes.valid, folder),
        test=_relative(wishes.test, folder),
        split=list(split),
        log=log,
        missing_texts=list(log.missing),
        label=label,
        dense=_groups(roles.get("dense", []), "kind", "transform"),
        dense_count=len(roles.get("dense", [])),
        categories=_groups(
            features, "role", "kind", "separator", "weight_separator", "source", "time"
        ),
        left_out=roles.get("left out", []),
        missing=_missing,
        sizes=sizes,
        loss="bce" if label.kind == "click" else "mse",
        rows_note=_rows_note(sizes),
        tables=[_table(column, sizes) for column in features],
        every=max(sizes.steps // MEASURED, 1),
        save_every=max(sizes.steps // SAVED, 1),
    )
    # a draft that `neocpu train` would refuse is an error of ours, not the user's
    configs.loads(text, str(target))
    return ConfigDraft(text, log, columns, sizes, tuple(_said(log, columns, split)))


def _table_columns(tables: Sequence[LogColumn], kind: str) -> list[LogColumn]:
    """Columns that become features; a time gives the hour of its day and its weekday."""
    columns = []
    for column in tables:
        table = column.name.replace("/", "_")  # a table's name is one of its files
        if column.role != "time":
            renamed = replace(column, name=table, source=column.name)
            columns.append(column if table == column.name else renamed)
            continue
        # Avazu's features have names of their own
        names = ("hour", "weekday")
        if kind == "table":
            names = (f"{table}_hour", f"{table}_weekday")
        for name, part, values in zip(names, ("hour", "weekday"), (24, 7)):
            feature = replace(column, name=name, kind=part, source=column.name)
            columns.append(replace(feature, distinct=values, grown=values, frequent=values))
    return columns


def _groups(columns: Sequence[LogColumn], *keys: str) -> list[dict[str, object]]:
    """Neighbouring columns that agree in these attributes."""
    groups = []
    for values, members in groupby(columns, lambda c: tuple(getattr(c, key) for key in keys)):
        group = list(members)
        names = [column.name for column in group]
        groups.append({"columns": group, "names": names, **dict(zip(keys, values))})
    return groups


def _table(column: LogColumn, sizes: ModelSizes) -> dict[str, str]:
    """One table: its key, its body as TOML and a note about its values."""
    rows = rows_of(column, sizes.rows_by)
    body = f"rows = {rows}"
    if column.role == "list":
        body += ', pooling = "mean"' if not column.weight_separator else ", weighted = true"
    estimate = "" if column.grown == column.distinct else f", about {column.grown:,} in all"
    note = f"{column.distinct:,} values{estimate}{_missing(column)}"
    if column.role == "list":
        note += f"; {column.items:.1f} per row"
    key = column.name if BARE_KEY.fullmatch(column.name) else toml_text(column.name)
    return {"key": key, "body": body, "note": note}


def _missing(column: LogColumn) -> str:
    return f", {100 * column.missing:.1f} % empty" if column.missing else ""


def _comment(text: str) -> str:
    """Text that fits in a comment: one line without control characters."""
    return (
        " ".join(text.split()).encode("unicode_escape").decode() if not text.isprintable() else text
    )


def _looked_at(log: Log) -> str:
    if log.whole:
        return f"All of its {log.rows:,} rows were looked at."
    return (
        f"The first {log.frame.height:,} rows were looked at, of about {log.rows:,}; counts of "
        "values are estimates."
    )


def _rows_note(sizes: ModelSizes) -> str:
    if sizes.rows_by == "vocabulary":
        return "A row for each value, one for those that training never saw, one for empty fields."
    return "Several rows for each value, so that few values share one."


def _said(log: Log, columns: Sequence[LogColumn], split: Sequence[float]) -> list[str]:
    """What was guessed, for the screen."""
    roles = by_role(columns)
    (label,) = roles["label"]
    lines = [f"{log.rows:,} rows{'' if log.whole else ', about'}, read as {log.kind}"]
    lines.append(f"label: {label.name}{f', {label.why}' if label.why else ''}")
    for role, title in TITLES.items():
        names = [column.name for column in roles.get(role, [])]
        if names:
            lines.append(f"{title}: {listed(names, SHOWN)}")
    for column in roles.get("left out", []):
        lines.append(f"left out: {column.name}, {column.why}")
    if split and (warning := _sorted(log, label)):
        lines.append(warning)
    if split:
        shares = ", ".join(f"{100 * share:g} %" for share in split)
        lines.append(f"train, valid, test: the first, next and last rows, {shares}")
    return lines


def _sorted(log: Log, label: LogColumn) -> str:
    """A line about a log whose first and last rows have other labels; "" for any other."""
    if label.kind != "click" or not log.whole:
        return ""
    labels = log.frame[label.name].cast(pl.String).str.to_lowercase().is_in(["1", "1.0", "true"])
    last = round(log.rows * SPLIT[2])
    first_rate = float(labels.head(log.rows - last).mean() or 0.0)  # type: ignore[arg-type]
    last_rate = float(labels.tail(last).mean() or 0.0)  # type: ignore[arg-type]
    deviation = (first_rate * (1 - first_rate) / max(last, 1)) ** 0.5
    # rates drift in any log; six deviations are no chance
    if abs(first_rate - last_rate) <= max(0.5 * first_rate, 6 * deviation):
        return ""
    return (
        f"careful: {100 * first_rate:.1f} % clicks in the first rows, {100 * last_rate:.1f} % in "
        "the last tenth: the log may be sorted by something; put it in the order of time"
    )


def _relative(paths: Sequence[str | Path], folder: Path) -> list[str] | str:
    """Paths as a config in `folder` writes them; one alone is a text."""
    # a config means its own folder, so both can be moved together
    written = [os.path.relpath(path, folder) for path in paths]
    return written[0] if len(written) == 1 else written
