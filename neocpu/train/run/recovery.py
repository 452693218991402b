"""When does a run write checkpoints, and what would a crash cost it?

A checkpoint is begun after a step and is safe once all ranks have written it, often some steps
later. A crash in between costs all steps since the one before.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from neocpu.core.types import Elements, JsonObject
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.train import checkpoint
from neocpu.train.before.datasets import Splits
from neocpu.train.checkpoint.saving import Saver, SavingPolicy
from neocpu.train.config.config import Config
from neocpu.train.run.patience import NOTE, Patience
from neocpu.train.step.world import World
from neocpu.train.watch.results import Tell
from neocpu.train.watch.step_watch import StepClock

if TYPE_CHECKING:
    from neocpu.parallel.parity.keeper import ParityKeeper


class Recovery:
    """The checkpoints of one run; every method but `abandon` is collective.

    out : folder of results. data : description of the data (`identity.py`). clock : of the steps.
    vocabularies : that choose rows, by feature.
    """

    def __init__(
        self,
        out: Path,
        world: World,
        data: JsonObject,
        clock: StepClock,
        vocabularies: Mapping[str, Elements] | None = None,
    ) -> None:
        config = world.config.checkpoint
        memory = world.embedding.env.memory
        self._out = out
        self._world = world
        self._data = data
        self._clock = clock
        self._pulse = world.comm.sent.pulse
        self._every_steps = config.every_steps
        self._every_seconds = 60.0 * config.every_minutes
        self._begun_time = time.monotonic()  # of the newest checkpoint, or of this object
        policy = SavingPolicy(
            keep=config.keep,
            full_every=config.files_until_full(memory is not None and memory.over_ssd),
            quantize="" if config.quantize == "none" else config.quantize,
            room=config.memory,
            background=True,
        )
        self._saver = Saver(out, world, policy, data, vocabularies)
        self._patience: Patience | None = None
        self.digest = ""  # of the newest checkpoint that this run began
        self.resumed_from: Path | None = None
        self.noted: JsonObject = {}  # of the checkpoint that it resumed from
        self._begun = -1  # step of the newest checkpoint, and the seconds of steps until then
        self._begun_at = 0.0
        self._safe = -1  # step of the newest complete one, and the seconds of steps until then
        self._safe_at = 0.0
        self._cost = (0, 0.0)
        self._keeper = cast("ParityKeeper | None", world.embedding.env.lasting)

    def watch(self, patience: Patience) -> None:
        """Keep the best checkpoint of this count, and note the count in all of them."""
        self._patience = patience

    def note(self, key: str, value: object) -> None:
        """Let checkpoints have a note (JSON-able) beside the description of the data."""
        self._saver.note(key, value)

    def use_vocabularies(self, vocabularies: Mapping[str, Elements]) -> None:
        """Rows are chosen by other vocabularies from now on; checkpoints hold these."""
        self._saver.use_vocabularies(vocabularies)

    def resume(self, tell: Callable[[str], None]) -> int:
        """Bring the world to the state of the newest sound checkpoint of the folder.

        Returns its step, 0 where there are no checkpoints.
        """
        from neocpu.train.checkpoint.lending import lent

        with lent(self._out, self._world.comm):
            return self._resume(tell)

    def _resume(self, tell: Callable[[str], None]) -> int:
        resumed = checkpoint.resume(self._out, self._world, self._data, split="train", tell=tell)
        if resumed is None:
            tell(f"no complete checkpoint in {self._out}: starting at step 0")
            return 0
        path, step = resumed
        self._saver.resume(path, step)
        from neocpu.train.checkpoint.reading import CheckpointFile

        with CheckpointFile(path) as file:
            self.noted = file.data()
        if self._patience is not None:
            # else a run that is killed often enough would never end for want of patience
            self._patience.resume(self.noted.get(NOTE))
        self.resumed_from = path
        self._pulse.checkpoint = str(path)
        self._begun = step
        self._safe = step
        return step

    def step_is_due(self, step: int) -> bool:
        """Is there to be a checkpoint after this step, by its number?"""
        return bool(self._every_steps) and step % self._every_steps == 0

    def minutes_are_due(self, step: int) -> bool:
        """Is there to be one by this rank's clock? Ranks have to agree on that."""
        late = time.monotonic() - self._begun_time >= self._every_seconds
        return bool(self._every_seconds) and late and step != self._begun and step > 0

    def save(self, step: int, last: bool = False) -> None:
        """Begin a checkpoint of the state after `step` steps, if there is none yet.

        last : the run ends here, so a checkpoint whose weights are rounded will not do.
        """
        if self._begun == step and not (last and self._saver.rounded):
            return
        self._pulse.begin("writing a checkpoint")
        self.finish(step)
        self._note_patience()
        self.digest = self._saver.save(step, last)
        self._begun_time = time.monotonic()
        self._begun = step
        # a checkpoint holds the state of this moment, whenever it is complete
        self._begun_at = self._clock.seconds

    def _note_patience(self) -> None:
        """Let what is saved have the count of measurements."""
        if self._patience is not None and self._patience.limit:
            self._saver.note(NOTE, self._patience.to_note())

    def poll(self, step: int) -> None:
        """Complete a checkpoint that all ranks have written meanwhile, and let what outlives the
        ranks follow; step : steps taken.
        """
        if self._keeper is not None and self._keeper.step != step:
            from neocpu.train.checkpoint.keeping import note_of

            self._note_patience()
            note = note_of(self._world, self._saver.data)
            if self._keeper.step < 0:
                self._keeper.begin(self._world.embedding.tbe, step, note)
            else:
                self._keeper.follow(step, note)
        self._saver.poll()
        self._account(step)

    def finish(self, step: int) -> None:
        """Wait for the checkpoint that is being written; step : steps taken."""
        self._pulse.begin("writing a checkpoint")
        self._saver.finish()
        self._account(step)

    def _account(self, step: int) -> None:
        """If another checkpoint became safe: what would a crash just before have cost?"""
        if self._saver.safe == self._safe:
            return
        patience = self._patience
        if patience and self._world.comm.rank == 0 and patience.best_at(self._saver.safe):
            patience.note_best(self._out)
        lost_steps = step - max(self._safe, 0)
        # a crash just before this one was safe would have gone back to the one before it
        lost_seconds = self._clock.seconds - self._safe_at
        self._cost = max(self._cost, (lost_steps, lost_seconds))
        self._safe = self._saver.safe
        self._pulse.checkpoint = str(self._saver.folder / f"step-{self._safe:08d}.h5")
        self._safe_at = self._begun_at

    def abandon(self) -> None:
        """The run failed: remove what is not complete. Not collective."""
        self._saver.abandon()

    def crash_cost(self) -> dict[str, object]:
        """Most steps, with their seconds, that a crash could have cost so far."""
        steps, seconds = self._cost
        return {"steps": steps, "seconds": seconds}

    def written(self) -> dict[str, object]:
        """Checkpoints written, their bytes, and how long training waited (`Saver.report`); and of
        the "parity", where there is one.
        """
        parity = {} if self._keeper is None else {"parity": self._keeper.report()}
        return self._saver.report() | parity


def memory_of(
    config: Config, comm: Comm, plan: Plan, out: Path, tell: Tell
) -> "ParityKeeper | None":
    """Memory of this rank's rows that outlives it, if the config asks for it. Collective."""
    if not config.checkpoint.parity:
        return None
    from neocpu.train.checkpoint.keeping import keeper_of

    return keeper_of(config, comm, plan, out, tell)


def rescued(config: Config, comm: Comm, out: Path, splits: Splits, tell: Tell) -> None:
    """Make a checkpoint of what killed ranks left in such memory (`rescue.py`). Collective."""
    if not config.checkpoint.parity:
        return
    from neocpu.train.run.rescue import rescue

    rescue(config, comm, out, splits, tell)
