"""How does a log become a dataset? Block by block through the parser into the writer; a fault stops
it or is skipped.

Sources follow one another in the order given. The same sources and options give the same bytes on
every machine. A faulty line stops the conversion and is named (file, line, column, text), or with
`on_error="skip"` is counted, left out, and the first hundred are written to a report beside the
dataset.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.errors import ConfigError, DataError
from neocpu.ingest.avazu import avazu_schema
from neocpu.ingest.criteo import criteo_schema
from neocpu.ingest.dataset_layout import VERSION, FeatureColumn
from neocpu.ingest.readers import UNIT, Parquet, TextBlock, kind_of, text_blocks
from neocpu.ingest.schema import TRANSFORMS, Schema
from neocpu.ingest.table import table_schema
from neocpu.ingest.text import Fault, Parsed, TextParser
from neocpu.ingest.vocabulary import CodeCounter, FrequentCodes, frequent_of, read_vocabularies
from neocpu.ingest.writer import DatasetWriter

KINDS = ("criteo", "avazu", "table")
ON_ERROR = ("fail", "skip")
REPORTED = 100  # faulty lines in a report
HOW_TO_SKIP = (
    "--on-error skip, in a config data.on_error=skip, leaves such lines out and reports them"
)
Progress = Callable[[int, int, int], None]  # bytes read, bytes in all, rows so far


@dataclass(frozen=True)
class ConvertOptions:
    """What a conversion may be asked for; together with the sources it decides every byte of the
    dataset.

    min_count: fit a vocabulary of codes seen at least so often (0: none). vocabulary: take it from
    this dataset instead. schema: SCHEMA.toml of kind `table`. header: the first line of a Criteo
    log is skipped. frequencies: keep the counts of frequent codes.
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

    def key(self) -> str:
        """Text that differs whenever the converted data would."""
        given = asdict(self)
        if not self.frequencies:
            del given["frequencies"]  # copies made before there was this option are good
        for name in ("vocabulary", "schema"):
            path = given[name]
            given[name] = (
                None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()
            )
        return json.dumps([VERSION, given], sort_keys=True)


@dataclass(frozen=True)
class Conversion:
    """What a conversion did: rows written, lines skipped, and the report of these (None where all
    were good).
    """

    path: Path
    rows: int
    skipped: int
    report: Path | None


def schema_of(kind: str, options: ConvertOptions) -> Schema:
    """The schema of a kind of log. Raises ConfigError for an unknown kind, a missing or a wrong
    SCHEMA.toml.
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
                what = f"{where}, column {fault.column}: {fault.text!r} {fault.why}"
            else:
                what = f"{where} {fault.why}: {fault.text!r}"
            if not self.skip:
                raise DataError(f"{what} ({HOW_TO_SKIP})")
            self.count += 1
            if len(self.lines) < REPORTED:
                self.lines.append(what)

    def report(self, path: Path) -> Path | None:
        if not self.count:
            path.unlink(missing_ok=True)
            return None
        more = [] if self.count <= REPORTED else [f"… and {self.count - REPORTED} more"]
        path.write_text(
            "\n".join([f"{self.count} faulty lines were skipped", *self.lines, *more]) + "\n"
        )
        return path


def _source(path: Path, schema: Schema) -> tuple[TextParser, Iterator[TextBlock], int, str]:
    """Parser and blocks of a file, lines before its first row, and what its rows are called."""
    kind = kind_of(path)
    if kind == "hdf5":
        raise DataError(
            f"{path}: already an HDF5 file; train on it, or look at it with `neocpu data show`"
        )
    if kind == "parquet":
        return _parquet(path, schema)
    blocks = text_blocks(path)
    if not schema.header:
        return TextParser(schema), blocks, 0, "line"
    start = next(blocks, None)
    if start is None:
        return TextParser(schema), iter(()), 0, "line"
    cut = int(np.flatnonzero(start.text == 10)[0]) + 1
    if not schema.columns:
        schema = schema.with_header(
            start.text[:cut].tobytes().decode("utf-8", "replace").rstrip("\r\n"), path
        )

    def rest() -> Iterator[TextBlock]:
        if start.text.size > cut:
            yield TextBlock(np.ascontiguousarray(start.text[cut:]), start.done)
        yield from blocks

    return TextParser(schema), rest(), 1, "line"


def _parquet(path: Path, schema: Schema) -> tuple[TextParser, Iterator[TextBlock], int, str]:
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
    hexes = {one.column for one in schema.categories if one.kind == "hex"}
    numbers = frozenset(
        new for old, new in renamed.items() if new in hexes and file.is_integer(old)
    )
    integers = {old for old, new in renamed.items() if new in schema.integers}
    return TextParser(schema, numbers), file.blocks(names, integers), 0, "row"


def convert(
    sources: Sequence[str | Path],
    target: str | Path,
    kind: str,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Convert logs of one kind (`criteo`, `avazu`, `table`) into one dataset file, in bounded
    memory.

    Raises DataError (a faulty line, an unreadable or empty source, a full disk), ConfigError
    (options).
    """
    options = options or ConvertOptions()
    paths = [Path(one) for one in sources]
    target = Path(target)
    schema = schema_of(kind, options)
    total = sum(path.stat().st_size for path in paths if path.exists())
    faults = _Faults(options.on_error)
    before = 0
    names = {one.name: one.kind for one in schema.categories}
    counters = _counters(list(names), options)
    known = {} if options.vocabulary is None else read_vocabularies(options.vocabulary, names)
    with DatasetWriter(
        target,
        [one.name for one in schema.dense],
        [
            FeatureColumn(
                one.name, one.dtype, int(not one.separator), bool(one.weight_separator), one.kind
            )
            for one in schema.categories
        ],
        attributes={
            **schema.extra,
            "log": schema.name,
            "dense_transform": [one.transform for one in schema.dense],
        },
        compress=options.compress,
        labelled=schema.label is not None,
    ) as writer:
        for path in paths:
            parser, blocks, line, unit = _source(path, schema)
            read = line
            for block in blocks:
                parsed = parser.parse(block.text)
                faults.add(path, unit, line, parsed.faults)
                line += parsed.lines
                _append(writer, parsed, counters)
                if progress is not None:
                    progress(before + block.done, total, writer.rows)
            if line == read and not faults.skip:
                raise DataError(f"{path}: has no rows")
            before += path.stat().st_size
        if options.min_count:
            known |= {
                name: counter.frequent(options.min_count) for name, counter in counters.items()
            }
        if options.frequencies:
            writer.frequencies = {
                name: (*frequent_of(one), getattr(one, "short", 0))
                for name, one in counters.items()
            }
        writer.vocabularies.update(known)
        writer.attributes["source"] = [
            {"name": path.name, "bytes": path.stat().st_size} for path in paths
        ]
        writer.attributes["skipped"] = faults.count
        if options.min_count:
            writer.attributes["vocabulary_min_count"] = options.min_count
    report = faults.report(target.with_name(target.name + ".errors.txt"))
    return Conversion(target, writer.rows, faults.count, report)


def _counters(names: Sequence[str], options: ConvertOptions) -> dict[str, CodeCounter]:
    """Who counts the codes of each feature: all of them for a vocabulary, the frequent ones if only
    those are asked for.
    """
    if options.min_count:
        return {name: CodeCounter() for name in names}
    return {name: FrequentCodes() for name in names} if options.frequencies else {}


def _append(writer: DatasetWriter, parsed: Parsed, counters: dict[str, CodeCounter]) -> None:
    counts = parsed.missing_dense, parsed.missing
    writer.append(
        parsed.labels, parsed.dense, parsed.features, missing_dense=counts[0], missing=counts[1]
    )
    for name, counter in counters.items():
        counter.add(parsed.features[name].codes)


def copy_name(paths: Sequence[Path], kind: str, options: ConvertOptions) -> str:
    """File name of the converted copy of these sources: it changes with their size, time and the
    options.
    """
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = hashlib.sha256(json.dumps([kind, stats, options.key()]).encode()).hexdigest()[:12]
    return f"{paths[0].name}.{key}.converted.h5"


def ensure_dataset(
    paths: Sequence[str | Path],
    kind: str,
    options: ConvertOptions | None = None,
    out_dir: str | Path | None = None,
    progress: Progress | None = None,
    *,
    make: bool = True,
) -> list[Path]:
    """Dataset files for paths that may be raw logs: a raw one is converted once, to a copy beside
    it.

    Where that folder cannot be written, the copy goes under `out_dir`. Copies are found again by
    the source's name, size and time and by the options. With `min_count`, several raw files become
    one copy, so that they share a vocabulary. Only one process may call this at a time for the same
    paths (rank 0). Raises DataError as `convert` does, where neither folder can be written, and
    where there is no copy yet but none shall be made (`make`).
    """
    options = options or ConvertOptions()
    found = []
    for sources, raw in _groups(paths, options):
        if raw:
            copy = _copy(sources, kind, options, out_dir)
            if copy is None and not make:
                raise DataError(f"{sources[0]}: not converted yet")
            if copy is None:
                copy = convert(
                    sources, _new_copy(sources, kind, options, out_dir), kind, options, progress
                ).path
            found.append(copy)
        else:
            found += sources
    return found


def missing_copies(
    paths: Sequence[str | Path],
    kind: str,
    options: ConvertOptions,
    out_dir: str | Path | None = None,
) -> list[tuple[list[Path], Path]]:
    """(raw logs, the copy) of each conversion that `ensure_dataset` would have to make."""
    return [
        (sources, _new_copy(sources, kind, options, out_dir))
        for sources, raw in _groups(paths, options)
        if raw and _copy(sources, kind, options, out_dir) is None
    ]


def expected_bytes(sources: Sequence[Path], kind: str, options: ConvertOptions) -> int:
    """About how much disk a conversion takes at its height, if all of every log is like its first
    megabyte.

    Not less than the dataset and its largest column once more (`writer.py`); before any
    compression.
    """
    columns: dict[str, float] = {}
    for path in sources:
        parser, blocks, *_ = _source(path, schema_of(kind, options))
        block = next(blocks, None)
        if (close := getattr(blocks, "close", None)) is not None:
            close()  # ends the thread that reads ahead
        if block is None:
            continue
        parsed = parser.parse(block.text)
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


def _groups(paths: Sequence[str | Path], options: ConvertOptions) -> list[tuple[list[Path], bool]]:
    """Files that become one dataset together, and whether they are raw."""
    given = [Path(path) for path in paths]
    raw = [kind_of(path) != "hdf5" for path in given]
    if options.min_count and sum(raw) > 1:
        if not all(raw):
            raise DataError(
                "min_count needs all train files raw or all converted; convert them together first"
            )
        return [(given, True)]
    return [([path], is_raw) for path, is_raw in zip(given, raw)]


def _folders(raw: list[Path], out_dir: str | Path | None) -> list[Path]:
    return [raw[0].parent, *([] if out_dir is None else [Path(out_dir)])]


def _copy(
    raw: list[Path], kind: str, options: ConvertOptions, out_dir: str | Path | None
) -> Path | None:
    """The converted copy of these logs, if there is one."""
    name = copy_name(raw, kind, options)
    return next(
        (folder / name for folder in _folders(raw, out_dir) if (folder / name).exists()), None
    )


def _new_copy(
    raw: list[Path], kind: str, options: ConvertOptions, out_dir: str | Path | None
) -> Path:
    """Where the converted copy of these logs will be."""
    for folder in _folders(raw, out_dir):
        if _writable(folder):
            return folder / copy_name(raw, kind, options)
    raise DataError(
        f"{raw[0]}: its folder cannot be written, so its converted copy needs another; give --out "
        "DIR"
    )


def _writable(folder: Path) -> bool:
    probe = folder / f".neocpu-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True
