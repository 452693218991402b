"""How does a run go whose trainers do not wait for each other? As any, but for its steps.

Between two measurements or checkpoints all threads take their steps on their own; then they meet.
"""

from neocpu.ingest.loader import Batch
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import StopSignal
from neocpu.train.asynchronous.training import AsynchronousTraining
from neocpu.train.before.datasets import Splits
from neocpu.train.run.recovery import Recovery
from neocpu.train.run.trainer import Trainer
from neocpu.train.step.schedule import SIGNAL, BatchSchedule, stopped
from neocpu.train.step.turn import Outcome
from neocpu.train.step.world import World

NOTE = "asynchronous"  # of the summary, and of checkpoints


class AsynchronousTrainer(Trainer):
    """A run on parameter servers; parameters as of `Trainer`."""

    def _train(
        self,
        world: World,
        schedule: BatchSchedule,
        splits: Splits,
        recovery: Recovery,
        stop: StopSignal,
    ) -> None:
        training = AsynchronousTraining(world, schedule, self.steps_taken)
        keys = training.roles.keys
        self._say(training)
        repeats = keys.repeats(self.comm.size)
        recovery.note(NOTE, {"repeats": repeats})
        self._measurements.log.begin(self.steps_taken, self.config.optimizer)
        with self.report.progress(schedule.total_steps, self.steps_taken) as advance:

            def listen(batch: Batch, outcome: Outcome, step: int) -> None:
                self._clock.stop(batch.samples)
                self._measurements.add(outcome, step)
                self._log(step, schedule)
                advance(step, batch.samples)
                self._clock.start()

            while self.steps_taken < schedule.total_steps and not self._patience.ended:
                self._clock.start()
                training.run(
                    self._next_meeting(schedule.total_steps, recovery),
                    listen,
                    lambda: bool(stop.number or self.report.stop_asked),
                )
                self._clock.stop(0)  # until the slowest had come
                self.steps_taken = training.done
                self.samples = schedule.samples_after(self.steps_taken)
                if self._is_over(schedule, recovery, stop):
                    break
                self._meet(world, splits, recovery)
        self._sum_up(training, repeats)

    def _sum_up(self, training: AsynchronousTraining, repeats: bool) -> None:
        """What the summary says of servers and trainers. Collective."""
        moved = sum(self.comm.allgather(training.moved))
        self._measurements.notes[NOTE] = {
            "repeats": repeats,
            "workers": training.roles.workers,
            "servers": len(training.roles.servers),
            "largest_lead": training.lead,
            "bytes_in_calls": moved,
        }
        self.report.tell(
            f"asynchronous: at most {training.lead} step(s) ahead of the slowest; calls moved "
            f"{moved / max(self.samples, 1):,.0f} B for a sample"
        )

    def _say(self, training: AsynchronousTraining) -> None:
        """What this run is, and what it does not promise."""
        roles = training.roles
        keys = roles.keys
        bound = "any number of" if keys.staleness < 0 else str(keys.staleness)
        self.report.tell(
            f"asynchronous: {len(roles.servers)} of {roles.ranks} rank(s) serve, "
            f"{roles.workers} thread(s) train, each up to {bound} step(s) ahead of the slowest"
        )
        if not keys.repeats(roles.ranks):
            self.report.tell(
                "  what is learnt depends on timing: another run has another digest "
                "(training.asynchronous.staleness = 0 has that of synchronous training)"
            )

    def _next_meeting(self, total: int, recovery: Recovery) -> int:
        """The step after which all ranks measure or save."""
        every = self.config.eval.every_steps
        step = self.steps_taken + 1
        while step < total and not ((every and step % every == 0) or recovery.step_is_due(step)):
            step += 1
        return step

    def _is_over(self, schedule: BatchSchedule, recovery: Recovery, stop: StopSignal) -> bool:
        """Is it the last step, or does somebody ask for the end? Collective. Raises Stopped."""
        asked = SIGNAL * stop.number or int(self.report.stop_asked)
        request = self.comm.largest(asked, what="stop signal")
        if signal := request // SIGNAL:
            recovery.leave(self.steps_taken)
            raise stopped(signal, self.steps_taken)
        return bool(request) or self.steps_taken == schedule.total_steps

    def _meet(self, world: World, splits: Splits, recovery: Recovery) -> None:
        """Measure and save, as far as that is due after this step. Collective."""
        every = self.config.eval.every_steps
        if every and self.steps_taken % every == 0:
            self._measure(world, splits, ("valid",))
        best = self._patience.best_at(self.steps_taken)
        if best or recovery.step_is_due(self.steps_taken):
            recovery.save(self.steps_taken)

    def _log(self, step: int, schedule: BatchSchedule) -> None:
        """A line of metrics.jsonl on the samples of rank 0's first thread, where one is due."""
        log = self._measurements.log
        if self.comm.rank or not log.due(step):
            return
        metrics = log.metrics(SingleComm())
        if spike := log.spike():
            self.report.tell(f"warning: {spike}")
        samples = schedule.samples_after(step)
        self.report.metrics(step, samples, "train", metrics, log.pace(step), shown=False)
