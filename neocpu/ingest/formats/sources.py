"""How is one file of a log read? As blocks of rows that are parsed on demand.

A text file is split by the tokenizer, which knows its line numbers. Any other file is read as
frames (`neocpu.ingest.formats.files`), and its columns are parsed as the text that they would be in
a file (`neocpu.ingest.formats.frames`).
"""

import csv
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neocpu.core.errors import DataError
from neocpu.core.types import Bytes
from neocpu.ingest.formats.fields import Fields, split_text, with_constants
from neocpu.ingest.formats.files.folders import folder_keys
from neocpu.ingest.formats.files.kinds import KINDS, RECORDS, kind_of
from neocpu.ingest.formats.files.streams import text_start
from neocpu.ingest.formats.readers import (
    UNIT,
    TextBlock,
    comments,
    lines_between,
    require_text,
    text_blocks,
)
from neocpu.ingest.formats.schema import Schema, as_called
from neocpu.ingest.formats.text import TextParser

if TYPE_CHECKING:
    from neocpu.ingest.formats.files.frame_file import FrameFile, FrameRows


class RowBlock(NamedTuple):
    """Some rows of a file.

    parts : their fields, piece by piece. done : bytes of the file read so far. lines : rows in all,
    faulty ones too. span : where they are in the file, for `Source.reread`.
    """

    parts: Iterator[Fields]
    done: int
    lines: int
    span: tuple[int, int]


class Source(NamedTuple):
    """How one file is read.

    blocks : of its rows. lines_before : lines before its first row. unit : what its rows are called
    in messages. reread : the block of a span, again; None where a file can only be read from its
    start, as a compressed one.
    """

    parser: TextParser
    blocks: Iterator[RowBlock]
    lines_before: int = 0
    unit: str = "line"
    reread: Callable[[tuple[int, int]], RowBlock] | None = None

    @property
    def says_columns(self) -> bool:
        """Does the file say which columns it has, so that it may well have no rows?"""
        return self.unit == "row" or self.lines_before > 0


def open_source(path: Path, schema: Schema) -> Source:
    """How a file with the columns of a schema is read. Raises DataError if it cannot be.

    A column that the file lacks may be in the names of its folders (`folders.py`).
    """
    if kind_of(path) == "hdf5":
        raise DataError(
            f"{path}: already an HDF5 file; train on it, or look at it with `neocpu data show`; of "
            "one that another program wrote write the columns to Parquet"
        )
    keys = folder_keys(path)
    file = frames_of(path, schema)
    if file is not None:
        return _framed(path, file, schema, keys)
    lists = [repr(column) for column, separator in schema.lists.items() if not separator]
    if lists:
        raise DataError(
            f"{path}: lists in a text need a separator, which the entry of {', '.join(lists)} lacks"
        )
    return _text(path, schema, keys)


def frames_of(path: Path, schema: Schema) -> "FrameFile | None":
    """A file that is read as frames; None for one that a schema cuts into fields."""
    kind = kind_of(path)
    # where a schema names the fields of a line, it means text, whatever the text looks like
    if not KINDS[kind].reader or (kind in RECORDS and (schema.columns or not schema.header)):
        return None
    from neocpu.ingest.formats.files.frame_file import open_frames  # and polars

    keys = folder_keys(path)
    return open_frames(path, [name for name in schema.used if name not in keys])


def _text(path: Path, schema: Schema, keys: Mapping[str, str]) -> Source:
    """How a text file is read."""
    blocks: Iterator[TextBlock] = text_blocks(path, encoding=schema.encoding)
    begin = text_start(path, schema.encoding)
    delimiter = schema.delimiter.encode()
    if len(delimiter) > 1:
        # The kernel splits at one byte; the unit separator hardly occurs in a log.
        blocks = _with_units(blocks, delimiter)
        schema = replace(schema, delimiter=UNIT)
    start = next(blocks, None)
    if start is None:  # an empty file names no columns
        columns = schema.columns or tuple(schema.used)
        return Source(TextParser(replace(schema, columns=columns)), iter(()))
    first, lines_before = comments(start.text, schema.comment, blank=not schema.columns)
    cut = start.text.tobytes().find(b"\n", first) + 1
    head = start.text[first:cut].tobytes()
    line = head.decode("utf-8", "replace").rstrip("\r\n")
    if schema.columns:
        schema = _without_keys(schema, line, keys)
    else:
        require_text(path, head)
        keys = {name: value for name, value in keys.items() if name in schema.used}
        schema = schema.with_header(line, path, keys)

    # The first block was read for its first line; the rows behind a header are still to come.
    def rest() -> Iterator[TextBlock]:
        skipped = cut if schema.header else first
        if start.text.size > skipped:
            # in bytes of the file, where a delimiter of several bytes is not one byte yet
            before = start.text[:skipped].tobytes()
            begin_rows = skipped + (len(delimiter) - 1) * before.count(UNIT.encode())
            rows = np.ascontiguousarray(start.text[skipped:])
            yield TextBlock(rows, start.done, (begin_rows, start.span[1]))
        yield from blocks

    def reread(span: tuple[int, int]) -> RowBlock:
        text = lines_between(path, begin + span[0], begin + span[1])
        block = iter((TextBlock(text, begin + span[1], span),))
        if len(delimiter) > 1:
            block = _with_units(block, delimiter)
        return next(_split(block, schema, keys))

    keys = {name: value for name, value in keys.items() if name not in schema.columns}
    parser = TextParser(replace(schema, columns=(*schema.columns, *keys)))
    rows = rest() if len(schema.columns) == 1 else _without_end(rest())
    return Source(
        parser,
        _split(rows, schema, keys),
        lines_before + schema.header,
        reread=None if begin < 0 else reread,
    )


def _without_end(blocks: Iterator[TextBlock]) -> Iterator[TextBlock]:
    """Blocks without the empty lines that a file ends with: they are no rows."""
    empty = b""
    for block in blocks:
        if not empty and not _ends_empty(block.text):
            yield block
            continue
        first = block.span[0] - len(empty)
        text = empty + block.text.tobytes()
        lines = text.rstrip(b"\r\n")
        # the end of the last line that holds something is not one of them
        size = text.find(b"\n", len(lines)) + 1 if lines else 0
        empty = text[size:]
        if size:
            span = (first, block.span[1] - len(empty))
            yield TextBlock(np.frombuffer(bytearray(text[:size]), np.uint8), block.done, span)


def _ends_empty(text: Bytes) -> bool:
    """Is the last line of a block empty?"""
    return text[-3:].tobytes().endswith((b"\n\n", b"\n\r\n")) or text[0] in b"\r\n"


def _without_keys(schema: Schema, line: str, keys: Mapping[str, str]) -> Schema:
    """A schema without the columns that folders name, where the lines of a file lack these."""
    own = tuple(name for name in schema.columns if name not in keys)
    try:
        lacking = len(schema.split_line(line)) == len(own) < len(schema.columns)
    except (csv.Error, TypeError, ValueError):
        return schema
    return replace(schema, columns=own) if lacking else schema


def _with_units(blocks: Iterator[TextBlock], delimiter: bytes) -> Iterator[TextBlock]:
    """Blocks whose delimiter of several bytes is replaced by one that is a single byte."""
    for block in blocks:
        text = block.text.tobytes().replace(delimiter, UNIT.encode())
        yield block._replace(text=np.frombuffer(bytearray(text), np.uint8))


def _split(
    blocks: Iterator[TextBlock], schema: Schema, keys: Mapping[str, str]
) -> Iterator[RowBlock]:
    """The fields of blocks of lines, and columns behind them that have one value each."""
    for block in blocks:
        pieces = _pieces(block.text, len(schema.columns))
        parts = map(split_text, itertools.repeat(schema), pieces)
        lines = int(np.count_nonzero(block.text == 10))
        fields = (with_constants(part, keys) for part in parts)
        yield RowBlock(fields, block.done, lines, block.span)


def _pieces(text: Bytes, columns: int) -> Iterator[Bytes]:
    """Lines of a block, so many at a time that their fields are not many more than its bytes.

    A good line has a byte for each of its columns; empty lines would take `columns` fields each.
    """
    most = text.size // max(columns, 1) + 1
    ends = np.flatnonzero(text == ord("\n")) + 1
    first = 0
    for last in [*ends[most - 1 : -1 : most].tolist(), text.size]:
        yield text[first:last]
        first = last


def _framed(path: Path, file: "FrameFile", schema: Schema, keys: Mapping[str, str]) -> Source:
    """How a file of frames is read: by name, or by position where it has other names."""
    import polars as pl

    from neocpu.ingest.formats.frames import FrameReader

    types = dict(file.types)
    # A schema may name columns that the file has under other names, in the same order.
    if schema.columns and not set(schema.used) <= set(types) and len(types) == len(schema.columns):
        types = dict(zip(schema.columns, types.values()))
    types = dict(zip(as_called([*types], schema.used), types.values()))
    names = dict(zip(types, file.types))
    keys = {name: value for name, value in keys.items() if name not in types}
    reader = FrameReader(schema, types | dict.fromkeys(keys, pl.String()), str(path))
    columns = {name: names[name] for name in reader.columns if name in names}
    constants = [pl.lit(keys[name]).alias(name) for name in reader.columns if name in keys]

    def block_of(rows: "FrameRows", first: int) -> RowBlock:
        frame = rows.frame.with_columns(constants).select(reader.columns)

        def parts() -> Iterator[Fields]:
            yield reader.fields(frame)._replace(faults=[*rows.faults])

        return RowBlock(parts(), rows.done, frame.height, (first, first + frame.height))

    def blocks() -> Iterator[RowBlock]:
        first = 0
        for rows in file.batches(columns):
            yield block_of(rows, first)
            first += rows.frame.height

    # only some kinds of file can be entered anywhere
    rows_between = getattr(file, "rows_between", None)

    def reread(span: tuple[int, int]) -> RowBlock:
        assert rows_between is not None
        return block_of(rows_between(columns, *span), span[0])

    direct = rows_between is not None
    return Source(reader.parser, blocks(), unit="row", reread=reread if direct else None)
