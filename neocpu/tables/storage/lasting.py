"""What outlives a process that is killed? A file in memory (/dev/shm), mapped by its owner.

    head     numbers: which turn is complete, how much of the log counts
    facts    JSON of who wrote it, with a checksum
    data     rows of a rank with their states, mapped: kernels work on them
    parity   of other ranks' rows, mapped
    notes    of the last complete turn and of the one before it, each with a checksum
    log      what was in data and parity before the turn under way

A turn is a step, or some steps that count together.

What a process stored in mapped memory, and what it wrote, is there in this order for whoever opens
the file afterwards, whatever killed the process; a host that halts takes it along. So a row's
bytes are logged before they change, and a turn counts once its number is in the head.
"""

import json
import mmap
import os
import shutil
import stat
import time
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import StorageError, TrainingError, told_as
from neocpu.core.types import Bytes, Elements, Ints, JsonObject

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

Words: TypeAlias = NDArray[np.uint64]

MAGIC = 0x32_59_54_52_41_50_4E  # "NPARTY2"
# numbers of the head, i64 each
(_MAGIC, _FACTS, _FACTS_CRC, _DATA, _PARITY, _NOTE, _TURN, _LOG_TURN, _LOG_BYTES) = range(9)
_NOTE_HEAD = 3  # numbers before a note: turn, bytes, CRC-32
_ENTRY_HEAD = 4  # numbers before an entry of the log
PATIENCE = 3.0  # seconds that a process which was just killed may take to let go of its file


class LogEntry(NamedTuple):
    """What was there before: records u64[n, words] of `rows` i64[n] of a shard, or, where `shard`
    is -1, of the parity, whose records are counted from word `base` on.
    """

    shard: int
    base: int
    rows: Ints
    records: Words


class LastingFile:
    """The file of one rank. Make it with `create` or `open`; the process that has it locks it.

    Attributes: path; facts, of its maker; data u8[n]; parity u64[m].
    """

    def __init__(self, path: Path, handle: int, facts: JsonObject, sizes: Sequence[int]) -> None:
        self.path = path
        self.facts = facts
        self._handle = handle
        facts_bytes, data, parity = sizes
        first = _pages(mmap.PAGESIZE + facts_bytes)
        parity_first = first + _pages(data)
        self._notes = parity_first + _pages(8 * parity)
        view = mmap.mmap(handle, self._notes)
        self._numbers = np.frombuffer(view, np.int64, 16)
        self.data: Bytes = np.frombuffer(view, np.uint8, data, first)
        self.parity: Words = np.frombuffer(view, np.uint64, parity, parity_first)
        # whoever opens it next waits for the lock, which goes with the last descriptor
        weakref.finalize(self, os.close, handle)

    @classmethod
    def create(cls, path: Path, facts: JsonObject, data: int, parity: int) -> Self:
        """A new file with `data` bytes and `parity` words, all zeros, in place of an older one.

        Raises TrainingError where there is no room for it.
        """
        text = json.dumps(facts).encode()
        size = mmap.PAGESIZE + len(text)
        total = _pages(size) + _pages(data) + _pages(8 * parity)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                # now, since a page that is not there when it is touched would kill the process
                _reserve(handle, 0, total)
                os.pwrite(handle, text, mmap.PAGESIZE)
                file = cls(path, handle, facts, (len(text), data, parity))
            except OSError:
                os.close(handle)
                path.unlink()
                raise
        except OSError as error:
            raise no_room(path.parent, total, error.strerror) from error
        file._numbers[:9] = [MAGIC, len(text), zlib.crc32(text), data, parity, 0, -1, -1, 0]
        _lock(handle)
        return file

    @classmethod
    def open(cls, path: Path, lock: bool = True) -> Self:
        """The file of a process that is no more; lock : for this process, not just for a look.

        Raises StorageError where it is damaged, somebody else's, or in use.
        """
        with told_as(StorageError, path, "cannot be opened"):
            handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
                raise StorageError(f"{path}: is not a file of this user")
            if lock and not _lock(handle):
                raise StorageError(f"{path}: is still in use")
            head = np.frombuffer(os.pread(handle, 72, 0).ljust(72, b"\0"), np.int64)
            size = int(head[_FACTS])
            text = os.pread(handle, max(min(size, 1 << 30), 0), mmap.PAGESIZE)
            sizes = [int(head[i]) for i in (_FACTS, _DATA, _PARITY)]
            total = _pages(mmap.PAGESIZE + size) + _pages(sizes[1]) + _pages(8 * sizes[2])
            whole = head[_MAGIC] == MAGIC and zlib.crc32(text) == head[_FACTS_CRC]
            if not whole or min(sizes) < 0 or status.st_size < total:
                raise StorageError(f"{path}: its head is damaged")
            return cls(path, handle, json.loads(text), sizes)
        except BaseException:
            os.close(handle)
            raise

    # ---- turns ----

    @property
    def turn(self) -> int:
        """The last complete turn; -1: none."""
        return int(self._numbers[_TURN])

    @property
    def logged_turn(self) -> int:
        """The turn that the log undoes."""
        return int(self._numbers[_LOG_TURN])

    def complete(self, turn: int) -> None:
        """All of a turn is in data, parity and its note."""
        self._numbers[_TURN] = turn

    def begin(self, turn: int) -> None:
        """Forget the log of the turn before: no rank needs to go back there any more."""
        self._numbers[_LOG_BYTES] = 0
        self._numbers[_LOG_TURN] = turn

    # ---- notes ----

    @property
    def _log(self) -> int:
        return self._notes + 2 * int(self._numbers[_NOTE])

    def _note_at(self, turn: int) -> int:
        return self._notes + turn % 2 * int(self._numbers[_NOTE])

    def reserve_notes(self, size: int) -> None:
        """Make room for notes of `size` bytes, before the first turn. Raises TrainingError."""
        self._numbers[_NOTE] = _pages(size + 8 * _NOTE_HEAD)
        try:
            _reserve(self._handle, self._notes, 2 * int(self._numbers[_NOTE]))
        except OSError as error:
            raise no_room(self.path.parent, 2 * size, error.strerror) from error

    def write_note(self, turn: int, note: bytes) -> None:
        """Write the note of a turn that is about to be complete."""
        if len(note) + 8 * _NOTE_HEAD > self._numbers[_NOTE]:
            raise TrainingError(
                f"{self.path}: the notes of a step take {len(note)} bytes, more than there is room "
                "for; leave checkpoint.parity out"
            )
        head = np.array([turn, len(note), zlib.crc32(note)], np.int64).tobytes()
        os.pwrite(self._handle, head + note, self._note_at(turn))

    def read_note(self, turn: int) -> bytes:
        """The note of a complete turn. Raises StorageError where it is damaged."""
        at = self._note_at(turn)
        head = np.frombuffer(os.pread(self._handle, 8 * _NOTE_HEAD, at), np.int64)
        if head.size == _NOTE_HEAD and head[0] == turn and 0 <= head[1] <= self._numbers[_NOTE]:
            note = os.pread(self._handle, int(head[1]), at + 8 * _NOTE_HEAD)
            if zlib.crc32(note) == head[2]:
                return note
        raise StorageError(f"{self.path}: its note of turn {turn} is damaged")

    # ---- log ----

    def log(self, entry: LogEntry) -> None:
        """Note what is about to change. Raises TrainingError where there is no room."""
        head = np.array([entry.shard, entry.base, *entry.records.shape], np.int64)
        at = self._log + int(self._numbers[_LOG_BYTES])
        parts: list[Elements] = [head, entry.rows, entry.records]
        try:
            for part in parts:
                view = np.ascontiguousarray(part).reshape(-1).data.cast("B")
                while view:
                    done = os.pwrite(self._handle, view, at)
                    view = view[done:]
                    at += done
        except OSError as error:
            size = sum(part.nbytes for part in parts)
            raise no_room(self.path.parent, size, error.strerror) from error
        self._numbers[_LOG_BYTES] = at - self._log

    def entries(self) -> Iterator[LogEntry]:
        """The entries of the log, the last one first. Raises StorageError where it is damaged."""
        words = np.frombuffer(
            os.pread(self._handle, int(self._numbers[_LOG_BYTES]), self._log), "i8"
        )
        entries = []
        at = 0
        while at < words.size:
            shard, base, count, width = words[at : at + _ENTRY_HEAD].tolist()
            first = at + _ENTRY_HEAD + count
            at = first + count * width
            if min(count, width) < 0 or at > words.size:
                raise StorageError(f"{self.path}: its log is damaged")
            records = words[first:at].view(np.uint64).reshape(count, width)
            entries.append(LogEntry(shard, base, words[first - count : first], records))
        return reversed(entries)

    # ---- the end ----

    def remove(self) -> None:
        """Let nobody find it any more, unless another file has its name meanwhile."""
        with suppress(OSError):
            if os.path.samestat(os.stat(self.path), os.fstat(self._handle)):
                self.path.unlink()


def no_room(folder: Path, size: int, reason: str | None) -> TrainingError:
    """The error that files in a folder cannot have so many bytes."""
    free = ""
    with suppress(OSError):
        free = f", of which {shutil.disk_usage(folder).free / 2**20:,.1f} MiB are free"
    return TrainingError(
        f"{size / 2**20:,.1f} MiB of rows with their parity do not fit {folder}{free} ({reason}); "
        "make it larger (mount -o remount,size=...), name another folder in memory.folder, use "
        "more hosts, or leave checkpoint.parity out"
    )


def _pages(size: int) -> int:
    """Bytes of whole pages."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _reserve(handle: int, first: int, size: int) -> None:
    os.ftruncate(handle, first + size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, first, size)


def _lock(handle: int) -> bool:
    """Lock a file for this process; False where another one keeps it."""
    end = time.monotonic() + PATIENCE
    while fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= end:
                return False
        time.sleep(0.05)
    return True
