"""What does a cache of rows do with a stream of batches? `row_cache`, for every policy.

The stream says which rows every batch looks up; the answer which of them were there, which came and
which left, and of these which had to be written home.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from neocpu.core.policies import EVICTIONS
from neocpu.core.types import Ints
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truth, Truths
from neocpu.oracle.options import OneOf, Whole
from neocpu.oracle.truth.row_cache import BatchMoves, RowCache

STATISTICS = 6


class BatchStream(NamedTuple):
    """The batches of a case: rows that each looks up (ascending) with their lookups, i64."""

    batches: list[tuple[Ints, Ints]]
    training: list[bool]
    window: int  # batches after it that are known
    in_flight: int  # batches whose rows are locked at once, the one that comes in included

    @staticmethod
    def of(inputs: Arrays, options: Options) -> "BatchStream":
        """The batches of the inputs."""
        training = inputs["training"].astype(bool).tolist()
        batches = []
        for k in range(len(training)):
            indices = inputs[f"step{k}/indices"].astype(np.int64)
            rows, counts = np.unique(indices[indices >= 0], return_counts=True)
            batches.append((rows, counts.astype(np.int64)))
        return BatchStream(batches, training, int(options["window"]), int(options["in_flight"]))

    def next_uses(self, k: int) -> dict[int, int]:
        """The next batch that uses a row, from 1, of those known when batch k comes in."""
        uses: dict[int, int] = {}
        for later in range(min(k + self.window, len(self.batches) - 1), k, -1):
            uses |= dict.fromkeys(self.batches[later][0].tolist(), later + 1)
        return uses

    def ahead(self, k: int) -> Ints:
        """How many batches later each row of batch k is used again; 0: not known."""
        uses = self.next_uses(k)
        rows = self.batches[k][0].tolist()
        return np.array([uses.get(row, k + 1) - (k + 1) for row in rows], np.int64)


def _outputs(k: int, moves: BatchMoves) -> dict[str, Ints]:
    return {f"step{k}/{name}": np.array(rows, np.int64) for name, rows in vars(moves).items()}


def _model(inputs: Arrays, options: Options, bends: Switches) -> dict[str, Ints]:
    """All outputs by the plain model."""
    stream = BatchStream.of(inputs, options)
    cache = RowCache(int(options["sets"]), str(options["policy"]), bends)
    outputs: dict[str, Ints] = {}
    statistics = np.zeros(STATISTICS, np.int64)
    in_flight: list[tuple[list[int], bool]] = []
    for k, (rows, counts) in enumerate(stream.batches):
        if len(in_flight) == stream.in_flight:
            cache.release(*in_flight.pop(0))
        lookups = dict(zip(rows.tolist(), counts.tolist()))
        moves = cache.bring(lookups, stream.next_uses(k))
        outputs |= _outputs(k, moves)
        statistics += _counted(lookups, moves)
        held = [row for row in lookups if row not in moves.outside]
        in_flight.append((held, stream.training[k]))
    for batch in in_flight:
        cache.release(*batch)
    cached = cache.rows()
    changed = [row for row, entry in cached.items() if entry.changed]
    return outputs | {
        "cached": np.array(sorted(cached), np.int64),
        "changed": np.array(sorted(changed), np.int64),
        "statistics": statistics,
    }


def _counted(lookups: Mapping[int, int], moves: BatchMoves) -> Ints:
    """What a batch adds to the statistics."""
    missed = len(moves.filled) + len(moves.outside)
    outside = sum(lookups[row] for row in moves.outside)
    parts = (1, sum(lookups.values()), len(lookups), missed, len(moves.outside), outside)
    return np.array(parts, np.int64)


def _truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    outputs = _model(inputs, options, switches)
    return {name: Truth.exactly(numbers) for name, numbers in outputs.items()}


def _bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """What neocpu's cache does; the reference is the model."""
    if backend == "reference":
        return {**_model(inputs, options, frozenset())}
    # It compiles kernels, which nobody who only judges needs.
    from neocpu.tables.tiers.cache import Cache

    stream = BatchStream.of(inputs, options)
    cache = Cache(int(options["sets"]), str(options["policy"]))
    outputs: Arrays = {}
    in_flight: list[tuple[Ints, bool]] = []
    for k, (rows, counts) in enumerate(stream.batches):
        if len(in_flight) == stream.in_flight:
            cache.release(*in_flight.pop(0))
        coming = k + stream.window
        if cache.policy.next_use and stream.window and coming < len(stream.batches):
            cache.expect(stream.batches[coming][0], stream.window + 1)
        moves = cache.prefetch(rows, counts, stream.ahead(k))
        in_flight.append((moves.lines, stream.training[k]))
        outside = rows[moves.lines < 0]
        step = {
            "hits": np.setdiff1d(rows, np.union1d(moves.filled_rows, outside)),
            "filled": moves.filled_rows,
            "outside": outside,
            "evicted": np.sort(moves.evicted_rows),
            "written": np.sort(moves.evicted_rows[moves.evicted_dirty]),
        }
        outputs |= {f"step{k}/{name}": array for name, array in step.items()}
    for batch in in_flight:
        cache.release(*batch)
    outputs["cached"] = np.sort(cache.rows()[1])
    outputs["changed"] = np.sort(cache.flush()[1])
    outputs["statistics"] = np.array(list(cache.stats().values()), np.int64)
    return outputs


ROW_CACHE = Operator(
    name="row_cache",
    about="A software cache of rows, 32 ways in each set, and a stream of batches (FBGEMM: "
    "lxu_cache; HugeCTR: gpu_cache): which rows are there, come, leave and are written home. The "
    "set of a row is Murmur3's 64-bit finaliser modulo sets; docs/memory.md has the policies.",
    inputs={
        "training": Field("1: the batch changes its rows, 0: it reads them, int64[K]", ("step",)),
        "step0/indices": Field(
            "rows of all lookups, -1: none, int64[n]; likewise step1/indices, …", ("lookup",)
        ),
    },
    options={
        "policy": OneOf("lru", EVICTIONS),
        "sets": Whole(1, 1),
        "window": Whole(0, 0),
        "in_flight": Whole(1, 1),
    },
    outputs={
        "hits": Field("step0/hits, …: rows that were there, ascending, int64", ("row",)),
        "filled": Field("step0/filled, …: rows that came in, ascending", ("row",)),
        "outside": Field("step0/outside, …: rows that found no way, ascending", ("row",)),
        "evicted": Field("step0/evicted, …: rows that left, ascending", ("row",)),
        "written": Field("step0/written, …: of these, those that were changed", ("row",)),
        "cached": Field("rows that are there in the end, ascending", ("row",)),
        "changed": Field("of these, those that were changed", ("row",)),
        "statistics": Field(
            "int64[6]: batches; lookups; rows; rows missed; rows, and lookups, that found no way "
            "(FBGEMM's UVM cache statistics)",
            ("counter",),
        ),
    },
    run_=_bits,
    truth_=_truth,
)

OPERATORS = (ROW_CACHE,)
