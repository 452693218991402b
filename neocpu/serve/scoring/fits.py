"""How does a model of `neocpu fit` score logs? As a trained one: the same files and messages."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import ConfigError, DataError
from neocpu.core.floats import keep_subnormals
from neocpu.core.types import Tell
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.formats.frames import is_paths
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.environment import check_kernels
from neocpu.serve.scoring.logs import GivenLogs
from neocpu.serve.scoring.recommend import BestItems, PairDataset, Pairs, pairs_of
from neocpu.serve.scoring.unseen import UnseenValues, unseen_in
from neocpu.serve.scoring.values import ValueMap
from neocpu.train.advice.write import first_name, log_of
from neocpu.train.config.config import loads
from neocpu.train.fit.fitted import BLOCK, load
from neocpu.train.fit.keys import FILE, FitKeys
from neocpu.train.run.fitting import FitRun, config_of, folder_of, measured
from neocpu.train.run.folder import RunLock, fit_file
from neocpu.train.state.identity import with_schema
from neocpu.train.watch.metrics import Metrics
from neocpu.train.watch.results import silent

if TYPE_CHECKING:
    import polars as pl


class FitScorer:
    """A model of `neocpu fit`, as its folder, or fit.h5, has it.

    overrides : of keys of the config that reads its logs, `key=value` texts. comm : of ranks that
    share what they score; None: this process alone.

    Attributes: path, of the file; fitted, the `FittedModel` with its weights and columns; values,
    how its logs are read; classes, the labels of its classes in their order, texts or numbers (():
    it has none), of two of which predictions of clicks are the probability of the second.

    Raises CheckpointError for a file that is missing or damaged.
    """

    def __init__(
        self, path: str | Path, overrides: Sequence[str] = (), comm: Comm | None = None
    ) -> None:
        keep_subnormals()
        check_kernels()
        path = Path(path)
        self.path = path / FILE if path.is_dir() else path
        saved = load(self.path)
        notes = saved.notes
        self.fitted = saved.fitted
        labels = self.fitted.labels
        self.classes: tuple[str, ...] | tuple[float, ...] = labels.classes or labels.values
        described = notes.get("data", {})
        texts = [*notes["overrides"], *overrides]
        source = f"{self.path} (config)"
        config = loads(notes["config"], source, texts, notes["folder"], begun=True)
        self.values = ValueMap(self.path, with_schema(config, described, overrides), described)
        self.unseen = UnseenValues(self.values, self.fitted.columns.features)
        self._comm = comm or SingleComm()
        self.logs = GivenLogs(self.values, self._comm)

    def predictions(self, dataset: Dataset) -> NDArray[np.float32]:
        """Predictions f32[n] of samples, in order, on all ranks. Collective."""
        self.fitted.columns.check(dataset)
        comm = self._comm
        self.unseen.add(dataset, self.fitted.is_seen)
        ends = [dataset.rows * rank // comm.size for rank in range(comm.size + 1)]
        own = self.fitted.predict(dataset, ends[comm.rank], ends[comm.rank + 1])
        whole = np.empty(dataset.rows, np.float32)
        comm.allgatherv(own, whole, np.diff(ends))
        return whole

    def predict(self, data: object) -> NDArray[Any]:
        """Predictions f32[n] in the order of the rows: of clicks their probability, of classes the
        label of the likeliest one, of `squares` and `squared_hinge` the score. Of classes that are
        texts these, str[n], "" in place of a NaN.

        data, errors, and rows that cannot be read: as of `Model.predict`.
        """
        scores = self.logs.scores(data, self.predictions, self.unseen, stacklevel=3)
        return self.fitted.named(scores)

    def evaluate(
        self, data: object, group: str = "", at: Sequence[int] = ()
    ) -> dict[str, float | None]:
        """Metrics on labelled data, by name; arguments as of `Model.evaluate`."""
        warn = partial(warnings.warn, stacklevel=3)
        return self.metrics_of(data, group, at, warn=warn).to_dict()

    def metrics_of(
        self,
        data: object,
        group: str,
        at: Sequence[int],
        tell: Tell = silent,
        warn: Tell = silent,
    ) -> Metrics:
        """Metrics as of `evaluate`; tell : is given lines of conversions; warn : hears of values
        that the fit never saw. Collective.
        """
        logs = GivenLogs(self.values, self._comm, tell)
        dataset = logs.labelled(data)
        features = self.fitted.columns.features
        if text := unseen_in(dataset, self.values, features, self.fitted.is_seen):
            warn(text)
        if group:
            self._refuse_classes()
        # a config's group is for models whose predictions have an order
        grouping = None if self._named else logs.grouping(data, dataset, group, at)
        return measured(self.fitted, dataset, self._comm, grouping)

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
        """The k best items for each user; arguments, result and errors as of `Model.recommend`."""
        return self.best_items(pairs_of(self.logs.frame, users, items, exclude, (user, item)), k)

    def best_items(self, pairs: Pairs, k: int) -> "pl.DataFrame":
        """The k best items of each user, as `BestItems.frame` gives them.

        Raises DataError for a fit of classes that are texts, which have no order.
        """
        self._refuse_classes()
        best = BestItems(pairs, k)
        dataset = PairDataset(self.values.schema, pairs)
        for first in range(0, dataset.rows, BLOCK):
            best.take(self.fitted.predict(dataset, first, min(first + BLOCK, dataset.rows)))
        return best.frame()

    @property
    def _named(self) -> bool:
        """Are predictions texts?"""
        return self.fitted.keys.loss == "softmax" and bool(self.fitted.labels.classes)

    def _refuse_classes(self) -> None:
        """Raise DataError where predictions are texts, which have no order."""
        if self._named:
            raise DataError(f"{self.path}: its predictions are classes, and none is the best")


def fit(
    data: object,
    *,
    out: str | Path = "",
    label: str = "",
    positive: Sequence[str] = (),
    weight: str = "",
    test: str | Path | Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    resume: bool = False,
    **keys: object,
) -> FitScorer:
    """Fit a linear model or a perceptron by second-order steps, as `neocpu fit`, and open it.

    data : a config (`.toml`), or a log as of `neocpu.init`: a path, a pattern or folder of files,
        a list of them, or a frame (polars, pandas, Arrow, a mapping of arrays), which is written to
        `data.parquet` in `out`.
    out : folder of results ("": `fits/NAME`); resume : go on from the fit that is in it.
    label, positive, test : of a log, as of `neocpu.init`. weight : its column of numbers from 0 on,
        how often each row counts. overrides : of keys of the config.
    keys : of `neocpu.train.fit.keys.FitKeys`: method, loss, hidden, l2, cross, quadratic, ….

    Returns a `FitScorer`, whose `predict` and `evaluate` are as those of `neocpu.load`.

    Raises ConfigError for keys that are none, or have no such value; DataError for data that cannot
    be read or fitted; TrainingError where `out` has results already; KeyboardInterrupt for Ctrl-C,
    and SystemExit for SIGTERM, once what was fitted so far is in `out`.
    """
    known = FitKeys.__dataclass_fields__
    for name in keys:
        if name not in known:
            raise ConfigError(f"fit has no key {name!r}; its keys are {', '.join(known)}")
    fit_keys = FitKeys(**keys)  # type: ignore[arg-type]
    comm = SingleComm()
    folder = Path(out) if out else folder_of(first_name(data))
    # no other fit's folder gets a table that is in memory
    with nullcontext() if is_paths(data) else RunLock(folder, comm, resume=resume):
        sources = log_of(data, folder)
    tests = [str(path) for path in ([test] if isinstance(test, str | Path) else test)]
    config = config_of(
        sources,
        tests,
        overrides,
        comm,
        label=label,
        positive=positive,
        weight=weight,
        loss=fit_keys.loss,
    )
    FitRun(config, fit_keys, comm, folder, resume=resume).run()
    return FitScorer(folder)


def open_fit(path: Path, overrides: Sequence[str], comm: Comm) -> FitScorer | None:
    """The fit that a path names; None: it names a run, or a checkpoint. Collective."""
    file = comm.on_first_rank(lambda: str(fit_file(path) or ""))
    return FitScorer(file, overrides, comm) if file else None
