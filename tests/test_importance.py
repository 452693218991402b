"""Is a column important whose values a model reads, and are deals what they say they are?"""

import json
from pathlib import Path

import numpy as np
import pytest

import neocpu
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.parallel.transport.threads import run_threads
from neocpu.serve.report.runs import find_runs
from neocpu.serve.scoring.importance import DealtDataset, importances
from neocpu.serve.scoring.scorer import LocalScorer
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.metrics import Metrics
from tests.jobs import invoke
from tests.small_run import ROWS, config_of, write_log


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a log whose labels follow from the feature `one`, in its folder beside the log."""
    folder = tmp_path_factory.mktemp("importance")
    log = write_log(folder / "log.h5")
    settings = config_of(
        log, "training.epochs=30", "training.batch_size=16", "optimizer.sparse.learning_rate=0.3"
    )
    Trainer(settings, None, folder / "run").run()
    return folder / "run"


def test_a_dealt_column_has_the_values_of_other_samples(tmp_path: Path) -> None:
    data = Dataset(write_log(tmp_path / "log.h5"))
    chosen = np.arange(5, ROWS, 2)
    order = np.random.default_rng(1).permutation(chosen.size)
    asked = np.array([3, 0, 3, 50])
    plain = data.take(chosen[asked])
    other = data.take(chosen[order[asked]])
    for column in ("one", "many", "b"):
        dealt = DealtDataset(data, chosen, column, order)
        assert dealt.rows == chosen.size
        taken = dealt.take(asked)
        np.testing.assert_array_equal(taken.labels, plain.labels)
        for place, name in enumerate("abc"):
            source = other if name == column else plain
            np.testing.assert_array_equal(taken.dense[:, place], source.dense[:, place])
        for name in ("one", "many"):
            # a bag as a whole, with its length
            source = other if name == column else plain
            for part in ("codes", "lengths"):
                mine = getattr(taken.features[name], part)
                np.testing.assert_array_equal(mine, getattr(source.features[name], part))
    dealt = DealtDataset(data, chosen, "one", order)
    assert list(dealt.take(asked, ["many"]).features) == ["many"]


def test_means_and_spreads_are_those_of_the_repeats(tmp_path: Path) -> None:
    data = Dataset(write_log(tmp_path / "log.h5"))
    answers = iter([(0.5, 0.75), (0.5, 0.75), (0.75, 0.5), (1.0, 0.25), (0.5, 0.5)])

    def measure(dealt: Dataset) -> Metrics:
        logloss, auc = next(answers)
        return Metrics(dealt.rows, logloss=logloss, auc=auc)

    first, second = importances(data, ["one", "many"], measure, repeats=2, rows=10)
    assert first == ("many", 0.25, 0.25, 0.375, 0.125)
    assert second == ("one", 0.125, 0.125, 0.125, 0.125)


def test_the_column_that_labels_follow_from_is_the_most_important(run: Path) -> None:
    log = str(run.parent / "log.h5")
    model = neocpu.load(run)
    result = model.importances(log, repeats=2)
    assert {each.column for each in result} == {"one", "many", "a", "b", "c"}
    assert result[0].column == "one"
    assert result[0].auc > 0.2 > 5 * abs(result[1].auc)
    assert result == model.importances(log, repeats=2)
    assert result != model.importances(log, repeats=2, seed=2)

    def body(comm):
        scorer = LocalScorer(model.path, model.config, model.values, comm)
        return scorer.importances(log, 2, 1, 20_000)

    assert run_threads(2, body) == [result, result]

    line = ["importance", str(run), log, "--repeats", "2", "--json"]
    shown = invoke(*line)
    assert json.loads(shown.stdout) == [each._asdict() for each in result]
    (of_report,) = find_runs([run])
    assert of_report.importances["columns"][0]["column"] == "one"
