"""What would a run be? Its steps, plan, memory, disk and time, without starting or writing any.

Where the train data is not converted yet, nobody knows its rows and lookups: plans then count one
lookup per sample and feature, and what depends on the number of samples is left out, unless
`training.steps` says how many steps there are.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from neocpu.core.errors import NeocpuError
from neocpu.core.units import count_text, duration_text
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import SingleComm
from neocpu.plan.machines import machine_file
from neocpu.tables.specs.batch_scaling import NO_SCALING, scaling_text
from neocpu.train.before import preflight
from neocpu.train.before.compile_time import expected_seconds
from neocpu.train.before.datasets import Splits, converted
from neocpu.train.before.kernel_markers import missing_kernels
from neocpu.train.before.machine_plans import LogFacts, placed_as, question_of
from neocpu.train.before.plans import make_plan, memory_plan, plans_in_seconds, table_lines
from neocpu.train.before.room import PlannedRun, checkpoint_room, needs_once, rank_needs
from neocpu.train.before.row_files import row_folder
from neocpu.train.config.config import Config
from neocpu.train.step.schedule import BatchSchedule


def dry_run(config: Config, ranks: int, out: Path) -> Iterator[str]:
    """Lines about a run of so many ranks on this host, whose results would be in `out`.

    Raises NeocpuError as the run itself would where it cannot be planned.
    """
    comm = SingleComm()
    splits = converted(config, comm)
    if splits is not None:
        # with the batch size and rates that follow from the number of samples
        config = splits.config
    pooling = splits.pooling_factors() if splits else {}
    distinct = splits.distinct_rows() if splits and plans_in_seconds(config) else None
    plan = make_plan(config, comm, pooling, ranks, distinct)
    memory = memory_plan(config, plan, pooling, row_folder(out))
    state_floats = config.optimizer.sparse.state_floats
    yield plan.text(state_floats)
    yield from table_lines(config, plan, memory)
    steps = _steps(config, splits)
    yield _data_line(config, splits, steps)
    if splits is not None and splits.rates:
        yield scaling_text(config.training.batch_size, splits.rates)
    elif config.optimizer.scaling.rule != NO_SCALING:
        yield "rates: optimizer.scaling derives them once the number of train samples is known"
    yield _kernels_line(missing_kernels(config, plan, memory.placements))
    if splits is not None:
        # how many rows are touched follows from the lookups of the data
        run = PlannedRun(config, plan, memory, splits, steps, out)
        yield from _memory_lines(run, plan)
        yield from _disk_lines(run)
    yield _time_line(config, plan, splits, steps)


def _steps(config: Config, splits: Splits | None) -> int:
    """Steps of the run; 0 where nobody knows."""
    training = config.training
    if splits is None:
        return training.steps
    return BatchSchedule(splits.loader("train"), training.epochs, training.steps).total_steps


def _data_line(config: Config, splits: Splits | None, steps: int) -> str:
    batch = config.training.batch_size
    if splits is not None:
        rows = splits.loader("train").dataset.rows
        return f"data: {rows:,} samples; {steps:,} steps of {batch:,}"
    text = "data: not converted yet, so rows and lookups are not known; the run converts it first"
    if steps:
        text += f"; at most {steps:,} steps of {batch:,}"
    return f"{text}, or `neocpu data convert` does"


def _kernels_line(missing: int) -> str:
    if not missing:
        return "kernels: compiled already"
    seconds = duration_text(expected_seconds(missing))
    return f"kernels: up to {missing} to be compiled before the first step, about {seconds}"


def _memory_lines(run: PlannedRun, plan: Plan) -> Iterator[str]:
    """Memory of the fullest rank and of this host, against what is free."""
    needs = [rank_needs(run, rank) for rank in range(plan.ranks)]
    per_rank = [sum(need.bytes for need in rank.small) + rank.working for rank in needs]
    once = needs_once(run)
    total = sum(per_rank) + once
    free = preflight.available_memory()
    verdict = "fits" if total <= free else "does not fit"
    yield (
        f"memory: up to {preflight.human(max(per_rank))} of the fullest rank, "
        f"{preflight.human(total)} on this host, of which {preflight.human(free)} are free: "
        f"{verdict}"
    )
    fullest = needs[per_rank.index(max(per_rank))]
    largest = ", ".join(f"{need.table} {preflight.human(need.bytes)}" for need in fullest.small[:3])
    yield f"  largest tables of that rank: {largest or 'none'}"


def _disk_lines(run: PlannedRun) -> Iterator[str]:
    """Checkpoints, against what is free in the folder of results."""
    needs = checkpoint_room(run)
    most = needs.files * needs.one
    free = preflight.free_bytes(run.out)
    yield (
        f"disk: {needs.saves} checkpoints of up to {preflight.human(needs.one)}, up to "
        f"{preflight.human(most)} at a time in {run.out}, where {preflight.human(free)} are free: "
        f"{'fits' if most <= free else 'may not fit'}"
    )


def _time_line(config: Config, plan: Plan, splits: Splits | None, steps: int) -> str:
    """Seconds of the steps, by the machine file of this host and the planner's cost model."""
    path = machine_file.this_machine_path()
    if not path.exists():
        return "time: not known; `neocpu calibrate` measures this machine, once"
    try:
        question = question_of(
            config,
            machine_file.load(path),
            plan.ranks,
            plan.ranks_per_node,
            LogFacts.of(splits),
        )
        # priced as it would run: a plan file may place tables itself
        placements = placed_as(plan, question.capacity)
        seconds = replace(question, placements=placements).price(plan).seconds
    except NeocpuError as error:
        return f"time: not known ({error})"
    rate = config.training.batch_size / seconds
    text = f"time: about {1e3 * seconds:,.1f} ms a step, {count_text(rate)} samples/s"
    if steps:
        text += f", {duration_text(steps * seconds)} for {steps:,} steps"
    return f"{text}; predicted from {path}, without evaluation and checkpoints"
