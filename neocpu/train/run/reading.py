"""Who reads the batches of a run? The ranks themselves, or readers: processes that they start.

    files ──► reader ──┐  pieces of splits     queue of rank 0 ──► steps
    files ──► reader ──┤  (frames on TCP)      queue of rank 1 ──► steps
                ▲      └─►                          │
                └── next split ── master (rank 0) ◄─┘ how far each trainer is

Readers are no ranks: MPI ends all of them when one dies. Each is a child of the rank on whose host
it reads, and connects to the master and all trainers by the addresses that ranks told each other.
"""

import itertools
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar, TypeAlias

from neocpu.core.types import JsonObject, Tell
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.raw import RawDataset, RawLog
from neocpu.ingest.loader import Batch, Loader
from neocpu.ingest.readers.arriving import OnePass, arriving
from neocpu.ingest.readers.coming import ComingDataset
from neocpu.ingest.readers.frames import Address, connect, end, send
from neocpu.ingest.readers.master import Master
from neocpu.ingest.readers.pieces import Split
from neocpu.ingest.readers.queue import BatchQueue
from neocpu.ingest.readers.reader import ConvertedLog, ReaderJob, start
from neocpu.ingest.settings import ReadersConfig
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.watch.asking import own_addresses
from neocpu.tables.specs.specs import bags
from neocpu.train.before.raw_train import ranks_that_see
from neocpu.train.step.schedule import BatchSchedule

# with each split the files that are new
Splits: TypeAlias = Iterator[tuple[Split, Sequence[JsonObject]]]
LOOPBACK = "127.0.0.1"
SETTLE_SECONDS = 5.0  # in which readers answer for splits whose batches are there


@dataclass(frozen=True)
class ReaderSchedule(BatchSchedule):
    """The batches of a run that readers make; in the order, and with the bits, of those of the
    loader.
    """

    comm: Comm
    readers: ReadersConfig
    tell: Tell
    _sessions: list["Session"] = field(default_factory=list)

    def batches(self, step: int) -> Iterator[Batch]:
        """As of `BatchSchedule`. Collective; readers start now."""
        self._end_sessions()
        splits = self._splits(step)
        session = Session(self, splits)
        self._sessions.append(session)
        return self._told(session)

    def _told(self, session: "Session") -> Iterator[Batch]:
        batches = session.queue.batches()
        while True:
            with self.comm.span("wait for readers"):
                batch = next(batches, None)
            for text in session.news():
                self.tell(text)
            if batch is None:
                return
            yield batch

    def _splits(self, step: int) -> Splits:
        """The splits of the batches after the first `step` steps."""
        number = itertools.count()
        rows = self.loader.dataset.rows
        size = self.loader.batch_size
        epoch, first_step = divmod(step, self.loader.steps_per_epoch)
        last_epoch, last_step = divmod(self.total_steps, self.loader.steps_per_epoch)
        while (epoch, first_step) < (last_epoch, last_step):
            begin = first_step * size
            stop = rows if epoch < last_epoch else last_step * size
            bounds = self.loader.order(epoch).bounds(self.readers.split).tolist()
            for first, last in itertools.pairwise(bounds):
                if max(first, begin) < min(last, stop):
                    first = max(first, begin)
                    yield Split(next(number), epoch, first, min(last, stop), rows), ()
            epoch += 1
            first_step = 0

    def state(self) -> dict[str, object]:
        """How many splits were there when this rank took one, and how long it waited for them."""
        if not self._sessions:
            return {}
        counts = self._sessions[-1].queue.counts
        return {
            "reader_depth": counts.depth / max(counts.splits, 1),
            "reader_wait_seconds": counts.waited,
        }

    def report(self) -> dict[str, object]:
        """What readers did, and how long trainers waited for them. Collective."""
        if not self._sessions:
            return {}
        session = self._sessions[-1]
        counts = session.queue.counts
        depth = counts.depth / max(counts.splits, 1)
        own = [counts.started, counts.waited, depth, counts.most_bytes]
        ranks = self.comm.allgather(own)
        started, waited, depths, most = zip(*ranks)
        return {
            "readers": {
                "count": self.readers.count,
                "waited_seconds": max(waited),
                "started_seconds": max(started),
                "depth": sum(depths) / len(depths),
                "queue_bytes": max(most),
                "by_reader": session.by_reader(),
            }
        }

    def _end_sessions(self) -> None:
        for session in self._sessions:
            session.close()

    def close(self) -> None:
        """End the readers."""
        self._end_sessions()


@dataclass(frozen=True)
class StreamSchedule(ReaderSchedule):
    """The batches of files that still come, one pass in their order.

    It takes `steps` steps at most; where the files end before that, so does it.
    """

    waits: ClassVar[bool] = True
    _ends: list[tuple[int, int]] = field(default_factory=list)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, as far as it is known."""
        return self._ends[-1][0] if self._ends else self.steps

    def samples_after(self, step: int) -> int:
        """Samples of all ranks in the first `step` steps."""
        most = step * self.loader.batch_size
        return min(most, self._ends[-1][1]) if self._ends else most

    def batches(self, step: int) -> Iterator[Batch]:
        """As of `BatchSchedule`; returns once the first batch is there, or there will be none."""
        batches = super().batches(step)
        first = next(batches, None)
        if first is None:
            self._ends.append((step, self.samples_after(step)))
            return batches
        return self._until_end(first, batches)

    def _until_end(self, batch: Batch, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, each once it is known whether another one follows: all ranks have to know
        the last step when they take it.
        """
        for following in batches:
            yield batch
            batch = following
        self._ends.append((batch.step + 1, batch.step * self.loader.batch_size + batch.samples))
        yield batch

    def wait_no_longer(self) -> None:
        """As of `BatchSchedule`; rank 0 tells the others where the batches end."""
        data = self.loader.dataset
        if isinstance(data, ComingDataset) and data.coming is not None:
            data.coming.stopped = True

    def close(self) -> None:
        """End the readers, and what brings files."""
        super().close()
        data = self.loader.dataset
        if isinstance(data, ComingDataset) and data.coming is not None:
            data.coming.close()

    def _splits(self, step: int) -> Splits:
        data = self.loader.dataset
        assert isinstance(data, ComingDataset)
        if data.coming is None:  # not rank 0, which alone hands out splits
            return iter(())
        size = self.loader.batch_size
        keys = self.readers
        one_pass = OnePass(step * size, self.steps * size, size, keys.split, keys.splits_ahead)
        return arriving(data.coming, data.log, one_pass)


def reader_schedule(
    loader: Loader, epochs: int, steps: int, comm: Comm, readers: ReadersConfig, tell: Tell
) -> ReaderSchedule:
    """The batches of a run that readers make."""
    kind = StreamSchedule if isinstance(loader.dataset, ComingDataset) else ReaderSchedule
    return kind(loader, epochs, steps, comm, readers, tell)


class Session:
    """The readers of one pass through the batches of a run. Collective; attribute: queue."""

    def __init__(self, schedule: ReaderSchedule, splits: Splits) -> None:
        comm = schedule.comm
        loader = schedule.loader
        readers = schedule.readers
        near = not any(comm.hosts())
        listener = socket.create_server((LOOPBACK if near else "", 0), backlog=256)
        master = socket.create_server((LOOPBACK if near else "", 0), backlog=256)
        own = {
            "token": secrets.token_hex(16),
            "trainer": _addresses(listener, near),
            "master": _addresses(master, near),
        }
        facts = comm.allgather(own)
        self._token: str = facts[0]["token"]
        self._master_addresses: list[Address] = facts[0]["master"]
        self._closed = False
        self.queue = BatchQueue(
            listener,
            self._token,
            replace(loader.share, rank=comm.rank),
            tuple(bag.key for bag in bags(loader.tables)),
            loader.reading.groups,
        )
        self._master: Master | None = None
        if comm.rank == 0:
            self._master = Master(
                master,
                self._token,
                splits,
                (readers.count, comm.size),
                readers.splits_ahead,
                readers.slow_after,
            )
        else:
            end(master)
        self.queue.follow(self._master_addresses)
        trainers = [each["trainer"] for each in facts]
        # spread over ranks, and so over hosts, as far as these have the data
        sighted = ranks_that_see(comm, loader.dataset.paths)
        self._processes = [
            self._start(schedule, number, trainers)
            for number in range(readers.count)
            if sighted[number * len(sighted) // readers.count] == comm.rank
        ]

    def _start(
        self, schedule: ReaderSchedule, number: int, trainers: list[list[Address]]
    ) -> "subprocess.Popen[bytes]":
        """Start a reader, and a thread that waits for its end."""
        loader = schedule.loader
        name = f"reader {number} on {socket.gethostname()}"
        job = ReaderJob(
            number=number,
            name=name,
            token=self._token,
            master=self._master_addresses,
            trainers=trainers,
            log=_log_of(loader.dataset),
            span=loader.dataset.span,
            tables=loader.tables,
            share=loader.share,
            reading=loader.reading,
            needs=loader.needs,
            weight=loader.weight,
        )
        process = start(job)
        threading.Thread(
            target=self._wait, args=(process, number, name), name="readers", daemon=True
        ).start()
        return process

    def _wait(self, process: "subprocess.Popen[bytes]", number: int, name: str) -> None:
        """Say that a reader ended; the master knows of those that said so themselves."""
        status = process.wait()
        if self._closed:
            return
        with suppress(OSError):
            master = connect(self._master_addresses, self._token)
            send(master, {"ended": number, "name": f"{name} (exit status {status})"})
            end(master)

    def news(self) -> list[str]:
        """What happened to readers since the last call, on rank 0."""
        return self._master.told() if self._master is not None else []

    def by_reader(self) -> list[dict[str, object]]:
        """What each reader did, on rank 0."""
        if self._master is None:
            return []
        self._master.settle(SETTLE_SECONDS)
        states = self._master.readers
        return [asdict(states[number]) for number in sorted(states)]

    def close(self) -> None:
        """End readers, connections and threads."""
        self._closed = True
        self.queue.close()
        if self._master is not None:
            self._master.close()
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._processes = []


def reader_line(summary: JsonObject) -> str:
    """What the readers of a run did, and whether trainers waited for them."""
    readers = summary["readers"]
    by_reader = [each for each in readers["by_reader"] if each["seconds"]]
    rates = [f"{each['samples'] / each['seconds']:,.0f}" for each in by_reader]
    waited = readers["waited_seconds"]
    share = waited / (summary["seconds"] or 1)
    return (
        f"{readers['count']} readers, at work {', '.join(rates)} samples/s; trainers waited "
        f"{readers['started_seconds']:.1f} s for the first split and {waited:.2f} s for others "
        f"({100 * share:.1f} % of the steps' time); queues of "
        f"{readers['depth']:.1f} splits, {readers['queue_bytes'] / 2**20:,.1f} MiB at most"
    )


def _addresses(listener: socket.socket, near: bool) -> list[Address]:
    """Where others reach a listener of this host."""
    port = listener.getsockname()[1]
    names = [] if near else own_addresses()
    return [(name, port) for name in [*names, LOOPBACK]]


def _log_of(dataset: Dataset) -> RawLog | ConvertedLog:
    """What a reader opens the samples of a run by."""
    if isinstance(dataset, RawDataset):
        return dataset.log
    paths = tuple(str(path) for path in dataset.paths)
    return ConvertedLog(paths, dataset.label, tuple(dataset.more_labels))
