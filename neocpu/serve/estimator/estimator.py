"""How does one train from Python as with scikit-learn? `DLRM(...).fit(frame, y)`

It writes what `neocpu train` would read: the rows as Parquet and a config by the advice of
`neocpu init`, in a folder of results. So the same bits come of both, and the folder is used as any
other run's. scikit-learn is not needed, and finds its conventions where it is there.
"""

import json
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from neocpu.core.errors import CheckpointError, DataError
from neocpu.core.types import Elements, Floats
from neocpu.serve.estimator.keys import overrides_of, run_overrides
from neocpu.serve.scoring.model import Model
from neocpu.train.checkpoint.folder import FOLDER

if TYPE_CHECKING:
    import polars as pl

    from neocpu.serve.estimator.data import LabelledFrame

Callback = Callable[[dict[str, object]], object]
Rows = tuple[object, object]  # X and y
NOTE = "estimator.json"  # what a folder of results lacks to be an estimator again
OWN = ("out", "numbers", "categories", "verbose")


class DLRM:
    """A deep learning recommendation model with the interface of scikit-learn's estimators.

    out : folder of results, which must not have any (None: a temporary one, removed with the
        estimator).
    numbers, categories : names of columns whose kind is not to be guessed. Otherwise columns of
        floats are numbers (unless they are whole and look like codes), and those of texts, whole
        numbers and lists are categories.
    verbose : whether lines of the run are printed.
    keys : of a config, with "__" for the dots: `training__batch_size=128`. The last name is enough
        where it is unique: `batch_size=128`, `embedding_dim=16`, `epochs=2`, `loss="mse"`;
        `learning_rate` is that of tables and dense layers. All others are as `neocpu init`
        advises for the data.

    Attributes after `fit`: model_ (as `neocpu.load` gives it), classes_ (of a classifier), history_
    (the lines of metrics.jsonl), summary_ (run.json), out_, overrides_, feature_names_in_,
    n_features_in_.
    """

    def __init__(
        self,
        *,
        out: str | Path | None = None,
        numbers: Sequence[str] | None = None,
        categories: Sequence[str] | None = None,
        verbose: bool = False,
        **keys: object,
    ) -> None:
        self.out = out
        self.numbers = numbers
        self.categories = categories
        self.verbose = verbose
        self._keys = keys
        # only to refuse a wrong name here, not as late as in `fit`
        overrides_of(keys)

    # ---- parameters, by scikit-learn's conventions ----

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """What the estimator was made with."""
        return {name: getattr(self, name) for name in OWN} | self._keys

    def set_params(self, **params: object) -> Self:
        """Change some of these. Raises ConfigError for a key that no config has."""
        keys = {name: value for name, value in params.items() if name not in OWN}
        # before anything changes: a refused call leaves the estimator as it was
        overrides_of(self._keys | keys)
        self._keys = self._keys | keys
        for name in OWN:
            if name in params:
                setattr(self, name, params[name])
        return self

    @property
    def _estimator_type(self) -> str:
        # scikit-learn before 1.6 reads this, later ones ask for tags
        return "regressor" if self._regresses else "classifier"

    @property
    def _regresses(self) -> bool:
        return "mse" in (self._keys.get("loss"), self._keys.get("model__loss"))

    def __sklearn_tags__(self) -> object:
        """Tags that scikit-learn asks for."""
        # scikit-learn is no dependency: it is there if it asks
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type=self._estimator_type,
            target_tags=TargetTags(required=True),
            classifier_tags=None if self._regresses else ClassifierTags(multi_class=False),
            regressor_tags=RegressorTags() if self._regresses else None,
            input_tags=InputTags(categorical=True, string=True, allow_nan=True),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __repr__(self) -> str:
        params = self.get_params().items()
        return f"DLRM({', '.join(f'{k}={v!r}' for k, v in params if v not in (None, False))})"

    # ---- training ----

    def fit(
        self,
        X: object,
        y: object,
        eval_set: Rows | Sequence[Rows] | None = None,
        callbacks: Sequence[Callback] = (),
        sample_weight: object = None,
    ) -> Self:
        """Train on rows X and their labels y, as `neocpu train` does on the same rows.

        X : a polars or pandas frame, an Arrow table, a mapping of columns, or an array
            [n, columns].
        y : two classes of any kind; numbers where the loss is "mse". A table of one column will do.
        eval_set : (X, y), or a list of them: measured now and then, which early stopping
            (`patience=`) and the best checkpoint need.
        callbacks : each is called with every line of metrics.jsonl, a dict of step, samples, split
            and metrics; one that returns True ends the training well after this step, and what one
            raises ends `fit`.
        sample_weight : numbers [n] from 0 on, by which the gradients of rows are multiplied
            (`data.sample_weight`); None: all 1. Metrics are not weighted.

        Raises DataError and ConfigError for what cannot be trained on, TrainingError for a loss
        that is not finite; KeyboardInterrupt for Ctrl-C, and SystemExit for SIGTERM.
        """
        # imports polars, which `import neocpu` does without
        from neocpu.serve.estimator.data import feature_frame, pairs_of, values_of, write_run

        pairs = pairs_of(eval_set)
        features = feature_frame(X)
        labels = values_of(y, "y")
        if not self._regresses:
            self.classes_ = self._two_classes(labels)
        train = self._labelled(features, labels)
        if sample_weight is not None:
            weights = values_of(sample_weight, "sample_weight").astype(np.float64)
            train = replace(train, weights=weights)
        valid_frames = [
            self._labelled(feature_frame(rows), values_of(own, "y of eval_set"))
            for rows, own in pairs
        ]
        folder = self._new_folder()
        config, weight = write_run(
            folder, train, valid_frames, self.numbers or (), self.categories or ()
        )
        self.out_ = folder
        self.overrides_ = run_overrides(config, self._keys, weight)
        self.feature_names_in_ = np.array(features.columns, object)
        self.n_features_in_ = features.width
        self._train(config, callbacks)
        self._note()
        self.model_ = Model(folder)
        return self

    def _train(self, config: Path, callbacks: Sequence[Callback]) -> None:
        """Run the training of a config."""
        from neocpu.parallel.transport.comm import SingleComm
        from neocpu.parallel.transport.launch import prepare_threads
        from neocpu.train.config import config as configs

        settings = configs.load(config, self.overrides_)
        # Numba reads the number of threads once, when it is first imported.
        if "numba" not in sys.modules:
            prepare_threads(SingleComm(), settings.training.threads or None)
        # behind prepare_threads, as it imports Numba
        from neocpu.train.run.trainers import trainer_of
        from neocpu.train.watch.results import RunReport

        self.history_: list[dict[str, Any]] = []
        report = RunReport(
            self.out_,
            0,
            tell=print if self.verbose else None,
            listeners=(self.history_.append,),
            callbacks=callbacks,
        )
        trainer = trainer_of(settings)(settings, None, self.out_, report=report)
        self.summary_ = trainer.run()

    def _new_folder(self) -> Path:
        """The folder of the results of one training; a temporary one goes with the estimator."""
        if hasattr(self, "model_"):
            # Its tables are mapped from the folder that the new training may write.
            self.model_.close()
        return _temporary_folder(self) if self.out is None else Path(self.out)

    def _two_classes(self, labels: Elements) -> Elements:
        classes: Elements = np.unique(labels)
        if classes.size != 2:
            raise DataError(
                f"y has {classes.size} classes, and a click is one of two; for numbers, set "
                'loss="mse"'
            )
        return classes

    def _labelled(self, features: "pl.DataFrame", labels: Elements) -> "LabelledFrame":
        """Rows with their labels as the model has them: numbers, or 0 and 1."""
        from neocpu.serve.estimator.data import LabelledFrame

        if self._regresses:
            return LabelledFrame(features, labels.astype(np.float64))
        unknown = labels[~np.isin(labels, self.classes_)]
        if unknown.size:
            raise DataError(
                f"y of eval_set has the class {unknown.tolist()[0]!r}, which fit's y lacks"
            )
        # np.unique sorts: the greater class is the click
        return LabelledFrame(features, (labels == self.classes_[1]).astype(np.int8))

    # ---- use ----

    def predict_proba(self, X: object) -> Floats:
        """Probabilities f32[n, 2] of the classes. Raises DataError for a regressor."""
        if self._regresses:
            raise DataError('a model with loss="mse" predicts numbers, no probabilities')
        clicks = self._scores(X)
        return np.column_stack([np.float32(1) - clicks, clicks])

    def predict(self, X: object) -> Elements:
        """The more probable class of each row; numbers f32[n] where the loss is "mse".

        Raises DataError for a row that has no score (`data__on_error="skip"`), and so no class.
        """
        scores = self._scores(X)
        if self._regresses:
            return scores
        if np.isnan(scores).any():
            raise DataError(
                "rows without a score have no class; predict_proba gives NaN for them: rows "
                f"{', '.join(map(str, np.flatnonzero(np.isnan(scores))[:10]))}"
            )
        return self.classes_[(scores >= 0.5).astype(int)]

    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """Accuracy; R squared where the loss is "mse". Rows count by `sample_weight` [n]."""
        from neocpu.serve.estimator.data import values_of

        labels = values_of(y, "y")
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        predicted = self.predict(X)
        if not self._regresses:
            return float(np.average(predicted == labels, weights=weights))
        mean = np.average(labels, weights=weights)
        residual = np.average((labels - predicted.astype(np.float64)) ** 2, weights=weights)
        return 1.0 - float(residual / np.average((labels - mean) ** 2, weights=weights))

    def _scores(self, X: object) -> Floats:
        from neocpu.serve.estimator.data import feature_frame

        self._require_fit()
        return self.model_.predict(feature_frame(X))

    def _require_fit(self) -> None:
        """Raise DataError before `fit`."""
        if not hasattr(self, "model_"):
            raise DataError("this estimator is not fitted yet; call fit(X, y) first")

    # ---- files ----

    def __getstate__(self) -> dict[str, object]:
        """For pickle: the model travels as the bytes of its checkpoint."""
        state = dict(self.__dict__)
        if "model_" in state:
            state["model_"] = (self.model_.path.name, self.model_.path.read_bytes())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        if "model_" in state:
            name, content = state["model_"]
            # the folder that was pickled may be gone, or on another machine
            self.out_ = _temporary_folder(self)
            path = self.out_ / FOLDER / name
            # the layout of a run's folder, which `save` and `load` expect
            path.parent.mkdir()
            path.write_bytes(content)
            self._note()
            self.model_ = Model(path)

    def save(self, folder: str | Path) -> Path:
        """Copy what a fitted estimator needs to a folder, which `DLRM.load` and `neocpu` take."""
        self._require_fit()
        # The rows that it was trained on: large, the caller's, and not needed to predict.
        data = shutil.ignore_patterns("*.parquet", "*.converted.h5", "lock")
        try:
            return Path(shutil.copytree(self.out_, folder, ignore=data))
        except FileExistsError as error:
            raise DataError(f"{folder} exists; choose another folder, or remove it") from error
        except OSError as error:
            raise DataError(f"{folder}: cannot be written: {error}") from error

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """A fitted estimator from the folder of its results. Raises CheckpointError for others."""
        folder = Path(folder)
        try:
            note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
            model = cls(**note["params"])
            model.summary_ = note["summary"]
            model.history_ = note["history"]
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{folder}: no estimator: {error}; `neocpu.load` takes the folders of other runs"
            ) from error
        model.out_ = folder
        model.overrides_ = note["overrides"]
        model.feature_names_in_ = np.array(note["features"], object)
        model.n_features_in_ = len(note["features"])
        if note["classes"] is not None:
            model.classes_ = np.array(note["classes"])
        model.model_ = Model(folder)
        return model

    def _note(self) -> None:
        """Write what `load` needs besides the run."""
        from neocpu.train.watch.results import write_json

        # The folder may be moved or copied, and a loaded estimator must not train into this one.
        params = self.get_params() | {"out": None}
        note = {
            # paths and NumPy's scalars are no JSON
            "params": json.loads(json.dumps(params, default=str)),
            "overrides": self.overrides_,
            "classes": None if self._regresses else self.classes_.tolist(),
            "features": self.feature_names_in_.tolist(),
            "summary": self.summary_,
            "history": self.history_,
        }
        write_json(self.out_ / NOTE, note)


def _temporary_folder(owner: DLRM) -> Path:
    """A folder that goes with its owner."""
    folder = Path(tempfile.mkdtemp(prefix="neocpu-dlrm-"))
    # Not __del__: a finalizer also runs when the interpreter ends, and before its modules are gone.
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder
