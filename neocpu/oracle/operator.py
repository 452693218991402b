"""What is an embedding operator to the oracle, and what does it say about an answer?

    Case (inputs, options) ──► Operator.run    ──► canonical: the bits that neocpu trains with
                           └─► Operator.truth  ──► reference ± bound, element by element,
                                                   or lower and upper, or exact bytes

Only records; nothing here computes. An operator's names of inputs, options and outputs are its
interface: suites, answers, the command line and the drop-in modules all use them. Only NumPy is
needed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.core.types import Doubles, Elements
from neocpu.oracle.inputs import fault, unknown_name
from neocpu.oracle.options import nearest_name, plain, void_option, wanted

Value = int | float | str | bool
Arrays = dict[str, Elements]
Options = Mapping[str, Value]
Switches = frozenset[str]  # names of mistakes that a truth makes, of `switches.csv`


class QuestionError(OracleError, ValueError):
    """A question has no answer: inputs or options of an operator are unknown or misshapen."""


@dataclass(frozen=True)
class Field:
    """One array of an operator."""

    about: str  # shape, dtype and meaning in words
    axes: tuple[str, ...] = ()  # the name of each axis, such as ("sample", "column")
    optional: bool = False  # an input that may be absent; an output that some options leave out


@dataclass(frozen=True)
class Case:
    """One question to an operator."""

    name: str  # without a slash: answers are called "case/output"
    op: str
    inputs: Arrays
    options: Options
    about: str  # what it breaks


@dataclass(frozen=True)
class Truth:
    """What one output must be, element by element.

    A finite `reference` accepts |x - reference| <= bound; NaN accepts any NaN; an infinity accepts
    itself. An infinite bound, where the error analysis has nothing to say, accepts anything. In
    narrow formats x must also be in [lower, upper]. With stochastic rounding `probability` is that
    of `upper` where exactly two numbers are possible (NaN elsewhere). `exact` outputs (integers,
    bytes) must be equal to `reference`, which then keeps its own dtype. `typical` is a second,
    statistical bound (docs/semantics.md §1): an error beyond it is no proof, but worth a warning.
    """

    reference: Elements  # f64, any shape; exact: the integers themselves
    bound: Doubles  # same shape, >= 0, rounded upward; exact: zeros
    lower: Doubles | None = None
    upper: Doubles | None = None
    probability: Doubles | None = None
    typical: Doubles | None = None  # same shape; infinite where nothing is known
    exact: bool = False
    format: str = "fp32"  # of the output's elements: how codes are decoded (truth/formats.py)

    @classmethod
    def exactly(cls, numbers: Elements, form: str = "int64") -> "Truth":
        """Integers, or bytes, that must be equal; form : their format."""
        return cls(numbers, np.zeros(numbers.shape), exact=True, format=form)

    def arrays(self) -> Arrays:
        """The arrays that it has, by name; all of the shape of the output."""
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("exact", "format") and value is not None
        }

    def with_arrays(self, arrays: Arrays) -> "Truth":
        """The same truth with other arrays under these names."""
        parts: dict[str, Any] = {**arrays}  # a record's fields have types of their own
        return replace(self, **parts)


Run = Callable[[Arrays, Options, str], Arrays]
Truths = dict[str, Truth]
TruthOf = Callable[[Arrays, Options, Switches], Truths]
Locate = Callable[[Arrays, Options, str, tuple[int, ...]], dict[str, int]]


@dataclass(frozen=True)
class Operator:
    """One embedding operator: its interface, its canonical implementation, and its exact model.

    `run_` and `truth_` get options that are complete; callers use `run`, `truth` and `locate`,
    which add the defaults. `in_place` says that a kernel may update inputs that are outputs, too.
    """

    name: str
    about: str
    inputs: dict[str, Field]
    options: Options
    outputs: dict[str, Field]
    run_: Run = field(repr=False)
    truth_: TruthOf = field(repr=False)
    locate_: Locate | None = field(default=None, repr=False)
    in_place: bool = False

    @property
    def updated(self) -> frozenset[str]:
        """Names of inputs that a kernel may change; it may only read the others."""
        return frozenset(self.inputs) & frozenset(self.outputs) if self.in_place else frozenset()

    def complete(self, options: Options) -> dict[str, Value]:
        """Options with the defaults filled in.

        Raises QuestionError for an unknown option, and for a value that an option cannot have.
        """
        for name, value in options.items():
            if name not in self.options:
                raise QuestionError(
                    f"operator {self.name} has no option {name!r}"
                    f"{nearest_name(name, self.options)}; it has {', '.join(sorted(self.options))}"
                )
            wish = wanted(self.options[name], value)
            if wish:
                raise QuestionError(f"{self.name}: {name} is {value!r}: {wish}")
        return {**{name: plain(value) for name, value in self.options.items()}, **options}

    def run(
        self, inputs: Arrays, options: Options | None = None, backend: str = "kernels"
    ) -> Arrays:
        """Canonical outputs, bit for bit; inputs are not modified.

        backend : "kernels", or "reference" for their NumPy twins.
        """
        if backend not in ("kernels", "reference"):
            raise ValueError(f"backend is {backend!r}, not kernels or reference")
        complete = self.complete(options or {})
        with np.errstate(all="ignore"):
            return self.run_(checked(self, inputs, complete), complete, backend)

    def truth(
        self, inputs: Arrays, options: Options | None = None, switches: Switches = frozenset()
    ) -> Truths:
        """What every output must be.

        switches : names of quirks of peers or known mistakes that the model is to follow.
        """
        complete = self.complete(options or {})
        # A bent model is one of many, all of a question that was looked at.
        looked_at = inputs if switches else checked(self, inputs, complete)
        with np.errstate(all="ignore"):  # what overflows or is NaN is part of the answer
            return self.truth_(looked_at, complete, switches)

    def locate(self, case: Case, output: str, index: tuple[int, ...]) -> dict[str, int]:
        """Where an element of an output belongs, e.g. {"table": 1, "row": 7, "column": 3}.

        By the names of the output's axes where the operator has no rule of its own.
        """
        index = tuple(int(i) for i in index)
        if self.locate_ is not None:
            place = self.locate_(case.inputs, self.complete(case.options), output, index)
            if place:
                return place
        name = output.rsplit("/", 1)[-1]
        axes = self.outputs[name].axes if name in self.outputs else ()
        return dict(zip(axes or tuple(f"axis{k}" for k in range(len(index))), index))


def checked(operator: Operator, inputs: Arrays, options: Options) -> Arrays:
    """The inputs. Raises QuestionError if one is unknown or missing, if they do not fit, or if the
    optimizer does not read an option.

    Whether one of a step is missing is not looked at. options : complete ones.
    """
    name = unknown_name(inputs, operator.inputs)
    if name:
        raise QuestionError(
            f"{operator.name} has no input {name}{nearest_name(name, operator.inputs)}; it has "
            f"{', '.join(operator.inputs)}"
        )
    missing = sorted(
        name for name, f in operator.inputs.items() if not f.optional and name not in inputs
    )
    if missing and not any("/" in name for name in inputs):
        raise QuestionError(
            f"operator {operator.name} needs the input {missing[0]!r}: "
            f"{operator.inputs[missing[0]].about}"
        )
    why = void_option(options) or fault(inputs, options)
    if why:
        raise QuestionError(f"{operator.name}: {why}")
    return inputs
