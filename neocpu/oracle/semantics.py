"""Which mistakes do kernels make, and where do peers mean something else? Every difference as one named switch.

A switch bends the exact model of `Operator.truth`. A peer's quirk and a beginner's mistake are the same thing to it: the
answer of a kernel is explained by a switch when it lies within the bounds of the truth bent by it. Mirrors of peers are
sets of quirks. Each switch has a line in docs/semantics.md and a test.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Switch:
    """One way to differ from the exact model: what it does, and for a mistake what to do about it."""

    name: str
    kind: Literal["quirk", "mistake"]
    about: str
    fix: str
    ops: tuple[str, ...]


LOOKUPS = ("lookup",)
BACKWARD = ("backward", "trajectory")
MERGES = ("backward", "trajectory", "unique_gradient")
POOLED = ("lookup", "weight_gradient", *MERGES)


def _mistake(name: str, ops: tuple[str, ...], about: str, fix: str) -> Switch:
    return Switch(name, "mistake", about, fix, ops)


def _quirk(name: str, ops: tuple[str, ...], about: str) -> Switch:
    return Switch(name, "quirk", about, "", ops)


SWITCHES: dict[str, Switch] = {
    s.name: s
    for s in (
        _mistake(
            "mean_not_divided",
            POOLED,
            "a MEAN bag, or the gradient that flows into it, is not divided by the bag's length",
            "divide the pooled sum by L in forward, and the gradient by L in backward",
        ),
        _mistake(
            "duplicates_in_sequence",
            BACKWARD,
            "a row that occurs n times gets n optimizer steps instead of one from the merged gradient",
            "sort or hash the rows, add the gradients of duplicates, then update once",
        ),
    )
}

PRESETS: dict[str, frozenset[str]] = {
    "exact": frozenset(),
    "fbgemm_cpu": frozenset(),
    "fbgemm_cuda": frozenset(),
    "torchrec_row_wise": frozenset(),
    "torch": frozenset(),
}


def switches_for(op: str, kind: str | None = None) -> tuple[Switch, ...]:
    """The switches that bend that operator, mistakes first."""
    found = (s for s in SWITCHES.values() if op in s.ops and kind in (None, s.kind))
    return tuple(sorted(found, key=lambda s: s.kind != "mistake"))
