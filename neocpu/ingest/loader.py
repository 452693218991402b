"""Which samples come next, and how does a category become a row of a table?

The samples of all files are numbered through and cut into blocks of 4,096. The order of an epoch
is a function of (seed, epoch) alone:

    blocks     stable sort of one Philox word per block
               (purpose 3; counter row = block, step = epoch)
    windows    16 consecutive blocks of that order, e.g.  | 7 2 9 … | 4 0 … |
    runs       inside a window: of `run` neighbours of a block (the last may be shorter), one by
               default; stable sort of one Philox word per run
               (purpose 4; counter row = position in the epoch of its first sample, before the sort)

(key name "samples", word of column 0), so a position is (epoch, step) and any rank finds its
samples without communication. `shuffle=False` keeps the file order. Step s holds positions [s*B,
(s+1)*B), the last step perhaps fewer; a rank reads the samples of its leaves
(`neocpu.core.trees.rank_samples`). Codes become rows by hash or by vocabulary (docs/arithmetic.md
§10).
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError
from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.trees import rank_samples
from neocpu.ingest.dataset.dataset import BagColumn, Dataset
from neocpu.ingest.dataset.vocabulary import Codes, Vocabulary
from neocpu.ingest.dataset_layout import BLOCK
from neocpu.ingest.read_ahead import read_ahead
from neocpu.ingest.settings import ROWS_BY
from neocpu.kernels.logs.hashing import hash_rows
from neocpu.kernels.numbers.philox import random_words
from neocpu.kernels.twins.logs.hashing import feature_key
from neocpu.kernels.twins.numbers.philox import BLOCK_PERMUTATION, WINDOW_PERMUTATION, tensor_key
from neocpu.tables.embedding.distinct_bags import deduplicate
from neocpu.tables.embedding.mapped_rows import physical_rows, sign
from neocpu.tables.specs.feature_groups import Groups
from neocpu.tables.specs.row_maps import RowMap
from neocpu.tables.specs.specs import BatchKey, TableSpec, bags

WINDOW = 16  # blocks


@dataclass(frozen=True)
class Batch:
    """One rank's share of a global batch.

    dense float32[b, Nd]; sparse: KJT of b samples, keys of `embedding.specs.bags(tables)`, or its
    inverse KJT, where repeated bags of groups of keys stand once; labels float32[b] (zeros in a log
    without labels); samples: B of the whole batch; epoch, step: its position; first: this rank's
    first sample in the epoch. weights float32[b]: of the samples in the loss, or None: all 1.
    head_labels float32[heads, b]: labels of further heads.
    """

    dense: NDArray[np.float32]
    sparse: KJT | InverseKJT
    labels: NDArray[np.float32]
    samples: int
    epoch: int
    step: int
    first: int
    weights: NDArray[np.float32] | None = None
    head_labels: NDArray[np.float32] | None = None


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
        self._kept: dict[int, NDArray[np.int64]] = {}
        if shuffle:
            count = -(-samples // BLOCK)
            self._blocks = _sorted_by_words(
                tensor_key(seed, BLOCK_PERMUTATION, "samples"), 0, count, epoch
            )
            sizes = np.minimum(samples - self._blocks * BLOCK, BLOCK)
            self._starts = np.cumsum(np.concatenate([np.zeros(1, np.int64), sizes]))[::WINDOW]
            if count % WINDOW or not count:
                self._starts = np.append(self._starts, samples)

    def samples(self, first: int, last: int) -> NDArray[np.int64]:
        """Sample numbers at positions [first, last): int64[last - first]."""
        if not self._shuffle:
            return np.arange(first, last, dtype=np.int64)
        parts = [np.empty(0, np.int64)]
        window = int(np.searchsorted(self._starts, first, side="right")) - 1
        while first < last:
            begin = int(self._starts[window])
            end = int(self._starts[window + 1])
            parts.append(self._window(window)[first - begin : min(last, end) - begin])
            first = min(last, end)
            window += 1
        return np.concatenate(parts)

    def _window(self, window: int) -> NDArray[np.int64]:
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

    def _runs(self, samples: NDArray[np.int64], start: int) -> NDArray[np.int64]:
        """Order of the samples of a window that begins at position `start`, run by run."""
        if self._run == 1:
            return _sorted_by_words(self._key, start, samples.size, self._epoch)
        first = np.flatnonzero(samples % BLOCK % self._run == 0)
        words = np.empty((samples.size, 1), np.uint32)
        random_words(self._key, start, 0, self._epoch, words)
        order = np.argsort(words[first, 0], kind="stable")
        lengths = np.diff(first, append=samples.size)[order]
        within = np.arange(samples.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        runs: NDArray[np.int64] = np.repeat(first[order], lengths) + within
        return runs


def _sorted_by_words(key: np.uint64, first: int, count: int, epoch: int) -> NDArray[np.int64]:
    """Stable order of the Philox words of counter rows first .. first + count - 1."""
    words = np.empty((count, 1), np.uint32)
    random_words(key, first, 0, epoch, words)
    return np.argsort(words[:, 0], kind="stable")


class Loader:
    """Batches of a dataset for one rank.

    dataset: `Dataset`, or paths. tables: whose bags the batch holds. batch_size: B of all ranks
    together. leaves, rank, ranks: they decide which samples of a batch this rank reads. seed: of
    the row hash and the order. rows_by: "hash", or "vocabulary" (`vocabularies`, default those of
    the dataset). dense: number of dense columns the model expects (None: any). labelled: False if
    labels are not needed. depth: batches read ahead on a thread (0: none). groups: keys whose
    repeated bags stand once (`embedding.feature_groups.key_groups`). shuffle_run: neighbours that
    stay together when shuffled. heads: labels of further heads.

    Raises DataError where the data lack a feature, weights, labels or a vocabulary, or a table is
    smaller than its vocabulary.
    """

    def __init__(
        self,
        dataset: Dataset | str | Path | Sequence[str | Path],
        tables: Sequence[TableSpec],
        *,
        batch_size: int,
        leaves: int = 16,
        rank: int = 0,
        ranks: int = 1,
        seed: int = 0,
        shuffle: bool = False,
        rows_by: str = "hash",
        vocabularies: Mapping[str, Codes] | None = None,
        dense: int | None = None,
        labelled: bool = True,
        depth: int = 2,
        groups: Groups = (),
        shuffle_run: int = 1,
        heads: Sequence[str] = (),
    ) -> None:
        self.weight = ""
        self.heads = tuple(heads)
        self.dataset = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        self.tables = tuple(tables)
        self.bags = bags(tables)
        self.batch_size = batch_size
        self.leaves = leaves
        self.rank = rank
        self.ranks = ranks
        self.seed = seed
        self.shuffle = shuffle
        self.depth = depth
        self.groups = groups
        self.shuffle_run = shuffle_run
        self._features = list(dict.fromkeys(bag.feature for bag in self.bags))
        self._weighted = any(table.weighted for table in self.tables)
        self._check(dense, labelled)
        self._by_code = rows_by == "code"
        self._maps: dict[str, Vocabulary] = {}
        self._keys = {bag.codes: feature_key(seed, bag.codes) for bag in self.bags}
        if rows_by == "vocabulary":
            self._use_vocabularies(
                self.dataset.vocabularies if vocabularies is None else vocabularies
            )
        elif rows_by not in ROWS_BY:
            raise DataError(f"rows by {rows_by!r}; choose one of {', '.join(ROWS_BY)}")

    def _check_more(self, key: str, names: Sequence[str]) -> None:
        """Raise DataError where the data lack one of these labels, which `key` asks for."""
        data = self.dataset
        lacking = [name for name in names if name not in data.more_labels]
        if lacking:
            where = ", ".join(str(path) for path in data.paths)
            known = ", ".join(data.label_names) or "one, without a name"
            raise DataError(f"{where}: no label {lacking[0]!r} ({key}); its labels are {known}")

    def weigh(self, name: str) -> None:
        """Weigh samples by the label of this name ("": by none). Raises DataError if there is
        none.
        """
        self._check_more("data.sample_weight", [name] if name else [])
        self.weight = name

    def over(self, dataset: Dataset, dense: int | None = None, labelled: bool = True) -> "Loader":
        """The same loader over other data, which are checked as those of a new one."""
        loader = copy.copy(self)
        loader.dataset = dataset
        loader._check(dense, labelled)
        return loader

    def _check(self, dense: int | None, labelled: bool) -> None:
        data = self.dataset
        where = ", ".join(str(path) for path in data.paths)
        has = ", ".join(data.features) or "none"
        for bag in self.bags:
            table = self.tables[bag.table]
            if bag.feature not in data.features:
                near = get_close_matches(bag.feature, data.features, 1)
                hint = f"did you mean {near[0]!r}? Its" if near else "its"
                raise DataError(
                    f"{where}: no feature {bag.feature!r} (table {table.name}); {hint} features "
                    f"are {has}"
                )
            kinds = {data.features[name].kind for name in (bag.feature, bag.codes)}
            if len(kinds) > 1:
                raise DataError(
                    f"{where}: {bag.feature} and {bag.codes} have codes of the kinds "
                    f"{', '.join(sorted(kinds))}, but table {table.name} has same_codes"
                )
            if self._takes_weights(bag) and not data.features[bag.feature].weighted:
                raise DataError(
                    f"{where}: feature {bag.feature} has no weights, but table {table.name} is "
                    "weighted"
                )
        if dense is not None and dense != len(data.dense_columns):
            names = ", ".join(data.dense_columns) or "none"
            raise DataError(
                f"{where}: {len(data.dense_columns)} dense columns ({names}), but the model takes "
                f"{dense}"
            )
        if labelled and not data.labelled:
            raise DataError(
                f"{where}: has no labels; it can be scored with `neocpu predict`, not trained or "
                "evaluated on"
            )
        if labelled:
            self._check_more("a label of model.heads", self.heads)
        if not data.rows:
            raise DataError(f"{where}: has no rows")

    def _use_vocabularies(self, vocabularies: Mapping[str, Codes]) -> None:
        where = self.dataset.paths[0]
        for bag in self.bags:
            rows = self.logical_rows(bag)
            if bag.codes not in vocabularies:
                raise DataError(
                    f"{where}: no vocabulary of feature {bag.codes}; convert the train file "
                    "with --min-count N (and others with --vocabulary TRAIN.h5), or let the hash "
                    "choose rows"
                )
            codes = vocabularies[bag.codes]
            if rows < codes.size + 1:
                name = self.tables[bag.table].name
                raise DataError(
                    f"table {name} has {rows} rows, but the vocabulary of feature "
                    f"{bag.codes} needs {codes.size + 1} ({codes.size} codes and row 0 for the "
                    f"unknown); set its rows to {codes.size + 1}"
                )
            if bag.codes not in self._maps:
                self._maps[bag.codes] = Vocabulary(codes)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one pass over all samples, the last partial one included."""
        return -(-self.dataset.rows // self.batch_size)

    def batches(self, epoch: int = 0, first_step: int = 0) -> Iterator[Batch]:
        """The epoch's batches from `first_step` on.

        Close the iterator (or exhaust it) to end its thread.
        """
        return read_ahead(self._batches(epoch, first_step), self.depth)

    def _batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        order = EpochOrder(self.dataset.rows, self.seed, epoch, self.shuffle, self.shuffle_run)
        for step in range(first_step, self.steps_per_epoch):
            start = step * self.batch_size
            samples = min(self.batch_size, self.dataset.rows - start)
            low, high = rank_samples(self.rank, self.ranks, samples, self.leaves)
            gathered = self.dataset.take(order.samples(start + low, start + high), self._features)
            kjt = self._sparse(gathered.features, high - low)
            sparse = deduplicate(kjt, self.groups) if self.groups else kjt
            more = gathered.more
            known = [more[name] for name in self.heads if name in more]
            yield Batch(
                dense=gathered.dense,
                sparse=sparse,
                labels=gathered.labels,
                samples=samples,
                epoch=epoch,
                step=step,
                first=start + low,
                weights=more.get(self.weight),
                head_labels=np.stack(known) if len(known) == len(self.heads) > 0 else None,
            )

    def _sparse(self, features: dict[str, BagColumn], samples: int) -> KJT:
        """The KJT of these bags, every code mapped to a row of its table."""
        lengths = np.empty((len(self.bags), samples), np.int32)
        sizes = [features[bag.feature].codes.size for bag in self.bags]
        values = np.empty(sum(sizes), np.int64)
        weights = np.ones(values.size, np.float32) if self._weighted else None
        first = 0
        logical: dict[tuple[str, str, int], NDArray[np.int64]] = {}
        for key, (bag, size) in enumerate(zip(self.bags, sizes)):
            column = features[bag.feature]
            lengths[key] = size // max(samples, 1) if column.lengths is None else column.lengths
            lookups = slice(first, first + size)
            first += size
            if weights is not None and column.weights is not None and self._takes_weights(bag):
                weights[lookups] = column.weights
            if bag.row_map is None:
                self._logical_rows(bag, column.codes, values[lookups])
                continue
            # parts of one table share its rows, which are looked up once
            shared = bag.feature, bag.codes, bag.row_map.rows
            if shared not in logical:
                logical[shared] = np.empty(size, np.int64)
                self._logical_rows(bag, column.codes, logical[shared])
            if weights is not None:
                sign(bag.row_map, logical[shared], weights[lookups])
            physical_rows(bag.row_map, logical[shared], values[lookups])
        return KJT(tuple(bag.key for bag in self.bags), lengths, values, weights)

    def rows_of(self, bag: BatchKey, codes: Codes) -> NDArray[np.int64]:
        """The row of a bag's table that each code is looked up in."""
        out = np.empty(codes.size, np.int64)
        self._logical_rows(bag, codes, out)
        if bag.row_map is not None:
            physical_rows(bag.row_map, out, out)
        return out

    def _takes_weights(self, bag: BatchKey) -> bool:
        """Do the weights of the log count for a bag's lookups?"""
        by_map = bag.row_map is None or bag.row_map.log_weights
        return self.tables[bag.table].weighted and by_map

    def logical_rows(self, bag: BatchKey) -> int:
        """Rows of the table that a bag looks up, or of the logical one that it is a part of."""
        return self.tables[bag.table].rows if bag.row_map is None else bag.row_map.rows

    def _logical_rows(self, bag: BatchKey, codes: Codes, out: NDArray[np.int64]) -> None:
        rows = self.logical_rows(bag)
        if bag.codes in self._maps:
            self._maps[bag.codes].rows(codes, out)
        elif self._by_code:
            out[:] = np.remainder(codes, np.uint64(rows))
        else:
            hash_rows(codes, self._keys[bag.codes], rows, out)


def warm_up_reading() -> None:
    """Compile (or load) the kernels that reading a dataset needs."""
    _sorted_by_words(np.uint64(1), 0, 4, 0)
    vocabulary = Vocabulary(np.arange(3, dtype=np.uint64))
    out = np.empty(3, np.int64)
    for codes in (np.arange(3, dtype=np.uint32), np.arange(3, dtype=np.uint64)):
        hash_rows(codes, np.uint64(1), 3, out)
        vocabulary.rows(codes, out)
    row_map = RowMap("digit", out.size, signed=True)
    physical_rows(row_map, out, out)
    sign(row_map, out, np.ones(out.size, np.float32))
