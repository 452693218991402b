"""Does a file of rows give back exactly what was committed, however it ended, and say in words what is wrong with it?"""

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.errors import StorageError
from neocpu.storage import hdf5, row_log
from neocpu.storage.hdf5 import RowTable
from neocpu.storage.lock import held_by
from neocpu.storage.row_file import RowFile
from neocpu.storage.row_io import RawFile
from neocpu.storage.row_tools import verify

ROOT = Path(__file__).resolve().parent.parent
TABLES = (RowTable("C1", 10**10, 20, layout="weights <f4 [5]"), RowTable("C2[0:9]", 300, 7, 40, 8, 2))
Model = list[dict[int, bytes]]
WAYS = ({}, {"mapped": False, "threads": 3}, {"reads": "threads", "threads": 2})


def fill(file: RowFile, rng: np.random.Generator, model: Model, most: int = 60) -> None:
    """One write to every table."""
    for number, table in enumerate(file.tables):
        rows = np.unique(rng.integers(0, min(table.rows, 500), rng.integers(0, most)))
        rows = rng.permutation(rows) * (2**24 if table.rows > 2**34 else 1)
        records = rng.integers(0, 256, (rows.size, table.record), np.uint8)
        file.write(number, rows, records)
        model[number] |= dict(zip(rows.tolist(), (record.tobytes() for record in records)))


def content(file: RowFile) -> Model:
    """Everything in a file, every record checked."""
    found: Model = []
    for number, table in enumerate(file.tables):
        rows = np.concatenate([np.zeros(0, np.int64), *file.rows(number)])
        assert (np.diff(rows) > 0).all()
        out = np.zeros((rows.size, table.record), np.uint8)
        assert file.read(number, rows, out, check=True).all()
        found.append(dict(zip(rows.tolist(), (record.tobytes() for record in out))))
    return found


def small(path: Path, commits: int = 3, seed: int = 0) -> Model:
    """A small file of some commits, and some writes after them."""
    model: Model = [{}, {}]
    rng = np.random.default_rng(seed)
    with RowFile.create(path, TABLES, extent=1 << 12) as file:
        for epoch in range(1, commits + 1):
            fill(file, rng, model)
            file.commit(epoch, b"note %d" % epoch)
        fill(file, rng, [{}, {}])
    return model


@given(seed=st.integers(0, 2**32), way=st.sampled_from(WAYS), steps=st.lists(st.sampled_from("wwwcsmr"), max_size=14))
@settings(max_examples=25)
def test_content_is_that_of_a_dictionary(tmp_path_factory, seed, way, steps):
    path = tmp_path_factory.mktemp("rows") / "rows.h5"
    rng, now, last, sealed = np.random.default_rng(seed), [{}, {}], [{}, {}], [{}, {}]
    file, make = RowFile.create(path, TABLES, extent=1 << 12, **way), None
    for epoch, step in enumerate(steps, 1):
        if step == "w":
            fill(file, rng, now)
        elif step == "r":
            file.close()
            file, make = RowFile(path, TABLES, **way), None
            now = [dict(part) for part in last]
        elif make is None and step in "cs":
            make, sealed = file.seal(epoch, b"%d" % epoch), [dict(part) for part in now]
        if make is not None and step in "cm":
            make()
            make, last = None, sealed
        if step == "r":
            assert file.note == (b"%d" % file.epoch if file.epoch else b"")
        assert content(file) == now
    assert not verify(file)
    stats = file.stats()
    assert stats["rows"] == sum(map(len, now)) and stats["bytes"] == path.stat().st_size
    file.close()


def test_rows_that_were_never_written_are_left_out(tmp_path: Path) -> None:
    with RowFile.create(tmp_path / "r.h5", TABLES) as file:
        file.write(0, np.array([5, 9**10]), np.full((2, 20), 3, np.uint8))
        out = np.full((4, 20), 7, np.uint8)
        found = file.read(0, np.array([6, 9**10, 5, 0]), out)
        assert found.tolist() == [False, True, True, False] and out[:, 0].tolist() == [7, 3, 3, 7]
        with pytest.raises(ValueError, match="table C1 has rows 0 to 9999999999"):
            file.read(0, np.array([10**10]), out[:1])
        with pytest.raises(ValueError, match=r"contiguous u8\[1, 20\]"):
            file.write(0, np.array([1]), out)
        with pytest.raises(ValueError, match="epoch 0 is not after 0"):
            file.commit(0)


def test_rows_changed_since_the_last_commit_are_known(tmp_path: Path) -> None:
    with RowFile.create(tmp_path / "r.h5", TABLES) as file:
        file.write(1, np.array([9, 5, 7]), np.ones((3, 7), np.uint8))
        assert file.changed(1).tolist() == [5, 7, 9] and file.changed(0).size == 0
        file.commit(1)
        file.write(1, np.array([8, 5]), np.ones((2, 7), np.uint8))
        file.write(1, np.array([5]), np.ones((1, 7), np.uint8))
        assert file.changed(1).tolist() == [5, 8] and file.stats()["changed"] == 2


def test_a_sealed_commit_is_not_what_comes_after(tmp_path: Path) -> None:
    with RowFile.create(tmp_path / "r.h5", TABLES) as file:
        file.write(1, np.array([5, 7]), np.ones((2, 7), np.uint8))
        make = file.seal(1, b"one")
        with pytest.raises(ValueError, match="the commit before is not made yet"):
            file.seal(2)
        file.write(1, np.array([7, 8]), np.full((2, 7), 2, np.uint8))
        assert file.epoch == 0 and file.changed(1).tolist() == [7, 8]
        make()
        assert file.epoch == 1 and file.note == b"one" and file.changed(1).tolist() == [7, 8]
    with RowFile(tmp_path / "r.h5") as file:
        assert content(file) == [{}, {5: b"\1" * 7, 7: b"\1" * 7}]


def test_slots_are_used_again_and_the_file_stays_bounded(tmp_path: Path) -> None:
    path, rows = tmp_path / "r.h5", np.arange(300)
    with RowFile.create(path, TABLES, extent=1 << 12) as file:
        sizes = []
        for epoch in range(1, 40):
            file.write(1, rows, np.full((300, 7), epoch, np.uint8))
            file.commit(epoch)
            sizes.append(path.stat().st_size)
        stats = file.stats()
        assert sizes[5] == sizes[-1] and stats["slots"] <= 4 * rows.size and stats["log_bytes"] < 1 << 18
        assert 8 < stats["index_bytes_per_row"] < 40


def test_a_stranger_reads_it_with_h5py(tmp_path: Path) -> None:
    model = small(tmp_path / "r.h5")
    with h5py.File(tmp_path / "r.h5") as file:  # as docs/memory.md says
        pages = [row_log.headers(page.tobytes())[0] for page in file["commits"][:2]]
        newest = max((h for h in pages if h), key=lambda h: h.epoch)
        tables = sorted(file["tables"].values(), key=lambda table: table.attrs["number"])
        log = file["index"][newest.start : newest.end].tobytes()
        live = [np.zeros(len(table["tags"]), bool) for table in tables]
        for commit in row_log.decode(log, [table["tags"].chunks[0] for table in tables]):
            for alive, change in zip(live, commit.changes):
                if change.live is not None:
                    alive[: change.live.size] = change.live
                alive[change.born], alive[change.died] = True, False
        for table, alive, expected in zip(tables, live, model):
            records = table["records"][:][alive, : table.attrs["record"]]
            rows = table["tags"]["row"][alive]
            assert dict(zip(rows.tolist(), (r.tobytes() for r in records))) == expected
        assert tables[1].attrs["first_row"] == 40 and tables[0].attrs["layout"] == "weights <f4 [5]"
        assert file["tables/C1/records"].compression is None
    assert (tmp_path / "r.h5").read_bytes()[8] == 0  # superblock of the earliest format


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_a_flipped_bit_is_found_or_does_not_matter(tmp_path_factory, seed):
    folder = tmp_path_factory.getbasetemp() / "flip"
    folder.mkdir(exist_ok=True)
    path, good = folder / "r.h5", folder / "good.h5"
    model = getattr(test_a_flipped_bit_is_found_or_does_not_matter, "model", None)
    if model is None:
        model = test_a_flipped_bit_is_found_or_does_not_matter.model = small(good)
    data = bytearray(good.read_bytes())
    layout = hdf5.read(good)
    rng = np.random.default_rng(seed)
    pieces = [(layout.commits, 4096 + 64), (layout.index.origin[0], 4096), *hdf5.metadata(layout, len(data))]
    pieces += [(int(at), extents.size) for extents in layout.records + layout.tags for at in extents.origin]
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
    layout, good = hdf5.read(path), path.read_bytes()
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
@settings(max_examples=15)
def test_a_truncated_file_is_told(tmp_path_factory, share):
    folder = tmp_path_factory.getbasetemp() / "cut"
    folder.mkdir(exist_ok=True)
    path, good = folder / "r.h5", folder / "good.h5"
    if not good.exists():
        small(good)
    data = good.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(StorageError, match=r"not a file of rows|damaged file of rows"):
        RowFile(path)


def test_foreign_missing_newer_and_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(hdf5, "VERSION", 9)
    small(path)
    monkeypatch.setattr(hdf5, "VERSION", 1)
    with pytest.raises(StorageError, match=r"a file of rows of version 9.*upgrade"):
        RowFile(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", lambda *_: os.stat("/proc/nothing"))  # a file system without hard links
        with pytest.raises(StorageError, match="exists already"):
            RowFile.create(path, TABLES)
        path.unlink()
        RowFile.create(path, TABLES).close()
    with pytest.raises(StorageError, match=r"cannot be made.*choose a folder"):
        RowFile.create(tmp_path / "no" / "r.h5", TABLES)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.h5"]


def test_one_process_at_a_time_with_locks_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with RowFile(path), pytest.raises(StorageError, match=r"in use by process \d+ on .*remove .*r.h5.held"):
        RowFile(path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    held_by(path).write_text(f"process {gone.pid} on {__import__('socket').gethostname()} since then")
    with RowFile(path):
        pass
    assert not held_by(path).exists()


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.h5"
    model = small(path)
    size = path.stat().st_size
    rows, records = np.arange(10**4), np.ones((10**4, 20), np.uint8)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with RowFile(path, TABLES) as file:
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            with pytest.raises(
                StorageError, match=r"cannot grow by [\d,]+ bytes: No space left.*what was committed is safe"
            ):
                file.write(0, rows, records)
        with monkeypatch.context() as patch:  # HDF5 itself fails half-way: what it changed is put back
            patch.setattr(h5py.Dataset, "resize", full)
            with pytest.raises(StorageError, match="cannot grow"):
                file.write(0, rows, records)
        assert path.stat().st_size == size and not hdf5.undo_of(path).exists() and content(file) == model
        file.write(0, rows, records)  # there is space again
        file.commit(9)
        monkeypatch.setattr(RawFile, "sync", full)
        with pytest.raises(StorageError, match="cannot be written: No space left"):
            file.commit(10)
        with pytest.raises(StorageError, match="open it again"):
            file.write(0, rows, records)
    with RowFile(path) as file:
        assert file.epoch == 9 and len(content(file)[0]) >= rows.size
    with RowFile(path, budget=size + 10**6) as file, pytest.raises(StorageError, match="raise its budget"):
        file.write(0, np.arange(10**5), np.ones((10**5, 20), np.uint8))


def test_a_growth_that_was_interrupted_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kept = tmp_path / "r.h5", tmp_path / "kept.growing"
    model = small(path)
    undo, before, commits = hdf5.undo_of(path), path.read_bytes(), hdf5.read(path).commits
    monkeypatch.setattr(hdf5, "sync_folder", lambda _: undo.exists() and shutil.copy(undo, kept))
    with RowFile(path) as file:
        file.write(0, np.arange(3000), np.ones((3000, 20), np.uint8))
    after = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(8):  # a kill leaves some of what HDF5 changed
        mixed = np.frombuffer(after, np.uint8).copy()
        old = np.frombuffer(before.ljust(len(after), b"\0"), np.uint8)
        for block in np.flatnonzero(rng.random(len(after) // 64) < 0.5):
            mixed[64 * block : 64 * block + 64] = old[64 * block : 64 * block + 64]
        mixed[commits : commits + 10 * 4096] = old[commits : commits + 10 * 4096]  # the guard is written last
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
    """Writes that were not synced reach the disk in any subset; those before the last sync all did."""
    folder = tmp_path_factory.mktemp("power")
    path, rng = folder / "r.h5", np.random.default_rng(seed)
    disk, pending, states, committed = bytearray(), [], [], 0
    put_at, sync, grow = RawFile.put_at, RawFile.sync, RowFile._grow

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
    with RowFile.create(path, TABLES, extent=1 << 12, mapped=False) as file:
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
                make, sealed = file.seal(epoch), [dict(part) for part in now]
                fill(file, rng, now, 20)  # meanwhile
                make()
                states.append(sealed)
                committed = epoch


@pytest.mark.parametrize("way", WAYS)
def test_one_thread_writes_while_others_read(tmp_path: Path, way: dict) -> None:
    rows = np.arange(3000)
    with RowFile.create(tmp_path / "r.h5", TABLES, extent=1 << 12, **way) as file, ThreadPoolExecutor(3) as pool:
        file.write(0, rows, np.full((rows.size, 20), 5, np.uint8))
        making = pool.submit(file.seal(1))
        done = threading.Event()

        def read() -> int:
            out, times = np.zeros((rows.size, 20), np.uint8), 0
            while not done.is_set() or not times:
                assert file.read(0, rows, out).all() and (out == 5).all()
                times += 1
            return times

        readers = [pool.submit(read) for _ in range(2)]
        for epoch in range(2, 16):  # the file grows, rows move and slots are used again, while commits are made
            file.write(0, np.arange(3000, 3000 + 300 * epoch), np.ones((300 * epoch, 20), np.uint8))
            file.write(0, rows, np.full((rows.size, 20), 5, np.uint8))
            making.result()
            making = pool.submit(file.seal(epoch))
        making.result()
        done.set()
        assert all(reader.result() > 0 for reader in readers)


def test_threads_make_and_grow_files_of_their_own(tmp_path: Path) -> None:
    rows = np.arange(500)

    def one(number: int) -> None:
        with RowFile.create(tmp_path / f"{number}.h5", TABLES, extent=1 << 12) as file:
            for epoch in range(1, 4):
                file.write(0, rows * epoch, np.full((500, 20), number, np.uint8))
                file.commit(epoch)
            out = np.zeros((500, 20), np.uint8)
            assert file.read(0, rows, out).all() and (out == number).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(16)))


def test_a_slower_device_takes_longer(tmp_path: Path) -> None:
    small(tmp_path / "r.h5")
    rows, out = np.arange(300), np.zeros((300, 7), np.uint8)
    for limit in ({"iops": 1000.0}, {"bandwidth": 7000.0}):
        with RowFile(tmp_path / "r.h5", **limit) as file:
            found = int(file.read(1, rows, out).sum())
            start = time.monotonic()
            file.read(1, rows, out)
            assert time.monotonic() - start > 0.9 * found / 1000


@pytest.mark.parametrize("reads", ["mapped", "threads"])
def test_dropped_pages_are_read_again(tmp_path: Path, reads: str) -> None:
    model = small(tmp_path / "r.h5")
    with RowFile(tmp_path / "r.h5", reads=reads) as file:
        file.drop_pages()
        assert content(file) == model
        file.drop_pages()
        fill(file, np.random.default_rng(3), model)
        assert content(file) == model


def test_tier_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from neocpu.cli import run

    path = tmp_path / "r.h5"
    model = small(path, 6)
    with RowFile(path) as file:
        file.write(0, np.arange(20000), np.ones((20000, 20), np.uint8))
    assert run(["tier", "show", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"{len(model[0]):,} of 10,000,000,000 rows of 20 bytes: weights <f4 [5]" in text and "epoch 6" in text
    assert run(["tier", "verify", str(path)]) == 0
    assert "are as they were written" in capsys.readouterr().out
    assert run(["tier", "compact", str(path)]) == 0
    assert "bytes before" in capsys.readouterr().out
    with RowFile(path, TABLES) as file:
        assert content(file) == model and (file.epoch, file.note) == (6, b"note 6")
    assert [p.name for p in tmp_path.iterdir()] == ["r.h5"]
    data = bytearray(path.read_bytes())
    data[int(hdf5.read(path).records[1].origin[0])] ^= 1
    path.write_bytes(data)
    assert run(["tier", "verify", str(path)]) == 1
    assert "has other bytes than were written" in capsys.readouterr().out
    with pytest.raises(StorageError, match="other bytes"):
        run(["tier", "compact", str(path)])
    assert path.read_bytes() == data


def test_kills() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kill_rows", "--times", "10"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and done.stdout.startswith("10 kills"), done.stderr
