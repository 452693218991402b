"""How does a run go from a config to a digest? Data, plan, preflight, compile, resume, then steps,
and a summary.

The position in the data is (epoch, step of the epoch); both follow from the number of steps taken,
so that number is all that a checkpoint needs. Before every step the ranks agree whether somebody
was asked to stop.
"""

import json
import resource
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from neocpu.config import Config
from neocpu.cores import roam
from neocpu.embedding.tiered import MemoryPlan
from neocpu.errors import NeocpuError, StorageError
from neocpu.floats import keep_subnormals, require_subnormals
from neocpu.ingest.loader import Batch, Loader
from neocpu.parallel.comm import Comm, SingleComm
from neocpu.parallel.launch import StopSignal, bind_kernel_threads
from neocpu.parallel.plan import Plan
from neocpu.planner.capacity import placed, placement_lines
from neocpu.reference.policies import POLICIES
from neocpu.storage.arena import HUGE
from neocpu.storage.placement import PLACEMENTS
from neocpu.storage.row_tools import remove
from neocpu.training import checkpoint, preflight
from neocpu.training.checkpoint.saving import Saver
from neocpu.training.datasets import Splits, open_splits
from neocpu.training.evaluate import evaluate
from neocpu.training.frequent import warm_caches
from neocpu.training.lookahead import Ahead
from neocpu.training.metrics import Window
from neocpu.training.results import RunReport, versions
from neocpu.training.run_folder import RunLock
from neocpu.training.state import digest
from neocpu.training.warmup import warm_up
from neocpu.training.world import World, build, make_plan, memory_plan

WINDOW = 100  # batches that training metrics look back on


class Stopped(NeocpuError):
    """The run was asked to end (SIGTERM, Ctrl-C) and has written a checkpoint."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(
            f"stopped by signal {number} after step {step}; a checkpoint is written, go on with "
            "--resume"
        )
        self.exit_status = 128 + number


def peak_memory() -> int:
    """Most bytes of memory that this process had at a time."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


class Trainer:
    """One run of training; every method is collective over `comm`.

    Parameters
    ----------
    config : checked configuration.
    comm : the ranks; None: this process alone.
    out : folder for checkpoints, metrics and the summary; locked while the run lasts.
    resume : go on from the newest complete checkpoint in `out`, or start at step 0 and say so.
    started : `time.time()` at the start of the process, for the cold-start figure.
    bind : may each kernel thread have a core of its own, where the host's ranks together use every
        core once? For a process that does nothing else; the calling thread is free again when `run`
        ends.
    """

    def __init__(
        self,
        config: Config,
        comm: Comm | None,
        out: str | Path,
        *,
        resume: bool = False,
        report: RunReport | None = None,
        started: float | None = None,
        bind: bool = False,
    ) -> None:
        self.bind = bind
        self.config = config
        self.comm = comm or SingleComm()
        self.out = Path(out)
        self.resume = resume
        self.started = time.time() if started is None else started
        self.report = report or RunReport(self.out, self.comm.rank)
        self.steps_taken = 0
        self.samples = 0
        self.cold_start: float | None = None
        self._window = Window(WINDOW)
        self._seconds = 0.0
        self._timed_from = 0
        self._saved_at = 0.0
        self._saved = -1  # step of the newest checkpoint, and its digest
        self._digest = ""
        # step of the newest one that is complete on the disk
        self._safe = -1
        self._safe_at = 0.0
        self._exposed = (0, 0.0)  # most steps, with their seconds, that a crash could have cost
        self._saver: Saver | None = None
        self._data: dict[str, Any] = {}
        self.world: World | None = None

    def run(self) -> dict[str, Any]:
        """Train to the end of the configured steps; the summary, as `run.json` has it.

        Raises
        ------
        NeocpuError : of the kinds of `neocpu.errors`, on every rank. Stopped : a signal ended the
            run early.
        """
        keep_subnormals()
        try:
            with RunLock(self.out, self.comm, resume=self.resume):
                splits = open_splits(self.config, self.comm, self.out, self.report.tell)
                world, loader = self._prepare(splits)
                stop = StopSignal()
                try:
                    self._train(world, loader, splits, stop)
                finally:
                    stop.restore()
                return self._summary(world, splits)
        finally:
            roam()
            if self._saver is not None:
                self._saver.abandon()
            if self.world is not None:
                self.world.embedding.tbe.close()

    # ---- before the first step ----

    def _prepare(self, splits: Splits) -> tuple[World, Loader]:
        config = self.config
        comm = self.comm
        self._data = splits.description()
        pooling = splits.pooling_factors()
        plan = make_plan(config, comm, pooling)
        memory = memory_plan(config, plan, pooling, self.out / "rows")
        self._clear_rows()
        huge = self._check_room(plan, splits, memory)
        self.report.plan(plan, config.optimizer.sparse.state_floats)
        for line in (
            placement_lines(plan, memory, config.optimizer.sparse.state_floats)
            if memory.demands
            else ()
        ):
            self.report.tell(line)
        report = self.report
        warm_up(config, plan, comm, report.tell, memory.placements, report.compiling)
        if self.bind:
            bind_kernel_threads(comm)
        self.world = world = build(config, comm, plan, splits.dense_features, huge, memory)
        wanted = config.checkpoint
        loader = splits.loader("train")
        every = wanted.files_until_full(memory.over_ssd)
        self._saver = Saver(
            self.out,
            world,
            keep=wanted.keep,
            full_every=every,
            quantize="" if wanted.quantize == "none" else wanted.quantize,
            data=self._data,
            room=wanted.memory,
            background=True,
        )
        if self.resume:
            self._restore(world, loader)
        if config.memory.warm:
            warm_caches(world, loader, self.steps_taken > 0)
        return world, loader

    def _clear_rows(self) -> None:
        """Remove what runs that were killed have left of SSD files, maybe of more ranks."""
        error: NeocpuError | None = None
        try:
            for path in self.out.glob("rows/rank-*.h5") if self.comm.rank == 0 else ():
                remove(path)
        except StorageError as problem:
            error = problem
        except OSError as problem:
            error = StorageError(
                f"{self.out}/rows: cannot be cleared: {problem.strerror}; remove it"
            )
        self.comm.agree(error)

    def _check_room(self, plan: Plan, splits: Splits, memory: MemoryPlan) -> bool:
        """Memory of every rank, and disk for checkpoints (rank 0 looks); is there room for tables
        on huge pages?
        """
        config = self.config
        comm = self.comm
        steps = self._total_steps(splits.loader("train"))
        state = config.optimizer.sparse.state_floats
        samples = steps * config.training.batch_size
        lookups = {
            name: int(samples * factor) + 1 for name, factor in splits.pooling_factors().items()
        }
        error: NeocpuError | None = None
        huge = False
        try:
            host_ranks = int((comm.nodes == comm.node_of(comm.rank)).sum())
            rooms = memory.rooms(plan.tables, plan.local(comm.rank), state)
            slots = [room.slots for room in rooms]
            beside = [room.narrow for room in rooms]
            needs = [
                preflight.table_needs(plan, comm.rank, state, lookups, slots, page, beside)
                for page in (HUGE, preflight.PAGE)
            ]
            other = preflight.working_memory(config, plan) + config.checkpoint.memory
            huge = preflight.fits(needs[0], host_ranks, other)
            preflight.check_memory(needs[not huge], host_ranks, other)
            if comm.rank == 0:
                touched = splits.touchable_rows(samples)
                stored = [
                    t for t, name in zip(config.tables, memory.placements) if PLACEMENTS[name].ssd
                ]
                every = config.checkpoint.every_steps
                saves = -(-steps // every) if every else 1
                rows = preflight.row_file_needs(stored, state, touched, saves)
                preflight.check_rows(
                    memory.folder or self.out, rows, comm.size, memory.ssd, self.report.tell
                )
                tables = preflight.checkpoint_needs(config.tables, state, touched)
                dense = preflight.dense_bytes(config, splits.dense_features)
                keep = config.checkpoint.keep
                there = [p.stat().st_size for p in checkpoint.checkpoints(self.out)]
                based = min(
                    config.checkpoint.files_until_full(memory.over_ssd) - 1, 2
                )  # together they take no more than two whole ones
                preflight.check_checkpoints(
                    self.out, tables, dense, saves, keep, there, self.report.tell, based
                )
        except NeocpuError as problem:
            error = problem
        comm.agree(error)
        return huge

    def _restore(self, world: World, loader: Loader) -> None:
        path = checkpoint.latest(self.out, self.comm)
        if path is None:
            self.report.tell(f"no complete checkpoint in {self.out}: starting at step 0")
            return
        step = checkpoint.load(path, world, self._data, split="train", tell=self.report.tell)
        self.steps_taken = self._saved = self._safe = step
        epochs, step = divmod(self.steps_taken, loader.steps_per_epoch)
        rows = loader.dataset.rows
        self.samples = epochs * rows + min(step * loader.batch_size, rows)
        assert self._saver is not None
        self._saver.resume(path, self._saved)
        if self.steps_taken >= (total := self._total_steps(loader)):
            self.report.tell(
                f"nothing to train: {path.name} is at step {self.steps_taken} and the run ends at "
                f"step {total}; raise "
                "training.steps or training.epochs to go on"
            )

    def _total_steps(self, loader: Loader) -> int:
        training = self.config.training
        by_epochs = training.epochs * loader.steps_per_epoch
        return min(by_epochs, training.steps) if training.steps else by_epochs

    # ---- steps ----

    def _batches(self, loader: Loader, total: int) -> Iterator[Batch]:
        """Batches from the present position to the end."""
        at = self.steps_taken
        while at < total:
            epoch, step = divmod(at, loader.steps_per_epoch)
            yield from islice(loader.batches(epoch, step), total - at)
            at += loader.steps_per_epoch - step

    def _ahead(self, world: World, loader: Loader, total: int) -> Ahead:
        memory, plan = self.config.memory, world.embedding.memory
        batches = self._batches(loader, total)
        if plan is None or plan.plain:
            return Ahead(world.embedding, batches, 0, 0)
        known = memory.lookahead if POLICIES[memory.policy].next_use else 0
        return Ahead(world.embedding, batches, memory.prefetch, known)

    def _train(self, world: World, loader: Loader, splits: Splits, stop: StopSignal) -> None:
        total = self._total_steps(loader)
        every = self.config.eval.every_steps
        save_every = self.config.checkpoint.every_steps
        saver = self._saver
        ahead = self._ahead(world, loader, total)
        assert saver is not None
        with self.report.progress(total, self.steps_taken) as advance:
            while self.steps_taken < total:
                saver.poll()
                self._count_exposed(saver)
                if signal := self.comm.largest(stop.number):
                    self._save(last=True)
                    saver.finish()
                    ahead.close()
                    raise Stopped(signal, self.steps_taken)
                begun = time.perf_counter()
                batch, lookups = ahead.next()
                outcome = world.step(batch, self.steps_taken + 1, lookups)
                self._window.add(outcome.prediction, outcome.labels)
                self.steps_taken += 1
                self.samples += batch.samples
                self._seconds += time.perf_counter() - begun
                if self.cold_start is None:
                    self.cold_start = time.time() - self.started
                    # speed is that of the steps after the first
                    self._seconds = 0.0
                    self._timed_from = self.samples
                advance(self.steps_taken, batch.samples)
                if every and self.steps_taken % every == 0 and self.steps_taken < total:
                    self._measure(world, splits, ("valid",))
                if save_every and self.steps_taken % save_every == 0 and self.steps_taken < total:
                    self._save()

    def _measure(self, world: World, splits: Splits, names: tuple[str, ...]) -> dict[str, Any]:
        """Metrics of the last training batches and of the named splits, also to metrics.jsonl."""
        found = {"train": self._window.metrics(self.config.model.loss, self.comm)}
        for name in names:
            if splits.has(name):
                found[name] = evaluate(world, splits.loader(name).batches(0, 0))
        for name, metrics in found.items():
            self.report.metrics(self.steps_taken, self.samples, name, metrics)
        return found

    def _save(self, last: bool = False) -> None:
        """Begin to write a checkpoint; `last`: the run ends with it."""
        saver = self._saver
        assert saver is not None
        if self._saved != self.steps_taken or (last and saver.rounded):
            saver.finish()
            self._count_exposed(saver)
            self._digest = saver.save(self.steps_taken, last)
            self._saved = self.steps_taken
            self._saved_at = self._seconds

    def _count_exposed(self, saver: Saver) -> None:
        """If another checkpoint is complete: what a crash just before would have cost."""
        if saver.safe != self._safe:
            self._exposed = max(
                self._exposed,
                (self.steps_taken - max(self._safe, 0), self._seconds - self._safe_at),
            )
            self._safe = saver.safe
            self._safe_at = self._saved_at

    # ---- after the last step ----

    def _summary(self, world: World, splits: Splits) -> dict[str, Any]:
        require_subnormals()  # no library changed the arithmetic meanwhile
        metrics = self._measure(world, splits, ("valid", "test"))
        traffic = self.comm.traffic()  # of training and evaluation; checkpoints come after
        self._save(last=True)
        assert self._saver is not None
        self._saver.finish()
        self._count_exposed(self._saver)
        rate = (self.samples - self._timed_from) / self._seconds if self._seconds else 0.0
        summary = {
            "digest": self._digest or digest(world, self.steps_taken),
            "steps": self.steps_taken,
            "samples": self.samples,
            "seconds": self._seconds,
            "samples_per_second": rate,
            "cold_start_seconds": self.cold_start,
            "metrics": {name: found.to_dict() for name, found in metrics.items()},
            "memory_per_rank": self.comm.largest(peak_memory()),
            "ranks": self.comm.size,
            "threads": self.config.training.threads,
            "plan": world.plan.to_dict(),
            "traffic": traffic,
            "checkpoints": self._saver.report(),
            "placements": placed(world.plan, world.embedding.memory),
            "tiers": self._tiers(world),
            "stall_seconds": self.comm.largest(int(1e6 * world.embedding.tbe.stalled)) / 1e6,
            "crash_cost": {"steps": self._exposed[0], "seconds": self._exposed[1]},
            "versions": versions(),
        }
        self.report.finish(summary)
        return summary

    def _tiers(self, world: World) -> list[dict[str, Any]]:
        """Counts of the tiers of cached tables, summed over ranks: a table's levels one after the
        other, nearest first.
        """
        mine = json.dumps(world.embedding.tbe.tiers()).encode()
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for part in self.comm.allgather_bytes(mine):
            for table, levels in json.loads(part).items():
                for level in levels:
                    entry = found.setdefault(
                        (table, level["tier"]), {"table": table, "tier": level["tier"]}
                    )
                    for name, count in level.items():
                        if name != "tier":
                            entry[name] = entry.get(name, 0) + count
        return list(found.values())
