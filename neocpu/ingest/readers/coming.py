"""Which files come while a run trains? Those that appear in a folder, or pieces of what stdin says.

A file is whole when it has its name: whoever writes it gives it a hidden one until then, and
renames it. Names are taken in their order; one that appears behind those already taken ends the
run, since a run on the whole folder would have another order.
"""

import select
import shutil
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from neocpu.core.errors import DataError, told_as
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.raw import RawDataset, RawLog
from neocpu.ingest.formats.files.folders import is_log
from neocpu.ingest.formats.files.streams import UTF16, compression_of
from neocpu.ingest.formats.schema import Schema

EVERY = 0.2  # seconds between two looks at a folder, or at a stream that is silent
PIECE = 16 << 20  # bytes of stdin in a file


@dataclass
class Folder:
    """A folder whose files may still come. end : name of the file after which none follow ("": no
    file says so).

    idle : seconds without a new one after which none are waited for (0: they always are). stopped :
    set by who waits no longer.
    """

    path: Path
    end: str
    idle: float
    stopped: bool = False

    def files(self) -> Iterator[Path]:
        """The files, in the order of their names. Raises DataError for one that comes too late."""
        taken: set[Path] = set()
        last: Path | None = None
        newest = time.monotonic()
        while not self.stopped:
            # before the look: no file comes after it
            ended = bool(self.end) and (self.path / self.end).exists()
            new = [file for file in self._present() if file not in taken]
            for file in new:
                if last is not None and file < last:
                    raise DataError(
                        f"{file}: appeared behind {last.name}, which was taken before; files are "
                        "read in the order of their names, so give new ones later names"
                    )
                taken.add(file)
                last = file
                yield file
                newest = time.monotonic()
            if ended or (self.idle and time.monotonic() - newest > self.idle):
                return
            if not new:
                time.sleep(EVERY)

    def first(self) -> Path:
        """The first file, once it is there. Raises DataError where none comes."""
        for file in self.files():
            return file
        raise DataError(f"{self.path}: no file came")

    def _present(self) -> list[Path]:
        with told_as(DataError, self.path, "cannot be read"):
            files = sorted(path for path in self.path.iterdir() if path.is_file())
        return [file for file in files if is_log(Path(file.name)) and file.name != self.end]

    def forget(self, file: Path) -> None:
        """All of the file has been trained on."""

    def close(self) -> None:
        """No file is asked for any more."""


class RawStream(Protocol):
    """Bytes that come, without a buffer of Python's, which would hide whether there are more."""

    def readline(self) -> bytes: ...
    def read(self, size: int, /) -> bytes: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Stdin:
    """The lines of a stream, as files of some MiB in a folder, each made when it is asked for.

    Text only. The first line is that of the header where the schema says so; every file has it.
    Attribute: stopped, as of `Folder`.
    """

    def __init__(self, stream: RawStream, folder: Path, schema: Schema) -> None:
        self.stopped = False
        self._stream = stream
        self._folder = folder
        self._header = schema.header
        self._pieces = self._cut()
        self._first: Path | None = None
        self._kept: Path | None = None

    def files(self) -> Iterator[Path]:
        """The files, named by the number of their first line. Raises DataError where they have no
        room, and for a second pass.
        """
        if self._first is None:
            raise DataError("the stream cannot be read again; start the run again, with --resume")
        first = self._first
        self._first = None
        yield first
        yield from self._pieces

    def first(self) -> Path:
        """The first file. Raises DataError where nothing comes."""
        self._first = self._kept = next(self._pieces, None)
        if self._first is None:
            raise DataError("the stream that is to be trained on has no rows")
        return self._first

    def _cut(self) -> Generator[Path, None, None]:
        head = self._stream.readline() if self._header else b""
        _require_text(head)
        line = 1 + bool(head)
        rest = b""
        while chunk := self._read():
            if line == 1:
                _require_text(chunk)
            text = rest + chunk
            cut = text.rfind(b"\n") + 1
            rest = text[cut:]
            if cut:
                yield self._write(line, head + text[:cut])
                line += text.count(b"\n", 0, cut)
        if rest and not self.stopped:
            yield self._write(line, head + rest + b"\n")

    def _read(self) -> bytes:
        """The next PIECE bytes; fewer at the end, and for who waits no longer."""
        text = bytearray()
        while len(text) < PIECE and not self.stopped:
            if not _has_more(self._stream):
                continue
            if not (chunk := self._stream.read(PIECE - len(text))):
                break
            text += chunk
        return bytes(text)

    def _write(self, line: int, text: bytes) -> Path:
        path = self._folder / f"from-line-{line:012}.log"
        with told_as(DataError, path, "stdin cannot be kept there"):
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        return path

    def forget(self, file: Path) -> None:
        """All of the file has been trained on: it is removed, but for the first one, of which the
        end of a run still asks.
        """
        if file != self._kept:
            file.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all files that are left, and read no more."""
        self._pieces.close()
        self._stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _has_more(stream: RawStream) -> bool:
    """Can a stream be read, or is it at its end? Waits for that for a moment."""
    try:
        number = stream.fileno()
    except OSError:  # bytes in memory
        return True
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(1000 * EVERY))


def _require_text(start: bytes) -> None:
    packed = compression_of(start) or "UTF-16" * start.startswith(UTF16)
    if packed:
        raise DataError(
            f"the stream that is to be trained on is {packed}; hand on its text as UTF-8, as zcat, "
            "its kin and iconv write it"
        )


Coming = Folder | Stdin


class ComingDataset(RawDataset):
    """The samples of the first file of those that still come.

    coming : where further ones come from, on rank 0; None elsewhere.
    """

    def __init__(self, log: RawLog, coming: Coming | None) -> None:
        super().__init__(log)
        self.coming = coming

    def part(self, first: int, last: int) -> Dataset:
        """Raises DataError: nobody knows how many samples there will be."""
        raise DataError(f"{self.paths[0]}: samples that still come cannot be cut in two")
