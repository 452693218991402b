"""How does a log become a dataset? Block by block, through the parser into the writer.

Sources follow one another in the order given. The same sources and options give the same bytes on
every machine. A faulty line stops the conversion and is named (file, line, column, text), or with
`on_error="skip"` is counted, left out, and the first hundred are written to a report beside the
dataset.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from neocpu.core.errors import ConfigError, DataError, told_as
from neocpu.core.targets import refuse_sources
from neocpu.core.types import Elements, Floats
from neocpu.ingest.dataset.cluster import ClusteringWriter
from neocpu.ingest.dataset.convert_options import ConvertOptions, Progress
from neocpu.ingest.dataset.fitting import fit
from neocpu.ingest.dataset.vocabulary import (
    CodeCounter,
    FrequentCodes,
    frequent_of,
    read_vocabularies,
)
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.ingest.formats.avazu import avazu_schema
from neocpu.ingest.formats.criteo import criteo_schema
from neocpu.ingest.formats.fields import Fault, Parsed
from neocpu.ingest.formats.files.folders import all_files
from neocpu.ingest.formats.schema import TRANSFORMS, Schema
from neocpu.ingest.formats.sources import RowBlock, open_source
from neocpu.ingest.formats.table import table_schema
from neocpu.ingest.settings import FORMATS, ON_ERROR

REPORTED = 100  # faulty lines in a report
EXTREME = 1e9  # stored numbers from which on one column says that it has them
HOW_TO_SKIP = (
    "--on-error skip, in a config data.on_error=skip, leaves such lines out and reports them"
)


class _Peaks:
    """The largest size of a stored number, which the model sees, by dense column."""

    def __init__(self, schema: Schema) -> None:
        self._names = [each.name for each in schema.dense]
        self._sizes = np.zeros(len(self._names))

    def add(self, dense: Floats) -> None:
        # NaN is no peak
        self._sizes = np.fmax(self._sizes, np.abs(dense).max(axis=0, initial=0.0))

    def extreme(self) -> dict[str, float]:
        """Those of EXTREME and more."""
        # a text like 1e99 is infinite in fp32, which JSON has no number for
        sizes = np.minimum(self._sizes, np.finfo(np.float32).max).tolist()
        return {name: size for name, size in zip(self._names, sizes) if size >= EXTREME}


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion.

    rows : samples written. skipped : faulty lines left out. report : the file that lists these
    (None where there were none, or it could not be written: why says trouble). invalid : texts that
    are no numbers and count as missing, by dense column. extreme : the largest size of a number, by
    dense column that has such of EXTREME and more.
    """

    path: Path
    rows: int
    skipped: int
    report: Path | None
    trouble: str = ""
    invalid: Mapping[str, int] = field(default_factory=dict)
    extreme: Mapping[str, float] = field(default_factory=dict)


def schema_of(kind: str, options: ConvertOptions) -> Schema:
    """The schema of a kind of log.

    Raises ConfigError for an unknown kind, and for a missing or wrong SCHEMA.toml.
    """
    if options.dense_transform not in TRANSFORMS:
        raise ConfigError(
            f"dense transform {options.dense_transform!r}; choose one of {', '.join(TRANSFORMS)}"
        )
    if options.on_error not in ON_ERROR:
        raise ConfigError(f"on_error {options.on_error!r}; choose one of {', '.join(ON_ERROR)}")
    if kind == "criteo":
        return criteo_schema(
            options.dense_transform, labelled=options.labelled, header=options.header
        )
    if kind == "avazu":
        return avazu_schema(labelled=options.labelled)
    if kind == "table":
        where = "data.schema" if isinstance(options.schema, Mapping) else str(options.schema)
        schema = table_schema(options.schema_tree(), options.dense_transform, where)
        return schema if options.labelled else schema.without_labels()
    raise ConfigError(f"unknown kind of log {kind!r}; choose one of {', '.join(FORMATS)}")


class Faults:
    """Stops at the first faulty line, or counts them and keeps the first hundred."""

    def __init__(self, on_error: str) -> None:
        self.skip = on_error == "skip"
        self.count = 0
        self.lines = list[str]()

    def add(self, path: Path, unit: str, before: int, faults: list[Fault]) -> None:
        for fault in faults:
            description = fault.described(f"{path}, {unit} {before + fault.line + 1}")
            if not self.skip:
                raise DataError(f"{description} ({HOW_TO_SKIP})")
            self.count += 1
            if len(self.lines) < REPORTED:
                self.lines.append(description)

    def report(self, path: Path) -> str:
        """Write the report, or remove an older one. Returns why it cannot be written, or ""."""
        if not self.count:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return ""
        more = [] if self.count <= REPORTED else [f"… and {self.count - REPORTED} more"]
        lines = [f"{self.count} faulty lines were skipped", *self.lines, *more]
        try:
            path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")
        except OSError as error:  # the dataset is complete all the same
            return error.strerror or str(error)
        return ""


def convert(
    sources: Sequence[str | Path],
    target: str | Path,
    kind: str,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Convert logs of one kind (`criteo`, `avazu`, `table`) into one dataset, in bounded memory.

    sources : files, folders of files, or patterns that name files.

    Raises DataError (a faulty line, an unreadable or empty source, one that changes meanwhile, a
    full disk, a target that is also a source), ConfigError (options).
    """
    options = options or ConvertOptions()
    paths = all_files(sources)
    target = Path(target)
    report_path = target.with_name(target.name + ".errors.txt")
    for written in (target, report_path):
        refuse_sources(written, [*paths, *options.files()])
    schema = _complete_schema(kind, options, paths)
    total = sum(path.stat().st_size for path in paths if path.exists())
    faults = Faults(options.on_error)
    invalid = Counter({each.name: 0 for each in schema.dense if each.invalid == "missing"})
    peaks = _Peaks(schema)
    before = 0
    names = {each.name: each.description for each in schema.categories}
    counters = _counters(list(names), options)
    vocabularies = read_vocabularies(options.vocabulary, names) if options.vocabulary else {}
    with _writer(target, schema, options) as writer:
        sessions = _clustering(writer, options, schema)
        for path in paths:
            source = open_source(path, schema)
            line = source.lines_before
            for block in _unchanged(path, source.blocks):
                for part in block.parts:
                    parsed = source.parser.parse_fields(part)
                    faults.add(path, source.unit, line, parsed.faults)
                    line += parsed.lines
                    invalid.update(parsed.invalid)
                    peaks.add(parsed.dense)
                    _append(sessions or writer, parsed, counters)
                if progress is not None:
                    progress(before + block.done, total, writer.rows)
            if not (line or source.says_columns or faults.skip):
                raise DataError(f"{path}: has no rows")
            before += _size(path)
        if sessions is not None:
            sessions.finish()
        if not writer.rows:
            raise DataError(_no_rows(paths, faults))
        writer.vocabularies.update(vocabularies)
        _keep_counts(writer, counters, options)
        extreme = peaks.extreme()
        writer.attributes |= _notes(paths, faults.count, invalid, extreme)
        if options.min_count:
            writer.attributes["vocabulary_min_count"] = options.min_count
    trouble = faults.report(report_path)
    report = report_path if faults.count and not trouble else None
    return Conversion(target, writer.rows, faults.count, report, trouble, invalid, extreme)


def _notes(
    paths: Sequence[Path], skipped: int, invalid: Mapping[str, int], extreme: Mapping[str, float]
) -> dict[str, object]:
    """What a dataset notes of its conversion; counts and sizes by column, where there are any."""
    source = [{"name": path.name, "bytes": _size(path)} for path in paths]
    notes: dict[str, object] = {"source": source, "skipped": skipped}
    if invalid:
        notes["invalid"] = dict(invalid)
    if extreme:
        notes["extreme"] = dict(extreme)
    return notes


def _complete_schema(kind: str, options: ConvertOptions, paths: Sequence[Path]) -> Schema:
    """The schema of a conversion, with the numbers that come from its sources."""
    schema = schema_of(kind, options)
    if not schema.unfitted:
        return schema
    if not options.labelled:
        raise ConfigError(
            "the means, deviations or edges of this schema come from the train data; give "
            "--fitted TRAIN.h5, the dataset that was made of these"
        )
    return fit(schema, paths)


def _no_rows(paths: Sequence[Path], faults: Faults) -> str:
    """Why nothing is left of some sources."""
    names = ", ".join(map(str, paths[:3])) + ", …" * (len(paths) > 3)
    if not faults.count:
        return f"{names}: has no rows"
    lines = f"{faults.count:,} faulty line{'s' * (faults.count > 1)}"
    return f"{names}: no row is left, {lines} skipped; the first: {faults.lines[0]}"


def _unchanged(path: Path, blocks: Iterator[RowBlock]) -> Iterator[RowBlock]:
    """The blocks of a file. Raises DataError behind the last one if it has changed meanwhile: the
    half of its last line may have been read as a row.
    """
    before = path.stat()
    yield from blocks
    after = path.stat() if path.exists() else before
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DataError(
            f"{path}: has changed while it was read; convert it when nobody writes into it any more"
        )


def _size(path: Path) -> int:
    """Bytes of a source, which may be gone by now."""
    with told_as(DataError, path, "cannot be read"):
        return path.stat().st_size


def _keep_counts(
    writer: DatasetWriter, counters: Mapping[str, CodeCounter], options: ConvertOptions
) -> None:
    """Give the dataset what was counted: vocabularies, and how often frequent codes occur."""
    if options.min_count:
        writer.vocabularies.update(
            {name: counter.frequent(options.min_count) for name, counter in counters.items()}
        )
    if options.frequencies:
        writer.frequencies = {
            name: (*frequent_of(counter), getattr(counter, "short", 0))
            for name, counter in counters.items()
        }


def feature_columns(schema: Schema) -> list[FeatureColumn]:
    """The categorical columns of a schema, as datasets have them."""
    return [
        FeatureColumn(
            name=field.name,
            dtype=field.dtype,
            hotness=int(not field.is_list),
            weighted=field.weighted,
            kind=field.description,
        )
        for field in schema.categories
    ]


def _writer(target: Path, schema: Schema, options: ConvertOptions) -> DatasetWriter:
    """The writer of a dataset with the columns of a schema."""
    attributes = {
        **schema.extra,
        "log": schema.name,
        "dense_transform": [field.description for field in schema.dense],
    }
    writer = DatasetWriter(
        target,
        [field.name for field in schema.dense],
        feature_columns(schema),
        attributes=attributes,
        compress=options.compress,
        labelled=schema.label is not None,
        labels=[label.name for label in schema.labels] if schema.tree else (),
    )
    writer.schema = schema.tree
    return writer


def _counters(names: Sequence[str], options: ConvertOptions) -> dict[str, CodeCounter]:
    """The counter of each feature's codes: all codes for a vocabulary, else the frequent ones."""
    if options.min_count:
        return {name: CodeCounter() for name in names}
    return {name: FrequentCodes() for name in names} if options.frequencies else {}


def _clustering(
    writer: DatasetWriter, options: ConvertOptions, schema: Schema
) -> ClusteringWriter | None:
    """What makes the rows of sessions neighbours, where options or schema ask for it."""
    column = options.cluster_by or schema.session
    return ClusteringWriter(writer, column, options.cluster_rows) if column else None


def _append(
    writer: DatasetWriter | ClusteringWriter, parsed: Parsed, counters: dict[str, CodeCounter]
) -> None:
    if isinstance(writer, ClusteringWriter):
        writer.append(parsed)
    else:
        writer.append(
            parsed.labels,
            parsed.dense,
            parsed.features,
            missing_dense=parsed.missing_dense,
            missing=parsed.missing,
            more_labels=parsed.more_labels,
        )
    for name, counter in counters.items():
        counter.add(parsed.features[name].codes)


class ExpectedDataset(NamedTuple):
    """What a conversion is expected to make.

    bytes : peak of its disk space. lookups : codes of each feature.
    """

    bytes: int
    rows: int
    dense_columns: int
    lookups: dict[str, int]


def expected_dataset(
    sources: Sequence[Path], kind: str, options: ConvertOptions
) -> ExpectedDataset:
    """What a conversion will make, estimated from each log's first megabyte.

    The disk space is that of the dataset and its largest column once more (`writer.py`), before any
    compression.
    """
    columns: dict[str, float] = {}
    lookups: dict[str, float] = {}
    rows = 0.0
    dense_columns = 0
    for path in sources:
        source = open_source(path, schema_of(kind, options))
        block = next(source.blocks, None)
        if block is not None:
            scale = path.stat().st_size / max(block.done, 1)
            for part in block.parts:
                parsed = source.parser.parse_fields(part)
                rows += scale * parsed.dense.shape[0]
                dense_columns = parsed.dense.shape[1]
                for name, bags in parsed.features.items():
                    lookups[name] = lookups.get(name, 0.0) + scale * bags.codes.size
                for name, size in _column_bytes(parsed).items():
                    columns[name] = columns.get(name, 0.0) + scale * size
        if (close := getattr(source.blocks, "close", None)) is not None:
            close()  # ends the thread that reads ahead
    return ExpectedDataset(
        bytes=int(sum(columns.values()) + max(columns.values(), default=0)),
        rows=round(rows),
        dense_columns=dense_columns,
        lookups={name: round(count) for name, count in lookups.items()},
    )


def _column_bytes(parsed: Parsed) -> dict[str, int]:
    """Bytes of each column of parsed rows."""
    arrays: dict[str, Sequence[Elements | None]] = {
        "labels": (parsed.labels, *parsed.more_labels.values()),
        "dense": (parsed.dense,),
        **parsed.features,
    }
    return {
        name: sum(part.nbytes for part in parts if part is not None)
        for name, parts in arrays.items()
    }
