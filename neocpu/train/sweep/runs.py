"""How is a trial run? As a training in its own folder, here or on ranks of its own.

Whatever is wrong with one trial (a config that is refused, a loss that is not finite, too little
memory) is its result, and the sweep goes on.
"""

import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from neocpu.core.errors import NeocpuError, Stopped, TrainingError
from neocpu.core.types import JsonObject
from neocpu.parallel.watch.supervisor import STOPS
from neocpu.train.config import config as configs
from neocpu.train.run.folder import has_results
from neocpu.train.sweep.trials import SweepTrial

LOG = "log.txt"  # what a trial on ranks printed


class Interrupted(NeocpuError):
    """The sweep was asked to end; the same command goes on."""

    def __init__(self, trial: SweepTrial, status: int) -> None:
        super().__init__(f"stopped during {trial.name}; the same command goes on")
        self.exit_status = status


def run_here(trial: SweepTrial, config: str, overrides: Sequence[str], folder: Path) -> None:
    """Run a trial in this process; it takes what the run says. Raises Interrupted."""
    # only here: a sweep on ranks trains in other processes, and needs no kernels itself
    from neocpu.train.run.trainers import trainer_of
    from neocpu.train.watch.results import RunReport

    out = folder / trial.name
    # a trial that was cut off goes on; a run without results begins anew
    resume = out.is_dir() and has_results(out) is not None
    try:
        settings = configs.load(config, [*overrides, *trial.overrides])
        trainer = trainer_of(settings)(settings, None, out, resume=resume, report=RunReport(out, 0))
        trial.take_summary(trainer.run())
    except Stopped as error:
        raise Interrupted(trial, error.exit_status) from error
    except (NeocpuError, MemoryError) as error:
        trial.error = " ".join(str(error).split()) or type(error).__name__
    finally:
        gc.collect()  # tables of this trial make room for the next one's


def run_on_ranks(
    trial: SweepTrial, config: str, overrides: Sequence[str], folder: Path, ranks: int
) -> None:
    """The same on MPI ranks, as `neocpu train --ranks` does."""
    out = folder / trial.name
    out.mkdir(parents=True, exist_ok=True)
    # a process of its own: MPI starts once in a process
    line = [sys.executable, "-m", "neocpu", "train", config, "--ranks", str(ranks)]
    line += ["--out", str(out), *(["--resume"] if has_results(out) else [])]
    for override in (*overrides, *trial.overrides):
        line += ["--set", override]
    with open(out / LOG, "wb") as log:
        status = _wait(subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT), trial)
    if status == 0:
        trial.take_summary(_summary(out))
    # asked to end: the trial did not fail, it was not finished
    elif status < 0 or status - 128 in STOPS:
        raise Interrupted(trial, status if status > 0 else 128 - status)
    else:
        lines = (out / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
        printed = [text for text in lines if text.strip()]
        # a command ends with its error, on one line
        last = printed[-1] if printed else f"exit status {status}"
        trial.error = last.removeprefix("neocpu: ").removeprefix("error: ")


def _wait(process: "subprocess.Popen[bytes]", trial: SweepTrial) -> int:
    """Exit status of a process; Ctrl-C reaches it too, and it writes a checkpoint."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        # a second Ctrl-C is for the trial, which may be writing its checkpoint
        with suppress(KeyboardInterrupt):
            process.wait()
        raise Interrupted(trial, 130) from None


def _summary(out: Path) -> JsonObject:
    try:
        return json.loads((out / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"{out / 'run.json'}: cannot be read: {error}") from error
