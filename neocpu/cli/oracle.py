"""`neocpu oracle`: are somebody's embedding kernels right?

List, explain and export cases; check answers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.options import as_record, option_with_default
from neocpu.cli.screen.targets import check_target, force_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from neocpu.oracle.checking import JudgedSuite
    from neocpu.oracle.operator import Case, Value
    from neocpu.oracle.report import Report

FILE = click.Path(path_type=Path)
GOLDEN = Path("data") / "oracle-golden.h5"
OPS = click.option(
    "--op", "ops", multiple=True, metavar="NAME", help="Only this operator; may be repeated."
)
CASES = click.option(
    "--cases", "patterns", multiple=True, metavar="PATTERN", help='Only such cases, e.g. "*mean*".'
)
SEED = option_with_default(
    "--seed", default=0, help="Another seed draws other numbers of the same shapes."
)
DIM_MULTIPLE = option_with_default(
    "--dim-multiple",
    default=4,
    type=click.IntRange(min=1),
    metavar="N",
    help="Rows have a multiple of N columns; 1: odd widths, too, which FBGEMM's kernels refuse.",
)
DRAW = option_with_default(
    "--draw",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="N more cases of each of lookup, weight_gradient, unique_gradient and backward, whose "
    "options and shapes are drawn by --seed.",
)


@dataclass(frozen=True)
class CaseChoice:
    """Which cases a suite has."""

    ops: tuple[str, ...]
    patterns: tuple[str, ...]
    seed: int
    dim_multiple: int
    quick: bool
    draw: int

    @property
    def usual(self) -> bool:
        """Whether nothing was chosen."""
        return self == CaseChoice((), (), 0, 4, False, 0)

    def cases(self) -> "list[Case]":
        """The cases, drawn ones last. Raises OracleError for names that choose none."""
        from itertools import islice

        from neocpu.oracle.cases.covers.drawn import FACTORS, drawn_cases
        from neocpu.oracle.cases.covers.rules import shows_rule
        from neocpu.oracle.diagnosis.facets import telling_cases
        from neocpu.oracle.ops import OPERATORS

        chosen = _cases(self.ops, self.patterns, self.seed, self.dim_multiple)
        if self.quick:
            complete = {case.name: OPERATORS[case.op].complete(case.options) for case in chosen}
            chosen = telling_cases(chosen, lambda case: complete[case.name], shows_rule)
        for op in FACTORS:
            if not self.ops or op in self.ops:
                drawn = drawn_cases(op, self.seed, self.dim_multiple)
                chosen += [one.case() for one in islice(drawn, self.draw)]
        return chosen


# what the beginning of a report has, as JSON and as HTML
REPORT_MARKS = (b'"format": "neocpu-oracle-report"', b"<title>oracle: ")
REPORT_HEAD = 4096  # bytes


@dataclass(frozen=True)
class ReportFiles:
    """Files of the report, where they are wanted."""

    as_json: Path | None
    as_html: Path | None
    force: bool

    def check(self, sources: list[Path]) -> None:
        """Raise UsageError and DataError for files that may not be replaced; sources : are read."""
        for path in (self.as_json, self.as_html):
            if path is not None:
                # who writes a kernel checks again and again: an earlier report gives way
                check_target(path, self.force or _is_report(path), sources)
        if self.as_json is not None and self.as_json == self.as_html:
            raise click.UsageError(f"{self.as_json}: --json and --html cannot write the same file")

    def write(self, report: "Report") -> bool:
        """Write the report; whether all files could be written."""
        written = True
        for path, text in ((self.as_json, report.to_json), (self.as_html, report.to_html)):
            if path is not None:
                try:
                    path.write_text(text(), encoding="utf-8")
                except OSError as error:
                    # the verdict stands, but who waits for the file must see that there is none
                    click.echo(f"neocpu: {path}: cannot be written: {error.strerror}", err=True)
                    written = False
        return written


def _is_report(path: Path) -> bool:
    """Whether a file is a report of an earlier check."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(REPORT_HEAD)
    return any(mark in head for mark in REPORT_MARKS)


@click.group()
def oracle() -> None:
    """Export cases that break embedding kernels; check answers, and explain what is wrong."""


def _cases(
    ops: tuple[str, ...], patterns: tuple[str, ...], seed: int, dim_multiple: int
) -> "list[Case]":
    """The chosen cases. Raises OracleError for names that choose none."""
    from fnmatch import fnmatch

    from neocpu.core.errors import OracleError
    from neocpu.oracle.cases import all_cases
    from neocpu.oracle.checking import find_operator
    from neocpu.oracle.options import nearest_name

    operators = [find_operator(name).name for name in ops]
    cases = list(all_cases(operators or None, seed, dim_multiple))
    for pattern in patterns:
        if not any(fnmatch(case.name, pattern) for case in cases):
            near = nearest_name(pattern, [case.name for case in cases])
            raise OracleError(f"no case {pattern}{near}; `neocpu oracle list` shows all")
    return [case for case in cases if not patterns or any(fnmatch(case.name, p) for p in patterns)]


@oracle.command("list")
@OPS
@CASES
@DIM_MULTIPLE
def list_cases(ops: tuple[str, ...], patterns: tuple[str, ...], dim_multiple: int) -> None:
    """Name every case and what it breaks."""
    from neocpu.oracle.ops import OPERATORS

    order = list(OPERATORS)
    shown = ""
    cases = _cases(ops, patterns, 0, dim_multiple)
    for case in sorted(cases, key=lambda case: order.index(case.op)):
        if case.op != shown:
            click.echo(f"{click.style(case.op, bold=True)}  {OPERATORS[case.op].about}")
            shown = case.op
        click.echo(f"  {case.name.ljust(38)} {case.about}")


@oracle.command()
@click.argument("name", metavar="CASE")
@SEED
@DIM_MULTIPLE
def explain(name: str, seed: int, dim_multiple: int) -> None:
    """Show what a case breaks, its inputs, options and outputs, and the first reference numbers."""
    from neocpu.oracle.operator import Field
    from neocpu.oracle.ops import OPERATORS
    from neocpu.oracle.verdicts.compare import as_text

    case = _cases((), (name,), seed, dim_multiple)[0]
    op = OPERATORS[case.op]
    truths = op.truth(case.inputs, case.options)
    click.echo(f"{click.style(case.name, bold=True)}: {case.about}\n")
    click.echo(f"operator {op.name}: {op.about}\n\ninputs")
    for key, array in case.inputs.items():
        about = op.inputs.get(key.rsplit("/", 1)[-1], Field("")).about
        click.echo(_array_line(key, str(array.dtype), array.shape, about))
    click.echo("\noptions")
    for key, value in op.complete(case.options).items():
        click.echo(f"  {key.ljust(22)} {value}")
    for line in _formula(op.complete(case.options)):
        click.echo(line)
    click.echo(f"\noutputs: answer with the arrays {case.name}/OUTPUT")
    for key, truth in truths.items():
        about = op.outputs.get(key.rsplit("/", 1)[-1], Field("")).about
        kind = str(truth.reference.dtype) if truth.exact else truth.format
        click.echo(_array_line(key, kind, truth.reference.shape, about))
        references = truth.reference.reshape(-1)[:4].tolist()
        bounds = truth.bound.reshape(-1)[:4].tolist()
        numbers = ", ".join(
            as_text(reference) if truth.exact else f"{as_text(reference)} ± {bound:.2g}"
            for reference, bound in zip(references, bounds)
        )
        click.echo(f"  {''.ljust(22)} {f'begins {numbers}' if numbers else 'has no elements'}")
    for line in _mirrors(case):
        click.echo(line)


def _formula(options: "Mapping[str, Value]") -> "Iterator[str]":
    """The step of the case's optimizer; nothing where it has none."""
    from neocpu.core.rules import DECAYS, RULES

    rule = RULES.get(str(options.get("optimizer", "")))
    if rule is not None:
        yield f"\n{rule.name}: {rule.formula}"
        mode = str(options.get("weight_decay_mode"))
        if options.get("weight_decay") and mode in DECAYS:
            yield f"  {mode}: {DECAYS[mode]}"


def _array_line(name: str, kind: str, shape: tuple[int, ...], about: str) -> str:
    """Name, element type, shape and meaning of an array, in columns."""
    return f"  {name.ljust(22)} {kind.ljust(8)} {str(list(shape)).ljust(12)} {about}"


def _mirrors(case: "Case") -> "Iterator[str]":
    """Whose bits can be asked for with --bits --preset."""
    from neocpu.oracle.mirrors import NoMirror, mirror_bits, mirrors_of

    mirrors = mirrors_of(case.op)
    yield "\nbits of peers: " + ("" if mirrors else "none")
    for mirror in mirrors:
        try:
            mirror_bits(mirror.preset, case.op, case.inputs, case.options)
            yield f"  {mirror.preset.ljust(22)} {mirror.call}"
        except NoMirror as why:
            yield f"  {mirror.preset.ljust(22)} within bounds: {why}"


@oracle.command()
@click.argument("suite", type=FILE, metavar="SUITE.h5", required=False)
@OPS
@CASES
@SEED
@DIM_MULTIPLE
@click.option(
    "--golden",
    is_flag=True,
    help="Rewrite the suite that the repository keeps: data/oracle-golden.h5.",
)
@click.option(
    "--flat",
    is_flag=True,
    help="Write the flat binary twin, for C, C++ and CUDA (`neocpu oracle include`).",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Only a few small cases of each operator, which have every option and shape among them.",
)
@DRAW
@force_option("SUITE.h5")
@as_record("choice", CaseChoice)
def export(suite: Path | None, choice: CaseChoice, golden: bool, flat: bool, force: bool) -> None:
    """Write cases with their answers and bounds to one self-describing HDF5 file."""
    from rich.console import Console
    from rich.progress import track

    from neocpu.core.errors import ConfigError
    from neocpu.oracle.flat import write_flat
    from neocpu.oracle.suite import ask, golden_cases, write_suite

    # The repository's suite is what its tests expect, so no option may change what is in it.
    if golden == (suite is not None) or (golden and (flat or not choice.usual)):
        raise ConfigError("give a file to write, or --golden alone")
    if suite is not None:
        check_target(suite, force)
    chosen = golden_cases() if golden else choice.cases()
    path = GOLDEN if suite is None else suite
    screen = Console(stderr=True)
    cases = track(
        chosen, "answering", console=screen, transient=True, disable=not screen.is_terminal
    )
    write = write_flat if flat else write_suite
    # A generator: answers of all cases together may be larger than memory.
    digest = write(path, (ask(case) for case in cases), choice.seed)
    click.echo(f"{path}: {len(chosen)} cases, {path.stat().st_size:,} bytes\nsha256 {digest}")


@oracle.command()
def include() -> None:
    """Name the folder of neocpu_oracle.hpp and neocpu_oracle.h, which read flat suites."""
    from neocpu.oracle.flat import HEADER_FILE

    click.echo(HEADER_FILE.parent)


@oracle.command()
@click.argument("suite", type=FILE, metavar="SUITE.h5")
@click.argument("answers", type=FILE)
@click.option(
    "--bits",
    is_flag=True,
    help="Ask for neocpu's own bits instead of |error| <= bound; with --preset, for the peer's.",
)
@click.option(
    "--preset", metavar="NAME", help="Check against a peer's semantics, e.g. fbgemm_cuda, torch."
)
@click.option(
    "--warnings-fail",
    is_flag=True,
    help="Fail on warnings, too: errors that rounding hardly ever makes, though it could.",
)
@click.option("--json", "as_json", type=FILE, metavar="FILE", help="Write the report as JSON.")
@click.option(
    "--html", "as_html", type=FILE, metavar="FILE", help="Write the report as one HTML page."
)
@option_with_default(
    "--budget",
    type=click.FloatRange(min=0),
    default=20.0,
    metavar="SECONDS",
    help="How long to look for what explains wrong answers, in seconds of a laptop's core; it is "
    "counted in work, so that a report is the same on every machine. The verdicts come first.",
)
@click.option("--quick", is_flag=True, help="Verdicts only, no explanations.")
@force_option("another file than an earlier report")
@as_record("files", ReportFiles)
def check(
    suite: Path,
    answers: Path,
    bits: bool,
    preset: str | None,
    warnings_fail: bool,
    budget: float,
    quick: bool,
    files: ReportFiles,
) -> int:
    """Compare ANSWERS (HDF5, npz, safetensors) with a suite; exit status 1 if one is wrong."""
    from neocpu.oracle.answers import read_answers
    from neocpu.oracle.checking import judge_suite
    from neocpu.oracle.flat import open_suite

    files.check([suite, answers])
    with open_suite(suite) as questions, read_answers(answers) as answer_arrays:
        judgement = judge_suite(questions, answer_arrays, bits, preset, warnings_fail)
    report = judgement.report
    # Verdicts come first: explanations may take as long as --budget allows.
    click.secho(report.verdicts(), fg="green" if report else None)
    if report.failures and budget and not quick:
        report = _explained(judgement, budget)
        for line in report.explanations():
            click.secho(line, bold=not line.startswith(" "))
    written = files.write(report)
    return 0 if report and written else 1


def _explained(judgement: "JudgedSuite", budget: float) -> "Report":
    """The report with explanations; on a terminal, with a bar of what is being tried."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        task = progress.add_task("explaining")

        def show(phase: str, done: int, total: int) -> None:
            progress.update(task, description=phase, completed=done, total=total)

        return judgement.explained(budget, show)
