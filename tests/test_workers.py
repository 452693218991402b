"""Does every case of a long cover come round, and is a run that asks for it whole?"""

import re
from pathlib import Path

import pytest

from tests import workers


def days_of(name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of so many days as a period has, those on which a case is run."""
    drawn = []
    for day in range(739_000, 739_000 + workers.PERIOD):
        monkeypatch.setenv(workers.SAMPLED_DAY, str(day))
        if workers.is_drawn(name):
            drawn.append(day)
    return drawn


@pytest.mark.parametrize("name", ["adam", "tests/test_x.py::test_y[1]", ""])
def test_a_case_is_run_on_one_day_of_a_period(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(days_of(name, monkeypatch)) == 1


def test_days_draw_different_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    days = {day for number in range(100) for day in days_of(f"case {number}", monkeypatch)}
    assert len(days) == workers.PERIOD


@pytest.mark.parametrize("period", [1, 4, 8])
@pytest.mark.parametrize("count", [1, 3, 8, 21])
def test_cases_of_a_cover_are_dealt_to_days(
    count: int, period: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {f"case {number}" for number in range(count)}
    days = []
    for day in range(739_000, 739_000 + period):
        monkeypatch.setenv(workers.SAMPLED_DAY, str(day))
        days.append(workers.dealt(names, period))
    assert sorted(name for day in days for name in day) == sorted(names)
    assert max(map(len, days)) - min(map(len, days)) <= 1


def test_what_a_day_leaves_out_is_run_on_others(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = request.node
    for mark, period in ((pytest.mark.long("x", period=3), 3), (pytest.mark.long(period=4), 4)):
        monkeypatch.setattr(item, "own_markers", [mark.mark])
        left = []
        for day in range(739_000, 739_012):
            monkeypatch.setenv(workers.SAMPLED_DAY, str(day))
            left += workers.left_out([item])
        assert left == [item.nodeid] * (12 - 12 // period)


def test_a_run_without_a_sample_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(workers.SAMPLED_DAY, "")
    assert all(workers.is_drawn(f"case {number}") for number in range(100))
    assert workers.dealt({"one", "other"}) == {"one", "other"}


def test_values_beyond_the_core_are_long_and_share_a_day() -> None:
    core, rest = workers.covered(("sgd", "lamb"), always=("sgd",))
    assert core == "sgd"
    (mark,) = rest.marks
    assert (mark.name, mark.args) == ("long", ("lamb",))


def test_what_is_named_is_there() -> None:
    names = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        file = path.stem.removeprefix("test_")
        names |= {file}
        names |= {
            f"{file}::{name}" for name in re.findall(r"(?m)^def (test_\w+)", path.read_text())
        }
    groups = {name for group in workers.GROUPS.values() for name in group}
    assert not (groups | workers.LONG | workers.QUICK) - names
