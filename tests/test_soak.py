"""Does the soak see what a life does wrong? And some minutes of it, now and then."""

import pytest
import soak

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


@pytest.mark.long("soak", period=4)
def test_two_minutes_of_faults() -> None:
    assert soak.main(["--hours", "0.03", "--ranks", "3", "--steps", "30", "--seed", today()]) == 0
