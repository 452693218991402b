"""How do tensors of the dense half become operands of products? Each is rounded where it enters
one, and what rounds them knows step, samples and scales.

    layer      x ─► [activation] ─┐
               W ─► [weight] ─────┴► fp32 sums, bias, ReLU ─► the next layer's x
    backward   g ─► [gradient] ─► products with [weight] and [activation], fp32 sums

Scales of fp8 are those of the steps before (delayed scaling), so no tensor waits for the largest
number of all ranks: each rank notes its own, they travel while weight gradients are summed, and the
next step has them. Loss scaling multiplies the loss, and takes the factor off the gradients again
where they leave the dense half. All scales are powers of two (`docs/arithmetic.md` §17).
"""

import math
from typing import NamedTuple

import numpy as np

from neocpu.core.codecs import LAYOUTS, ROUNDINGS
from neocpu.core.formats import FORMATS
from neocpu.core.types import Floats, FloatsByName
from neocpu.kernels.compile.choice import chosen
from neocpu.kernels.operands import OperandFormat
from neocpu.kernels.twins.numbers.philox import DENSE_ROUNDING, tensor_key
from neocpu.train.model.arrays import Buffer
from neocpu.train.model.precision.keys import FP8, PrecisionKeys

STATE = "precision."  # tensors of the state that are no parameters begin so
ONE = np.float32(1)
UNLIMITED = np.float32(np.inf)
NEAREST = ROUNDINGS["nearest"]
WIDEST = 100  # exponents of scales stay within ±this, so that 1/scale is a number
LARGEST_LOSS_SCALE = 2.0**40


class TensorKind(NamedTuple):
    """Tensors of one kind.

    format : in `core.formats`. rounding : a name of `core.codecs.ROUNDINGS`. limit : magnitude that
    they are moved to where they are larger.
    """

    format: str
    rounding: str
    limit: np.float32 = UNLIMITED


def scale_for(largest: float, most: float, margin: int) -> np.float32:
    """The greatest power of two that keeps a magnitude at `most` or below, less the margin."""
    # a quotient of fp32 numbers is never so near to a power of two that fp64 rounds it to that
    exponent = math.frexp(most / float(largest))[1] - 1
    return np.float32(math.ldexp(1.0, max(-WIDEST, min(WIDEST, exponent - margin))))


class OperandRounding:
    """One tensor: it enters products as it is."""

    def of(self, x: Floats) -> Floats:
        """The operand f32[r, c] of x, which stays as it is; valid until the next call."""
        return x

    def inside(self, x: Floats) -> Floats:
        """The operand f32[r, c] in place of x."""
        return x


class Precision:
    """Products of fp32 numbers, as they are.

    Attributes: loss_scale, what the loss is multiplied by; skips, does a step count that overflows?
    state, tensors of the state: name -> fields.
    """

    skips = False

    def __init__(self) -> None:
        self.state: dict[str, FloatsByName] = {}

    @property
    def loss_scale(self) -> np.float32:
        """What the loss is multiplied by."""
        return ONE

    @property
    def unscale(self) -> np.float32:
        """What takes the loss scale off a gradient."""
        return ONE / self.loss_scale

    def weight(self, name: str) -> OperandRounding:
        """Of the parameter with this name."""
        return OperandRounding()

    def activation(self, name: str, rows: int = 1) -> OperandRounding:
        """Of what a layer or an interaction takes in; rows : of the matrix for each sample."""
        return OperandRounding()

    def gradient(self, name: str, rows: int = 1) -> OperandRounding:
        """Of the gradient of what it gives."""
        return OperandRounding()

    def begin(self, step: int, first: int, samples: int) -> None:
        """A step of training begins; first : number of this rank's first sample in the batch of all
        ranks. samples : of that batch.
        """

    def measure(self) -> None:
        """What comes now is no training."""

    def settle(self, parameters: FloatsByName, step: int) -> None:
        """Parameters were updated, or are the initial ones (step 0)."""

    @property
    def peaks(self) -> Floats:
        """Largest magnitudes f32[n] of this rank's tensors in this step."""
        return np.empty(0, np.float32)

    def end(self, peaks: Floats) -> None:
        """The step was taken; peaks : f32[ranks, n], of all ranks."""

    def overflowed(self) -> bool:
        """The step was left out since a gradient was not finite; could a smaller loss scale help?

        Then it is smaller from now on.
        """
        return False


EXACT = Precision()


class NarrowPrecision(Precision):
    """Products of small floats.

    keys : of model.precision. seed : of stochastic rounding.
    """

    def __init__(self, keys: PrecisionKeys, seed: int) -> None:
        super().__init__()
        self._keys = keys
        self._seed = seed
        self.step = 0  # of training; 0: not training
        self.first = 0
        self._samples = 1
        self._operands: list[TensorRounding] = []  # whose scales are delayed
        forward, backward = keys.format, keys.format
        if keys.format == FP8:
            forward, backward = "fp8_e4m3", "fp8_e5m2"
        self._forward = self._kind(forward)
        self._backward = self._kind(backward)
        self._weights = self._forward
        if keys.weights == "split":
            self._weights = TensorKind(forward, "truncate")
        self.skips = keys.dynamic
        self._loss = np.array([keys.first_scale, 0], np.float32)
        if keys.dynamic:
            self.state[f"{STATE}loss_scale"] = {"value": self._loss}

    def _kind(self, form: str) -> TensorKind:
        number = FORMATS[form].number
        assert number is not None
        limit = np.float32(number.largest) if self._keys.format == FP8 else UNLIMITED
        return TensorKind(form, self._keys.rounding, limit)

    @property
    def loss_scale(self) -> np.float32:
        """What the loss is multiplied by."""
        scale: np.float32 = self._loss[0]
        return scale if self.step else ONE

    def weight(self, name: str) -> OperandRounding:
        """Of the parameter with this name."""
        return WeightRounding(self, self._weights, name)

    def activation(self, name: str, rows: int = 1) -> OperandRounding:
        """Of what a layer or an interaction takes in."""
        return self._tensor(self._forward, f"{name}.activation", rows)

    def gradient(self, name: str, rows: int = 1) -> OperandRounding:
        """Of the gradient of what it gives, whose first scale is that of a mean over samples."""
        return self._tensor(self._backward, f"{name}.gradient", rows)

    def _tensor(self, kind: TensorKind, name: str, rows: int) -> "TensorRounding":
        operand = TensorRounding(self, kind, name, rows)
        if self._keys.format == FP8:
            operand.number = len(self._operands)
            self._operands.append(operand)
            shape = (len(self._operands), self._keys.amax_history_len)
            self.state[f"{STATE}amax"] = {"value": np.zeros(shape, np.float32)}
        return operand

    def begin(self, step: int, first: int, samples: int) -> None:
        """A step of training begins: scales follow from the steps before."""
        self.step = step
        self.first = first
        self._samples = samples
        self._take_scales()

    def measure(self) -> None:
        """What comes now is no training: nothing is random, and no scale follows from it."""
        self.step = 0
        self._take_scales()

    def _take_scales(self) -> None:
        for operand in self._operands:
            operand.peak = np.float32(0)
            largest = float(self._history[operand.number].max())
            most = float(operand.kind.limit)
            if largest:
                operand.scale = scale_for(largest, most, self._keys.margin)
            elif operand.kind is self._backward:
                operand.scale = scale_for(1.0, self._samples, 0)
            else:
                operand.scale = ONE

    @property
    def _history(self) -> Floats:
        """Largest magnitudes f32[tensors, steps], the newest first; 0: not known."""
        return self.state[f"{STATE}amax"]["value"]

    @property
    def peaks(self) -> Floats:
        """Largest magnitudes of this rank's tensors; NaN and infinity say nothing of the next."""
        peaks = np.array([operand.peak for operand in self._operands], np.float32)
        return np.where(np.isfinite(peaks), peaks, np.float32(0))

    def end(self, peaks: Floats) -> None:
        """The step was taken: what its tensors held, and what loss scale follows."""
        if self._operands:
            history = self._history
            history[:, 1:] = history[:, :-1].copy()
            history[:, 0] = peaks.max(axis=0)
        if self.skips:
            self._loss[1] += 1
            if self._loss[1] >= self._keys.growth_interval:
                grown = float(self._loss[0]) * self._keys.growth_factor
                self._loss[:] = min(grown, LARGEST_LOSS_SCALE), 0

    def overflowed(self) -> bool:
        """Halve the loss scale, or what backoff_factor says, as far as 1."""
        if not self.skips or self._loss[0] <= 1:
            return False
        self._loss[:] = max(float(self._loss[0]) * self._keys.backoff_factor, 1.0), 0
        return True

    def settle(self, parameters: FloatsByName, step: int) -> None:
        """Without master weights, round the matrices; initial ones to the nearest."""
        if self._keys.weights != "none":
            return
        before = self.step
        self.step = step
        for name, values in parameters.items():
            # biases are added, and enter no product
            if values.ndim == 2:
                WeightRounding(self, self._weights, name).inside(values)
        self.step = before

    def key(self, name: str) -> np.uint64:
        """Of the random words of a tensor."""
        return np.uint64(tensor_key(self._seed, DENSE_ROUNDING, name))


class TensorRounding(OperandRounding):
    """A tensor of samples, rounded.

    owner : knows the step. kind : of its numbers. rows : of its matrix for each sample.

    Attributes: scale; peak, largest magnitude in this step; number, among those with a history.
    """

    def __init__(self, owner: NarrowPrecision, kind: TensorKind, name: str, rows: int) -> None:
        self.kind = kind
        self.scale = ONE
        self.peak = np.float32(0)
        self.number = 0
        self._owner = owner
        self._rows = rows
        self._layout = LAYOUTS[kind.format]
        self._key = owner.key(name)
        self._rounding = ROUNDINGS[kind.rounding]
        self._memory = Buffer(0)

    def of(self, x: Floats) -> Floats:
        """The rounded numbers, in memory of its own."""
        if self._memory.columns != x.shape[1]:
            self._memory = Buffer(x.shape[1])
        return self._round(np.ascontiguousarray(x), self._memory.matrix(len(x)), False)

    def inside(self, x: Floats) -> Floats:
        """The rounded numbers in place of x."""
        return self._round(x, x, True)

    def _round(self, x: Floats, out: Floats, inside: bool) -> Floats:
        form = OperandFormat(self._layout, self._scale_of(x), self.kind.limit)
        if self._rounding == ROUNDINGS["stochastic"] and self._owner.step:
            draw = (self._key, self._first_row, self._owner.step)
            round_randomly = chosen("dense.operands", "round_operand_randomly")
            self.peak = round_randomly(x, form, *draw, out, inside)
            return out
        # what is measured is not random
        rounding = NEAREST if self._rounding == ROUNDINGS["stochastic"] else self._rounding
        self.peak = chosen("dense.operands", "round_operand")(x, form, rounding, out, inside)
        return out

    @property
    def _first_row(self) -> int:
        """Number of the first row among those of all ranks."""
        return self._owner.first * self._rows

    def _scale_of(self, x: Floats) -> np.float32:
        return self.scale


class WeightRounding(TensorRounding):
    """A parameter, rounded: every rank has the whole of it, so its scale is of this very moment."""

    def __init__(self, owner: NarrowPrecision, kind: TensorKind, name: str) -> None:
        super().__init__(owner, kind, name, 1)

    @property
    def _first_row(self) -> int:
        return 0

    def _scale_of(self, x: Floats) -> np.float32:
        if self.kind.limit == UNLIMITED:
            return ONE
        largest = float(np.abs(x).max(initial=np.float32(0)))
        if not (largest and math.isfinite(largest)):
            return ONE
        return scale_for(largest, float(self.kind.limit), 0)


def precision_of(keys: PrecisionKeys, seed: int) -> Precision:
    """What rounds the tensors of a model."""
    return EXACT if keys.format == "fp32" else NarrowPrecision(keys, seed)
