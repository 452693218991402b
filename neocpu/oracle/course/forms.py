"""What did a function of a student return? Arrays by name, and faults of their form in words."""

import inspect
from collections.abc import Iterator, Mapping

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.core.types import Elements
from neocpu.oracle.course.unit import Exercise, Problem, Returned

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
