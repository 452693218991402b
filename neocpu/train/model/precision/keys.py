"""What do the keys of a config say about the numbers of the dense half? Without what rounds them,
so that reading a config imports no kernels.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

from neocpu.core.records import Limits

FP32 = "fp32"
FP8 = "fp8"
PRECISIONS = (FP32, "bf16", "fp16", FP8)
ROUNDINGS = ("nearest", "stochastic", "truncate", "half_up")
WEIGHTS = ("master", "split", "none")
DYNAMIC = "dynamic"
LOSS_SCALING = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
TENSOR_SCALING = ("amax_history_len", "margin")


@dataclass(frozen=True)
class PrecisionKeys:
    """Numbers in which the products of the dense half are made (docs/precision.md).

    format : of the operands of products, whose sums are fp32; fp8: E4M3 in the forward pass, E5M2
        in the backward pass, with a scale for each tensor.
    rounding : to the nearest, ties to even; stochastic; truncate, towards zero; half_up (bf16
        only): to the nearest, ties away from zero.
    weights : master: fp32 numbers, rounded for products; split (bf16 only): fp32 numbers of which
        products read the upper 16 bits, as split-SGD; none: kept in the format, and rounded after
        each update.
    loss_scale : what the loss is multiplied by before the backward pass, a power of two; "dynamic":
        it follows from the steps that overflow (0: dynamic for fp16, else 1).
    init_scale, growth_factor, backoff_factor, growth_interval : a dynamic scale at first, what it
        is multiplied by after so many steps without overflow, and after a step with one; powers of
        two.
    amax_history_len : steps whose largest numbers the scales of fp8 follow from. margin : powers of
        two that these scales leave free.
    """

    format: Annotated[str, Limits(PRECISIONS)] = FP32
    rounding: Annotated[str, Limits(ROUNDINGS)] = "nearest"
    weights: Annotated[str, Limits(WEIGHTS)] = "master"
    loss_scale: Annotated[float | str, Limits((DYNAMIC,))] = 0.0
    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: Annotated[int, Limits(least=1)] = 2000
    amax_history_len: Annotated[int, Limits(least=1, most=1024)] = 16
    margin: Annotated[int, Limits(most=8)] = 0

    @property
    def dynamic(self) -> bool:
        """Does the loss scale follow from overflows?"""
        return self.loss_scale == DYNAMIC or (self.format == "fp16" and not self.loss_scale)

    @property
    def first_scale(self) -> float:
        """The loss scale of the first step."""
        if self.dynamic:
            return self.init_scale
        return float(self.loss_scale) or 1.0

    def header(self) -> dict[str, object]:
        """What decides the bits: keys that are not at their defaults; {}: all is fp32."""
        defaults = asdict(PrecisionKeys())
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}

    def faults(self) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it)."""
        if self.format == FP32:
            for key, value in self.header().items():
                yield (
                    key,
                    f"{value} has no effect while model.precision.format is fp32; set that too",
                )
            return
        if self.rounding == "half_up" and self.format != "bf16":
            yield "rounding", f"half_up is a rounding of bf16, not of {self.format}"
        if self.weights == "split" and self.format != "bf16":
            yield (
                "weights",
                f"split keeps the two halves of fp32 numbers, which {self.format} has not",
            )
        if self.weights == "none" and self.format == FP8:
            yield (
                "weights",
                "no update would be large enough to change an fp8 number; keep master weights",
            )
        yield from self._loss_faults()
        if self.format != FP8:
            for key in TENSOR_SCALING:
                yield from self._unread(key, 'model.precision.format is not "fp8"')

    def _loss_faults(self) -> Iterator[tuple[str, str]]:
        if self.format == FP8 and self.loss_scale:
            yield "loss_scale", "tensors of fp8 have scales of their own; leave it out"
        if not self.dynamic:
            for key in LOSS_SCALING:
                yield from self._unread(key, 'model.precision.loss_scale is not "dynamic"')
        for key in ("loss_scale", *LOSS_SCALING[:3]):
            value = getattr(self, key)
            if isinstance(value, float) and value and math.frexp(value)[0] != 0.5:
                yield key, f"{value:g} is no power of two, so scaling would round"
        if self.init_scale < 1:
            yield "init_scale", f"{self.init_scale:g} must be 1 or more"
        if self.growth_factor < 1:
            yield "growth_factor", f"{self.growth_factor:g} must be 1 or more"
        if not 0 < self.backoff_factor < 1:
            yield "backoff_factor", f"{self.backoff_factor:g} must be above 0 and below 1"

    def _unread(self, key: str, why: str) -> Iterator[tuple[str, str]]:
        value = getattr(self, key)
        if value != getattr(PrecisionKeys(), key):
            yield key, f"{value} has no effect while {why}; set that, or leave it out"
