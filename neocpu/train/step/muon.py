"""How do matrices learn by Muon? Along their momentum, with its singular values made about equal.

    gradient of all ranks ──► momentum of all matrices                every rank, number by number
                              orthogonal directions                   each rank, of its matrices
    directions ──► all ranks ──► weight decay, update
    vectors ──► optimizer.dense                                       every rank

Formulas: docs/arithmetic.md §5; Jordan et al. 2024.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from neocpu.core.types import Floats
from neocpu.kernels.dense.muon import orthogonalize
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.dense_optimizer import DenseRule
from neocpu.tables.specs.directions import RMS, MuonKeys, ParameterBlock, matrices_of
from neocpu.train.step.directions import Directions, part_of, threaded, view_of

MOMENTUM = "muon_momentum"  # among the states


class Muon(Directions):
    """Steps of matrices by Muon, of everything else by a dense rule.

    shapes : of the parameters, by name in the order of the flat array. keys : of optimizer.muon.
    The others are those of `Directions`.
    """

    def __init__(
        self, comm: Comm, shapes: Mapping[str, Sequence[int]], keys: MuonKeys, rule: DenseRule
    ) -> None:
        super().__init__(comm, keys.ranks_per_group, matrices_of(shapes), rule)
        self._keys = keys
        self.state[MOMENTUM] = np.zeros(self.parameters.size, np.float32)

    def begin(self, gradient: Floats, step: int, span: slice) -> None:
        """As of `Directions`."""
        first, end, _ = span.indices(self.parameters.size)
        blocks = self._ascending(span)
        for lo, hi in _between(blocks, first, end):
            self._plain_step(gradient[lo - first : hi - first], step, slice(lo, hi))
        self._gradient[first:end] = gradient
        with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is told so by its loss
            self._decay_gradient(step, first, end)
            for block in blocks:
                self._follow_gradient(_span(block))
            for block in threaded(self._in(span).of_rank(self._comm.rank)):
                out = np.empty(block.size, np.float32)
                orthogonalize(part_of(self._step, block), self._keys.steps, out)
                view_of(self._step, block)[...] = out

    def finish(self, step: int, span: slice) -> None:
        """As of `Directions`."""
        with np.errstate(over="ignore", invalid="ignore"):
            for block in self._ascending(span):
                self._apply(block, step)

    def _ascending(self, span: slice) -> Sequence[ParameterBlock]:
        """The matrices of a span."""
        return sorted(self._in(span).blocks, key=lambda block: block.first)

    def _follow_gradient(self, span: slice) -> None:
        """The momentum of some parameters after their gradient, and what is made orthogonal."""
        beta = np.float32(self._keys.momentum)
        # of the fp64 difference: 1 - fl(beta) would be another number
        rest = np.float32(1.0 - self._keys.momentum)
        addend = rest * self._gradient[span]
        momentum = self.state[MOMENTUM][span]
        momentum *= beta
        momentum += addend
        self._step[span] = momentum
        if self._keys.nesterov:
            self._step[span] *= beta
            self._step[span] += addend

    def _apply(self, block: ParameterBlock, step: int) -> None:
        """Take a matrix's direction off it, after weight decay."""
        span = _span(block)
        rows, columns = block.shape
        if self._keys.scale == RMS:
            scale = 0.2 * math.sqrt(max(rows, columns))
        else:
            scale = math.sqrt(max(1.0, rows / columns))
        for run in self._runs_in(span.start, span.stop):
            own = slice(run.first, run.end)
            hyper = run.optimizer.hyper(step)
            rate = np.float32(float(hyper.lr) * self._keys.rate * scale)
            parameters = self.parameters[own]
            parameters *= hyper.keep
            parameters -= rate * self._step[own]
        self.settle(span.start, span.stop, step)
        self._follow(span)


def _span(block: ParameterBlock) -> slice:
    """A whole parameter in the flat array."""
    return slice(block.first, block.first + math.prod(block.shape))


def _between(blocks: Sequence[ParameterBlock], first: int, end: int) -> Iterator[tuple[int, int]]:
    """The parameters of [first, end) that are in none of the blocks, which are ascending."""
    for block in blocks:
        span = _span(block)
        if first < span.start:
            yield first, span.start
        first = span.stop
    if first < end:
        yield first, end
