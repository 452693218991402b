"""Lives of one small run, each with a real signal at another moment; for `test_signals.py`.

    python -m tests.signal_main FOLDER       (alone, or under mpiexec)

The signal goes to the last rank only, so that the others must learn of it.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neocpu.parallel.transport.launch import get_comm, held_signals, prepare_threads, run_guarded
from neocpu.train.config import config as configs

# moment -> how the run ends: "early": before its first step, "stopped" after some, "whole"
MOMENTS = {
    "start": "early",
    "opening": "early",
    "building": "early",
    "step": "stopped",
    "last step": "whole",
    "summary": "whole",
    "end": "whole",
}
NUMBERS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2)


class Life:
    """One run that is sent a signal at `moment`."""

    def __init__(self, settings: configs.Config, comm: Any, out: Path, moment: str) -> None:
        self.settings = settings
        self.comm = comm
        self.out = out
        self.moment = moment
        self.number = NUMBERS[list(MOMENTS).index(moment) % len(NUMBERS)] if moment else 0

    def reached(self, moment: str) -> None:
        """Send the signal if this is its moment."""
        if moment == self.moment and self.comm.rank == self.comm.size - 1:
            os.kill(os.getpid(), self.number)

    @contextmanager
    def progress(self, total: int, done: int) -> Iterator[Any]:
        """Moments among the steps."""

        def advance(step: int, samples: int) -> None:
            if step == 2:
                self.reached("step")
            if step == total:
                self.reached("last step")

        yield advance

    def run(self) -> dict[str, Any]:
        """The summary. Raises Stopped."""
        from neocpu.train.run import trainer
        from neocpu.train.watch.results import RunReport

        life = self

        class Report(RunReport):
            def finish(self, summary: dict[str, Any]) -> None:
                life.reached("summary")
                super().finish(summary)

        # ranks other than 0 show nothing, but they have these moments too
        report = Report(self.out, self.comm.rank)
        report._progress = self.progress
        originals = trainer.open_splits, trainer.build

        def opening(*arguments: Any) -> Any:
            self.reached("opening")
            return originals[0](*arguments)

        def building(*arguments: Any, **options: Any) -> Any:
            self.reached("building")
            return originals[1](*arguments, **options)

        trainer.open_splits = opening
        trainer.build = building
        try:
            with held_signals():
                self.reached("start")
                summary = trainer.Trainer(self.settings, self.comm, self.out, report=report).run()
                self.reached("end")
                return summary
        finally:
            trainer.open_splits, trainer.build = originals


def main() -> int:
    """Run all lives; exit status 0 if each ended as it should."""
    folder = Path(sys.argv[1])
    settings = configs.load(folder / "small.toml", ["training.steps=4", "training.epochs=9"])
    comm = get_comm()
    prepare_threads(comm, 1)
    from neocpu.core.errors import Stopped
    from neocpu.train.run.folder import has_results

    expected = Life(settings, comm, folder / "whole", "").run()["digest"]
    for moment, end in MOMENTS.items():
        out = folder / moment.replace(" ", "-")
        life = Life(settings, comm, out, moment)
        try:
            summary = life.run()
            assert end == "whole" and summary["digest"] == expected, moment
        except Stopped as stopped:
            assert end != "whole", moment
            assert stopped.exit_status == 128 + life.number, moment
            comm.barrier()
            before = "before the first step" in str(stopped)
            assert before == (end == "early") == (has_results(out) is None), (moment, str(stopped))
            if end == "early":  # the folder is as good as new
                again = Life(settings, comm, out, "").run()
                assert again["digest"] == expected, moment
        comm.barrier()
    if comm.rank == 0:
        print("every life ended as it should")
    return 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
