"""How does a state get to disk?

Hashed and copied as it is now, written under a temporary name, renamed once it is complete.

    snapshot   every rank goes through its blocks once: it hashes them    training waits
               and keeps what is to be written
    write      a thread of every rank writes and syncs what was kept,     training goes on
               and commits its SSD file
    finish     all ranks have written: rank 0 seals the file, renames     training waits
               it, deletes old ones

Where a rank would keep more than it has room for, all go through their blocks again and write them
while training waits. Until a file is renamed, older checkpoints stay as they are. Files between two
whole ones hold only the rows that changed (Check-N-Run).
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.types import Elements, Ints, JsonObject, Tree
from neocpu.tables.hdf5.draft import Image
from neocpu.train.checkpoint.folder import FOLDER, Bases, Elsewhere, failed, on_first_rank, publish
from neocpu.train.checkpoint.layout import Offsets, create, file_bytes, lay_out, seal
from neocpu.train.checkpoint.policy import SavingPolicy
from neocpu.train.checkpoint.snapshot import Share, Snapshot, facts_of, shares_of, write_share
from neocpu.train.state.blocks import Index, Tensor, digest_of
from neocpu.train.state.identity import hashes_of
from neocpu.train.state.state import State, state_of

if TYPE_CHECKING:
    from neocpu.train.step.world import World


def save(
    out: Path, world: "World", step: int, *, keep: int = 2, data: JsonObject | None = None
) -> str:
    """Write the whole state of a `step.world.World` after `step` steps; returns its digest.

    Collective.

    keep : newest checkpoints that stay. data : description of the data (`identity.py`), JSON-able.

    Raises CheckpointError on all ranks where it cannot be written; older checkpoints are then
    untouched.
    """
    saver = Saver(out, world, SavingPolicy(keep=keep), data)
    digest = saver.save(step)
    saver.finish()
    return digest


@dataclass(frozen=True)
class _Newest:
    """The newest file, on which the next one may be based.

    chain : files of changes that it needs, itself included, and their `bytes`. quantized : format
    to which it is rounded ("": none). words : hashes of the vocabularies in the chain.
    """

    name: str
    step: int
    digest: str
    index: Index
    chain: int
    bytes: int
    quantized: str = ""
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Pending:
    """A file that is being written, under the name `partial` until it is complete.

    image : on rank 0, what sealing it takes.
    """

    partial: Path
    path: Path
    step: int
    tensors: Sequence[Tensor] = ()
    digest: str = ""
    image: Image | None = None
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    thread: threading.Thread | None = None
    error: BaseException | None = None


class Saver:
    """The checkpoints of one run; every method but `abandon` is collective.

    data : description of the data (`identity.py`). vocabularies : that choose rows, by feature.

    Attributes: safe, step of the newest checkpoint that is complete on the disk (-1: none);
    rounded, whether the newest one that was begun is quantised; stalled, seconds that training
    waited; counts, of files and bytes.
    """

    def __init__(
        self,
        out: Path,
        world: "World",
        policy: SavingPolicy,
        data: JsonObject | None = None,
        vocabularies: Mapping[str, Elements] | None = None,
    ) -> None:
        self.folder = Path(out) / FOLDER
        self.world = world
        self.comm = world.comm
        self._policy = policy
        self.data = dict(data or {})
        self._vocabularies = dict(vocabularies or {})
        self._newest: _Newest | None = None
        self._pending: _Pending | None = None
        self._bases = Bases()
        self.counts = {"written": 0, "of_changes": 0, "in_background": 0, "bytes": 0}
        self.stalled = 0.0
        self.deleted: list[str] = []
        self.safe = -1
        self.rounded = False
        if policy.full_every > 1:
            # from now on: which rows changed before is not known, so the first file is whole
            world.embedding.tbe.changes.track()

    def note(self, key: str, value: object) -> None:
        """Let the files from now on have a note (JSON-able) beside the description of the data."""
        self.data[key] = value

    def use_vocabularies(self, vocabularies: Mapping[str, Elements]) -> None:
        """Rows are chosen by other vocabularies from now on."""
        self._vocabularies = dict(vocabularies)
        self.data["vocabularies"] = hashes_of(vocabularies)

    def resume(self, path: Path, step: int) -> None:
        """The world was just loaded from a checkpoint; the next one may hold what changed since."""
        self.safe = step
        # a base lies beside the file that names it
        if self._policy.full_every <= 1 or path.parent.resolve() != self.folder.resolve():
            return
        from neocpu.train.checkpoint.reading import CheckpointFile

        with self.comm.agreeing(), CheckpointFile(path) as file:
            chain = len(file.links) - 1
            if file.quantized:
                return  # rounding its rows once more may give others
            self._newest = _Newest(
                path.name, file.step, file.digest, file.index, chain, file.changes
            )
            if file.vocabularies():
                self._newest = replace(self._newest, words=file.data()["vocabularies"])

    def save(self, step: int, last: bool = False) -> str:
        """Take a snapshot of the state after `step` steps, and write it, or begin to.

        Returns its digest.

        last : the run ends with it, so nothing is rounded, and the SSD file is not committed with
            it: it will not be read again.

        Raises CheckpointError on all ranks where it, or the one before, cannot be written.
        """
        self.finish()
        begun = time.perf_counter()
        # sorted by name they are sorted by step
        path = self.folder / f"step-{step:08d}.h5"
        pending = _Pending(path.with_name(f".{path.name}.partial"), path, step)
        try:
            self._begin(pending, last)
        except BaseException:
            self._remove(pending)
            raise
        self._pending = pending
        self.rounded = bool(self._policy.quantize) and not last
        if pending.thread is None:
            self._end()
        self.stalled += time.perf_counter() - begun
        return pending.digest

    def poll(self) -> None:
        """Complete what was written in the background, if all ranks have; else return at once."""
        if (pending := self._pending) and pending.thread:
            begun = time.perf_counter()
            if not self.comm.largest(pending.thread.is_alive()):
                self._end()
            self.stalled += time.perf_counter() - begun

    def finish(self) -> None:
        """Wait for the file that is being written, and complete it.

        Raises CheckpointError on all ranks where that fails.
        """
        if self._pending:
            begun = time.perf_counter()
            self._end()
            self.stalled += time.perf_counter() - begun

    def abandon(self) -> None:
        """Remove the file that is being written, if any: the run failed. Not collective."""
        if pending := self._pending:
            self._pending = None
            if pending.thread:
                pending.thread.join()
            self._remove(pending)

    def report(self) -> dict[str, object]:
        """Of this rank's checkpoints, JSON-able: those "written", of them those "of_changes" and
        "in_background", their "bytes", and the "seconds" that training waited for them.
        """
        return {**self.counts, "seconds": self.stalled}

    # ---- from snapshot to file ----

    def _begin(self, pending: _Pending, last: bool) -> None:
        """Take the snapshot, lay out the file, and write this rank's share or begin to."""
        quantize = "" if last else self._policy.quantize
        state = state_of(self.world, quantize)
        step = pending.step
        base = self._base(state, quantize)
        self._newest = None  # until this one is laid out
        snapshot = Snapshot(state.tensors, self._policy.room)
        written_index = state.index(snapshot.add, base is not None)
        index = written_index
        attributes, texts = facts_of(
            state.tensors, self.world.config, self.comm.size, step, self.data
        )
        if base:
            index = written_index.over(base.index)
            attributes |= {"base": base.name, "base_step": base.step, "base_digest": base.digest}
        pending.tensors = state.tensors
        pending.digest = digest_of(self.world.config.header(), step, state.tensors, index)
        attributes["digest"] = pending.digest
        before, counts = shares_of(self.comm, snapshot.counts)
        words = self.data.get("vocabularies", {})
        new_words = not base or words != base.words
        vocabularies = self._vocabularies if new_words else {}
        offsets = self._lay_out(pending, counts, attributes, texts, vocabularies)
        # all or none: going through the blocks again is collective
        in_memory = not self.comm.largest(int(snapshot.room < 0))
        share = Share(
            path=pending.partial,
            tensors=state.tensors,
            offsets=offsets,
            before=before,
            index=written_index if self.comm.rank == 0 else None,
            parts=snapshot.taken() if in_memory else snapshot.again(state, base is not None),
            extents=pending.elsewhere.extents,
        )
        note = json.dumps({"step": step, "digest": pending.digest}).encode()
        # the SSD file of a run that ends is removed
        commit = None if last else self.world.embedding.tbe.seal(note)
        self._write(pending, share, commit, in_background=in_memory and self._policy.background)
        # the snapshot has them; what changes from here on is for the next file
        rows = self.world.embedding.tbe
        rows.changes.clear(rows.existing)
        size = file_bytes(state.tensors, counts)
        if self._policy.full_every > 1:
            self._newest = _Newest(
                name=pending.path.name,
                step=step,
                digest=pending.digest,
                index=index,
                chain=base.chain + 1 if base else 0,
                bytes=base.bytes + size if base else 0,
                quantized=quantize,
                words=words,
            )
        self.counts["written"] += 1
        self.counts["of_changes"] += int(base is not None)
        self.counts["in_background"] += int(pending.thread is not None)
        self.counts["bytes"] += size

    def _write(
        self,
        pending: _Pending,
        share: Share,
        commit: Callable[[], None] | None,
        in_background: bool,
    ) -> None:
        """Write this rank's share and commit its SSD file; errors are kept for `_end`."""

        def write() -> None:
            try:
                pending.error = write_share(share)
                if commit and pending.error is None:
                    commit()
            except Exception as error:
                pending.error = error

        if in_background:
            # writing and fsync wait for the disk and let Python go on
            pending.thread = threading.Thread(target=write, name="checkpoint")
            pending.thread.start()
        else:
            write()

    def _base(self, state: State, quantize: str) -> _Newest | None:
        """What the next file is to be based on; None: it is to be whole."""
        newest = self._newest
        if (
            newest is None
            or newest.chain + 1 >= self._policy.full_every
            or newest.quantized != quantize
        ):
            return None
        # a file of changes without its base would be lost work
        removed = self.comm.rank == 0 and not (self.folder / newest.name).is_file()
        if self.comm.largest(int(removed)):
            return None
        whole_counts = []
        for tensor in range(len(state.tensors)):
            blocks = newest.index.of(tensor)
            whole_counts.append((newest.index.rows_of(tensor), 0, blocks.stop - blocks.start))
        # a chain of changes must not grow beyond the whole state
        whole_bytes = file_bytes(state.tensors, np.array(whole_counts))
        return newest if newest.bytes < whole_bytes else None

    def _lay_out(
        self,
        pending: _Pending,
        counts: Ints,
        attributes: Tree,
        texts: Mapping[str, str],
        vocabularies: Mapping[str, Elements],
    ) -> Offsets:
        """Create the file on rank 0; the offsets of its datasets on all."""

        def make() -> Offsets:
            self.folder.mkdir(parents=True, exist_ok=True)
            # killed runs leave partial files; no other run can be writing, the folder is locked
            for old in self.folder.glob(".step-*.partial"):
                old.unlink()
            image = lay_out(pending.tensors, counts, attributes, texts, vocabularies)
            pending.image = create(image, pending.partial)
            return image.offsets

        offsets = on_first_rank(self.comm, pending.path, make)
        pending.elsewhere.look(self.comm, pending.partial)
        return offsets

    def _end(self) -> None:
        """Wait for this rank's part of a file, then for the others', and give it its name."""
        pending = self._pending
        self._pending = None
        assert pending is not None
        if pending.thread:
            pending.thread.join()
        try:
            error = pending.error
            # published only once all ranks have written their share
            self.comm.agree(failed(pending.path, error) if isinstance(error, OSError) else error)
            pending.elsewhere.collect(self.comm, pending.partial, pending.path)
            on_first_rank(self.comm, pending.path, lambda: self._publish(pending))
        except BaseException:
            self._newest = None
            self._remove(pending)
            raise
        self.safe = pending.step

    def _publish(self, pending: _Pending) -> None:
        """Complete a file that all ranks have written, and delete old ones; on rank 0."""
        assert pending.image is not None
        seal(pending.image, pending.partial, pending.tensors)
        self.deleted += publish(pending.partial, pending.path, self._policy, self._bases)

    def _remove(self, pending: _Pending) -> None:
        if self.comm.rank == 0 or pending.elsewhere.here:
            with contextlib.suppress(OSError):
                pending.partial.unlink(missing_ok=True)
