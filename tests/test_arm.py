"""Are the bits those of ARM too? The README's job, the quick tests, the golden suite and some of
the promise, on an emulated aarch64 (`arm_room.py` makes the room).
"""

import os
import re
import sys
from pathlib import Path

import pytest

from tests import arm_room
from tests.jobs import ran

ROOM = os.environ.get("NEOCPU_ARM_ROOM", "")
README = (arm_room.ROOT / "README.md").read_text()
SECONDS = 3600.0  # an emulated instruction takes some twenty of ours
TRAIN = ["python3", "-m", "neocpu", "train", "data/models/tiny.toml"]


@pytest.fixture(scope="module")
def room() -> Path:
    """The room with today's source."""
    if not ROOM:
        pytest.skip("a room: python -m tests.arm_room FOLDER, then NEOCPU_ARM_ROOM=FOLDER")
    if why := arm_room.ready():
        pytest.skip(why)
    arm_room.bring_source(Path(ROOM))
    return Path(ROOM).resolve()


def readme_digest() -> str:
    (digest,) = re.findall(r"^digest [0-9a-f]{64}$", README, re.MULTILINE)
    return str(digest)


def test_the_room_is_of_another_architecture(room: Path) -> None:
    assert arm_room.enter(room, ["uname", "-m"], 60).stdout == "aarch64\n"


def test_the_main_job_has_the_digest_of_the_readme(room: Path) -> None:
    done = arm_room.enter(room, [*TRAIN, "--out", "/tmp/one", "--force"], SECONDS)
    assert done.stdout.splitlines()[-1:] == [readme_digest()], done.stderr


def test_two_ranks_with_rows_cut_have_it_too(room: Path) -> None:
    ranks = ["mpiexec", "-n", "2", *TRAIN, "--set", "parallel.plan=row_wise"]
    done = arm_room.enter(room, [*ranks, "--out", "/tmp/two", "--force"], SECONDS)
    assert done.stdout.splitlines()[-1:] == [readme_digest()], done.stderr


def test_quick_tests_pass(room: Path) -> None:
    # the kernel's own limits and the host's cores are not the emulated machine's
    pytest_ = ["python3", "-m", "pytest", "-m", "quick", "-q", "-n", "2", "-p", "no:cacheprovider"]
    done = arm_room.enter(room, pytest_, SECONDS)
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_golden_suite_is_what_the_oracle_says_there(room: Path) -> None:
    test = "tests/test_oracle_suite.py::test_the_golden_suite_is_what_the_oracle_says_today"
    done = arm_room.enter(room, ["python3", "-m", "pytest", "-q", "-n", "0", test], SECONDS)
    assert done.returncode == 0, done.stdout[-4000:]


def test_an_exported_suite_has_one_hash(room: Path, tmp_path: Path) -> None:
    """Also the exact values: powers and exponentials are ours, not the machine's libm's."""
    words = ["-m", "neocpu", "oracle", "export", "--quick", "--force"]
    here = [sys.executable, *words, str(tmp_path / "suite.h5")]
    x86 = ran(here, cwd=arm_room.ROOT, check=True)
    arm = arm_room.enter(room, ["python3", *words, "/tmp/suite.h5"], SECONDS)
    assert arm.stdout.splitlines()[-1:] == x86.stdout.splitlines()[-1:], arm.stderr


# --quick has runs of the main family only
@pytest.mark.parametrize(
    ("family", "scope"), [("rowwise_adagrad", "--quick"), ("kinds", "--pairwise")]
)
def test_a_family_of_the_promise_has_its_digest(family: str, scope: str, room: Path) -> None:
    words = ["python3", "-m", "tests.promise", scope, "--family", family, "--ranks", "1"]
    done = arm_room.enter(room, words, SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
