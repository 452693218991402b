"""Which bugs are there? One record for each, and the kernel that has it."""

import fnmatch
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.oracle_mutants.kernel import Kernel

FORWARD = "lookup"
BACKWARD = "backward unique_gradient"
GEOMETRY = "lookup weight_gradient backward unique_gradient trajectory"
STEPS = "backward trajectory"
MERGES = "backward unique_gradient trajectory"

# Bugs of precision and rounding; all others are bugs of logic.
ROUNDING = (
    "*fp16*",
    "*bf16*",
    "*tf32*",
    "*round*",
    "*truncat*",
    "*half_up",
    "*half_to_even",
    "ties_*",
    "chance_*",
    "one_word_*",
    "codes_up",
    "root_of_10_bits",
    "scale_as_reciprocal",
    "inverse_of_scale",
    "sums_in_output_format",
)


class Mutant(NamedTuple):
    """One bug."""

    name: str
    operators: tuple[str, ...]  # that it could touch
    true_names: tuple[str, ...]  # names that are right; none: no name is
    kernel: type[Kernel]
    says: str = ""  # words of a right hint about a bug without a name
    module: str = ""  # of mutants/, that has it

    @property
    def is_rounding(self) -> bool:
        """Is it a matter of precision or rounding, so that a pattern that says so is right?"""
        return any(fnmatch.fnmatch(self.name, pattern) for pattern in ROUNDING)


MUTANTS: dict[str, Mutant] = {}


def bend(
    name: str,
    operators: str,
    true_names: str = "",
    says: str = "",
    **methods: Callable[..., Any],
) -> None:
    """Register a kernel with some methods replaced.

    operators : those that the bug could touch, with spaces between them.
    true_names : the names of docs/semantics.md that a careful person would give the bug; "": there
        is none, so that no name, or a pattern that says where it shows, is right.
    says : words that a right hint has, of where answers are wrong or what failed cases share;
        between bars, where one of several will do.
    """
    if name in MUTANTS:
        raise ValueError(f"two mutants {name}")
    for method in methods:
        if not hasattr(Kernel, method):
            raise ValueError(f"{name}: a kernel has no {method}")
    kernel = type(name, (Kernel,), methods)
    names = tuple(true_names.split())
    caller = sys._getframe(1).f_globals["__name__"]
    if caller == __name__:  # named_mistake
        caller = sys._getframe(2).f_globals["__name__"]
    module = str(caller).rsplit(".", 1)[-1]
    MUTANTS[name] = Mutant(name, tuple(operators.split()), names, kernel, says, module)


def named_mistake(name: str, operators: str, **methods: Callable[..., Any]) -> None:
    """Register a bug that has the name of a mistake of docs/semantics.md, the only right one."""
    bend(name, operators, name, **methods)
