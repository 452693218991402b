"""How does a look at a log become a config? Through a template, `config.toml.j2`.

write_config(["clicks.csv"], "my") -> my/clicks.toml, which `neocpu train` takes as it is

What was found is told in lines for the screen.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from neocpu.core.errors import ConfigError, DataError, listed, told_as
from neocpu.core.paths import full_address, is_address
from neocpu.core.presets import log_path
from neocpu.core.records import toml_text
from neocpu.core.targets import refuse_sources
from neocpu.ingest.formats.files.folders import log_files
from neocpu.ingest.formats.files.kinds import kind_of
from neocpu.ingest.formats.frames import as_frame, is_paths, write_frame
from neocpu.train.advice.columns import LogColumn, LogColumns, by_role
from neocpu.train.advice.features import (
    dense_inputs,
    groups,
    missing_note,
    number_tables,
    table_columns,
    table_entry,
)
from neocpu.train.advice.labels import label_numbers, rating_threshold, with_positives
from neocpu.train.advice.look import LOOKED_AT, Log, broken_fields, lacks_column, look
from neocpu.train.advice.names import warning
from neocpu.train.advice.probe import Probe
from neocpu.train.advice.roles import Roles, columns_of, probe_of_label
from neocpu.train.advice.sizes import ModelSizes, sizes_of
from neocpu.train.config import config as configs

FAR = 20  # from 0, of the numbers of a label
SHOWN = 12  # columns of one role on the screen
TITLES = {"dense": "numbers", "category": "categories", "list": "lists", "time": "times"}


def findings(
    log: Log, columns: LogColumns, tables: LogColumns, split: Sequence[float], probe: Probe
) -> Iterator[str]:
    """Lines about a log and what its columns were taken for.

    tables : the columns that have tables. split : shares of the rows.
    """
    roles = by_role(columns)
    (label,) = roles["label"]
    yield f"{log.rows:,} rows{'' if log.whole else ', about'}, read as {log.kind}"
    for column in (label, *roles.get("weight", [])):
        yield f"{column.role}: {column.name}{f', {column.why}' if column.why else ''}"
    liked = liked_from(log, label)
    if liked is not None:
        yield f"  to learn who likes it rather than the number: --threshold {liked:g}"
    for role, title in TITLES.items():
        names = [column.name for column in roles.get(role, [])]
        if names:
            yield f"{title}: {listed(names, SHOWN)}"
    numbers = [column.name for column in roles.get("dense", [])]
    twice = [column.source for column in tables if column.source in numbers]
    if twice:
        yield f"numbers that are categories as well: {listed(twice, SHOWN)}"
    for column in filter(lambda column: column.also, columns):
        yield (
            f"careful: {column.name} is read as {column.time}, but {column.also} fits all of its "
            "values as well; `time` of the config says which it is"
        )
    for column in columns:
        if column.unreadable:
            yield f"{column.name}: {column.unreadable:,} texts are no numbers and count as missing"
    for column in roles.get("left out", []):
        yield f"left out: {column.name}, {column.why}"
    yield from (line for line in (_far(log, label), broken_fields(log)) if line)
    if log.kind == "table":
        yield from _careful(log, columns, label, probe)
    if split and (line := _sorted(log, label, split[-1])):
        yield line
    if split:
        shares = ", ".join(f"{100 * share:g} %" for share in split)
        yield f"train, valid, test: the first, next and last rows, {shares}"


def liked_from(log: Log, label: LogColumn) -> float | None:
    """From which rating on a label of ratings is a click, if it were one; None: it is no rating."""
    return rating_threshold(log.frame[label.name]) if label.kind == "number" else None


def _far(log: Log, label: LogColumn) -> str:
    """A line about a label of numbers that a model is long in reaching; "" for any other."""
    if label.kind != "number":
        return ""
    numbers = label_numbers(log.frame[label.name], label).to_numpy()
    mean, deviation = float(numbers.mean()), float(numbers.std())
    # a model begins near 0, and each step moves it by about the learning rate
    if max(abs(mean), deviation) <= FAR:
        return ""
    return (
        f"careful: {label.name} is {mean:.4g} ± {deviation:.4g}, and a model begins at 0: it "
        "learns more of numbers near 0, so subtract a mean and divide by a deviation beforehand"
    )


def _careful(log: Log, columns: LogColumns, label: LogColumn, probe: Probe) -> Iterator[str]:
    """Lines about columns that may be known only after the label is."""
    single = [each for each in columns if each.role in ("dense", "category") and not each.width]
    for column in single:
        if line := warning(probe, log.frame[column.name], label.name):
            yield line


def _sorted(log: Log, label: LogColumn, share: float) -> str:
    """A line about a log whose first and last rows have other labels; "" for any other."""
    if label.kind != "click" or not log.whole:
        return ""
    clicks = label_numbers(log.frame[label.name], label)
    last = round(log.rows * share)
    first_rate = float(clicks.head(log.rows - last).mean() or 0.0)  # type: ignore[arg-type]
    last_rate = float(clicks.tail(last).mean() or 0.0)  # type: ignore[arg-type]
    deviation = (first_rate * (1 - first_rate) / max(last, 1)) ** 0.5
    # rates drift in any log; six deviations are no chance
    if abs(first_rate - last_rate) <= max(0.5 * first_rate, 6 * deviation):
        return ""
    return (
        f"careful: {100 * first_rate:.1f} % clicks in the first rows, {100 * last_rate:.1f} % in "
        "the last tenth: the log may be sorted by something; put it in the order of time"
    )


SPLIT = (0.8, 0.1, 0.1)
MEASURED_AT = 1 << 20  # bytes of each file to measure on that are looked at
MEASURED_ROWS = 1 << 14  # the same of files that are no text
LEAST_SPLIT = 10  # rows; of fewer no part is measured
MEASURED = 10  # times in a pass that the valid part is measured
SAVED = 2  # times in a pass that a checkpoint is written
FRAME = "data.parquet"  # file of a frame beside its config
TABLES = ("category", "list", "time")  # roles of columns that have tables


@dataclass(frozen=True)
class Wishes(Roles):
    """What callers of `init` say about their log, beside the roles of its columns.

    valid, test : files that are measured on; with either the train files are not split. looked_at :
    bytes of text to look at.
    """

    valid: Sequence[str | Path] = ()
    test: Sequence[str | Path] = ()
    looked_at: int = LOOKED_AT


@dataclass(frozen=True)
class ConfigDraft:
    """A config that was drafted: its text, what it was made of, and lines that say so."""

    text: str
    log: Log
    columns: LogColumns
    sizes: ModelSizes
    said: Sequence[str] = ()


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
    positive: Sequence[str] = (),
    threshold: float | None = None,
    weight: str = "",
) -> Path:
    """Look at a log and write a config that trains on it; returns the config's path.

    data : a path, paths of files with the same columns, or a frame (polars, pandas, Arrow, a
        mapping of arrays), which is written to `data.parquet` beside the config.
    out : folder of the config, or the config itself if it ends with ".toml".
    force : replace files that exist. label, dense, categories, left_out : names of columns whose
        role is not to be guessed. valid, test : files to measure on, instead of a split.
    positive, threshold : texts of the label that are a click, or the number from which it is one.
    weight : column of how much each row counts in training.

    Raises DataError for files that cannot be read, ConfigError where no label is found, a named
    column is missing, or a file exists.
    """
    roles = Roles(label, dense, categories, left_out, positive, threshold, weight=weight)
    wishes = Wishes(**vars(roles), valid=valid, test=test)
    name = first_name(data)
    target = target_of([name], out)
    written = [] if is_paths(data) else [target.parent / name]
    for path in (target, *written):
        _check_free(path, force)
    write_config(log_of(data, target.parent), target, wishes)
    return target


def first_name(data: object) -> str | Path:
    """The first path of a log; of a table in memory the name of its file."""
    if not is_paths(data):
        return FRAME
    return data if isinstance(data, str | Path) else data[0]


def log_of(data: object, folder: Path) -> list[str]:
    """The paths of a log; a table in memory is written to `data.parquet` in this folder.

    Raises DataError for data that are neither, and where it cannot be written.
    """
    if is_paths(data):
        paths = [data] if isinstance(data, str | Path) else data
        return [log_path(str(path)) for path in paths]
    path = folder / FRAME
    write_frame(as_frame(data), path)
    return [str(path)]


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
    refuse_sources(target, (*data, *wishes.valid, *wishes.test))
    drafted = draft(data, target, wishes)
    with told_as(DataError, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(drafted.text, encoding="utf-8")
    return drafted


def draft(data: Sequence[str | Path], target: Path, wishes: Wishes) -> ConfigDraft:
    """The config of a log, whose file will be `target`, checked as `neocpu train` would."""
    log = look(data, wishes.looked_at)
    columns = columns_of(log, wishes)
    (label,) = by_role(columns)["label"]
    log, label = _with_measured(log, label, wishes)
    columns = [label if column.name == label.name else column for column in columns]
    probe = probe_of_label(log, label)
    split = SPLIT if not (wishes.valid or wishes.test) and log.rows >= LEAST_SPLIT else ()
    sizes = sizes_of(log, round(log.rows * (split[0] if split else 1.0)))
    tables = table_columns([column for column in columns if column.role in TABLES], log.kind)
    if log.kind == "table":
        dense = by_role(columns).get("dense", [])
        tables += number_tables(log, dense, probe, alone=not tables)
    _check_tables(log, tables)
    folder = target.parent
    text = _template().render(
        title=target.stem,
        name=_comment(shlex.quote(target.name)),
        source=_comment(", ".join(Path(path).name for path in log.paths)),
        train=_relative(log.paths, folder),
        valid=_relative(wishes.valid, folder),
        test=_relative(wishes.test, folder),
        split=list(split),
        log=log,
        label=label,
        weight=wishes.weight,
        sizes=sizes,
        **_shown(log, columns, tables, sizes),
    )
    # a draft that `neocpu train` would refuse is an error of ours, not the user's
    configs.loads(text, str(target))
    said = findings(log, columns, tables, split, probe)
    return ConfigDraft(text, log, columns, sizes, tuple(said))


def _with_measured(log: Log, label: LogColumn, wishes: Wishes) -> tuple[Log, LogColumn]:
    """A log of text and its label with what the files to measure on write in another way.

    adult.test begins with a comment, and its label says >50K. where that of adult.data says >50K.
    Raises DataError for a file without the label.
    """
    for path in (*wishes.valid, *wishes.test):
        if any(kind_of(file) == "hdf5" for file in log_files(path)):
            continue
        other = look([path], MEASURED_AT, MEASURED_ROWS)
        if lacks_column(other, log, label.name):
            raise DataError(
                f"{path}: lacks the label {label.name!r}, so nothing can be measured on it; "
                "`neocpu predict` scores it"
            )
        if not (log.dialect and other.dialect):
            continue
        comment = log.dialect.comment or other.dialect.comment
        log = replace(log, dialect=replace(log.dialect, comment=comment))
        if label.positive and not wishes.positive and label.name in other.frame.columns:
            label = with_positives(label, other.frame[label.name])
    return log, label


def _check_tables(log: Log, tables: LogColumns) -> None:
    """Raise DataError or ConfigError for a log without a column that becomes a table."""
    if not tables and log.rows == 1:
        raise DataError(f"{log.paths[0]}: has one row only; nothing can be seen in it")
    if not tables:
        raise ConfigError(
            f"{log.paths[0]}: no column looks like a category or a number, and a model needs one; "
            "`neocpu init --category COLUMN` names one (from Python categories=)"
        )


def _template() -> Template:
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
    return environment.get_template("config.toml.j2")


def _shown(
    log: Log, columns: LogColumns, tables: LogColumns, sizes: ModelSizes
) -> Mapping[str, object]:
    """What the template shows of a log's columns and of their sizes."""
    roles = by_role(columns)
    (label,) = roles["label"]
    dense = dense_inputs(columns)
    absent = [text for column in columns for text in column.absent]
    return {
        "looked_at": _looked_at(log),
        "missing_texts": list(dict.fromkeys([*log.missing, *absent])),
        "liked": liked_from(log, label),
        "dense": groups(dense, "kind", "transform", "width", "separator", "lenient", "source"),
        "dense_count": sum(max(column.width, 1) for column in dense),
        "categories": groups(
            tables, "role", "kind", "separator", "weight_separator", "source", "time"
        ),
        "left_out": roles.get("left out", []),
        "missing": missing_note,
        # two classes are 0 and 1
        "loss": "bce" if label.kind == "click" or label.distinct == 2 else "mse",
        "rows_note": _rows_note(sizes),
        "tables": [table_entry(column, sizes) for column in tables],
        "every": max(sizes.steps // MEASURED, 1),
        "save_every": max(sizes.steps // SAVED, 1),
    }


def _comment(text: str) -> str:
    """Text that fits in a comment: one line without control characters."""
    if text.isprintable():
        return text
    return " ".join(text.split()).encode("unicode_escape").decode()


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


def _relative(paths: Sequence[str | Path], folder: Path) -> list[str] | str:
    """Paths as a config in `folder` writes them; one alone is a text."""
    # a config means its own folder, so both can be moved together
    written = [
        full_address(path) if is_address(path) else os.path.relpath(path, folder) for path in paths
    ]
    return written[0] if len(written) == 1 else written
