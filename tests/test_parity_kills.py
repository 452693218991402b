"""Do jobs whose processes are killed go on from what they left in memory, to the same digest?"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import kill, start, started
from promise_cases import FAMILIES, MAIN, write_data

from neocpu.core.errors import StorageError
from neocpu.tables.storage.lasting import LastingFile
from neocpu.train.config import config as configs
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.results import RANKS
from tests.hosts import Host, room, why_not

pytestmark = pytest.mark.usefixtures("mpiexec")

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "data" / "models" / "tiny.toml"
README = re.findall(r"^digest (\w{64})$", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
KEYS = ("training.steps=60", "training.epochs=1000")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A config, and the digest of its run."""
    folder = tmp_path_factory.mktemp("job")
    write_data(folder)
    path = folder / "job.toml"
    path.write_text(FAMILIES[MAIN].toml(folder))
    return path, str(Trainer(configs.load(path, KEYS), None, folder / "whole").run()["digest"])


def kill_one(job: "subprocess.Popen[str]", out: Path, rank: int, memory: Path, step: int) -> None:
    """Kill a rank once all have completed a step."""
    while step_of(memory) < step:
        assert job.poll() is None, job.communicate()
        time.sleep(0.002)
    ranks = json.loads((out / RANKS).read_text())["ranks"]
    os.kill(ranks[rank]["process"], signal.SIGKILL)


def step_of(memory: Path) -> int:
    """The last step that all files in a folder have; -1: none."""
    steps = []
    for path in memory.iterdir():
        try:
            steps.append(LastingFile.open(path, lock=False).turn)
        except StorageError:  # it is just being made
            return -1
    return min(steps, default=-1)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_rows_of_a_killed_rank_are_rebuilt(
    ranks: int, job: tuple[Path, str], tmp_path: Path
) -> None:
    path, expected = job
    chance = random.Random(ranks)
    memory = tmp_path / "memory"
    memory.mkdir()
    out = tmp_path / "out"
    keys = (*KEYS, f"checkpoint.parity={chance.randint(1, 3)}", f'memory.folder="{memory}"')
    lost = chance.randrange(ranks)
    run = start(path, out, ranks, *keys)
    try:
        kill_one(run, out, lost, memory, chance.randint(1, 30))
        run.communicate(timeout=900)
        assert run.returncode
        # as if its host was lost with it
        next(memory.glob(f"neocpu-*-{lost}")).unlink()
        step = step_of(memory)
        run = start(path, out, chance.randint(1, 4), *keys, resume=True)
        printed, errors = run.communicate(timeout=900)
    finally:
        kill(run)
    assert run.returncode == 0, errors
    assert json.loads((out / "run.json").read_text())["digest"] == expected
    text = printed + errors
    assert f"step {step} was left in memory by {ranks} ranks (rank {lost} was gone: rebuilt" in text
    assert not [*memory.iterdir()]


def test_a_run_goes_on_by_itself_from_memory(job: tuple[Path, str], tmp_path: Path) -> None:
    path, expected = job
    memory = tmp_path / "memory"
    memory.mkdir()
    out = tmp_path / "out"
    keys = (*KEYS, "checkpoint.parity=1", f'memory.folder="{memory}"')
    command = [sys.executable, "-m", "neocpu", "train", str(path), "--ranks", "2"]
    command += ["--restarts", "2", "--out", str(out)]
    command += [word for key in keys for word in ("--set", key)]
    run = started(command)
    try:
        kill_one(run, out, 1, memory, 5)
        printed, errors = run.communicate(timeout=900)
    finally:
        kill(run)
    assert run.returncode == 0, errors
    summary = json.loads((out / "run.json").read_text())
    assert summary["digest"] == expected and len(summary["restarts"]) == 1
    assert "was left in memory by 2 ranks (rows of all ranks were there)" in printed + errors
    assert "of parity" in printed
    assert not [*memory.iterdir()]


@pytest.mark.long
def test_a_host_that_is_lost_costs_no_step(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    out = tmp_path / "run"
    words = ["neocpu", "train", str(TINY), "--out", str(out), "--hosts", "host0:2,host1:1,host2:1"]
    words += ["--restarts", "2", "--set", "checkpoint.parity=1", "--set", "eval.every_steps=10"]
    words += ["--set", "checkpoint.every_steps=0"]
    with room([Host()] * 3) as hosts:
        run = subprocess.Popen(
            hosts.command([sys.executable, "-m", *words]),
            env=hosts.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        metrics = out / "metrics.jsonl"
        while not (metrics.exists() and '"step": 20' in metrics.read_text()):
            assert run.poll() is None, run.communicate()
            time.sleep(0.05)
        hosts.kill(1)
        printed, _ = run.communicate(timeout=900)
    assert run.returncode == 0, printed
    assert f"digest {README}" in printed
    assert "was left in memory by 4 ranks (rank 2 was gone: rebuilt" in printed
    assert "resuming from step-000000" in printed
