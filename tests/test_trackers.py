"""Do boards hear what a run measures, and does a run outlive them?"""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from neocpu.core.errors import EnvironmentProblem
from neocpu.serve.report import trackers
from neocpu.serve.report.trackers import TRACKERS, numbers, open_tracker

LINE = {"step": 3, "samples": 30, "split": "train", "measured": 10, "logloss": 0.5, "auc": None}


def test_numbers_are_named_by_split() -> None:
    assert numbers(LINE) == {"train/logloss": 0.5}
    # of characters that all boards take
    assert numbers({**LINE, "ndcg@5": 0.25})["train/ndcg_at_5"] == 0.25


@pytest.mark.parametrize("name", TRACKERS)
def test_a_library_that_is_missing_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, package = TRACKERS[name]
    monkeypatch.delitem(sys.modules, module, raising=False)
    for part in [each for each in sys.modules if each.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, part)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EnvironmentProblem, match=f"`pip install {package}`"):
        open_tracker(name, tmp_path, {})


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="pip install tensorboard",
    )
    told: list[str] = []
    keys = {"training.batch_size": 64}
    with trackers.trackers(["tensorboard"] * 2, tmp_path, keys, told.append) as listeners:
        (listener,) = listeners
        listener(dict(LINE))
    events = accumulators.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/logloss")] == [(3, 0.5)]
    assert not told


def test_a_board_that_does_not_close_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Board:
        def __call__(self, line: dict[str, Any]) -> None: ...

        def close(self) -> None:
            raise ConnectionError("no answer")

    def make(out: Path, keys: Mapping[str, Any]) -> Board:
        return Board()

    module = ModuleType("board")
    module.open_tracker = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "board", module)
    monkeypatch.setattr(trackers, "TRACKERS", {"board": ("board", "board")})
    told: list[str] = []
    with trackers.trackers(["board"], tmp_path, {}, told.append):
        pass
    assert told == ["warning: --metrics board was not closed well: no answer"]
