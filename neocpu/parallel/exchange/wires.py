"""How do pooled vectors, their gradients and dense gradients travel in fewer bits? Encoded as they
are packed, decoded as they are put in place, rounded alike where nothing travels.

    wire = Wire.of(WireSpec("fp16"), backward=False)      None for fp32: nothing is done
    wire.encode(E, message, jobs)     wire.decode(message, E, jobs)     wire.round(E, E, jobs)

A number is rounded at fixed points of a step, once, whether it travels or not
(`docs/arithmetic.md` §13); so plan and rank count cannot be seen. Blocks of columns are those of
the table, so no shard may be cut inside one: `refuse_cut_blocks`.

Kernels of `kernels/exchange/` copy and encode blocks of a matrix, each described by one `BlockJob`;
they take the jobs of a whole exchange as one array.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neocpu.core.types import Bytes, Floats, Ints
from neocpu.parallel.exchange.wire_formats import WIRE_FORMATS, WireSpec, WireSpecs
from neocpu.parallel.sharding.entries import RankEntries, RoutedEntries

if TYPE_CHECKING:
    from neocpu.kernels.exchange.wires import WireCode


class BlockJob(NamedTuple):
    """A block of `rows` by `width`, in elements (of a message of codes: in bytes).

    Row i stands at source + i * source_stride, and goes to target + i * target_stride.
    """

    source: int
    source_stride: int
    target: int
    target_stride: int
    rows: int
    width: int


def job_array(jobs: Iterable[BlockJob]) -> Ints:
    """The jobs as kernels take them: i64[J, 6]."""
    return np.array(list(jobs), np.int64).reshape(-1, len(BlockJob._fields))


def run_jobs(source: Ints, target: Ints, width: Ints) -> Ints:
    """Jobs i64[J, 6] that copy runs: `width` elements from `source` on to `target` on."""
    # by columns, not job by job: every batch has runs of its own, for each entry and rank
    no_stride = np.zeros_like(source)
    one_row = np.ones_like(source)
    columns = [source, no_stride, target, no_stride, one_row, width]
    # in C order, whatever `stack` chooses: another would be another signature of the kernels
    return np.ascontiguousarray(np.stack(columns, axis=1))


def reversed_jobs(jobs: Ints) -> Ints:
    """The same jobs from target to source."""
    job = BlockJob(*range(len(BlockJob._fields)))
    columns = [
        job.target,
        job.target_stride,
        job.source,
        job.source_stride,
        job.rows,
        job.width,
    ]
    return np.ascontiguousarray(jobs[:, columns])


@dataclass(frozen=True)
class Wire:
    """A wire in which numbers are rounded.

    Jobs are those of `kernels/exchange/blocks.py`, places in a message in bytes.
    """

    spec: WireSpec
    backward: bool = False

    @staticmethod
    def of(spec: WireSpec, backward: bool = False) -> "Wire | None":
        """The wire of a direction; None where numbers travel as they are."""
        return None if spec.exact else Wire(spec, backward)

    @cached_property
    def _kernels(self) -> ModuleType:
        # a run whose numbers travel as they are needs no codec
        from neocpu.kernels.exchange import wires

        return wires

    @cached_property
    def code(self) -> "WireCode":
        """What kernels are told."""
        from neocpu.kernels.exchange.wires import WireCode

        form = WIRE_FORMATS[self.spec.format].forms[self.backward]
        return WireCode(form, self.spec.block, np.float32(self.spec.scale))

    def bytes(self, width: int) -> int:
        """Bytes of so many columns of a sample."""
        return int(self.spec.bytes(width))

    def encode(self, source: Floats, target: Bytes, jobs: Ints) -> None:
        """Columns of a matrix into a message."""
        self._kernels.encode_blocks(source.reshape(-1), target.reshape(-1), jobs, self.code)

    def decode(self, source: Bytes, target: Floats, jobs: Ints) -> None:
        """A message into columns of a matrix."""
        self._kernels.decode_blocks(source.reshape(-1), target.reshape(-1), jobs, self.code)

    def round(self, source: Floats, target: Floats, jobs: Ints) -> None:
        """Numbers as they would arrive; `target` may be `source`."""
        self._kernels.round_blocks(source.reshape(-1), target.reshape(-1), jobs, self.code)

    def joins(self, width: int) -> bool:
        """May columns that follow so many others be part of one job with them?"""
        # a block that began at another column would have another scale, and other bits
        return not self.spec.blocks or width % self.spec.block == 0


@dataclass(frozen=True)
class WireSet:
    """The wires of pooled vectors and of their gradients; None where they travel as they are."""

    forward: Wire | None = None
    backward: Wire | None = None

    @staticmethod
    def of(specs: WireSpecs) -> "WireSet":
        """The wires of a config."""
        return WireSet(Wire.of(specs.forward), Wire.of(specs.backward, backward=True))


def merged_jobs(wire: Wire, jobs: Iterable[BlockJob]) -> Ints:
    """Jobs from a matrix into a message of codes, neighbours joined; targets are in bytes."""
    merged: list[BlockJob] = []
    for job in jobs:
        last = merged[-1] if merged else None
        if (
            last
            and last.source + last.width == job.source
            and last.target + wire.bytes(last.width) == job.target
            and wire.joins(last.width)
        ):
            merged[-1] = last._replace(width=last.width + job.width)
        elif job.width:
            merged.append(job)
    return job_array(merged)


class WholeJobs:
    """Counts in bytes, and jobs, of finished rows on a wire for one batch size; their gradients
    take the way back.

    ranks : entries of all ranks. me : this rank. cuts : rank q's samples are [cuts[q], cuts[q+1]).
    columns : of E.
    """

    def __init__(
        self, wire: Wire, ranks: Sequence[RankEntries], me: int, cuts: Ints, columns: int
    ) -> None:
        sizes = np.diff(cuts)
        samples = int(sizes[me])
        pitches = [_bytes_of(wire, r.whole) for r in ranks]
        self.sends = sizes * pitches[me]
        self.recvs = samples * np.array(pitches, np.int64)
        # of all ranks, [sender, receiver]
        self.table = np.multiply.outer(np.array(pitches, np.int64), sizes)
        entries = ranks[me].whole
        # a matrix [B, C] of my entries and the messages that hold its rows
        self.rows = merged_jobs(
            wire, _jobs(wire, entries, entries.column, entries.columns, 0, int(cuts[-1]))
        )
        home: list[BlockJob] = []
        base = 0
        for rank, pitch in zip(ranks, pitches):
            home += _jobs(wire, rank.whole, rank.whole.home, columns, base, samples)
            # messages of all ranks stand one after the other, and are of bytes
            base += samples * pitch
        # columns of E and the messages of all ranks, one after the other
        self.columns = merged_jobs(wire, home)


def _bytes_of(wire: Wire, entries: RoutedEntries) -> int:
    """Bytes of one sample of some entries."""
    return int(wire.spec.bytes(entries.width).sum())


def _jobs(
    wire: Wire, entries: RoutedEntries, columns: Ints, stride: int, base: int, rows: int
) -> list[BlockJob]:
    sizes = wire.spec.bytes(entries.width)
    starts = base + np.cumsum(sizes) - sizes
    pitch = int(sizes.sum())
    return [
        BlockJob(column, stride, start, pitch, rows, width)
        for column, start, width in zip(columns.tolist(), starts.tolist(), entries.width.tolist())
    ]


class ColumnSpan(NamedTuple):
    """`width` columns of a matrix, from `column` on."""

    column: int
    width: int


class Rounding:
    """Columns of E, or of its gradient, that stay at home: rounded as if they had travelled.

    homes, widths : i64[n], runs of columns, each whole blocks of one key. columns : of E.
    """

    def __init__(self, wire: Wire, homes: Ints, widths: Ints, columns: int) -> None:
        self._wire = wire
        self._columns = columns
        spans: list[ColumnSpan] = []
        for home, width in sorted(zip(homes.tolist(), widths.tolist())):
            last = spans[-1] if spans else None
            if last and last.column + last.width == home and wire.joins(last.width):
                spans[-1] = ColumnSpan(last.column, last.width + width)
            else:
                spans.append(ColumnSpan(home, width))
        self._spans = spans
        self._jobs: dict[int, Ints] = {}

    def __call__(self, source: Floats, target: Floats) -> None:
        """source f32[b, columns] into target, which may be the source; other columns are left."""
        samples = len(source)
        if samples not in self._jobs:
            columns = self._columns
            self._jobs[samples] = job_array(
                BlockJob(span.column, columns, span.column, columns, samples, span.width)
                for span in self._spans
            )
        if samples:
            self._wire.round(source, target, self._jobs[samples])
