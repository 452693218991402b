"""What does a fit give, and how is it kept? A model that predicts; a file of it and of its solver.

    fit.h5    header      JSON: keys, loss, labels, their texts, columns, the config of its logs
              weights     f64[P]
              mean, deviation f64[m]; codes/0 ... of one-hot features, in the order of the header
              pairs       f64[k, 2, P] of L-BFGS, and watched f64[k, P], only while it goes on
              now         f64[P] of a patient fit, where its last step led: weights are its best

The digest of a fit is the SHA-256 of the header's keys that decide the bits, of the columns' arrays
and of the weights (docs/arithmetic.md §16).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import CheckpointError
from neocpu.core.targets import whole_file
from neocpu.core.types import Elements, Ints, JsonObject
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.kernels.twins.numbers.elementary import sigmoid
from neocpu.tables.hdf5.door import File, Kind
from neocpu.tables.hdf5.draft import Draft
from neocpu.train.fit.columns import DesignColumns, LabelMap, hashed
from neocpu.train.fit.design import F64, DesignMatrix
from neocpu.train.fit.keys import FILE, FitKeys
from neocpu.train.fit.layers import LayeredModel
from neocpu.train.fit.losses import LOSSES
from neocpu.train.fit.solving import FitState

FORMAT = "neocpu-fit"
LINEAR, LAYERS, VERSION = 1, 2, 3  # of files: with hidden layers; with texts of labels
KIND = Kind(
    format=FORMAT,
    version=VERSION,
    error=CheckpointError,
    missing="{path}: no such file; `neocpu fit` writes one",
    damaged="{path}: a damaged fit: {why}; fit it again",
    no_hdf5="{path}: not a fit (not an HDF5 file)",
    foreign="{path}: an HDF5 file, but not a fit of neocpu",
    newer="{path}: a fit of version {version}; this neocpu reads up to {newest}; upgrade",
)
BLOCK = 1 << 16  # samples that are predicted at a time


def model_of(keys: FitKeys, width: int, labels: LabelMap) -> LayeredModel:
    """The model of keys whose loss is named, for so many columns."""
    outputs = len(labels.values) if LOSSES[keys.loss].coupled else 1
    return LayeredModel(LOSSES[keys.loss], (width, *keys.hidden, outputs), keys.activation)


@dataclass(frozen=True)
class FittedModel:
    """A model that was fitted.

    keys : with the loss and the penalty that were used. samples : of the train data.
    """

    keys: FitKeys
    columns: DesignColumns
    labels: LabelMap
    weights: F64
    samples: int

    @property
    def model(self) -> LayeredModel:
        """The function of its weights."""
        return model_of(self.keys, self.columns.width, self.labels)

    @property
    def name(self) -> str:
        """What the model is called."""
        units = "-".join(map(str, self.keys.hidden))
        loss = self.keys.loss.replace("_", " ")
        return f"perceptron {units}, {loss}" if units else LOSSES[self.keys.loss].name

    def scores(self, data: Dataset, samples: Ints) -> F64:
        """Scores of some samples, f64[n, K]."""
        taken = data.take(samples, self.columns.features)
        rows, dense = self.columns.matrix(taken, data.name)
        ends = np.array([samples.size])
        design = DesignMatrix(
            rows, dense, np.empty(samples.size), self.columns.sparse, ends, samples.size
        )
        return self.model.scores(design, self.weights)

    def is_seen(self, feature: str, codes: Elements) -> NDArray[np.bool_]:
        """Which codes of a feature have weights that training moved, bool[n]."""
        columns = self.columns
        if feature in columns.codes:
            return np.isin(codes, columns.codes[feature])
        places = hashed(feature, codes, columns.seed, columns.hashed)
        weights = self.model.matrices(self.weights)[0]
        return np.asarray(weights[columns.sparse - columns.hashed + places].any(axis=1))

    def predict(
        self, data: Dataset, first: int = 0, last: int | None = None
    ) -> NDArray[np.float32]:
        """Predictions f32[n] of samples [first, last): of clicks their probability, of classes the
        label of the likeliest one, else the score.
        """
        last = data.rows if last is None else last
        blocks = [np.empty(0, np.float32)]
        size = max(64 * BLOCK // max(64, *self.keys.hidden, 0), 1)
        for low in range(first, last, size):
            samples = np.arange(low, min(low + size, last), dtype=np.int64)
            blocks.append(self.predictions(self.scores(data, samples)).astype(np.float32))
        return np.concatenate(blocks)

    def named(self, predictions: NDArray[np.float32]) -> NDArray[Any]:
        """Predictions f32[n] with the texts of classes in place of their numbers, "" for a NaN."""
        if self.keys.loss != "softmax" or not self.labels.classes:
            return predictions
        # a NaN is behind all numbers
        places = np.searchsorted(np.array(self.labels.values), predictions)
        return np.array([*self.labels.classes, ""])[places]

    def predictions(self, scores: F64) -> F64:
        """Predictions f64[n] of scores f64[n, K]."""
        if self.keys.loss == "softmax":
            return np.array(self.labels.values)[scores.argmax(axis=1)]
        return sigmoid(scores[:, 0]) if self.keys.loss == "logistic" else scores[:, 0]

    def header(self) -> dict[str, object]:
        """What it is, as JSON."""
        columns = self.columns
        classes = {"classes": list(self.labels.classes)} if self.labels.classes else {}
        return {
            "keys": self.keys.header(),
            "labels": list(self.labels.values),
            **classes,
            "samples": self.samples,
            "features": list(columns.features),
            "one_hot": list(columns.codes),
            "pairs": [list(pair) for pair in columns.pairs],
            "hashed": columns.hashed,
            "seed": columns.seed,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its arrays by name."""
        codes = {f"codes/{i}": each for i, each in enumerate(self.columns.codes.values())}
        mean, deviation = self.columns.mean, self.columns.deviation
        return {"weights": self.weights, "mean": mean, "deviation": deviation, **codes}

    def digest(self) -> str:
        """The SHA-256 of all that it is."""
        digest = hashlib.sha256(json.dumps(self.header(), sort_keys=True).encode())
        for name, array in self.arrays().items():
            digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def save(
    path: Path, fitted: FittedModel, state: FitState, notes: Mapping[str, object], done: bool
) -> None:
    """Write a fit, so that a reader sees the old file or the new one. Raises OSError.

    notes : texts and numbers beside it. done : is it finished?
    """
    patient = bool(fitted.keys.patience)
    solver = {name: getattr(state, name) for name in (*_NUMBERS, *_PATIENT * patient)}
    text = {"fit": fitted.header(), "solver": solver, "notes": dict(notes), "done": done}
    with Draft() as draft:
        version = LAYERS if fitted.keys.hidden else LINEAR
        version = VERSION if fitted.labels.classes else version
        draft.set("", {"format": FORMAT, "version": version})
        draft.text("header", json.dumps(text))
        for name, array in fitted.arrays().items():
            draft.put(name, array)
        for name in _LISTS:
            if (kept := getattr(state, name)) and not done:
                draft.put(name, np.array(kept))
        if patient:
            draft.put("now", state.weights)
        image = draft.image()
    with whole_file(path) as partial:
        image.write(partial)
        image.seal(partial)


_LISTS = ("pairs", "watched")  # of a `FitState`, and its
_NUMBERS = ("samples", "first", "iterations", "spent", "steepness")
_PATIENT = ("least", "waited")


@dataclass(frozen=True)
class SavedFit:
    """What a file holds: a model, the state of its solver, notes, and whether it is finished."""

    fitted: FittedModel
    state: FitState
    notes: Mapping[str, Any]
    done: bool


def load(path: Path) -> SavedFit:
    """A fit from its file, or from the folder of one. Raises CheckpointError."""
    path = Path(path)
    with File(path / FILE if path.is_dir() else path, KIND) as file:
        try:
            text = json.loads(file.text("header"))
            header = text["fit"]
            keys = FitKeys(**{**header["keys"], **_tuples(header["keys"])})
            codes = {
                name: file.array(f"codes/{i}").read() for i, name in enumerate(header["one_hot"])
            }
            columns = DesignColumns(
                features=tuple(header["features"]),
                codes=codes,
                pairs=tuple(map(tuple, header["pairs"])),
                hashed=header["hashed"],
                seed=header["seed"],
                mean=_numbers(file, "mean"),
                deviation=_numbers(file, "deviation"),
            )
            weights = _numbers(file, "weights")
            labels = LabelMap(tuple(header["labels"]), tuple(header.get("classes", ())))
            fitted = FittedModel(keys, columns, labels, weights, header["samples"])
            lists = {name: [*_numbers(file, name)] for name in _LISTS if name in file}
            _check(fitted, text["notes"], lists)
            solver: JsonObject = {**text["solver"], **lists}
            now = _numbers(file, "now") if "now" in file else weights.copy()
            if now.shape != weights.shape:
                raise ValueError("its weights are not as many as its best ones")
            best = weights if keys.patience and text["solver"]["least"] is not None else None
            state = FitState(weights=now, best=best, **solver)
            return SavedFit(fitted, state, text["notes"], text["done"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise file.damaged(error) from error


def _check(
    fitted: FittedModel, notes: Mapping[str, Any], lists: Mapping[str, Sequence[F64]]
) -> None:
    """Raise ValueError, TypeError or KeyError for a file whose parts do not go together."""
    columns = fitted.columns
    if fitted.weights.shape != (fitted.model.parameters,):
        raise ValueError("its weights do not go with its columns")
    classes = fitted.labels.classes
    if classes and len(classes) != len(fitted.labels.values):
        raise ValueError("its labels have other texts than numbers")
    if not all(isinstance(text, str) for text in classes):
        raise TypeError("a class is no text")
    if columns.mean.ndim != 1 or columns.mean.shape != columns.deviation.shape:
        raise ValueError("its dense columns have other means than deviations")
    for codes in columns.codes.values():
        if codes.ndim != 1 or codes.dtype.kind != "u" or not (codes[1:] > codes[:-1]).all():
            raise ValueError("codes of a feature do not ascend")
    for name, shape in (("pairs", (2, fitted.weights.size)), ("watched", fitted.weights.shape)):
        if any(each.shape != shape for each in lists.get(name, ())):
            raise ValueError(f"its {name} do not go with its weights")
    if not isinstance(notes["data"], dict):
        raise TypeError("what it notes of its data is no object")
    for text in (notes["config"], notes["source"], notes["folder"], *notes["overrides"]):
        if not isinstance(text, str):
            raise TypeError("what it notes of its config is no text")


def _tuples(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {"cross": tuple(map(tuple, keys["cross"])), "hidden": tuple(keys.get("hidden", ()))}


def _numbers(file: File, name: str) -> F64:
    numbers: F64 = file.array(name).read()
    if numbers.dtype != np.float64:
        raise TypeError(f"{name} are no numbers of 8 bytes")
    return numbers
