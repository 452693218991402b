"""What would a run be? Its steps, plan, memory, disk and time, without starting or writing any.

Where the train data is not converted yet, rows and lookups are what its first megabyte lets
expect (`ExpectedData`).
Where not even that can be, plans count one lookup per sample and feature, and what depends on the
number of samples is left out, unless `training.steps` says how many steps there are.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from neocpu.core.errors import NeocpuError
from neocpu.core.units import count_text, duration_text, seconds_text
from neocpu.ingest.formats.files.folders import all_files
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import SingleComm
from neocpu.plan.cost.row_curves import RowCurve
from neocpu.plan.machines import machine_file
from neocpu.tables.specs.optimizer_groups import NO_SCALING, scaling_text
from neocpu.train.before import preflight
from neocpu.train.before.conversions import convert_options
from neocpu.train.before.datasets import converted
from neocpu.train.before.kernel_markers import expected_seconds, missing_kernels
from neocpu.train.before.machine_plans import question_of
from neocpu.train.before.plans import memory_plan, plan_for_data, table_lines
from neocpu.train.before.room import (
    PlannedRun,
    beyond_addresses,
    beyond_home,
    checkpoint_room,
    needs_once,
    rank_needs,
    row_folder,
)
from neocpu.train.before.scenario import LogFacts
from neocpu.train.before.train_facts import TrainFacts
from neocpu.train.config.config import Config
from neocpu.train.config.keys import resolved


@dataclass(frozen=True)
class ExpectedData:
    """The train data of a config, as estimated.

    config : with the batch size and rates that follow from the number of samples. lookups : of each
    feature, per sample.
    """

    config: Config
    train_rows: int
    dense_features: int
    lookups: Mapping[str, float]

    def pooling_factors(self) -> dict[str, float]:
        """Mean lookups per sample of each table."""
        return {
            table.name: sum(self.lookups.get(name, 0.0) for name in table.features)
            for table in self.config.tables
        }

    def distinct_rows(self) -> dict[str, float]:
        """Nothing: a megabyte does not say how codes repeat."""
        return {}

    def row_curves(self) -> dict[str, RowCurve]:
        """Nothing: what rows codes will have is not known before they are converted."""
        return {}

    def touchable_rows(self, samples: int) -> dict[str, int]:
        """Rows of each table that training on so many samples can touch, at most."""
        # another epoch looks up the same rows again
        seen = min(samples, self.train_rows)
        pooling = self.pooling_factors()
        return {
            table.name: min(table.rows, round(seen * pooling[table.name]))
            for table in self.config.tables
        }


def expected_data(config: Config) -> ExpectedData:
    """The raw train data of a config. Raises NeocpuError where they cannot be read."""
    from neocpu.ingest.dataset.convert import expected_dataset

    data = config.data
    options = convert_options(config, "train")
    expected = expected_dataset(all_files(data.train), data.format, options)
    rows = round(expected.rows * (data.split[0] if data.split else 1.0))
    return ExpectedData(
        config=config.for_samples(rows),
        train_rows=rows,
        dense_features=expected.dense_columns,
        lookups={name: count / max(expected.rows, 1) for name, count in expected.lookups.items()},
    )


def dry_run(config: Config, ranks: int, out: Path) -> Iterator[str]:
    """Lines about a run of so many ranks on this host, whose results would be in `out`.

    Raises NeocpuError as the run itself would where it cannot be planned.
    """
    comm = SingleComm()
    splits = converted(config, comm)
    data, reason = (splits, "") if splits is not None else _expected(config)
    rates = splits.rates if splits is not None else {}
    if data is not None:
        # with the batch size and rates that follow from the number of samples
        config = data.config
    pooling = data.pooling_factors() if data else {}
    plan = plan_for_data(config, comm, data, ranks)
    memory = memory_plan(config, plan, pooling, row_folder(out))
    state_floats = config.optimizer.sparse.state_floats
    yield plan.text(state_floats)
    yield from table_lines(config, plan, memory)
    steps = _steps(config, data)
    yield _data_line(config, data, steps, reason)
    if rates:
        yield scaling_text(config.training.batch_size, rates)
    elif config.optimizer.scaling.rule != NO_SCALING:
        yield "rates: optimizer.scaling derives them once the number of train samples is known"
    if budget := config.memory.activations:
        yield (
            f"activations: {preflight.human(budget)} of a rank at most; a rehearsal before the "
            "first step chooses what leaves"
        )
    yield _kernels_line(missing_kernels(config, plan, memory.placements))
    yield _tables_line(config)
    # how many rows are touched follows from the lookups of the data
    facts = _any_data(config) if data is None else data
    run = PlannedRun(config, plan, memory, facts, steps or _steps(config, facts), out)
    assumed = ", with each lookup in a row of its own" if data is None else ""
    fits, lines = _memory_lines(run, plan, assumed)
    yield from lines
    if data is not None:
        yield from _disk_lines(run)
        if warning := beyond_home(run, range(ranks)):
            yield warning
    if data is not None and not fits:
        yield "time: not known, as the run does not fit"
    else:
        yield _time_line(config, plan, data, steps, out)
    if config.readers.count:
        from neocpu.train.before.reader_rate import readers_line  # and parsers

        yield readers_line(config, _seconds(config, plan, data, out)[0])


def _expected(config: Config) -> tuple[ExpectedData | None, str]:
    """(what raw train data are expected to be, "") or (None, why nothing is known of them)."""
    try:
        data = expected_data(config)
    except (NeocpuError, OSError) as error:
        return None, str(error)
    return (data, "") if data.train_rows else (None, "")


def _any_data(config: Config) -> ExpectedData:
    """Data of which nothing is known: they may touch every row."""
    lookups = {name: 1.0 for table in config.tables for name in table.features}
    rows = max((table.rows for table in config.tables), default=0)
    return ExpectedData(config, rows, 0, lookups)


def _steps_per_epoch(config: Config, data: TrainFacts) -> int:
    return -(-data.train_rows // config.training.batch_size)


def _steps(config: Config, data: TrainFacts | None) -> int:
    """Steps of the run; 0 where nobody knows."""
    training = config.training
    if data is None:
        return training.steps
    by_epochs = training.epochs * _steps_per_epoch(config, data)
    return min(by_epochs, training.steps or by_epochs)


def _data_line(config: Config, data: TrainFacts | None, steps: int, reason: str) -> str:
    batch = config.training.batch_size
    if data is not None:
        estimated = isinstance(data, ExpectedData)
        rows = f"{'about ' * estimated}{data.train_rows:,} samples"
        epoch = f"{_steps_per_epoch(config, data):,} an epoch"
        how = "; estimated, as the log is converted when the run starts" * estimated
        return f"data: {rows}; {steps:,} steps of {batch:,}, {epoch}{how}"
    text = "data: not converted yet, and its rows and lookups are not known"
    text += f" ({reason})" if reason else ""
    return f"{text}; at most {steps:,} steps of {batch:,}" if steps else text


def _tables_line(config: Config) -> str:
    """Bytes of all tables, as if every row were touched."""
    state_floats = config.optimizer.sparse.state_floats
    weights = sum(table.rows * table.row_bytes(table.dim, (0, 0)) for table in config.tables)
    whole = sum(table.rows * table.row_bytes(table.dim, state_floats) for table in config.tables)
    return (
        f"tables: {preflight.human(weights)} of weights and {preflight.human(whole - weights)} of "
        "optimizer state, once all rows are touched"
    )


def _kernels_line(missing: int) -> str:
    if not missing:
        return "kernels: compiled already"
    seconds = duration_text(expected_seconds(missing))
    return f"kernels: up to {missing} to be compiled before the first step, about {seconds}"


def _memory_lines(run: PlannedRun, plan: Plan, assumed: str) -> tuple[bool, list[str]]:
    """Whether a run fits into memory, and lines about that of the fullest rank and of this host.

    assumed : of the data, where they are not known.
    """
    needs = [rank_needs(run, rank) for rank in range(plan.ranks)]
    per_rank = [sum(need.bytes for need in rank.small) + rank.working for rank in needs]
    once = needs_once(run)
    total = sum(per_rank) + once
    free = preflight.available_memory()
    fits = total <= free
    verdict = "fits" if fits else "does not fit"
    line = (
        f"memory: up to {preflight.human(max(per_rank))} of the fullest rank, "
        f"{preflight.human(total)} on this host, of which {preflight.human(free)} are free: "
        f"{verdict}{assumed}"
    )
    fullest = needs[per_rank.index(max(per_rank))]
    largest = ", ".join(f"{need.table} {preflight.human(need.bytes)}" for need in fullest.small[:3])
    lines = [line, f"  largest tables of that rank: {largest or 'none'}"]
    if problem := beyond_addresses(max(rank.mapped for rank in needs)):
        return False, [*lines, f"addresses: do not fit: {problem}"]
    return fits, lines


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


def _time_line(config: Config, plan: Plan, data: TrainFacts | None, steps: int, out: Path) -> str:
    """Seconds of a step, an epoch and the run."""
    seconds, source = _seconds(config, plan, data, out)
    if not seconds:
        return f"time: not known{source}"
    rate = count_text(config.training.batch_size / seconds)
    parts = [f"about {seconds_text(seconds)} a step, {rate} samples/s"]
    if data is not None:
        epoch = _steps_per_epoch(config, data) * seconds
        parts.append(f"{duration_text(epoch)} an epoch")
    if steps:
        parts.append(f"{duration_text(steps * seconds)} for {steps:,} steps")
    return f"time: {', '.join(parts)}; {source}, without evaluation and checkpoints"


def _seconds(config: Config, plan: Plan, data: TrainFacts | None, out: Path) -> tuple[float, str]:
    """(seconds of a step, how they are known): as measured by the newest such run, else by the
    machine file of this host and the planner's cost model; (0, what would help) if by neither.
    """
    runs = sorted(out.parent.glob(f"{out.name}*/run.json"), key=lambda path: path.stat().st_mtime)
    for path in reversed(runs):
        if seconds := _measured(config, plan, path):
            return seconds, f"as in {path.parent}"
    if data is None:
        return 0.0, ", as the train data are not"
    path = machine_file.this_machine_path()
    if not path.exists():
        return 0.0, "; `neocpu calibrate` measures this machine, once"
    try:
        question = question_of(
            config,
            machine_file.load(path),
            plan.ranks,
            plan.ranks_per_node,
            LogFacts.of(data),
        )
        # priced as it would run: a plan file may place tables itself
        priced = question.placed_as(plan.placements).price(plan)
    except NeocpuError as error:
        return 0.0, f" ({error})"
    return priced.seconds, f"predicted from {path}"


def _measured(config: Config, plan: Plan, path: Path) -> float:
    """Seconds of a step of a run that was like this one; 0 if it was not, or took one step only."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        run = json.loads(path.read_text())
        ours = resolved(config)
        same = all(run["config"][name] == ours[name] for name in ("model", "tables"))
        same &= run["config"]["training"]["batch_size"] == config.training.batch_size
        rate = float(run["samples_per_second"])
        if same and run["ranks"] == plan.ranks and rate > 0:
            return config.training.batch_size / rate
    return 0.0
