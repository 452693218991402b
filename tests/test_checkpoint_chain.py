"""Are checkpoints of changes the state that they stand for, on any ranks and plan, and is what they
need never deleted?
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from sealed_files import as_older
from test_checkpoint import MIXED, TABLE_WISE, make

import neocpu
from neocpu.cli.checkpoint import checkpoint as command
from neocpu.core.errors import CheckpointError
from neocpu.kernels.records import one_by_one
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train import checkpoint
from neocpu.train.checkpoint.layout import RowWriter
from neocpu.train.checkpoint.links import base_of
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.checkpoint.saving import Saver, SavingPolicy
from neocpu.train.checkpoint.tools import merge
from neocpu.train.run.trainer import Trainer
from neocpu.train.state.initial import initial_rows
from neocpu.train.state.state import digest
from tests.small_run import config_of

SETS = ("optimizer.sparse.name=exact_adagrad",)


def learn(world: Any, step: int, rows: int = 60) -> None:
    """Change rows of all tables, as an update would, the same on any plan; every third goes back to
    its initial values.
    """
    tbe = world.embedding.tbe
    config = world.config
    for i, shard in enumerate(world.plan.local(world.comm.rank)):
        spec = world.plan.tables[shard.table]
        random = np.random.default_rng([shard.table, step])
        changed = np.unique(
            np.append(random.integers(0, spec.rows, rows), np.arange(min(step, spec.rows)))
        )
        values = initial_rows(spec, config.optimizer.sparse, config.training.seed, changed)
        for value in values.values():
            value[changed % 3 > 0] += random.random(value.shape).astype(np.float32)[changed % 3 > 0]
        inside = (changed >= shard.rows[0]) & (changed < shard.rows[1])
        cut = {
            k: v[inside][:, slice(*shard.cols)] if v.ndim == 2 else v[inside]
            for k, v in values.items()
        }
        local = changed[inside] - shard.rows[0]
        tbe.load_rows(i, local, cut)
        tbe.changes.note(one_by_one(i, local, local))
    world.model.parameters["top.0.bias"][:] = step


def written(out: Path, comm: Comm, schemes: list[str], steps: range, **options: Any) -> list[str]:
    """Digests of the checkpoints of some steps, each after some more rows were learnt."""
    world = make(comm, schemes, SETS)
    saver = Saver(out, world, SavingPolicy(**({"keep": 99, "full_every": 4} | options)))
    digests = []
    for step in steps:
        learn(world, step)
        digests.append(saver.save(step))
        assert saver.poll() is None
    saver.finish()
    return digests


def wholes(steps: range) -> list[str]:
    """The same digests, of states that were never written."""
    world = make(SingleComm(), TABLE_WISE, SETS)
    digests = []
    for step in steps:
        learn(world, step)
        digests.append(digest(world, step))
    return digests


def names(out: Path) -> list[str]:
    return [path.name for path in checkpoint.checkpoints(out)]


@pytest.mark.parametrize(
    ("ranks", "schemes", "room"),
    [(1, TABLE_WISE, 1 << 30), (3, MIXED, 0), (4, ["column_wise"] * 4, 1 << 30)],
    ids=["one rank", "in two passes", "columns"],
)
def test_changes_and_their_base_are_the_state(
    tmp_path: Path, ranks: int, schemes: list[str], room: int
) -> None:
    steps = range(1, 6)
    expected = wholes(steps)
    options = {"room": room, "background": True}
    assert (
        run_threads(ranks, lambda comm: written(tmp_path, comm, schemes, steps, **options))
        == [expected] * ranks
    )
    files = checkpoint.checkpoints(tmp_path)
    assert [base_of(path) for path in files] == [None, *names(tmp_path)[:3], None]
    for path, whole in zip(files, expected):
        with CheckpointFile(path) as file:
            assert (file.digest, file.recomputed_digest()) == (whole, whole)
    assert max(path.stat().st_size for path in files[1:4]) < files[0].stat().st_size / 2

    def body(comm: Comm) -> str:
        world = make(comm, MIXED, SETS, learnt=False)
        return digest(world, checkpoint.load(files[3], world))

    assert set(run_threads(2, body)) == {expected[3]}


def test_rows_that_are_initial_again_and_new_ones(tmp_path: Path) -> None:
    written(tmp_path, SingleComm(), TABLE_WISE, range(1, 4))
    paths = checkpoint.checkpoints(tmp_path)
    with h5py.File(paths[1]) as file:
        gone = file["tables/C1/gone"][:]
        assert gone.size and (gone % 3 == 0).all()
        assert file["tables/C1/block_gone"][:].sum() == gone.size
        assert file["tables/C4/rows"].size < 60 and file.attrs["base"].decode() == paths[0].name
    with CheckpointFile(paths[1]) as file:
        assert not np.isin(gone, file.rows(file.number("tables/C1"))).any()


def test_chains_end_and_go_on_after_resuming(tmp_path: Path) -> None:
    written(tmp_path, SingleComm(), TABLE_WISE, range(1, 4), full_every=8)
    world = make(SingleComm(), MIXED, SETS, learnt=False)
    saver = Saver(tmp_path, world, SavingPolicy(keep=99, full_every=8))
    path = checkpoint.latest(tmp_path, SingleComm())
    assert path is not None and checkpoint.load(path, world) == 3
    saver.resume(path, 3)
    for step in range(4, 7):
        learn(world, step)
        saver.save(step)
    assert [base_of(p) for p in checkpoint.checkpoints(tmp_path)][3:] == names(tmp_path)[2:5]
    with CheckpointFile(checkpoint.checkpoints(tmp_path)[-1]) as file:
        assert len(file.links) == 6 and file.recomputed_digest() == wholes(range(1, 7))[-1]
    for step in range(7, 12):
        learn(world, step, rows=3000)  # changes outgrow the whole
        saver.save(step)
    assert None in [base_of(p) for p in checkpoint.checkpoints(tmp_path)][6:9]
    checkpoint.checkpoints(tmp_path)[-1].unlink()
    saver.save(12)
    assert base_of(checkpoint.checkpoints(tmp_path)[-1]) is None


def test_what_a_kept_checkpoint_needs_stays(tmp_path: Path) -> None:
    world = make(SingleComm(), TABLE_WISE, SETS)
    saver = Saver(tmp_path, world, SavingPolicy(keep=1, full_every=3))
    there = []
    for step in range(1, 8):
        learn(world, step)
        saver.save(step)
        there.append([int(name[5:13]) for name in names(tmp_path)])
    assert there == [[1], [1, 2], [1, 2, 3], [4], [4, 5], [4, 5, 6], [7]]


def test_missing_and_damaged_links_are_named(tmp_path: Path) -> None:
    expected = written(tmp_path, SingleComm(), TABLE_WISE, range(1, 4))
    first, second, third = checkpoint.checkpoints(tmp_path)
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(
        CheckpointError,
        match=r"step-00000003.h5: holds only what changed since step-00000002.h5, .*no such file",
    ):
        CheckpointFile(third)
    assert checkpoint.latest(tmp_path, SingleComm()) == first.resolve()
    second.write_bytes(kept[:3000])
    with pytest.raises(
        CheckpointError,
        match=r"00003.h5: .*which cannot be used: .*00002.h5: damaged checkpoint: .*truncated",
    ):
        CheckpointFile(third)
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match="that is another file now"):
        CheckpointFile(third)
    second.write_bytes(kept)
    with as_older(second) as file:
        file["tables/C3/weight"][3, 0] += 1
    with (
        CheckpointFile(third) as file,
        pytest.raises(CheckpointError, match=r"tables/C3, block .* or one of the 2 files"),
    ):
        file.recomputed_digest()
    with CheckpointFile(first) as file:
        assert file.recomputed_digest() == expected[0]


def test_commands_and_notebooks_see_one_table(tmp_path: Path) -> None:
    expected = written(tmp_path / "run", SingleComm(), TABLE_WISE, range(1, 4))
    last = checkpoint.checkpoints(tmp_path / "run")[-1]
    target = tmp_path / "whole.h5"

    def invoke(*arguments: object) -> str:
        return (
            CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False).output
        )

    assert "whole.h5: 3 files in one, " in invoke("merge", last, target)
    assert invoke("digest", target) == f"digest {expected[-1]}\n"
    assert "equal: digest" in invoke("diff", last, target)
    assert "step-00000001.h5 + step-00000002.h5 + step-00000003.h5" in invoke("show", last)
    chained = neocpu.load(last)
    merged = neocpu.load(target)
    for name, table in chained.tables.items():
        merged_table = merged.tables[name]
        assert np.array_equal(table.learnt, merged_table.learnt)
        for field in table.fields:
            assert np.array_equal(
                table.field(field, table.learnt), merged_table.field(field, table.learnt)
            )
    assert base_of(target) is None and not h5py.File(target).attrs.get("base")
    with CheckpointFile(last) as file, pytest.raises(CheckpointError, match="could not be written"):
        merge(file, tmp_path / "gone" / "x.h5")


# ---- in the background ----


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    write = RowWriter.write

    def slow(self: RowWriter, part: Any) -> None:
        go.wait(60)
        write(self, part)

    monkeypatch.setattr(RowWriter, "write", slow)

    def body(comm: Comm) -> str:
        world = make(comm, MIXED, SETS)
        saver = Saver(tmp_path, world, SavingPolicy(full_every=4, background=True))
        before = saver.save(1)
        learn(world, 2)  # what is being written does not see it
        saver.poll()
        comm.barrier()
        assert names(tmp_path) == []
        comm.barrier()
        go.set()
        saver.save(2)
        saver.finish()
        return before

    (before,) = set(run_threads(3, body))
    with CheckpointFile(checkpoint.checkpoints(tmp_path)[0]) as file:
        assert file.recomputed_digest() == before == digest(make(SingleComm(), TABLE_WISE, SETS), 1)
    with CheckpointFile(checkpoint.checkpoints(tmp_path)[1]) as file:
        assert len(file.links) == 2 and file.recomputed_digest() == file.digest


def test_an_error_in_the_background_is_everybodys_and_leaves_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(comm: Comm) -> str:
        world = make(comm, MIXED, SETS)
        saver = Saver(tmp_path, world, SavingPolicy(keep=1, full_every=4, background=True))
        saver.save(1)
        saver.finish()
        comm.barrier()
        if comm.rank == 1:

            def full(*arguments: Any) -> None:
                raise OSError(28, os.strerror(28))

            world.full = full
            monkeypatch.setattr(RowWriter, "_put", full)
        comm.barrier()
        learn(world, 2)
        saver.save(2)
        with pytest.raises(CheckpointError) as caught:
            saver.finish()
        comm.barrier()
        monkeypatch.undo()
        comm.barrier()
        saver.save(3)  # whole: nothing is known of what is on the disk
        saver.finish()
        return str(caught.value)

    (message,) = set(run_threads(2, body))
    assert (
        "step-00000002.h5 could not be written: No space left on device; older checkpoints are "
        "intact; make room on that disk, and go on with --resume"
    ) in message
    assert (
        names(tmp_path) == ["step-00000003.h5"]
        and base_of(checkpoint.checkpoints(tmp_path)[0]) is None
    )


def test_a_run_that_ends_otherwise_leaves_no_part(tmp_path: Path) -> None:
    world = make(SingleComm(), TABLE_WISE, SETS)
    saver = Saver(tmp_path, world, SavingPolicy(background=True))
    saver.save(1)
    saver.abandon()
    assert os.listdir(tmp_path / "checkpoints") == []


# ---- runs ----


def run(out: Path, log: Path, ranks: int, *sets: str, resume: bool = False) -> dict[str, str]:
    """Digests of the checkpoints that a run leaves, by their names."""
    config = config_of(
        log, "training.epochs=3", "checkpoint.every_steps=2", "checkpoint.keep=99", *sets
    )
    run_threads(ranks, lambda comm: Trainer(config, comm, out, resume=resume).run())
    digests = {}
    for path in checkpoint.checkpoints(out):
        with CheckpointFile(path) as file:
            digests[path.name] = file.recomputed_digest()
    return digests


@pytest.fixture(scope="module")
def expected(log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same of a run whose checkpoints are whole, and written while it waits."""
    return run(tmp_path_factory.mktemp("whole"), log, 1, "checkpoint.memory=0")


@pytest.mark.parametrize(
    ("ranks", "placement", "plan"),
    [
        (1, '"hbm_over_ddr_over_ssd"', '"table_wise"'),
        (3, '"hbm_over_ddr"', '"column_wise"'),
        (
            2,
            '{ one = "hbm", many = "ddr_over_ssd" }',
            '{ one = "data_parallel", many = "row_wise" }',
        ),
    ],
)
def test_runs_with_changes_have_the_digests_of_runs_without(
    log: Path,
    tmp_path: Path,
    expected: dict[str, str],
    ranks: int,
    placement: str,
    plan: str,
) -> None:
    sets = ("checkpoint.full_every=3", f"memory.placement={placement}", f"parallel.plan={plan}")
    assert run(tmp_path, log, ranks, *sets) == expected
    files = checkpoint.checkpoints(tmp_path)
    assert (
        len(files) == len(expected) >= 5 and sum(base_of(path) is not None for path in files) >= 2
    )
    counts = json.loads((tmp_path / "run.json").read_text())["checkpoints"]
    assert counts["written"] == len(files) > counts["of_changes"] > 0 and counts[
        "in_background"
    ] == len(files)
    for path in files[-2:]:
        path.unlink()
    assert run(tmp_path, log, ranks, *sets, resume=True) == expected
