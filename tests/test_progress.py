"""Does whoever looks at a run see where it is, and nobody else too much?"""

import os
import sys
import time
from types import SimpleNamespace

import pytest

from neocpu.cli.screen import progress, terminal
from neocpu.core.units import duration_text
from neocpu.train.watch.results import Compiled


class FakeError:
    """A stderr that is the file of this number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fileno(self) -> int:
        return self.number

    def isatty(self) -> bool:
        return os.isatty(self.number)


@pytest.fixture
def quiet_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(terminal.RELAYED, raising=False)
    monkeypatch.setattr(terminal, "_launcher_has_terminal", lambda: False)


@pytest.mark.usefixtures("quiet_launcher")
def test_who_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    ends = [*os.openpty(), *os.pipe()]
    with open(f"{tmp_path}/log", "w", encoding="ascii") as file:
        for number, viewer in ((ends[1], "terminal"), (ends[3], "nobody"), (file, "nobody")):
            descriptor = number if isinstance(number, int) else number.fileno()
            monkeypatch.setattr(sys, "stderr", FakeError(descriptor))
            assert terminal.audience() == viewer
            terminal.tell_ranks()
            assert os.environ.pop(terminal.RELAYED, "") == ("1" if viewer == "terminal" else "")
            monkeypatch.setenv(terminal.RELAYED, "1")
            behind = {ends[1]: "terminal", ends[3]: "relayed"}.get(descriptor, "nobody")
            assert terminal.audience() == behind
            monkeypatch.delenv(terminal.RELAYED)
    for end in ends:
        os.close(end)


DEEP = {2 + n: (f"sh {n}", 3 + n) for n in range(7)}  # the parent, and its parents


@pytest.mark.parametrize(
    ("processes", "stderr", "seen"),
    [
        ({2: ("mpiexec.hydra", 1)}, "/dev/pts/3", True),
        ({2: ("a) (b", 3), 3: ("srun", 1)}, "/dev/tty1", True),
        ({2: ("mpiexec", 1)}, "/tmp/log", False),
        ({2: ("prte", 3), 3: ("sh", 1)}, "pipe:[7]", False),
        ({2: ("sh", 1)}, "/dev/pts/3", False),
        ({2: ("sh", 3)}, "/dev/pts/3", False),  # 3 has ended
        ({**DEEP, 9: ("srun", 1)}, "/dev/pts/3", True),
        ({**DEEP, 9: ("sh", 10), 10: ("srun", 1)}, "/dev/pts/3", False),
    ],
)
def test_a_launcher_above_has_the_terminal(
    processes: dict[int, tuple[str, int]], stderr: str, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stat_of(path: str) -> SimpleNamespace:
        process = int(path.split("/")[2])
        if process not in processes:
            raise FileNotFoundError(path)
        name, parent = processes[process]
        return SimpleNamespace(read_text=lambda: f"{process} ({name}) S {parent} 0 0")

    monkeypatch.setattr(terminal, "Path", stat_of)
    monkeypatch.setattr(os, "getppid", lambda: 2)
    monkeypatch.setattr(os, "readlink", lambda path: stderr)
    assert terminal._launcher_has_terminal() is seen


def test_lines_come_often_at_first_and_tell_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    loss = progress.LatestLoss()
    early = progress.EARLY["relayed"]
    with progress.lines(early, loss, 1000, 100, lambda: now) as advance:
        for step in range(101, 1001):
            now += 0.125
            if step == 140:
                loss({"split": "train", "logloss": 0.5})
                loss({"split": "valid", "logloss": 0.7})
            advance(step, 20)
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "step 108 of 1,000 (11 %), 160 samples/s, 112 s left"
    assert shown[2] == "step 140 of 1,000 (14 %), loss 0.50000, 160 samples/s, 108 s left"
    assert [line.split()[1] for line in shown] == [
        "108",
        "116",
        "140",
        "180",
        "260",
        "340",
        "580",
        "820",
    ]


def test_a_file_gets_a_line_every_half_minute() -> None:
    intervals = progress.Intervals(progress.EARLY["nobody"], 0.0)
    assert [now for now in range(100) if intervals.due(now)] == [30, 60, 90]


def test_compiling_tells_how_far_and_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert progress.compiling_text(Compiled(12, 72, 0.6), 24.0) == (
        "12 of about 72 kernels compiled in 24 s, about 2 min left"
    )
    assert progress.compiling_text(Compiled(80, 72, 0.6), 40.0).startswith("80 of about 80 kernels")
    with progress.compiling_lines((0.01,), lambda: Compiled(1, 72, 0.6), tick=0.01):
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not (text := capsys.readouterr().err):
            time.sleep(0.01)
    assert text.startswith("1 of about 72 kernels compiled in less than a second, about 43 s left")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "less than a second"),
        (0.6, "1 s"),
        (119, "119 s"),
        (150, "2 min"),
        (12000, "3 h 20 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
