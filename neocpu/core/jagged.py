"""How is a batch of variable-length bags laid out? As a KJT (keyed jagged tensor).

That is Neo's combined format, feature-major: feature f of sample s is bag i = f*B + s.

    keys      F names
    lengths   int32[F, B], lookups of each bag
    offsets   int64[F*B + 1], exclusive cumulative sum of lengths
    values    int64[offsets[-1]], row numbers: bag i holds values[offsets[i]:offsets[i+1]]
    weights   float32[offsets[-1]] or None, per-sample weights

Lengths rather than offsets are stored and sent: they slice and concatenate without fix-up
(`docs/design.md`). Where samples of a batch have the same bags, an `InverseKJT` holds these once
(RecD).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import IndexRangeError
from neocpu.core.types import Floats, Ints


@dataclass(frozen=True)
class KJT:
    """Keyed jagged tensor: F features by B samples of variable-length bags of row numbers."""

    keys: tuple[str, ...]
    lengths: NDArray[np.int32]
    values: Ints
    weights: Floats | None = None

    @property
    def samples(self) -> int:
        """B, the number of samples."""
        return self.lengths.shape[1]

    @cached_property
    def offsets(self) -> Ints:
        """Start of every bag in `values`: int64[F*B + 1]."""
        offsets = np.zeros(self.lengths.size + 1, np.int64)
        np.cumsum(self.lengths.reshape(-1), out=offsets[1:])
        return offsets

    def check(self) -> None:
        """Raise IndexRangeError unless lengths, values and weights fit together."""
        if self.lengths.ndim != 2 or self.lengths.shape[0] != len(self.keys):
            raise IndexRangeError(
                f"lengths has shape {self.lengths.shape}; expected ({len(self.keys)}, batch) for "
                f"keys {self.keys}"
            )
        if self.lengths.size and int(self.lengths.min()) < 0:
            feature, sample = np.argwhere(self.lengths < 0)[0]
            raise IndexRangeError(
                f"feature {self.keys[feature]!r}, sample {sample}: bag length "
                f"{self.lengths[feature, sample]} is negative"
            )
        total = int(self.offsets[-1])
        # checked here, before kernels read beyond the end
        if total != self.values.size:
            raise IndexRangeError(
                f"lengths add up to {total} lookups, but there are {self.values.size} values"
            )
        if self.weights is not None and self.weights.size != self.values.size:
            raise IndexRangeError(
                f"{self.values.size} values, but {self.weights.size} per-sample weights"
            )


@dataclass(frozen=True)
class DistinctBags:
    """The bags of some keys of b samples, of which equal ones stand once (an inverse KJT of RecD).

    kjt : of U samples, each with other bags.
    inverse : i32[b], sample s has the bags of kjt's sample inverse[s].
    first : i32[U], the first sample that has each.
    """

    kjt: KJT
    inverse: NDArray[np.int32]
    first: NDArray[np.int32]


@dataclass(frozen=True)
class InverseKJT:
    """A batch whose keys are parted: some as they are, others in groups whose repeated bags stand
    once.

    keys : of all, in the order of the tables.
    plain : those that are in no group, of b samples.
    groups : each with keys of its own.
    """

    keys: tuple[str, ...]
    plain: KJT
    groups: tuple[DistinctBags, ...]

    @property
    def samples(self) -> int:
        """b, the number of samples."""
        return self.plain.samples

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Lookups of each bag of all keys and samples: int32[F, b]."""
        index_of = {key: i for i, key in enumerate(self.keys)}
        lengths = np.zeros((len(self.keys), self.samples), np.int32)
        lengths[[index_of[key] for key in self.plain.keys]] = self.plain.lengths
        for group in self.groups:
            group_rows = [index_of[key] for key in group.kjt.keys]
            lengths[group_rows] = group.kjt.lengths[:, group.inverse]
        return lengths
