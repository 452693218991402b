"""What does a reader do? It parses splits, maps their codes to rows, and sends batches to trainers.

    python -m neocpu.ingest.readers.reader < JOB

is a process of its own, started by a rank, which hands over a pickled `ReaderJob` and keeps the
pipe open: when it ends, so does the reader. One of many may end, or be stopped, at any time.
"""

import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from neocpu.core.errors import NeocpuError
from neocpu.core.floats import keep_subnormals
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.raw import FileIndex, RawDataset, RawLog
from neocpu.ingest.loader import Batch, BatchShare, Loader, Needs, Reading
from neocpu.ingest.readers.frames import Address, connect, receive, send
from neocpu.ingest.readers.pieces import Split, cut, packed
from neocpu.tables.specs.specs import TableSpec

# a reader is one of many processes: it has one thread
ONE_THREAD = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1")


@dataclass(frozen=True)
class ConvertedLog:
    """What it takes to open a converted log in another process; label, more : as of `Dataset`."""

    paths: tuple[str, ...]
    label: str = ""
    more: tuple[str, ...] = ()

    def open(self) -> Dataset:
        """The samples of the files."""
        return Dataset(self.paths, self.label, self.more)


@dataclass(frozen=True)
class ReaderJob:
    """What a reader needs to know.

    number, name : its own. token, master, trainers : where to connect (`frames.connect`). log : its
    samples, of which [first, last) are read. tables, share, reading, needs, weight : of the
    trainers' loaders.
    """

    number: int
    name: str
    token: str
    master: Sequence[Address]
    trainers: Sequence[Sequence[Address]]
    log: RawLog | ConvertedLog
    span: tuple[int, int]
    tables: tuple[TableSpec, ...]
    share: BatchShare
    reading: Reading
    needs: Needs = field(default_factory=Needs)
    weight: str = ""

    def loader(self) -> Loader:
        """The loader whose batches the trainers get."""
        dataset = self.log.open()
        first, last = self.span
        if (first, last) != (0, dataset.rows):
            dataset = dataset.part(first, last)
        loader = Loader(dataset, self.tables, self.share, self.reading, self.needs)
        loader.weigh(self.weight)
        return loader


def start(job: ReaderJob) -> "subprocess.Popen[bytes]":
    """Start a reader; it ends with this process."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "neocpu.ingest.readers.reader"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **ONE_THREAD},
        # Ctrl-C is for the ranks, which still write a checkpoint and then end their readers
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(OSError):  # it ended already, which its connection will tell
        pickle.dump(job, process.stdin)
        process.stdin.flush()
    return process


def serve(job: ReaderJob) -> None:
    """Read splits until the master has no more, or ends. Raises OSError where trainers end."""
    with ExitStack() as stack:
        master, *trainers = [
            stack.enter_context(connect(addresses, job.token))
            for addresses in (job.master, *job.trainers)
        ]
        _serve(job, master, trainers)


def _serve(job: ReaderJob, master: socket.socket, trainers: Sequence[socket.socket]) -> None:
    send(master, {"reader": job.number, "name": job.name})
    loader: Loader | None = None
    while (frame := receive(master)) is not None and "split" in frame.note:
        try:
            loader = loader or job.loader()
            started = time.monotonic()
            for note in frame.note["files"]:
                assert isinstance(loader.dataset, RawDataset)
                loader.dataset.add(FileIndex(**note))
            deliver(loader, Split(*frame.note["split"]), trainers)
        except (NeocpuError, MemoryError) as error:
            send(master, {"error": str(error) or f"{job.name} has too little memory"})
            return
        send(master, {"done": True, "seconds": time.monotonic() - started})


def deliver(loader: Loader, split: Split, trainers: Sequence[socket.socket]) -> None:
    """Send each trainer its pieces of a split, in one frame."""
    pieces: list[list[Batch]] = [[] for _ in trainers]
    for rank, piece in cut(loader, split):
        pieces[rank].append(piece)
    for connection, own in zip(trainers, pieces):
        notes, arrays = packed(own)
        send(connection, {"split": split.number, "pieces": notes}, arrays)


def end_with(pipe: int) -> None:
    """End this process when the one that started it ends, and with it this end of a pipe."""

    def watch() -> None:
        # not by a file object, whose lock Python wants when it ends by itself
        os.read(pipe, 1)
        os._exit(0)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main() -> None:
    """Serve the job that stands on stdin."""
    job = pickle.load(sys.stdin.buffer)
    end_with(sys.stdin.fileno())
    # libraries built with fast-math set the CPU to flush them, which changes bits
    keep_subnormals()
    with suppress(ConnectionError):  # trainers that end say why
        serve(job)


if __name__ == "__main__":
    main()
