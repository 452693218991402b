"""`neocpu course`: ten units, from a DLRM of your own to a run on four ranks with tiers."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from neocpu.oracle.course.unit import CourseUnit

UNIT = click.argument("number", metavar="UNIT", type=int)


@click.group(invoke_without_command=True)
@click.pass_context
def course(context: click.Context) -> None:
    """Write such a system's parts yourself; see what is wrong, and why (docs/learn.md).

    Without a command: list the units, and which of them the files of this folder have passed.
    """
    if context.invoked_subcommand is not None:
        return
    from neocpu.oracle.course.journal import Journal
    from neocpu.oracle.course.units import UNITS

    journal = Journal(Path())
    states = {
        number: journal.state(number, _file_of(number)) for number in range(1, len(UNITS) + 1)
    }
    for number, unit in enumerate(UNITS, 1):
        state = states[number]
        line = f"{number:2}  {unit.title:32} {state}".rstrip()
        click.secho(line, fg="green" if state == "passed" else None)
    coming = next((n for n, state in states.items() if state != "passed"), None)
    if coming is None:
        click.echo("all units are passed")
        return
    verb = "check" if _file_of(coming).exists() else "start"
    click.echo(f"\nnext: {_page(UNITS[coming - 1], coming)}, then `neocpu course {verb} {coming}`")


def _file_of(number: int) -> Path:
    return Path(f"my{number}.py")


def _page(unit: "CourseUnit", number: int) -> str:
    """Where a unit is explained."""
    return f"docs/course/{number:02}_{unit.name}.md"


def _unit(number: int) -> "CourseUnit":
    """The unit of that number. Raises UsageError if there is none."""
    from neocpu.oracle.course.units import UNITS

    if not 1 <= number <= len(UNITS):
        raise click.BadParameter(f"there are the units 1 to {len(UNITS)}", param_hint="UNIT")
    return UNITS[number - 1]


@course.command()
@UNIT
def start(number: int) -> None:
    """Write myUNIT.py, with the functions to be written; an existing one stays."""
    from neocpu.core.errors import DataError
    from neocpu.oracle.course.solutions import starter

    unit = _unit(number)
    path = _file_of(number)
    try:
        # "x" creates or fails, so that nobody's work is lost
        with path.open("x", encoding="utf-8") as file:
            file.write(starter(unit.name, number, unit.title))
    except FileExistsError as error:
        raise DataError(f"{path} exists and stays as it is; move it away to begin anew") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error
    click.echo(f"{path} is written. Unit {number}, {unit.title}; to know before: {unit.reads}.")
    click.echo(f"Read {_page(unit, number)}, then `neocpu course check {number}`.")


@course.command()
@UNIT
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="How long one call of a function may take.",
)
def check(number: int, file: Path | None, seconds: float) -> int:
    """Try the functions of FILE (myUNIT.py) on many problems; exit status 1 if one is wrong."""
    from neocpu.oracle.course.journal import Journal, digest
    from neocpu.oracle.course.teacher import examine

    unit = _unit(number)
    path = _file_of(number) if file is None else file
    journal = Journal(Path())
    marks = examine(unit, path, seconds, f"neocpu course start {number}")
    for line in marks.lines:
        click.echo(line)
    if not marks.passed:
        click.secho(f"unit {number} is not passed yet; a hint: `neocpu course hint {number}`")
        return 1
    click.secho(f"unit {number}, {unit.title}: passed", fg="green", bold=True)
    problem = journal.note(number, passed=digest(path))
    if problem:
        click.echo(f"neocpu: {problem}", err=True)
    return 0


@course.command()
@UNIT
def hint(number: int) -> None:
    """Give the next hint of a unit, after those that were read already."""
    from neocpu.oracle.course.journal import Journal

    rungs = _unit(number).rungs()
    journal = Journal(Path())
    read = min(journal.hints(number) + 1, len(rungs))
    for rung, text in enumerate(rungs[:read], 1):
        click.echo(f"{rung} of {len(rungs)}: {text}")
    problem = journal.note(number, hints=read)
    if problem:
        click.echo(f"neocpu: {problem}", err=True)


@course.command()
@UNIT
def solution(number: int) -> None:
    """Print a solution of a unit."""
    from neocpu.oracle.course.solutions import source

    click.echo(source(_unit(number).name), nl=False)
