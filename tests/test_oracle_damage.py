"""Is every damaged suite or file of answers refused with a word, before it costs memory?"""

import json
import os
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from sealed_files import as_older, sealed_anew

from neocpu.core.errors import OracleError
from neocpu.oracle import answers
from neocpu.oracle.answers import read_answers
from neocpu.oracle.cases import all_cases
from neocpu.oracle.suite import Suite, ask, write_suite
from neocpu.tables.hdf5 import draft


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A suite of two cases."""
    path = tmp_path_factory.mktemp("oracle") / "suite.h5"
    write_suite(path, (ask(case, "reference") for case in islice(all_cases(["lookup"]), 2)), 0)
    return path.read_bytes()


@pytest.fixture
def suite(tmp_path: Path, written: bytes) -> Path:
    path = tmp_path / "suite.h5"
    path.write_bytes(written)
    return path


def read_all(path: Path) -> None:
    """Read all questions of a suite, or all answers of a file."""
    with Suite(path) if path.name == "suite.h5" else read_answers(path) as content:
        for name in content:
            content[name]


def refused(path: Path, words: str | None = None) -> None:
    with pytest.raises(OracleError, match=words) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)


# ---- suites ----


def test_every_flipped_bit_of_a_suite_is_found(suite: Path, written: bytes) -> None:
    random = np.random.default_rng(0)
    for where in random.integers(0, len(written), 200).tolist():
        data = bytearray(written)
        data[where] ^= 1 << int(random.integers(8))
        suite.write_bytes(data)
        refused(suite)


def first_case(file: h5py.File) -> h5py.Group:
    return next(iter(file["cases"].values()))


def set_input(value: Any) -> Callable[[h5py.File], None]:
    def edit(file: h5py.File) -> None:
        inputs = first_case(file)["inputs"]
        name = next(name for name in inputs if isinstance(inputs[name], h5py.Dataset))
        del inputs[name]
        inputs[name] = value

    return edit


EDITS: dict[str, Callable[[h5py.File], None]] = {
    "another version": lambda file: file.attrs.update({"version": 0}),
    "a newer version": lambda file: file.attrs.update({"version": 3}),
    "a seed that is text": lambda file: file.attrs.update({"seed": "0"}),
    "another seed": lambda file: file.attrs.update({"seed": 1}),
    "no hash": lambda file: file.attrs.__delitem__("sha256"),
    "a case is gone": lambda file: file["cases"].__delitem__(next(iter(file["cases"]))),
    "a case is an array": lambda file: file["cases"].update({"x": 3}),
    "no options": lambda file: first_case(file).__delitem__("options"),
    "options of arrays": lambda file: first_case(file)["options"].attrs.update({"pooling": [1]}),
    "no outputs": lambda file: first_case(file).__delitem__("outputs"),
    "an unknown part": lambda file: first_case(file)["outputs/out"].update({"strange": 3}),
    "exact is text": lambda file: first_case(file)["outputs/out"].attrs.update({"exact": "yes"}),
    "codes of another width": lambda file: next(
        iter(first_case(file)["outputs/out"].values())
    ).attrs.update({"format": "bf16"}),
    "text as input": set_input("text"),
    "other numbers": set_input(np.zeros(3)),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_suites_that_nobody_writes(suite: Path, edit: Callable[[h5py.File], None]) -> None:
    with sealed_anew(suite) as file:
        edit(file)
    refused(suite)


@pytest.mark.parametrize("name", ["a newer version", "a case is an array", "other numbers"])
def test_suites_that_nobody_writes_and_nobody_sealed(suite: Path, name: str) -> None:
    with as_older(suite) as file:
        EDITS[name](file)
    refused(suite)


def test_arrays_that_are_large_once_they_are_decompressed(suite: Path) -> None:
    with as_older(suite) as file:
        inputs = first_case(file)["inputs"]
        packed = zlib.compress(bytes(1 << 25))
        zeros = inputs.create_dataset(
            "zeros", (1 << 29,), "u1", compression="gzip", chunks=(1 << 25,)
        )
        for first in range(0, 1 << 29, 1 << 25):
            zeros.id.write_direct_chunk((first,), packed)
    refused(suite, "takes 536,870,912 bytes")


def test_a_full_disk_leaves_no_half_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(draft, "allocate", full)
    with pytest.raises(OracleError, match="No space left on device"):
        write_suite(tmp_path / "s.h5", [], 0)
    assert os.listdir(tmp_path) == []


# ---- answers ----


def npy(descr: str, shape: tuple[int, ...], data: bytes) -> bytes:
    """A member of an npz file, whatever its header says."""
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def archive(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members:
            file.writestr(name, data)
    return path


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (npy("<f4", (2**40,), b"1234"), "does not have 4 bytes"),
        (npy("<f4", (2,), bytes(9)), "does not have 9 bytes"),
        (npy("<f4", (-2,), b""), "no array of numbers"),
        (npy("|O", (1,), bytes(8)), "no array of numbers"),
        (npy("<U2", (1,), bytes(8)), "are not numbers"),
        (npy("nonsense", (1,), bytes(8)), "cannot be read"),
        (npy("<f4", (0, 2**70), b""), "cannot be read"),
        (b"\x93NUMPY\x09\x00", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_npz_members_are_looked_at_before_they_are_read(
    tmp_path: Path, member: bytes, words: str
) -> None:
    refused(archive(tmp_path / "a.npz", [("a/out.npy", member)]), words)


def test_npz_bombs_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_BYTES", 8 << 20)
    bomb = archive(tmp_path / "a.npz", [("a/out.npy", npy("<f4", (2**22,), bytes(1 << 24)))])
    short = archive(tmp_path / "b.npz", [("a/out.npy", npy("<f4", (4,), bytes(1 << 22)))])
    tracemalloc.start()
    refused(bomb, "takes 16,777,.* bytes; arrays of answers have at most")
    refused(short, "does not have")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20


def test_npz_files_that_nobody_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    whole = npy("<f4", (3,), bytes(12))
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive(path, [("a/out.npy", whole), ("a/out.npy", whole)])
    refused(path, "twice")
    refused(archive(path, [("a/out.txt", b"hello")]), "cannot be read")
    archive(path, [("a/out.npy", whole)])
    data = path.read_bytes()
    for method in (b"\x63\x00", b"\x0c\x00", b"\x0e\x00"):  # unknown, bzip2, LZMA
        changed = data.replace(b"\x08\x00", method)
        path.write_bytes(changed)
        refused(path)
    path.write_bytes(data[:-30])
    refused(path, "not an npz file")


def safetensors(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(shape: Any, first: Any, last: Any, kind: Any = "F32") -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [first, last]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b'{"a":' + b"[" * 200_000, "no valid JSON"),
        (b'{"a": {}, "a": {}}', "twice"),
        ({"a": entry([1], 0, 4), "/a": entry([1], 4, 8)}, "twice"),
        ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, "within another"),
        ({"a": entry([2**40], 0, 2**42)}, "ends at byte"),
        ({"a": entry([-1], 4, 0)}, "no whole numbers"),
        ({"a": entry([1.0], 0, 4)}, "no whole numbers"),
        ({"a": entry([True], 0, 4)}, "no whole numbers"),
        ({"a": entry(["1"], 0, 4)}, "no whole numbers"),
        ({"a": entry([1], 0, 4, [])}, "no valid JSON"),
        ({"a": entry([0, 2**70], 0, 0)}, "cannot be read"),
        ({"a": entry([1] * 99, 0, 4)}, "cannot be read"),
        ({"a": 3}, "no valid JSON"),
        ({"a\n\udc80": entry([1], 0, 4)}, "no text"),
        (b'{"\xff\xfe": 1}', "no valid JSON"),
        (b"{}"[:1], "no valid JSON"),
    ],
)
def test_safetensors_that_nobody_writes(tmp_path: Path, header: object, words: str) -> None:
    refused(safetensors(tmp_path / "a.safetensors", header, bytes(12)), words)


def test_hdf5_answers_that_are_not_arrays_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "answers.h5"

    def make(value: Any) -> Path:
        with h5py.File(path, "w") as file:
            file["a/out"] = value
        return path

    refused(make(h5py.ExternalLink("other.h5", "x")), "a link to another place or file")
    refused(make(h5py.SoftLink("/a")), "a link to another place or file")
    refused(make(np.zeros(2, np.complex64)), "neither numbers nor text")
    refused(make("text"), "are not numbers")
    make(np.zeros((40, 40)))
    with h5py.File(path, "r+") as file:
        file.attrs["format"] = [1, 2]
        file["b"] = np.zeros(2, np.uint16)
        file["b"].attrs["format"] = "bf16"
    read_all(path)
    path.write_bytes(path.read_bytes()[:3000])
    refused(path, "truncated")


def test_answers_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, words in (
        (tmp_path, "not a regular file"),
        (tmp_path / "fifo", "not a regular file"),
        (tmp_path / "nothing", "no such file"),
        (Path("a\0b"), "cannot be read"),
    ):
        refused(path, words)
