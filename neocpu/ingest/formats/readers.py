"""How does a raw log become blocks of complete lines? Text and gzip give the same bytes.

A block is about a megabyte of lines, each ended by a newline; a line cut by a block's end moves to
the next block, so memory stays bounded and line numbers stay true. Gzip is decompressed on a
thread. Parquet files are only recognised here (`neocpu.ingest.formats.parquet` reads them).
"""

import gzip
import io
import stat
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError
from neocpu.ingest.read_ahead import read_ahead
from neocpu.tables.hdf5.disk import SIGNATURE

BLOCK_BYTES = 1 << 20  # of one read
UNIT = "\x1f"  # ASCII unit separator: stands for a delimiter of several bytes
LONGEST_LINE = 64 << 20  # bytes; bounds memory for a file that has no lines


class TextBlock(NamedTuple):
    """Complete lines, the text uint8[n] of which ends with a newline.

    done : bytes of the file read so far.
    """

    text: NDArray[np.uint8]
    done: int


def kind_of(path: Path) -> str:
    """What a file is by its first bytes: hdf5, parquet, gzip or text.

    Raises DataError if it cannot be read, or is no file with a name of its own.
    """
    try:
        _require_file(path)
        with open(path, "rb") as file:
            start = file.read(8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise DataError(f"{str(path)!r}: cannot be read: {error}") from error
    if start == SIGNATURE:
        return "hdf5"
    if start[:4] == b"PAR1":
        return "parquet"
    return "gzip" if start[:2] == b"\x1f\x8b" else "text"


def _require_file(path: Path) -> None:
    """Raise DataError for a pipe, a device or /dev/stdin."""
    mode = path.stat().st_mode
    folder = path.parent.resolve()
    unnamed = folder == Path("/dev") or Path("/proc") in folder.parents
    if unnamed or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(
            f"{path}: not a regular file; data are read more than once, and their converted copy "
            "is found again by their name, so write them to a file first"
        )


def text_blocks(path: Path, block: int = BLOCK_BYTES) -> Generator[TextBlock, None, None]:
    """The lines of a plain or gzip file.

    Raises DataError for a truncated gzip file or an overlong line.
    """
    with open(path, "rb", buffering=0) as raw:
        if kind_of(path) == "gzip":
            with gzip.GzipFile(fileobj=raw) as unzipped:
                yield from read_ahead(_lines(path, unzipped, raw, block), 4)
        else:
            yield from _lines(path, raw, raw, block)


def first_block(path: Path, block: int = BLOCK_BYTES) -> TextBlock | None:
    """The first lines of a plain or gzip file; None of an empty one."""
    blocks = text_blocks(path, block)
    start = next(blocks, None)
    blocks.close()  # ends the thread that reads ahead
    return start


def _lines(
    path: Path, stream: gzip.GzipFile | BinaryIO, raw: io.FileIO, block: int
) -> Iterator[TextBlock]:
    carry = b""
    first = True
    while chunk := _read(path, stream, block):
        if first and chunk.startswith(b"\xef\xbb\xbf"):
            chunk = chunk[3:]
        first = False
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield TextBlock(np.frombuffer(bytearray(carry + chunk[:cut]), np.uint8), raw.tell())
            carry = chunk[cut:]
        else:
            carry += chunk
        if len(carry) > LONGEST_LINE:
            raise DataError(
                f"{path}: a line is longer than {LONGEST_LINE >> 20} MiB; is this a text file?"
            )
    if carry:
        yield TextBlock(np.frombuffer(bytearray(carry + b"\n"), np.uint8), raw.tell())


def _read(path: Path, stream: gzip.GzipFile | BinaryIO, block: int) -> bytes:
    try:
        return stream.read(block)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path}: truncated or damaged gzip file ({error}); fetch it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: reading failed: {error}") from error
