"""When does a run write checkpoints, and what would a crash cost it?

A checkpoint is begun after a step and is safe once all ranks have written it, often some steps
later. A crash in between costs all steps since the one before.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from neocpu.core.errors import CheckpointError
from neocpu.core.types import Elements, JsonObject, Tell
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.train import checkpoint
from neocpu.train.before.datasets import Splits
from neocpu.train.checkpoint.policy import SavingPolicy
from neocpu.train.checkpoint.saving import Saver
from neocpu.train.config.config import Config
from neocpu.train.config.settings import AUTO
from neocpu.train.run.patience import NOTE, Patience
from neocpu.train.step.world import World
from neocpu.train.watch.results import RunReport
from neocpu.train.watch.step_watch import StepClock

if TYPE_CHECKING:
    from neocpu.parallel.parity.keeper import ParityKeeper
    from neocpu.train.checkpoint.mirror import CheckpointMirror

# seconds
HOUR = 3600.0
FIRST = 60.0  # until the first checkpoint, whose cost is not known
LEAST = 1.0  # from one checkpoint to the next


class Recovery:
    """The checkpoints of one run; every method but `abandon` is collective.

    out : folder of results. data : description of the data (`identity.py`). clock : of the steps.
    vocabularies : that choose rows, by feature. report : is told of copies in the mirror.

    Attributes: begun, step of the newest checkpoint (-1: none); digest, of the newest that this run
    began; resumed_from; noted, of the checkpoint that it resumed from.
    """

    def __init__(
        self,
        out: Path,
        world: World,
        data: JsonObject,
        clock: StepClock,
        vocabularies: Mapping[str, Elements],
        report: RunReport,
    ) -> None:
        config = world.config.checkpoint
        memory = world.embedding.env.memory
        self._out = out
        self._world = world
        self._data = data
        self._clock = clock
        self._pulse = world.comm.sent.pulse
        self._every_steps = config.every_steps
        self._config = config
        self._mirror: CheckpointMirror | None = None
        if config.mirror:
            from neocpu.train.checkpoint import mirror

            self._mirror = mirror.CheckpointMirror(config.mirror, out, world.comm, report.tell)
        self._cost_before_end: float | None = None
        self._begun_time = time.monotonic()  # of the newest checkpoint, or of this object
        policy = SavingPolicy(
            keep=config.keep,
            keep_every_steps=config.keep_every_steps,
            keep_every_hours=config.keep_every_hours,
            full_every=config.files_until_full(memory is not None and memory.over_ssd),
            quantize="" if config.quantize == "none" else config.quantize,
            room=config.memory,
            background=True,
        )
        self._saver = Saver(out, world, policy, data, vocabularies)
        self._patience: Patience | None = None
        self.digest = ""
        self.resumed_from: Path | None = None
        self.noted: JsonObject = {}
        self.begun = -1
        self._begun_at = 0.0  # seconds of steps until then
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

    def resume(self, tell: Tell) -> int:
        """Bring the world to the state of the newest sound checkpoint of the folder.

        Returns its step, 0 where there are no checkpoints.
        """
        from neocpu.train.checkpoint.folder import lent

        with lent(self._out, self._world.comm):
            path: Path | None = None
            problem: CheckpointError | None = None
            try:
                path = checkpoint.sound_for(self._out, self._world, tell)
            except CheckpointError as error:
                problem = error
            if self._mirror is None or not self._mirror.brings_newer(path):
                if problem is not None:
                    raise problem
                return self._resume(path, tell)
        return self.resume(tell)  # with what the mirror had

    def _resume(self, path: Path | None, tell: Tell) -> int:
        if path is None:
            tell(f"no complete checkpoint in {self._out}: starting at step 0")
            return 0
        step = checkpoint.load(path, self._world, self._data, split="train", tell=tell, warn=tell)
        self._saver.resume(path, step)
        from neocpu.train.checkpoint.reading import CheckpointFile

        with CheckpointFile(path) as file:
            self.noted = file.data()
        if self._patience is not None:
            # else a run that is killed often enough would never end for want of patience
            self._patience.resume(self.noted.get(NOTE))
        self.resumed_from = path
        self._pulse.checkpoint = str(path)
        self.begun = step
        self._safe = step
        return step

    def step_is_due(self, step: int) -> bool:
        """Is there to be a checkpoint after this step, by its number?"""
        return bool(self._every_steps) and step % self._every_steps == 0

    def minutes_are_due(self, step: int) -> bool:
        """Is there to be one by this rank's clock? Ranks have to agree on that."""
        seconds = self._every_seconds()
        late = time.monotonic() - self._begun_time >= seconds
        return bool(seconds) and late and step != self.begun and step > 0

    def _every_seconds(self) -> float:
        """Seconds from one checkpoint to the next; 0: only by steps."""
        if self._config.every_minutes != AUTO:
            return self._config.every_seconds
        from neocpu.core.goodput import best_interval

        cost = self._mean_cost()
        return FIRST if cost is None else max(best_interval(cost, HOUR * self._config.mtbf), LEAST)

    def _mean_cost(self) -> float | None:
        """Seconds that training has waited for a checkpoint, on average; None: there was none."""
        written = self._saver.counts["written"]
        return self._saver.stalled / written if written else None

    def save(self, step: int, last: bool = False) -> None:
        """Begin a checkpoint of the state after `step` steps, if there is none yet.

        last : the run ends here, so a checkpoint whose weights are rounded will not do.
        """
        if self.begun == step and not (last and self._saver.rounded):
            return
        self._pulse.begin("writing a checkpoint")
        self.finish(step)
        self._note_patience()
        if last:  # which all wait for to its end: another cost than that of those before
            self._cost_before_end = self._mean_cost()
        self.digest = self._saver.save(step, last)
        self._begun_time = time.monotonic()
        self.begun = step
        # a checkpoint holds the state of this moment, whenever it is complete
        self._begun_at = self._clock.seconds

    def _note_patience(self) -> None:
        """Let what is saved have the count of measurements."""
        if self._patience is not None and self._patience.watches:
            self._saver.note(NOTE, self._patience.to_note())

    def poll(self, step: int) -> None:
        """Complete a checkpoint that all ranks have written meanwhile, and let what outlives the
        ranks follow; step : steps taken.
        """
        if self._keeper is not None and self._parity_is_due(self._keeper.step, step):
            from neocpu.train.checkpoint.keeping import note_of

            self._note_patience()
            note = note_of(self._world, self._saver.data)
            if self._keeper.step < 0:
                self._keeper.begin(self._world.embedding.tbe, step, note)
            else:
                self._keeper.follow(step, note)
        self._saver.poll()
        self._account(step)
        if self._copies:
            self._copies.poll()

    def _parity_is_due(self, complete: int, step: int) -> bool:
        """Is what outlives the ranks to follow now? complete : its last step; -1: none yet."""
        return complete < 0 or (complete != step and step % self._config.parity_every == 0)

    def finish(self, step: int) -> None:
        """Wait for the checkpoint that is being written; step : steps taken."""
        self._pulse.begin("writing a checkpoint")
        self._saver.finish()
        self._account(step)

    def end(self, step: int, in_time: bool = False) -> None:
        """Wait for the last checkpoint, and for its copy in the mirror; step : steps taken.

        in_time : the run was asked to stop, so it waits for copies for some seconds only.
        """
        self.finish(step)
        if self._copies:
            self._pulse.begin("copying checkpoints")
            self._copies.finish(in_time)

    def leave(self, step: int) -> None:
        """Write what a run that is asked to stop goes on from, if it took a step."""
        if step:
            self.save(step, last=True)
            self.end(step, in_time=True)

    @property
    def _copies(self) -> "CheckpointMirror | None":
        """The mirror, on the rank that copies."""
        return self._mirror if self._world.comm.rank == 0 else None

    def _account(self, step: int) -> None:
        """If another checkpoint became safe: what would a crash just before have cost?"""
        if self._saver.safe == self._safe:
            return
        if self._copies:
            self._copies.copy(f"step-{self._saver.safe:08d}.h5", self._saver.deleted)
            self._saver.deleted.clear()
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
        if self._copies:
            self._copies.abandon()

    def crash_cost(self) -> dict[str, object]:
        """Most steps, with their seconds, that a crash could have cost so far."""
        steps, seconds = self._cost
        return {"steps": steps, "seconds": seconds}

    def written(self) -> dict[str, object]:
        """Checkpoints written, their bytes, and how long training waited (`Saver.report`); of
        the "parity" and the "mirror", where there are any; where `checkpoint.mtbf` is known, what
        one costs and how often they should be written.
        """
        report = self._saver.report()
        if self._keeper is not None:
            report["parity"] = self._keeper.report()
        if self._copies:
            report["mirror"] = self._copies.report()
        cost = self._cost_before_end or self._mean_cost()
        mtbf = HOUR * self._config.mtbf
        if not mtbf or cost is None:
            return report
        from neocpu.core.goodput import best_interval, progress

        best = max(best_interval(cost, mtbf), LEAST)
        return report | {
            "cost_seconds": cost,
            "mtbf_hours": self._config.mtbf,
            "best_minutes": best / 60.0,
            "lost_share": 1 - progress(best, cost, 0.0, mtbf),
        }


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


def checkpoint_lines(checkpoints: JsonObject) -> list[str]:
    """What was written, how long training waited for it, and how often it should be written."""
    of_changes = checkpoints["of_changes"]
    in_background = checkpoints["in_background"]
    kinds = ""
    if of_changes or in_background:
        kinds = f" ({of_changes} of changes, {in_background} in the background)"
    parity = ""
    if sent := checkpoints.get("parity"):
        parity = f", {sent['seconds']:.2f} s for {sent['bytes'] / 2**20:,.1f} MiB of parity"
    written = (
        f"checkpoints written: {checkpoints['written']}{kinds}, "
        f"{checkpoints['bytes'] / 2**20:,.1f} MiB; training waited "
        f"{checkpoints['seconds']:.2f} s for them{parity}"
    )
    lines = [written]
    if mirror := checkpoints.get("mirror"):
        behind = f"; {mirror['behind']} are not there" if mirror["behind"] else ""
        lines.append(
            f"copied to {mirror['place']}: {mirror['files']}, {mirror['bytes'] / 2**20:,.1f} MiB, "
            f"in {mirror['seconds']:.1f} s{behind}"
        )
    if best := checkpoints.get("best_minutes"):
        lines.append(
            f"one costs {checkpoints['cost_seconds']:.3g} s: with a failure every "
            f"{checkpoints['mtbf_hours']:g} h (checkpoint.mtbf) one every {best:.2g} minutes is "
            f"best, which costs {100 * checkpoints['lost_share']:.2g} % of the time "
            "(checkpoint.every_minutes)"
        )
    return lines
