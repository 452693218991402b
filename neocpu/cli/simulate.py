"""`neocpu simulate`: how fast would a model train on a machine, and what limits it?"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.options import as_record, option_with_default, set_option
from neocpu.cli.screen.targets import check_target, force_option
from neocpu.core.errors import ConfigError
from neocpu.train.config import config as configs

if TYPE_CHECKING:
    from neocpu.plan.simulation.scenario import Scenario, Simulated
    from neocpu.plan.simulation.sweep import Planner
    from neocpu.plan.simulation.what_if import WhatIf
    from neocpu.train.before.scenario import Course

path_type = click.Path(path_type=Path)


@dataclass(frozen=True)
class CourseOptions:
    """How steps go, as `Course`."""

    pipeline: str
    algorithm: str
    sums: str
    steps: int


@dataclass(frozen=True)
class AnswerOptions:
    """What is asked for, and which files show it."""

    trace: Path | None
    scaling: Path | None
    target_qps: float | None
    force: bool

    def check(self, sources: list[Path]) -> None:
        """Raise UsageError and DataError for files that may not be replaced; sources : are read."""
        for target in (self.trace, self.scaling):
            if target:
                check_target(target, self.force, sources)
                sources = [*sources, target]


@click.command()
@click.argument("config", type=path_type)
@option_with_default("--machine", default="zionex", help="A preset, or a .toml file.")
@click.option(
    "--ranks", type=click.IntRange(1), default=None, help="Ranks; by default all of the machine."
)
@option_with_default(
    "--planner",
    default="search",
    help="One of plan/search/planners.py, or size: balanced by bytes alone.",
)
@option_with_default(
    "--pipeline",
    default="full",
    help="off; input: inputs of the next batch during a step; full: all that can overlap does.",
)
@option_with_default(
    "--algorithm",
    default="measured",
    help="Of exchanges: the machine's curves, or pairwise, ring, tree, hierarchical at its peaks, "
    "or the best of these for each.",
)
@click.option("--sums", default="", help="Algorithm of dense sums; by default that of exchanges.")
@option_with_default("--steps", type=click.IntRange(1), default=4, help="Measured.")
@click.option("--trace", type=path_type, help="Write a trace for ui.perfetto.dev (.json).")
@click.option("--scaling", type=path_type, help="Write a picture of 8 to 4,096 ranks (.svg).")
@click.option("--target-qps", type=float, help="Find the fewest nodes that reach it.")
@force_option("the files of --trace and --scaling")
@set_option("Override a key of the config, of the machine (machine.nic=2x), or of the simulator.")
@as_record("course", CourseOptions)
@as_record("answer", AnswerOptions)
def simulate(
    config: Path,
    machine: str,
    ranks: int | None,
    planner: str,
    overrides: tuple[str, ...],
    course: CourseOptions,
    answer: AnswerOptions,
) -> None:
    """Say how fast CONFIG would train on a machine, and what limits it.

    Nothing is run. Keys of the simulator: machine.*, wires.*, work.*, cache.share, readers.*,
    jitter.*, faults.*; they stand in docs/zionex.md.
    """
    answer.check([config, Path(machine)])
    from neocpu.plan.simulation.planners import placed_with
    from neocpu.plan.simulation.report import report_lines
    from neocpu.plan.simulation.scenario import simulate as run_scenario
    from neocpu.plan.simulation.what_if import changes
    from neocpu.train.before.scenario import Course

    # --set has keys of three things here: the config, the machine and the simulator.
    changed = changes(overrides)
    settings = configs.load(config, changed.config)
    place = placed_with(planner, settings.parallel.plan)
    step = _scenario(settings, machine, ranks, changed, Course(**asdict(course)))
    if answer.target_qps is not None:
        _print_smallest(step, place, answer.target_qps)
    else:
        outcome = run_scenario(step, place(step))
        for line in report_lines(outcome):
            click.echo(line)
        if answer.trace:
            _write_trace(outcome, answer.trace)
    if answer.scaling:
        _write_scaling(step, place, answer.scaling, settings.source)


def _scenario(
    settings: configs.Config, name: str, ranks: int | None, changed: "WhatIf", course: "Course"
) -> "Scenario":
    """What is to be simulated; lookups per bag come from converted train data, if there are any."""
    from neocpu.parallel.transport.comm import SingleComm
    from neocpu.plan.machines.machine_file import load
    from neocpu.train.before.datasets import converted
    from neocpu.train.before.scenario import LogFacts, scenario_of

    machine = load(name)
    count = ranks or changed.of_machine(machine).ranks
    splits = converted(settings, SingleComm())
    step = scenario_of(settings, machine, count, changed, course, LogFacts.of(splits))
    if not splits and not changed.pooling:
        click.echo("no converted train data: one lookup per bag; say otherwise by work.pooling")
    return step


def _print_smallest(step: "Scenario", place: "Planner", target: float) -> None:
    """The fewest nodes that reach a number of samples a second."""
    from neocpu.plan.simulation.report import sweep_lines
    from neocpu.plan.simulation.sweep import MOST_RANKS, smallest

    if not target > 0:
        raise ConfigError(f"--target-qps: {target:g} must be above 0")
    best, tried = smallest(step, place, target, MOST_RANKS)
    # No size holds the tables: speed is not the question.
    if not tried:
        raise ConfigError(
            f"--target-qps: the tables do not fit {MOST_RANKS} ranks of {step.machine.name}"
        )
    # The search tries sizes in an order of its own; people read them ascending.
    tried.sort(key=lambda outcome: outcome.scenario.ranks)
    for line in sweep_lines(tried):
        click.echo(line)
    if best is None:
        raise ConfigError(
            f"--target-qps: {target:,.0f} samples/s are not reached by {MOST_RANKS} ranks of "
            f"{step.machine.name}"
        )
    nodes = best.scenario.layout.everybody.nodes
    click.echo(f"{nodes} node(s) of {step.machine.name} are the fewest for {target:,.0f} samples/s")


def _write_trace(outcome: "Simulated", path: Path) -> None:
    from neocpu.plan.machines.machine_file import save
    from neocpu.plan.simulation.trace import trace_text, traced_ranks

    scenario = outcome.scenario
    save(path, trace_text(outcome.timeline, f"{scenario.ranks} ranks of {scenario.machine.name}"))
    ranks = len(traced_ranks(outcome.timeline))
    which = "all ranks" if ranks == scenario.ranks else f"{ranks} of {scenario.ranks} ranks"
    click.echo(f"the trace of {which} is in {path}; open it in ui.perfetto.dev")


def _write_scaling(step: "Scenario", place: "Planner", path: Path, name: str) -> None:
    from neocpu.plan.machines.machine_file import save
    from neocpu.plan.simulation.picture import scaling_svg
    from neocpu.plan.simulation.report import sweep_lines
    from neocpu.plan.simulation.sweep import MOST_RANKS, rank_counts, sweep

    outcomes, unfit = sweep(step, place, rank_counts(MOST_RANKS))
    if not outcomes:
        raise ConfigError(f"--scaling: the tables fit no machine of {unfit} ranks")
    click.echo("")
    for line in sweep_lines(outcomes):
        click.echo(line)
    if unfit:
        click.echo(f"the tables do not fit {', '.join(map(str, unfit))} ranks")
    save(path, scaling_svg(outcomes, f"{Path(name).stem} on {step.machine.name}"))
    click.echo(f"the picture is in {path}")
