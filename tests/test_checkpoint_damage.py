"""Is nothing lost to damaged, newer and unreadable checkpoints, and is no change believed?"""

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from sealed_files import as_older, sealed_anew
from test_checkpoint import MIXED, TABLE_WISE, make
from test_checkpoint_chain import SETS, learn, names
from test_checkpoint_chain import written as chain

import neocpu
from neocpu.core.errors import CheckpointError
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.serve.exports.arrays import export
from neocpu.train import checkpoint
from neocpu.train.checkpoint.folder import checkpoints
from neocpu.train.checkpoint.layout import TEXTS, lay_out
from neocpu.train.checkpoint.links import base_of
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.checkpoint.saving import Saver, SavingPolicy
from neocpu.train.checkpoint.tools import merge
from neocpu.train.run.folder import RunLock
from neocpu.train.state.blocks import Tensor
from neocpu.train.state.state import digest


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with whole checkpoints of steps 1 to 3, each of other rows."""
    folder = tmp_path_factory.mktemp("written")
    chain(folder, SingleComm(), TABLE_WISE, range(1, 4), full_every=1)
    return folder


@pytest.fixture
def out(tmp_path: Path, written: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(written, tmp_path / "out"))


def flip(path: Path, where: int) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[where] ^= 4
    path.write_bytes(data)


def resume(out: Path, comm: Comm, schemes: list[str]) -> tuple[str, str, list[str]]:
    """What a run goes on from: the file, the digest of the world, and what was said."""
    lines: list[str] = []
    world = make(comm, schemes, SETS, learnt=False)
    path = checkpoint.sound_for(out, world, lines.append)
    assert path is not None
    step = checkpoint.load(path, world, split="train", tell=lines.append, warn=lines.append)
    return path.name, digest(world, step), lines


def digests(out: Path) -> list[str]:
    result = []
    for path in checkpoints(out):
        with CheckpointFile(path) as file:
            result.append(file.digest)
    return result


# ---- which one is loaded ----


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_damaged_row_falls_back_to_the_newest_sound_file(out: Path, ranks: int) -> None:
    expected = digests(out)
    newest = checkpoints(out)[-1]
    with h5py.File(newest) as file:
        flip(newest, file["tables/C4/weight"].id.get_offset() + 3)  # the last table that is read
    results = run_threads(ranks, lambda comm: resume(out, comm, MIXED))
    assert {name for name, _, _ in results} == {"step-00000002.h5"}
    assert {state for _, state, _ in results} == {expected[1]}  # none of the rows of step 3
    assert "passing over step-00000003.h5: " in results[0][2][0]
    assert "tables/C4, block" in results[0][2][0]
    assert results[0][2][1:] == ["resuming from step-00000002.h5"]


def test_every_file_that_is_passed_over_is_named(out: Path) -> None:
    paths = checkpoints(out)
    paths[2].write_bytes(paths[2].read_bytes()[:5000])
    with sealed_anew(paths[1]) as file:
        file.attrs["version"] = 99
    (out / "checkpoints" / "step-00000005.h5").mkdir()
    lines: list[str] = []
    assert checkpoint.latest(out, SingleComm(), lines.append) == paths[0].resolve()
    assert [line.split(":")[0] for line in lines] == [
        f"passing over step-0000000{step}.h5" for step in (5, 3, 2)
    ]
    assert "not a regular file" in lines[0] and "truncated" in lines[1]
    assert "version 99; this neocpu reads up to 4; upgrade" in lines[2]


def test_no_run_starts_anew_over_checkpoints_that_it_cannot_read(out: Path) -> None:
    for path in checkpoints(out):
        with sealed_anew(path) as file:
            file.attrs["version"] = 99

    def body(comm: Comm) -> str:
        with pytest.raises(CheckpointError) as caught:
            resume(out, comm, TABLE_WISE)
        return str(caught.value)

    (message,) = set(run_threads(2, body))
    assert "a run from step 0 would overwrite them" in message
    assert all(f"step-0000000{step}.h5: checkpoint version 99" in message for step in (1, 2, 3))
    assert "Choose another --out, upgrade neocpu if they are newer, or remove them" in message


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Any) -> list[str]:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(CheckpointError, match="cannot be listed: Permission denied"):
        checkpoint.latest(out, SingleComm())
    for again in (False, True):
        with (
            pytest.raises(CheckpointError, match="cannot be listed: Permission denied"),
            RunLock(out, SingleComm(), resume=again),
        ):
            pass


def test_a_file_without_permission_is_an_error_with_a_word(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def denied(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("3.h5"):
            raise PermissionError(13, os.strerror(13))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(CheckpointError, match=r"3\.h5: cannot be read: Permission denied"):
        CheckpointFile(checkpoints(out)[-1])
    assert checkpoint.latest(out, SingleComm()) == checkpoints(out)[1].resolve()


# ---- what is believed ----


@pytest.mark.parametrize("sealed", [True, False])
def test_a_seed_in_the_config_that_is_not_the_headers_is_refused(out: Path, sealed: bool) -> None:
    path = checkpoints(out)[0]
    with (sealed_anew if sealed else as_older)(path) as file:
        text = file["run/config"][()].decode() + "\n[training]\nseed = 3\n"
        del file["run/config"]
        file["run/config"] = text
    for read in (CheckpointFile, neocpu.load):
        with pytest.raises(CheckpointError, match=r"disagree: training\.seed is 3 and"):
            read(path)


def test_texts_of_variable_length_are_in_no_file(out: Path) -> None:
    def look(name: str, item: Any) -> None:
        for value in (*item.attrs.values(), item.dtype if isinstance(item, h5py.Dataset) else 0):
            assert not isinstance(value, str) and value != np.dtype("O"), name

    with h5py.File(checkpoints(out)[0]) as file:
        file.visititems(look)
        look("/", file)


def test_every_flipped_bit_is_found(out: Path) -> None:
    path = checkpoints(out)[0]
    data = path.read_bytes()
    random = np.random.default_rng(0)
    for where in random.integers(0, len(data), 400).tolist():
        flip(path, where)
        with pytest.raises(CheckpointError), CheckpointFile(path) as file:
            file.recomputed_digest()
        path.write_bytes(data)


Edit = Callable[[h5py.File], None]


def overwrite(name: str, where: Any, value: Any) -> Edit:
    def edit(file: h5py.File) -> None:
        file[name][where] = value

    return edit


def note(name: str, key: str, value: Any) -> Edit:
    def edit(file: h5py.File) -> None:
        file[name].attrs[key] = value

    return edit


def replace(name: str, value: Any) -> Edit:
    def edit(file: h5py.File) -> None:
        del file[name]
        if value is not None:
            file[name] = value

    return edit


def tables_of_header(tables: Any) -> Edit:
    def edit(file: h5py.File) -> None:
        header = json.loads(file["run/header"][()])
        replace("run/header", json.dumps(header | {"tables": tables}))(file)

    return edit


EDITS: dict[str, tuple[Edit, str]] = {
    "negative counts": (
        overwrite("tables/C1/block_rows", 0, -1),
        "tables/C1 has blocks with impossible numbers of rows",
    ),
    "counts that overflow": (
        overwrite("tables/C1/block_rows", slice(0, 2), 2**62),
        "tables/C1 has blocks with impossible numbers of rows",
    ),
    "blocks out of order": (
        overwrite("tables/C1/block", slice(0, 2), [1, 0]),
        "tables/C1 has blocks out of order, or beyond its rows",
    ),
    "blocks beyond the table": (
        overwrite("tables/C1/block", -1, 2**50),
        "tables/C1 has blocks out of order, or beyond its rows",
    ),
    "a block just beyond the table": (
        overwrite("tables/C1/block", -1, 3),
        "tables/C1 has blocks out of order, or beyond its rows",
    ),
    "a negative block": (
        overwrite("tables/C1/block", 0, -1),
        "tables/C1 has blocks out of order, or beyond its rows",
    ),
    "a row more than the table has": (
        overwrite("tables/C2/block_rows", 0, 4),
        "tables/C2 has blocks with impossible numbers of rows",
    ),
    "rows beyond the table": (
        overwrite("tables/C4/rows", -1, 10**12),
        "tables/C4, block 243 (rows 995328 to 999423), has other bytes than were written",
    ),
    "rows twice": (
        overwrite("tables/C4/rows", 1, 0),
        "tables/C4, block 0 (rows 0 to 4095), has other bytes than were written",
    ),
    "blocks of a dense parameter": (
        overwrite("dense/top.0.bias/block_rows", 0, 0),
        "dense/top.0.bias has blocks with impossible numbers of rows",
    ),
    "format is numbers": (note("/", "format", [1, 2]), "an HDF5 file, but not a neocpu checkpoint"),
    "format is empty": (
        note("/", "format", np.zeros((2, 0))),
        "an HDF5 file, but not a neocpu checkpoint",
    ),
    "a negative step": (note("/", "step", -1), "it has step -1"),
    "a step that is text": (note("/", "step", "three"), "the attribute step of / is str"),
    "another seed": (note("/", "seed", 4), "its header and its attributes have different seeds"),
    "no digest": (lambda file: file.attrs.__delitem__("digest"), "/ lacks its attribute digest"),
    "dense is no list": (note("/", "dense", "7"), "the attribute dense is no list of texts"),
    "dense is nested deeply": (
        note("/", "dense", "[" * 50_000),
        "the attribute dense is no JSON: ",
    ),
    "fields is no list": (
        note("tables/C1", "fields", "{}"),
        "the attribute fields of /tables/C1 does not begin with weight, or has a field twice",
    ),
    "fields of text": (
        note("tables/C1", "fields", '[["weight", ["a"]]]'),
        "the attribute fields of /tables/C1 has ['weight', ['a']]",
    ),
    "fields without end": (
        note("tables/C1", "fields", f'[["weight", [{2**70}]]]'),
        "the attribute fields of /tables/C1 has rows of 1180591620717411303424 numbers",
    ),
    "rows is negative": (note("tables/C1", "rows", -5), "tables/C1 has -5 rows of 72 bytes"),
    "rows is a list": (
        note("tables/C1", "rows", [1, 2]),
        "the attribute rows of /tables/C1 is ndarray",
    ),
    "no such format": (
        note("tables/C1/weight", "format", "fp3"),
        "tables/C1 has weights of an unknown format fp3",
    ),
    "no such quantisation": (
        note("tables/C1/weight", "quantized", "int3"),
        "tables/C1 has weights of an unknown format int3",
    ),
    "header is a list": (replace("run/header", "[]"), "/run/header is no JSON object"),
    "header has no tables": (
        tables_of_header([]),
        "its index does not have the digest that is noted in it",
    ),
    "header has a text for tables": (
        tables_of_header("C1"),
        "its header has no list of tables",
    ),
    "a table of the header is a number": (
        tables_of_header([{"name": "C1"}, 7]),
        "its header has no list of tables",
    ),
    "an override is a number": (
        replace("run/overrides", '["training.seed=1", 7]'),
        "/run/overrides is no list of texts",
    ),
    "header is nested deeply": (replace("run/header", "[" * 50_000), "/run/header is no JSON: "),
    "overrides are numbers": (
        replace("run/overrides", "[1]"),
        "/run/overrides is no list of texts",
    ),
    "config is no TOML": (
        replace("run/config", "[["),
        "(config): not valid TOML: ",
    ),
    "config is nested deeply": (
        replace("run/config", "a = " + "[" * 50_000),
        "(config): not valid TOML: ",
    ),
    "header is gone": (replace("run/header", None), "it lacks /run/header"),
    "a table is gone": (replace("tables/C3", None), "it lacks /tables/C3/weight"),
    "a field is gone": (replace("tables/C3/sum", None), "it lacks /tables/C3/sum"),
    "a field is compressed": (
        replace("tables/C3/sum", np.zeros(3)),
        "tables/C3 has other shapes than noted: sum",
    ),
    "rows are floats": (
        replace("tables/C3/rows", np.zeros(60)),
        "tables/C3 has other shapes than noted: rows",
    ),
    "hashes are short": (
        replace("tables/C3/block_sha256", np.zeros((2, 31), np.uint8)),
        "tables/C3 has other shapes than noted: block_sha256",
    ),
    "base is a path": (
        lambda file: file.attrs.update({"base": "../x.h5", "base_digest": "0"}),
        "../x.h5: no name of a file beside it",
    ),
    "base is itself": (
        lambda file: file.attrs.update({"base": "step-00000001.h5", "base_digest": "0"}),
        "it lacks /tables/C1/block_written",
    ),
}


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(("edit", "words"), EDITS.values(), ids=EDITS.keys())
def test_what_no_run_writes_is_refused_with_a_word(
    out: Path, edit: Edit, words: str, sealed: bool
) -> None:
    path = checkpoints(out)[0]
    with (sealed_anew if sealed else as_older)(path) as file:
        edit(file)
    with pytest.raises(CheckpointError) as caught, CheckpointFile(path) as checkpoint_file:
        checkpoint_file.recomputed_digest()
    message = str(caught.value)
    assert str(path) in message and words in message and "\n" not in message


@pytest.mark.parametrize(
    "text", ["[]", '{"splits": 3}', '{"splits": {"train": []}, "vocabularies": {}}', "[" * 9999]
)
def test_a_description_of_data_that_is_none_is_refused(out: Path, text: str) -> None:
    path = checkpoints(out)[0]
    with sealed_anew(path) as file:
        replace("run/data", text)(file)
    data = {"splits": {}, "vocabularies": {}}
    with pytest.raises(CheckpointError, match="/run/data"):
        checkpoint.load(path, make(SingleComm(), TABLE_WISE, SETS, learnt=False), data)


def test_a_link_to_another_file_is_not_followed(out: Path) -> None:
    first, second, _ = checkpoints(out)
    with as_older(first) as file:
        del file["tables/C1/weight"]
        file["tables/C1/weight"] = h5py.ExternalLink(str(second), "tables/C1/weight")
    with pytest.raises(CheckpointError, match="link to another place or file"):
        CheckpointFile(first)


# ---- what is overwritten, and what is deleted ----


@pytest.mark.parametrize("write", [merge, export], ids=["merge", "export"])
@pytest.mark.parametrize("how", ["itself", "its base", "a symlink", "a hard link", "other chain"])
def test_a_target_is_never_a_source(tmp_path: Path, write: Any, how: str) -> None:
    chain(tmp_path, SingleComm(), TABLE_WISE, range(1, 4))
    first, second, third = checkpoints(tmp_path)
    before = {path: path.read_bytes() for path in (first, second, third)}
    target = {"itself": third, "its base": first, "other chain": second}.get(how)
    if target is None:
        target = tmp_path / "target.npz"
        (os.symlink if how == "a symlink" else os.link)(second, target)
    source = first if how == "other chain" else third
    with CheckpointFile(source) as file, pytest.raises(CheckpointError, match="would overwrite"):
        write(file, target)
    assert all(path.read_bytes() == data for path, data in before.items())
    assert sorted(os.listdir(tmp_path / "checkpoints")) == names(tmp_path)


def test_unreadable_files_and_what_they_may_need_are_not_deleted(tmp_path: Path) -> None:
    world = make(SingleComm(), TABLE_WISE, SETS)
    saver = Saver(tmp_path, world, SavingPolicy(keep=1))
    learn(world, 1)
    saver.save(1)
    saver.save(2)
    first = checkpoints(tmp_path)[0]
    assert names(tmp_path) == ["step-00000002.h5"]
    with sealed_anew(first) as file:
        file.attrs["version"] = 99
    for step in (3, 4, 5):
        saver.save(step)
    assert names(tmp_path) == ["step-00000002.h5", "step-00000005.h5"]
    with CheckpointFile(checkpoints(tmp_path)[-1]) as whole:
        assert whole.recomputed_digest() == whole.digest


def test_a_file_that_cannot_be_read_is_set_aside_not_replaced(tmp_path: Path) -> None:
    world = make(SingleComm(), TABLE_WISE, SETS)
    saver = Saver(tmp_path, world, SavingPolicy())
    learn(world, 1)
    saver.save(1)
    newer = checkpoints(tmp_path)[0]
    with sealed_anew(newer) as file:
        file.attrs["version"] = 99
    content = newer.read_bytes()
    for _ in range(2):  # what can be read is replaced
        saver.save(1)
        kept = sorted(os.listdir(tmp_path / "checkpoints"))
        assert kept == ["step-00000001.h5", "step-00000001.h5.unusable"]
        assert newer.with_name("step-00000001.h5.unusable").read_bytes() == content
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000001.h5"]


def test_hdf5_never_opens_a_file_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[tuple[str, Any]] = []
    opened = h5py.File.__init__

    def noted(self: Any, name: Any, mode: str = "r", *arguments: Any, **options: Any) -> None:
        modes.append((mode, name))
        opened(self, name, mode, *arguments, **options)

    monkeypatch.setattr(h5py.File, "__init__", noted)
    chain(tmp_path, SingleComm(), TABLE_WISE, range(1, 4))
    with CheckpointFile(checkpoints(tmp_path)[-1]) as file:
        merge(file, tmp_path / "whole.h5")
    assert base_of(tmp_path / "whole.h5") is None
    written = [name for mode, name in modes if mode != "r"]
    assert len(written) == 4 and not any(isinstance(name, str | Path) for name in written)


def test_laying_out_a_billion_rows_takes_no_memory_for_them() -> None:
    tensor = Tensor("tables/large", 2 * 10**9, (("weight", (64,)), ("sum", ())))
    counts = np.array([[10**9, 0, 10**9 // 4096]])
    texts = dict.fromkeys(TEXTS, "{}")
    tracemalloc.start()
    image = lay_out([tensor], counts, {"step": 1, "dense": "x" * 200_000}, texts)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert image.size > 10**9 * 268 and most < 20 << 20
    assert image.offsets["tables/large/sum"] > image.offsets["tables/large/weight"]


def test_older_files_without_a_seal_are_read(out: Path) -> None:
    path = checkpoints(out)[0]
    (expected, *_) = digests(out)
    with as_older(path) as file:
        for name in TEXTS:
            text = file[f"run/{name}"][()].decode()
            del file[f"run/{name}"]
            file[f"run/{name}"] = text  # of variable length
        for name in ("format", "digest", "dense", "created"):
            file.attrs[name] = file.attrs[name].decode()
        for table in json.loads(file["run/header"][()])["tables"]:
            group = file[f"tables/{table['name']}"]
            group.attrs["fields"] = group.attrs["fields"].decode()
    with CheckpointFile(path) as checkpoint_file:
        assert not checkpoint_file.links[0].file.sealed
        assert checkpoint_file.recomputed_digest() == expected
