"""Which row of a table does a raw value look up, and which rows are like it?

table = neocpu.load("runs/a").tables["C1"]
table.rows_of(["68fd1e64", "05db9164"])       # row numbers, as training maps them
table.vectors(["68fd1e64"])                   # float32[1, D]
table.neighbours("68fd1e64", k=5)             # the rows with the most similar vectors
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError
from neocpu.core.types import Ints
from neocpu.serve.scoring.inspect import F32, ComposedTable, Table, TrainedModel
from neocpu.serve.scoring.values import ValueMap
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config.config import Config
from neocpu.train.model.composition_layout import CompositionLayout

METRICS = ("cosine", "dot")
ROWS_AT_ONCE = 1 << 16


class Neighbour(NamedTuple):
    """A row that is like another one: its number, how like, and the raw value (None: unknown)."""

    row: int
    score: float
    value: object = None


class ValueRows(Table):
    """A `Table` that also knows the rows of raw values, by a `ValueMap`."""

    _values: ValueMap

    def rows_of(self, values: object, feature: str = "") -> Ints:
        """Row numbers i64[...] of raw values, in their shape, by hash or vocabulary.

        values : as they stand in the log ("68fd1e64", 17), a scalar, a list or an array.
        feature : of which they are, where the table has several.

        Raises DataError for a value that the log could not have, and for a feature that the table
        does not have or must be told.
        """
        shape = np.asarray(values).shape
        # As objects: NumPy would make numbers and texts of one list all texts.
        flat = np.asarray(values, object).reshape(-1).tolist()
        return self._values.rows(self._spec, self._feature(feature), flat).reshape(shape)

    def vectors(self, values: object, feature: str = "") -> F32:
        """Weights f32[..., D] of the rows of raw values; arguments as for `rows_of`."""
        return self[self.rows_of(values, feature)]

    def neighbours(
        self,
        value: object = None,
        k: int = 10,
        *,
        row: int | None = None,
        metric: str = "cosine",
        among: Sequence[object] | None = None,
        feature: str = "",
    ) -> list[Neighbour]:
        """The k trained rows most similar to that of a value, or to a row; most similar first.

        metric : "cosine" or "dot".
        among : raw values to choose from (None: all trained rows).

        `Neighbour.value` is the raw value where it is known: of values in `among`, and of numbers
        and hexadecimal categories that have rows by a vocabulary. A hash has no inverse.

        Raises DataError for a row that was never trained, whose vector is a random one.
        """
        if metric not in METRICS:
            raise DataError(f"metric {metric!r}; choose one of {', '.join(METRICS)}")
        if (value is None) == (row is None):
            raise DataError("neighbours of what? Give a value, or row=NUMBER")
        if row is None:
            row = int(self.rows_of(value, feature))
        # Its vector is random, so its neighbours would be chance.
        if not np.isin(row, self.learnt):
            subject = f"row {row}" if value is None else f"row {row}, that of {value!r},"
            raise DataError(f"table {self.name}: {subject} was never trained")
        names: Mapping[int, object] = {}
        candidates: Ints = self.learnt
        if among is not None:
            rows = self.rows_of(list(among), feature)
            names = dict(zip(rows.tolist(), among))
            # by a hash several values may have one row, which counts once
            candidates = np.intersect1d(rows, self.learnt)
        best = self._most_similar(self[row], candidates[candidates != row], k, metric)
        if among is None:
            names = self._values.names(self._feature(feature, guess=True), [r for r, _ in best])
        return [Neighbour(number, score, names.get(number)) for number, score in best]

    def _most_similar(
        self, query: F32, candidates: Ints, k: int, metric: str
    ) -> list[tuple[int, float]]:
        """(row, score) of the k best candidates; equal scores by row."""
        rows = np.empty(0, np.int64)
        scores = np.empty(0, np.float64)
        for block, vectors in self._parts(candidates):
            part_scores = (vectors * query.astype(np.float64)).sum(axis=1)
            if metric == "cosine":
                # The fp64 floor below keeps a vector of zeros from 0 / 0.
                lengths = np.sqrt((vectors * vectors).sum(axis=1) * float((query * query).sum()))
                part_scores /= np.maximum(lengths, np.finfo(np.float64).tiny)
            rows = np.concatenate([rows, block])
            scores = np.concatenate([scores, part_scores])
            # Cut back after each part: memory does not grow with the table.
            best = np.lexsort((rows, -scores))[:k]
            rows = rows[best]
            scores = scores[best]
        return list(zip(rows.tolist(), scores.tolist()))

    def _parts(self, rows: Ints) -> Iterator[tuple[Ints, NDArray[np.float64]]]:
        """Rows and their vectors, some at a time."""
        for start in range(0, rows.size, ROWS_AT_ONCE):
            block = rows[start : start + ROWS_AT_ONCE]
            yield block, self[block].astype(np.float64)

    def _feature(self, feature: str, guess: bool = False) -> str:
        """The feature that is meant.

        guess : the only one there is, else none ("").
        """
        features = self._spec.features
        if not feature and self._spec.same_codes:
            return features[0]
        if not feature and len(features) > 1 and not guess:
            raise DataError(
                f"table {self.name} has the features {', '.join(features)}; say which, feature=..."
            )
        if feature and feature not in features:
            raise DataError(
                f"table {self.name} has no feature {feature!r}; it has {', '.join(features)}"
            )
        return feature or (features[0] if len(features) == 1 else "")


class ValueTable(ValueRows):
    """A table that is kept as it is.

    values : how the model maps values to rows.
    """

    def __init__(
        self, file: CheckpointFile, spec: TableSpec, config: Config, values: ValueMap
    ) -> None:
        super().__init__(file, spec, config)
        self._values = values


class ComposedValueTable(ComposedTable, ValueRows):
    """A table of some kind.

    values : how the model maps values to rows.
    """

    def __init__(
        self, spec: TableSpec, model: TrainedModel, layout: CompositionLayout, values: ValueMap
    ) -> None:
        ComposedTable.__init__(self, spec, model, layout)
        self._values = values
