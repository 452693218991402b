"""Which kernels are right, though their bits differ? None of these may fail."""

from typing import Any

import numpy as np

from benchmarks.oracle_mutants.formats import F32, fused
from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.terms import Update

WARP = 32


class Plain(Kernel):
    """One addition after the other, each operation rounded."""


class Fused(Kernel):
    """Fused multiply-adds wherever a product is added."""

    def madd(self, a: Any, b: Any, c: Any) -> Array:
        """fma(a, b, c)."""
        return fused(a, b, c)

    def bag_sums(
        self, x: Array, w: Array | None, part: Lookups, size: int, lengths: Array, batch: Batch
    ) -> Array:
        """One fused multiply-add after the other."""
        if w is None:
            return self.add_up(x, part.sample, size)
        sums = np.zeros((size, x.shape[1]), F32)
        order = np.argsort(part.place, kind="stable")
        for members in np.split(order, np.cumsum(np.bincount(part.place))[:-1]):
            bags = part.sample[members]
            sums[bags] = fused(w[members, None], x[members], sums[bags])
        return sums

    def dot(self, x: Array, gradient: Array, batch: Batch, part: Lookups) -> Array:
        """A chain of fused multiply-adds."""
        total = np.zeros(len(x), F32)
        for column in range(x.shape[1]):
            total = fused(x[:, column], gradient[:, column], total)
        return total


class Reversed(Kernel):
    """The last term first."""

    def add_up(self, terms: Array, group: Array, size: int) -> Array:
        """Sums from the end."""
        return super().add_up(terms[::-1], group[::-1], size)

    def column_sum(self, x: Array) -> Array:
        """Sums from the last column."""
        return super().column_sum(x[:, ::-1])


class Shuffled(Kernel):
    """Terms in the order in which atomic additions happen to come."""

    def add_up(self, terms: Array, group: Array, size: int) -> Array:
        """Sums in a drawn order."""
        order = np.random.default_rng(self.seed).permutation(len(terms))
        return super().add_up(terms[order], group[order], size)


class Lanes(Kernel):
    """A warp's lanes each add every 32nd term, then a butterfly adds the lanes."""

    def add_up(self, terms: Array, group: Array, size: int) -> Array:
        """Sums of lanes, and their sum."""
        order = np.argsort(group, kind="stable")
        counts = np.bincount(group, minlength=size)
        place = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
        lanes = np.zeros((size, WARP, terms.shape[1]), F32)
        np.add.at(lanes, (group[order], place % WARP), terms[order])
        return butterfly(lanes)

    def column_sum(self, x: Array) -> Array:
        """Sums of 32 columns at once."""
        padded = np.pad(x, ((0, 0), (0, -x.shape[1] % WARP)))
        lanes = padded.reshape(len(x), padded.shape[1] // WARP, WARP)
        total = np.zeros((len(x), WARP), F32)
        for block in range(lanes.shape[1]):
            total = total + lanes[:, block]
        return butterfly(total[:, :, None])[:, 0]


def butterfly(lanes: Array) -> Array:
    """Sums over axis 1, a power of two long, halves added to halves."""
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


class Blocked(Kernel):
    """Sums of blocks of eight terms, which are added up."""

    BLOCK = 8

    def add_up(self, terms: Array, group: Array, size: int) -> Array:
        """Sums of blocks, one after the other."""
        order = np.argsort(group, kind="stable")
        counts = np.bincount(group, minlength=size)
        place = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
        block = place // self.BLOCK
        sums = np.zeros((size, terms.shape[1]), F32)
        for number in range(int(block.max(initial=-1)) + 1):
            members = order[block == number]
            part = np.zeros_like(sums)
            np.add.at(part, group[members], terms[members])
            sums += part
        return sums

    def column_sum(self, x: Array) -> Array:
        """Sums of eight columns, one after the other."""
        total = np.zeros(len(x), F32)
        for start in range(0, x.shape[1], self.BLOCK):
            total = total + super().column_sum(x[:, start : start + self.BLOCK])
        return total


class Wide(Kernel):
    """fp64 accumulators, rounded once."""

    def add_up(self, terms: Array, group: Array, size: int) -> Array:
        """Sums in fp64."""
        sums = np.zeros((size, terms.shape[1]))
        np.add.at(sums, group, terms)
        return sums.astype(F32)

    def column_sum(self, x: Array) -> Array:
        """Sums in fp64."""
        return x.astype(np.float64).sum(axis=1).astype(F32)

    def dot(self, x: Array, gradient: Array, batch: Batch, part: Lookups) -> Array:
        """Products and sums in fp64."""
        return (x.astype(np.float64) * gradient).sum(axis=1).astype(F32)


class Reciprocal(Kernel):
    """Multiplications by reciprocals in place of divisions."""

    def over_length(self, sums: Array, lengths: Array) -> Array:
        """Times fl(1 / L)."""
        length = np.where(lengths == 0, 1, lengths).astype(F32)[:, None]
        return (sums * (F32(1) / length)).astype(F32)

    def over(self, a: Any, b: Any) -> Array:
        """Times fl(1 / b), where that is a normal number; divided where it is not."""
        b = np.asarray(b, F32)
        inverse = F32(1) / b
        usual = (np.abs(inverse) >= np.finfo(F32).tiny) & np.isfinite(inverse)
        return np.where(usual, a * inverse, np.asarray(a, F32) / b).astype(F32)


class MeanOfTerms(Kernel):
    """MEAN divides each term before it is added."""

    def bag_sums(
        self, x: Array, w: Array | None, part: Lookups, size: int, lengths: Array, batch: Batch
    ) -> Array:
        """Sums of terms over L."""
        terms = x if w is None else self.weighted(x, w)
        if batch.options["pooling"] == "mean":
            terms = self.over_length(terms, lengths[part.sample])
        return self.add_up(terms, part.sample, size)

    def mean(self, sums: Array, lengths: Array, batch: Batch, feature: int, part: Lookups) -> Array:
        """The terms are divided by now."""
        return sums


class WeightOverLength(MeanOfTerms):
    """MEAN multiplies each row by fl(w / L)."""

    def bag_sums(
        self, x: Array, w: Array | None, part: Lookups, size: int, lengths: Array, batch: Batch
    ) -> Array:
        """Sums of rows times w / L."""
        factor = np.ones(len(x), F32) if w is None else w
        if batch.options["pooling"] == "mean":
            factor = self.divided(factor, lengths[part.sample].astype(F32))
        return self.add_up(self.weighted(x, factor), part.sample, size)


class WideRules(Kernel):
    """Optimizer steps in fp64, states and rows rounded once each."""

    def madd(self, a: Any, b: Any, c: Any) -> Array:
        """a * b + c, rounded once."""
        return fused(a, b, c)

    def norm(self, x: Array) -> Array:
        """Euclidean length in fp64."""
        return np.sqrt((x.astype(np.float64) ** 2).sum(axis=1)).astype(F32)

    def mean_square(self, u: Update, g: Array) -> Array:
        """Mean of squares in fp64."""
        return ((g.astype(np.float64) ** 2).sum(axis=1) / u.columns).astype(F32)

    def moment(self, u: Update, beta: str, old: Array, new: Array) -> Array:
        """old + (1 - beta) * (new - old), as a lerp."""
        b = float(u.options[beta])
        return (old.astype(np.float64) * b + new.astype(np.float64) * (1 - b)).astype(F32)


class Compensated(Kernel):
    """Kahan's sums."""

    def add_up(self, terms: Array, group: Array, size: int) -> Array:
        """Sums with a running compensation."""
        if not np.isfinite(terms).all():
            return super().add_up(terms, group, size)
        order = np.argsort(group, kind="stable")
        counts = np.bincount(group, minlength=size)
        begins = np.cumsum(counts) - counts
        sums = np.zeros((size, terms.shape[1]), F32)
        lost = np.zeros_like(sums)
        for place in range(int(counts.max(initial=0))):
            bags = np.flatnonzero(counts > place)
            term = terms[order[begins[bags] + place]] - lost[bags]
            total = sums[bags] + term
            excess = (total - sums[bags]) - term
            lost[bags] = np.where(np.isfinite(excess), excess, 0)
            sums[bags] = total
        return sums


RIGHT: dict[str, type[Kernel]] = {
    variant.__name__: variant
    for variant in (
        Plain,
        Fused,
        Reversed,
        Shuffled,
        Lanes,
        Blocked,
        Wide,
        Reciprocal,
        MeanOfTerms,
        WeightOverLength,
        WideRules,
        Compensated,
    )
}
