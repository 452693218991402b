"""`neocpu course`: ten units, from a DLRM of your own to a run on four ranks with tiers."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.options import option_with_default

if TYPE_CHECKING:
    from neocpu.oracle.course.unit import CourseUnit

UNIT = click.argument("number", metavar="[UNIT]", type=int, required=False)


@click.group(invoke_without_command=True)
@click.pass_context
def course(context: click.Context) -> None:
    """Write such a system's parts yourself; see what is wrong, and why (docs/learn.md).

    Without a command: list the units, and which of them the files of this folder have passed. UNIT
    is the number of one; without it, of the first that is not passed.
    """
    if context.invoked_subcommand is not None:
        return
    from neocpu.oracle.course.journal import Journal
    from neocpu.oracle.course.units import UNITS

    journal = Journal(Path())
    passed = 0
    for number, unit in enumerate(UNITS, 1):
        state = journal.state(number, _file_of(number))
        passed += state == "passed"
        line = f"{number:2}  {unit.title:32} {state}".rstrip()
        click.secho(line, fg="green" if state == "passed" else None)
    click.echo(f"\n{passed} of {len(UNITS)} are passed")
    if passed < len(UNITS):
        number, unit = _chosen(None)
        verb = "check" if _file_of(number).exists() else "start"
        click.echo(f"next: {_page(unit, number)}, then `neocpu course {verb} {number}`")


def _file_of(number: int) -> Path:
    return Path(f"my{number}.py")


def _page(unit: "CourseUnit", number: int) -> str:
    """Where a unit is explained."""
    return f"docs/course/{number:02}_{unit.name}.md"


def _chosen(number: int | None) -> "tuple[int, CourseUnit]":
    """The unit of that number; of None the first that is not passed, or else the last.

    Raises UsageError if there is none.
    """
    from neocpu.oracle.course.journal import Journal
    from neocpu.oracle.course.units import UNITS

    if number is None:
        journal = Journal(Path())
        numbers = range(1, len(UNITS) + 1)
        ahead = (n for n in numbers if journal.state(n, _file_of(n)) != "passed")
        number = next(ahead, len(UNITS))
    if not 1 <= number <= len(UNITS):
        raise click.BadParameter(f"there are the units 1 to {len(UNITS)}", param_hint="UNIT")
    return number, UNITS[number - 1]


@course.command()
@UNIT
def start(number: int | None) -> None:
    """Write myUNIT.py, with the functions to be written; an existing one stays."""
    from neocpu.core.errors import DataError
    from neocpu.oracle.course.solutions import starter

    number, unit = _chosen(number)
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
@option_with_default(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=10.0,
    help="How long one call of a function may take.",
)
def check(number: int | None, file: Path | None, seconds: float) -> int:
    """Try the functions of FILE (myUNIT.py) on many problems; exit status 1 if one is wrong."""
    from neocpu.oracle.course.journal import Journal, digest
    from neocpu.oracle.course.teacher import examine

    number, unit = _chosen(number)
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
def hint(number: int | None) -> None:
    """Give the next hint of a unit, after those that were read already."""
    from neocpu.oracle.course.journal import Journal

    number, unit = _chosen(number)
    rungs = unit.rungs()
    journal = Journal(Path())
    read = min(journal.hints(number) + 1, len(rungs))
    for rung, text in enumerate(rungs[:read], 1):
        click.echo(f"{rung} of {len(rungs)}: {text}")
    problem = journal.note(number, hints=read)
    if problem:
        click.echo(f"neocpu: {problem}", err=True)


@course.command()
@UNIT
def solution(number: int | None) -> None:
    """Print a solution of a unit."""
    from neocpu.oracle.course.solutions import source

    _, unit = _chosen(number)
    click.echo(source(unit.name), nl=False)
