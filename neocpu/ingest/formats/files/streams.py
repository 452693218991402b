"""Which text is in a file? Its bytes, decompressed and as UTF-8.

A file is known by its first bytes, whatever its name: gzip, bzip2, xz, zstd, a zip archive of one
file, or none of them. Text that begins with the byte order mark of UTF-16 becomes UTF-8; of any
other encoding the schema says the name.
"""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from neocpu.core.errors import DataError

COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    # a block, or the end of a member without any
    **{b"BZh%d1AY&SY" % level: "bzip2" for level in range(1, 10)},
    **{b"BZh%d\x17rE8P\x90" % level: "bzip2" for level in range(1, 10)},
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\3\4": "zip",
    b"PK\5\6": "zip",  # without a file
}
BROKEN = (
    *(EOFError, OSError, RuntimeError, ValueError, NotImplementedError),
    *(zlib.error, lzma.LZMAError, zipfile.BadZipFile),
)
UTF16 = (b"\xff\xfe", b"\xfe\xff")
PIECE = 1 << 16  # bytes of a compressed file that are read at a time
ZSTD_BLOCK = 1 << 17  # bytes of text in a block of zstd
ZSTD_BLOCKS = 4096  # at the start of a file, from which its ratio is taken
UTF8_MARK = b"\xef\xbb\xbf"


class Readable(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """So many bytes, or fewer at the end; none there."""

    def close(self) -> None:
        """Nothing is read any more."""


class ByteStream(NamedTuple):
    """The decompressed bytes of a file.

    read : gives up to so many of them; none at the end. done : bytes of the file read so far.
    compression : its name, "" for none.
    """

    read: Callable[[int], bytes]
    done: Callable[[], int]
    compression: str


def compression_of(start: bytes) -> str:
    """How a file is compressed, by its first bytes; "" if it is not."""
    return next((name for magic, name in COMPRESSIONS.items() if start.startswith(magic)), "")


@contextlib.contextmanager
def byte_stream(path: Path) -> Iterator[ByteStream]:
    """The decompressed bytes of a file. Raises DataError where it is damaged or truncated."""
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(open(path, "rb", buffering=0))
        kind = compression_of(raw.read(16))
        raw.seek(0)
        with _explained(path, kind):
            stream = stack.enter_context(contextlib.closing(_opened(path, raw, kind)))

        def read(size: int) -> bytes:
            with _explained(path, kind):
                return stream.read(size)

        yield ByteStream(read, stream.tell if isinstance(stream, _ZstdText) else raw.tell, kind)


@contextlib.contextmanager
def _explained(path: Path, kind: str) -> Iterator[None]:
    """What a decompressor raises within means that the file is damaged."""
    try:
        yield
    except BROKEN as error:
        if not kind:
            raise DataError(f"{path}: reading failed: {error}") from error
        raise DataError(
            f"{path}: truncated or damaged {kind} file ({error}); fetch it again, or unpack it"
        ) from error


def _opened(path: Path, raw: BinaryIO, kind: str) -> Readable:
    if kind == "gzip":
        return gzip.GzipFile(fileobj=raw)
    if kind == "bzip2":
        return _Members(raw, bz2.BZ2Decompressor)
    if kind == "xz":
        return _Members(raw, lzma.LZMADecompressor)
    if kind == "zstd":
        return _ZstdText(path)
    return _zipped(path, raw) if kind == "zip" else raw


class _Members:
    """The text of a bzip2 or xz file of one member or several, with zeros behind them or not.

    Python's own readers pass over what is damaged behind the first member: rows would be missing.
    """

    def __init__(
        self, raw: BinaryIO, begin: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
    ) -> None:
        self._raw = raw
        self._begin = begin
        self._member: bz2.BZ2Decompressor | lzma.LZMADecompressor | None = None
        self._packed = b""  # read, and not decompressed yet

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most so many."""
        text = b""
        while not text:
            if self._member is None:
                if not (packed := self._packed or self._raw.read(PIECE)):
                    return b""
                self._packed = packed.lstrip(b"\0")
                if not self._packed:
                    continue
                self._member = self._begin()
            if self._member.needs_input and not self._packed:
                self._packed = self._raw.read(PIECE)
                if not self._packed:
                    raise EOFError("it ends within a member")
            text = self._member.decompress(self._packed, size)
            self._packed = b""
            if self._member.eof:
                self._packed = self._member.unused_data
                self._member = None
        return text

    def close(self) -> None:
        """Nothing is held open."""


def zip_members(archive: zipfile.ZipFile) -> list[str]:
    """The files in an archive, without what a Mac puts beside them."""
    names = [name for name in archive.namelist() if not name.endswith("/")]
    return [name for name in names if not name.startswith("__MACOSX/")]


def _zipped(path: Path, raw: BinaryIO) -> Readable:
    """The one file in an archive."""
    archive = zipfile.ZipFile(raw)
    names = zip_members(archive)
    if len(names) != 1:
        raise DataError(
            f"{path}: a zip archive of {len(names)} files; unpack it, and name those of the log"
        )
    return archive.open(names[0])


class _ZstdText:
    """The lines of a zstd file of UTF-8, through polars, as the Python that we need has no zstd."""

    SEPARATOR = "\x1e"  # ASCII record separator, which hardly occurs in a log: a line is a field

    def __init__(self, path: Path) -> None:
        import polars as pl

        if not hasattr(pl.LazyFrame, "collect_batches"):
            raise DataError(
                f"{path}: zstd files need polars 1.34 or newer; pip install -U polars, or unpack it"
            )
        lines = pl.scan_csv(
            path,
            has_header=False,
            separator=self.SEPARATOR,
            quote_char=None,
            infer_schema=False,
            truncate_ragged_lines=False,
            raise_if_empty=False,
            new_columns=["line"],
        )
        self._batches = iter(lines.collect_batches(chunk_size=1 << 14))
        self._rest = b""
        self._given = 0
        self._size = path.stat().st_size
        self._ratio = _zstd_ratio(path)

    def read(self, size: int, /) -> bytes:
        """The next lines, at most so many bytes."""
        import polars as pl

        try:
            while len(self._rest) < size and (batch := next(self._batches, None)) is not None:
                lines = batch.get_column("line").fill_null("")
                self._rest += ("\n".join(lines.to_list()) + "\n").encode()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise ValueError(str(error).splitlines()[0][:200]) from error
        chunk, self._rest = self._rest[:size], self._rest[size:]
        self._given += len(chunk)
        return chunk

    def tell(self) -> int:
        """About how many bytes of the file were read, as polars does not say."""
        return min(max(int(self._given * self._ratio), 1), self._size)

    def close(self) -> None:
        """Nothing is held open."""


def _zstd_ratio(path: Path) -> float:
    """Bytes of a zstd file for each byte of its text, by the headers of its first blocks.

    All but the last block hold 128 KiB, unless their writer was flushed (RFC 8878, 3.1.1.2).
    """
    packed = 0
    unpacked = 0
    with open(path, "rb") as file:
        descriptor = file.read(5)[4:] or b"\0"
        single = descriptor[0] >> 5 & 1
        content_size = (single, 2, 4, 8)[descriptor[0] >> 6]
        file.seek((0, 1, 2, 4)[descriptor[0] & 3] + content_size + (not single), io.SEEK_CUR)
        for _ in range(ZSTD_BLOCKS):
            header = int.from_bytes(file.read(3), "little")
            kind, size = header >> 1 & 3, header >> 3
            stored = 1 if kind == 1 else size  # 1: one byte, repeated
            packed += 3 + stored
            unpacked += ZSTD_BLOCK if kind == 2 else size  # 2: compressed
            if header & 1:
                break
            file.seek(stored, io.SEEK_CUR)
    return packed / max(unpacked, 1)


def as_utf8(path: Path, stream: ByteStream, encoding: str) -> Callable[[int], bytes]:
    """`read` of a text as UTF-8, without a byte order mark.

    encoding : Python's name of the text's own; "": UTF-8, or UTF-16 where the text begins as such.
    Bytes of a text without an encoding stay as they are, also where they are no UTF-8.
    """
    start = stream.read(4)
    if not encoding and start.startswith(UTF16):
        encoding = "utf-16"
    if not encoding:
        start = start.removeprefix(UTF8_MARK)
        return _Joined(start, stream.read).read
    # "utf-8-sig" and the like take their mark off
    decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)()
    raw = _Joined(start, stream.read)

    def read(size: int) -> bytes:
        # half a character is no text yet, and no end either
        while chunk := raw.read(size):
            if text := _decoded(path, decoder, chunk, encoding, final=False):
                return text.encode()
        return _decoded(path, decoder, b"", encoding, final=True).encode()

    return read


def text_start(path: Path, encoding: str) -> int:
    """Where the text of a file begins, if its bytes are those of the file; -1: they are not, as the
    file is compressed or in another encoding.
    """
    with open(path, "rb") as file:
        start = file.read(16)
    if encoding or compression_of(start) or start.startswith(UTF16):
        return -1
    return len(UTF8_MARK) if start.startswith(UTF8_MARK) else 0


def _decoded(
    path: Path, decoder: codecs.IncrementalDecoder, chunk: bytes, encoding: str, *, final: bool
) -> str:
    try:
        return decoder.decode(chunk, final)
    except UnicodeError as error:
        raise DataError(f"{path}: is not text in the encoding {encoding}: {error}") from error


class _Joined:
    """Bytes that were read already, and those behind them."""

    def __init__(self, start: bytes, read: Callable[[int], bytes]) -> None:
        self._start = start
        self._read = read

    def read(self, size: int) -> bytes:
        """The next bytes."""
        if not self._start:
            return self._read(size)
        chunk = self._start + self._read(max(size - len(self._start), 0))
        self._start = b""
        return chunk
