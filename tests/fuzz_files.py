"""Which files do the readers of checkpoints, suites, answers and rows get from `tests.fuzz`?"""

import os
import struct
import zlib
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from fuzzing import Random, Reader, mutate_bytes
from sealed_files import as_older, sealed_anew

import neocpu
from neocpu.core.errors import StorageError
from neocpu.oracle.answers import read_answers
from neocpu.oracle.cases import all_cases
from neocpu.oracle.flat import HEADER, FlatSuite, write_flat
from neocpu.oracle.suite import Suite, ask, write_suite
from neocpu.parallel.transport.comm import SingleComm
from neocpu.tables.storage import extents, metadata_check
from neocpu.tables.storage.row_file import RowFile
from neocpu.tables.storage.row_tools import verify
from neocpu.train.checkpoint.folder import checkpoints
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.checkpoint.saving import Saver, SavingPolicy

SHARE_OF_EDITS = 0.3  # of the mutations of HDF5 files; the others are of bytes


def readers() -> dict[str, Reader]:
    """All readers, by name."""
    return {
        "checkpoint": Reader(_whole, _read_checkpoint, mutate_sealed),
        "checkpoint of changes": Reader(_changes, _read_checkpoint, mutate_sealed),
        "checkpoint's base": Reader(_base, _read_next, mutate_sealed),
        "checkpoint of 0.1.0": Reader(_older, _read_checkpoint, _mutate_older),
        "suite": Reader(_suite, _read_suite, mutate_sealed),
        "flat suite": Reader(_flat_suite, _read_flat, _mutate_flat),
        "suite of 0.1.0": Reader(_older_suite, _read_suite, _mutate_older),
        "answers in hdf5": Reader(_answers_hdf5, _read_answers, _mutate_answers),
        "answers in npz": Reader(_answers_npz, _read_answers, _mutate_plain),
        "answers in safetensors": Reader(_answers_safetensors, _read_answers, _mutate_plain),
        "rows": Reader(_rows, _read_rows, _mutate_rows),
    }


def _mutate_plain(path: Path, chance: Random) -> bool:
    mutate_bytes(path, chance)
    return True


# ---- edits of HDF5 files that stay HDF5 files ----


VALUES: tuple[Any, ...] = (
    *(0, -1, 7, 2**31, 2**62, -(2**63), True, 0.5, np.nan, "", "text", "[" * 3000, "{}", b"\xff"),
    *([1, 2], ["a", "b"], np.zeros((2, 0)), np.float16(1), np.zeros(3, np.complex64)),
)
TYPES = ("<i8", ">i8", "<i4", "u1", "<u8", "<f2", "<f4", "<f8", "?", "S3", "<c8")


def _edit(file: h5py.File, chance: Random) -> None:
    """One edit of the structure or the values of a file."""
    names: list[str] = []
    file.visit(names.append)
    name = names[int(chance.integers(len(names)))]
    edits = (_attribute, _attribute, _elements, _elements, _retype, _reshape, _relink, _copy)
    edits[int(chance.integers(len(edits)))](file, name, chance)


def _attribute(file: h5py.File, name: str, chance: Random) -> None:
    item = file if chance.random() < 0.3 else file[name]
    keys = [*item.attrs, "format", "rows"]
    key = keys[int(chance.integers(len(keys)))]
    if chance.random() < 0.2 and key in item.attrs:
        del item.attrs[key]
    else:
        item.attrs[key] = VALUES[int(chance.integers(len(VALUES)))]


def _elements(file: h5py.File, name: str, chance: Random) -> None:
    item = file[name]
    if not isinstance(item, h5py.Dataset) or not item.size:
        return _attribute(file, name, chance)
    values = item[()]
    if np.ndim(values) and np.asarray(values).dtype.kind in "iuf":
        low = int(chance.integers(values.shape[0]))
        number = chance.choice([0, 1, 255, 2.0**31, 2.0**62])
        with np.errstate(all="ignore"):
            values[low : low + int(chance.integers(1, 4))] = np.array(number).astype(values.dtype)
        if chance.random() < 0.3:
            values = chance.permutation(values)
        item[...] = values
        return None
    text = VALUES[int(chance.integers(8, 13))]
    return _replace(file, name, text if isinstance(text, str) else "x")


def _replace(file: h5py.File, name: str, values: Any, **options: Any) -> None:
    attributes = dict(file[name].attrs)
    del file[name]
    file.create_dataset(name, data=values, **options)
    file[name].attrs.update(attributes)


def _retype(file: h5py.File, name: str, chance: Random) -> None:
    item = file[name]
    if not isinstance(item, h5py.Dataset):
        return _relink(file, name, chance)
    kind = TYPES[int(chance.integers(len(TYPES)))]
    return _replace(file, name, np.zeros(item.shape, kind))


def _reshape(file: h5py.File, name: str, chance: Random) -> None:
    item = file[name]
    if not isinstance(item, h5py.Dataset) or not item.ndim:
        return _relink(file, name, chance)
    values = item[()]
    shapes = [values[:-1], values[None], values.reshape(-1), values[:0], np.repeat(values, 2, 0)]
    other = shapes[int(chance.integers(len(shapes)))]
    if other.size and chance.random() < 0.5:
        return _replace(file, name, other, compression="gzip", chunks=True)
    return _replace(file, name, other)


def _relink(file: h5py.File, name: str, chance: Random) -> None:
    kind = int(chance.integers(5))
    del file[name]
    if kind == 0:
        file[name] = h5py.SoftLink("/")
    elif kind == 1:
        file[name] = h5py.ExternalLink("other.h5", "/x")
    elif kind == 2:
        file.create_group(name)
    elif kind == 3:
        file[name] = np.dtype("<f4")


def _copy(file: h5py.File, name: str, chance: Random) -> None:
    parent = file[name].parent
    if chance.random() < 0.5:
        file.copy(name, parent, "copy")
    else:
        parent["again"] = file[name]


def mutate_sealed(path: Path, chance: Random) -> bool:
    """Bytes; or an edit, after which the seal is gone, dropped as in older files, or made anew."""
    if chance.random() > SHARE_OF_EDITS:
        mutate_bytes(path, chance)
        return False
    opened = chance.choice([h5py.File, as_older, sealed_anew, sealed_anew])
    with opened(path, "r+") if opened is h5py.File else opened(path) as file:
        _edit(file, chance)
    return opened is not h5py.File


def _mutate_older(path: Path, chance: Random) -> bool:
    """Bytes, or an edit, of a file that has no seal; what has no checksum may change."""
    if chance.random() > SHARE_OF_EDITS:
        mutate_bytes(path, chance)
    else:
        with h5py.File(path, "r+") as file:
            _edit(file, chance)
    return False


def _mutate_answers(path: Path, chance: Random) -> bool:
    _mutate_older(path, chance)
    return True


# ---- checkpoints ----


def _chain(folder: Path) -> list[Path]:
    """Two checkpoints: a whole one, and one of changes."""
    from test_checkpoint import TABLE_WISE, make

    world = make(SingleComm(), TABLE_WISE)
    saver = Saver(folder, world, SavingPolicy(keep=9, full_every=4))
    saver.save(1)
    tbe = world.embedding.tbe
    rows = np.arange(7, dtype=np.int64)
    from neocpu.kernels.records import one_by_one

    values = {name: value[rows] + 1 for name, value in tbe.state(0).items()}
    tbe.load_rows(0, rows, values)
    tbe.changes.note(one_by_one(0, rows, rows))
    saver.save(2)
    return [path.rename(folder / path.name) for path in checkpoints(folder)]


def _whole(folder: Path) -> Path:
    first, second = _chain(folder)
    second.unlink()
    return first


def _changes(folder: Path) -> Path:
    return _chain(folder)[1]


def _base(folder: Path) -> Path:
    return _chain(folder)[0]


def _older(folder: Path) -> Path:
    """As version 0.1.0 wrote it: without a seal, with text of variable length."""
    path = _whole(folder)
    with as_older(path) as file:
        _loosen(file)
    return path


def _loosen(file: h5py.File) -> None:
    """Make all text of a file one of variable length."""
    names = ["/"]
    file.visit(names.append)
    for name in names:
        if isinstance(file[name], h5py.Dataset) and file[name].dtype.kind == "S":
            _replace(file, name, file[name][()].decode())
        for key, value in file[name].attrs.items():
            if isinstance(value, bytes):
                file[name].attrs[key] = value.decode()


def _read_checkpoint(path: Path) -> Any:
    with CheckpointFile(path) as file:
        digest = file.recomputed_digest()
        state = tuple(
            (tensor, tuple(_blocks(file, number))) for number, tensor in enumerate(file.tensors)
        )
        header = repr(file.header)
    model = neocpu.load(path)
    tables = tuple(
        (name, table.learnt.tobytes(), table[[0, 1, table.rows - 1]].tobytes())
        for name, table in model.tables.items()
    )
    assert digest == model.digest
    return digest, model.step, header, repr(state), tables


def _blocks(file: CheckpointFile, number: int) -> list[tuple[Any, ...]]:
    return [
        (
            blocks.rows.tobytes(),
            tuple((name, zlib.crc32(value)) for name, value in blocks.values.items()),
        )
        for blocks in file.blocks(number)
    ]


def _read_next(path: Path) -> Any:
    return _read_checkpoint(path.with_name("step-00000002.h5"))


# ---- suites and answers ----


def _suite(folder: Path) -> Path:
    path = folder / "suite.h5"
    write_suite(path, (ask(case, "reference") for case in islice(all_cases(["lookup"]), 2)), 0)
    return path


def _flat_suite(folder: Path) -> Path:
    path = folder / "suite.flat"
    write_flat(path, (ask(case) for case in islice(all_cases(["lookup"]), 2)), 0)
    return path


def _read_flat(path: Path) -> Any:
    suite = FlatSuite(path)
    return suite.sha256, suite.seed, tuple((name, suite[name].sha256) for name in suite)


def _mutate_flat(path: Path, chance: Random) -> bool:
    """Bytes; every other time under a checksum that is made anew, so that records are read."""
    mutate_bytes(path, chance)
    data = bytearray(path.read_bytes())
    if chance.random() < 0.5 and len(data) >= HEADER.size:
        struct.pack_into("<IQ", data, 12, zlib.crc32(data[HEADER.size :]), len(data))
        path.write_bytes(data)
        return True
    return False


def _older_suite(folder: Path) -> Path:
    path = _suite(folder)
    with as_older(path) as file:
        _loosen(file)
    return path


def _read_suite(path: Path) -> Any:
    with Suite(path) as suite:
        return suite.sha256, suite.seed, tuple((name, suite[name].sha256) for name in suite)


ARRAYS = {
    "a/out": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a/codes": np.arange(5, dtype=np.uint16),
    "b/out": np.zeros((0, 3)),
    "c/out": np.float64(3.5),
}


def _answers_hdf5(folder: Path) -> Path:
    path = folder / "answers.h5"
    with h5py.File(path, "w") as file:
        for name, array in ARRAYS.items():
            file[name] = array
        file["a/codes"].attrs["format"] = "bf16"
        file.create_dataset("d/out", data=np.zeros((64, 64)), compression="gzip", chunks=(16, 64))
    return path


def _answers_npz(folder: Path) -> Path:
    path = folder / "answers.npz"
    np.savez_compressed(path, allow_pickle=False, **ARRAYS)
    return path


def _answers_safetensors(folder: Path) -> Path:
    import json

    path = folder / "answers.safetensors"
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for (name, array), kind in zip(ARRAYS.items(), ("F32", "BF16", "F64", "F64")):
        end = len(data) + array.nbytes
        shape = list(array.shape)
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), end]}
        data += array.tobytes()
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def _read_answers(path: Path) -> Any:
    with read_answers(path) as answers:
        return tuple(
            (name, array.dtype.str, array.shape, array.tobytes())
            for name, array in ((name, answers[name]) for name in answers)
        )


# ---- rows ----


def _rows(folder: Path) -> Path:
    from test_row_file import small

    path = folder / "rows.h5"
    small(path)
    return path


def _read_rows(path: Path) -> Any:
    with RowFile(path, write=False) as file:
        if damages := verify(file):
            raise StorageError(damages[0])
        tables = []
        for number, table in enumerate(file.tables):
            rows = np.concatenate([np.zeros(0, np.int64), *file.rows(number)])
            records = np.zeros((rows.size, table.record), np.uint8)
            file.read(number, rows, records, check=True)
            tables.append((repr(table), rows.tobytes(), records.tobytes()))
        return file.epoch, file.note, tuple(tables)


def _mutate_rows(path: Path, chance: Random) -> bool:
    """Bytes; or an edit, after which the metadata is guarded anew, or not."""
    if chance.random() > SHARE_OF_EDITS:
        mutate_bytes(path, chance)
        return False
    layout = extents.read(path)
    with h5py.File(path, "r+", libver=("earliest", "v110")) as file:
        _edit(file, chance)
    if chance.random() < 0.5:
        return False
    handle = os.open(path, os.O_RDWR)
    try:
        metadata = extents.metadata(layout, os.fstat(handle).st_size)
        metadata_check.write(handle, layout.commits, metadata)
    finally:
        os.close(handle)
    return True
