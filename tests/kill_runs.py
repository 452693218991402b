"""Does a run that is killed at any instant, again and again, end as one that nobody touched?

    python -m tests.kill_runs --times 300 [--ranks 4]

A run with tables beyond their memory is killed (SIGKILL, all its processes) at random instants: while it starts, resumes,
steps, moves rows, writes a checkpoint or ends. The next one resumes, on other ranks, with other memories and prefetching, from
whatever is there. Whoever reaches the end must have the digest of the uninterrupted run in memory; then all
begins anew. Every life must find the newest checkpoint that an earlier one had finished.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from jobs import kill, start
from promise_cases import FAMILIES, MAIN, write_data

LIMIT = 240.0  # seconds of a life
MEMORIES = [
    (f"memory.placement={placement}", f"memory.policy={policy}")
    for placement, policy in (("ddr_over_ssd", "lru"), ("hbm_over_ddr_over_ssd", "lookahead"))
]


class Runs:
    """One folder, one job, and the lives of its runs."""

    def __init__(self, folder: Path, steps: int, ranks: int, seed: int) -> None:
        self.folder, self.ranks, self.random = folder, ranks, random.Random(seed)
        self.fixed = (
            "training.epochs=100000",
            f"training.steps={steps}",
            "checkpoint.every_steps=4",
            "eval.every_steps=30",
        )
        self.lives = self.kills = self.ends = 0
        write_data(folder)
        (folder / "job.toml").write_text(FAMILIES[MAIN].toml(folder))
        begun = time.monotonic()
        self._finish(self._start("whole", 1))
        self.seconds = time.monotonic() - begun
        self.expected = self._digest("whole")

    def _start(self, out: str, ranks: int, *sets: str, resume: bool = False) -> "subprocess.Popen[str]":
        sets = (*self.fixed, *sets)
        return start(self.folder / "job.toml", self.folder / out, ranks, *sets, resume=resume)

    def _finish(self, job: "subprocess.Popen[str]") -> str:
        out, err = job.communicate(timeout=LIMIT)
        if job.returncode:
            raise AssertionError(f"life {self.lives} failed with status {job.returncode}: {err or out}")
        return out

    def _digest(self, out: str) -> str:
        return str(json.loads((self.folder / out / "run.json").read_text())["digest"])

    def _newest(self) -> int:
        """Step of the newest complete checkpoint."""
        names = (self.folder / "killed" / "checkpoints").glob("step-????????.h5")
        return max((int(path.stem.removeprefix("step-")) for path in names), default=0)

    def live(self) -> None:
        """One life, ended by SIGKILL unless it reaches the end before."""
        chance, self.lives = self.random, self.lives + 1
        sets = [*chance.choice(MEMORIES), f"memory.prefetch={chance.randrange(3)}"]
        sets.append(f"checkpoint.full_every={chance.choice((0, 1, 3))}")
        before = self._newest()
        job = self._start("killed", chance.randint(1, self.ranks), *sets, resume=self.lives > 1)
        try:
            job.wait(chance.uniform(0.3, 1.0) * self.seconds)
        except subprocess.TimeoutExpired:
            kill(job)
            self.kills += 1
            assert self._newest() >= before, f"life {self.lives}: checkpoint {before} is gone"
            return
        out = self._finish(job)
        assert f"resuming from step-{before:08d}" in out or not before, f"life {self.lives} did not resume: {out}"
        assert self._digest("killed") == self.expected, f"life {self.lives} ended with another digest"
        shutil.rmtree(self.folder / "killed")
        self.ends += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill so many times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="kills")
    parser.add_argument("--ranks", type=int, default=1, help="ranks of a life, at most")
    parser.add_argument("--steps", type=int, default=300, help="steps of the run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="neocpu-kill-") as folder:
        runs = Runs(Path(folder), options.steps, options.ranks, options.seed)
        while runs.kills < options.times or not runs.ends:
            runs.live()
    print(f"killed {runs.kills} times; {runs.ends} runs reached their end, all with the digest {runs.expected}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
