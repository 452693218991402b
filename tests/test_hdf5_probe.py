"""Is HDF5 stopped in time where it does not come to an end with a file?"""

import os
import time
from pathlib import Path

import h5py
import pytest

from neocpu.core.errors import OracleError
from neocpu.oracle.answers import KIND
from neocpu.tables.hdf5 import probe, walk
from neocpu.tables.hdf5.door import File


def test_a_loop_without_end_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = tmp_path / "loop.py"
    text = Path(walk.__file__).read_text()
    for old, new in (
        ("            walk(file, size)\n", "            while True: pass\n"),
        (f"\nSECONDS = {walk.SECONDS}\n", "\nSECONDS = 1\n"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    loop.write_text(text)
    monkeypatch.setattr(walk, "__file__", str(loop))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = 1
    begun = time.process_time()
    assert probe.trouble(tmp_path / "x.h5") == "HDF5 does not come to an end with it"
    assert walk.SECONDS < 6 and time.process_time() - begun < 1


def test_what_can_be_read_and_what_cannot(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = 1
    assert probe.trouble(path) == ""
    path.write_bytes(path.read_bytes()[:900])
    assert "truncated file" in probe.trouble(path)


@pytest.mark.parametrize("libver", ["earliest", "v110"])
def test_a_truncated_file_says_so_without_hdf5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, libver: str
) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=libver) as file:
        file["x"] = range(1000)
    monkeypatch.setattr(probe, "trouble", lambda path: "")
    with File(path, KIND) as whole:
        assert whole.array("x").read().sum() == 499_500
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(OracleError, match=f"truncated: it has {size - 1:,} of {size:,} bytes"):
        File(path, KIND)
