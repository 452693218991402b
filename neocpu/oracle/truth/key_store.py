"""Which ids does a key-value table hold, and which does an eviction remove?

A key-value table (FBGEMM's KV-ZCH, dynamic embeddings) has a row for each raw id that training has
met: no id shares another's row. A store counts in how many training steps an id occurred and when
it occurred last; an eviction asks one strategy of every id that is present:

    timestamp                 time - last > ttl
    counter                   count := floor(count * decay_rate); count < min_count
    timestamp_and_counter     both, the decay too
    l2_weight                 norm of the row < min_norm
    timestamp_threshold       last < time - ttl, where the caller gives that moment

An id that is evicted and comes back begins anew: initial row, states 0, count 0.
"""

from dataclasses import dataclass, field

import numpy as np

from neocpu.core.types import Bools, Ints
from neocpu.oracle.operator import Options
from neocpu.oracle.truth.numbers import Real

STRATEGIES = (
    "timestamp",
    "counter",
    "timestamp_and_counter",
    "l2_weight",
    "timestamp_threshold",
)
NARROW_COUNTS = (8, 16)  # bits of the counts of kernels that are wrong


@dataclass
class KeyStore:
    """Which of U known ids are present, with their counts and times, i64[U] each.

    count : those with which the history begins; who has none is absent. start : when it begins.
    """

    options: Options
    bends: frozenset[str]
    count: Ints
    start: int = 0
    present: Bools = field(init=False)
    time: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.present = self.count > 0
        self.time = np.full(self.count.size, self.start)

    def record(self, places: Ints, time: int, training: bool) -> None:
        """Count the lookups of a batch: places i64[n] of their ids among the known ones."""
        if not training and "kv_evaluation_counts" not in self.bends:
            return
        places, occurrences = np.unique(places, return_counts=True)
        if not training:
            places = places[self.present[places]]
            occurrences = np.ones(places.size, np.int64)
        if "kv_counts_lookups" not in self.bends:
            occurrences = np.ones(places.size, np.int64)
        self.present[places] = True
        self.count[places] += occurrences
        for bits in NARROW_COUNTS:
            if f"kv_counts_{bits}_bits" in self.bends:
                self.count[places] %= 1 << bits
        self.time[places] = time

    def evict(self, time: int, norm: Real, norm_error: Real) -> Ints:
        """Remove the ids that an eviction at this time removes; returns their places, ascending.

        norm, norm_error : f64[U], norms of the rows, and how far a correct kernel's may be.
        Raises ValueError where that leaves open whether a row is shorter than min_norm.
        """
        strategy = str(self.options["strategy"])
        evicted = self.present.copy()
        if "counter" in strategy:
            evicted &= self._rare()
        if strategy in ("timestamp", "timestamp_and_counter"):
            evicted &= self._old(time)
        if strategy == "timestamp_threshold":
            evicted &= self.time < time - int(self.options["ttl"])
        if strategy == "l2_weight":
            min_norm = float(self.options["min_norm"])
            # Kernels may decide either way there, and all that follows would differ.
            if (self.present & (np.abs(norm - min_norm) <= norm_error)).any():
                raise ValueError(
                    "min_norm is too near the norm of a row to say whether it stays: change it"
                )
            evicted &= norm < min_norm
        places: Ints = np.flatnonzero(evicted)
        self.present[places] = False
        self.count[places] = 0
        return places

    def _old(self, time: int) -> Bools:
        """Ids that did not occur for longer than ttl seconds."""
        age = time - self.time
        ttl = int(self.options["ttl"])
        return age >= ttl if "kv_ttl_inclusive" in self.bends else age > ttl

    def _rare(self) -> Bools:
        """Ids whose count, which fades now, is below min_count."""
        before = self.count
        rate = float(self.options["decay_rate"])
        # Counts are whole numbers: a single occurrence fades to 0 at once.
        self.count = np.floor(self.count * rate).astype(np.int64)
        compared = before if "kv_decay_after_check" in self.bends else self.count
        return compared < int(self.options["min_count"])
