"""Does the soak see what a life does wrong? And some minutes of it, now and then."""

import os
import random
import signal
from itertools import islice
from pathlib import Path

import pytest
import soak
from promise_cases import DRAWN
from promise_draws import Drawn
from soak_faults import FAULTS, Disk, Place, catches

from tests.workers import today

SAID = "neocpu: error: rank 1 on host0 (process 4) was killed by SIGKILL"


@pytest.mark.parametrize(
    ("ending", "seen"),
    [
        ((0, "digest 12", 0, False, False), ""),
        ((1, SAID, 0, True, False), ""),
        ((-9, "", 0, True, True), ""),
        ((143, "stopped by signal 15 after step 3", 0, True, False), ""),
        ((1, f"Traceback (most recent call last)\n{SAID}", 0, True, True), "a traceback"),
        ((0, "digest 12", 8, False, False), "the last 8 steps that were in a checkpoint are lost"),
        ((1, f"{SAID}\n{SAID}", 0, True, False), "several sentences"),
        ((1, SAID, 0, False, False), "it failed with status 1"),
        ((1, "", 0, True, False), "it failed with status 1, and no sentence"),
    ],
)
def test_ends_are_judged(ending: tuple[int, str, int, bool, bool], seen: str) -> None:
    assert soak.complaint(*ending) == seen


def test_a_record_goes_on_with_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "soak.jsonl"
    first = soak.Record(path)
    assert first.undisturbed("a config", lambda: "digest")[0] == "digest"
    first.add(soak.Lived("adam", 2, faults=["SIGTERM", "SIGTERM"], wrong="a traceback"))
    second = soak.Record(path)
    second.add(soak.Lived("adam", 1, faults=["kill all"], ended=True))
    assert second.undisturbed("a config", lambda: "another")[0] == "digest"
    assert second.faults == {"SIGTERM": 2, "kill all": 1}
    report = soak.Record(path).report()
    assert "3 faults in 2 lives" in report and "1 runs reached their end; 1 lives did" in report


@pytest.mark.parametrize("restarts", [0, 20])
def test_what_ends_a_life_strikes_it_last(restarts: int, tmp_path: Path) -> None:
    place = Place(tmp_path, Disk(tmp_path / "disk"), random.Random(5))
    lives = soak.Soak(place, tmp_path, 10, 2, soak.Record(None))
    try:
        several = 0
        for _ in range(50):
            drawn = lives._drawn_faults(FAULTS, restarts)
            ends = [fault.ends(restarts) for fault in drawn]
            strikes = [end for fault, end in zip(drawn, ends) if fault.strike is not None]
            assert strikes == sorted(strikes)
            assert len({fault for fault, end in zip(drawn, ends) if end}) == sum(ends)
            several = max(several, sum(fault.outlived for fault in drawn))
        assert (several > len({fault for fault in FAULTS if fault.outlived})) == (restarts > 0)
    finally:
        place.disk.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_it_is_seen_whether_a_process_looks_out_for_a_signal() -> None:
    before = signal.signal(signal.SIGUSR2, lambda number, frame: None)
    try:
        assert catches(os.getpid(), signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        assert not catches(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_every_second_job_is_another_drawn_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of several days are left out, and others come in their place."""

    def family(name: str) -> Drawn:
        seed = int(name.removeprefix(DRAWN))
        return Drawn(seed, {}, day="online" if seed % 3 else "")

    monkeypatch.setattr(soak, "family_of", family)
    some = list(islice(soak.jobs(1), 2 * len(soak.JOBS)))
    assert some[::2] == [*soak.JOBS[1:], soak.JOBS[0]]
    assert [job.name for job in some[1::2]] == [f"{DRAWN}{seed}" for seed in (3, 6, 9, 12)]


@pytest.mark.long("soak", period=4)
def test_two_minutes_of_faults() -> None:
    assert soak.main(["--hours", "0.03", "--ranks", "3", "--steps", "30", "--seed", today()]) == 0
