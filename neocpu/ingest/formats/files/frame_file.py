"""How is a file read that is no text to be cut into fields? As frames, in bounded memory.

Each kind of `neocpu.ingest.formats.files.kinds` that names a reader has a class here that is a
`FrameFile`: names and types of its columns, and its rows, some thousand at a time. Their values
count as the text that they would have in a file (`neocpu.ingest.formats.frames`).
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from tokenize import TokenError
from typing import NamedTuple, Protocol, cast

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.fields import Fault
from neocpu.ingest.formats.files.kinds import KINDS, kind_of
from neocpu.ingest.formats.files.streams import BROKEN
from neocpu.ingest.formats.frames import POLARS_ERRORS
from neocpu.tables.hdf5.walk import one_line

ROWS = 1 << 12  # of a frame that is parsed at a time
# NumPy parses the header of an array as Python
DAMAGE = (*POLARS_ERRORS, *BROKEN, SyntaxError, TokenError)


class FrameRows(NamedTuple):
    """Some rows of a file.

    done : bytes of the file read so far. faults : of rows that are not what the kind asks for;
    their values are null.
    """

    frame: pl.DataFrame
    done: int
    faults: tuple[Fault, ...] = ()


class Hint(NamedTuple):
    """What a column is by the file's form, as its values alone do not say.

    kind : of a category, "text" or "int"; or "left out", and why. separator : between the items of
    a list; "": one value a row. weight_separator : between an item and its weight; "": there are no
    weights.
    """

    kind: str = "text"
    separator: str = ""
    weight_separator: str = ""
    why: str = ""


class FrameFile(Protocol):
    """A file that is read as frames.

    types : of its columns. rows : in all; None where only reading it tells. hints : what columns
    are that hold no plain values. offered : the columns that a look at it shows.
    """

    types: Mapping[str, pl.DataType]
    rows: int | None
    hints: Mapping[str, Hint]
    offered: list[str]

    def __init__(self, path: Path, wanted: Collection[str]) -> None:
        """Open it; wanted : columns that must be looked for in all of it, as rows may lack them."""

    def batches(self, columns: Mapping[str, str]) -> Iterator[FrameRows]:
        """The rows of columns: their names in the frames -> in the file."""


def open_frames(path: Path, wanted: Collection[str] = ()) -> FrameFile | None:
    """A file that is read as frames; None for text. Raises DataError for one that is damaged."""
    kind = KINDS[kind_of(path)]
    if not kind.reader:
        return None
    module, _, name = kind.reader.partition(":")
    opener = getattr(import_module(f"neocpu.ingest.formats.files.{module}"), name)
    with readable(path, f"not a readable {kind.title}"):
        return cast(FrameFile, opener(path, wanted))


@contextlib.contextmanager
def readable(path: Path, subject: str) -> Iterator[None]:
    """What polars or NumPy raises within means that the file is damaged."""
    try:
        yield
    except DAMAGE as error:
        raise DataError(f"{path}: {subject}: {one_line(error)[:300]}") from error
