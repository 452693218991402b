"""How does a log become a dataset? Block by block, through the parser into the writer.

Sources follow one another in the order given. The same sources and options give the same bytes on
every machine. A faulty line stops the conversion and is named (file, line, column, text), or with
`on_error="skip"` is counted, left out, and the first hundred are written to a report beside the
dataset.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.errors import ConfigError, DataError
from neocpu.ingest.avazu import avazu_schema
from neocpu.ingest.cluster import ROWS, ClusteringWriter
from neocpu.ingest.criteo import criteo_schema
from neocpu.ingest.dataset_layout import VERSION, FeatureColumn
from neocpu.ingest.fields import Fault
from neocpu.ingest.readers import UNIT, Parquet, TextBlock, kind_of, text_blocks
from neocpu.ingest.schema import TRANSFORMS, Schema
from neocpu.ingest.table import table_schema
from neocpu.ingest.targets import refuse_sources
from neocpu.ingest.text import Parsed, TextParser
from neocpu.ingest.vocabulary import CodeCounter, FrequentCodes, frequent_of, read_vocabularies
from neocpu.ingest.writer import DatasetWriter

KINDS = ("criteo", "avazu", "table")
ON_ERROR = ("fail", "skip")
REPORTED = 100  # faulty lines in a report
HOW_TO_SKIP = (
    "--on-error skip, in a config data.on_error=skip, leaves such lines out and reports them"
)
Progress = Callable[[int, int, int], None]  # bytes read, bytes in all, samples so far


@dataclass(frozen=True)
class ConvertOptions:
    """The options of a conversion; with the sources they decide every byte of the dataset.

    min_count: fit a vocabulary of codes seen at least so often (0: none). vocabulary: take it from
    this dataset instead. schema: SCHEMA.toml of kind `table`. header: the first line of a Criteo
    log is skipped. frequencies: keep the counts of frequent codes. cluster_by: the feature that
    names a sample's session ("": none); the samples of one become neighbours, in each cluster_rows
    rows of the log.
    """

    dense_transform: str = "log1p"
    on_error: str = "fail"
    compress: str = "none"
    labelled: bool = True
    header: bool = False
    min_count: int = 0
    vocabulary: Path | None = None
    schema: Path | None = None
    frequencies: bool = False
    cluster_by: str = ""
    cluster_rows: int = ROWS

    def key(self) -> str:
        """Text that differs whenever the converted data would."""
        options = asdict(self)
        if not self.frequencies:
            del options["frequencies"]  # copies made before this option existed stay valid
        if not self.cluster_by:
            del options["cluster_by"], options["cluster_rows"]
        for name in ("vocabulary", "schema"):
            path = options[name]
            if path is not None:
                options[name] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return json.dumps([VERSION, options], sort_keys=True)


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion.

    rows: samples written. skipped: faulty lines left out. report: the file that lists these (None
    where there were none, or it could not be written: why says trouble).
    """

    path: Path
    rows: int
    skipped: int
    report: Path | None
    trouble: str = ""


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
        if options.schema is None:
            raise ConfigError("a log of kind table needs its SCHEMA.toml")
        schema = table_schema(options.schema, options.dense_transform)
        return schema if options.labelled else replace(schema, label=None)
    raise ConfigError(f"unknown kind of log {kind!r}; choose one of {', '.join(KINDS)}")


class _Faults:
    """Stops at the first faulty line, or counts them and keeps the first hundred."""

    def __init__(self, on_error: str) -> None:
        self.skip = on_error == "skip"
        self.count = 0
        self.lines = list[str]()

    def add(self, path: Path, unit: str, before: int, faults: list[Fault]) -> None:
        for fault in faults:
            where = f"{path}, {unit} {before + fault.line + 1}"
            if fault.column:
                description = f"{where}, column {fault.column}: {fault.text!r} {fault.reason}"
            else:
                description = f"{where} {fault.reason}: {fault.text!r}"
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


class _Source(NamedTuple):
    """How one file is read.

    lines_before: lines before its first sample. unit: what its lines are called in messages.
    """

    parser: TextParser
    blocks: Iterator[TextBlock]
    lines_before: int = 0
    unit: str = "line"


def _source(path: Path, schema: Schema) -> _Source:
    """How a file with the columns of a schema is read. Raises DataError if it cannot be."""
    kind = kind_of(path)
    if kind == "hdf5":
        raise DataError(
            f"{path}: already an HDF5 file; train on it, or look at it with `neocpu data show`"
        )
    if kind == "parquet":
        return _parquet(path, schema)
    blocks = text_blocks(path)
    if not schema.header:
        return _Source(TextParser(schema), blocks)
    start = next(blocks, None)
    if start is None:  # an empty file names no columns
        columns = schema.columns or tuple(schema.used)
        return _Source(TextParser(replace(schema, columns=columns)), iter(()))
    cut = int(np.flatnonzero(start.text == 10)[0]) + 1
    if not schema.columns:
        schema = schema.with_header(
            start.text[:cut].tobytes().decode("utf-8", "replace").rstrip("\r\n"), path
        )

    def rest() -> Iterator[TextBlock]:
        if start.text.size > cut:
            yield TextBlock(np.ascontiguousarray(start.text[cut:]), start.done)
        yield from blocks

    return _Source(TextParser(schema), rest(), lines_before=1)


def _parquet(path: Path, schema: Schema) -> _Source:
    file = Parquet(path)
    names = list(schema.used)
    if (
        schema.columns
        and not set(names) <= set(file.columns)
        and len(file.columns) == len(schema.columns)
    ):
        names = file.columns  # the schema's columns under other names: by position
        renamed = dict(zip(names, schema.columns))
        schema = replace(schema, delimiter=UNIT, quote="")
    else:
        schema.with_columns(file.columns, path)
        renamed = {name: name for name in names}
        schema = replace(schema, columns=tuple(names), delimiter=UNIT, quote="")
    hexes = {field.column for field in schema.categories if field.kind == "hex"}
    numbers = frozenset(
        new for old, new in renamed.items() if new in hexes and file.is_integer(old)
    )
    integers = {old for old, new in renamed.items() if new in schema.integers}
    return _Source(TextParser(schema, numbers), file.blocks(names, integers), unit="row")


def convert(
    sources: Sequence[str | Path],
    target: str | Path,
    kind: str,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Convert logs of one kind (`criteo`, `avazu`, `table`) into one dataset, in bounded memory.

    Raises DataError (a faulty line, an unreadable or empty source, a full disk, a target that is
    also a source), ConfigError (options).
    """
    options = options or ConvertOptions()
    paths = [Path(source) for source in sources]
    target = Path(target)
    report_path = target.with_name(target.name + ".errors.txt")
    inputs = [*paths, *(path for path in (options.schema, options.vocabulary) if path is not None)]
    for written in (target, report_path):
        refuse_sources(written, inputs)
    schema = schema_of(kind, options)
    total = sum(path.stat().st_size for path in paths if path.exists())
    faults = _Faults(options.on_error)
    before = 0
    names = {field.name: field.kind for field in schema.categories}
    counters = _counters(list(names), options)
    vocabularies = {}
    if options.vocabulary is not None:
        vocabularies = read_vocabularies(options.vocabulary, names)
    with _writer(target, schema, options) as writer:
        sessions = _clustering(writer, options)
        for path in paths:
            source = _source(path, schema)
            line = source.lines_before
            for block in source.blocks:
                for text in _pieces(block.text, len(source.parser.schema.columns)):
                    parsed = source.parser.parse(text)
                    faults.add(path, source.unit, line, parsed.faults)
                    line += parsed.lines
                    _append(sessions or writer, parsed, counters)
                if progress is not None:
                    progress(before + block.done, total, writer.rows)
            if line == source.lines_before and not faults.skip:
                raise DataError(f"{path}: has no rows")
            before += _size(path)
        if sessions is not None:
            sessions.finish()
        writer.vocabularies.update(vocabularies)
        _keep_counts(writer, counters, options)
        writer.attributes["source"] = [{"name": path.name, "bytes": _size(path)} for path in paths]
        writer.attributes["skipped"] = faults.count
        if options.min_count:
            writer.attributes["vocabulary_min_count"] = options.min_count
    trouble = faults.report(report_path)
    report = report_path if faults.count and not trouble else None
    return Conversion(target, writer.rows, faults.count, report, trouble)


def _size(path: Path) -> int:
    """Bytes of a source, which may be gone by now."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


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


def _pieces(text: NDArray[np.uint8], columns: int) -> Iterator[NDArray[np.uint8]]:
    """Lines of a block, so many at a time that their fields are not many more than its bytes.

    A good line has a byte for each of its columns; empty lines would take `columns` fields each.
    """
    most = text.size // max(columns, 1) + 1
    ends = np.flatnonzero(text == ord("\n")) + 1
    first = 0
    for last in [*ends[most - 1 : -1 : most].tolist(), text.size]:
        yield text[first:last]
        first = last


def _writer(target: Path, schema: Schema, options: ConvertOptions) -> DatasetWriter:
    """The writer of a dataset with the columns of a schema."""
    features = [
        FeatureColumn(
            name=field.name,
            dtype=field.dtype,
            hotness=int(not field.is_list),
            weighted=field.weighted,
            kind=field.kind,
        )
        for field in schema.categories
    ]
    attributes = {
        **schema.extra,
        "log": schema.name,
        "dense_transform": [field.transform for field in schema.dense],
    }
    return DatasetWriter(
        target,
        [field.name for field in schema.dense],
        features,
        attributes=attributes,
        compress=options.compress,
        labelled=schema.label is not None,
    )


def _counters(names: Sequence[str], options: ConvertOptions) -> dict[str, CodeCounter]:
    """The counter of each feature's codes: all codes for a vocabulary, else the frequent ones."""
    if options.min_count:
        return {name: CodeCounter() for name in names}
    return {name: FrequentCodes() for name in names} if options.frequencies else {}


def _clustering(writer: DatasetWriter, options: ConvertOptions) -> ClusteringWriter | None:
    """What makes the rows of sessions neighbours, where the options ask for it."""
    if not options.cluster_by:
        return None
    return ClusteringWriter(writer, options.cluster_by, options.cluster_rows)


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
        )
    for name, counter in counters.items():
        counter.add(parsed.features[name].codes)


def expected_bytes(sources: Sequence[Path], kind: str, options: ConvertOptions) -> int:
    """Estimated peak of the disk space of a conversion, in bytes, from each log's first megabyte.

    The dataset and its largest column once more (`writer.py`), before any compression.
    """
    columns: dict[str, float] = {}
    for path in sources:
        source = _source(path, schema_of(kind, options))
        block = next(source.blocks, None)
        if (close := getattr(source.blocks, "close", None)) is not None:
            close()  # ends the thread that reads ahead
        if block is None:
            continue
        parsed = source.parser.parse(block.text)
        scale = path.stat().st_size / max(block.done, 1)
        arrays: dict[str, Sequence[NDArray[Any] | None]] = {
            "labels": (parsed.labels,),
            "dense": (parsed.dense,),
            **parsed.features,
        }
        for name, parts in arrays.items():
            size = sum(part.nbytes for part in parts if part is not None)
            columns[name] = columns.get(name, 0.0) + scale * size
    return int(sum(columns.values()) + max(columns.values(), default=0))
