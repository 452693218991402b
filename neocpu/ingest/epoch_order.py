"""Which sample stands at which position of an epoch?

The samples of all files are numbered through and cut into blocks of 4,096. The order of an epoch
is a function of (seed, epoch) alone:

    blocks     stable sort of one Philox word per block
               (purpose 3; counter row = block, step = epoch)
    windows    16 consecutive blocks of that order, e.g.  | 7 2 9 … | 4 0 … |
    runs       inside a window: of `run` neighbours of a block (the last may be shorter), one by
               default; stable sort of one Philox word per run
               (purpose 4; counter row = position in the epoch of its first sample, before the sort)

(key name "samples", word of column 0), so a position is (epoch, step) and any rank finds its
samples without communication. `shuffle=False` keeps the file order.
"""

import numpy as np

from neocpu.core.types import Ints
from neocpu.ingest.dataset_layout import BLOCK
from neocpu.ingest.settings import WINDOW
from neocpu.kernels.numbers.philox import random_words
from neocpu.kernels.twins.numbers.philox import BLOCK_PERMUTATION, WINDOW_PERMUTATION, tensor_key


class EpochOrder:
    """The order of the samples of a dataset in one epoch; run : neighbours that stay together."""

    def __init__(
        self, samples: int, seed: int, epoch: int, shuffle: bool = True, run: int = 1
    ) -> None:
        self._samples = samples
        self._run = run
        self._epoch = epoch
        self._shuffle = shuffle
        self._key = tensor_key(seed, WINDOW_PERMUTATION, "samples")
        self._kept: dict[int, Ints] = {}
        if shuffle:
            count = -(-samples // BLOCK)
            self._blocks = sorted_by_words(
                tensor_key(seed, BLOCK_PERMUTATION, "samples"), 0, count, epoch
            )
            sizes = np.minimum(samples - self._blocks * BLOCK, BLOCK)
            self._starts = np.cumsum(np.concatenate([np.zeros(1, np.int64), sizes]))[::WINDOW]
            # The last window may be of fewer blocks; its end is that of the samples.
            if count % WINDOW or not count:
                self._starts = np.append(self._starts, samples)

    def samples(self, first: int, last: int) -> Ints:
        """Sample numbers at positions [first, last): int64[last - first]."""
        if not self._shuffle:
            return np.arange(first, last, dtype=np.int64)
        parts = [np.empty(0, np.int64)]
        # Windows differ in size where they hold the last block, so their starts are looked up.
        window = int(np.searchsorted(self._starts, first, side="right")) - 1
        while first < last:
            begin = int(self._starts[window])
            end = int(self._starts[window + 1])
            parts.append(self._window(window)[first - begin : min(last, end) - begin])
            first = min(last, end)
            window += 1
        return np.concatenate(parts)

    def bounds(self, blocks: int) -> Ints:
        """Positions that cut the epoch into runs of so many blocks, which share no block.

        Where samples are shuffled, of whole windows, one at least: i64[runs + 1], from 0 to the
        number of samples.
        """
        if not self._shuffle:
            return np.append(np.arange(0, self._samples, blocks * BLOCK), self._samples)
        starts = self._starts[:-1][:: max(blocks // WINDOW, 1)]
        return np.append(starts, self._samples)

    def _window(self, window: int) -> Ints:
        if window not in self._kept:
            blocks = self._blocks[window * WINDOW : (window + 1) * WINDOW]
            samples = (blocks[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)
            samples = samples[samples < self._samples]
            start = int(self._starts[window])
            order = self._runs(samples, start)
            # Steps go through the windows in order: two cover a step that crosses their border.
            while len(self._kept) > 1:
                del self._kept[min(self._kept)]
            self._kept[window] = samples[order]
        return self._kept[window]

    def _runs(self, samples: Ints, start: int) -> Ints:
        """Order of the samples of a window that begins at position `start`, run by run."""
        if self._run == 1:
            return sorted_by_words(self._key, start, samples.size, self._epoch)
        # Runs are counted from the first sample of a block, so that none crosses blocks.
        first = np.flatnonzero(samples % BLOCK % self._run == 0)
        words = np.empty((samples.size, 1), np.uint32)
        # Words of all positions, of which only those of first samples count: one call, no loop.
        random_words(self._key, start, 0, self._epoch, words)
        order = np.argsort(words[first, 0], kind="stable")
        lengths = np.diff(first, append=samples.size)[order]
        within = np.arange(samples.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.repeat(first[order], lengths) + within


def sorted_by_words(key: np.uint64, first: int, count: int, epoch: int) -> Ints:
    """Stable order of the Philox words of counter rows first .. first + count - 1."""
    words = np.empty((count, 1), np.uint32)
    random_words(key, first, 0, epoch, words)
    return np.argsort(words[:, 0], kind="stable")
