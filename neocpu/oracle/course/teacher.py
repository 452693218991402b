"""Is a student's function right, and if not, where and why?

    problems ──► her answers ──► their form: nothing, a wrong shape or type      words
                             ──► their numbers, by the twins or the oracle       the first wrong one
                             ──► a mistake that gives all of her answers         "looks as if"

Mistakes are the oracle's switches where the exercise is one of its operators, else slips: edits of
the solution. Either explains only what it predicts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.oracle.checking import judge_cases
from neocpu.oracle.course.forms import Answers, asked_lines, named, same, shape_fault, type_fault
from neocpu.oracle.course.solutions import exercise_function
from neocpu.oracle.course.student import StudentFile
from neocpu.oracle.course.unit import CourseUnit, Exercise, Problem, Slip
from neocpu.oracle.report import Report
from neocpu.oracle.semantics import SWITCHES
from neocpu.oracle.verdicts.compare import as_text

BUDGET = 8.0  # seconds in which the oracle looks for what explains wrong answers
# what an edit that does not fit a problem, or another edit, may raise: it then explains nothing
MISFITS = (ArithmeticError, LookupError, NameError, OracleError, TypeError, ValueError)


@dataclass(frozen=True)
class Marks:
    """What a check says."""

    passed: bool
    lines: tuple[str, ...]


def examine(unit: CourseUnit, path: Path, seconds: float, start: str) -> Marks:
    """Ask the functions of a student's file every problem of a unit.

    seconds : how long one call may take.
    start : the command that writes such a file, for messages.
    Raises DataError where there is no file.
    """
    lines: list[str] = []
    passed = True
    try:
        student = StudentFile(path, seconds, start)
    except OracleError as error:
        return Marks(False, (str(error),))
    for exercise in unit.exercises:
        problems = list(exercise.problems())
        try:
            faults = list(_faults(exercise, problems, student))
        except OracleError as error:
            # the other functions of the file are judged all the same
            faults = [str(error)]
        passed &= not faults
        lines += faults or [f"{exercise.function}: right on all {len(problems)} problems"]
    if passed and unit.own_run is not None:
        try:
            lines.append(unit.own_run(vars(student.module)))
        except OracleError as error:
            return Marks(False, (*lines, str(error)))
    return Marks(passed, tuple(lines))


def _faults(exercise: Exercise, problems: Sequence[Problem], student: StudentFile) -> Iterator[str]:
    """Lines about what is wrong; none where nothing is."""
    parameters = tuple(problems[0].arguments)
    function = student.function(exercise.function, parameters)
    answers = []
    for problem in problems:
        value = student.call(function, problem.arguments, problem.about)
        expected = expected_of(exercise, problem)
        answer = named(exercise, value)
        for returned in exercise.returned:
            malformed = type_fault(returned, answer[returned.name])
            if exercise.as_case is not None and not malformed:
                # the oracle compares elements, so it wants as many
                malformed = shape_fault(returned, answer[returned.name], expected[returned.name])
            if malformed:
                yield f"{exercise.function}: {malformed}"
                yield from asked_lines(problem)
                return
        answers.append(answer)
    yield from _wrong(exercise, problems, answers)
    value = student.call(function, problems[0].arguments, problems[0].about)
    if not same(answers[0], named(exercise, value)):
        yield (
            f"{exercise.function}: the first problem, asked a second time, has another answer: "
            "does something stay from call to call, in a global or a default value?"
        )


def expected_of(exercise: Exercise, problem: Problem) -> Answers:
    """What the function should return, of an oracle's operator the reference; {} : many things."""
    if exercise.fault is not None:
        return {}
    value = exercise.expected(**problem.arguments)
    values = value if isinstance(value, tuple) else (value,)
    return {r.name: np.asarray(x) for r, x in zip(exercise.returned, values)}


def _wrong(
    exercise: Exercise, problems: Sequence[Problem], answers: Sequence[Answers]
) -> Iterator[str]:
    """Lines about wrong numbers: how often, the first of them, and why."""
    report: Report | None = None
    if exercise.as_case is not None:
        asked = [
            (replace(exercise.as_case(problem), name=f"{number}"), _by_output(exercise, answer))
            for number, (problem, answer) in enumerate(zip(problems, answers))
        ]
        judgement = judge_cases(asked)
        report = judgement.report
        failed = [int(outcome.case.name) for outcome in report.failures]
    else:
        failed = [k for k, p in enumerate(problems) if _element_fault(exercise, p, answers[k])]
    if not failed:
        return
    yield f"{exercise.function}: wrong on {len(failed)} of {len(problems)} problems"
    problem = problems[failed[0]]
    yield from asked_lines(problem)
    if report is None:
        yield f"  {_element_fault(exercise, problem, answers[failed[0]])}"
    else:
        yield from _first_elements(exercise, report)
    # a slip explains all answers to the last bit; the oracle's bounds leave room for others
    reasons = list(_slip_lines(exercise, problems, answers))
    if report is not None and not reasons:
        reasons = list(_reasons(judgement.explained(BUDGET)))
    yield from reasons or ["  no known mistake explains it; the hints may help"]


def _element_fault(exercise: Exercise, problem: Problem, answer: Answers) -> str:
    """The first wrong element of an answer, in words; "" if all are right."""
    if exercise.fault is not None:
        return exercise.fault(problem.arguments, answer)
    for returned, (name, expected) in zip(
        exercise.returned, expected_of(exercise, problem).items()
    ):
        if answer[name].shape != expected.shape:
            return shape_fault(returned, answer[name], expected)
        right = returned.right(answer[name], expected)
        if right.all():
            continue
        index = tuple(int(i) for i in np.argwhere(~right)[0])
        where = ", ".join(f"{axis} {i}" for axis, i in zip(returned.axes, index))
        yours, ours = answer[name][index].item(), expected[index].item()
        more = f" ({int((~right).sum())} of {right.size} are wrong)" if right.size > 1 else ""
        place = f"{name}, {where}" if where else name
        return f"{place}: yours is {yours!r}, expected {ours!r}{more}"
    return ""


def _by_output(exercise: Exercise, answer: Answers) -> Answers:
    """An answer by the oracle's names."""
    return {returned.output: answer[returned.name] for returned in exercise.returned}


def _first_elements(exercise: Exercise, report: Report) -> Iterator[str]:
    """The first wrong element of each output of the first failed case."""
    names = {returned.output: returned.name for returned in exercise.returned}
    for verdict in report.failures[0].verdicts:
        name = names.get(verdict.output, verdict.output)
        first = verdict.first
        if first is not None:
            place = [f"{k} {v}" for k, v in first.place.items() if k not in ("table", "feature")]
            numbers = f"yours is {as_text(first.theirs)}, expected {as_text(first.reference)}"
            yield f"  {', '.join([name, *place])}: {numbers}"
        elif verdict.status == "failed":
            yield f"  {name}: {verdict.message}"


def _reasons(report: Report) -> Iterator[str]:
    """What the oracle's explanations say to a student."""
    for finding in report.findings:
        diagnosis = finding.diagnosis
        if not finding.strong or diagnosis.kind == "mirror":
            continue
        if diagnosis.kind == "pattern":
            yield f"  the numbers show a pattern: {diagnosis.about}"
        elif diagnosis.names[0] in SWITCHES:
            # what roundings prove of themselves stands in the verdict already
            yield f"  looks as if {', and '.join(SWITCHES[name].about for name in diagnosis.names)}"
        for name in finding.equally:
            if name in SWITCHES:
                yield f"    or as if {SWITCHES[name].about}"
        if diagnosis.fix:
            yield f"    {diagnosis.fix}"


def _slip_lines(
    exercise: Exercise, problems: Sequence[Problem], answers: Sequence[Answers]
) -> Iterator[str]:
    """Slips, or pairs of them, that give all of these answers."""
    singles = [(slip,) for slip in exercise.slips]
    for size in (singles, list(combinations(exercise.slips, 2))):
        explaining = [slips for slips in size if _predicts(exercise, slips, problems, answers)]
        for number, slips in enumerate(explaining):
            also = "or as if" if number else "looks as if"
            yield f"  {also} {', and '.join(slip.about for slip in slips)}"
            yield from (f"    {fix}" for fix in dict.fromkeys(slip.fix for slip in slips))
        if explaining:
            return


def _predicts(
    exercise: Exercise,
    slips: Iterable[Slip],
    problems: Sequence[Problem],
    answers: Sequence[Answers],
) -> bool:
    """Do these slips, made in the solution, give all of the answers?"""
    function = exercise_function(exercise.function, tuple(slips))
    if function is None:
        return False
    with np.errstate(all="ignore"):
        for problem, answer in zip(problems, answers):
            try:
                value = named(exercise, function(**problem.arguments))
            except MISFITS:
                return False
            for returned in exercise.returned:
                x, theirs = value[returned.name], answer[returned.name]
                if x.shape != theirs.shape or not returned.right(theirs, x).all():
                    return False
    return True
