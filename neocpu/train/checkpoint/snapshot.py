"""What does one rank write of a checkpoint? Its blocks as they are now, copied where there is room.

Further, where the ranks' parts go in the file, what else is in it, and the writing itself, which
needs no other rank.
"""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from neocpu.core.types import Ints, Tree
from neocpu.parallel.transport.comm import Comm
from neocpu.train.checkpoint.layout import Extents, Offsets, Part, RowWriter
from neocpu.train.checkpoint.number_codes import rounded
from neocpu.train.config.config import Config
from neocpu.train.config.defaults import as_overrides
from neocpu.train.state.blocks import Blocks, Index, Tensor
from neocpu.train.state.state import State
from neocpu.train.watch.results import versions


class Snapshot:
    """What one rank writes: copies of its parts, as long as they take at most `room` bytes.

    counts : i64[T, 3], of all parts, as for `lay_out`. room : bytes left; negative where the parts
    take more, so that no copies are kept.
    """

    def __init__(self, tensors: Sequence[Tensor], room: int) -> None:
        self.tensors = tensors
        self.room = room
        self.counts = np.zeros((len(tensors), 3), np.int64)
        self._parts: deque[Part] = deque()

    def add(self, blocks: Blocks) -> Blocks:
        """Take the next blocks; returns them as the file has them."""
        tensor = self.tensors[blocks.tensor]
        blocks = rounded(blocks, tensor)
        part = Part.of(blocks, tensor)
        self.counts[part.tensor] += part.counts
        # counted on below 0, which says that nothing is kept
        self.room -= part.bytes
        if self.room >= 0:
            self._parts.append(part)
        else:
            self._parts.clear()
        return blocks

    def taken(self) -> Iterator[Part]:
        """All parts; the memory of each is free once it was taken."""
        while self._parts:
            yield self._parts.popleft()

    def again(self, state: State, since: bool) -> Iterator[Part]:
        """All parts once more, from the state. Collective."""
        self._parts.clear()
        for blocks in state.blocks(since):
            tensor = self.tensors[blocks.tensor]
            yield Part.of(rounded(blocks, tensor), tensor)


@dataclass(frozen=True)
class Share:
    """What one rank writes into the file `path` that `lay_out` made.

    offsets, before : as for `RowWriter`. index : of all ranks' blocks; None: another rank writes
    it. extents : takes in what was written where.
    """

    path: Path
    tensors: Sequence[Tensor]
    offsets: Offsets
    before: Ints
    index: Index | None
    parts: Iterable[Part]
    extents: Extents = field(default_factory=dict)


def write_share(share: Share) -> OSError | None:
    """Write and sync a rank's share; returns what went wrong.

    Takes all parts even then: taking them may be collective, and other ranks would wait.
    """
    error: OSError | None = None
    writer: RowWriter | None = None
    try:
        writer = RowWriter(share.path, share.tensors, share.offsets, share.before)
        if share.index is not None:
            writer.write_index(share.index)
    except OSError as problem:
        error = problem
    for part in share.parts:
        if error is None and writer is not None:
            try:
                writer.write(part)
            except OSError as problem:
                error = problem
    try:
        if writer is not None:
            writer.close()
            share.extents.update(writer.extents)
    except OSError as problem:
        error = error or problem
    return error


def shares_of(comm: Comm, counts: Ints) -> tuple[Ints, Ints]:
    """Sums of the counts of lower ranks, and of all."""
    # a rank must know how many rows lie before its own in each dataset
    gathered = np.empty(comm.size * counts.size, np.int64)
    comm.allgatherv(counts.reshape(-1), gathered, np.full(comm.size, counts.size, np.int64))
    by_rank = gathered.reshape(comm.size, *counts.shape)
    return by_rank[: comm.rank].sum(axis=0), by_rank.sum(axis=0)


def facts_of(
    tensors: Sequence[Tensor], config: Config, ranks: int, step: int, data: Tree
) -> tuple[dict[str, object], dict[str, str]]:
    """Attributes and texts of a file that so many ranks write."""
    attributes = {
        "step": step,
        # up to 2^64 - 1: Python's int would become an int64
        "seed": np.uint64(config.training.seed),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "ranks": ranks,
        "dense": json.dumps([t.name.removeprefix("dense/") for t in tensors if not t.table]),
    }
    texts = {
        "config": config.text,
        "overrides": json.dumps(
            # the config means the same from any folder, and whatever defaults become
            [*config.overrides, *config.absolute, *as_overrides(config.chosen)]
        ),
        "header": json.dumps(config.header()),
        "data": json.dumps(data),
        "versions": json.dumps(versions()),
    }
    return attributes, texts
