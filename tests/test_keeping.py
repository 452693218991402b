"""Which checkpoints are written, which stay, and where else are they?"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from promise_cases import FAMILIES, MAIN, write_data
from test_checkpoint import TABLE_WISE, make
from test_next_day import damage_rows

from neocpu.cli import cli as main
from neocpu.core import goodput
from neocpu.core.errors import CheckpointError, ConfigError, DataError, TrainingError
from neocpu.ingest.formats.files import remote
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.checkpoint import mirror as mirror_module
from neocpu.train.checkpoint.folder import checkpoints
from neocpu.train.checkpoint.mirror import CheckpointMirror
from neocpu.train.checkpoint.places import open_place
from neocpu.train.checkpoint.policy import SavingPolicy, step_of
from neocpu.train.checkpoint.saving import Saver
from neocpu.train.config import config as configs
from neocpu.train.run import recovery
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.results import RunReport

STEPS = ["training.steps=9", "training.epochs=9"]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of a small run."""
    folder = tmp_path_factory.mktemp("job")
    write_data(folder)
    path = folder / "job.toml"
    path.write_text(FAMILIES[MAIN].toml(folder))
    return path


@pytest.fixture(scope="module")
def digest(job: Path) -> str:
    """Of the run that nobody disturbed."""
    config = configs.load(job, STEPS)
    return str(Trainer(config, None, job.with_name("plain")).run()["digest"])


def names(out: Path) -> list[int]:
    """Steps of the checkpoints of a folder of results."""
    return [step_of(path) for path in checkpoints(out)]


# ---- when ----


def test_checkpoints_come_as_their_cost_says_and_change_no_bit(
    job: Path, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "FIRST", 0.0001)
    asked: list[float] = []
    monkeypatch.setattr(goodput, "best_interval", lambda *facts: asked.append(facts[0]) or 1e9)
    auto = [*STEPS, "checkpoint.every_minutes=auto", "checkpoint.mtbf=24"]
    run = Trainer(configs.load(job, auto), None, tmp_path / "auto").run()
    assert run["digest"] == digest
    # one after the first moment, then never again before the end, as this interval says
    assert run["checkpoints"]["written"] == 2
    assert all(cost > 0 for cost in asked)
    assert run["checkpoints"]["best_minutes"] == 1e9 / 60
    with pytest.raises(ConfigError, match=r"every_minutes.*needs checkpoint\.mtbf"):
        configs.load(job, ["checkpoint.every_minutes=auto"])
    with pytest.raises(ConfigError, match=r"every_minutes.*'often' is not allowed"):
        configs.load(job, ["checkpoint.every_minutes=often"])
    assert configs.load(job, ["checkpoint.every_minutes=5"]).checkpoint.every_minutes == 5.0


# ---- which stay ----


def test_some_checkpoints_stay_for_ever(tmp_path: Path) -> None:
    paths = [tmp_path / f"step-{step:08d}.h5" for step in range(1, 11)]
    for hour, path in enumerate(paths):
        path.touch()
        os.utime(path, (3600 * hour, 3600 * hour))

    def kept(policy: SavingPolicy, left: list[Path]) -> list[int]:
        stay = policy.kept(left)
        return [step_of(path) for path in left if path in stay]

    assert kept(SavingPolicy(2), paths) == [9, 10]
    assert kept(SavingPolicy(1, keep_every_steps=4), paths) == [4, 8, 10]
    assert kept(SavingPolicy(1, keep_every_hours=3.0), paths) == [1, 4, 7, 10]
    # one after the other, as a run deletes them
    left: list[Path] = []
    for path in paths:
        left = sorted(SavingPolicy(1, keep_every_hours=3.0).kept([*left, path]))
    assert [step_of(path) for path in left] == [1, 4, 7, 10]


def test_what_stays_keeps_what_it_is_based_on(tmp_path: Path) -> None:
    world = make(SingleComm(), TABLE_WISE, ("checkpoint.full_every=3",))
    saver = Saver(tmp_path, world, SavingPolicy(keep=1, keep_every_steps=5, full_every=3))
    for step in range(1, 9):
        saver.save(step)
    saver.finish()
    # whole ones: 1, 4, 7
    assert names(tmp_path) == [4, 5, 7, 8]


def test_the_best_one_stays_without_patience(job: Path, tmp_path: Path) -> None:
    sets = [*STEPS, "eval.every_steps=2", "checkpoint.keep=1", "checkpoint.keep_best=true"]
    sets.append(f"data.valid={job.with_name('train.h5')}")
    Trainer(configs.load(job, sets), None, tmp_path / "run").run()
    note = json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    valid = [line for line in map(json.loads, lines) if line["split"] == "valid"]
    assert note["value"] == min(line["logloss"] for line in valid)
    # one that was the best before stays until another checkpoint comes
    assert {note["step"], 9} <= {*names(tmp_path / "run")}
    with pytest.raises(ConfigError, match=r"keep_best: it counts measurements"):
        configs.load(job, ["checkpoint.keep_best=true", "eval.every_steps=0"])


# ---- a second place ----


def run(
    job: Path, out: Path, *sets: str, steps: int = 9, **how: Any
) -> tuple[dict[str, Any], list[str]]:
    """The summary of a run, and what it told."""
    lines: list[str] = []
    comm = how.pop("comm", None)
    report = RunReport(out, comm.rank if comm else 0, tell=lines.append)
    settings = [*STEPS, f"training.steps={steps}", "checkpoint.every_steps=2", *sets]
    config = configs.load(job, settings)
    return Trainer(config, comm, out, report=report, **how).run(), lines


def mirrored(mirror: str, name: str = "run") -> dict[str, int]:
    """Bytes of the checkpoints in a mirror."""
    return open_place(f"{mirror}/{name}").names()


def bytes_of(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in checkpoints(out)}


@pytest.fixture
def store() -> Iterator[str]:
    """The address of a store."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.store.clear()
    yield "memory://backup"
    memory.store.clear()


def test_a_mirror_has_what_the_folder_has(job: Path, tmp_path: Path, store: str) -> None:
    out = tmp_path / "run"
    summary, _ = run(job, out, f"checkpoint.mirror={store}", "checkpoint.full_every=3")
    assert mirrored(store) == bytes_of(out)
    facts = summary["checkpoints"]["mirror"]
    assert facts["behind"] == 0 and facts["bytes"] >= sum(bytes_of(out).values())
    with pytest.raises(TrainingError, match="already has checkpoints of a run"):
        run(job, tmp_path / "other" / "run", f"checkpoint.mirror={store}")


def test_of_two_runs_that_found_an_empty_mirror_one_keeps_it(
    job: Path, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = CheckpointMirror._claim

    def and_then_another(mirror: CheckpointMirror) -> None:
        claim(mirror)
        open_place(f"{store}/run").write("mirror.json", b"/other/run")

    monkeypatch.setattr(CheckpointMirror, "_claim", and_then_another)
    summary, lines = run(job, tmp_path / "run", f"checkpoint.mirror={store}")
    assert not mirrored(store) and summary["checkpoints"]["mirror"]["files"] == 0
    (warning,) = (line for line in lines if "mirrored" in line)
    assert "is in use by another run: /other/run" in warning
    # one that goes on says that it is its own from now on
    _, lines = run(job, tmp_path / "run", f"checkpoint.mirror={store}", resume=True, steps=11)
    assert mirrored(store) == bytes_of(tmp_path / "run")


def test_what_is_written_to_a_place_is_read_from_it(tmp_path: Path, store: str) -> None:
    for address in (str(tmp_path / "mirror"), store):
        place = open_place(address)
        place.write("note", b"whose copies these are")
        place.get("note", tmp_path / "copy", lambda count: None)
        assert (tmp_path / "copy").read_bytes() == b"whose copies these are"
        assert place.read("note") == b"whose copies these are"
        assert place.read("none") == b""


@pytest.mark.parametrize("loss", ["all", "rows", "base"])
def test_what_the_folder_has_lost_comes_from_the_mirror(
    job: Path, digest: str, tmp_path: Path, loss: str, request: pytest.FixtureRequest
) -> None:
    mirror = request.getfixturevalue("store") if loss == "all" else str(tmp_path / "mirror")
    full_every = 1 if loss == "rows" else 8
    sets = [f"checkpoint.mirror={mirror}", f"checkpoint.full_every={full_every}"]
    sets.append("checkpoint.keep=3")
    out = tmp_path / "run"
    run(job, out, *sets, steps=6)
    newest = checkpoints(out)[-1]
    if loss == "all":
        shutil.rmtree(out)
    elif loss == "rows":
        damage_rows(newest, "large")
    else:
        base = checkpoints(out)[0]
        base.write_bytes(base.read_bytes()[:-200])

    def body(comm: Comm) -> tuple[str, list[str]]:
        summary, lines = run(job, out, *sets, comm=comm, resume=True)
        return summary["digest"], lines

    (reached, lines), _ = run_threads(2, body)
    assert reached == digest
    assert f"resuming from {newest.name}" in lines, lines
    assert f"{newest.name} is taken from {mirror}/run" in lines
    assert mirrored(mirror) == bytes_of(out)


def test_a_damaged_file_does_not_replace_its_sound_copy(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    mirror = str(tmp_path / "mirror")
    sets = [f"checkpoint.mirror={mirror}", "checkpoint.keep=9"]
    run(job, out, *sets, steps=6)
    oldest = checkpoints(out)[0]
    size = mirrored(mirror)[oldest.name]
    oldest.write_bytes(oldest.read_bytes()[:-200])
    run(job, out, *sets, resume=True)
    assert mirrored(mirror)[oldest.name] == size
    assert len(mirrored(mirror)) == len(bytes_of(out))


def test_a_mirror_that_fails_ends_no_run_that_has_begun(
    job: Path, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "PAUSE", 0.0)
    place = tmp_path / "mirror"
    place.write_text("a file")
    sets = [f"checkpoint.mirror={place}"]
    with pytest.raises(CheckpointError, match="mirror/run: Not a directory"):
        run(job, tmp_path / "run", *sets, steps=4)
    place.unlink()
    run(job, tmp_path / "run", *sets, steps=4)
    shutil.rmtree(place)
    place.write_text("a file")
    summary, lines = run(job, tmp_path / "run", *sets, resume=True)
    assert summary["digest"] == digest
    assert summary["checkpoints"]["mirror"]["files"] == 0
    warnings = [line for line in lines if line.startswith("warning: checkpoints are not mirrored")]
    assert warnings and "--resume tries it again" in warnings[-1]
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(CheckpointError, match="mirror/run: Not a directory"):
        run(job, tmp_path / "run", *sets, resume=True)


def test_a_copy_that_was_interrupted_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BLOCK", 1000)
    source = tmp_path / "step-00000001.h5"
    source.write_bytes(bytes(range(250)) * 40)
    place = open_place(str(tmp_path / "mirror"))
    seen: list[int] = []

    def moved(done: int) -> None:
        seen.append(done)
        if done == 4000:
            raise DataError("stopped")

    with pytest.raises(DataError, match="stopped"):
        place.put(source, moved)
    assert not place.names()
    place.put(source, seen.append)
    assert seen == [*range(1000, 4001, 1000), *range(5000, 10_001, 1000)]
    assert place.names() == {source.name: 10_000}
    place.get(source.name, tmp_path / "back.h5", seen.append)
    assert (tmp_path / "back.h5").read_bytes() == source.read_bytes()
    place.remove(source.name)
    assert not place.names()


def test_an_address_of_a_folder_is_that_folder(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    source = tmp_path / "step-00000002.h5"
    source.write_bytes(bytes(10))
    open_place(f"file://{tmp_path}/backup/a").put(source, lambda done: None)
    assert open_place(str(tmp_path / "backup/a")).names() == {source.name: 10}


@pytest.mark.parametrize("address", ["S3://backup", "s3://", "simplecache::s3://backup/runs"])
def test_what_is_nearly_an_address_is_no_folder(address: str, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path), pytest.raises(ConfigError, match="neither a folder nor"):
        open_place(address)


def test_an_address_with_credentials_is_refused_without_them(job: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ConfigError, match="carries credentials") as caught:
        run(job, tmp_path / "run", "checkpoint.mirror=ftp://me:hunter2@host/backup")
    assert "hunter2" not in str(caught.value)


def test_a_checkpoint_is_copied_with_what_it_is_based_on(
    job: Path, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run(job, out, "checkpoint.full_every=8", steps=6)
    there = f"{store}/copy"
    main(["checkpoint", "copy", str(out), there], standalone_mode=False)
    assert open_place(there).names() == bytes_of(out)
    printed = capsys.readouterr().out
    main(["checkpoint", "copy", str(out), there], standalone_mode=False)
    assert capsys.readouterr().out == printed
    open_place(there).write("step-00000006.h5", b"another")
    with pytest.raises(CheckpointError, match=r"has another step-00000006\.h5"):
        main(["checkpoint", "copy", str(out), there], standalone_mode=False)
