"""How does a raw log become blocks of complete lines? However it is compressed, the same bytes.

A block is about a megabyte of lines, each ended by a newline; a line cut by a block's end moves to
the next block, so memory stays bounded and line numbers stay true. What is compressed is
decompressed on a thread.
"""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from neocpu.core.errors import DataError, told_as
from neocpu.core.types import Bytes
from neocpu.ingest.formats.files.streams import as_utf8, byte_stream
from neocpu.ingest.read_ahead import read_ahead

BLOCK_BYTES = 1 << 20  # of one read
UNIT = "\x1f"  # ASCII unit separator: stands for a delimiter of several bytes
LONGEST_LINE = 64 << 20  # bytes; bounds memory for a file that has no lines


class TextBlock(NamedTuple):
    """Complete lines, the text uint8[n] of which ends with a newline.

    done : bytes of the file read so far. span : the bytes [first, last) that they are of the text
    of the file, decompressed and as UTF-8.
    """

    text: Bytes
    done: int
    span: tuple[int, int] = (0, 0)


def text_blocks(
    path: Path, block: int = BLOCK_BYTES, encoding: str = ""
) -> Generator[TextBlock, None, None]:
    """The lines of a text file, decompressed and as UTF-8 (`streams.py`).

    Raises DataError for a damaged or truncated file, another encoding, or an overlong line.
    """
    with byte_stream(path) as stream:
        lines = _lines(path, as_utf8(path, stream, encoding), stream.done, block)
        yield from read_ahead(lines, 4) if stream.compression else lines


def lines_between(path: Path, first: int, last: int) -> Bytes:
    """Bytes [first, last) of a file, u8[n], which are complete lines. Raises DataError if it has
    fewer.
    """
    with told_as(DataError, path, "cannot be read"), open(path, "rb") as file:
        file.seek(first)
        text = file.read(last - first)
    if len(text) < last - first:
        raise DataError(f"{path}: is shorter than it was; was it written anew while it was read?")
    return np.frombuffer(bytearray(text if text.endswith(b"\n") else text + b"\n"), np.uint8)


def first_block(path: Path, block: int = BLOCK_BYTES, encoding: str = "") -> TextBlock | None:
    """The first lines of a text file; None of an empty one."""
    blocks = text_blocks(path, block, encoding)
    start = next(blocks, None)
    blocks.close()  # ends the thread that reads ahead
    return start


def comments(text: Bytes, mark: str, blank: bool = False) -> tuple[int, int]:
    """(bytes, lines) of the comments that a text begins with: lines that begin with a mark.

    blank : empty lines are none of it either, as where a header follows.
    """
    content = text.tobytes()
    marks = (*([mark.encode()] if mark else []), *([b"\n", b"\r\n"] if blank else []))
    size = lines = 0
    while marks and content.startswith(marks, size):
        size = content.index(b"\n", size) + 1
        lines += 1
    return size, lines


def require_text(path: Path, start: bytes) -> None:
    """Raise DataError for a file that is no text, or whose lines do not end in newlines, by the
    bytes that it starts with.
    """
    if b"\0" in start:
        raise DataError(
            f"{path}: no text that can be read: it has NUL bytes, as what is compressed by brotli "
            "or encoded in UTF-16 without a byte order mark. Write it as UTF-8, or as Parquet"
        )
    if b"\r" in start.partition(b"\n")[0].rstrip(b"\r"):
        raise DataError(
            f"{path}: its lines end in carriage returns alone; write newlines: tr '\\r' '\\n'"
        )


def _lines(
    path: Path, read: Callable[[int], bytes], done: Callable[[], int], block: int
) -> Iterator[TextBlock]:
    carry = b""
    first = 0
    while chunk := read(block):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            text = np.frombuffer(bytearray(carry + chunk[:cut]), np.uint8)
            yield TextBlock(text, done(), (first, first + text.size))
            first += text.size
            carry = chunk[cut:]
        else:
            carry += chunk
        if len(carry) > LONGEST_LINE:
            raise DataError(
                f"{path}: a line is longer than {LONGEST_LINE >> 20} MiB; is this a text file?"
            )
    if carry:
        text = np.frombuffer(bytearray(carry + b"\n"), np.uint8)
        yield TextBlock(text, done(), (first, first + len(carry)))
