"""How do several jobs of a host share one device? Each rank has a ticket in the device's folder.

    FOLDER/tickets/JOB.RANK.json   weight, bytes reserved on the disk and in memory, its file
    FOLDER/JOB/RANK.h5             rows of that rank alone

A ticket is locked by its process, so the system gives it back however the process ends. Who comes
counts the tickets that are locked: the disk, or memory, must have room for all that is reserved, or
the newcomer is refused, and nobody else. So a job always gets the bytes that it reserved. Of the
device's speed a rank has its weight's share among those at work, which is looked up again as jobs
come and go. What a killed job left is removed by the next one that comes: its rows are in its
checkpoints.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from neocpu.core.cores import host_memory
from neocpu.core.errors import StorageError
from neocpu.tables.storage.lock import fcntl
from neocpu.tables.storage.row_tools import remove

TICKETS = "tickets"
COUNTER = ".counter"  # whose lock lets one newcomer count at a time
REFRESH = 0.5  # seconds for which a share is taken as known


@dataclass(frozen=True)
class Claim:
    """What a rank asks for.

    weight : among all ranks that share the device. disk, memory : bytes that are its own, whether
    it uses them or not.
    """

    weight: float
    disk: int = 0
    memory: int = 0


class Ticket:
    """A rank's place among those that share FOLDER; `rows` is the folder of its file.

    Raises StorageError where what is asked for is not free, or no locks work.
    """

    def __init__(
        self,
        folder: Path,
        job: str,
        file: str,
        claim: Claim,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.claim = claim
        self._clock = clock
        self._tickets = folder / TICKETS
        self._read = float("-inf")
        self._share = 1.0
        self.rows = folder / job
        self.path = self._tickets / f"{job}.{Path(file).stem}.json"
        if fcntl is None:
            raise StorageError(f"{folder}: jobs cannot share it, as this system has no file locks")
        try:
            self.rows.mkdir(parents=True, exist_ok=True)
            self._tickets.mkdir(exist_ok=True)
            with open(self._tickets / COUNTER, "w") as counter:
                fcntl.flock(counter, fcntl.LOCK_EX)
                self._clear()
                self._check(folder)
                # whole and locked before it has its name: others look at any moment
                new = self.path.with_suffix(".new")
                self._handle = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
                fcntl.flock(self._handle, fcntl.LOCK_EX)
                text = json.dumps({**asdict(claim), "file": str(self.rows / file)})
                os.pwrite(self._handle, text.encode(), 0)
                new.rename(self.path)
        except OSError as error:
            raise StorageError(
                f"{folder}: cannot be shared: {error.strerror}; choose another memory.folder"
            ) from error

    def _at_work(self) -> Iterator[tuple[Claim, Path]]:
        """Claims of ranks that are alive, and their files."""
        for path in sorted(self._tickets.glob("*.json")):
            with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
                if not _is_free(file.fileno()):
                    ticket = json.loads(file.read())
                    rows = Path(ticket.pop("file"))
                    yield Claim(**ticket), rows

    def _clear(self) -> None:
        """Remove the tickets of the dead, and the files of rows that they left."""
        for path in sorted(self._tickets.glob("*.json")):
            with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
                if _is_free(file.fileno()):
                    remove(Path(json.loads(file.read())["file"]))
                    path.unlink()

    def _check(self, folder: Path) -> None:
        """Raise StorageError unless there is room beside what others have reserved."""
        others = list(self._at_work())
        used = sum(rows.stat().st_size for _, rows in others if rows.exists())
        rooms = (
            ("ssd", "the disk of " + str(folder), shutil.disk_usage(folder).free + used, "disk"),
            ("ddr", "this host's memory", host_memory(), "memory"),
        )
        for key, what, room, name in rooms:
            reserved = sum(getattr(claim, name) for claim, _ in others)
            claimed = getattr(self.claim, name)
            if claimed > room - reserved:
                raise StorageError(
                    f"{folder}: {len(others)} rank(s) that share it have reserved {reserved:,} "
                    f"bytes of {what}, which has {room:,}; {claimed:,} more do not fit. Lower "
                    f"memory.{key}, wait for the others, or choose another memory.folder"
                )

    def share(self) -> float:
        """Which part of the device's speed is this rank's now."""
        now = self._clock()
        if now - self._read >= REFRESH:
            self._read = now
            # itself is among them
            total = sum(claim.weight for claim, _ in self._at_work())
            self._share = self.claim.weight / max(total, self.claim.weight)
        return self._share

    def close(self) -> None:
        """Give the ticket back."""
        self.path.unlink(missing_ok=True)
        os.close(self._handle)
        with contextlib.suppress(OSError):  # of other ranks there may be files in it
            self.rows.rmdir()


def _is_free(handle: int) -> bool:
    """Does no process hold the lock of a file? Others may ask at the same time."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
