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


def test_a_run_without_a_sample_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(workers.SAMPLED_DAY, "")
    assert all(workers.is_drawn(f"case {number}") for number in range(100))


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
    groups = {name for group in (workers.FIRST | workers.LAST).values() for name in group}
    assert not (groups | workers.LONG.keys() | workers.QUICK) - names
