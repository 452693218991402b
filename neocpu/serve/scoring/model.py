"""What is a trained model good for in Python? Predictions, metrics, and a look at its rows.

model = neocpu.load("runs/a")                # a run's folder, or a checkpoint file
model.predict(frame)                         # float32[n], of a table in memory or of files
model.evaluate("test.tsv")                   # {"logloss": ..., "auc": ..., ...}
model.tables["C1"].neighbours("68fd1e64")    # rows with similar vectors

Loading needs neither Numba nor MPI, but that of a fit; the first prediction builds the model and
compiles what it needs, and the next ones are fast.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neocpu.serve.scoring.inspect import TrainedModel
from neocpu.serve.scoring.tables import ComposedValueTable, ValueRows, ValueTable
from neocpu.serve.scoring.values import open_values
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.checkpoint.folder import checkpoint_of
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.model.composition_layout import CompositionLayout
from neocpu.train.run.folder import fit_file

if TYPE_CHECKING:
    import polars as pl

    from neocpu.serve.scoring.fits import FitScorer
    from neocpu.serve.scoring.importance import Importance
    from neocpu.serve.scoring.scorer import LocalScorer


class Model(TrainedModel):
    """A trained model: that of a checkpoint, read-only.

    path : a checkpoint, or a run's folder.
    overrides : of keys of its config, `key=value` texts.

    Attributes: path, step, digest, config; tables, `ValueTable` by name; physical_tables, those in
    which the rows of tables of kinds are kept; dense, f32 array by parameter; values, how raw
    values become rows.
    """

    tables: Mapping[str, ValueRows]

    def __init__(self, path: str | Path, overrides: Sequence[str] = ()) -> None:
        path = checkpoint_of(path)
        # first: the tables that super() makes need it
        self.values = open_values(path, overrides)
        self._scorer: LocalScorer | None = None
        super().__init__(path, overrides)

    def _table(self, file: CheckpointFile, spec: TableSpec) -> ValueTable:
        return ValueTable(file, spec, self.config, self.values)

    def _composed(self, spec: TableSpec, layout: CompositionLayout) -> ValueRows:
        return ComposedValueTable(spec, self, layout, self.values)

    def predict(self, data: object) -> NDArray[np.float32]:
        """Predictions f32[n] in the order of the rows: click probabilities (mse: the numbers).

        data : a table in memory with the columns of the log, a polars or pandas frame, an Arrow
        table, or a mapping of names to arrays; or files, a path or a list of paths of raw logs or
        converted .h5 ones. It needs no label column. The bits are those of `neocpu predict`.

        Raises DataError where columns are missing or values cannot be used, naming all of them;
        CheckpointError for a damaged file. With `data.on_error = "skip"` a row that cannot be read
        is NaN, and a warning says why.
        """
        return self._loaded.predict(data)

    def evaluate(self, data: object, group: str = "", at: Sequence[int] = ()) -> dict[str, Any]:
        """Metrics on labelled data, by name, among them `samples`; `data` as for `predict`.

        group : column whose rows of one value are ranked among one another, as those of a user:
        ndcg@k, recall@k, hit@k for each k of `at`, mrr and gauc ("", (): `eval.group` and `eval.at`
        of the config).
        """
        return self._loaded.evaluate(data, group, at)

    def importances(
        self, data: object, repeats: int = 3, seed: int = 1, rows: int = 20_000
    ) -> "list[Importance]":
        """How much worse the model gets without each column, the most important first.

        The values of a column are dealt out anew among the samples, `repeats` times: each
        importance has `column`, the increase of the logloss (mse) `loss`, the drop of the AUC
        `auc`, and half the distance of the extremes of both, `loss_spread` and `auc_spread`.

        data : labelled, as for `predict`. rows : that are measured, at most.
        """
        return self._loaded.importances(data, repeats, seed, rows)

    def recommend(
        self,
        users: object,
        items: object,
        k: int = 10,
        exclude: object = None,
        *,
        user: str = "",
        item: str = "",
    ) -> "pl.DataFrame":
        """The k best items for each user, a polars frame: its columns are the user's key, `rank`
        from 1, the item's key, and `prediction` (float32).

        users, items : data as for `predict`, whose columns together are those that the model reads;
        a column of both is the item's. Text files of items begin with a header. A user with several
        rows has the last one. user, item : columns of the keys ("": the first of each). exclude :
        data with both keys, as a log: these pairs are left out.

        Items of equal prediction are in their order. Memory holds both sides and a batch. Raises
        DataError as `predict`, and where a key column is missing.
        """
        from neocpu.serve.scoring.recommend import pairs_of

        scorer = self._loaded
        pairs = pairs_of(scorer.logs.frame, users, items, exclude, (user, item))
        return scorer.best_items(pairs, k)

    def close(self) -> None:
        """Free what predictions need; the next one builds it again."""
        if self._scorer is not None:
            self._scorer.close()
            self._scorer = None

    @property
    def _loaded(self) -> "LocalScorer":
        if self._scorer is None:
            # imports Numba and MPI, which looking at rows does without
            from neocpu.serve.scoring.scorer import LocalScorer

            self._scorer = LocalScorer(self.path, self.config, self.values)
        return self._scorer


def load(path: str | Path, overrides: Sequence[str] = ()) -> "Model | FitScorer":
    """Open a trained model: that of a checkpoint, of a run's folder, or of a fit's (or its fit.h5).

    overrides : of keys of its config, `key=value` texts.

    Raises CheckpointError if it is missing or broken. Values are mapped from the file and not
    verified; predictions verify them, as does `neocpu checkpoint digest`.
    """
    file = fit_file(path)
    if file is None:
        return Model(path, overrides)
    # imports Numba and MPI
    from neocpu.serve.scoring.fits import FitScorer

    return FitScorer(file, overrides)
