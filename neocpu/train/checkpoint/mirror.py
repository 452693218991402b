"""Where else are the checkpoints of a run? In a second place, copied as they are written.

    MIRROR/NAME/step-00000020.h5     MIRROR: checkpoint.mirror; NAME: that of the folder of results

A thread of rank 0 copies while training goes on: the newest checkpoint and what it is based on
come first, so that a slow mirror leaves out those that were deleted meanwhile. What the run deletes
goes there too, once all that is newer has come. A mirror that fails ends no run. A run that goes on
takes from there what its own folder has lost.
"""

import json
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from neocpu.core.errors import CheckpointError, NeocpuError, TrainingError
from neocpu.core.types import JsonObject
from neocpu.parallel.transport.comm import Comm
from neocpu.train.checkpoint.folder import FOLDER, NOTE, Bases, checkpoints
from neocpu.train.checkpoint.links import base_of
from neocpu.train.checkpoint.places import Moved, Place, open_place

OWNER = "mirror.json"  # whose copies these are; that it can be written is tried at the start
TRIES = 3  # of a copy, until the next checkpoint comes
PAUSE = 1.0  # seconds before the second try; each later one waits twice as long
LIMIT = 10.0  # seconds that a run which was asked to stop waits for copies
NEWS = 10.0  # seconds between lines of progress

Tell = Callable[[str], None]
Newest = Callable[[Path, Comm], Path | None]


class _Abandoned(NeocpuError):
    """The run has failed: no more is copied."""


class _Taken(NeocpuError):
    """The mirror is another run's."""


class CheckpointMirror:
    """The copies of one run's checkpoints; methods that are not collective are for rank 0.

    address : a folder, or the address of a store. out : folder of results. tell : is given a line
    for what people should know.

    Collective. Raises ConfigError on all ranks for an address that cannot be used.
    """

    def __init__(self, address: str, out: Path, comm: Comm, tell: Tell) -> None:
        self._out = Path(out)
        self._comm = comm
        self._tell = tell
        self._name = f"{address.rstrip('/')}/{self._out.absolute().name}"
        self._opened: Place | None = None
        comm.on_first_rank(self._open)
        owner = {"out": str(self._out.absolute()), "host": socket.gethostname()}
        self._owner = json.dumps(owner).encode()
        self._bases = Bases()
        self._tried: set[str] = set()  # that were brought from there
        self._fresh: set[str] = set()  # that this run wrote, and that are still to be copied
        self._gone: set[str] = set()  # that it deleted
        self._behind = 0  # files to be copied
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._ended = False
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._counts = {"files": 0, "bytes": 0}
        self._seconds = 0.0

    def _open(self) -> None:
        self._opened = open_place(self._name)

    @property
    def _place(self) -> Place:
        assert self._opened is not None
        return self._opened

    # ---- when a run begins ----

    def begin(self, resume: bool, newest: Newest) -> None:
        """See whether the mirror can be used. A run that goes on takes from there what is newer
        than all that its folder has.

        newest : finds the newest checkpoint of a folder of results. Collective.

        Raises on all ranks: TrainingError where a new run would write among the copies of another
        one; NeocpuError where the mirror cannot be used and the run is new, or its folder empty.
        """
        if not resume:
            self._comm.on_first_rank(self._claim)
        else:
            while self.brings_newer(self._found(newest)):
                pass
            self._comm.on_first_rank(self._take)

    def _claim(self) -> None:
        if self._place.names():
            raise TrainingError(
                f"{self._place} already has checkpoints of a run; go on with --resume, choose "
                "another name for --out, or another checkpoint.mirror"
            )
        self._place.write(OWNER, self._owner)

    def _take(self) -> None:
        """From now on these are the copies of this run, whose ever they were."""
        with suppress(NeocpuError):  # told when copies fail
            self._place.write(OWNER, self._owner)

    def _check_owner(self) -> None:
        """Raise _Taken where another run has taken the mirror since: those of one name that begin
        in one moment all find it empty.
        """
        noted = self._place.read(OWNER)
        if noted and noted != self._owner:
            raise _Taken(
                f"{self._place} is in use by another run: {noted.decode(errors='replace')}"
            )

    def _found(self, newest: Newest) -> Path | None:
        try:
            return newest(self._out, self._comm)
        except CheckpointError:  # there are some, but none that can be used
            return None

    def brings_newer(self, path: Path | None) -> bool:
        """Bring the newest checkpoint that was not brought yet, if it is newer than this one.

        path : the newest one that can be used (None: there is none). Collective.
        """
        name = self._comm.on_first_rank(lambda: self._offer(path))
        if name:
            self._comm.on_first_rank(lambda: self._bring(name))
        return bool(name)

    def _offer(self, path: Path | None) -> str:
        try:
            names = self._place.names()
        except NeocpuError as error:
            if path is None:
                raise
            self._tell(f"warning: the mirror is left aside: {error}")
            return ""
        # steps of more than eight digits have longer names
        known = (0, "") if path is None else (len(path.name), path.name)
        newer = [key for name in {*names} - self._tried if (key := (len(name), name)) > known]
        name = max(newer, default=known)[1] if newer else ""
        self._tried.add(name)
        return name

    def _bring(self, name: str) -> None:
        """Copy a checkpoint here, with what it is based on as far as that is missing or damaged."""
        try:
            sizes = self._place.names()
            while name:
                target = self._out / FOLDER / name
                self._tell(f"{name} is taken from {self._place}")
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.exists():  # and cannot be used; somebody else may read it
                    os.replace(target, target.with_name(f"{name}.unusable"))
                self._place.get(name, target, self._moved(name, sizes.get(name, 0), self._tell))
                base = base_of(target)
                name = base if base and not _is_whole(target.with_name(base)) else ""
        except (NeocpuError, OSError) as error:
            self._tell(f"warning: {name} could not be brought from {self._place}: {error}")

    # ---- while it trains ----

    def copy(self, name: str, deleted: Sequence[str]) -> None:
        """A checkpoint is complete, and others were deleted: do the same there."""
        self._fresh.add(name)
        self._gone.update(deleted)
        self._wake.set()

    def poll(self) -> None:
        """Tell what there is to tell; in the beginning, start to copy what the mirror lacks."""
        if self._thread.ident is None:
            self._thread.start()
            self._wake.set()
        while not self._news.empty():
            self._tell(self._news.get())

    def finish(self, in_time: bool) -> None:
        """Wait until all is copied, or copies fail. in_time : for `LIMIT` seconds at most."""
        self.poll()
        self._ended = True
        self._wake.set()
        end = time.monotonic() + (LIMIT if in_time else math.inf)
        while self._thread.is_alive() and time.monotonic() < end:
            self._thread.join(0.1)
            self.poll()
        self.poll()
        if self._thread.is_alive():
            self._tell(
                f"warning: {self._behind} checkpoint(s) are not in {self._place} yet; --resume "
                "goes on with them"
            )
            self.abandon()

    def abandon(self) -> None:
        """Copy no more: the run has failed, or is built anew."""
        self._abandoned.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(LIMIT)

    def report(self) -> JsonObject:
        """Of the copies: place, files, bytes, seconds, and "behind", files still to be copied."""
        return {
            "place": str(self._place),
            **self._counts,
            "seconds": self._seconds,
            "behind": self._behind,
        }

    # ---- the thread ----

    def _work(self) -> None:
        ended = False
        while not (ended or self._abandoned.is_set()):
            self._wake.wait()
            self._wake.clear()
            ended = self._ended
            try:
                self._try_to_copy()
            except _Abandoned:
                return
            except _Taken as taken:
                self._news.put(
                    f"warning: checkpoints are not mirrored any more: {taken}; give one of them "
                    "another checkpoint.mirror, or another name for --out"
                )
                return
            except (NeocpuError, OSError) as error:
                again = "--resume tries it again" if ended else "tried again with the next one"
                self._news.put(f"warning: checkpoints are not mirrored: {error} ({again})")

    def _try_to_copy(self) -> None:
        for left in range(TRIES - 1, -1, -1):
            try:
                self._check_owner()
                self._copy_all()
                return
            except _Taken:
                raise
            except (NeocpuError, OSError):
                if not left:
                    raise
            if self._abandoned.wait(PAUSE * 2 ** (TRIES - 2 - left)):
                raise _Abandoned

    def _copy_all(self) -> None:
        """Copy what the mirror lacks; then remove what the run deleted."""
        while (path := self._next()) is not None:
            begun = time.monotonic()
            try:
                size = path.stat().st_size
                self._place.put(path, self._moved(path.name, size, self._news.put))
            except FileNotFoundError:
                if path.exists():
                    raise
                continue  # deleted meanwhile
            self._fresh.discard(path.name)
            self._counts["files"] += 1
            self._counts["bytes"] += size
            self._seconds += time.monotonic() - begun
        note = self._out / FOLDER / NOTE
        if note.exists():
            self._place.write(NOTE, note.read_bytes())
        for name in tuple(self._gone):
            self._place.remove(name)
            self._gone.discard(name)

    def _next(self) -> Path | None:
        """The file that is to be copied next; None: all are there."""
        there = self._place.names()
        missing = {}
        for path in checkpoints(self._out):
            try:
                base = self._bases.of(path)
                copied = there.get(path.name) == path.stat().st_size
            except (CheckpointError, OSError):
                continue  # what cannot be read here must not replace a sound copy
            if path.name in self._fresh or not copied:
                missing[path.name] = base
        self._behind = len(missing)
        if not missing:
            return None
        name = list(missing)[-1]
        while (base := missing[name]) in missing:  # its bases first
            name = base
        return self._out / FOLDER / name

    def _moved(self, name: str, size: int, say: Tell) -> Moved:
        """What is called while a file of so many bytes is copied."""
        due = time.monotonic() + NEWS

        def moved(done: int) -> None:
            nonlocal due
            if self._abandoned.is_set():
                raise _Abandoned
            if size and time.monotonic() > due:
                due += NEWS
                more = f", {self._behind - 1} more to be copied" if self._behind > 1 else ""
                say(f"{name} and {self._place}: {100 * done // size} % copied{more}")

        return moved


def _is_whole(path: Path) -> bool:
    """Is a checkpoint there, with all that it is based on, to the last row?"""
    from neocpu.train.checkpoint.reading import CheckpointFile

    try:
        with CheckpointFile(path) as file:
            file.recomputed_digest()
    except CheckpointError:
        return False
    return True
