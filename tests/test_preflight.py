"""Is a run that cannot fit refused before it starts, with words that help, and one that may fit let
through?
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from neocpu.core.cores import private_bytes
from neocpu.core.errors import NeocpuError, TrainingError
from neocpu.ingest.dataset.convert import convert, expected_dataset
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.dataset.copies import missing_copies
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport import windows
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.before import preflight, room
from neocpu.train.before.datasets import open_splits
from neocpu.train.before.dry_run import dry_run
from neocpu.train.before.plans import memory_plan
from neocpu.train.before.preflight import (
    CheckpointNeeds,
    Need,
    check_checkpoints,
    check_conversions,
)
from neocpu.train.before.room import PlannedRun, check_room, needs_once, rank_needs
from neocpu.train.config import config
from neocpu.train.run import trainer
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.results import RunReport
from tests.jobs import ran
from tests.small_run import config_of

KIB = 1 << 10
MIB = 1 << 20


class Usage(NamedTuple):
    """What shutil.disk_usage gives."""

    total: int
    used: int
    free: int


@pytest.fixture
def free(monkeypatch):
    """Sets the free bytes of every disk."""
    return lambda size: monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: Usage(1 << 50, 0, size)
    )


def told_by(check, *args):
    """What a check says without refusing."""
    lines: list[str] = []
    check(*args, lines.append)
    return lines


@pytest.mark.parametrize(
    ("saves", "keep", "present", "files"),
    [(1, 2, [], 1), (2, 2, [], 2), (9, 2, [], 3), (9, 1, [], 2), (9, 5, [], 6), (1, 2, [0, 0], 3)],
    ids=[
        "only at the end",
        "two",
        "one more than stay",
        "keep one",
        "keep five",
        "resumed beside others",
    ],
)
def test_one_more_checkpoint_than_stay_must_fit(tmp_path, free, saves, keep, present, files):
    tables = [Need("big", 40 * MIB), Need("small", 9 * MIB)]
    needs = CheckpointNeeds(tables, 10 * MIB, saves, keep, present)
    size = 59 * MIB + preflight.OVERHEAD
    free(files * size)
    assert told_by(check_checkpoints, tmp_path, needs) == []
    free(files * size - 1)
    (line,) = told_by(check_checkpoints, tmp_path, needs)
    assert line.startswith(f"warning: checkpoints in {tmp_path} may need up to ")
    assert "\n" not in line
    assert f"({files} of 59.2 MiB; the largest table, big, up to 40.0 MiB of each)" in line
    assert "choose another --out" in line
    assert ("checkpoint.keep=1" in line) == (keep > 1 and files > 1)
    free(files * needs.dense)
    assert len(told_by(check_checkpoints, tmp_path, needs)) == 1
    free(files * needs.dense - 1)
    message = rf"need at least {files}0\.0 MiB and up to .* free there; make room"
    with pytest.raises(TrainingError, match=message):
        check_checkpoints(tmp_path, needs, print)


def test_room_that_older_checkpoints_give_back_counts(tmp_path, free):
    free(60 * MIB)
    needs = CheckpointNeeds([Need("big", 40 * MIB)], 19 * MIB, saves=9, keep=2)
    enough = replace(needs, present=[60 * MIB, 60 * MIB])
    assert told_by(check_checkpoints, tmp_path, enough) == []
    too_little = replace(needs, present=[60 * MIB, 57 * MIB])
    assert len(told_by(check_checkpoints, tmp_path, too_little)) == 1


def test_rows_on_the_ssd_that_may_not_fit_are_told(log, tmp_path, free):
    state = config_of(log).optimizer.sparse.state_floats
    needs = preflight.row_file_needs(config_of(log).tables, state, {"one": 1 << 20, "many": 10})
    assert needs[0].table == "one" and needs[0].bytes > 24 << 20
    more = [
        preflight.row_file_needs(config_of(log).tables, state, {"one": 1, "many": 0}, saves)[
            0
        ].bytes
        for saves in (1, 2, 9)
    ]
    # rows that changed since a commit are there twice
    assert more[1:] == [2 * more[0], 3 * more[0]]
    free(MIB)
    (line,) = told_by(preflight.check_rows, tmp_path / "not" / "there", needs, 2, 0)
    assert "most of it for one, but only 1.0 MiB are free" in line and "memory.ssd" in line
    # the budget keeps the files small
    assert told_by(preflight.check_rows, tmp_path, needs, 2, MIB // 2) == []


OPTIMIZERS = ("exact_sgd", "exact_adagrad", "exact_rowwise_adagrad", "adam", "partial_rowwise_adam")


@pytest.mark.parametrize("sparse", OPTIMIZERS)
def test_no_checkpoint_is_larger_than_foretold(log, tmp_path, sparse, monkeypatch):
    monkeypatch.setattr(preflight, "OVERHEAD", 32 * KIB)
    run = config_of(
        log,
        f"optimizer.sparse={{ name = '{sparse}' }}",
        "optimizer.dense.name=adagrad",
        "training.epochs=2",
    )
    splits = open_splits(run, SingleComm(), tmp_path, print)
    tables = preflight.checkpoint_needs(
        run.tables, run.optimizer.sparse.state_floats, splits.touchable_rows(300)
    )
    dense = preflight.dense_bytes(run, splits.dense_features)
    most = check_checkpoints(tmp_path, CheckpointNeeds(tables, dense, saves=1, keep=1), print)
    Trainer(run, None, tmp_path / "out").run()
    (path,) = (tmp_path / "out" / "checkpoints").iterdir()
    assert dense < path.stat().st_size <= most


@pytest.mark.parametrize("samples", [64, 1 << 21])
def test_windows_are_part_of_what_a_rank_needs(log, samples):
    """Vectors and gradients of its samples, but no more than a buffer of each."""
    needs = {}
    for mode in ("off", "on"):
        run = config_of(log, f"training.batch_size={samples}", f"parallel.shared_windows={mode}")
        plan = place(run.tables, ["table_wise"] * len(run.tables), 2)
        needs[mode] = preflight.working_memory(run, plan)
    columns = run.layout(1).columns
    alone, shared = needs.values()
    assert shared - alone == min(2 * windows.DATA, 2 * 4 * (samples // 2) * columns)


def test_rows_that_can_be_touched(log, tmp_path):
    splits = open_splits(config_of(log), SingleComm(), tmp_path, print)
    assert splits.touchable_rows(7) == {"one": 7, "many": 30}
    assert splits.touchable_rows(10**6) == {"one": 50, "many": 30}
    wide = config_of(log, "tables.one.rows=100000", "tables.many.rows=100000")
    splits = open_splits(wide, SingleComm(), tmp_path, print)
    lookups = splits.datasets["train"].lookups("many")
    # a second epoch finds the same rows
    assert splits.touchable_rows(10**6) == {"one": 150, "many": lookups}


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_on_a_full_disk_does_not_start(log, tmp_path, free, ranks):
    free(100)
    run = config_of(log)
    lines = []

    def body(comm):
        report = RunReport(tmp_path / "out", comm.rank, tell=lines.append)
        with pytest.raises(TrainingError) as error:
            Trainer(run, comm, tmp_path / "out", report=report).run()
        return str(error.value), error.value.spoken_by

    (message,) = set(run_threads(ranks, body))
    assert (
        message[0].startswith(f"checkpoints in {tmp_path / 'out'} need at least ")
        and message[1] == 0
    )
    assert not lines and not (tmp_path / "out" / "plan.json").exists()


def test_a_run_that_may_fit_starts_with_a_warning(log, tmp_path, free):
    free(100 * KIB)
    lines: list[str] = []
    Trainer(
        config_of(log),
        None,
        tmp_path / "out",
        report=RunReport(tmp_path / "out", 0, tell=lines.append),
    ).run()
    assert (
        sum(
            line.startswith("warning: checkpoints in ") and "the largest table, one" in line
            for line in lines
        )
        == 1
    )


def test_huge_pages_are_asked_for_only_where_they_fit(log, tmp_path, monkeypatch):
    on_huge_pages = []
    real = trainer.build

    def build(*args, huge, **settings):
        on_huge_pages.append(huge)
        return real(*args, huge=huge, **settings)

    monkeypatch.setattr(trainer, "build", build)
    digests = set()
    for available in (1 << 40, 1 << 29):  # the table of gigabytes is mapped, a page at a time
        monkeypatch.setattr(preflight, "available_memory", lambda available=available: available)
        run = config_of(log, "tables.one.rows=200_000_000", "training.steps=2")
        digests.add(Trainer(run, None, tmp_path / str(available)).run()["digest"])
    assert on_huge_pages == [True, False] and len(digests) == 1
    monkeypatch.setattr(preflight, "available_memory", lambda: 1 << 20)
    with pytest.raises(TrainingError, match="largest table, one"):
        Trainer(config_of(log), None, tmp_path / "none").run()


MEASURED = """
import re, sys
from pathlib import Path
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.before import preflight, room
from neocpu.train.run.trainer import Trainer
from tests.small_run import config_of

estimates = []
def check(needs, ranks, working, available=None, once=0):
    estimates.append(sum(need.bytes for need in needs) + working + once)
    return 0
preflight.check_memory = check
Trainer(config_of(sys.argv[1]), SingleComm(), Path(sys.argv[2])).run()
peak = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())
print(estimates[0] >> 20, int(peak[1]) >> 10)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak")
def test_the_estimate_of_a_small_run_is_what_it_takes(log, tmp_path):
    # The first run may compile some kernels, or all: nobody knows before. The second is warm.
    for name in ("cold", "warm"):
        done = ran([sys.executable, "-c", MEASURED, str(log), str(tmp_path / name)], timeout=300)
        assert done.returncode == 0, done.stderr
        estimate, peak = map(int, done.stdout.split())
        assert peak < estimate, name
    assert estimate < 1.5 * peak


def test_many_small_ranks_share_what_is_there_once(log):
    run = config_of(log)
    working = preflight.working_memory(run, place(run.tables, ["table_wise"] * 2, 64))
    # one such rank alone was measured to hold 226 MiB, half of them libraries that all share
    assert preflight.fits([], 64, working, 8 << 30)
    assert not preflight.fits([], 64, working, 6 << 30)
    with pytest.raises(TrainingError, match=r"112\.0 MiB of memory per rank, 7\.2 GiB for 64 rank"):
        preflight.check_memory([], 64, working, 6 << 30)


def test_who_insists_is_warned_and_runs(log, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "available_memory", lambda: 1 << 20)
    with pytest.raises(
        TrainingError, match=r"estimate, and memory\.check=false starts all the same"
    ):
        Trainer(config_of(log), None, tmp_path / "refused").run()
    run = config_of(log, "memory.check=false")
    lines = []

    def body(comm):
        report = RunReport(tmp_path / "out", comm.rank, tell=lines.append)
        return Trainer(run, comm, tmp_path / "out", report=report).run()["digest"]

    (digest,) = set(run_threads(2, body))
    assert sum(line.startswith("warning: this run needs ") for line in lines) == 1
    monkeypatch.undo()
    assert digest == Trainer(config_of(log), None, tmp_path / "free").run()["digest"]


def test_a_limit_on_the_job_is_named_where_it_leaves_less_than_the_host(monkeypatch):
    monkeypatch.setattr(preflight, "_free_memory", lambda: 8 << 30)
    for left, words in ((4 << 30, " available under the limit of this job"), (16 << 30, "able; ")):
        monkeypatch.setattr(preflight, "memory_left", lambda left=left: left)
        with pytest.raises(TrainingError, match=words):
            preflight.check_memory([], 1, 1 << 40, preflight.available_memory())


def test_tables_that_a_limit_on_addresses_does_not_let_in_are_told_before(
    log, tmp_path, monkeypatch
):
    monkeypatch.setattr(room, "addresses_left", lambda: 1 << 30)
    run = config_of(log, "tables.one.rows=200_000_000", "training.steps=1")
    with pytest.raises(TrainingError, match=r"may map 1\.0 GiB more; raise the limit .*h_vmem"):
        Trainer(run, None, tmp_path / "refused").run()
    text = "\n".join(dry_run(run, 1, tmp_path / "refused"))
    assert "are free: fits" in text and "addresses: do not fit: tables of a rank map" in text
    assert "time: not known, as the run does not fit" in text
    Trainer(config_of(log, "training.steps=1"), None, tmp_path / "small").run()


def planned(settings, comm, out):
    """A run of three steps, every table cut by rows."""
    splits = open_splits(settings, comm, out, print)
    plan = place(settings.tables, ["row_wise"] * len(settings.tables), comm.size, comm.size)
    memory = memory_plan(settings, plan, splits.pooling_factors(), out)
    return PlannedRun(settings, plan, memory, splits, 3, out)


def test_what_ranks_hold_when_they_are_asked_is_not_needed_once_more(log, tmp_path, monkeypatch):
    ranks, held, more = 16, 50 << 20, 4 << 20
    monkeypatch.setattr(room, "private_bytes", lambda: held)

    def check(available):
        monkeypatch.setattr(preflight, "available_memory", lambda: available)
        run_threads(
            ranks, lambda comm: check_room(planned(config_of(log), comm, tmp_path), comm, print)
        )

    run = planned(config_of(log), SingleComm(), tmp_path)
    run = replace(run, plan=place(run.config.tables, ["row_wise"] * 2, ranks, ranks))
    needs = rank_needs(run, 0)
    needed = sum(need.bytes for need in needs.small) + needs.working
    free = needs_once(run) + ranks * (needed - held)
    check(free + ranks * more)
    with pytest.raises(TrainingError, match=f"for {ranks} rank"):
        check(free - ranks * more)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells it")
def test_what_a_process_holds_grows_with_what_it_writes():
    before = private_bytes()
    pages = np.ones(64 << 20, np.uint8)
    assert 0.9 * pages.nbytes < private_bytes() - before < 1.5 * pages.nbytes


def test_a_table_far_beyond_memory_is_named(log, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "available_memory", lambda: 8 << 30)
    huge = config_of(log, "tables.one.rows=50_000_000_000")
    said = []

    def run(settings, ranks=1):
        run_threads(
            ranks, lambda comm: check_room(planned(settings, comm, tmp_path), comm, said.append)
        )

    run(config_of(log))
    assert said == []
    for ranks in (1, 2):
        said.clear()
        run(huge, ranks)
        (line,) = (text for text in said if "table one" in text)
        size = huge.tables[0].row_bytes(4, huge.optimizer.sparse.state_floats) * 50e9 / 2**30
        assert f"all 50,000,000,000 rows of table one take {size:,.1f} GiB" in line
        assert "8.0 GiB of memory are available" in line
        for key in ("tables.one.rows", "tables.one.kind", "memory.placement=ddr_over_ssd"):
            assert key in line


def raw_log(path, rows):
    """A Criteo log of random fields."""
    random = np.random.default_rng(3)
    with open(path, "w") as file:
        for _ in range(rows):
            fields = [str(n) for n in (0, *random.integers(0, 99, 13))]
            file.write(
                "\t".join(fields + [f"{n:08x}" for n in random.integers(0, 2**32, 26)]) + "\n"
            )
    return path


def test_the_size_of_a_copy_is_known_before(tmp_path):
    # three blocks
    raw = raw_log(tmp_path / "log.tsv", 9000)
    options = ConvertOptions()
    ((sources, copy),) = missing_copies([raw], "criteo", options)
    expected = expected_dataset(sources, "criteo", options)
    foretold = expected.bytes
    convert(sources, copy, "criteo", options)
    assert missing_copies([raw, copy], "criteo", options) == []
    peak = copy.stat().st_size + 9000 * 13 * 4  # the dense columns are the largest
    assert 0.95 * peak < foretold < 1.1 * peak


def test_a_copy_that_cannot_fit_is_not_begun(tmp_path, free):
    raw = raw_log(tmp_path / "log.tsv", 500)
    run = config.loads(
        '[data]\ntrain = "x"\n[tables]\nC1.rows = 9', overrides=[f'data.train="{raw}"']
    )
    free(60_000)
    with pytest.raises(
        NeocpuError, match=r"needs about .* KiB .* but only 58\.6 KiB are free there; make room"
    ):
        open_splits(run, SingleComm(), tmp_path, print)
    assert [path.name for path in tmp_path.iterdir()] == ["log.tsv"]
    free(1 * MIB)
    assert open_splits(run, SingleComm(), tmp_path, print).datasets["train"].rows == 500


def test_several_copies_share_a_disk(tmp_path, free):
    needs = [(tmp_path / "a.h5", 60 * MIB), (tmp_path / "b.h5", 40 * MIB)]
    free(100 * MIB)
    assert told_by(check_conversions, needs) == []
    free(99 * MIB)
    # an estimate: a little too little may do
    assert "100.0 MiB" in told_by(check_conversions, needs)[0]
    free(70 * MIB)
    with pytest.raises(TrainingError, match=r"60\.0 MiB of it for a\.h5"):
        check_conversions(needs, print)


def test_a_folder_that_is_not_there_yet_or_any_more_has_the_room_of_its_disk(tmp_path):
    free = preflight.free_bytes(tmp_path)
    assert abs(preflight.free_bytes(tmp_path / "a" / "b") - free) < free // 4  # others write too
