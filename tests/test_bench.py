"""Does `neocpu init` make sense of logs in the forms of well-known ones, and does it train?"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neocpu.core.errors import ConfigError
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.advice.columns import LogColumn
from neocpu.train.advice.write import ConfigDraft, Wishes, write_config
from neocpu.train.before.datasets import open_splits
from neocpu.train.config import config as configs
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.results import silent
from tests.bench_expected import EXPECTED
from tests.bench_logs import LOGS, ROWS
from tests.workers import covered

# trained on every day: texts as label, unreadable numbers, numbers only
TRAINED = ("adult", "sensors", "heart")


def drafted(name: str, folder: Path) -> ConfigDraft:
    wishes: dict[str, Any] = {**EXPECTED[name].wishes}
    return write_config(LOGS[name](folder), folder / "config.toml", Wishes(**wishes))


def shown(column: LogColumn) -> str:
    """The role of a column, with its form, kind or transform."""
    return f"{column.role} {column.time or column.transform or column.kind}".strip()


def test_every_log_has_expectations() -> None:
    assert LOGS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", LOGS)
def test_the_columns_of_a_log_have_their_roles(name: str, tmp_path: Path) -> None:
    expected = EXPECTED[name]
    if expected.refused:
        with pytest.raises(ConfigError, match=expected.refused):
            write_config(LOGS[name](tmp_path), tmp_path / "config.toml", Wishes())
    draft = drafted(name, tmp_path)
    columns = {column.name: column for column in draft.columns}
    assert columns[expected.label].role == "label"
    seen = {column: shown(columns[column]) for column in expected.roles}
    wanted = dict(expected.roles)
    assert {column: _as_wanted(seen[column], wanted[column]) for column in wanted} == wanted
    assert configs.load(tmp_path / "config.toml").model.loss == expected.loss


def _as_wanted(seen: str, wanted: str) -> str:
    """What is seen, as far as something is wanted of it."""
    return wanted if wanted in (seen, seen.partition(" ")[0]) else seen


def test_answers_of_the_files_to_measure_on_count_as_those_to_train_on(tmp_path: Path) -> None:
    data, test = LOGS["adult_data"](tmp_path), LOGS["adult_test"](tmp_path)
    write_config(data, tmp_path / "config.toml", Wishes(test=test))
    config = configs.load(tmp_path / "config.toml")
    splits = open_splits(config, SingleComm(), tmp_path / "cache", silent)
    labels = splits.datasets["test"].take(np.arange(ROWS), []).labels
    assert splits.datasets["test"].rows == ROWS and 0.1 < labels.mean() < 0.9


@pytest.mark.parametrize("name", covered(LOGS, TRAINED))
def test_a_log_trains(name: str, tmp_path: Path) -> None:
    drafted(name, tmp_path)
    config = configs.load(tmp_path / "config.toml", ["training.steps=3"])
    summary = Trainer(config, None, tmp_path / "run").run()
    assert summary["steps"] == 3 and summary["metrics"]["test"]["samples"] > 0
