"""Which steps of one kernel (`kernels/composition.py`) do all plain operations of a model together?

Plain operations copy, add and multiply numbers; `model/operations/` says what each does. Steps that
copy neighbouring columns to neighbouring ones are one: full tables beside each other, and the
bottom MLP's output before them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels.composition import ADD, COPY, FIRST, MULTIPLY, OUT, SECOND, compose
from neocpu.model.arrays import F32
from neocpu.model.composition_layout import CompositionLayout, KeyVectors

PLAIN = {"copy": COPY, "add": ADD, "multiply": MULTIPLY}


class ColumnStep(NamedTuple):
    """A step of the kernel: operands are (matrix, first column)."""

    operation: int
    at: int
    width: int
    left: tuple[int, int]
    right: tuple[int, int] = (FIRST, 0)


def forward_steps(first_column: int, parts: Sequence[KeyVectors]) -> list[ColumnStep]:
    """Steps from E physical (FIRST) to E; both begin with `first_column` other columns."""
    steps = [ColumnStep(COPY, 0, first_column, (FIRST, 0))]
    for part in parts:
        at = first_column + part.column
        operands = [(FIRST, first_column + source.column) for source in part.sources]
        if part.operation != "copy" and len(operands) > 1:
            steps += _chain(PLAIN[part.operation], at, part.dim, operands)
            continue
        for source, operand in zip(part.sources, operands):
            steps.append(ColumnStep(COPY, at, source.width, operand))
            at += source.width
    return list(_joined(steps))


def backward_steps(first_column: int, parts: Sequence[KeyVectors]) -> list[ColumnStep]:
    """Steps from the gradient of E (FIRST), and E physical (SECOND), to that of E physical."""
    steps = [ColumnStep(COPY, 0, first_column, (FIRST, 0))]
    for part in parts:
        gradient = first_column + part.column
        for number, source in enumerate(part.sources):
            at = first_column + source.column
            factors = [
                (SECOND, first_column + factor.column)
                for other, factor in enumerate(part.sources)
                if other != number
            ]
            if part.operation == "multiply" and factors:
                steps += _chain(MULTIPLY, at, source.width, [(FIRST, gradient), *factors])
            else:
                steps.append(ColumnStep(COPY, at, source.width, (FIRST, gradient)))
            if part.operation == "copy":
                gradient += source.width
    return list(_joined(steps))


def _chain(
    operation: int, at: int, width: int, operands: Sequence[tuple[int, int]]
) -> Iterator[ColumnStep]:
    """Two or more operands, from the left."""
    left = operands[0]
    for right in operands[1:]:
        yield ColumnStep(operation, at, width, left, right)
        left = OUT, at


def _joined(steps: Iterable[ColumnStep]) -> Iterator[ColumnStep]:
    """The steps, those one that copy neighbouring columns to neighbouring ones."""
    joined: ColumnStep | None = None
    for step in steps:
        if joined is not None and step.operation == joined.operation == COPY:
            follows = joined.left[0], joined.left[1] + joined.width
            if (step.at, step.left) == (joined.at + joined.width, follows):
                joined = joined._replace(width=joined.width + step.width)
                continue
        if joined is not None:
            yield joined
        joined = step
    if joined is not None:
        yield joined


def _array(steps: Iterable[ColumnStep]) -> NDArray[np.int64]:
    """Steps as the kernel takes them, i64[n, 7]."""
    return np.array(
        [(step.operation, step.at, step.width, *step.left, *step.right) for step in steps], np.int64
    )


class Plain:
    """All plain parts of a model. Arguments as for `Compositions`.

    Attribute: nothing, whether E is E physical.
    """

    def __init__(self, first_column: int, layout: CompositionLayout) -> None:
        parts = [part for part in layout.parts if part.pooled and part.operation in PLAIN]
        self._forward = _array(forward_steps(first_column, parts))
        self._backward = _array(backward_steps(first_column, parts))
        columns = first_column + layout.columns
        self.nothing = (
            columns == first_column + layout.physical_columns
            and self._forward.tolist()
            == _array([ColumnStep(COPY, 0, columns, (FIRST, 0))]).tolist()
        )

    def forward(self, physical: F32, E: F32) -> None:
        """Write the columns of plain parts of E f32[b, ...], and those before the first part."""
        contiguous = np.ascontiguousarray(physical)
        compose(self._forward, contiguous, contiguous, E)

    def backward(self, gradient: F32, physical: F32, dE: F32) -> None:
        """Write the columns of their sources of dE, the gradient of E physical."""
        compose(self._backward, np.ascontiguousarray(gradient), np.ascontiguousarray(physical), dE)
