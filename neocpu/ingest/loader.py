"""Which samples come next, as a batch of this rank?

Step s of an epoch holds positions [s*B, (s+1)*B) of its order (`neocpu.ingest.epoch_order`), the
last step perhaps fewer; a rank reads the samples of its leaves (`neocpu.core.trees.rank_samples`).
Codes become rows in `neocpu.ingest.code_map`.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neocpu.core.errors import DataError
from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.trees import rank_samples
from neocpu.core.types import Floats, Ints
from neocpu.ingest.code_map import CodeMap, takes_weights, warm_up_rows
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.file import Samples
from neocpu.ingest.epoch_order import EpochOrder, sorted_by_words
from neocpu.ingest.read_ahead import read_ahead
from neocpu.tables.specs.feature_groups import Groups
from neocpu.tables.specs.specs import BatchKey, TableSpecs, bags

if TYPE_CHECKING:
    from neocpu.ingest.dataset.vocabulary import Codes


@dataclass(frozen=True)
class Batch:
    """One rank's share of a global batch.

    dense float32[b, Nd]; sparse : KJT of b samples, keys of `tables.specs.specs.bags`, or its
    inverse KJT, where repeated bags of groups of keys stand once; labels float32[b] (zeros in a log
    without labels); samples : B of the whole batch; epoch, step : its position; first : this rank's
    first sample in the epoch. weights float32[b]: of the samples in the loss, or None: all 1.
    head_labels float32[heads, b]: labels of further heads.
    """

    dense: Floats
    sparse: KJT | InverseKJT
    labels: Floats
    samples: int
    epoch: int
    step: int
    first: int
    weights: Floats | None = None
    head_labels: Floats | None = None


class BatchPlace(NamedTuple):
    """Where samples stand: epoch, step, samples and first of their `Batch`."""

    epoch: int
    step: int
    samples: int
    first: int


@dataclass(frozen=True)
class BatchShare:
    """Which samples of every batch does a rank read?

    batch_size : B of all ranks together. leaves : of the trees that sums follow. rank, ranks : this
    one, and how many.
    """

    batch_size: int
    leaves: int = 16
    rank: int = 0
    ranks: int = 1


@dataclass(frozen=True)
class Reading:
    """How do samples become batches?

    seed : of the order and of the row hash.
    shuffle : in another order each epoch, or in the file's.
    shuffle_run : neighbours that stay together when shuffled.
    rows_by : "hash", "vocabulary" or "code".
    vocabularies : by feature, for "vocabulary"; None: those of the dataset.
    groups : keys whose repeated bags stand once (`feature_groups.key_groups`).
    depth : batches read ahead on a thread; 0: none.
    """

    seed: int = 0
    shuffle: bool = False
    shuffle_run: int = 1
    rows_by: str = "hash"
    vocabularies: Mapping[str, "Codes"] | None = None
    groups: Groups = ()
    depth: int = 2


@dataclass(frozen=True)
class Needs:
    """What must the data have?

    dense : number of dense columns; None: any. labelled : whether labels are read. heads : names of
    the labels of further heads.
    """

    dense: int | None = None
    labelled: bool = True
    heads: tuple[str, ...] = ()


class Loader:
    """Batches of a dataset for one rank.

    dataset : `Dataset`, or paths.
    tables : whose bags the batch holds.

    Raises DataError where the data lack a feature, weights, labels or a vocabulary, or a table is
    smaller than its vocabulary.
    """

    def __init__(
        self,
        dataset: Dataset | str | Path | Sequence[str | Path],
        tables: TableSpecs,
        share: BatchShare,
        reading: Reading | None = None,
        needs: Needs | None = None,
    ) -> None:
        self.dataset = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        self.tables = tuple(tables)
        self.share = share
        self.reading = reading or Reading()
        self.needs = needs or Needs()
        self.weight = ""
        self._check()
        vocabularies = self.reading.vocabularies
        # Only then: data without any must stay readable by hash.
        if vocabularies is None and self.reading.rows_by == "vocabulary":
            vocabularies = self.dataset.vocabularies
        self._code_map = CodeMap(
            self.tables,
            self.reading.rows_by,
            self.reading.seed,
            vocabularies,
            str(self.dataset.paths[0]),
        )
        self._features = list(dict.fromkeys(bag.feature for bag in self._code_map.bags))

    def weigh(self, name: str) -> None:
        """Weigh samples by the label of this name ("": by none). Raises DataError if there is
        none.
        """
        self.dataset.check_more("data.sample_weight", [name] if name else [])
        self.weight = name

    def over(self, dataset: Dataset, needs: Needs) -> "Loader":
        """The same loader over other data, which are checked as those of a new one."""
        # Shallow: the maps of vocabularies take time to build, and do not depend on the data.
        loader = copy.copy(self)
        loader.dataset = dataset
        loader.needs = needs
        loader._check()
        return loader

    def _check(self) -> None:
        data = self.dataset
        where = ", ".join(str(path) for path in data.paths)
        has = ", ".join(data.features) or "none"
        for bag in bags(self.tables):
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
            if takes_weights(table, bag) and not data.features[bag.feature].weighted:
                raise DataError(
                    f"{where}: feature {bag.feature} has no weights, but table {table.name} is "
                    "weighted"
                )
        dense = self.needs.dense
        if dense is not None and dense != len(data.dense_columns):
            names = ", ".join(data.dense_columns) or "none"
            raise DataError(
                f"{where}: {len(data.dense_columns)} dense columns ({names}), but the model takes "
                f"{dense}"
            )
        if self.needs.labelled and not data.labelled:
            raise DataError(
                f"{where}: has no labels; it can be scored with `neocpu predict`, not trained or "
                "evaluated on"
            )
        if self.needs.labelled:
            self.dataset.check_more("a label of model.heads", self.needs.heads)
        if not data.rows:
            raise DataError(f"{where}: has no rows")

    @property
    def batch_size(self) -> int:
        """B of all ranks together."""
        return self.share.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one pass over all samples, the last partial one included."""
        return -(-self.dataset.rows // self.batch_size)

    def batches(self, epoch: int = 0, first_step: int = 0) -> Iterator[Batch]:
        """The epoch's batches from `first_step` on.

        Close the iterator (or exhaust it) to end its thread.
        """
        return read_ahead(self._batches(epoch, first_step), self.reading.depth)

    def _batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        share = self.share
        order = self.order(epoch)
        for step in range(first_step, self.steps_per_epoch):
            start = step * share.batch_size
            samples = min(share.batch_size, self.dataset.rows - start)
            low, high = rank_samples(share.rank, share.ranks, samples, share.leaves)
            batch = self.batch_of(
                self.take(order.samples(start + low, start + high)),
                BatchPlace(epoch, step, samples, start + low),
            )
            yield distinct(batch, self.reading.groups)

    def order(self, epoch: int) -> EpochOrder:
        """The order of the samples in an epoch."""
        reading = self.reading
        return EpochOrder(
            self.dataset.rows, reading.seed, epoch, reading.shuffle, reading.shuffle_run
        )

    def take(self, samples: Ints) -> Samples:
        """Samples i64[n] of the data, with the bags that the tables need."""
        return self.dataset.take(samples, self._features)

    def batch_of(self, gathered: Samples, place: BatchPlace) -> Batch:
        """Samples at a place of an epoch as a batch, or as a piece of one; repeated bags as often
        as they are there.
        """
        heads = self.needs.heads
        more = gathered.more
        known = [more[name] for name in heads if name in more]
        return Batch(
            dense=gathered.dense,
            sparse=self._code_map.kjt(gathered.features, gathered.labels.size),
            labels=gathered.labels,
            samples=place.samples,
            epoch=place.epoch,
            step=place.step,
            first=place.first,
            weights=more.get(self.weight),
            head_labels=np.stack(known) if len(known) == len(heads) > 0 else None,
        )

    def rows_of(self, bag: BatchKey, codes: "Codes") -> Ints:
        """The row of a bag's table that each code is looked up in."""
        return self._code_map.rows_of(bag, codes)


def distinct(batch: Batch, groups: Groups) -> Batch:
    """A batch in which the repeated bags of groups of keys stand once."""
    if not groups:
        return batch
    from neocpu.tables.embedding.distinct_bags import deduplicate

    assert isinstance(batch.sparse, KJT)
    return replace(batch, sparse=deduplicate(batch.sparse, groups))


def warm_up_reading() -> None:
    """Compile (or load) the kernels that reading a dataset needs."""
    sorted_by_words(np.uint64(1), 0, 4, 0)
    warm_up_rows()
