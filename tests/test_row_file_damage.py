"""Is what a kill, a full disk, a flipped bit, a foreign or a busy file does to a file of rows
found, told and survived?
"""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_row_file import TABLES, Model, content, fill, small

from neocpu.core.errors import StorageError
from neocpu.tables.storage import extents
from neocpu.tables.storage.extents import RowTable
from neocpu.tables.storage.lock import held_by
from neocpu.tables.storage.row_file import RowFile
from neocpu.tables.storage.row_io import Access, RawFile
from neocpu.tables.storage.row_tools import verify
from tests.jobs import ran

ROOT = Path(__file__).resolve().parent.parent


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_a_flipped_bit_is_found_or_does_not_matter(tmp_path_factory, seed):
    folder = tmp_path_factory.getbasetemp() / "flip"
    folder.mkdir(exist_ok=True)
    path = folder / "r.h5"
    good = folder / "good.h5"
    model = getattr(test_a_flipped_bit_is_found_or_does_not_matter, "model", None)
    if model is None:
        model = test_a_flipped_bit_is_found_or_does_not_matter.model = small(good)
    data = bytearray(good.read_bytes())
    layout = extents.read(good)
    rng = np.random.default_rng(seed)
    pieces = [
        (layout.commits, 4096 + 64),
        (layout.index.origin[0], 4096),
        *extents.metadata(layout, len(data)),
    ]
    pieces += [
        (int(at), extents.size) for extents in layout.records + layout.tags for at in extents.origin
    ]
    start, size = pieces[rng.integers(len(pieces))]
    bit = int(8 * start + rng.integers(8 * size))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    try:
        with RowFile(path, TABLES) as file:
            if not verify(file):
                assert content(file) == model and file.note == b"note 3"
    except StorageError as error:
        assert str(path) in str(error) and "copy" in str(error)


def test_a_flipped_bit_of_a_record_a_tag_a_commit_and_a_header(tmp_path: Path) -> None:
    path = tmp_path / "r.h5"
    with RowFile.create(path, TABLES) as file:
        file.write(0, np.array([77]), np.zeros((1, 20), np.uint8))
        file.commit(5, b"x")
    layout = extents.read(path)
    good = path.read_bytes()
    places = {
        "row 77 (slot 0 of /tables/C1/records)": layout.records[0].origin[0] + 19,
        "tables/C1/tags: the tag of slot 0": layout.tags[0].origin[0],
        "a commit in /index has other bytes": layout.index.origin[0] + 70,
        "page 1 of /commits: 1 of its 2 copies": layout.commits + 4096 + 20,
    }
    for words, at in places.items():
        broken = bytearray(good)
        broken[int(at)] ^= 4
        path.write_bytes(broken)
        try:
            with RowFile(path) as file:
                said = verify(file)
                if "commits" not in words:
                    with pytest.raises(StorageError, match="row 77"):
                        file.read(0, np.array([77]), np.zeros((1, 20), np.uint8), check=True)
                assert file.epoch == 5
        except StorageError as error:
            said = [str(error)]
        assert len(said) == 1 and words in said[0]


@given(share=st.floats(0, 1, exclude_max=True))
@example(0.998046875)  # only the attributes that name the format are gone
@settings(max_examples=15)
def test_a_truncated_file_is_told(tmp_path_factory, share):
    folder = tmp_path_factory.getbasetemp() / "cut"
    folder.mkdir(exist_ok=True)
    path = folder / "r.h5"
    good = folder / "good.h5"
    if not good.exists():
        small(good)
    data = good.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(StorageError, match=r"not a (neocpu )?file of rows|damaged file of rows"):
        RowFile(path)


def test_foreign_missing_newer_and_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.h5"
    with pytest.raises(StorageError, match=r"r.h5: cannot be opened: No such file.*RowFile.create"):
        RowFile(path)
    with h5py.File(path, "w") as file:
        file["x"] = 1
    with pytest.raises(StorageError, match="an HDF5 file, but not a neocpu file of rows"):
        RowFile(path)
    path.unlink()
    small(path)
    with pytest.raises(StorageError, match=r"holds RowTable\(name='C1'.*, not RowTable\(name='C9'"):
        RowFile(path, [RowTable("C9", 5, 20), TABLES[1]])
    with pytest.raises(StorageError, match="holds 2 tables, not 1"):
        RowFile(path, TABLES[:1])
    with pytest.raises(StorageError, match="exists already"):
        RowFile.create(path, TABLES)
    with pytest.raises(StorageError, match="distinct"):
        RowFile.create(tmp_path / "s.h5", [TABLES[0], TABLES[0]])
    with h5py.File(path, "r+") as file:
        file.attrs["note"] = "a stranger was here"
    with pytest.raises(StorageError, match="HDF5's metadata has other bytes than were written"):
        RowFile(path)
    path.unlink()
    monkeypatch.setattr(extents, "VERSION", 9)
    small(path)
    monkeypatch.setattr(extents, "VERSION", 1)
    with pytest.raises(StorageError, match=r"a file of rows of version 9.*upgrade"):
        RowFile(path)
    with monkeypatch.context() as patch:
        # a file system without hard links
        patch.setattr(os, "link", lambda *_: os.stat("/proc/nothing"))
        with pytest.raises(StorageError, match="exists already"):
            RowFile.create(path, TABLES)
        path.unlink()
        RowFile.create(path, TABLES).close()
    with pytest.raises(StorageError, match=r"cannot be made.*choose a folder"):
        RowFile.create(tmp_path / "no" / "r.h5", TABLES)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.h5"]


def test_a_header_that_became_zeros_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "r.h5"
    small(path)  # of three commits, the last of which is in page 1
    data = bytearray(path.read_bytes())
    at = extents.read(path).commits + 4096
    data[at : at + 4096] = bytes(4096)
    path.write_bytes(data)
    with RowFile(path) as file:
        assert file.epoch == 2  # as after a kill while the header was written
        assert verify(file) == ["page 1 of /commits: 2 of its 2 copies of a header are damaged"]
    with RowFile.create(tmp_path / "new.h5", TABLES) as file:
        assert verify(file) == []


@pytest.mark.parametrize("pages", [0, 1, 2, 3, 6, 9])
def test_a_file_that_ends_in_its_commits_is_told(tmp_path: Path, pages: int) -> None:
    path = tmp_path / "r.h5"
    small(path)
    os.truncate(path, extents.read(path).commits + 4096 * pages + 7)
    with pytest.raises(StorageError, match="damaged file of rows"):
        RowFile(path)


@pytest.mark.parametrize(
    ("key", "value"), [("rows", "many"), ("record", -3), ("columns", [1, 2]), ("strange", 1)]
)
def test_attributes_that_no_file_of_ours_has(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "r.h5"
    small(path)
    with h5py.File(path, "r+") as file:
        file["tables/C1"].attrs[key] = value
    with pytest.raises(StorageError, match="damaged file of rows") as caught:
        extents.read(path)  # without the guard, which knows that the file was changed
    assert "\n" not in str(caught.value)


def test_what_hdf5_says_in_several_lines_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.h5"
    small(path)

    def broken(*_: object) -> None:
        raise NotImplementedError("several\n  lines\tof\x00text")

    monkeypatch.setattr(extents, "_opened", broken)
    with pytest.raises(StorageError, match=r"cannot be read: several lines of\?text; restore"):
        RowFile(path)


def test_one_process_at_a_time_with_locks_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    path = tmp_path / "r.h5"
    small(path)
    with RowFile(path), pytest.raises(StorageError, match="in use by another process"):
        RowFile(path)
    with RowFile(path, write=False), RowFile(path, write=False):
        pass

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        RowFile(path),
        pytest.raises(StorageError, match=r"in use by process \d+ on .*remove .*r.h5.held"),
    ):
        RowFile(path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    held_by(path).write_text(
        f"process {gone.pid} on {__import__('socket').gethostname()} since then"
    )
    with RowFile(path):
        pass
    assert not held_by(path).exists()


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.h5"
    model = small(path)
    size = path.stat().st_size
    rows = np.arange(10**4)
    records = np.ones((10**4, 20), np.uint8)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with RowFile(path, TABLES) as file:
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            with pytest.raises(
                StorageError,
                match=r"cannot grow by [\d,]+ bytes: No space left.*what was committed is safe",
            ):
                file.write(0, rows, records)
        # HDF5 itself fails half-way: what it changed is put back
        with monkeypatch.context() as patch:
            patch.setattr(h5py.Dataset, "resize", full)
            with pytest.raises(StorageError, match="cannot grow"):
                file.write(0, rows, records)
        assert (
            path.stat().st_size == size
            and not extents.undo_of(path).exists()
            and content(file) == model
        )
        file.write(0, rows, records)  # there is space again
        file.commit(9)
        monkeypatch.setattr(RawFile, "sync", full)
        with pytest.raises(StorageError, match="cannot be written: No space left"):
            file.commit(10)
        with pytest.raises(StorageError, match="open it again"):
            file.write(0, rows, records)
    with RowFile(path) as file:
        assert file.epoch == 9 and len(content(file)[0]) >= rows.size
    with (
        RowFile(path, budget=size + 10**6) as file,
        pytest.raises(StorageError, match="raise its budget"),
    ):
        file.write(0, np.arange(10**5), np.ones((10**5, 20), np.uint8))


def test_a_growth_that_was_interrupted_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.h5"
    kept = tmp_path / "kept.growing"
    model = small(path)
    undo = extents.undo_of(path)
    before = path.read_bytes()
    commits = extents.read(path).commits
    monkeypatch.setattr(extents, "sync_folder", lambda _: undo.exists() and shutil.copy(undo, kept))
    with RowFile(path) as file:
        file.write(0, np.arange(3000), np.ones((3000, 20), np.uint8))
    after = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(8):  # a kill leaves some of what HDF5 changed
        mixed = np.frombuffer(after, np.uint8).copy()
        old = np.frombuffer(before.ljust(len(after), b"\0"), np.uint8)
        for block in np.flatnonzero(rng.random(len(after) // 64) < 0.5):
            mixed[64 * block : 64 * block + 64] = old[64 * block : 64 * block + 64]
        # the guard is written last
        mixed[commits : commits + 10 * 4096] = old[commits : commits + 10 * 4096]
        path.write_bytes(mixed[: rng.integers(len(before), len(after) + 1)])
        shutil.copy(kept, undo)
        with pytest.raises(StorageError, match="interrupted while it grew"):
            RowFile(path, write=False)
        with RowFile(path) as file:
            assert content(file) == model and not verify(file)
    shutil.copy(kept, undo)
    undo.write_bytes(undo.read_bytes()[:-1])  # killed before the growth began
    with RowFile(path) as file:
        file.commit(50)
        shutil.copy(
            kept, undo
        )  # removed, but the removal was lost: it has ended before a commit, so nothing is put back
    with RowFile(path) as file:
        assert file.epoch == 50 and content(file) == model


@given(seed=st.integers(0, 2**32))
@settings(max_examples=10)
def test_a_power_failure_leaves_a_commit(tmp_path_factory, seed):
    """Any subset of the writes after the last sync reaches the disk; all earlier writes do."""
    folder = tmp_path_factory.mktemp("power")
    path = folder / "r.h5"
    rng = np.random.default_rng(seed)
    disk = bytearray()
    pending = []
    states = []
    committed = 0
    put_at = RawFile.put_at
    sync = RawFile.sync
    grow = RowFile._grow

    def record(self, at, data):
        pending.append((at, bytes(data)))
        put_at(self, at, data)

    def settle(self):
        sync(self)
        crash()
        for at, data in pending:
            disk[at : at + len(data)] = data
        pending.clear()

    def grown(self, wanted):
        grow(self, wanted)  # which syncs
        disk[:] = path.read_bytes()
        pending.clear()

    def crash():
        for _ in range(2):
            image = bytearray(disk)
            for i in np.flatnonzero(rng.random(len(pending)) < rng.random()):
                at, data = pending[i]
                image[at : at + len(data)] = data
            (folder / "crashed.h5").write_bytes(image)
            with RowFile(folder / "crashed.h5") as crashed:
                assert crashed.epoch in (committed, committed + 1)
                assert content(crashed) == [*states, sealed][crashed.epoch] and not verify(crashed)

    now: Model = [{}, {}]
    sealed: Model = now
    with RowFile.create(path, TABLES, extent=1 << 12, access=Access(mapped=False)) as file:
        fill(file, rng, now, 500)
        file.commit(1)
        disk[:] = path.read_bytes()
        states += [None, [dict(part) for part in now]]
        committed = 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RawFile, "put_at", record)
            patch.setattr(RawFile, "sync", settle)
            patch.setattr(RowFile, "_grow", grown)
            for epoch in (2, 3):
                fill(file, rng, now, 20)
                fill(file, rng, now, 20)
                make = file.seal(epoch)
                sealed = [dict(part) for part in now]
                fill(file, rng, now, 20)  # meanwhile
                make()
                states.append(sealed)
                committed = epoch


def test_kills() -> None:
    done = ran([sys.executable, "-m", "tests.kill_rows", "--times", "4"], cwd=ROOT, timeout=300)
    assert done.returncode == 0 and done.stdout.startswith("4 kills"), done.stderr
