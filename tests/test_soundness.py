"""What does a run do with a number that is not finite: stop, skip the step, or roll back?"""

import gc
import json
import re
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError, TrainingError
from neocpu.core.types import JsonObject
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.overflow import RISK, at_risk, peak
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.run import trainer as trainer_module
from neocpu.train.run.online import OnlineTrainer
from neocpu.train.run.trainer import Trainer
from neocpu.train.step.soundness import LIMIT, sound
from neocpu.train.step.turn import Outcome
from neocpu.train.watch.results import RunReport
from neocpu.train.watch.step_watch import StepClock
from neocpu.train.watch.train_log import TrainLog
from tests.small_run import BATCH, ROWS, config_of, write_log
from tests.workers import covered

IN_ORDER = "data.shuffle=false"
SKIP = "training.on_nonfinite=skip"
SPOILT = BATCH + 50  # sample 50 of the second batch


def run(
    log: Path, out: Path, *overrides: str, ranks: int = 1, resume: bool = False
) -> tuple[JsonObject, list[str]]:
    """Summary of a run, and the lines it told."""
    told: list[str] = []
    config = config_of(log, *overrides)

    def body(comm: SingleComm) -> JsonObject:
        report = RunReport(out, comm.rank, tell=told.append)
        return Trainer(config, comm, out, resume=resume, report=report).run()

    return run_threads(ranks, body, timeout=120)[0], told


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("spoilt") / "log.h5", spoil=SPOILT)


def fields(out: Path) -> dict[str, np.ndarray]:
    """Rows, values and states of every tensor in the newest checkpoint, by name."""
    with CheckpointFile(max((out / "checkpoints").glob("*.h5"))) as file:
        return {
            f"{tensor.name} {field} {block}": values
            for number, tensor in enumerate(file.tensors)
            for block, blocks in enumerate(file.blocks(number))
            for field, values in {"rows": blocks.rows, **blocks.values}.items()
        }


@pytest.mark.parametrize(
    ("ranks", "sets"),
    [
        (1, ("parallel.plan=row_wise",)),
        (2, ("parallel.plan={ one = 'data_parallel', many = 'column_wise' }", "eval.ema=0.9")),
        (3, ("parallel.plan=row_wise", "optimizer.clip_norm=0.1", "training.pipeline=off")),
    ],
    ids=["one rank", "replicas and columns", "clipped"],
)
def test_a_skipped_step_leaves_no_bit_on_any_rank(spoilt, tmp_path, ranks, sets):
    sets = (IN_ORDER, SKIP, *sets)
    one, _ = run(spoilt, tmp_path / "one", *sets, "training.steps=1")
    two, told = run(spoilt, tmp_path / "two", *sets, "training.steps=2", ranks=ranks)
    assert two["skipped_steps"] == [2] and "skipped_steps" not in one
    (line,) = [line for line in told if "skipped" in line]
    assert line.startswith("warning: step 2 is skipped: the loss of sample 50 of the batch is nan")
    before, after = fields(tmp_path / "one"), fields(tmp_path / "two")
    assert len(before) > 10
    np.testing.assert_equal(after, before)


def test_a_run_that_skips_goes_on_alike_on_any_ranks(spoilt, tmp_path):
    whole, _ = run(spoilt, tmp_path / "whole", IN_ORDER, SKIP)
    run(spoilt, tmp_path / "parts", IN_ORDER, SKIP, "training.steps=2", ranks=2)
    resumed, _ = run(spoilt, tmp_path / "parts", IN_ORDER, SKIP, ranks=2, resume=True)
    assert whole["digest"] == resumed["digest"]
    assert whole["skipped_steps"] == resumed["skipped_steps"] == [2]


def test_a_run_that_only_skips_ends(tmp_path):
    log = write_log(tmp_path / "log.h5", spoil=slice(0, ROWS))
    with pytest.raises(TrainingError, match=r"step 11: .* 10 steps before it were skipped too"):
        run(log, tmp_path / "out", SKIP, "training.epochs=9")


def test_a_run_that_diverges_rolls_back_until_its_rates_serve(log, tmp_path):
    sets = (
        "training.on_nonfinite=roll_back",
        "training.roll_back_rate=1e-12",
        "model.loss=mse",
        "optimizer.dense.learning_rate=1e20",
        "optimizer.dense.name=sgd",
        "training.epochs=1",
        "checkpoint.every_steps=1",
        "training.log_every=1",
    )
    whole, told = run(log, tmp_path / "whole", *sets)
    assert whole["steps"] == 3 and whole["roll_backs"] > 1
    assert whole["rate"] == pytest.approx(1e-12 ** whole["roll_backs"])
    assert sum("going back" in line for line in told) == whole["roll_backs"]
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    train = [line for line in map(json.loads, lines) if line["split"] == "train"]
    assert train[-1]["dense_learning_rate"] == pytest.approx(1e20 * whole["rate"])
    # a run that goes on keeps its smaller rates
    run(log, tmp_path / "parts", *sets, "training.steps=2")
    resumed, _ = run(log, tmp_path / "parts", *sets, ranks=2, resume=True)
    assert resumed["digest"] == whole["digest"]


def test_a_step_that_no_rate_helps_is_rolled_back_from_once(spoilt, tmp_path):
    sets = (IN_ORDER, "training.on_nonfinite=roll_back")
    summary, told = run(spoilt, tmp_path / "out", *sets)
    assert (summary["roll_backs"], summary["rate"], summary["skipped_steps"]) == (1, 0.5, [2])
    # there was no checkpoint yet but that of the start
    assert "resuming from step-00000000.h5" in told


def test_tables_are_freed_before_others_are_built_and_with_the_run(log, tmp_path, monkeypatch):
    """Without waiting for the garbage collector, which does not know how much memory rows take."""
    worlds = []

    def build(*arguments, **keys):
        assert [world() for world in worlds] == [None] * len(worlds)
        world = worlds_build(*arguments, **keys)
        worlds.append(weakref.ref(world.embedding.tbe))
        return world

    worlds_build = trainer_module.build
    monkeypatch.setattr(trainer_module, "build", build)
    sets = ("training.on_nonfinite=roll_back", "optimizer.sparse.learning_rate=1e30")
    # the first import of matplotlib leaves frames behind that refer to their callers
    run(log, tmp_path / "first", "training.steps=1")
    worlds.clear()
    gc.collect()
    gc.disable()
    try:
        run(log, tmp_path / "out", *sets, "training.roll_back_rate=1e-12", "training.steps=3")
        assert len(worlds) > 2 and worlds[-1]() is None
    finally:
        gc.enable()


def test_keys_that_cannot_be_are_refused(log, tmp_path):
    for value in ("0", "1.5"):
        with pytest.raises(ConfigError, match="roll_back_rate"):
            config_of(log, f"training.roll_back_rate={value}")


def test_files_as_they_come_roll_back_into_the_file_before(log, tmp_path):
    later = write_log(tmp_path / "later.h5", spoil=slice(0, ROWS), least=5)
    sets = ["data.rows_by=vocabulary", "data.min_count=1", "checkpoint.every_files=0"]
    sets += ["checkpoint.every_steps=2", "checkpoint.keep=9", "training.roll_back_rate=1"]
    saved = []
    for policy in ("skip", "roll_back"):
        config = config_of(log, *sets, f"training.on_nonfinite={policy}")
        out = tmp_path / policy
        OnlineTrainer(config, SingleComm(), out, [str(log), str(later)]).run()
        saved.append(vocabularies_of(out))
    rolled_back = saved[1]
    del rolled_back[0]  # what there is to go back to
    assert rolled_back == saved[0]
    assert rolled_back[2][1] < rolled_back[6][1]


def vocabularies_of(out: Path) -> dict[int, tuple[str, int]]:
    """Digest, and size of a vocabulary, of each checkpoint, by its step."""
    sizes = {}
    for path in (out / "checkpoints").glob("*.h5"):
        with CheckpointFile(path) as file:
            sizes[file.step] = file.digest, file.vocabularies()["one"].size
    return sizes


# ---- where it is ----


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_row_that_is_not_finite_is_named_with_table_step_and_sample(log, tmp_path, ranks):
    """As an imported table may have one."""
    config = config_of(log, IN_ORDER, "parallel.plan=table_wise")
    codes = 3

    class Spoils(Trainer):
        def _before_step(self, world, recovery):
            tbe = world.embedding.tbe
            for number, shard in enumerate(world.plan.local(self.comm.rank)):
                if self.steps_taken == 1 and world.plan.tables[shard.table].name == "one":
                    rows = tbe.existing(number, 0, 50)[codes : codes + 1]
                    tbe.state(number)["weight"][rows, 2] = np.inf

    with pytest.raises(TrainingError) as error:
        run_threads(ranks, lambda comm: Spoils(config, comm, tmp_path / "out").run(), timeout=120)
    told = str(error.value)
    assert re.match(
        r"step 2: the loss of sample \d+ of the batch is (nan|-?inf) \(its inputs", told
    )
    assert re.search(r"the vector of one \(table one, rows? \d+\) is (nan|-?inf)", told)


def test_a_large_value_of_the_log_is_told_at_its_step(tmp_path):
    log = write_log(tmp_path / "log.h5", spoil=SPOILT, value=-3e38)
    sets = (IN_ORDER, "optimizer.dense.name=adagrad", "training.seed=3", "training.steps=2")
    with pytest.raises(TrainingError, match=r"^step 2: ") as error:
        run(log, tmp_path / "out", *sets)
    told = str(error.value)
    assert "its largest input is -3e+38, dense input 1" in told
    summary, _ = run(log, tmp_path / "skips", *sets, SKIP)
    assert summary["skipped_steps"] == [2]
    assert all(np.isfinite(values).all() for values in fields(tmp_path / "skips").values())


@pytest.mark.parametrize(
    "rule",
    covered(("exact_rowwise_adagrad", "exact_adagrad", "lamb"), always=("exact_rowwise_adagrad",)),
)
@pytest.mark.parametrize("plan", ["table_wise", "column_wise", "data_parallel"])
def test_a_row_whose_state_overflows_is_told(log, tmp_path, rule, plan):
    """A gradient of 2^62 is sound, but that of eight lookups of a row is not."""
    sets = (f"optimizer.sparse.name={rule}", f"parallel.plan={plan}", "training.steps=1")

    class Large(Trainer):
        def _prepare(self, splits):
            world, schedule = super()._prepare(splits)
            back = world.model.backward_lower

            def large():
                gradient = back()
                gradient[:, world.model.first_column :] = 2.0**62
                return gradient

            world.model.backward_lower = large
            return world, schedule

    with pytest.raises(
        TrainingError, match=r"step 1: \w+ of row \d+ of table (one|many) is not finite after"
    ):
        Large(config_of(log, *sets), SingleComm(), tmp_path / "out").run()


@given(st.lists(st.floats(width=32), max_size=9))
def test_sound_is_what_every_number_is(numbers: list[float]) -> None:
    x = np.array(numbers, np.float32)
    assert sound(x) == all(abs(each) < LIMIT for each in numbers)
    none = np.empty(0, np.float32)
    assert at_risk(x, none) == (not all(abs(each) < RISK for each in numbers))
    assert np.isnan(peak(x)) == any(map(np.isnan, numbers))


# ---- what is told of gradients and losses ----


def test_norms_are_those_of_the_gradients(log, tmp_path):
    """Of the dense parameters after one step of SGD by their difference; of vectors by hand."""
    seen = []

    class Notes(Trainer):
        def _step(self, steps):
            before = self.world.model.flat.copy()
            taken = super()._step(steps)
            moved = (before - self.world.model.flat).astype(np.float64) / np.float32(0.1)
            vectors = self.world.step.soundness._turn.gradient[:, 4:].astype(np.float64)
            seen.append([np.sqrt((moved**2).sum()), np.sqrt((vectors**2).sum())])
            return taken

    sets = ("training.log_every=1", "optimizer.dense.name=sgd", "training.steps=3")
    Notes(config_of(log, *sets), SingleComm(), tmp_path / "out").run()
    lines = map(json.loads, (tmp_path / "out" / "metrics.jsonl").read_text().splitlines())
    told = [line for line in lines if "gradient_norm" in line]
    norms = [[line["gradient_norm"], line["pooled_gradient_norm"]] for line in told]
    np.testing.assert_allclose(norms, seen, rtol=1e-4)


def test_a_spike_is_told_with_its_step_once() -> None:
    def batch(loss: float) -> Outcome:
        ones = np.ones(8, np.float32)
        return Outcome(0.5 * ones, ones, np.float32(loss) * ones)

    train_log = TrainLog(0, "bce", 30, StepClock(0.0))
    spikes = {40: 2.0, 47: 5.0, 90: 1e30}
    told = []
    for step in range(1, 101):
        train_log.add(batch(spikes.get(step, 0.6 + 0.01 * (step % 3))), step)
        if step % 10 == 0:
            train_log.metrics(SingleComm())
            told += [train_log.spike()]
    assert [text.split(",")[0] for text in told if text] == [
        "the loss of step 40 is 2",
        "the loss of step 47 is 5",
        "the loss of step 90 is 1e+30",
    ]
