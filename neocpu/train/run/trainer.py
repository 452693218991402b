"""How does a run go from a config to a digest?

It opens the data, makes a plan, checks that there is room, compiles the kernels, builds the objects
of this rank; then it takes steps, and sums up. `Trainer.run` tells that story (`step.py`: a step).
"""

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neocpu.core.cores import roam
from neocpu.core.floats import keep_subnormals, require_subnormals
from neocpu.ingest.loader import Loader
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.environment import check_kernels
from neocpu.parallel.transport.launch import StopSignal, bind_kernel_threads
from neocpu.parallel.transport.sent import sum_traffic
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.train.activations.keeping import Keep, keep_if_asked
from neocpu.train.before.beginning import Beginning, begin
from neocpu.train.before.datasets import Splits, open_splits
from neocpu.train.before.plans import memory_plan, plan_for_data, table_lines
from neocpu.train.before.room import PlannedRun, check_room, remove_row_files, row_folder
from neocpu.train.before.warmup import warm_up
from neocpu.train.config.config import Config
from neocpu.train.run.evaluate import grouping_of
from neocpu.train.run.folder import RunLock, restarts_of
from neocpu.train.run.measurements import Measurements
from neocpu.train.run.mishaps import NOTE as MISHAPS
from neocpu.train.run.mishaps import Mishaps, RollBack
from neocpu.train.run.recovery import Recovery, memory_of, rescued
from neocpu.train.run.summary import sent_matrix, summarise
from neocpu.train.run.verdict import verdict
from neocpu.train.step.pipeline import Steps, look_ahead
from neocpu.train.step.schedule import LOG_DUE, SAVE_DUE, SIGNAL, STOP_ASKED, BatchSchedule, stopped
from neocpu.train.step.world import World, build
from neocpu.train.watch.complaints import advise, warn_of_leaves
from neocpu.train.watch.metrics import Metrics
from neocpu.train.watch.results import RunReport
from neocpu.train.watch.step_watch import StepClock, StepWatch

if TYPE_CHECKING:
    from neocpu.plan.machines.machine import Machine
    from neocpu.train.watch.trace import RunTrace


class Trainer:
    """One run of training; every method is collective over `comm`.

    config : checked configuration.
    comm : the ranks; None: this process alone.
    out : folder for checkpoints, metrics and the summary; locked while the run lasts.
    resume : go on from the newest complete checkpoint in `out`, or start at step 0 and say so.
    started : `time.time()` at the start of a process that does nothing but this run (None: it is
        the caller's); kernel threads then have their cores where ranks use each core once.
    trace : of the steps, if one is wanted. keep : keeps their activations to a budget.

    Class attribute: online, whether it trains on file after file (`online.py`). Attributes:
    steps_taken; samples, of all ranks, that those steps trained on; world, once built.
    """

    online = False

    def __init__(
        self,
        config: Config,
        comm: Comm | None,
        out: str | Path,
        *,
        resume: bool = False,
        report: RunReport | None = None,
        started: float | None = None,
        trace: "RunTrace | None" = None,
        keep: Keep = keep_if_asked,
    ) -> None:
        self.config = config
        self.comm = comm or SingleComm()
        self._watch = StepWatch(self.comm, config.parallel, trace)
        self.out = Path(out)
        self.resume = resume
        self.report = report or RunReport(self.out, self.comm.rank)
        self._keep = keep
        self.steps_taken = 0
        self.samples = 0
        self.world: World | None = None
        self._batches: BatchSchedule | None = None
        self._made_of: tuple[Plan, Splits, bool, MemoryPlan] | None = None  # the world
        self._recovery: Recovery | None = None
        self._machine: Machine | None = None  # whose time for the run's traffic is reckoned
        self._bind = started is not None
        self._clock = StepClock(time.time() if started is None else started)
        self._mishaps = Mishaps(config, self.report.tell)
        self._measurements = Measurements(config, self.comm, self.report, self._clock)
        self._patience = self._measurements.patience

    def run(self) -> dict[str, Any]:
        """Train to the end of the configured steps; the summary, as `run.json` has it.

        Raises a NeocpuError (`neocpu.core.errors`) on every rank; Stopped where a signal ended it.
        """
        # libraries built with fast-math set the CPU to flush them, which changes bits
        keep_subnormals()
        check_kernels()
        # before the run: a name that is wrong should not be told after days
        if name := self.config.parallel.machine:
            from neocpu.train.watch.on_machine import load_machine

            self._machine = load_machine(name, self.comm)
        try:
            with (
                StopSignal(started=False) as stop,
                RunLock(self.out, self.comm, resume=self.resume) as lock,
            ):
                self.report.follow = lock.follow
                return self._run(stop)
        finally:
            self._watch.release()
            roam()
            if self._recovery is not None:
                self._recovery.abandon()
            # SSD files are closed, and removed, however the run ends
            for opened in (self._batches, self.world):
                if opened is not None:
                    opened.close()

    def _run(self, stop: StopSignal) -> dict[str, object]:
        """The run within its folder, from the data to the summary."""
        tell = self.report.tell
        self._watch.prepare(self.report)
        beginning = begin(self.config, self.comm, self.out, self.resume, tell, online=self.online)
        self.config = beginning.config
        # data before the plan: the batch size and the lookups follow from it
        splits = self._open(beginning)
        self.report.note("data are open")
        warn_of_leaves(self.config, self.comm.size, self.report.tell)
        self._heed(stop)
        if self.resume:
            rescued(self.config, self.comm, self.out, splits, tell)
        world, schedule = self._prepare(splits)
        self._heed(stop)
        beginning.take_over(world, splits, tell)
        recovery = self._recover(world, splits)
        if self.resume:
            self._go_on(world, recovery, schedule)
        self.report.config(self.config)  # not before a resume that may be refused
        self.report.note(f"ready for step {self.steps_taken + 1}")
        if self.config.memory.warm:
            from neocpu.train.step.frequent import warm_caches

            warm_caches(world, schedule.loader, self.steps_taken > 0, self.config.memory.warm_share)
        self._watch.start()
        stop.start(schedule.wait_no_longer)
        while True:
            # not `except`: in it the steps would still be there, and hold their tables
            with suppress(RollBack):
                self._train(world, schedule, splits, recovery, stop)
                if schedule.waits:
                    self._heed(stop)
                break
            recovery.end(self.steps_taken, in_time=True)
            # tables take memory: the old ones go before the new ones come
            del world, recovery
            world, recovery = self._roll_back(splits, schedule)
        self._watch.stop(tell)
        return self._finish(world, splits, recovery)

    def _heed(self, stop: StopSignal) -> None:
        """Raise Stopped if any rank was asked to stop, after a checkpoint of what was learnt.
        Collective.
        """
        if number := self.comm.largest(stop.number, what="stop signal"):
            if self._recovery is not None:
                self._recovery.leave(self.steps_taken)
                self._watch.stop(self.report.tell)
            raise stopped(number, self.steps_taken)

    # ---- before the first step ----

    def _open(self, beginning: Beginning) -> Splits:
        """Open the data of the run."""
        splits = open_splits(self.config, self.comm, self.out, self.report.tell)
        self.config = splits.config
        for name in ("valid", "test"):
            if splits.has(name):
                # a group that is not there should not be told after hours
                grouping_of(self.config.eval, splits.datasets[name])
        beginning.choose_rows(splits, self.report.tell)
        return splits

    def _schedule(self, splits: Splits) -> BatchSchedule:
        """Which batches the run trains on."""
        training = self.config.training
        return self._read(self.comm, splits.loader("train"), training.epochs, training.steps)

    def _read(self, comm: Comm, loader: Loader, epochs: int, steps: int) -> BatchSchedule:
        """Batches of a loader that this rank reads, or readers whose meetings are on `comm`."""
        if not (readers := self.config.readers).count:
            return BatchSchedule(loader, epochs, steps)
        from neocpu.train.run.reading import reader_schedule  # and sockets, which few runs need

        return reader_schedule(loader, epochs, steps, comm, readers, self.report.tell)

    def _prepare(self, splits: Splits) -> tuple[World, BatchSchedule]:
        """Plan, check that there is room, compile, and build the objects of this rank."""
        config = self.config
        comm = self.comm
        plan = plan_for_data(config, comm, splits)
        memory = memory_plan(config, plan, splits.pooling_factors(), row_folder(self.out))
        # before room is looked at: they would count as taken
        remove_row_files(self.out, comm)
        schedule = self._batches = self._schedule(splits)
        self._measurements.reading = schedule.state
        planned = PlannedRun(config, plan, memory, splits, schedule.total_steps, self.out)
        # before anything is allocated: a rank that is killed for memory says nothing
        huge = check_room(planned, comm, self.report.tell)
        report = self.report
        report.plan(
            plan, config.optimizer.sparse.state_floats, [*table_lines(config, plan, memory)]
        )
        if comm.rank == 0:
            advise(config, splits.datasets["train"], schedule.total_steps, self.report.tell)
        report.note("planned, and there is room")
        seconds = warm_up(config, plan, comm, report.tell, memory.placements, report.compiling)
        self.report.note(f"kernels are ready after {seconds:.3f} s")
        if self._bind:
            # after the kernels are compiled, which takes other cores too
            bind_kernel_threads(comm)
        self._made_of = plan, splits, huge, memory
        self.world = self._build(*self._made_of)
        return self.world, schedule

    def _build(self, plan: Plan, splits: Splits, huge: bool, memory: MemoryPlan) -> World:
        """The objects of this rank; arguments as of `world.build`."""
        lasting = memory_of(self.config, self.comm, plan, self.out, self.report.tell)
        size = splits.dense_features
        world = build(self.config, self.comm, plan, size, huge=huge, memory=memory, lasting=lasting)
        self._keep(self.config, world, row_folder(self.out))
        return world

    def _recover(self, world: World, splits: Splits) -> Recovery:
        """What writes the checkpoints of a world."""
        recovery = self._recovery = Recovery(
            self.out, world, splits.description(), self._clock, splits.vocabularies, self.report
        )
        recovery.watch(self._patience)
        return recovery

    def _roll_back(self, splits: Splits, schedule: BatchSchedule) -> tuple[World, Recovery]:
        """Build tables and model anew, from the newest checkpoint. Collective."""
        assert self.world is not None and self._made_of is not None
        self.world.close()
        self.world = self._recovery = None
        self.world = self._build(*self._made_of)
        recovery = self._recover(self.world, splits)
        self._go_on(self.world, recovery, schedule)
        self._measurements.forget()
        return self.world, recovery

    def _go_on(self, world: World, recovery: Recovery, schedule: BatchSchedule) -> None:
        """Take up the run where its newest checkpoint left it."""
        self.steps_taken = recovery.resume(self.report.tell)
        self.samples = schedule.samples_after(self.steps_taken)
        self._mishaps.resume(recovery.noted.get(MISHAPS))
        world.scale_rates(self._mishaps.rate)
        total = schedule.total_steps
        if recovery.resumed_from is not None and self.steps_taken >= total:
            self.report.tell(
                f"nothing to train: {recovery.resumed_from.name} is at step {self.steps_taken} and "
                f"the run ends at step {total}; raise training.steps or training.epochs to go on"
            )

    # ---- steps ----

    def _train(
        self,
        world: World,
        schedule: BatchSchedule,
        splits: Splits,
        recovery: Recovery,
        stop: StopSignal,
    ) -> None:
        """All steps, with measurements and checkpoints in between."""
        measure_every = self.config.eval.every_steps
        early = look_ahead(world.embedding.env.memory, self.config.memory)
        steps = world.step.over(schedule.batches(self.steps_taken), self.steps_taken + 1, early)
        self._measurements.log.begin(self.steps_taken, self._mishaps.scaled(self.config.optimizer))
        if self._mishaps.rolls_back and not self.steps_taken:
            recovery.save(0)  # else there is nothing to go back to before the first checkpoint
        with self.report.progress(schedule.total_steps, self.steps_taken) as advance:
            while self.steps_taken < schedule.total_steps and not self._patience.ended:
                recovery.poll(self.steps_taken)
                # signals reach the ranks at different steps, so they agree before each one
                with self._watch.counting():
                    request = self.comm.largest(self._request(stop, recovery), what="stop signal")
                # the sums of all ranks are needed, so the clock of one of them decides for all
                if request == LOG_DUE:
                    self._log_training(world)
                    continue
                if request == SAVE_DUE:
                    recovery.save(self.steps_taken)
                    continue
                if request:
                    steps.close()
                    self._heed(stop)
                    return  # the summary measures and saves
                self._before_step(world, recovery)
                advance(*self._step(steps))
                if self.steps_taken == schedule.total_steps:
                    return  # the summary measures and saves
                if measure_every and self.steps_taken % measure_every == 0:
                    self._measure(world, splits, ("valid",))
                best = self._patience.best_at(self.steps_taken)
                if best or recovery.step_is_due(self.steps_taken):
                    recovery.save(self.steps_taken)
            if self._patience.ended:
                steps.close()
                self.report.tell(self._patience.text())

    def _before_step(self, world: World, recovery: Recovery) -> None:
        """What a run does before it takes the next step; online, it may begin another file."""

    def _request(self, stop: StopSignal, recovery: Recovery) -> int:
        """What this rank asks for before the next step."""
        if stop.number:
            return SIGNAL * stop.number
        if self.report.stop_asked:
            return STOP_ASKED
        if self.comm.rank:
            return 0
        if recovery.minutes_are_due(self.steps_taken):
            return SAVE_DUE
        return LOG_DUE if self._measurements.log.due(self.steps_taken) else 0

    def _step(self, steps: Steps) -> tuple[int, int]:
        """Train on the next batch; steps taken, and samples of all ranks in the batch."""
        self._clock.start()
        self._watch.begin_step(self.steps_taken + 1)
        with self._watch.counting():
            batch, outcome = steps.next()
        self._watch.end_step()
        assert self.world is not None
        self.world.dense.tell(self.report.tell)
        if outcome.scaled:
            self._mishaps.overflowed(self.steps_taken + 1)
        elif outcome.fault:
            self._left_out(steps, outcome.fault)
        else:
            self._mishaps.sound()
            self._measurements.add(outcome, self.steps_taken + 1)
        self.steps_taken += 1
        self.samples += batch.samples
        self._clock.stop(batch.samples)
        return self.steps_taken, batch.samples

    def _left_out(self, steps: Steps, fault: str) -> None:
        """Nothing of a step was written: do what the config says."""
        assert self._recovery is not None
        try:
            self._mishaps.met(self.steps_taken + 1, fault)
        except RollBack:
            steps.close()
            raise
        self._recovery.note(MISHAPS, self._mishaps.to_note())

    def _log_training(self, world: World) -> None:
        """A line of metrics.jsonl on the last training batches, which costs next to nothing."""
        self._measurements.log_training(self.steps_taken, self.samples, world)

    def _measure(self, world: World, splits: Splits, names: tuple[str, ...]) -> dict[str, Metrics]:
        """Metrics of the last training batches and of the named splits, also to metrics.jsonl."""
        return self._measurements.measure(self.steps_taken, self.samples, world, splits, names)

    def _finish(self, world: World, splits: Splits, recovery: Recovery) -> dict[str, object]:
        """Measure, write the last checkpoint, and sum up."""
        require_subnormals()  # no library changed the arithmetic meanwhile
        metrics = self._measure(world, splits, ("valid", "test"))
        traffic = self.comm.traffic_of_ranks()  # checkpoints come after, and are not in it
        recovery.save(self.steps_taken, last=True)
        recovery.end(self.steps_taken)
        self.report.note("the last checkpoint is written")
        sent = sum_traffic([rank["sent"] for rank in traffic])
        summary = summarise(
            world, self.steps_taken, self.samples, self._clock, metrics, sent, recovery
        )
        summary |= self._measurements.told | self._mishaps.to_note()
        summary |= verdict(self.config, splits, metrics, self.comm, self.report.tell)
        summary["sent"] = sent_matrix(traffic, self.comm.ranks_per_node)
        summary["exchanges"] = self._watch.report()
        summary |= self._batches.report() if self._batches is not None else {}
        if restarts := restarts_of(self.out):
            summary["restarts"] = restarts
        if self._machine is not None:
            from neocpu.train.watch.on_machine import report_on_machine

            summary["machine"] = report_on_machine(self._machine, traffic, self.comm.ranks_per_node)
        self.report.finish(summary)
        return summary
