"""Do checkpoints come back on any ranks and plan, and is every kind of damage refused with a clear
word?
"""

import errno
import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from sealed_files import as_older, sealed_anew

from neocpu.core.errors import CheckpointError
from neocpu.core.rules import RULES
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.hdf5 import draft
from neocpu.train import checkpoint
from neocpu.train.checkpoint import reading, saving
from neocpu.train.checkpoint.folder import refuse_other_files
from neocpu.train.checkpoint.layout import RowWriter
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.checkpoint.saving import Saver, SavingPolicy
from neocpu.train.checkpoint.snapshot import Share, write_share
from neocpu.train.config import config as configs
from neocpu.train.model.layout import ModelLayout
from neocpu.train.state.initial import initial_rows
from neocpu.train.state.state import digest

TOML = """
[model]
embedding_dim = 8
bottom = [4, 8]
top = [3, 1]
[tables]
C1.rows = 9000
C2 = { rows = 3, pooling = "mean" }
C3.rows = 5000
C4.rows = 1000000
[optimizer.sparse]
name = "exact_rowwise_adagrad"
initial_accumulator_value = 0.5
[optimizer.dense]
name = "adam"
"""
TABLE_WISE = ["table_wise"] * 4
MIXED = ["row_wise", "data_parallel", "column_wise", "grid_shard"]


def make(comm: Comm, schemes: list[str], sets: tuple[str, ...] = (), learnt: bool = True) -> Any:
    """A world with made-up learnt rows, the same whatever the plan."""
    config = configs.loads(TOML, "test.toml", sets)
    plan = place(config.tables, schemes, comm.size, min(2, comm.size))
    layout = ModelLayout(13, (8,) * 4, config.model.bottom, config.model.top)
    flat = np.random.default_rng(4).random(layout.parameters).astype(np.float32) * learnt
    precision = SimpleNamespace(state={})
    model = SimpleNamespace(layout=layout, parameters=layout.views(flat), precision=precision)
    dense = DenseOptimizer(config.optimizer.dense, flat)
    if learnt:
        dense.state["exp_avg"][:] = flat * 2
    tbe = TableBatchedEmbedding(
        plan.tables, plan.local(comm.rank), config.optimizer.sparse, config.training.seed
    )
    for i, shard in enumerate(plan.local(comm.rank) if learnt else ()):
        spec = plan.tables[shard.table]
        random = np.random.default_rng(shard.table)
        rows = np.unique(random.integers(0, spec.rows, 700))
        values = initial_rows(spec, config.optimizer.sparse, config.training.seed, rows)
        changed = random.random(rows.size) < 0.5
        values["weight"][changed] += random.standard_normal((changed.sum(), spec.dim)).astype(
            np.float32
        )
        for name in list(values)[1:]:
            values[name][changed] += random.integers(1, 9, values[name][changed].shape).astype(
                np.float32
            )
        inside = (rows >= shard.rows[0]) & (rows < shard.rows[1])
        cut = {
            k: v[inside][:, slice(*shard.cols)] if v.ndim == 2 else v[inside]
            for k, v in values.items()
        }
        tbe.load_rows(i, rows[inside] - shard.rows[0], cut)
    return SimpleNamespace(
        config=config,
        comm=comm,
        plan=plan,
        model=model,
        dense=dense,
        embedding=SimpleNamespace(tbe=tbe),
        towers=None,
        dynamic=None,
    )


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A checkpoint of step 5."""
    checkpoint.save(tmp_path, make(SingleComm(), TABLE_WISE), 5)
    return tmp_path / "checkpoints" / "step-00000005.h5"


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("schemes", [TABLE_WISE, MIXED], ids=["table_wise", "mixed"])
def test_any_plan_writes_the_same_rows_and_reads_them(
    tmp_path: Path, written: Path, schemes: list[str], ranks: int
) -> None:
    with CheckpointFile(written) as file:
        expected = file.digest
        assert file.recomputed_digest() == expected

    def body(comm: Comm) -> tuple[str, str, int]:
        saved = checkpoint.save(tmp_path / "other", make(comm, schemes), 5)
        world = make(comm, MIXED, learnt=False)
        path = checkpoint.latest(tmp_path / "other", comm)
        assert path is not None
        step = checkpoint.load(path, world)
        return saved, digest(world, step), step

    assert run_threads(ranks, body) == [(expected, expected, 5)] * ranks


@pytest.mark.parametrize(
    "name", ["lamb", "partial_rowwise_adam", "exact_rowwise_adagrad_with_counter"]
)
def test_states_of_every_kind_come_back(tmp_path: Path, name: str) -> None:
    sets = (f"optimizer.sparse.name={name}",)
    expected = checkpoint.save(tmp_path, make(SingleComm(), TABLE_WISE, sets), 5)
    path = checkpoint.latest(tmp_path, SingleComm())
    assert path is not None
    with h5py.File(path) as file:
        rule = RULES[name]
        table = file["tables/C3"]
        assert set(table) >= {"rows", "weight", *rule.element_state, *rule.row_state}
        assert all(table[state].shape == table["rows"].shape for state in rule.row_state)

    def body(comm: Comm) -> str:
        world = make(comm, MIXED, sets, learnt=False)
        checkpoint.load(path, world)
        return digest(world, 5)

    assert run_threads(3, body) == [expected] * 3


def test_file_holds_only_learnt_rows_and_reads_with_plain_h5py(written: Path) -> None:
    with h5py.File(written) as file:
        assert file["tables/C4/rows"].size < 700
        assert file["tables/C1/weight"].shape == (file["tables/C1/rows"].size, 8)
        assert file["tables/C1/sum"].shape == file["tables/C1/rows"].shape
        assert file["dense/bottom.0.weight/exp_avg_sq"].shape == (4, 13)
        assert file["tables/C1/weight"].chunks is None
        assert file.attrs["step"] == 5 and file.attrs["complete"]
        assert file["run/config"][()].decode() == TOML
    assert written.stat().st_size < 400_000


def test_config_comes_back_with_its_overrides(tmp_path: Path) -> None:
    checkpoint.save(
        tmp_path, make(SingleComm(), TABLE_WISE, ("training.seed=77", "eval.every_steps=3")), 1
    )
    with CheckpointFile(checkpoint.checkpoints(tmp_path)[0]) as file:
        config = file.config(["data.test=x.h5"])
    assert (config.training.seed, config.eval.every_steps, config.data.test) == (77, 3, ("x.h5",))


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    world = make(SingleComm(), TABLE_WISE)
    for step in (1, 2, 30):
        checkpoint.save(tmp_path, world, step, keep=2)
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == [
        "step-00000002.h5",
        "step-00000030.h5",
    ]
    assert (
        checkpoint.latest(tmp_path, SingleComm()) == checkpoint.checkpoints(tmp_path)[1].resolve()
    )
    assert checkpoint.latest(tmp_path / "nothing", SingleComm()) is None


def test_changed_keys_are_named(written: Path) -> None:
    with pytest.raises(CheckpointError, match=r"training\.batch_size was 2048, now 64"):
        checkpoint.load(written, make(SingleComm(), TABLE_WISE, ("training.batch_size=64",)))
    with pytest.raises(CheckpointError, match=r"tables\.C2\.pooling was \"mean\", now \"sum\""):
        checkpoint.load(written, make(SingleComm(), TABLE_WISE, ("tables.C2.pooling=sum",)))
    longer = make(
        SingleComm(), TABLE_WISE, ("training.epochs=9", "parallel.route=two_level"), learnt=False
    )
    assert checkpoint.load(written, longer) == 5


@pytest.mark.parametrize(
    ("dataset", "tensor"),
    [("tables/C1/weight", "tables/C1"), ("dense/top.0.bias/value", "dense/top.0.bias")],
)
def test_a_flipped_bit_is_found_and_named(written: Path, dataset: str, tensor: str) -> None:
    with h5py.File(written) as file:
        offset = file[dataset].id.get_offset() + 5
    with open(written, "r+b") as raw:
        raw.seek(offset)
        byte = raw.read(1)[0]
        raw.seek(offset)
        raw.write(bytes([byte ^ 4]))
    with pytest.raises(CheckpointError, match=rf"{tensor}, block 0 \(rows 0 to"):
        checkpoint.load(written, make(SingleComm(), TABLE_WISE, learnt=False))


def test_a_flipped_bit_on_one_rank_is_everybodys_error(written: Path) -> None:
    with as_older(written) as file:
        file["tables/C1/weight"][-1, 0] += 1

    def body(comm: Comm) -> str:
        with pytest.raises(CheckpointError) as caught:
            checkpoint.load(written, make(comm, ["row_wise"] * 4, learnt=False))
        return str(caught.value)

    messages = set(run_threads(3, body))
    assert len(messages) == 1 and "tables/C1, block 2 (rows 8192 to 8999)" in messages.pop()


def test_a_file_that_is_another_one_on_another_host_is_everybodys_error(tmp_path: Path) -> None:
    for rank, sets in enumerate(((), (), ("training.seed=9",))):
        checkpoint.save(tmp_path / f"disk{rank}", make(SingleComm(), TABLE_WISE, sets), 5)

    def body(comm: Comm, disks: list[str]) -> str:
        path = tmp_path / disks[comm.rank] / "checkpoints" / "step-00000005.h5"
        try:
            refuse_other_files(path, comm)
        except CheckpointError as error:
            return str(error)
        return ""

    for disks, said in (
        (["disk0", "disk1", "disk0"], ""),
        (["disk0", "disk0", "disk2"], "is another checkpoint than on"),
        (["disk0", "none", "disk0"], "no such file (on "),
    ):
        messages = run_threads(3, lambda comm, disks=disks: body(comm, disks))
        assert all(said in message and bool(said) == bool(message) for message in messages)


def test_a_base_that_one_rank_cannot_read_is_everybodys_error(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = threading.local()

    def opened(path: Path) -> CheckpointFile:
        return CheckpointFile(path / "none" if hasattr(blind, "rank") else path)

    def body(comm: Comm) -> str:
        if comm.rank == 1:
            blind.rank = comm.rank
        world = make(comm, ["row_wise"] * 4)
        saver = Saver(written.parent.parent, world, SavingPolicy(full_every=3))
        with pytest.raises(CheckpointError) as caught:
            saver.resume(written, 5)
        return str(caught.value)

    monkeypatch.setattr(reading, "CheckpointFile", opened)
    assert len({*run_threads(3, body)}) == 1


def test_ranks_note_which_bytes_they_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a host which does not see the file of rank 0 sends to it."""
    shares = []

    def write(share: Share) -> OSError | None:
        shares.append(share)
        return write_share(share)

    monkeypatch.setattr(saving, "write_share", write)
    checkpoint.save(tmp_path, make(SingleComm(), TABLE_WISE), 5)
    (share,) = shares
    with h5py.File(tmp_path / "checkpoints" / "step-00000005.h5") as file:
        for name, offset in share.offsets.items():
            size = file[name].nbytes
            assert share.extents.get(name, (offset, offset)) == (offset, offset + size), name
    lost = replace(share, path=tmp_path / "none" / "x.h5", parts=iter(range(3)), extents={})
    assert isinstance(write_share(lost), FileNotFoundError) and not [*lost.parts]


def test_damaged_index_and_header(written: Path) -> None:
    with as_older(written) as file:
        file["tables/C3/block_sha256"][0, 3] ^= 1
    with pytest.raises(CheckpointError, match="index does not have the digest"):
        CheckpointFile(written)


def test_truncated_foreign_newer_incomplete(written: Path, tmp_path: Path) -> None:
    whole = written.read_bytes()
    for name, data, message in (
        ("cut.h5", whole[: len(whole) // 2], "truncated"),
        ("text.h5", b"label,I1,I2\n", "not an HDF5 file"),
        ("empty.h5", b"", "not an HDF5 file"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CheckpointError, match=message):
            CheckpointFile(tmp_path / name)
    with pytest.raises(CheckpointError, match="no such file"):
        CheckpointFile(tmp_path / "missing.h5")
    for key, value, message in (
        ("complete", False, "incomplete"),
        ("version", 5, "version 5"),
        ("format", "neocpu-dataset", "not a neocpu checkpoint"),
    ):
        path = tmp_path / f"{key}.h5"
        path.write_bytes(whole)
        with sealed_anew(path) as file:
            file.attrs[key] = value
        with pytest.raises(CheckpointError, match=message):
            CheckpointFile(path)


def test_latest_passes_over_broken_files(tmp_path: Path) -> None:
    world = make(SingleComm(), TABLE_WISE)
    for step in (1, 2):
        checkpoint.save(tmp_path, world, step)
    first, second = checkpoint.checkpoints(tmp_path)
    second.write_bytes(second.read_bytes()[:3000])
    assert checkpoint.latest(tmp_path, SingleComm()) == first.resolve()


@pytest.mark.parametrize("where", ["reserve", "write"])
def test_a_full_disk_leaves_older_checkpoints_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    checkpoint.save(tmp_path, make(SingleComm(), TABLE_WISE), 1)

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if where == "reserve":
        monkeypatch.setattr(draft, "allocate", full)
    else:
        monkeypatch.setattr(RowWriter, "_put", full)

    def body(comm: Comm) -> str:
        with pytest.raises(CheckpointError) as caught:
            checkpoint.save(tmp_path, make(comm, MIXED), 2, keep=1)
        return str(caught.value)

    messages = set(run_threads(2, body))
    assert len(messages) == 1
    message = messages.pop()
    assert (
        "step-00000002.h5 could not be written: No space left on device" in message
        and "intact" in message
    )
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001.h5"]
    with CheckpointFile(tmp_path / "checkpoints" / "step-00000001.h5") as file:
        file.recomputed_digest()


def test_a_share_that_cannot_sync_folders_keeps_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = os.fsync
    why = errno.EINVAL  # as CIFS has it

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(why, os.strerror(why))
        synced(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.save(tmp_path, make(SingleComm(), TABLE_WISE), 1)
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001.h5"]
    why = errno.EIO
    with pytest.raises(CheckpointError, match="could not be written"):
        checkpoint.save(tmp_path, make(SingleComm(), TABLE_WISE), 2)


def test_leftovers_of_a_killed_run_are_swept_away(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".step-00000009.h5.partial").write_bytes(b"half")
    checkpoint.save(tmp_path, make(SingleComm(), TABLE_WISE), 1)
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000001.h5"]


def test_differences_name_keys() -> None:
    old = {"a": {"b": 1}, "tables": [{"name": "C1", "rows": 3}], "gone": 1}
    new = {"a": {"b": 2}, "tables": [{"name": "C1", "rows": 4}], "added": [1]}
    assert checkpoint.differences(old, new) == [
        ("a.b", "1", "2"),
        ("tables.C1.rows", "3", "4"),
        ("gone", "1", "absent"),
        ("added", "absent", "[1]"),
    ]
    assert checkpoint.differences(old, json.loads(json.dumps(old))) == []
