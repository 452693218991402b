"""Does the door of HDF5 files let in what we write, and answer everything else?"""

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.errors import DataError
from neocpu.tables.hdf5 import seal, walk
from neocpu.tables.hdf5.disk import PAGE, SparseFile, allocate
from neocpu.tables.hdf5.door import File, Kind
from neocpu.tables.hdf5.draft import Draft, Image

KIND = Kind(
    format="neocpu-test",
    version=2,
    error=DataError,
    missing="{path}: missing",
    damaged="{path}: damaged: {why}; copy it again",
    no_hdf5="{path}: not HDF5",
    foreign="{path}: foreign",
    newer="{path}: version {version}, newest {newest}",
)
ROWS = np.arange(6000, dtype=np.int64).reshape(-1, 2)


def write(path: Path, **attributes: object) -> Image:
    """A small sealed file whose rows are left out of the seal."""
    with Draft(order=True) as draft:
        draft.set("", {"format": "neocpu-test", "version": 1, "text": "täglich", **attributes})
        draft.put("small", np.arange(5, dtype=np.float32))
        draft.put("packed", np.zeros((300, 4)), compress=True)
        draft.text("run/config", "one\ntwo\n")
        draft.text("run/nothing", "")
        draft.reserve("tables/rows", ROWS.shape, "<i8")
        draft.set("tables/rows", {"yes": True, "share": 0.5, "counts": np.array([1, 2])})
        image = draft.image()
    image.write(path)
    with open(path, "r+b") as file:
        file.seek(image.offsets["tables/rows"])
        file.write(ROWS.tobytes())
    image.seal(path, ["tables/rows"])
    return image


def refused(path: Path, *, whole: bool = True) -> str:
    """What the door says."""
    with pytest.raises(DataError) as caught:
        File(path, KIND, whole=whole).close()
    text = str(caught.value)
    assert str(path) in text and "\n" not in text
    return text


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(path)
    with File(path, KIND) as file:
        assert file.sealed and file.attribute("text", str) == "täglich"
        assert file.children() == ("small", "packed", "run", "tables")
        assert file.text("run/config") == "one\ntwo\n" and file.text("run/nothing") == ""
        rows = file.array("tables/rows", "int64", (None, 2))
        assert (rows.map() == ROWS).all() and not rows.map().flags.writeable
        assert (rows.read() == ROWS).all() and (rows.rows(2990, 9999) == ROWS[2990:]).all()
        assert rows.attributes["yes"] is True and rows.attributes["share"] == 0.5
        assert rows.attributes["counts"].tolist() == [1, 2]
        assert file.array("packed").read().shape == (300, 4) and "packed" in file
        for why in (
            lambda: file.array("small", "int64"),
            lambda: file.array("small", "float32", (4,)),
            lambda: file.array("gone"),
            lambda: file.array("run"),
            lambda: file.attribute("text", int),
            lambda: file.attribute("gone", int),
            lambda: file.text("small"),
        ):
            with pytest.raises(DataError, match=r"damaged: .*; copy it again"):
                why()
    with h5py.File(path) as plain:  # anybody can read it
        assert (plain["tables/rows"][:] == ROWS).all()
        assert plain["run/config"][()].decode() == "one\ntwo\n"


def test_of_a_sealed_file_the_root_alone_may_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(path)
    with File(path, KIND, whole=False) as file:
        assert [*file.objects] == [""] and file.attribute("text", str) == "täglich"
    with h5py.File(path, "r+") as edited:
        edited.attrs.update({"more": 1})
        del edited.attrs["sealed"]
    with File(path, KIND, whole=False) as file:
        assert not file.sealed and "tables/rows" in file


def test_every_byte_but_those_left_out_is_under_the_seal(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    image = write(path)
    good = path.read_bytes()
    (start, count) = image.ranges["tables/rows"][0]
    chance = np.random.default_rng(1)
    for at in [0, 8, start - 1, start + count, len(good) - 1, *chance.integers(0, len(good), 60)]:
        broken = bytearray(good)
        broken[at] ^= 1 << int(chance.integers(8))
        path.write_bytes(broken)
        if start <= at < start + count:
            with File(path, KIND) as file:
                assert (file.array("tables/rows").read() != ROWS).sum() == 1
        else:
            assert refused(path) == refused(path, whole=False)


@given(st.integers(0, 2**32))
def test_a_cut_file_is_refused(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "cut"
    folder.mkdir(exist_ok=True)
    if not (folder / "good.h5").exists():
        write(folder / "good.h5")
    good = (folder / "good.h5").read_bytes()
    (folder / "a.h5").write_bytes(good[: seed % len(good)])
    refused(folder / "a.h5")


def test_missing_foreign_newer_and_odd_files(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    assert refused(path) == f"{path}: missing"
    path.write_bytes(b"no HDF5 at all")
    assert refused(path) == f"{path}: not HDF5"
    write(path, version=3)
    assert refused(path) == f"{path}: version 3, newest 2"
    write(path, format="other")
    assert refused(path) == f"{path}: foreign"
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in refused(path)
    path.unlink()
    path.mkdir()
    assert "not a regular file" in refused(path)


def _external(file: h5py.File) -> None:
    file["x"] = h5py.ExternalLink("/etc/hostname", "/")


def _soft(file: h5py.File) -> None:
    file["x"] = h5py.SoftLink("/small")


def _second(file: h5py.File) -> None:
    file["x"] = file["small"]


def _cycle(file: h5py.File) -> None:
    file["run/x"] = file["/"]


def _variable(file: h5py.File) -> None:
    file.create_dataset("x", data=["a", "b"], dtype=h5py.string_dtype())


def _reference(file: h5py.File) -> None:
    file.create_dataset("x", data=file["small"].ref, dtype=h5py.ref_dtype)


def _compound(file: h5py.File) -> None:
    file["x"] = np.zeros(3, [("a", "i4"), ("b", "f4")])


def _named_type(file: h5py.File) -> None:
    file["x"] = np.dtype("f8")


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(5,), dtype="f4")
    layout[:] = h5py.VirtualSource(file["small"])
    file.create_virtual_dataset("x", layout)


def _elsewhere(file: h5py.File) -> None:
    file.create_dataset("x", (4,), "f4", external=[("/etc/hostname", 0, 16)])


def _filter(file: h5py.File) -> None:
    file.create_dataset("x", data=np.zeros(5000), chunks=(5000,), compression="lzf")


def _unwritten(file: h5py.File) -> None:
    file.create_dataset("x", (10**12,), "f8")


def _endless(file: h5py.File) -> None:
    file.create_dataset("x", (2**40,), "f8", chunks=(2**20,), compression="gzip")


def _deep(file: h5py.File) -> None:
    file.create_group("/".join("x" * 40))


def _not_text(file: h5py.File) -> None:
    file.attrs.create("x", np.bytes_(b"\xff\xfe"))


EDITS = (
    (_external, "link to another place"),
    (_soft, "link to another place"),
    (_second, "second name"),
    (_cycle, "second name"),
    (_variable, "text of variable length"),
    (_reference, "neither numbers nor text"),
    (_compound, "neither numbers nor text"),
    (_named_type, "neither a group nor an array"),
    (_virtual, "view of other arrays"),
    (_elsewhere, "other files"),
    (_filter, "filter"),
    (_unwritten, "never written"),
    (_endless, "chunks"),
    (_deep, "nested deeper"),
    (_not_text, "not text in UTF-8"),
)


@pytest.mark.parametrize(("edit", "why"), EDITS, ids=lambda value: getattr(value, "__name__", ""))
def test_what_we_never_write_is_refused(
    edit: Callable[[h5py.File], None], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="v110") as file:
        file.attrs.update({"version": 1})
        file.attrs.create("format", np.bytes_("neocpu-test"))
        file["small"] = np.arange(5, dtype=np.float32)
        file.create_group("run")
        edit(file)
    seal.write(path, path.stat().st_size, [])  # so that the door looks at it by itself
    assert why in refused(path)


def test_a_chunk_of_the_largest_size_is_read_and_no_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="v110") as file:
        file.attrs.update({"version": 1})
        file.attrs.create("format", np.bytes_("neocpu-test"))
        file.create_dataset("x", data=np.zeros(2048), chunks=(1024,), compression="gzip")
    seal.write(path, path.stat().st_size, [])
    monkeypatch.setattr(walk, "MOST_CHUNK", 8 * 1024)
    File(path, KIND).close()
    monkeypatch.setattr(walk, "MOST_CHUNK", 8 * 1024 - 1)
    assert "has chunks of more than" in refused(path)


def test_a_seal_may_leave_out_the_first_bytes_and_the_last(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(10)))
    seal.write(path, 10, [(0, 3), (8, 2)])
    with open(path, "r+b") as file:
        found = seal.find(file.fileno())
        assert found is not None and found.left_out == [(0, 3), (8, 2)]
        for where, kept in ((0, True), (2, True), (8, True), (9, True), (3, False)):
            file.seek(where)
            file.write(b"x")
            file.flush()
            assert seal.holds(file.fileno(), found) == kept


def test_a_file_that_was_edited_lacks_its_seal(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(path)
    with h5py.File(path, "r+") as file:
        file.attrs["more"] = 1
    refused(path)


def test_a_mapped_file_that_is_cut_is_told_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(path)
    with File(path, KIND) as file:
        file.array("tables/rows").map()
        os.truncate(path, 4096)
        with pytest.raises(DataError, match="was cut from"):
            file.unchanged()


def test_ranges_of_a_seal_that_lie_outside_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    for ranges in ([(-5, 10)], [(50, 100)], [(20, 10), (25, 10)]):
        path.write_bytes(bytes(100))
        seal.write(path, 100, ranges)
        handle = os.open(path, os.O_RDONLY)
        with pytest.raises(seal.BrokenSeal, match="leaves out bytes"):
            seal.find(handle)
        os.close(handle)
    assert seal.joined([(30, 5), (10, 20), (40, 0), (50, 1)]) == [(10, 25), (50, 1)]


@given(st.lists(st.tuples(st.integers(0, 5 * PAGE), st.binary(min_size=1, max_size=300))))
def test_a_sparse_file_is_a_file(writes: list[tuple[int, bytes]]) -> None:
    sparse = SparseFile()
    plain = bytearray()
    for at, data in writes:
        plain.extend(bytes(max(at + len(data) - len(plain), 0)))
        plain[at : at + len(data)] = data
        sparse.seek(at)
        sparse.write(data)
    sparse.seek(0)
    assert sparse.read(len(plain) + 10) == bytes(plain)
    whole = bytearray(sparse.size)
    for at, data in sparse.pieces():
        whole[at : at + len(data)] = data
    assert whole == plain


def test_a_draft_of_a_terabyte_takes_no_memory() -> None:
    with Draft() as draft:
        draft.reserve("rows", (10**11,), "<i8")
        draft.put("index", np.arange(10))
        image = draft.image()
    assert image.size > 8 * 10**11
    assert sum(len(data) for _, data in image.pieces) < 1 << 20


def test_space_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file, pytest.raises(OSError, match=r"space|large"):
        allocate(file.fileno(), 0, 1 << 60)
