"""Does a whole run do what its config says: steps, epochs, partial batches, one digest, and a
helpful error?
"""

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neocpu.core.errors import CheckpointError, ConfigError, DataError, TrainingError
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.machines import machine_file
from neocpu.train.before.dry_run import dry_run
from neocpu.train.config import config
from neocpu.train.config.keys import resolved
from neocpu.train.config.settings import OptimizerConfig
from neocpu.train.run.folder import RunLock
from neocpu.train.run.summary import sent_matrix
from neocpu.train.run.trainer import Trainer
from neocpu.train.step.turn import Outcome
from neocpu.train.watch.metrics import Window
from neocpu.train.watch.results import RunReport
from neocpu.train.watch.step_watch import StepClock
from neocpu.train.watch.train_log import TrainLog
from tests.small_run import BATCH, CONFIG, ROWS, config_of, write_log


def train(log, out, *overrides):
    """Summary of a run alone."""
    return Trainer(config_of(log, *overrides), SingleComm(), out).run()


@pytest.mark.parametrize(
    ("overrides", "steps", "samples"),
    [
        ((), 3, ROWS),
        (("training.epochs=3",), 9, 3 * ROWS),
        (("training.epochs=3", "training.steps=5"), 5, ROWS + 2 * BATCH),
        (("training.steps=50",), 3, ROWS),
        (("training.batch_size=1000",), 1, ROWS),
    ],
    ids=["one pass", "three passes", "cap on steps", "cap beyond the end", "batch beyond the log"],
)
def test_a_run_ends_with_its_epochs_or_its_steps(log, tmp_path, overrides, steps, samples):
    summary = train(log, tmp_path / "out", *overrides)
    assert (summary["steps"], summary["samples"]) == (steps, samples)
    assert json.loads((tmp_path / "out" / "run.json").read_text()) == json.loads(
        json.dumps(summary)
    )
    assert summary["metrics"]["test"]["samples"] == ROWS
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == [
        f"step-{steps:08d}.h5"
    ]


def test_a_run_whose_folder_is_removed_ends_with_its_checkpoint_and_digest(log, tmp_path):
    whole = train(log, tmp_path / "whole")
    out = tmp_path / "out"
    lines = []

    @contextmanager
    def progress(total, done):
        yield lambda step, samples: shutil.rmtree(out) if step == 2 else None

    report = RunReport(out, 0, tell=lines.append, progress=progress)
    summary = Trainer(config_of(log), SingleComm(), out, report=report).run()
    assert summary["digest"] == whole["digest"]
    assert json.loads((out / "run.json").read_text())["digest"] == whole["digest"]
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000003.h5"]
    assert sum("was removed while the run writes to it" in line for line in lines) == 1


def test_a_run_whose_folder_is_renamed_makes_it_again_with_lock_config_and_plan(log, tmp_path):
    out = tmp_path / "out"
    moved = tmp_path / "moved"
    lines = []
    other = []

    @contextmanager
    def progress(total, done):
        yield lambda step, samples: out.rename(moved) if step == 2 else None

    def listener(line):
        if line["step"] == 3 and not other:
            other.append((out / "lock").read_text())
            with pytest.raises(TrainingError, match="in use by another run"):
                RunLock(out, SingleComm(), resume=True).__enter__()

    report = RunReport(out, 0, tell=lines.append, progress=progress, listeners=[listener])
    Trainer(config_of(log), SingleComm(), out, report=report).run()
    assert any(f"{out} was renamed to {moved} while the run writes" in line for line in lines)
    assert other[0] and not (out / "lock").read_text()
    for name in ("config.json", "plan.json"):
        assert (out / name).read_text() == (moved / name).read_text()
    assert {path.name for path in out.iterdir()} >= {"run.json", "metrics.jsonl", "checkpoints"}


def test_a_listener_ends_a_run_as_its_last_step_would(log, tmp_path):
    whole = train(log, tmp_path / "whole", "training.epochs=2", "training.steps=4")
    longer = config_of(log, "training.epochs=3", "eval.every_steps=4")

    def run(comm):
        report = RunReport(tmp_path / "out", comm.rank, listeners=[lambda line: True])
        return Trainer(longer, comm, tmp_path / "out", report=report).run()

    for summary in run_threads(2, run):
        assert (summary["steps"], summary["digest"]) == (4, whole["digest"])
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == [
        "step-00000004.h5"
    ]


def test_lines_on_training_are_those_of_any_ranks_and_agree_with_full_measurements(log, tmp_path):
    times = ("seconds", "samples_per_second")
    config = config_of(log, "training.epochs=2", "training.log_every=2", "eval.every_steps=4")
    plain = train(log, tmp_path / "plain", "training.epochs=2")
    by_ranks = []
    for ranks in (1, 3):
        out = tmp_path / f"{ranks}"
        summary = run_threads(ranks, lambda comm, out=out: Trainer(config, comm, out).run())[0]
        assert summary["digest"] == plain["digest"]
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        by_ranks.append([{key: line[key] for key in line if key not in times} for line in lines])
        training = [line for line in lines if line["split"] == "train"]
        assert [line["step"] for line in training] == [2, 4, 6]
        assert all(line["learning_rate"] > 0 and line["seconds"] > 0 for line in training)
        assert all(line["gradient_norm"] > 0 for line in training)
        assert all(line["pooled_gradient_norm"] > 0 for line in training)
    assert by_ranks[0] == by_ranks[1]
    # the same batches, in cheaper sums
    log_of_run = TrainLog(0, "bce", 100, StepClock(0.0))
    window = Window(100)
    generator = np.random.default_rng(1)
    for step in range(3):
        p = generator.random(50, np.float32)
        y = (generator.random(50) < 0.3).astype(np.float32)
        outcome = Outcome(p, y, -np.where(y == 1, np.log(p), np.log1p(-p)))
        window.add(p, y, outcome.loss)
        log_of_run.add(outcome, step + 1)
    cheap = log_of_run.metrics(SingleComm())
    full = window.metrics("bce", SingleComm())
    for name in ("samples", "logloss", "ne", "calibration"):
        assert getattr(cheap, name) == pytest.approx(getattr(full, name), rel=1e-6)


def seconds_in(tree: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Times in a summary."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from seconds_in(value, f"{name}.{key}")
    elif name.rpartition(".")[2] in ("seconds", "stall_seconds", "cold_start_seconds"):
        yield name, tree


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_no_time_is_longer_than_the_run(log: Path, tmp_path: Path, memory: int) -> None:
    keys = ("checkpoint.every_steps=2", f"checkpoint.memory={memory}")
    begun = time.perf_counter()
    summary = train(log, tmp_path / "out", *keys, "memory.placement=ddr_over_ssd")
    elapsed = time.perf_counter() - begun
    seconds = dict(seconds_in(summary))
    assert {".checkpoints.seconds", ".stall_seconds", ".cold_start_seconds"} <= {*seconds}
    assert all(0 < value < elapsed for value in seconds.values()), (seconds, elapsed)


def test_a_summary_knows_config_traffic_and_calibration(log, tmp_path):
    summaries = {}
    for ranks in (1, 3):
        keys = ("parallel.plan=row_wise", "eval.group=one", "eval.baseline=true")
        run = config_of(log, *keys)
        out = tmp_path / f"{ranks}"
        summaries[ranks] = run_threads(
            ranks, lambda comm, run=run, out=out: Trainer(run, comm, out).run()
        )[0]
    summary = summaries[3]
    for name in ("reliability", "deciles", "metrics", "doubts", "baseline", "digest"):
        assert summary[name] == summaries[1][name]
    assert summary["metrics"]["test"]["groups"] == 20
    assert summary["baseline"]["metrics"]["auc"] > 0.9  # labels follow from one feature
    assert "no better than a logistic regression" in " ".join(summary["doubts"]["test"])
    bins = summary["reliability"]["test"]
    assert sum(each["samples"] for each in bins) == summary["metrics"]["test"]["samples"]
    mean = sum(each["samples"] * each["predicted"] for each in bins)
    clicks = sum(each["samples"] * each["label"] for each in bins)
    assert mean / clicks == pytest.approx(summary["metrics"]["test"]["calibration"])
    sent = np.array(summary["sent"]["bytes"])
    links = [link for verb in summary["traffic"].values() for link in verb.items()]
    sizes = {
        name: sum(counts["bytes"] for link, counts in links if link == name)
        for name in ("same_rank", "same_node", "other_node")
    }
    assert np.trace(sent) == sizes["same_rank"]
    assert sent.sum() == sum(sizes.values())
    assert summary["config"]["training"]["batch_size"] == BATCH
    assert summary["config"]["tables"]["one"]["dim"] == 4
    assert config.loads(summary["toml"], "run", summary["overrides"]).header()
    assert len(summary["memory_of_ranks"]) == 3


def test_a_line_on_training_is_due_by_steps_or_by_time():
    now = 0.0
    log_of_run = TrainLog(0, "bce", 9, StepClock(0.0), lambda: now)
    log_of_run.begin(20, OptimizerConfig())
    assert [step for step in (20, 21, 99, 100) if log_of_run.due(step)] == [100]
    now = 30.0
    assert log_of_run.due(21) and not log_of_run.due(20)
    log_of_run.pace(21)
    assert not log_of_run.due(22)


def test_a_dry_run_says_what_a_run_takes_and_writes_nothing(log, tmp_path, monkeypatch):
    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path / "cache"))
    config = config_of(log, "training.epochs=2", "checkpoint.every_steps=2")
    text = "\n".join(dry_run(config, 2, tmp_path / "out"))
    assert f"{ROWS} samples; 6 steps of {BATCH}, 3 an epoch" in text
    for line in ("memory: up to", "disk: 3 checkpoints", "time: not known; `neocpu calibrate`"):
        assert line in text
    path = machine_file.this_machine_path()
    path.parent.mkdir(parents=True)
    machine_file.save(path, machine_file.text(machine_file.load("fat-tree")))
    assert "s a step, " in "\n".join(dry_run(config, 2, tmp_path / "out"))
    raw = config_of(log, f'data.train="{tmp_path}/raw.tsv"', "training.steps=7")
    (tmp_path / "raw.tsv").write_text("")
    text = "\n".join(dry_run(raw, 1, tmp_path / "out"))
    assert "not converted yet" in text and "time: not known, as the train data are not" in text
    assert re.search(r"are free: fits, with each lookup in a row of its own$", text, re.MULTILINE)
    large = config_of(log, f'data.train="{tmp_path}/raw.tsv"', "tables.one.rows=3000000000000")
    text = "\n".join(dry_run(large, 1, tmp_path / "out"))
    assert "are free: does not fit, with each" in text and "samples/s" not in text
    known = config_of(log, "tables.one.rows=3000000000000", "training.epochs=2")
    monkeypatch.setattr("neocpu.train.before.preflight.available_memory", lambda: 1000)
    text = "\n".join(dry_run(known, 1, tmp_path / "out"))
    assert "are free: does not fit" in text and "time: not known, as the run does not fit" in text
    assert not (tmp_path / "out").exists()


def test_a_dry_run_estimates_raw_data(tmp_path):
    line = "\t".join(["1", *["3"] * 13, *["0a1b2c3d"] * 26]) + "\n"
    (tmp_path / "raw.tsv").write_text(30_000 * line)  # more than the megabyte that is looked at
    raw = config.loads(
        '[data]\ntrain = "x"\n[tables]\nC1.rows = 900\nC2.rows = 900\n[training]\nbatch_size = 100',
        overrides=[f'data.train="{tmp_path}/raw.tsv"'],
    )
    lines = list(dry_run(raw, 1, tmp_path / "out"))
    (data,) = (text for text in lines if text.startswith("data: about "))
    samples = int(data.split()[2].replace(",", ""))
    assert abs(samples - 30_000) < 1500
    assert f"{-(-samples // 100):,} an epoch; estimated" in data
    for start in ("tables: ", "memory: up to", "disk: 1 checkpoints", "kernels: "):
        assert any(text.startswith(start) for text in lines), start


def test_a_dry_run_knows_the_time_of_a_run_like_it(tmp_path):
    run = config.loads("[tables]\nC1.rows = 900\n[training]\nbatch_size = 100\nsteps = 50")
    written = {"config": resolved(run), "ranks": 2, "samples_per_second": 400.0}
    (tmp_path / "out-2").mkdir()
    (tmp_path / "out-2" / "run.json").write_text(json.dumps(written))

    def time(ranks, *overrides):
        other = config.loads(run.text, overrides=overrides)
        return list(dry_run(other, ranks, tmp_path / "out"))[-1]

    assert "about 250 ms a step, 400 samples/s, 12 s for 50 steps; as in " in time(2)
    for line in (time(1), time(2, "tables.C1.rows=901"), time(2, "training.batch_size=99")):
        assert "as in" not in line


def test_what_a_crash_would_have_cost(log, tmp_path):
    """The steps since the newest checkpoint, which is written while the next ones run."""
    sets = ("training.epochs=3", "training.steps=5")
    last = train(log, tmp_path / "last", *sets)["crash_cost"]
    assert last["steps"] == 5 and last["seconds"] > 0
    every = train(log, tmp_path / "every", *sets, "checkpoint.every_steps=2")["crash_cost"]
    assert 2 <= every["steps"] <= 4 and every["seconds"] > 0


def test_more_passes_learn_more(log, tmp_path):
    losses = [
        train(log, tmp_path / str(epochs), f"training.epochs={epochs}")["metrics"]["test"][
            "logloss"
        ]
        for epochs in (1, 20)
    ]
    assert losses[1] < 0.8 * losses[0]


@pytest.mark.parametrize("shuffle", ["true", "false"])
def test_one_digest_alone_and_on_threads(log, tmp_path, shuffle):
    overrides = ("training.epochs=2", f"data.shuffle={shuffle}")
    digests = {train(log, tmp_path / "alone", *overrides)["digest"]}
    for plan, ranks in (("row_wise", 2), ("column_wise", 3)):
        run = config_of(log, *overrides, f"parallel.plan={plan}")
        summaries = run_threads(
            ranks,
            lambda comm, run=run, ranks=ranks: Trainer(run, comm, tmp_path / str(ranks)).run(),
        )
        digests |= {summary["digest"] for summary in summaries}
    assert len(digests) == 1


def test_one_digest_on_compressed_wires(log, tmp_path):
    overrides = ("wires.forward=fp16", "wires.backward=bf16", "wires.dense=bf16")
    digests = {train(log, tmp_path / "alone", *overrides)["digest"]}
    for plan, ranks in (("column_wise", 2), ("table_row_wise", 3)):
        run = config_of(log, *overrides, f"parallel.plan={plan}")
        summaries = run_threads(
            ranks,
            lambda comm, run=run, ranks=ranks: Trainer(run, comm, tmp_path / str(ranks)).run(),
        )
        digests |= {summary["digest"] for summary in summaries}
    assert len(digests) == 1
    assert train(log, tmp_path / "fp32")["digest"] not in digests
    with pytest.raises(CheckpointError, match="wires was"):
        Trainer(config_of(log), SingleComm(), tmp_path / "alone", resume=True).run()


def test_digests_differ_by_seed_order_and_steps(log, tmp_path):
    changes = (
        "training.seed=1",
        "training.seed=2",
        "data.shuffle=false",
        "training.steps=2",
        "model.loss=mse",
    )
    digests = [train(log, tmp_path / change, change)["digest"] for change in changes]
    assert len(set(digests)) == len(changes)


@pytest.mark.parametrize("stop", [1, 4])  # within the first epoch, within the second
def test_interrupted_and_resumed_ends_with_the_same_digest(log, tmp_path, stop):
    whole = train(log, tmp_path / "whole", "training.epochs=2")
    train(log, tmp_path / "parts", "training.epochs=2", f"training.steps={stop}")
    more = config_of(log, "training.epochs=2", "parallel.plan=row_wise")
    resumed = run_threads(
        2, lambda comm: Trainer(more, comm, tmp_path / "parts", resume=True).run()
    )
    assert {summary["digest"] for summary in resumed} == {whole["digest"]}
    assert [summary["samples"] for summary in resumed] == [2 * ROWS, 2 * ROWS]


@pytest.mark.parametrize(
    "sparse",
    [
        'name = "partial_rowwise_lamb", max_norm = 0.5, max_gradient = 0.01',
        (
            'name = "exact_rowwise_adagrad_with_counter", counter_halflife = 3, weight_decay_mode '
            "= "
            '"adagradw"'
        ),
        'name = "ftrl", lambda1 = 1e-4, lambda2 = 0.01',
    ],
    ids=["two kinds of state, limits", "three row states", "ftrl"],
)
def test_optimizers_with_more_state_resume_on_any_ranks(log, tmp_path, sparse):
    overrides = (
        "training.epochs=2",
        f"optimizer.sparse={{ {sparse}, weight_decay = 0.1, learning_rate = 0.05 }}",
    )
    if "mode" not in sparse:
        overrides += ("optimizer.sparse.weight_decay_mode=decoupled",)
    whole = train(log, tmp_path / "whole", *overrides)
    train(log, tmp_path / "parts", *overrides, "training.steps=4")
    more = config_of(log, *overrides, "parallel.plan={one = 'data_parallel', many = 'grid_shard'}")
    resumed = run_threads(
        4, lambda comm: Trainer(more, comm, tmp_path / "parts", resume=True).run(), ranks_per_node=2
    )
    assert {summary["digest"] for summary in resumed} == {whole["digest"]}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_number_that_is_none_names_step_and_sample(tmp_path, ranks):
    log = write_log(tmp_path / "log.h5", spoil=BATCH + 50)  # sample 50 of the second batch
    run = config_of(log, "data.shuffle=false")
    message = r"step 2: the loss of sample 50 of the batch is nan \(its inputs are not finite\)"
    with pytest.raises(TrainingError, match=message):
        run_threads(ranks, lambda comm: Trainer(run, comm, tmp_path / "out").run(), timeout=60)


def test_splits_with_other_dense_inputs_are_refused(log, tmp_path):
    test_log = tmp_path / "other.h5"
    with DatasetWriter(
        test_log, ["a", "b"], [FeatureColumn("one"), FeatureColumn("many")]
    ) as writer:
        codes = {"one": np.zeros(3, np.uint32), "many": np.zeros(3, np.uint32)}
        writer.append(np.zeros(3, np.float32), np.zeros((3, 2), np.float32), codes)
    with pytest.raises(
        DataError, match=r"data\.test does not go with data\.train: dense columns differ"
    ):
        train(log, tmp_path / "out", f'data.test="{test_log}"')


def test_a_diverging_run_says_what_to_lower(log, tmp_path):
    with pytest.raises(
        TrainingError, match=r"inputs are finite.*lower optimizer\.dense\.learning_rate"
    ):
        train(
            log,
            tmp_path / "out",
            "model.loss=mse",
            "optimizer.dense.learning_rate=1e30",
            "training.epochs=9",
        )


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_without_data_names_the_key(tmp_path, ranks):
    run = config.loads(CONFIG, "my.toml")
    with pytest.raises(
        ConfigError,
        match=r"my\.toml: data\.train: a file to train on is missing; --set data\.train=",
    ):
        run_threads(ranks, lambda comm: Trainer(run, comm, tmp_path / "out").run())


def test_a_folder_that_goes_while_the_run_uses_it_is_one_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        pytest.raises(TrainingError, match=r"out/rows/a was removed while the run used it"),
        RunLock(out, SingleComm(), resume=False),
    ):
        open(out / "rows" / "a")  # noqa: SIM115
    with pytest.raises(FileNotFoundError), RunLock(out, SingleComm(), resume=False):
        open(tmp_path / "elsewhere")  # noqa: SIM115 (not of this folder: a bug keeps its traceback)


def test_a_group_that_is_no_feature_ends_a_run_before_its_first_step(log, tmp_path):
    for group, why in (
        ("user", "no feature 'user' to group by; its features are"),
        ("many", "list"),
    ):
        run = config_of(log, f"eval.group={group}")
        with pytest.raises(DataError, match=why):
            Trainer(run, None, tmp_path / group).run()
        assert not (tmp_path / group / "metrics.jsonl").exists()


def test_bytes_between_many_ranks_are_told_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [
        {"received": [10 * sender + receiver for receiver in range(4)]} for sender in range(3)
    ]
    states.append({"received": []})  # has sent nothing
    by_rank = sent_matrix(states, 2)
    assert by_rank == {"unit": "rank", "bytes": [*(s["received"] for s in states[:3]), [0] * 4]}
    monkeypatch.setattr("neocpu.train.run.summary.MOST_RANKS", 4)
    assert sent_matrix(states, 2)["unit"] == "rank"
    monkeypatch.setattr("neocpu.train.run.summary.MOST_RANKS", 3)
    assert sent_matrix(states, 2) == {"unit": "node", "bytes": [[22, 30], [41, 45]]}
