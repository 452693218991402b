"""How does the parity of all ranks' rows follow a step? (ECRM: Liu, Kosaian, Rashmi,
arXiv 2104.01981.)

    before a row changes   its record goes to the log of this rank's file (`lasting.py`)
    after the step         old XOR new of all changed records travels to who holds their parity
                           (`groups.py`), which logs what its parity was and XORs them into it
    then                   what all ranks have whole, and checksums of the group's rows, are noted;
                           the step is complete; all ranks wait for one another

So after a kill at any moment the files of two ranks are a step apart at most, and whoever is ahead
has the log that takes it back. Deltas are of bits, not of numbers: a parity of sums would drift.
Several steps may follow as one turn; a row is then logged, and travels, once for all of them.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from neocpu.core.errors import NeocpuError
from neocpu.core.types import Bytes, Ints, JsonObject
from neocpu.parallel.parity.groups import RankChunks, groups_of
from neocpu.parallel.parity.records import RowRecords, checksum
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.shard_rows import ShardRows
from neocpu.tables.storage.lasting import LastingFile, LogEntry, Words

NOTE_ROOM = 1 << 16  # bytes of a note beside the dense parameters
HEAD = 3  # words of a part of a message before its records: base, words, how many

Changed = Mapping[int, tuple[Ints, Words]]  # shard -> its rows, and their records or deltas


class ParityKeeper:
    """Rows of this rank that outlive it, and its part of the parity of others; a `LastingMemory`.

    data_ranks : whose rows one parity covers, at most. state_floats : of the optimizer.
    path : of this rank's file. record : of the run's files, which goes with rank 0's. facts : of
    the run, JSON-able, for who finds the file.

    Attributes: groups; step, the last complete one (-1: none yet); sent, bytes to other ranks;
    seconds, that steps took longer.
    """

    def __init__(
        self,
        comm: Comm,
        plan: Plan,
        data_ranks: int,
        state_floats: tuple[int, int],
        path: Path,
        record: Path,
        facts: JsonObject,
    ) -> None:
        self._comm = comm
        self._path = path
        self._record = record
        self.hosts = comm.hosts()
        self.groups = groups_of(self.hosts, data_ranks)
        self._facts = {**facts, "rank": comm.rank, "groups": self.groups}
        members = next((group for group in self.groups if comm.rank in group), (comm.rank,))
        self._of_rank = {
            rank: RankChunks.of(plan, rank, members, state_floats)
            for rank in members
            if self.groups
        }
        self._file: LastingFile | None = None
        self._noted: dict[int, list[tuple[Ints, Words]]] = {}
        self._is_noted: list[Bytes] = []  # of each shard, u8[rows]
        self._sums = dict.fromkeys(members, 0)
        self._turn = 0
        self.step = -1
        self.sent = 0
        self.seconds = 0.0

    def take(self, size: int) -> Bytes:
        """Memory for the rows of this rank. Collective. Raises TrainingError on all ranks."""
        others = [chunks for rank, chunks in self._of_rank.items() if rank != self._comm.rank]
        parity = max((int(chunks.starts[-1]) for chunks in others), default=0)
        try:
            with self._comm.agreeing():
                self._file = LastingFile.create(self._path, self._facts, size, parity)
        except NeocpuError:
            self.close()
            raise
        assert self._file is not None
        return self._file.data

    # ---- what changes ----

    def _note(self, shard: int, rows: Ints) -> None:
        """Rows of a shard, each once, are about to change."""
        begun = time.perf_counter()
        assert self._file is not None
        # a copy, as they lie in scratch; what a row was before its first change is what counts
        rows = rows[self._is_noted[shard][rows] == 0]
        self._is_noted[shard][rows] = 1
        old = self._records.read(shard, rows)
        self._file.log(LogEntry(shard, 0, rows, old))
        self._records.updated(shard)[rows] = 1
        self._noted.setdefault(shard, []).append((rows, old))
        self.seconds += time.perf_counter() - begun

    def _deltas(self) -> Changed:
        """Old XOR new of the rows that were noted; the checksum of all rows follows."""
        deltas = {}
        own_sum = self._sums[self._comm.rank]
        for shard, parts in self._noted.items():
            rows, old = (np.concatenate(arrays) for arrays in zip(*parts))
            self._is_noted[shard][rows] = 0
            new = self._records.read(shard, rows)
            # the checksum is linear
            own_sum += checksum(shard, rows, new - old)
            deltas[shard] = rows, old ^ new
        self._noted = {}
        self._sums[self._comm.rank] = own_sum % 2**64
        return deltas

    # ---- between ranks ----

    def _exchange(self, deltas: Changed, logged: bool) -> None:
        """Send deltas to the holders of their parity, and XOR what comes. Collective.

        logged : can it be undone?
        """
        comm = self._comm
        parts: list[list[Words]] = [[] for _ in range(comm.size)]
        own = self._of_rank.get(comm.rank)
        if own is not None:
            for member in own.members:
                if member != comm.rank:
                    parts[member] = _message(deltas, own, own.held_by(member))
                    parts[member].insert(0, np.array([self._sums[comm.rank]], np.uint64))
        sends = np.array([sum(part.size for part in message) for message in parts], np.int64)
        recvs = comm.alltoall(sends)
        received = np.empty(int(recvs.sum()), np.uint64)
        flat = [part for message in parts for part in message]
        outgoing = np.concatenate([np.empty(0, np.uint64), *flat])
        comm.alltoallv(outgoing, sends, received, recvs, what="parity")
        self.sent += outgoing.nbytes
        for rank, message in enumerate(np.split(received, np.cumsum(recvs)[:-1])):
            if message.size:
                self._sums[rank] = int(message[0])
                self._take_in(message[1:], logged)

    def _take_in(self, message: Words, logged: bool) -> None:
        """XOR the records of a message into the parity."""
        assert self._file is not None
        at = 0
        while at < message.size:
            base, words, count = message[at : at + HEAD].astype(np.int64).tolist()
            at += HEAD
            places = message[at : at + count].view(np.int64)
            at += count
            deltas = message[at : at + count * words].reshape(count, words)
            at += count * words
            parity = parity_records(self._file, base, words)
            old = np.take(parity, places, axis=0)
            if logged:
                self._file.log(LogEntry(-1, base, places, old))
            parity[places] = old ^ deltas

    def _complete(self, step: int, note: bytes) -> None:
        """All that belongs to a step is there. Collective."""
        assert self._file is not None
        head = json.dumps([step, list(self._sums.items())]).encode()
        self._file.write_note(self._turn, head + b"\n" + note)
        self._file.complete(self._turn)
        self.step = step
        # from here on nobody needs the turn before any more
        self._comm.barrier()
        self._turn += 1
        self._file.begin(self._turn)

    def begin(self, rows: ShardRows, step: int, note: bytes) -> None:
        """The rows as they are now, after `step` steps, are the first that can be brought back.

        Collective. note : as of `follow`; later ones may be some KiB longer. Raises TrainingError
        on all ranks where there is no room.
        """
        assert self._file is not None
        with self._comm.agreeing():
            self._file.reserve_notes(len(note) + NOTE_ROOM)
        self._records = RowRecords(rows)
        own = self._of_rank.get(self._comm.rank)
        if own is not None and own.words.tolist() != self._records.words:
            raise RuntimeError(f"records of {self._records.words} words, not {own.words}")
        for shard, height in enumerate(rows.heights.tolist()):
            self._records.updated(shard)[rows.existing(shard, 0, height)] = 1
            self._is_noted.append(np.zeros(height, np.uint8))
        pieces = self._records.pieces()
        while self._comm.largest((piece := next(pieces, None)) is not None):
            deltas: Changed = {}
            if piece is not None:
                shard, numbers, records = piece
                deltas = {shard: (numbers, records)}
                more = checksum(shard, numbers, records)
                self._sums[self._comm.rank] = (self._sums[self._comm.rank] + more) % 2**64
            self._exchange(deltas, logged=False)
        self._complete(step, note)
        rows.before_change = self._note

    def follow(self, step: int, note: bytes) -> None:
        """Steps were taken, the last one is `step`: make them complete. Collective.

        note : what all ranks have whole, for whoever goes on from here.
        """
        begun = time.perf_counter()
        self._exchange(self._deltas(), logged=True)
        self._complete(step, note)
        self.seconds += time.perf_counter() - begun

    def close(self) -> None:
        """Remove the file, unless the process ends by an error that is no message to the user: a
        rank that is gone shows as one.
        """
        error = sys.exception()
        needed = self.step >= 0 and error is not None and not isinstance(error, NeocpuError)
        if self._file is None or needed:
            return
        self._file.remove()
        if self._comm.rank == 0:
            self._record.unlink(missing_ok=True)

    def report(self) -> dict[str, object]:
        """Of this rank, JSON-able: "bytes" that it sent, "seconds" that steps took longer."""
        return {"bytes": self.sent, "seconds": self.seconds}


def _message(deltas: Changed, chunks: RankChunks, number: int) -> list[Words]:
    """The deltas of a chunk: for each shard a head, places in the chunk, and records."""
    parts: list[Words] = []
    starts = chunks.starts
    for shard, (rows, records) in deltas.items():
        if chunks.count > 1:
            inside = rows % chunks.count == number
            rows = rows[inside] // chunks.count
            records = records[inside]
        head = np.array([starts[shard], chunks.words[shard], rows.size], np.uint64)
        parts += [head, rows.view(np.uint64), records.reshape(-1)]
    return parts


def parity_records(file: LastingFile, base: int, words: int) -> Words:
    """The parity from word `base` on as records u64[n, words]."""
    count = (file.parity.size - base) // words
    return file.parity[base : base + count * words].reshape(count, words)


def split_note(note: bytes) -> tuple[int, dict[int, int], bytes]:
    """The step, checksums of the rows of a group by rank, and the note that `follow` was given.

    Raises ValueError for a note that is damaged.
    """
    head, _, rest = note.partition(b"\n")
    step, sums = json.loads(head)
    return int(step), {int(rank): int(number) for rank, number in sums}, rest


def sum_of(records: RowRecords) -> int:
    """The checksum of all rows that have changed."""
    return sum(checksum(*piece) for piece in records.pieces()) % 2**64
