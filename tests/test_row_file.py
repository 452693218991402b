"""Does a file of rows return exactly what was written and committed, even to concurrent readers?"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.core.errors import StorageError
from neocpu.tables.storage import extents, row_log
from neocpu.tables.storage.device import Device
from neocpu.tables.storage.extents import RowTable
from neocpu.tables.storage.row_file import RowFile
from neocpu.tables.storage.row_io import Access, RawFile
from neocpu.tables.storage.row_tools import compact, verify
from tests.test_device import Clock

ROOT = Path(__file__).resolve().parent.parent
TABLES = (
    RowTable("C1", 10**10, 20, layout="weights <f4 [5]"),
    RowTable("C2[0:9]", 300, 7, 40, 8, 2),
)
Model = list[dict[int, bytes]]
WAYS = (Access(), Access(mapped=False, threads=3), Access("threads", threads=2))


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
    model: Model = []
    for number, table in enumerate(file.tables):
        rows = np.concatenate([np.zeros(0, np.int64), *file.rows(number)])
        assert (np.diff(rows) > 0).all()
        out = np.zeros((rows.size, table.record), np.uint8)
        assert file.read(number, rows, out, check=True).all()
        model.append(dict(zip(rows.tolist(), (record.tobytes() for record in out))))
    return model


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


@given(
    seed=st.integers(0, 2**32),
    way=st.sampled_from(WAYS),
    steps=st.lists(st.sampled_from("wwwcsmr"), max_size=14),
)
@settings(max_examples=25)
def test_content_is_that_of_a_dictionary(tmp_path_factory, seed, way, steps):
    path = tmp_path_factory.mktemp("rows") / "rows.h5"
    rng = np.random.default_rng(seed)
    model = [{}, {}]
    last = [{}, {}]
    sealed = [{}, {}]
    file = RowFile.create(path, TABLES, extent=1 << 12, access=way)
    make = None
    for epoch, step in enumerate(steps, 1):
        if step == "w":
            fill(file, rng, model)
        elif step == "r":
            file.close()
            file = RowFile(path, TABLES, access=way)
            make = None
            model = [dict(part) for part in last]
        elif make is None and step in "cs":
            make = file.seal(epoch, b"%d" % epoch)
            sealed = [dict(part) for part in model]
        if make is not None and step in "cm":
            make()
            make = None
            last = sealed
        if step == "r":
            assert file.note == (b"%d" % file.epoch if file.epoch else b"")
        assert content(file) == model
    assert not verify(file)
    stats = file.stats()
    assert stats["rows"] == sum(map(len, model)) and stats["bytes"] == path.stat().st_size
    file.close()


def test_rows_that_were_never_written_are_left_out(tmp_path: Path) -> None:
    with RowFile.create(tmp_path / "r.h5", TABLES) as file:
        file.write(0, np.array([5, 9**10]), np.full((2, 20), 3, np.uint8))
        out = np.full((4, 20), 7, np.uint8)
        present = file.read(0, np.array([6, 9**10, 5, 0]), out)
        assert present.tolist() == [False, True, True, False] and out[:, 0].tolist() == [7, 3, 3, 7]
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
    path = tmp_path / "r.h5"
    rows = np.arange(300)
    with RowFile.create(path, TABLES, extent=1 << 12) as file:
        sizes = []
        for epoch in range(1, 40):
            file.write(1, rows, np.full((300, 7), epoch, np.uint8))
            file.commit(epoch)
            sizes.append(path.stat().st_size)
        stats = file.stats()
        assert (
            sizes[5] == sizes[-1]
            and stats["slots"] <= 4 * rows.size
            and stats["log_bytes"] < 1 << 18
        )
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
                alive[change.born] = True
                alive[change.died] = False
        for table, alive, expected in zip(tables, live, model):
            records = table["records"][:][alive, : table.attrs["record"]]
            rows = table["tags"]["row"][alive]
            assert dict(zip(rows.tolist(), (r.tobytes() for r in records))) == expected
        assert tables[1].attrs["first_row"] == 40 and tables[0].attrs["layout"] == "weights <f4 [5]"
        assert file["tables/C1/records"].compression is None
    assert (tmp_path / "r.h5").read_bytes()[8] == 0  # superblock of the earliest format


@pytest.mark.parametrize("way", WAYS)
def test_one_thread_writes_while_others_read(tmp_path: Path, way: Access) -> None:
    rows = np.arange(3000)
    with (
        RowFile.create(tmp_path / "r.h5", TABLES, extent=1 << 12, access=way) as file,
        ThreadPoolExecutor(3) as pool,
    ):
        file.write(0, rows, np.full((rows.size, 20), 5, np.uint8))
        making = pool.submit(file.seal(1))
        done = threading.Event()

        def read() -> int:
            out = np.zeros((rows.size, 20), np.uint8)
            times = 0
            while not done.is_set() or not times:
                assert file.read(0, rows, out).all() and (out == 5).all()
                times += 1
            return times

        readers = [pool.submit(read) for _ in range(2)]
        # the file grows, rows move and slots are used again, while commits are made
        for epoch in range(2, 16):
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
    rows = np.arange(300)
    out = np.zeros((300, 7), np.uint8)
    for limits in ({"iops": 1000.0}, {"bandwidth": 7000.0}):
        # not the machine's: what a sleep took too long there is given back to the next read
        clock = Clock(0.0)
        device = Device(**limits, clock=clock, sleep=clock.sleep)
        with RowFile(tmp_path / "r.h5", device=device) as file:
            records = int(file.read(1, rows, out).sum())
            start = clock.now
            file.read(1, rows, out)
            assert records and clock.now - start == pytest.approx(records / 1000)


@pytest.mark.parametrize("reads", ["mapped", "threads"])
def test_dropped_pages_are_read_again(tmp_path: Path, reads: str) -> None:
    model = small(tmp_path / "r.h5")
    with RowFile(tmp_path / "r.h5", access=Access(reads)) as file:
        file.drop_pages()
        assert content(file) == model
        file.drop_pages()
        fill(file, np.random.default_rng(3), model)
        assert content(file) == model


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux says what is cached")
@pytest.mark.parametrize(("cold", "asked"), [(0, False), (2, False), (3, True), (None, False)])
def test_pages_of_cold_records_are_asked_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: int | None, asked: bool
) -> None:
    """They are cold where more than an eighth of 16 is; None: the system cannot say."""
    places = extents.Extents("records", 16, 1000, np.array([8192, 40960]))
    slots = np.insert(np.arange(32)[::-1], 7, -1)  # one is no row
    sampled: list[int] = []
    pages: list[int] = []

    def preadv(handle: int, buffers: list[bytearray], at: int, flags: int) -> int:
        assert len(buffers[0]) == 1 and flags == os.RWF_NOWAIT
        sampled.append(at)
        if cold is None:
            raise OSError("not supported")
        if len(sampled) <= cold:
            raise BlockingIOError
        return 1

    def advise(handle: int, at: int, count: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        pages.extend(range(at // 4096, -(-(at + count) // 4096)))

    path = tmp_path / "records"
    path.write_bytes(np.arange(1 << 16, dtype=np.uint16).tobytes())
    raw = RawFile(os.open(path, os.O_RDONLY), False, Access(), Device())
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    out = np.zeros((33, 1000), np.uint8)
    raw.gather(places, slots, out)
    raw.close()
    begins = [40960 * (s // 16) + 8192 * (s < 16) + s % 16 * 1000 for s in slots if s >= 0]
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    for record, begin in zip(out[slots >= 0], begins):
        np.testing.assert_array_equal(record, whole[begin : begin + 1000])
    assert len(sampled) == (1 if cold is None else 16) and {*sampled} <= {*begins}
    needed = {at // 4096 for begin in begins for at in (begin, begin + 999)}
    assert pages == (sorted(needed) if asked else [])


def test_tier_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from neocpu.cli import run

    path = tmp_path / "r.h5"
    model = small(path, 6)
    with RowFile(path) as file:
        file.write(0, np.arange(20000), np.ones((20000, 20), np.uint8))
    assert run(["tier", "show", str(path)]) == 0
    text = capsys.readouterr().out
    assert (
        f"{len(model[0]):,} of 10,000,000,000 rows of 20 bytes: weights <f4 [5]" in text
        and "epoch 6" in text
    )
    assert run(["tier", "verify", str(path)]) == 0
    assert "are as they were written" in capsys.readouterr().out
    assert run(["tier", "compact", str(path)]) == 0
    assert "bytes before" in capsys.readouterr().out
    with RowFile(path, TABLES) as file:
        assert content(file) == model and (file.epoch, file.note) == (6, b"note 6")
    assert [p.name for p in tmp_path.iterdir()] == ["r.h5"]
    data = bytearray(path.read_bytes())
    data[int(extents.read(path).records[1].origin[0])] ^= 1
    path.write_bytes(data)
    assert run(["tier", "verify", str(path)]) == 1
    assert "has other bytes than were written" in capsys.readouterr().out
    with pytest.raises(StorageError, match="other bytes"):
        run(["tier", "compact", str(path)])
    assert path.read_bytes() == data


def test_a_file_without_any_commit_is_compacted_to_one(tmp_path: Path) -> None:
    """Its next commit may be the first one."""
    path = tmp_path / "r.h5"
    RowFile.create(path, TABLES).close()
    compact(path)
    with RowFile(path, TABLES) as file:
        assert (file.epoch, file.note, verify(file)) == (0, b"", [])
        file.commit(1, b"first")
        assert file.note == b"first"


@pytest.mark.parametrize("write", [False, True])
def test_a_pipe_is_no_file_of_rows(tmp_path, write):
    os.mkfifo(tmp_path / "pipe.h5")
    for path in (tmp_path / "pipe.h5", Path("/dev/null")):
        with pytest.raises(StorageError, match="not a regular file"):
            RowFile(path, write=write)


@pytest.mark.parametrize("name", ["", ".", "a/b", TABLES[0].name])
def test_names_that_tables_cannot_have(tmp_path: Path, name: str) -> None:
    tables = (*TABLES, RowTable(name, 300, 7))
    with pytest.raises(StorageError, match="names of tables must be distinct, not empty and"):
        RowFile.create(tmp_path / "r.h5", tables)
    assert not [*tmp_path.iterdir()]
