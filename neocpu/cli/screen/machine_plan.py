"""`neocpu plan --machine`: how long would a step take there, why, and what if it does not fit?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.core.errors import ConfigError, PlanError
from neocpu.parallel.sharding.plan import is_plan_file
from neocpu.parallel.transport.comm import SingleComm

if TYPE_CHECKING:
    from neocpu.parallel.sharding.plan import Plan
    from neocpu.plan.files.plan_file import MadeFor
    from neocpu.plan.search.answer import Answer
    from neocpu.plan.search.question import PlanQuestion
    from neocpu.plan.simulation.what_if import WhatIf
    from neocpu.train.config.config import Config


@dataclass(frozen=True)
class MachineOptions:
    """Options of the command that need a machine."""

    machine: str
    ranks_per_node: int | None
    planner: str | None
    cost_model: str | None
    reserve: float | None
    explain: tuple[str, ...]
    verbose: bool
    svg: Path | None
    present: Path | None
    most_moved: float | None
    beside: tuple[Path, ...]

    def check(self) -> None:
        """Raise UsageError for options that have no effect without a machine."""
        for name, value in vars(self).items():
            # a reserve of 0 says something, a flag that is not set does not
            if value not in (None, "", ()) and value is not False and not self.machine:
                option = name.replace("_", "-")
                raise click.UsageError(f"--{option} needs --machine, a preset or a .toml file")
        if self.most_moved is not None and not self.present:
            raise click.UsageError("--most-moved needs --present, the plan in use")

    def check_groups(self, replica_groups: int) -> None:
        """Raise ConfigError for options that know one replica group."""
        for option in ("svg", "present", "beside"):
            if replica_groups > 1 and getattr(self, option):
                raise ConfigError(
                    f"parallel.replica_groups: --{option} knows plans of one group, and this one "
                    f"has {replica_groups}; leave it out"
                )


def given_plan(settings: "Config", path: Path, ranks: int) -> "Plan":
    """The plan that TorchRec made. Raises ConfigError and PlanError for one that does not fit."""
    from neocpu.plan.files import plan_file, torchrec_plan
    from neocpu.train.before.plans import plan_of_file, workload

    groups = settings.parallel.replica_groups
    file = torchrec_plan.loads(plan_file.read_text(path), str(path), ranks, groups)
    per_node = settings.parallel.ranks_per_node or None
    return plan_of_file(settings, file, ranks, per_node, workload(settings, {}))


def print_machine_plan(
    settings: "Config",
    ranks: int | None,
    options: MachineOptions,
    from_torchrec: Path | None,
    changed: "WhatIf",
) -> tuple["Plan", tuple[str, ...], "MadeFor"]:
    """Plan, explain and draw; the plan, its placements, and what it was made for.

    Raises PlanError, after remedies were printed, for tables that do not fit.
    """
    from neocpu.parallel.exchange.wire_formats import refuse_cut_blocks
    from neocpu.plan.files.plan_file import MadeFor
    from neocpu.plan.show.explain import Explainer
    from neocpu.plan.show.moves import moved_line, planned_anew
    from neocpu.plan.show.remedies import remedy_lines

    names = [table.name for table in settings.tables]
    for name in options.explain:
        if name not in names:
            raise ConfigError(f"--explain: the config has no table {name!r}")
    question = _question(settings, ranks, options, changed)
    given = None
    if from_torchrec:
        given = given_plan(settings, from_torchrec, question.layout.everybody.ranks)
    present = _present_plan(options.present, question) if options.present else None
    try:
        if present and options.most_moved is not None:
            answer = planned_anew(question, present, int(1e9 * options.most_moved))
        else:
            question, answer = _answer(settings, question, given)
    # What would help comes before the error, which is the last line that is read.
    except PlanError:
        for line in remedy_lines(question):
            click.echo(line)
        raise
    refuse_cut_blocks(answer.plan, question.work.wires.specs)
    explainer = Explainer(question, answer)
    for line in () if options.explain else explainer.overview(options.verbose):
        click.echo(line.rstrip())
    for number, name in enumerate(options.explain):
        for line in ["", *explainer.table(name)][number == 0 :]:
            click.echo(line)
    if settings.readers.count and not options.explain:
        from neocpu.train.before.reader_rate import readers_line  # and parsers

        click.echo(readers_line(settings, answer.seconds))
    if present:
        click.echo(moved_line(question, present, answer))
    if options.svg:
        _draw(question, answer, options.svg, settings, present)
    note = MadeFor(
        machine=question.machine.name,
        cost_model=question.cost_model,
        planner=answer.planner,
        batch_size=answer.work.batch * question.layout.replica_groups,
        step_seconds=answer.seconds,
        bound_seconds=answer.bound,
    )
    return _of_all_groups(answer), answer.placements, note


def _of_all_groups(answer: "Answer") -> "Plan":
    """The plan of an answer, which is about one replica group."""
    layout = answer.layout
    if layout.replica_groups == 1:
        return answer.plan
    return answer.plan.in_groups(layout.replica_groups, layout.everybody.ranks_per_node)


def _question(
    settings: "Config", ranks: int | None, options: MachineOptions, changed: "WhatIf"
) -> "PlanQuestion":
    """What the planner is asked; lookups come from converted train data, if there are any."""
    from neocpu.plan.machines.machine_file import load
    from neocpu.train.before.datasets import converted
    from neocpu.train.before.machine_plans import question_of
    from neocpu.train.before.scenario import LogFacts

    machine = load(options.machine)
    splits = converted(settings, SingleComm())
    question = question_of(
        settings,
        machine,
        ranks or changed.of_machine(machine).ranks,
        options.ranks_per_node,
        # without converted data planners count one lookup per sample and feature
        LogFacts.of(splits),
        options.planner or "search",
        options.cost_model or "neo",
        changed,
    )
    options.check_groups(question.layout.replica_groups)
    if options.reserve is not None:
        question = replace(question, reserved=options.reserve)
    return replace(question, taken=_taken(question, options.beside))


def _taken(question: "PlanQuestion", beside: Sequence[Path]) -> tuple[tuple[int, int, int], ...]:
    """Bytes of hbm, ddr and ssd that other jobs' plans hold on each rank; () without any.

    Raises ConfigError for a config whose plan does not say of each table where it is.
    """
    import numpy as np

    from neocpu.train.before.machine_plans import question_of
    from neocpu.train.config import config as configs

    layout = question.layout
    taken = np.zeros((layout.ranks, 3), np.int64)
    for path in beside:
        settings = configs.load(path)
        spec = settings.parallel.plan
        if not (isinstance(spec, str) and is_plan_file(spec)):
            raise ConfigError(f"--beside {path}: its parallel.plan must be a plan file")
        other = question_of(settings, question.machine, layout.ranks, layout.ranks_per_node)
        plan = _present_plan(Path(spec), other)
        taken += other.placed_as(plan.placements).price(plan).memory
    return tuple((a, b, c) for a, b, c in taken.tolist()) if beside else ()


def _answer(
    settings: "Config", question: "PlanQuestion", given: "Plan | None"
) -> tuple["PlanQuestion", "Answer"]:
    """The planner's answer, or the price of a plan that is given or that a file holds whole."""
    from neocpu.plan.files import plan_file
    from neocpu.plan.files.bound_plan import bind
    from neocpu.train.before.plans import make_plan

    spec = settings.parallel.plan
    if given is None and isinstance(spec, str) and is_plan_file(spec):
        ranks = question.layout.everybody.ranks
        planned = bind(plan_file.load(spec), question.tables, ranks)
        if not planned.is_whole:
            names = (table.name for table in question.tables)
            schemes = dict(zip(names, planned.schemes))
            question = replace(question, spec=schemes, fixed=planned.fixed)
            question = question.placed_as(planned.placements)
            return question, question.answer()
        given = make_plan(settings, SingleComm(), {}, ranks)
    elif given is None:
        return question, question.answer()
    question = question.placed_as(given.placements)
    return question, question.price(given, "file" if is_plan_file(spec) else "torchrec")


def _present_plan(path: Path, question: "PlanQuestion") -> "Plan":
    """The plan in use, which says of each table where it is."""
    from neocpu.plan.files import plan_file
    from neocpu.plan.files.bound_plan import bind

    planned = bind(plan_file.load_one_group(path), question.tables, question.layout.ranks)
    if not planned.is_whole:
        raise ConfigError(f"{path}: a plan in use must say of each table where it is")
    return planned.plan(question.tables, question.layout.ranks, question.layout.ranks_per_node)


def _draw(
    question: "PlanQuestion",
    answer: "Answer",
    path: Path,
    settings: "Config",
    present: "Plan | None",
) -> None:
    """The picture of a plan, beside the plan in use if there is one."""
    from neocpu.plan.machines.machine_file import save
    from neocpu.plan.show.plan_svg import plan_svg

    title = Path(settings.source).stem
    in_use = question.placed_as(present.placements).price(present) if present else None
    save(path, plan_svg(question, answer, title, settings.training.leaves, in_use))
    click.echo(f"the picture is in {path}")
