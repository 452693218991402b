"""Which values may an option have? A default that says so is all that an operator declares.

An operator's options are their defaults. A `OneOf` is text and knows the other texts, a `Whole` or
a `Number` knows where it begins and ends; a plain default takes any value of its kind.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Self

import numpy as np

from neocpu.tables.specs.optimizers import SparseOptimizer

Plain = int | float | str | bool
REAL = (int, float, np.integer, np.floating)

# what peers call some values that are not near in spelling
ALIASES = {
    "avg": "mean",
    "average": "mean",
    "decouple": "decoupled",
    "decouple_global": "decoupled_global",
    "sgd": "exact_sgd",
    "adagrad": "exact_adagrad",
    "rowwise_adagrad": "exact_rowwise_adagrad",
    "float": "fp32",
    "float32": "fp32",
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}


class OneOf(str):  # noqa: SLOT000 - a subclass of str with a field
    """Text that is one of `allowed`."""

    allowed: tuple[str, ...]

    def __new__(cls, default: str, allowed: Iterable[str]) -> Self:
        choice = super().__new__(cls, default)
        choice.allowed = tuple(allowed)
        return choice


class Whole(int):
    """A whole number, `least` or more."""

    least: int

    def __new__(cls, default: int, least: int) -> Self:
        number = super().__new__(cls, default)
        number.least = least
        return number


class Number(float):
    """A finite number from `least`, below `end`."""

    least: float
    end: float

    def __new__(cls, default: float, least: float = -math.inf, end: float = math.inf) -> Self:
        number = super().__new__(cls, default)
        number.least = least
        number.end = end
        return number


def nearest_name(wrong: str, names: Iterable[str]) -> str:
    """A hint for an error message, " (did you mean …?)"; "" where no name is near."""
    spelt = {name.lower(): name for name in names}
    meant = ALIASES.get(wrong.lower(), "")
    near = [meant] if meant in spelt else difflib.get_close_matches(wrong.lower(), spelt, 1, 0.5)
    return f" (did you mean {spelt[near[0]]}?)" if near else ""


def plain(default: Plain) -> Plain:
    """A default as any other value."""
    if isinstance(default, OneOf):
        return str(default)
    if isinstance(default, Whole):
        return int(default)
    return float(default) if isinstance(default, Number) else default


def wanted(default: Plain, value: object) -> str:
    """What an option with this default must be, in words; "" where the value is that."""
    if isinstance(default, str):
        allowed = getattr(default, "allowed", ())
        if not isinstance(value, str) or (allowed and value not in allowed):
            return f"choose {', '.join(allowed)}{nearest_name(str(value), allowed)}"
        return ""
    if isinstance(default, bool):
        return "" if isinstance(value, bool | np.bool_) else "choose True or False"
    if isinstance(value, bool | np.bool_) or not isinstance(value, REAL):
        return "give a number"
    if isinstance(default, int):
        if not isinstance(value, int | np.integer):
            return "give a whole number"
        least = getattr(default, "least", None)
        return "" if least is None or value >= least else f"choose {least} or more"
    if not isinstance(default, Number) or (
        math.isfinite(value) and default.least <= value < default.end
    ):
        return ""
    if not math.isfinite(value) or default.least == -math.inf:
        return "give a finite number"
    below = "" if default.end == math.inf else f", below {default.end:g}"
    return f"choose {default.least:g} or more{below}"


def optimizer_of(options: Mapping[str, Plain]) -> SparseOptimizer:
    """The optimizer that the options of `backward` describe."""
    keys: dict[str, Any] = {spec.name: options.get(spec.name) for spec in fields(SparseOptimizer)}
    keys = {key: value for key, value in keys.items() if value is not None}
    return SparseOptimizer(**keys | {"name": str(options["optimizer"])})


def void_option(options: Mapping[str, Plain]) -> str:
    """Which option has a value that the optimizer does not read, and why; "" if none has.

    options : complete ones.
    """
    if "optimizer" in options:
        for name, why in optimizer_of(options).void():
            return f"{name} is {options[name]!r}: {why}"
    return ""
