"""Is a student's function right, and if not, where and why?

    problems ──► her answers ──► their form: nothing, a wrong shape or type      words
                             ──► their numbers, by the twins or the oracle       the first wrong one
                             ──► a mistake that gives all of her answers         "looks as if"

Mistakes are the oracle's switches where the exercise is one of its operators, else slips: edits of
the solution. Either explains only what it predicts.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.core.types import Elements
from neocpu.oracle.checking import judge_cases
from neocpu.oracle.course.solutions import exercise_function
from neocpu.oracle.course.student import StudentFile
from neocpu.oracle.course.unit import CourseUnit, Exercise, Problem, Returned, Slip
from neocpu.oracle.report import Report
from neocpu.oracle.semantics import SWITCHES
from neocpu.oracle.verdicts.compare import as_text

SHOWN = 30  # elements of an array that are written out
DIGITS = 7  # of numbers that are written out
KINDS = {"integer": "iu", "float": "f", "bool": "b"}

Answers = dict[str, Elements]


def named(exercise: Exercise, value: object) -> Answers:
    """The arrays of a returned value by name. Raises OracleError for what is none."""
    names = [returned.name for returned in exercise.returned]
    wanted = ", ".join(names)
    if value is None:
        raise OracleError(
            f"{exercise.function} returns nothing; does it end with `return {wanted}`?"
        )
    if len(names) > 1 and not isinstance(value, tuple | list):
        raise OracleError(
            f"{exercise.function} returns a {type(value).__name__}, expected {len(names)} things: "
            f"{wanted}"
        )
    values = [value]
    if len(names) > 1 and isinstance(value, tuple | list):
        values = list(value)
    if len(values) != len(names):
        raise OracleError(
            f"{exercise.function} returns {len(values)} things, expected {len(names)}: {wanted}"
        )
    answer = {}
    for name, part in zip(names, values):
        try:
            array = np.asarray(part)
        except ValueError as error:
            raise OracleError(
                f"{exercise.function}: {name} is a list of lists of different lengths"
            ) from error
        if array.dtype.kind not in "biuf":
            raise OracleError(
                f"{exercise.function}: {name} is a {type(part).__name__}, expected numbers"
            )
        answer[name] = array
    return answer


def shape_fault(returned: Returned, x: Elements, expected: Elements) -> str:
    """What is wrong with a shape, in words; "" if nothing."""
    if x.shape == expected.shape:
        return ""
    if x.ndim == 1 == expected.ndim and max(x.size, expected.size) <= SHOWN:
        return f"{returned.name}: yours is {shown(x)}, expected {shown(expected)}"
    turned = "; it is transposed" if x.ndim > 1 and x.shape == expected.shape[::-1] else ""
    shapes = f"the shape {list(x.shape)}, expected {list(expected.shape)}"
    return f"{returned.name} has {shapes}: {returned.about}{turned}"


def type_fault(returned: Returned, x: Elements) -> str:
    """What is wrong with the type of elements, in words; "" if nothing."""
    if returned.dtype in KINDS:
        # an empty list has no type of its own
        fits = x.dtype.kind in KINDS[returned.dtype] or not x.size
    else:
        fits = x.dtype == np.dtype(returned.dtype)
    if fits:
        return ""
    hint = ""
    if x.dtype == np.float64:
        hint = "; np.zeros, np.empty and Python's floats are float64 unless told otherwise"
    return f"{returned.name} has elements of {x.dtype}, expected {returned.dtype}{hint}"


def same(left: Answers, right: Answers) -> bool:
    """Are two answers equal to the last bit?"""
    return all(
        x.shape == right[name].shape and np.array_equal(x, right[name], equal_nan=True)
        for name, x in left.items()
    )


def asked_lines(problem: Problem) -> Iterator[str]:
    """What was asked, with the arguments that can be read."""
    yield f"  asked about {problem.about}"
    for name, value in problem.arguments.items():
        yield f"    {name} = {shown(value)}"


def shown(value: object) -> str:
    """A value in one line."""
    if isinstance(value, np.ndarray):
        if value.size > SHOWN:
            return f"{value.dtype}{list(value.shape)}"
        text = np.array2string(value, precision=DIGITS, separator=", ", max_line_width=10**6)
        return " ".join(text.split())
    if isinstance(value, Mapping | list) and len(value) > SHOWN // 5:
        return f"a {type(value).__name__} of {len(value)}"
    return inspect.cleandoc(repr(value))


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
        questions = [
            (replace(exercise.as_case(problem), name=f"{number}"), _by_output(exercise, answer))
            for number, (problem, answer) in enumerate(zip(problems, answers))
        ]
        judgement = judge_cases(questions)
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
