"""Are the values to score those that training knew? A share far above what is usual is told.

A value that training never saw looks up row 0 of a vocabulary, or by hash a row that was never
updated. Some are in any new data; where most are, the column is probably written in another way
than in the train data.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import listed
from neocpu.core.types import Elements, Ints
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.loader import Loader
from neocpu.serve.scoring.values import ValueMap
from neocpu.tables.specs.specs import bags
from neocpu.train.checkpoint.reading import CheckpointFile

LOOKED_AT = 4096  # rows, of the first that are scored
LEAST = 100  # values of a feature; of fewer a large share says little
SHARE = 0.5  # of unseen values
SHOWN = 5  # features in a message


class UnseenValues:
    """Counts values of features that a model never saw, in the first rows that it scores.

    features : that are looked at. is_seen : which codes of a feature training saw, bool[n].
    """

    def __init__(self, values: ValueMap, features: Sequence[str]) -> None:
        self._values = values
        self._features = features
        self._rows = 0
        self._unseen: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()

    def add(self, dataset: Dataset, is_seen: Callable[[str, Elements], NDArray[np.bool_]]) -> None:
        """Count the values of samples."""
        rows = min(dataset.rows, LOOKED_AT - self._rows)
        if rows <= 0:
            return
        self._rows += rows
        for name in self._features:
            column = dataset.take(np.arange(rows, dtype=np.int64), [name])
            codes = column.features[name].codes.reshape(-1)
            field = self._values.field(name)
            if field is not None:
                codes = codes[codes != field.missing]
            seen = int(np.count_nonzero(is_seen(name, codes)))
            self._seen[name] += seen
            self._unseen[name] += codes.size - seen

    def message(self) -> str:
        """What is to be said of features with many unseen values, each once; "": nothing."""
        shares = {
            name: unseen / (unseen + self._seen[name])
            for name, unseen in self._unseen.items()
            if unseen + self._seen[name] >= LEAST
        }
        strange = [name for name, share in shares.items() if share > SHARE]
        if not strange:
            return ""
        # told once: what comes later is not counted any more
        self._rows = LOOKED_AT
        self._unseen.clear()
        names = listed([f"{name} ({shares[name]:.0%})" for name in strange], SHOWN)
        return (
            f"most values of {names} are unknown to the model; are they written as in its train "
            "data?"
        )


def unseen_in(
    dataset: Dataset,
    values: ValueMap,
    features: Sequence[str],
    is_seen: Callable[[str, Elements], NDArray[np.bool_]],
) -> str:
    """What is to be said of the first values of one dataset; arguments as of `UnseenValues`."""
    unseen = UnseenValues(values, features)
    unseen.add(dataset, is_seen)
    return unseen.message()


class LearntRows:
    """Which rows of a checkpoint's tables did training update?

    Attribute: features, of which each row is a value's.
    """

    def __init__(self, values: ValueMap) -> None:
        self._values = values
        # one key of each feature whose rows are those of its table
        self._bags = {bag.feature: bag for bag in bags(values.config.tables) if not bag.row_map}
        self.features = list(self._bags)

    def seen(self, loader: Loader) -> Callable[[str, Elements], NDArray[np.bool_]]:
        """Which codes of a feature stand for values that training saw; loader : of the model, its
        data do not matter.
        """
        return lambda name, codes: self._is_seen(name, loader.rows_of(self._bags[name], codes))

    def _is_seen(self, name: str, rows: Ints) -> NDArray[np.bool_]:
        if self._values.config.data.rows_by == "vocabulary":
            return rows > 0
        learnt = self._learnt[self._values.config.tables[self._bags[name].table].name]
        if not learnt.size:
            return np.zeros(rows.size, bool)
        return learnt[np.minimum(np.searchsorted(learnt, rows), learnt.size - 1)] == rows

    @cached_property
    def _learnt(self) -> dict[str, Ints]:
        """Rows of each table that training updated, ascending."""
        with CheckpointFile(self._values.path) as file:
            names = {self._values.config.tables[bag.table].name for bag in self._bags.values()}
            return {name: np.array(file.rows(file.number(f"tables/{name}"))) for name in names}
