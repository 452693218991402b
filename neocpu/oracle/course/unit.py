"""What is a unit of the course? A page to read, and functions to write, each with its problems.

A solution is a file of `solutions/`; its signatures and docstrings are the starter. The words of a
unit, and the mistakes that it knows, are in the TOML file beside its problems.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from neocpu.core.types import Bools, Elements
from neocpu.oracle.operator import Case

# Functions of students return what they like: it is looked at before it is used.
StudentFunction: TypeAlias = Callable[..., object]
# arrays, numbers and parsed JSON, by the names of a function's parameters
Arguments: TypeAlias = Mapping[str, Any]
# what a run of the student's own shows: lines to print, or a fault
OwnRun: TypeAlias = Callable[[Mapping[str, object]], str]


@dataclass(frozen=True)
class Returned:
    """One array that a function returns."""

    name: str
    # of NumPy, or integer, float and bool for any width of these
    dtype: str
    about: str  # shape and meaning in words
    axes: tuple[str, ...] = ()
    tolerance: float = 0.0  # |x - expected| <= tolerance * max(1, |expected|)
    output: str = ""  # the oracle's name for it, where the exercise is one of its operators

    def right(self, x: Elements, expected: Elements) -> Bools:
        """Which elements are right; both have one shape."""
        equal = (x == expected) | ((x != x) & (expected != expected))
        if not self.tolerance:
            return np.asarray(equal)
        with np.errstate(all="ignore"):
            near = np.abs(x - expected) <= self.tolerance * np.maximum(1, np.abs(expected))
        return np.asarray(equal | near)


@dataclass(frozen=True)
class Problem:
    """One call of a student's function. about : what is special in it, in words."""

    about: str
    arguments: Arguments


@dataclass(frozen=True)
class Slip:
    """A mistake that students make, as an edit of the solution that makes it.

    edits : pairs of a text in the solution and what stands there instead.
    """

    about: str  # after "looks as if"
    fix: str
    edits: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Exercise:
    """One function that a student writes.

    problems : in the order in which they are asked, those that an eye can follow first.
    expected : what it returns, by the names of its arguments; as a tuple where it is several.
    as_case : the same problem as a question to the oracle, which then judges and explains.
    fault : why an answer of several right ones is wrong, or ""; else `expected` is compared.
    """

    function: str
    returned: tuple[Returned, ...]
    problems: Callable[[], Iterator[Problem]]
    expected: Callable[..., object]
    slips: tuple[Slip, ...] = ()
    as_case: Callable[[Problem], Case] | None = None
    fault: Callable[[Arguments, dict[str, Elements]], str] | None = None


@dataclass(frozen=True)
class CourseUnit:
    """One unit. name : of its files, its page and its solution; reads : what to know before."""

    name: str
    title: str
    reads: str
    exercises: tuple[Exercise, ...]
    hints: str  # rungs of a ladder, with an empty line between them
    own_run: OwnRun | None = None

    def rungs(self) -> tuple[str, ...]:
        """The hints, from a nudge to nearly all."""
        return tuple(" ".join(rung.split()) for rung in self.hints.split("\n\n"))


def unit_of(problems: str, *exercises: Exercise, own_run: OwnRun | None = None) -> CourseUnit:
    """A unit with the words of its TOML file. problems : the Python file of its problems."""
    path = Path(problems).with_suffix(".toml")
    words = tomllib.loads(path.read_text(encoding="utf-8"))
    with_slips = []
    for exercise in exercises:
        slips = (
            Slip(slip["about"], slip["fix"], tuple((old, new) for old, new in slip["edits"]))
            for slip in words.get(exercise.function, ())
        )
        with_slips.append(replace(exercise, slips=tuple(slips)))
    return CourseUnit(
        path.stem, words["title"], words["reads"], tuple(with_slips), words["hints"], own_run
    )
