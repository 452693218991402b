"""How does a run go from a config to a digest?

It opens the data, makes a plan, checks that there is room, compiles the kernels, builds the objects
of this rank and loads the newest checkpoint; then it takes steps, and sums up. `Trainer.run` tells
that story; its parts are files of this folder. What one step does is in `step.py`.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neocpu.core.cores import roam
from neocpu.core.floats import keep_subnormals, require_subnormals
from neocpu.core.types import Tree
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.environment import check_kernels
from neocpu.parallel.transport.launch import StopSignal, bind_kernel_threads
from neocpu.parallel.transport.sent import sum_traffic
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.train.advice.complaints import advise, warn_of_leaves
from neocpu.train.before.beginning import Beginning, begin
from neocpu.train.before.datasets import Splits, open_splits
from neocpu.train.before.plans import make_plan, memory_plan, plans_in_seconds, table_lines
from neocpu.train.before.room import PlannedRun, check_room, remove_row_files, row_folder
from neocpu.train.before.warmup import warm_up
from neocpu.train.config.config import Config
from neocpu.train.run.evaluate import grouping_of, metrics_of, score
from neocpu.train.run.folder import RunLock, restarts_of
from neocpu.train.run.patience import Patience
from neocpu.train.run.recovery import Recovery
from neocpu.train.run.summary import sent_matrix, summarise
from neocpu.train.run.verdict import verdict
from neocpu.train.step.pipeline import look_ahead
from neocpu.train.step.schedule import LOG_DUE, SAVE_DUE, SIGNAL, STOP_ASKED, BatchSchedule, Stopped
from neocpu.train.step.step import Steps
from neocpu.train.step.world import World, build
from neocpu.train.watch.metrics import Metrics, Window
from neocpu.train.watch.reliability import deciles, reliability
from neocpu.train.watch.results import RunReport
from neocpu.train.watch.step_watch import StepClock, StepWatch
from neocpu.train.watch.train_log import TrainLog

if TYPE_CHECKING:
    from neocpu.plan.machines.machine import Machine
    from neocpu.train.watch.trace import RunTrace

WINDOW = 100  # batches that training metrics look back on


class Trainer:
    """One run of training; every method is collective over `comm`.

    Parameters
    ----------
    config : checked configuration.
    comm : the ranks; None: this process alone.
    out : folder for checkpoints, metrics and the summary; locked while the run lasts.
    resume : go on from the newest complete checkpoint in `out`, or start at step 0 and say so.
    started : `time.time()` at the start of a process that does nothing but this run, for the
        cold-start figure; each kernel thread may then have a core of its own, where the host's
        ranks together use every core once. None: the process is the caller's.
    trace : of the steps, if one is wanted.

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
    ) -> None:
        self.config = config
        self.comm = comm or SingleComm()
        self._watch = StepWatch(self.comm, config.parallel, trace)
        self.out = Path(out)
        self.resume = resume
        self.report = report or RunReport(self.out, self.comm.rank)
        self.steps_taken = 0
        self.samples = 0
        self.world: World | None = None
        self._recovery: Recovery | None = None
        self._machine: Machine | None = None  # whose time for the run's traffic is reckoned
        self._bind = started is not None
        self._clock = StepClock(time.time() if started is None else started)
        self._window = Window(WINDOW)
        metric = "mse" if config.model.loss == "mse" else "logloss"
        self._patience = Patience(config.training.patience, metric)
        self._measured: tuple[int, dict[str, Metrics]] = (-1, {})  # last step, and its metrics
        # by split, of its newest measurement
        self._calibration: dict[str, dict[str, object]] = {"reliability": {}, "deciles": {}}
        self._log = TrainLog(config.training.log_every, config.model.loss, WINDOW, self._clock)

    def run(self) -> dict[str, Any]:
        """Train to the end of the configured steps; the summary, as `run.json` has it.

        Raises
        ------
        NeocpuError : of the kinds of `neocpu.core.errors`, on every rank. Stopped : a signal ended
        the
            run early.
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
                RunLock(self.out, self.comm, resume=self.resume),
            ):
                return self._run(stop)
        finally:
            self._watch.release()
            roam()
            if self._recovery is not None:
                self._recovery.abandon()
            # SSD files are closed, and removed, however the run ends
            if self.world is not None:
                self.world.embedding.tbe.close()

    def _run(self, stop: StopSignal) -> dict[str, object]:
        """The run within its folder, from the data to the summary."""
        tell = self.report.tell
        self._watch.prepare(self.report)
        beginning = begin(self.config, self.comm, self.out, self.resume, online=self.online)
        self.config = beginning.config
        # data before the plan: the batch size and the lookups follow from it
        splits = self._open(beginning)
        self.report.note("data are open")
        warn_of_leaves(self.config, self.comm.size, self.report.tell)
        self._heed(stop)
        world, schedule = self._prepare(splits)
        self._heed(stop)
        beginning.take_over(world, splits, tell)
        recovery = self._recovery = Recovery(
            self.out, world, splits.description(), self._clock, splits.vocabularies
        )
        recovery.watch(self._patience)
        if self.resume:
            self._go_on(recovery, schedule)
        self.report.config(self.config)  # not before a resume that may be refused
        self.report.note(f"ready for step {self.steps_taken + 1}")
        if self.config.memory.warm:
            from neocpu.train.step.frequent import warm_caches

            warm_caches(world, schedule.loader, self.steps_taken > 0)
        self._watch.start()
        stop.start()
        self._train(world, schedule, splits, recovery, stop)
        self._watch.stop(tell)
        return self._finish(world, splits, recovery)

    def _heed(self, stop: StopSignal) -> None:
        """Raise Stopped if any rank was asked to stop before the first step. Collective."""
        if number := self.comm.largest(stop.number, what="stop signal"):
            raise Stopped(number, self.steps_taken)

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
        return BatchSchedule(splits.loader("train"), training.epochs, training.steps)

    def _prepare(self, splits: Splits) -> tuple[World, BatchSchedule]:
        """Plan, check that there is room, compile, and build the objects of this rank."""
        config = self.config
        comm = self.comm
        pooling = splits.pooling_factors()
        distinct = splits.distinct_rows() if plans_in_seconds(config) else None
        plan = make_plan(config, comm, pooling, distinct=distinct)
        memory = memory_plan(config, plan, pooling, row_folder(self.out))
        # before room is looked at: they would count as taken
        remove_row_files(self.out, comm)
        schedule = self._schedule(splits)
        planned = PlannedRun(config, plan, memory, splits, schedule.total_steps, self.out)
        # before anything is allocated: a rank that is killed for memory says nothing
        huge = check_room(planned, comm, self.report.tell)
        state_floats = config.optimizer.sparse.state_floats
        self.report.plan(plan, state_floats, [*table_lines(config, plan, memory)])
        if comm.rank == 0:
            advise(config, splits.datasets["train"], schedule.total_steps, self.report.tell)
        report = self.report
        self.report.note("planned, and there is room")
        seconds = warm_up(config, plan, comm, report.tell, memory.placements, report.compiling)
        self.report.note(f"kernels are ready after {seconds:.3f} s")
        if self._bind:
            # after the kernels are compiled, which takes other cores too
            bind_kernel_threads(comm)
        self.world = self._build(plan, splits, huge, memory)
        return self.world, schedule

    def _build(self, plan: Plan, splits: Splits, huge: bool, memory: MemoryPlan) -> World:
        """The objects of this rank; arguments as of `world.build`."""
        dense_features = splits.dense_features
        return build(self.config, self.comm, plan, dense_features, huge=huge, memory=memory)

    def _go_on(self, recovery: Recovery, schedule: BatchSchedule) -> None:
        """Take up the run where its newest checkpoint left it."""
        self.steps_taken = recovery.resume(self.report.tell)
        self.samples = schedule.samples_after(self.steps_taken)
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
        total = schedule.total_steps
        measure_every = self.config.eval.every_steps
        batches = schedule.batches(self.steps_taken)
        early = look_ahead(world.embedding.env.memory, self.config.memory)
        steps = world.step.over(batches, self.steps_taken + 1, early)
        self._log.begin(self.steps_taken, self.config.optimizer)
        with self.report.progress(total, self.steps_taken) as advance:
            while self.steps_taken < total and not self._patience.ended:
                recovery.poll(self.steps_taken)
                # signals reach the ranks at different steps, so they agree before each one
                with self._watch.counting():
                    asked = self._request(stop, recovery)
                    request = self.comm.largest(asked, what="stop signal")
                # the sums of all ranks are needed, so the clock of one of them decides for all
                if request == LOG_DUE:
                    self._log_training()
                    continue
                if request == SAVE_DUE:
                    recovery.save(self.steps_taken)
                    continue
                if request == STOP_ASKED:
                    steps.close()
                    return  # the summary measures and saves
                if signal := request // SIGNAL:
                    if self.steps_taken:
                        recovery.save(self.steps_taken, last=True)
                        recovery.finish(self.steps_taken)
                    steps.close()
                    self._watch.stop(self.report.tell)
                    raise Stopped(signal, self.steps_taken)
                self._before_step(world, recovery)
                advance(*self._step(steps))
                if self.steps_taken == total:
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
        return LOG_DUE if self._log.due(self.steps_taken) else 0

    def _step(self, steps: Steps) -> tuple[int, int]:
        """Train on the next batch; steps taken, and samples of all ranks in the batch."""
        self._clock.start()
        self._watch.begin_step(self.steps_taken + 1)
        with self._watch.counting():
            batch, outcome = steps.next()
        self._watch.end_step()
        self._window.add(outcome.prediction, outcome.labels)
        self._log.add(outcome)
        self.steps_taken += 1
        self.samples += batch.samples
        self._clock.stop(batch.samples)
        return self.steps_taken, batch.samples

    def _log_training(self) -> None:
        """A line of metrics.jsonl on the last training batches, which costs next to nothing."""
        metrics = self._log.metrics(self.comm)
        pace = self._log.pace(self.steps_taken)
        self.report.note(self._pace_text(pace))
        self.report.metrics(self.steps_taken, self.samples, "train", metrics, pace, shown=False)

    def _pace_text(self, pace: dict[str, object]) -> str:
        """How this rank gets on, for its log."""
        waited = sum(self.comm.sent.waited.values())
        return (
            f"step {self.steps_taken}: {pace['seconds']:.3f} s of steps so far; exchanges waited "
            f"{waited:.3f} s"
        )

    def _measure(self, world: World, splits: Splits, names: tuple[str, ...]) -> dict[str, Metrics]:
        """Metrics of the last training batches and of the named splits, also to metrics.jsonl."""
        step, known = self._measured
        if step != self.steps_taken:
            known = {}
        metrics = dict(known)
        loss = self.config.model.loss
        if not metrics:
            metrics["train"] = self._window.metrics(loss, self.comm)
        for name in names:
            if splits.has(name) and name not in metrics:
                scores = score(world, splits.loader(name).batches(0, 0))
                grouping = grouping_of(self.config.eval, splits.datasets[name])
                for head, measured in metrics_of(world, scores, grouping).items():
                    metrics[f"{name}:{head}" if head else name] = measured
                p, y, _ = scores[""]
                self._calibration["reliability"][name] = reliability(p, y, loss, self.comm)
                self._calibration["deciles"][name] = deciles(p, y, loss, self.comm)
        pace = self._log.pace(self.steps_taken)
        self.report.note(f"measured {', '.join(metrics)}; {self._pace_text(pace)}")
        for name in [name for name in metrics if name not in known]:
            self._report(name, metrics[name], pace if name == "train" else None)
        if "valid" in metrics and "valid" not in known:
            every = self.config.eval.every_steps
            due = bool(every) and self.steps_taken % every == 0
            self._patience.measured(self.steps_taken, metrics["valid"], due)
        # the summary asks again after the last step; a split is scored once
        self._measured = (self.steps_taken, metrics)
        return metrics

    def _report(self, split: str, metrics: Metrics, extra: Tree | None) -> None:
        """A line of metrics.jsonl after the steps taken; extra : further keys (None: none)."""
        self.report.metrics(self.steps_taken, self.samples, split, metrics, extra)

    # ---- after the last step ----

    def _finish(self, world: World, splits: Splits, recovery: Recovery) -> dict[str, object]:
        """Measure, write the last checkpoint, and sum up."""
        require_subnormals()  # no library changed the arithmetic meanwhile
        metrics = self._measure(world, splits, ("valid", "test"))
        traffic = self.comm.traffic_of_ranks()  # checkpoints come after, and are not in it
        recovery.save(self.steps_taken, last=True)
        recovery.finish(self.steps_taken)
        self.report.note("the last checkpoint is written")
        summary = summarise(
            world,
            self.steps_taken,
            self.samples,
            self._clock,
            metrics,
            sum_traffic([rank["sent"] for rank in traffic]),
            recovery,
        )
        summary |= self._calibration
        summary |= verdict(self.config, splits, metrics, self.comm, self.report.tell)
        summary["sent"] = sent_matrix(traffic, self.comm.ranks_per_node)
        summary["exchanges"] = self._watch.report()
        if restarts := restarts_of(self.out):
            summary["restarts"] = restarts
        if self._machine is not None:
            from neocpu.train.watch.on_machine import report_on_machine

            per_node = self.comm.ranks_per_node
            summary["machine"] = report_on_machine(self._machine, traffic, per_node)
        self.report.finish(summary)
        return summary
