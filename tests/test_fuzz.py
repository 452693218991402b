"""Does every reader answer what once had no answer, and some damage of today?

`python -m tests.fuzz` looks for more; CI gives it half a minute.
"""

import gzip
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import fuzz
import pytest
from fuzzing import Reader, minimal

from neocpu.core.errors import DataError

READERS = fuzz.readers()
KEPT = sorted(fuzz.CORPUS.rglob("*.gz"))
INPUTS = 4  # of each reader; CI draws more with `tests.fuzz`


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_once_had_no_answer_has_one(kept: Path, tmp_path: Path) -> None:
    reader = READERS[kept.parent.name]
    original = reader.make(tmp_path)
    expected = reader.read(original)
    path = original.with_name(f"damaged{original.suffix}")
    path.write_bytes(gzip.decompress(kept.read_bytes()))
    assert fuzz.answer(reader, path, expected, free=False) in fuzz.ANSWERS


@pytest.mark.parametrize("name", READERS)
def test_damaged_inputs_are_answered(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    (tmp_path / "valid").mkdir()
    original = reader.make(tmp_path / "valid")
    expected = reader.read(original)
    shutil.copytree(tmp_path / "valid", tmp_path / "damaged")
    path = tmp_path / "damaged" / original.name
    verdicts = []
    for number in range(INPUTS):
        free = fuzz.damage(reader, name, original, path, 2026, number)
        verdicts.append(fuzz.answer(reader, path, expected, free))
    assert set(verdicts) <= set(fuzz.ANSWERS), verdicts


def _length(path: Path) -> Any:
    """A bad reader: of bytes that say what it does."""
    data = path.read_bytes()
    if data.startswith(b"refuse"):
        raise DataError(f"{path}: refused")
    if data.startswith(b"lines"):
        raise DataError("two\nlines")
    if data.startswith(b"fail"):
        raise KeyError("nothing")
    return data[:4] == b"good"


def _make(folder: Path) -> Path:
    path = folder / "input.txt"
    path.write_bytes(b"good")
    return path


@pytest.mark.parametrize(
    ("data", "free", "verdict"),
    [
        (b"good", False, "same values"),
        (b"refuse", False, "refused"),
        (b"other", False, "other values"),
        (b"other", True, "another input"),
        (b"lines", True, "an error of several lines: 'two\\nlines'"),
        (b"fail", True, "a traceback: KeyError: 'nothing'"),
    ],
)
def test_verdicts(data: bytes, free: bool, verdict: str, tmp_path: Path) -> None:
    reader = Reader(_make, _length, lambda path, chance: free)
    expected = reader.read(reader.make(tmp_path))
    (tmp_path / "input.txt").write_bytes(data)
    assert fuzz.answer(reader, tmp_path / "input.txt", expected, free) == verdict


@pytest.mark.parametrize("ending", ["hang", "crash"])
def test_a_reader_that_hangs_or_crashes_is_found_and_the_next_input_read(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "SECONDS", 0.5)
    monkeypatch.setattr(fuzz, "readers", lambda: {"bad": Reader(_make, _bad, _mutate)})
    monkeypatch.setenv("NEOCPU_TEST_ENDING", ending)
    campaign = fuzz.Campaign("bad", 0)
    campaign.run(3.0)
    words = "does not end" if ending == "hang" else "ends with status"
    assert any(words in verdict for verdict in campaign.failures.values())
    assert campaign.counts["no answer"] >= 2 and campaign.counts["same values"] > 2


def _bad(path: Path) -> str:
    if path.read_bytes() == b"bad":
        if os.environ["NEOCPU_TEST_ENDING"] == "hang":
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)
    return "good"


def _mutate(path: Path, chance: Any) -> bool:
    if chance.random() < 0.3:
        path.write_bytes(b"bad")
    return False


def test_inputs_are_reduced_to_what_fails() -> None:
    original = bytes(range(200))
    bad = bytearray(original)
    for at in (3, 50, 51, 120, 199):
        bad[at] ^= 255
    tried = []

    def fails(data: bytes) -> bool:
        tried.append(data)
        return data[51] == bad[51] and data[199] == bad[199]

    result = minimal(original, bytes(bad), fails)
    assert [at for at in range(200) if result[at] != original[at]] == [51, 199]
    assert minimal(original, b"short", fails) == b"short"
