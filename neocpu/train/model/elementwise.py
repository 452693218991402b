"""Which steps of one kernel (`kernels/dense/composition.py`) do all plain operations of a model
together?

Plain operations copy, add and multiply numbers; `train/model/operations/` says what each does.
Steps that copy neighbouring columns to neighbouring ones are one: full tables beside each other,
and the bottom MLP's output before them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Floats
from neocpu.kernels.dense.composition import ADD, ADD_ON, COPY, MULTIPLY, MULTIPLY_ON, compose
from neocpu.train.model.composition_layout import CompositionLayout, KeyVectors

PLAIN = {"copy": COPY, "add": ADD, "multiply": MULTIPLY}
GOES_ON = {ADD: ADD_ON, MULTIPLY: MULTIPLY_ON}


class ColumnStep(NamedTuple):
    """A step of the kernel: columns [at, at + width) of columns [left, ...) of the first matrix and
    [right, ...) of the second.
    """

    operation: int
    at: int
    width: int
    left: int
    right: int = 0


def forward_steps(first_column: int, parts: Sequence[KeyVectors]) -> list[ColumnStep]:
    """Steps from E physical, which is both matrices, to E; all begin with `first_column` other
    columns.
    """
    steps = [ColumnStep(COPY, 0, first_column, 0)]
    for vectors in parts:
        target = first_column + vectors.column
        operands = [first_column + source.column for source in vectors.sources]
        if vectors.operation != "copy" and len(operands) > 1:
            steps += _chain(PLAIN[vectors.operation], target, vectors.dim, *operands)
            continue
        for source, operand in zip(vectors.sources, operands):
            steps.append(ColumnStep(COPY, target, source.width, operand))
            target += source.width
    return list(_joined(steps))


def backward_steps(first_column: int, parts: Sequence[KeyVectors]) -> list[ColumnStep]:
    """Steps from the gradient of E, and E physical, to the gradient of E physical."""
    steps = [ColumnStep(COPY, 0, first_column, 0)]
    for vectors in parts:
        gradient = first_column + vectors.column
        numbers = list(range(len(vectors.sources)))
        if vectors.operation == "multiply":
            numbers.reverse()  # of two factors, columns are read in ascending order: a fifth faster
        for number in numbers:
            source = vectors.sources[number]
            target = first_column + source.column
            factors = [
                first_column + factor.column
                for other, factor in enumerate(vectors.sources)
                if other != number
            ]
            if vectors.operation == "multiply" and factors:
                steps += _chain(MULTIPLY, target, source.width, gradient, *factors)
            else:
                steps.append(ColumnStep(COPY, target, source.width, gradient))
            if vectors.operation == "copy":
                gradient += source.width
    return list(_joined(steps))


def _chain(operation: int, at: int, width: int, first: int, *operands: int) -> Iterator[ColumnStep]:
    """Columns of the first matrix, and of the second in their order."""
    for right in operands:
        yield ColumnStep(operation, at, width, first, right)
        operation = GOES_ON.get(operation, operation)


def _joined(steps: Iterable[ColumnStep]) -> Iterator[ColumnStep]:
    """The steps, those one that copy neighbouring columns to neighbouring ones."""
    joined: ColumnStep | None = None
    for step in steps:
        if joined is not None and step.operation == joined.operation == COPY:
            ends = joined.at + joined.width, joined.left + joined.width
            if (step.at, step.left) == ends:
                joined = joined._replace(width=joined.width + step.width)
                continue
        if joined is not None:
            yield joined
        joined = step
    if joined is not None:
        yield joined


class Plain:
    """All plain parts of a model. Arguments as for `Compositions`.

    Attribute: nothing, whether E is E physical.
    """

    def __init__(self, first_column: int, layout: CompositionLayout) -> None:
        parts = [
            vectors for vectors in layout.parts if vectors.pooled and vectors.operation in PLAIN
        ]
        self._forward = np.array(forward_steps(first_column, parts), np.uint64)
        self._backward = np.array(backward_steps(first_column, parts), np.uint64)
        columns = first_column + layout.columns
        whole = ColumnStep(COPY, 0, columns, 0)
        self.nothing = layout.columns == layout.physical_columns and self._forward.tolist() == [
            list(whole)
        ]

    def forward(self, physical: Floats, E: Floats) -> None:
        """Write the columns of plain parts of E f32[b, ...], and those before the first part."""
        # no copy where it is: kernels take rows without gaps
        contiguous = np.ascontiguousarray(physical)
        compose(self._forward, contiguous, contiguous, E)

    def backward(self, gradient: Floats, physical: Floats, dE: Floats) -> None:
        """Write the columns of their sources of dE, the gradient of E physical."""
        compose(self._backward, np.ascontiguousarray(gradient), np.ascontiguousarray(physical), dE)
