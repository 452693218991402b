"""Are quantised checkpoints the state, each weight within half a step of its row, and is the last
one of a run exact?
"""

from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from test_checkpoint import MIXED, TABLE_WISE, make
from test_checkpoint_chain import SETS, learn, names, wholes

import neocpu
from neocpu.cli.checkpoint import checkpoint as command
from neocpu.core.errors import ConfigError, Stopped
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.launch import StopSignal
from neocpu.parallel.transport.threads import run_threads
from neocpu.train import checkpoint
from neocpu.train.checkpoint.links import base_of
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.checkpoint.saving import Saver, SavingPolicy
from neocpu.train.checkpoint.tools import merge
from neocpu.train.run import trainer
from neocpu.train.run.trainer import Trainer
from neocpu.train.state.state import digest
from neocpu.train.watch.results import RunReport
from tests.small_run import config_of

LEVELS = {"int8": 255, "int4": 15}
# of scale and bias, relative to the largest number of a row: fp32, fp16
ERRORS = {"int8": 1e-6, "int4": 4e-3}


def saved(out: Path, comm: Comm, schemes: list[str], form: str, **options: Any) -> list[str]:
    """Digests of four checkpoints, the last of them exact."""
    world = make(comm, schemes, SETS)
    saver = Saver(out, world, SavingPolicy(keep=99, full_every=8, quantize=form, **options))
    digests = []
    for step in range(1, 5):
        learn(world, step)
        digests.append(saver.save(step, last=step == 4))
    saver.finish()
    return digests


@pytest.mark.parametrize("form", LEVELS)
def test_rows_are_within_half_a_step_and_the_last_file_is_exact(tmp_path: Path, form: str) -> None:
    digests = saved(tmp_path / "one", SingleComm(), TABLE_WISE, form)
    exact = wholes(range(1, 5))
    assert digests[3] == exact[3] and not set(digests[:3]) & set(exact)
    for ranks, schemes, room in ((3, MIXED, 0), (4, ["column_wise"] * 4, 1 << 30)):
        body = partial(
            saved, tmp_path / str(ranks), schemes=schemes, form=form, room=room, background=True
        )
        assert run_threads(ranks, body) == [digests] * ranks
    paths = checkpoint.checkpoints(tmp_path / "one")
    # none of another kind
    assert [base_of(path) for path in paths] == [None, *names(tmp_path / "one")[:2], None]
    world = make(SingleComm(), TABLE_WISE, SETS)
    model = neocpu.load(paths[2])
    for step in range(1, 4):
        learn(world, step)
    for i, shard in enumerate(world.plan.local(0)):
        spec = world.plan.tables[shard.table]
        rows = model.tables[world.plan.tables[shard.table].name].learnt
        values = world.embedding.tbe.values(i, rows)
        table = model.tables[spec.name]
        weight = values["weight"]
        stored = table[rows]
        step = (weight.max(axis=1) - weight.min(axis=1)) / LEVELS[form]
        most = 0.5 * step * (1 + 1e-4) + ERRORS[form] * np.abs(weight).max(axis=1)
        assert (np.abs(stored - weight) <= most[:, None]).all() and (stored != weight).any()
        np.testing.assert_array_equal(table.field("sum", rows), values["sum"])
        np.testing.assert_array_equal(table[rows[::-1][:5]], stored[::-1][:5])


def test_files_are_read_loaded_merged_and_shown(tmp_path: Path) -> None:
    digests = saved(tmp_path, SingleComm(), TABLE_WISE, "int8")
    path = checkpoint.checkpoints(tmp_path)[2]
    with h5py.File(path, locking=False) as file, CheckpointFile(path) as whole:
        weight = file["tables/C1/weight"]
        assert weight.attrs["quantized"] == b"int8" and file.attrs["version"] == 4
        assert (
            weight.shape[1] == whole.tensors[whole.number("tables/C1")].fields[0][1][0] + 8
            and weight.dtype == np.uint8
        )
        assert whole.recomputed_digest() == whole.digest == digests[2] and whole.quantized == "int8"
        merge(whole, tmp_path / "merged.h5")
    with CheckpointFile(tmp_path / "merged.h5") as file:
        assert (file.recomputed_digest(), file.quantized) == (digests[2], "")
    shown = CliRunner().invoke(command, ["show", str(path)]).output
    assert "rounded   weights of float32 tables, to int8 rows" in shown

    def body(comm: Comm) -> tuple[str, list[str | None]]:
        world = make(comm, MIXED, SETS, learnt=False)
        out = tmp_path / "on"
        (out / "checkpoints").mkdir(parents=True, exist_ok=True)
        for old in checkpoint.checkpoints(tmp_path):
            (out / "checkpoints" / old.name).write_bytes(old.read_bytes())
        checkpoint.load(path, world)
        loaded = digest(world, 3)
        saver = Saver(out, world, SavingPolicy(keep=99, full_every=8, quantize="int8"))
        saver.resume(out / "checkpoints" / path.name, 3)
        learn(world, 4)
        # what is rounded again may differ: no file is based on one that a run began with
        saver.save(4)
        return loaded, [base_of(out / "checkpoints" / name) for name in names(out)[3:]]

    assert run_threads(1, body) == [(digests[2], [None])]


def test_a_run_that_was_killed_says_that_its_bits_are_others(tmp_path: Path, log: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint.quantize.*none, int8, int4"):
        config_of(log, "checkpoint.quantize=int7")
    sets = ("checkpoint.quantize=int8", "checkpoint.every_steps=2", "checkpoint.keep=9")
    whole = Trainer(config_of(log, *sets), None, tmp_path).run()
    plain = Trainer(config_of(log), None, tmp_path / "plain").run()
    assert whole["digest"] == plain["digest"]
    checkpoint.checkpoints(tmp_path)[-1].unlink()
    lines: list[str] = []
    resumed = Trainer(
        config_of(log, *sets),
        None,
        tmp_path,
        resume=True,
        report=RunReport(tmp_path, 0, tell=lines.append),
    ).run()
    assert any(
        "it is rounded to int8, so the bits will not be those of a run that went on" in line
        for line in lines
    )
    assert resumed["digest"] != whole["digest"] and resumed["steps"] == whole["steps"]


def test_a_signal_just_after_a_rounded_checkpoint_leaves_an_exact_one(
    tmp_path: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Trainer(
        config_of(log, "checkpoint.quantize=int8", "checkpoint.every_steps=2"), None, tmp_path
    )

    class SignalAfterStep2(StopSignal):
        number = property(lambda _: 15 * (run.steps_taken == 2), lambda _, number: None)

    monkeypatch.setattr(trainer, "StopSignal", SignalAfterStep2)
    with pytest.raises(Stopped, match="after step 2; a checkpoint is written"):
        run.run()
    (path,) = checkpoint.checkpoints(tmp_path)
    with CheckpointFile(path) as file:
        assert (file.step, file.quantized, file.recomputed_digest()) == (2, "", file.digest)
