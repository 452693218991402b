"""Which items of a catalogue are best for each user? All pairs are scored, the best are kept.

A pair has the columns of the user's row and those of the item's row; a column of both is the
item's. Each side is parsed once, and a batch gathers the codes of its pairs, so memory holds both
sides, a batch, and one user's scores, however many pairs there are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from neocpu.core.errors import DataError, listed
from neocpu.core.types import Ints
from neocpu.ingest.dataset.file import Samples
from neocpu.ingest.dataset_layout import BagColumn
from neocpu.ingest.formats.frames import write_frame
from neocpu.ingest.formats.schema import CategoryField, DenseField, Schema
from neocpu.serve.scoring.frames import parsed
from neocpu.serve.scoring.samples import ParsedDataset

F32 = NDArray[np.float32]
OWN = ("rank", "prediction")  # columns of the result beside the keys
SHOWN = 10  # columns in a message


@dataclass(frozen=True)
class Pairs:
    """Users and items with their keys, and the pairs that are left out.

    users, items : a row for each, with `user` and `item`, the columns of their keys. left_out :
    pairs of keys, with these two columns, or None.
    """

    users: pl.DataFrame
    items: pl.DataFrame
    user: str
    item: str
    left_out: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        if self.user == self.item:
            raise DataError(f"users and items are both named by {self.user!r}; name two columns")
        lacking = {self.user, self.item} - set(self._known())
        if lacking:
            raise DataError(
                f"the pairs to leave out have no column {min(lacking)!r}; they have "
                f"{listed(self._known(), SHOWN)}"
            )

    def _known(self) -> list[str]:
        """Columns of the pairs to leave out."""
        return [self.user, self.item] if self.left_out is None else self.left_out.columns


class PairDataset(ParsedDataset):
    """All pairs as samples without labels: the first user with each item, the second, and so on.

    Raises DataError where a column of the model is on neither side, or the user's key is among the
    items' columns, which are those that count.
    """

    def __init__(self, schema: Schema, pairs: Pairs) -> None:
        schema = schema.without_labels()
        known = {*pairs.users.columns, *pairs.items.columns}
        lacking = [name for name in schema.used if name not in known]
        if lacking:
            raise DataError(
                f"neither users nor items have {listed(lacking, SHOWN)}, which the model reads; "
                f"users have {listed(pairs.users.columns, SHOWN)}; items have "
                f"{listed(pairs.items.columns, SHOWN)}"
            )
        if pairs.user in schema.used and pairs.user in pairs.items.columns:
            raise DataError(
                f"the items have the column {pairs.user!r}, which names users: a pair would have "
                "the item's; give a catalogue with columns of items only"
            )
        self._sides = [
            _side(pairs.users, schema, lambda column: column not in pairs.items.columns),
            _side(pairs.items, schema, lambda column: column in pairs.items.columns),
        ]
        # no super().__init__(), which takes the samples of one table
        self.paths = [Path("the pairs")]
        self.items = pairs.items.height
        self.rows = pairs.users.height * self.items
        self.dense_columns = tuple(field.name for field in schema.dense)
        self.attributes = {}
        self.labelled = False
        self.label_names = []
        self.more_labels = []
        self.vocabularies = {}
        self.features = {name: each for side in self._sides for name, each in side.features.items()}

    def take(self, samples: Ints, features: Iterable[str] | None = None) -> Samples:
        """Gather pairs int64[n], in any order, with the bags of `features` (default: all)."""
        names = list(self.features) if features is None else list(features)
        rows = (samples // self.items, samples % self.items)
        dense = np.zeros((samples.size, len(self.dense_columns)), np.float32)
        bags: dict[str, BagColumn] = {}
        for side, chosen in zip(self._sides, rows):
            if not (side.features or side.dense_columns):
                continue  # a table without fields has no rows
            taken = side.take(chosen, [name for name in names if name in side.features])
            bags |= taken.features
            for column, name in zip(taken.dense.T, side.dense_columns):
                dense[:, self.dense_columns.index(name)] = column
        ordered = {name: bags[name] for name in names}
        return Samples(np.zeros(samples.size, np.float32), dense, ordered)


def _side(frame: pl.DataFrame, schema: Schema, takes: Callable[[str], bool]) -> ParsedDataset:
    """The samples of one side: the fields whose columns it takes."""

    def ours(field: DenseField | CategoryField) -> bool:
        return takes(field.column)

    schema = replace(
        schema,
        dense=tuple(filter(ours, schema.dense)),
        categories=tuple(filter(ours, schema.categories)),
        columns=(),
    )
    return ParsedDataset(parsed(frame, schema), schema)


class ReadSide(Protocol):
    """Reads a table in memory or files (`GivenLogs.frame`)."""

    def __call__(
        self, data: object, keys: Sequence[str] = (), header: bool = False
    ) -> pl.DataFrame: ...


def pairs_of(
    read: ReadSide, users: object, items: object, exclude: object, keys: tuple[str, str]
) -> Pairs:
    """The pairs of users and items, as `Model.recommend` describes them.

    keys : columns of the user's and the item's key.
    """
    users_frame, user = side_keys(read(users, keys[:1]), keys[0], "users")
    items_frame, item = side_keys(read(items, keys[1:], True), keys[1], "items")
    left_out = None if exclude is None else read(exclude, (user, item))
    return Pairs(users_frame, items_frame, user, item, left_out)


def side_keys(frame: pl.DataFrame, key: str, what: str) -> tuple[pl.DataFrame, str]:
    """One row for each key, in the order of the rows that count, and the column of the key.

    key : "" means the first column. Of several rows of a key the last counts, as the newest. Raises
    DataError where there is no such column, or it has the name of one of the result's own.
    """
    key = key or next(iter(frame.columns), "")
    if key not in frame.columns:
        known = listed(frame.columns, SHOWN)
        raise DataError(f"the {what} have no column {key!r} to name them by; they have {known}")
    if key in OWN:
        raise DataError(f"the {what} are named by {key!r}, which is a column of the result")
    return frame.unique(subset=key, keep="last", maintain_order=True), key


class BestItems:
    """The k best items of each user, in the making: `take` all predictions, then `frame`.

    Items of equal prediction are in the order of the catalogue.
    """

    def __init__(self, pairs: Pairs, k: int) -> None:
        self._pairs = pairs
        self._k = k
        self._seen = _seen(pairs)
        self._scores = np.empty(pairs.items.height, np.float32)  # of the user whose turn it is
        self._filled = 0
        self._items: list[Ints] = []
        self._kept = [np.empty(0, np.float32)]

    def take(self, predictions: F32) -> None:
        """The next predictions f32[n], in the order of the pairs."""
        while predictions.size:
            size = min(predictions.size, self._scores.size - self._filled)
            self._scores[self._filled : self._filled + size] = predictions[:size]
            self._filled += size
            predictions = predictions[size:]
            if self._filled == self._scores.size:
                self._finish_user()

    def _finish_user(self) -> None:
        seen = self._seen.get(len(self._items), np.empty(0, np.int64))
        chosen = top(self._scores, self._k, seen)
        self._items.append(chosen)
        self._kept.append(self._scores[chosen])
        self._filled = 0

    def frame(self) -> pl.DataFrame:
        """The columns user, rank (from 1), item, prediction (float32), by their keys' names.

        A user with fewer items left has fewer rows.
        """
        pairs = self._pairs
        sizes = [each.size for each in self._items]
        none = np.empty(0, np.int64)
        ranks = np.concatenate([none, *(np.arange(1, size + 1) for size in sizes)])
        users = np.repeat(np.arange(len(sizes)), sizes)
        return pl.DataFrame(
            [
                pairs.users[pairs.user].gather(users),
                pl.Series("rank", ranks, pl.Int64),
                pairs.items[pairs.item].gather(np.concatenate([none, *self._items])),
                pl.Series("prediction", np.concatenate(self._kept)),
            ]
        )


def top(scores: F32, k: int, left_out: Ints) -> Ints:
    """The places of the k highest scores f32[n], highest first; equal ones in their order."""
    allowed = np.ones(scores.size, bool)
    allowed[left_out] = False
    places = np.flatnonzero(allowed)
    keys = -scores[places]
    if k < places.size:
        # those above the k-th and all of its equals, so that their order decides
        limit = np.partition(keys, k - 1)[k - 1]
        near = ~(keys > limit)
        places, keys = places[near], keys[near]
    return places[np.argsort(keys, kind="stable")][:k]


def _seen(pairs: Pairs) -> dict[int, Ints]:
    """Places of the items that are left out for a user, by the place of the user."""
    if pairs.left_out is None:
        return {}
    # as texts: a file of text has no types, and a frame may have others
    places = [
        pl.DataFrame({name: frame[name].cast(pl.String), f"{name}.place": range(frame.height)})
        for frame, name in ((pairs.users, pairs.user), (pairs.items, pairs.item))
    ]
    seen = pairs.left_out.select(pl.col(pairs.user, pairs.item).cast(pl.String)).unique()
    for each in places:
        seen = seen.join(each, on=each.columns[0])
    seen = seen.sort(f"{pairs.user}.place")
    user, first = np.unique(seen[f"{pairs.user}.place"].to_numpy(), return_index=True)
    item = seen[f"{pairs.item}.place"].to_numpy()
    return dict(zip(user.tolist(), np.split(item, first[1:])))


def write_best(frame: pl.DataFrame, path: Path) -> None:
    """Write the result by `write_frame`. Raises DataError for a .npy, which has no keys."""
    if path.suffix == ".npy":
        raise DataError(f"{path}: the best items have keys, which a .npy has not; use .parquet")
    if path.suffix != ".parquet":
        # as NumPy prints fp32: the shortest text that reads back as the same bits
        texts = [str(value) for value in frame["prediction"].to_numpy()]
        frame = frame.with_columns(pl.Series("prediction", texts, pl.String))
    write_frame(frame, path)
