"""Does a run that is killed at any instant, again and again, end as one that nobody touched?

    python -m tests.kill_runs --times 300 [--ranks 4] [--online]

A run with tables beyond their memory is killed (SIGKILL, all its processes) at random instants:
while it starts, resumes, steps, moves rows, writes a checkpoint or ends. The next one resumes, on
other ranks, with other memories and prefetching, from whatever is there. Whoever reaches the end
must have the digest of the uninterrupted run in memory; then all begins anew. Every life must find
the newest checkpoint that an earlier one had finished, and the SSD file of every rank must be whole
and hold the very rows of the checkpoint that it was committed with. With --online the run goes over
files as they come, with vocabularies, and is killed in files and between them.
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
from dataclasses import replace
from pathlib import Path

import numpy as np

from neocpu.core.errors import StorageError
from neocpu.tables.storage.row_file import RowFile
from neocpu.tables.storage.row_tools import verify
from neocpu.train.checkpoint.reading import CheckpointFile

sys.path.insert(0, str(Path(__file__).resolve().parent))

from jobs import kill, start
from promise_cases import FAMILIES, MAIN, PIPELINES, ROWS, write_data, write_file

LIMIT = 240.0  # seconds of a life
MEMORIES = [
    (f"memory.placement={placement}", f"memory.policy={policy}")
    for placement, policy in (("ddr_over_ssd", "lru"), ("hbm_over_ddr_over_ssd", "lookahead"))
]


class Runs:
    """One folder, one job, and the lives of its runs."""

    def __init__(self, folder: Path, steps: int, ranks: int, seed: int, online: bool) -> None:
        self.folder = folder
        self.ranks = ranks
        self.random = random.Random(seed)
        self.fixed = (
            "training.epochs=100000",
            f"training.steps={steps}",
            f"checkpoint.every_steps={3 if online else 4}",
            "eval.every_steps=30",
        )
        self.lives = self.kills = self.ends = self.compared = 0
        write_data(folder)
        family = replace(FAMILIES["online"], narrow=False) if online else FAMILIES[MAIN]
        (folder / "job.toml").write_text(family.toml(folder))
        self.files: list[Path] = []
        if online:
            count = -(-steps // -(-ROWS // family.batch))
            self.files = [folder / f"file-{number}.h5" for number in range(count)]
            for number, path in enumerate(self.files):
                write_file(path, 1000 + 100 * number, ROWS, day=1 + number % 2)
        for _ in range(2):  # the first compiles, perhaps
            begun = time.monotonic()
            self._finish(self._start("whole", 1))
            self.seconds = time.monotonic() - begun
            self.expected = self._digest("whole")
            shutil.rmtree(folder / "whole")

    def _start(
        self, out: str, ranks: int, *sets: str, resume: bool = False
    ) -> "subprocess.Popen[str]":
        sets = (*self.fixed, *sets)
        job = self.folder / "job.toml"
        return start(job, self.folder / out, ranks, *sets, resume=resume, files=self.files)

    def _finish(self, job: "subprocess.Popen[str]") -> str:
        out, err = job.communicate(timeout=LIMIT)
        if job.returncode:
            raise AssertionError(
                f"life {self.lives} failed with status {job.returncode}: {err or out}"
            )
        return out

    def _digest(self, out: str) -> str:
        return str(json.loads((self.folder / out / "run.json").read_text())["digest"])

    def _newest(self) -> int:
        """Step of the newest complete checkpoint."""
        names = (self.folder / "killed" / "checkpoints").glob("step-????????.h5")
        return max((int(path.stem.removeprefix("step-")) for path in names), default=0)

    def _check_rows(self, path: Path) -> None:
        """Check that an SSD file has the rows of the checkpoint that it was committed with."""
        with opened(path) as file:
            assert not verify(file), f"life {self.lives}: {verify(file)}"
            note = json.loads(file.note or b"{}")
            saved = self.folder / "killed" / "checkpoints" / f"step-{note.get('step', 0):08d}.h5"
            if not saved.exists():  # it was not complete yet, or is gone since
                return
            with CheckpointFile(saved) as checkpoint:
                assert checkpoint.digest == note["digest"]
                for number in range(len(file.tables)):
                    self.compared += compare(file, number, checkpoint)

    def live(self, spare: bool) -> None:
        """One life, ended by SIGKILL unless it reaches the end before, or is spared."""
        chance = self.random
        self.lives = self.lives + 1
        sets = [*chance.choice(MEMORIES), f"memory.prefetch={chance.randrange(3)}"]
        sets.append(f"checkpoint.full_every={chance.choice((0, 1, 3))}")
        sets.append(f"checkpoint.keep_every_steps={chance.choice((0, 5))}")
        sets.append(f"checkpoint.mirror={chance.choice(('', self.folder / 'mirror'))}")
        sets.append(f"training.pipeline={chance.choice(PIPELINES)}")
        before = self._newest()
        ranks = chance.randint(1, self.ranks)
        job = self._start("killed", ranks, *sets, resume=self.lives > 1)
        # more ranks start more slowly
        patience = chance.uniform(0.3, 1.0) * self.seconds * (1 + ranks) / 2
        try:
            job.wait(LIMIT if spare else patience)
        except subprocess.TimeoutExpired:
            kill(job)
            self.kills += 1
            assert self._newest() >= before, f"life {self.lives}: checkpoint {before} is gone"
            for path in (self.folder / "killed" / "rows").glob("rank-?.h5"):
                self._check_rows(path)
            return
        out = self._finish(job)
        assert f"resuming from step-{before:08d}" in out or not before, (
            f"life {self.lives} did not resume: {out}"
        )
        assert self._digest("killed") == self.expected, (
            f"life {self.lives} ended with another digest"
        )
        shutil.rmtree(self.folder / "killed")
        self.ends += 1
        if not spare:  # perhaps the machine was slower when the run was measured
            self.seconds *= 0.8


def opened(path: Path) -> RowFile:
    """A file whose process was killed, maybe a moment ago."""
    for _ in range(100):
        try:
            return RowFile(path)
        except StorageError as error:
            if "in use" not in str(error):
                raise
        time.sleep(0.1)
    return RowFile(path)


def compare(file: RowFile, number: int, checkpoint: CheckpointFile) -> int:
    """Assert that a table of an SSD file has the rows of a checkpoint that it shares with it.
    Returns how many these are.
    """
    table = file.tables[number]
    rows = np.concatenate([*file.rows(number), np.empty(0, np.int64)])
    tensor = checkpoint.number("tables/" + table.name.rpartition(".")[0])
    known, places = np.intersect1d(
        checkpoint.rows(tensor), rows + table.first_row, return_indices=True
    )[1:]
    records = np.empty((places.size, table.record), np.uint8)
    assert file.read(number, rows[places], records, check=True).all()
    fields = []
    for name in ("weight", *(part.split()[0] for part in table.layout.split(", ")[1:])):
        field = np.asarray(checkpoint.field(tensor, name)[known], np.float32).reshape(
            known.size, -1
        )
        first = table.first_column if field.shape[1] > 1 else 0
        fields.append(field[:, first : first + table.columns])
    assert (np.concatenate(fields, axis=1).view(np.uint32) == records.view(np.uint32)).all(), (
        f"{file.path}, {table.name}"
    )
    return int(places.size)


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill so many times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=20, help="kills")
    parser.add_argument("--ranks", type=int, default=1, help="ranks of a life, at most")
    parser.add_argument("--steps", type=int, default=300, help="steps of the run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--online", action="store_true", help="a run over file after file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="neocpu-kill-") as folder:
        runs = Runs(Path(folder), options.steps, options.ranks, options.seed, options.online)
        while runs.kills < options.times or not runs.compared or not runs.ends:
            spare = runs.kills >= options.times and runs.compared > 0
            runs.live(spare)  # a machine that became slow may let none reach the end
            if sys.stderr.isatty():
                print(f"\r{runs.kills} kills, {runs.ends} ends ", end="", file=sys.stderr)
    print(
        f"killed {runs.kills} times; {runs.ends} runs reached their end, all with the digest "
        f"{runs.expected}"
    )
    assert runs.compared
    print(f"{runs.compared:,} rows in committed SSD files were those of their checkpoints")
    return 0


if __name__ == "__main__":
    sys.exit(main())
