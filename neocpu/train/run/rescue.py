"""What did ranks that were killed leave in memory? The last step that all of them had completed.

    look     which host has the file of which rank of the run that was killed
    settle   who is a step ahead is taken back by its log; checksums say whether rows are sound
    rebuild  the rows of a rank whose file is gone, or damaged, are the XOR of the others'
    save     a checkpoint of that step is written, from which the run goes on as from any other

By a checkpoint, since the run may go on with other ranks on another plan, as it does where a host
is gone, and since its rows are then in memory once, not twice.
"""

import json
import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from neocpu.core.cores import host_key
from neocpu.core.errors import NeocpuError, StorageError
from neocpu.core.types import Bytes, Floats, Ints, JsonObject, Tell
from neocpu.parallel.parity.groups import WORD, RankChunks
from neocpu.parallel.parity.keeper import parity_records, split_note, sum_of
from neocpu.parallel.parity.records import RowRecords
from neocpu.parallel.sharding.messages import from_text
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import Shard
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.changes import Changes
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.storage.lasting import LastingFile
from neocpu.train.before.datasets import Splits
from neocpu.train.checkpoint.folder import checkpoints
from neocpu.train.checkpoint.keeping import RECORD, files_of, header_digest, take_note
from neocpu.train.checkpoint.policy import SavingPolicy
from neocpu.train.checkpoint.saving import Saver
from neocpu.train.config.config import Config
from neocpu.train.step.world import World, dense_optimizer, model_of
from neocpu.train.watch.results import read_json


class Unusable(NeocpuError):
    """What is left does not make a whole state; the message says why."""


def rescue(config: Config, comm: Comm, out: Path, splits: Splits, tell: Tell) -> None:
    """Write the checkpoint of what killed ranks left, if it is newer than the newest one.

    Says what was rebuilt, or why nothing was. Collective. Raises CheckpointError on all ranks where
    it cannot be written; what is left then stays.
    """
    remains = Remains(config, comm, out)
    try:
        if text := remains.save(splits):
            tell(text)
    except Unusable as problem:
        tell(
            f"what the ranks left in memory is of no use: {problem}; going on from the newest "
            "checkpoint"
        )
    remains.remove()


@dataclass(frozen=True)
class Left:
    """A sound file, the step of its rows, these in its memory and their records, checksums of the
    group's rows by rank, and what all ranks had whole.
    """

    file: LastingFile
    step: int
    rows: TableBatchedEmbedding
    records: RowRecords
    sums: dict[int, int]
    note: bytes


class Remains:
    """What the ranks of a run left; methods are collective.

    Those of the run are called by their numbers there; each file is held by a rank of this job.
    """

    def __init__(self, config: Config, comm: Comm, out: Path) -> None:
        self._config = config
        self._comm = comm
        self._out = out
        self._facts: JsonObject = {}
        self._holder: dict[int, int] = {}  # rank of the run -> the rank here that has its file
        self._files: dict[int, LastingFile] = {}
        self._left: dict[int, Left] = {}
        self._rebuilt: dict[int, TableBatchedEmbedding] = {}

    def remove(self) -> None:
        """Remove the files: what was in them is in a checkpoint, or of no use."""
        for file in self._files.values():
            file.remove()
        self._files.clear()
        self._left.clear()

    def save(self, splits: Splits) -> str:
        """Write the checkpoint; returns a line about it, "" where there is nothing newer.

        Raises Unusable on all ranks.
        """
        record, newest = self._comm.on_first_rank(self._record)
        if not record or not self._look(record):
            return ""
        plan = from_text(self._facts["plan"], self._config.tables)
        lost = self._settle(plan, self._common_turn())
        step = max(self._from_all({rank: left.step for rank, left in self._left.items()}).values())
        if step <= max(newest, 0):
            return ""
        note = self._comm.allgather_bytes(self._left[min(self._left)].note if self._left else b"")
        first = min(rank for rank in self._holder if rank not in lost)
        size = sum(self._rebuild(plan, rank) for rank in sorted(lost))
        self._write(plan, step, note[self._holder[first]], splits, first)
        whose = "rows of all ranks were there"
        if lost:
            whose = (
                f"{', '.join(lost.values())}: rebuilt from the parity of the others, {size:,} bytes"
            )
        return f"step {step} was left in memory by {plan.ranks} ranks ({whose}); it is saved"

    # ---- look ----

    def _record(self) -> tuple[JsonObject, int]:
        """The record of the newest run in the folder ({}: none), and its newest checkpoint."""
        record = read_json(self._out / RECORD)
        steps = [int(path.stem.split("-")[1]) for path in checkpoints(self._out)]
        return record, max(steps, default=-1)

    def _look(self, record: JsonObject) -> bool:
        """Find the files of the run, and open this rank's share of them; are there any?"""
        comm = self._comm
        keys = self._comm.allgather_bytes(host_key().encode())
        here = [rank for rank, key in enumerate(keys) if key == keys[comm.rank]]
        paths: dict[int, str] = {}
        for path in files_of(self._config, record["key"]) if comm.rank == here[0] else ():
            with suppress(StorageError):
                facts = LastingFile.open(path, lock=False).facts
                if facts["token"] == record["token"]:
                    paths[facts["rank"]] = str(path)
                    self._facts = facts
        whole = self._comm.allgather(paths)
        texts = self._comm.allgather_bytes(json.dumps(self._facts).encode())
        self._facts = next(filter(None, map(json.loads, texts)), {})
        if not self._facts:
            return False
        for rank, files in enumerate(whole):
            host = [other for other, key in enumerate(keys) if key == keys[rank]]
            for number, (left, path) in enumerate(sorted(files.items())):
                # a folder that hosts share is seen by each of them
                if self._holder.setdefault(int(left), host[number % len(host)]) == comm.rank:
                    with suppress(StorageError):
                        self._files[int(left)] = LastingFile.open(Path(path))
        return True

    def _common_turn(self) -> int:
        """The last turn that every file has. Raises Unusable for none, and for another config's."""
        if self._facts["header"] != header_digest(self._config):
            raise Unusable("the config changed in keys that decide the bits, or neocpu's version")
        turns = self._from_all({rank: file.turn for rank, file in self._files.items()})
        if not turns or min(turns.values()) < 0:
            raise Unusable("no step was complete on all ranks")
        self._holder = {rank: self._holder[rank] for rank in turns}
        return min(turns.values())

    # ---- settle ----

    def _settle(self, plan: Plan, turn: int) -> dict[int, str]:
        """Bring all files to a turn; the ranks that are lost, each in words.

        Raises Unusable where two of one group are.
        """
        damaged = {}
        for rank, file in self._files.items():
            try:
                self._left[rank] = self._settled(plan, rank, file, turn)
            except (StorageError, ValueError, IndexError) as problem:
                damaged[rank] = str(problem)
        reasons = self._from_all(damaged)
        lost = {}
        for rank in range(plan.ranks):
            if rank in reasons:
                lost[rank] = f"rank {rank} was damaged ({reasons[rank]})"
            elif rank not in self._holder:
                lost[rank] = f"rank {rank} was gone"
        groups = self._facts["groups"] or [[rank] for rank in range(plan.ranks)]
        for group in groups:
            gone = [lost[rank] for rank in group if rank in lost]
            if len(gone) > 1 or (gone and len(group) == 1):
                raise Unusable(
                    f"{' and '.join(gone)}; of ranks {group}, which share a parity, one can be "
                    "rebuilt"
                )
        return lost

    def _settled(self, plan: Plan, rank: int, file: LastingFile, turn: int) -> Left:
        """A file brought to a turn. Raises StorageError, ValueError, IndexError for damage."""
        rows = self._rows(plan, rank, file.data)
        records = RowRecords(rows)
        behind = (file.turn, file.logged_turn) in ((turn, turn), (turn, turn + 1))
        ahead = (file.turn, file.logged_turn) == (turn + 1, turn + 1)
        if not (behind or ahead):
            raise StorageError(f"{file.path}: its steps are not those of the others")
        if file.logged_turn == turn + 1:
            for entry in file.entries():
                if entry.shard >= 0:
                    records.write(entry.shard, entry.rows, entry.records)
                else:
                    parity = parity_records(file, entry.base, entry.records.shape[1])
                    parity[entry.rows] = entry.records
        step, sums, note = split_note(file.read_note(turn))
        if sum_of(records) != sums[rank]:
            raise StorageError(f"{file.path}: its rows are not those that were written")
        return Left(file, step, rows, records, sums, note)

    def _rows(self, plan: Plan, rank: int, data: Bytes | None) -> TableBatchedEmbedding:
        """The rows of a rank of the run, in the memory that has them; None: zeros."""
        optimizer = self._config.optimizer.sparse
        seed = self._config.training.seed
        lasting = LeftMemory(data)
        return TableBatchedEmbedding(
            plan.tables, plan.local(rank), optimizer, seed, lasting=lasting
        )

    # ---- rebuild ----

    def _rebuild(self, plan: Plan, lost: int) -> int:
        """Make the rows of a rank anew, on one of the ranks here; their bytes.

        Raises Unusable where they are not those that the others knew.
        """
        comm = self._comm
        members = next(tuple(group) for group in self._facts["groups"] if lost in group)
        floats = self._config.optimizer.sparse.state_floats
        chunks = {rank: RankChunks.of(plan, rank, members, floats) for rank in members}
        builder = self._holder[lost] = lost % comm.size
        size = int(chunks[lost].starts[-1])
        rows = self._rows(plan, lost, None)
        records = RowRecords(rows)
        others = [rank for rank in members if rank != lost]
        senders = {self._holder[rank] for rank in others}
        for number in range(len(others)):
            holder = chunks[lost].holder(number)
            part = np.zeros(size, np.uint64)
            for rank in set(others) & self._left.keys():
                left = self._left[rank]
                words = left.file.parity
                if rank != holder:
                    words = left.records.chunk(chunks[rank], chunks[rank].held_by(holder))
                shorter = min(size, words.size)
                part[:shorter] ^= words[:shorter]
            sends = np.zeros(comm.size, np.int64)
            sends[builder] = size if comm.rank in senders else 0
            recvs = np.zeros(comm.size, np.int64)
            recvs[sorted(senders)] = size if comm.rank == builder else 0
            received = np.empty(int(recvs.sum()), np.uint64)
            comm.alltoallv(part[: int(sends.sum())], sends, received, recvs)
            if comm.rank == builder:
                words = np.bitwise_xor.reduce(received.reshape(-1, size), axis=0)
                records.put_chunk(chunks[lost], number, words)
        own = {rank: left.sums[lost] for rank, left in self._left.items() if lost in left.sums}
        sums = set(self._from_all(own).values())
        wrong = comm.rank == builder and sums != {sum_of(records)}
        if comm.largest(int(wrong)):
            raise Unusable(
                f"the rows of rank {lost}, made of the parity of ranks {others}, are not those "
                "that it had"
            )
        if comm.rank == builder:
            self._rebuilt[lost] = rows
        return size * len(others) * WORD

    # ---- save ----

    def _write(self, plan: Plan, step: int, note: bytes, splits: Splits, first: int) -> None:
        """Write the checkpoint; first : a rank of the run whose replicas are sound."""
        config = self._config
        comm = self._comm
        sources = {rank: left.rows for rank, left in self._left.items()} | self._rebuilt
        here = replace(
            plan,
            # one replica is enough, and belongs to its table alone
            schemes=("table_wise",) * len(plan.tables),
            shards=tuple(
                replace(shard, rank=self._holder[shard.rank])
                for shard in plan.shards
                if shard.rank == first or not plan.replicated(shard.table)
            ),
            ranks=comm.size,
            ranks_per_node=comm.size,
        )
        model = model_of(config, splits.dense_features)
        # a world that can be saved, and takes no step
        embedding = SimpleNamespace(tbe=RowsLeft(here.local(comm.rank), list(sources.values())))
        dense = dense_optimizer(config, model, comm)
        world = World(config, comm, here, model, cast(Any, embedding), dense, step=cast(Any, None))
        data = take_note(world, note)
        kept = config.checkpoint
        policy = SavingPolicy(kept.keep, kept.keep_every_steps, kept.keep_every_hours)
        saver = Saver(self._out, world, policy, data, splits.vocabularies)
        saver.save(step, last=True)
        saver.finish()

    # ---- between ranks ----

    def _from_all(self, values: "dict[int, Any]") -> "dict[int, Any]":
        """Values by rank of the run, of all ranks here."""
        of_ranks = self._comm.allgather(values)
        return {int(rank): value for each in of_ranks for rank, value in each.items()}


class RowsLeft:
    """The rows of some ranks of a run, as its state asks for them (`train/state/exchange.py`).

    shards : in the order in which they are asked for. sources : the rows of those ranks.
    """

    def __init__(self, shards: Sequence[Shard], sources: Sequence[TableBatchedEmbedding]) -> None:
        places = {
            (shard.table, shard.rows, shard.cols): (rows, i)
            for rows in sources
            for i, shard in enumerate(rows.shards)
        }
        self._places = [places[shard.table, shard.rows, shard.cols] for shard in shards]
        self.changes = Changes([None] * len(shards))

    def flush(self) -> None:
        """All rows are in one memory."""

    def existing(self, shard: int, lo: int, hi: int) -> Ints:
        """Local rows lo <= i64[n] < hi that a step has changed, ascending."""
        rows, i = self._places[shard]
        return np.flatnonzero(rows.raw(i)[-1][lo:hi, 0]) + lo

    def values(self, shard: int, local_rows: Ints) -> dict[str, Floats]:
        """Numbers and states of rows i64[n]."""
        rows, i = self._places[shard]
        return rows.values(i, local_rows)


class LeftMemory:
    """Memory with the rows of a rank, or zeros, as a `LastingMemory`."""

    def __init__(self, data: Bytes | None) -> None:
        self._data = data

    def take(self, size: int) -> Bytes:
        """The memory. Raises StorageError where it has another size."""
        if self._data is None:
            return np.frombuffer(mmap.mmap(-1, size), np.uint8)
        if self._data.size != size:
            raise StorageError(f"{self._data.size} bytes of rows, not {size}")
        return self._data

    def close(self) -> None:
        """It is not this object's to release."""
