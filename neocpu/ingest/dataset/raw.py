"""How are the samples of raw logs read like those of a dataset? Block by block, where they are.

Before anything is read the rows of each file are counted (`index_of`): how many each block has, and
where it is in its file. So samples are numbered through as those of the converted files, and any of
them is found again by parsing its block. Files that can only be read from their start (compressed
ones, JSON, …) are: what lies before a block is decompressed, but not parsed.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.core.errors import DataError
from neocpu.core.types import Elements, Ints
from neocpu.ingest.dataset.convert import Faults, feature_columns
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.file import Samples
from neocpu.ingest.dataset_layout import take_bags
from neocpu.ingest.formats.fields import Parsed, joined
from neocpu.ingest.formats.schema import Schema
from neocpu.ingest.formats.sources import RowBlock, Source, open_source

UNKNOWN = 1 << 60  # lookups of a list that nobody has counted


@dataclass(frozen=True)
class FileIndex:
    """Where the rows of a file are, by block, JSON-able.

    spans : as of `RowBlock`. lines : rows, faulty ones too. rows : those without a fault. direct :
    can each block be read without those before it? faults : the first hundred, as they are told.
    """

    path: str
    spans: list[tuple[int, int]]
    lines: list[int]
    rows: list[int]
    direct: bool
    skipped: int = 0
    faults: tuple[str, ...] = ()


def index_of(path: Path, schema: Schema, on_error: str) -> FileIndex:
    """Count the rows of a file; only where faulty ones are skipped are they parsed.

    Raises DataError for a file that cannot be read, or has neither rows nor names of columns.
    """
    source = open_source(path, schema)
    faults = Faults(on_error)
    spans = []
    lines = []
    rows = []
    before = source.lines_before
    for block in source.blocks:
        spans.append(block.span)
        lines.append(block.lines)
        good = block.lines
        if faults.skip:
            good = len(_parsed(block, source, faults, path, before).dense)
            before += block.lines
        rows.append(good)
    if not (lines or source.says_columns or faults.skip):
        raise DataError(f"{path}: has no rows")
    direct = source.reread is not None
    return FileIndex(str(path), spans, lines, rows, direct, faults.count, tuple(faults.lines))


def _parsed(block: RowBlock, source: Source, faults: Faults, path: Path, before: int) -> Parsed:
    """The rows of a block; before : lines of the file before it."""
    parts = []
    for fields in block.parts:
        parsed = source.parser.parse_fields(fields)
        faults.add(path, source.unit, before, parsed.faults)
        before += parsed.lines
        parts.append(parsed)
    return joined(parts)


class CountedFile:
    """One log whose rows were counted; `label` and `more` choose of its labels as in a `Dataset`.

    Attribute: samples, its rows without a fault.
    """

    def __init__(self, index: FileIndex, schema: Schema, on_error: str, label: str) -> None:
        self.path = Path(index.path)
        self.index = index
        self.samples = sum(index.rows)
        self._schema = schema
        self._on_error = on_error
        self._label = label
        self._first_rows = np.cumsum([0, *index.rows], dtype=np.int64)
        self._first_lines = np.cumsum([0, *index.lines], dtype=np.int64)
        self._kept: dict[int, Parsed] = {}
        self._source: Source | None = None
        self._next = 0  # block that `_source` reads next

    @property
    def attributes(self) -> dict[str, Any]:
        """Of the dataset that it would be converted to."""
        return attributes_of(self._schema)

    @property
    def dense_columns(self) -> tuple[str, ...]:
        """Names of the columns of dense values."""
        return tuple(field.name for field in self._schema.dense)

    def close(self) -> None:
        """Nothing stays open that matters; the blocks read last are forgotten."""
        self._kept.clear()
        # but for the place in a file that has to be read from its start
        if self.index.direct or self._next == len(self.index.rows):
            self._source = None

    def take(self, samples: Ints, names: Sequence[str]) -> Samples:
        """Gather samples i64[n > 0], in any order, with the bags of the features `names`.

        Raises DataError for a faulty row, and for a file that changed since it was counted.
        """
        block_of = np.searchsorted(self._first_rows[1:], samples, side="right")
        blocks = np.unique(block_of)
        wanted = blocks.tolist()
        kept = {block: self._kept[block] for block in wanted if block in self._kept}
        kept.update(self._read([block for block in wanted if block not in kept]))
        # the next samples are mostly of the same blocks, or of those behind them
        self._kept = kept
        rows = joined([kept[block] for block in wanted])
        starts = np.cumsum([0, *(len(kept[block].dense) for block in wanted)], dtype=np.int64)
        place = np.searchsorted(blocks, block_of)
        positions = samples - self._first_rows[block_of] + starts[place]
        labels = rows.more_labels.get(self._label, rows.labels)
        more = {name: values[positions] for name, values in rows.more_labels.items()}
        if rows.labels is not None and self._schema.label is not None:
            more[self._schema.label.name] = rows.labels[positions]
        return Samples(
            np.zeros(samples.size, np.float32) if labels is None else labels[positions],
            rows.dense[positions],
            {name: take_bags(rows.features[name], positions) for name in names},
            more,
        )

    def _read(self, blocks: list[int]) -> Iterator[tuple[int, Parsed]]:
        """The rows of ascending blocks, each with its number."""
        faults = Faults(self._on_error)
        for number, block in self._found(blocks):
            assert self._source is not None
            before = self._source.lines_before + int(self._first_lines[number])
            parsed = _parsed(block, self._source, faults, self.path, before)
            if len(parsed.dense) != self.index.rows[number]:
                raise DataError(f"{self.path}: has changed since its rows were counted")
            yield number, parsed

    def _found(self, blocks: list[int]) -> Iterator[tuple[int, RowBlock]]:
        if self._source is None or (blocks and not self.index.direct and blocks[0] < self._next):
            self._source = open_source(self.path, self._schema)
            self._next = 0
            if self.index.direct:
                # each block is read by itself: the file need not stay open
                self._source = self._source._replace(blocks=iter(()))
        if self._source.reread is not None:
            for number in blocks:
                yield number, self._source.reread(self.index.spans[number])
            return
        for number in blocks:
            # lazily parsed: those that are passed over cost no more than reading them
            ahead = itertools.islice(self._source.blocks, number - self._next, None)
            block = next(ahead, None)
            self._next = number + 1
            if block is None:
                raise DataError(f"{self.path}: has changed since its rows were counted")
            yield number, block


def attributes_of(schema: Schema) -> dict[str, Any]:
    """What a dataset says of the log that it was made of."""
    transforms = [field.description for field in schema.dense]
    return {**schema.extra, "log": schema.name, "dense_transform": transforms}


@dataclass(frozen=True)
class RawLog:
    """What it takes to open raw logs in another process.

    files : counted. label, more : as of `Dataset`. growing : more files may come.
    """

    files: tuple[FileIndex, ...]
    schema: Schema
    on_error: str = "fail"
    label: str = ""
    more: tuple[str, ...] = ()
    growing: bool = False

    def open(self) -> "RawDataset":
        """The samples of the logs."""
        return RawDataset(self)


class RawDataset(Dataset):
    """The samples of raw logs, with the attributes of the dataset that they would become.

    Raises DataError for logs without a row, and for a label that they lack.
    """

    contents = ()  # type: ignore[assignment]  # logs have no checksums

    def __init__(self, log: RawLog) -> None:
        # no super().__init__(), which opens converted files
        self.log = log
        schema = log.schema
        names = [label.name for label in schema.labels]
        if log.label and log.label not in names:
            raise DataError(
                f"{log.files[0].path}: no label {log.label!r}; its labels are {', '.join(names)}"
            )
        self.paths = [Path(index.path) for index in log.files]
        self.dense_columns = tuple(field.name for field in schema.dense)
        self.attributes = attributes_of(schema)
        self.labelled = schema.label is not None
        self.label_names = names if schema.tree else []
        self.more_labels = [name for name in log.more if name in names]
        self.schema = None if schema.tree is None else dict(schema.tree)
        self.vocabularies = {}
        self.features = {column.name: column for column in feature_columns(schema)}
        self.skipped = [index.skipped for index in log.files]
        self.invalid = [{} for _ in log.files]
        self.extreme = [{} for _ in log.files]
        self._files: list[Any] = []
        self._last_taken: set[int] = set()  # files whose blocks are in memory
        self._first_samples = np.zeros(1, np.int64)
        self._first = 0
        self.rows = 0
        for index in log.files:
            self.add(index)
        if not self.rows:
            why = "has no rows"
            if faults := [fault for index in log.files for fault in index.faults[:1]]:
                why = f"no row is left; the first row that was skipped: {faults[0]}"
            raise DataError(f"{self.paths[0]}: {why}")

    def add(self, index: FileIndex) -> None:
        """Let the rows of another file follow."""
        log = self.log
        self._files.append(CountedFile(index, log.schema, log.on_error, log.label))
        self.rows += self._files[-1].samples
        self._first_samples = np.append(self._first_samples, self.rows)

    @property
    def sequential(self) -> Path | None:
        """A file that can only be read from its start, if there is one."""
        return next((file.path for file in self._files if not file.index.direct), None)

    def take(self, samples: Ints, features: Iterable[str] | None = None) -> Samples:
        """As of `Dataset`; further labels are those of `more_labels`."""
        taken = super().take(samples, features)
        return Samples(
            taken.labels,
            taken.dense,
            taken.features,
            {name: taken.more[name] for name in self.more_labels},
        )

    def _turn_to(self, files: Ints) -> None:
        """Those that were taken from last, and are not now, forget their blocks."""
        now = set(files.tolist())
        # of a stream there are thousands: no others are asked
        for number in self._last_taken - now:
            self._files[number].close()
        self._last_taken = now

    def frequencies(self, feature: str) -> list[tuple[Elements, Ints]]:
        """None: nobody has counted them."""
        return []

    def lookups(self, feature: str) -> int:
        """Number of codes of a feature over all samples; more than that where it is not known."""
        known = self.features[feature].hotness and not self.log.growing
        return self.rows if known else UNKNOWN

    def label_range(self) -> tuple[float, float]:
        """The least and the greatest label; all rows are read where they are no clicks."""
        labels = {label.name: label for label in self.log.schema.labels}
        label = labels.get(self.log.label, self.log.schema.label)
        return self._range(label.name) if label is not None else (0.0, 0.0)

    def more_range(self, name: str) -> tuple[float, float]:
        """The least and the greatest of the further labels `name`."""
        return self._range(name)

    def _range(self, name: str) -> tuple[float, float]:
        label = next(label for label in self.log.schema.labels if label.name == name)
        if label.kind == "click" or label.threshold is not None:
            return 0.0, 1.0
        first = label.name == (self.log.label or self.label_names[0])
        blocks = [each.labels if first else each.more[name] for each in self.sample_blocks()]
        return (
            float(min(block.min() for block in blocks)),
            float(max(block.max() for block in blocks)),
        )
