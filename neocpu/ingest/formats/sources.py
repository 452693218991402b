"""How is one file of a log read? As blocks of rows that are parsed on demand.

A text file is split by the tokenizer, which knows its line numbers. A Parquet file is read by
polars, and its columns are parsed as the text that they would be in a file
(`neocpu.ingest.formats.frames`).
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError
from neocpu.ingest.formats.fields import Fields, split_text
from neocpu.ingest.formats.readers import UNIT, TextBlock, kind_of, text_blocks
from neocpu.ingest.formats.schema import Schema
from neocpu.ingest.formats.text import TextParser

if TYPE_CHECKING:
    from neocpu.ingest.formats.parquet import Parquet


class RowBlock(NamedTuple):
    """Some rows of a file.

    parts : their fields, piece by piece. done : bytes of the file read so far.
    """

    parts: Iterator[Fields]
    done: int


class Source(NamedTuple):
    """How one file is read.

    blocks : of its rows. lines_before : lines before its first row. unit : what its rows are called
    in messages.
    """

    parser: TextParser
    blocks: Iterator[RowBlock]
    lines_before: int = 0
    unit: str = "line"


def open_source(path: Path, schema: Schema) -> Source:
    """How a file with the columns of a schema is read. Raises DataError if it cannot be."""
    kind = kind_of(path)
    if kind == "hdf5":
        raise DataError(
            f"{path}: already an HDF5 file; train on it, or look at it with `neocpu data show`"
        )
    if kind == "parquet":
        from neocpu.ingest.formats.parquet import Parquet

        return _parquet(Parquet(path), schema)
    lists = [repr(column) for column, separator in schema.lists.items() if not separator]
    if lists:
        raise DataError(
            f"{path}: lists in a text need a separator, which the entry of {', '.join(lists)} lacks"
        )
    return _text(path, schema)


def _text(path: Path, schema: Schema) -> Source:
    """How a text file is read."""
    blocks: Iterator[TextBlock] = text_blocks(path)
    if len(schema.delimiter.encode()) > 1:
        # The kernel splits at one byte; the unit separator hardly occurs in a log.
        blocks = _with_units(blocks, schema.delimiter.encode())
        schema = replace(schema, delimiter=UNIT)
    if not schema.header:
        parser = TextParser(schema)
        return Source(parser, _split(blocks, parser))
    start = next(blocks, None)
    if start is None:  # an empty file names no columns
        columns = schema.columns or tuple(schema.used)
        return Source(TextParser(replace(schema, columns=columns)), iter(()))
    cut = int(np.flatnonzero(start.text == 10)[0]) + 1
    if not schema.columns:
        schema = schema.with_header(
            start.text[:cut].tobytes().decode("utf-8", "replace").rstrip("\r\n"), path
        )
    parser = TextParser(schema)

    # The first block was read for its header; the rows behind it are still to come.
    def rest() -> Iterator[TextBlock]:
        if start.text.size > cut:
            yield TextBlock(np.ascontiguousarray(start.text[cut:]), start.done)
        yield from blocks

    return Source(parser, _split(rest(), parser), lines_before=1)


def _with_units(blocks: Iterator[TextBlock], delimiter: bytes) -> Iterator[TextBlock]:
    """Blocks whose delimiter of several bytes is replaced by one that is a single byte."""
    for block in blocks:
        text = block.text.tobytes().replace(delimiter, UNIT.encode())
        yield TextBlock(np.frombuffer(bytearray(text), np.uint8), block.done)


def _split(blocks: Iterator[TextBlock], parser: TextParser) -> Iterator[RowBlock]:
    """The fields of blocks of lines."""
    schema = parser.schema
    for block in blocks:
        pieces = _pieces(block.text, len(schema.columns))
        yield RowBlock(map(split_text, itertools.repeat(schema), pieces), block.done)


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


def _parquet(file: "Parquet", schema: Schema) -> Source:
    """How a Parquet file is read: by name, or by position where it has other names."""
    from neocpu.ingest.formats.frames import FrameReader

    types = file.types
    # A schema may name columns that the file has under other names, in the same order.
    if schema.columns and not set(schema.used) <= set(types) and len(types) == len(schema.columns):
        types = dict(zip(schema.columns, types.values()))
    reader = FrameReader(schema, types, str(file.path))
    names = dict(zip(types, file.types))
    columns = {name: names[name] for name in reader.columns}
    blocks = (RowBlock(iter((reader.fields(frame),)), done) for frame, done in file.frames(columns))
    return Source(reader.parser, blocks, unit="row")
