"""How are files that still come cut into splits? As they come, in whole batches."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from neocpu.core.types import JsonObject
from neocpu.ingest.dataset.raw import RawLog, index_of
from neocpu.ingest.dataset_layout import BLOCK
from neocpu.ingest.readers.coming import Coming
from neocpu.ingest.readers.pieces import Split

UNKNOWN = 1 << 60  # samples of an epoch whose end nobody knows yet


class OnePass(NamedTuple):
    """Positions [first, last) of a run's one pass, in batches of `batch` samples; blocks : of a
    split. ahead : splits that may be at work behind those that all trainers have.
    """

    first: int
    last: int
    batch: int
    blocks: int
    ahead: int


def arriving(
    coming: Coming, log: RawLog, run: OnePass
) -> Iterator[tuple[Split, Sequence[JsonObject]]]:
    """Splits of files as they come, each with the files that are new since the split before.

    log : with the first file. Raises DataError for a file that cannot be read.
    """
    cut = _Cut(run)
    passed: deque[tuple[int, Path]] = deque()
    notes: list[JsonObject] = []
    rows = 0
    for count, path in enumerate(coming.files()):
        index = log.files[0] if not count else index_of(path, log.schema, log.on_error)
        if count:
            notes.append(asdict(index))
        rows += sum(index.rows)
        # how a batch is dealt to ranks depends on its size: the last one waits for its end
        whole = rows // run.batch * run.batch
        for split in cut.until(whole, UNKNOWN):
            yield split, notes
            notes = []
            while passed and passed[0][0] < split.number - run.ahead:
                coming.forget(passed.popleft()[1])
        passed.append((cut.number, path))
        if cut.at >= run.last:
            return
    if coming.stopped:  # more may be there for who goes on
        return
    for split in cut.until(rows, rows):
        yield split, notes
        notes = []


class _Cut:
    """Cuts positions into splits, as far as they are known. at : the next; number : its split's."""

    def __init__(self, run: OnePass) -> None:
        self.at = run.first
        self.number = 0
        self._run = run

    def until(self, last: int, samples: int) -> Iterator[Split]:
        """Splits of the positions before `last`; samples : of the epoch."""
        last = min(last, self._run.last)
        while self.at < last:
            first = self.at
            self.at = min(first + self._run.blocks * BLOCK, last)
            self.number += 1
            yield Split(self.number - 1, 0, first, self.at, samples)
