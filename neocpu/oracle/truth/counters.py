"""How do row counters bend rate and weight decay? FBGEMM's frequency weighting and CowClip, over
bounded numbers.
"""

import math

import numpy as np

from neocpu.oracle.operator import Value
from neocpu.oracle.truth.numbers import ULP, Bounded, Real, larger, rounded, smaller, unsure, where

ONE = Bounded.exactly(1.0)


def elapsed(before: Bounded, step: int) -> Real:
    """Steps since a row was last updated; 1 at its first update."""
    return np.where(before.value > 0, step - before.value, 1.0)


def counted(states: dict[str, Bounded], step: int, halflife: int) -> Bounded:
    """How often a row was updated, this time included: each update is worth half after `halflife`
    steps.
    """
    times = states["row_counter"]
    if halflife < 0:
        return ONE + times
    if halflife == 0:
        return ONE + Bounded.exactly(0.0) * times
    faded = rounded(
        np.exp(-elapsed(states["prev_iter"], step) * (math.log(2) / halflife)),
        np.zeros(1),
        ulps=8.0,
    )
    return ONE + faded * times


def clipped(limit: Bounded, norm: Bounded) -> Bounded:
    """min(1, limit / norm)."""
    inside = norm.value + norm.error <= limit.value - limit.error
    factor = smaller(limit / norm, ONE)
    return where(inside, Bounded.exactly(np.ones(inside.shape)), factor)


def _raised(x: Bounded, exponent: float) -> Bounded:
    """x^exponent of positive numbers; a relative error grows by the exponent."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = x.value**exponent
        error = np.abs(value * exponent) * (x.error / np.abs(x.value)) * 1.001
    return rounded(value, np.broadcast_to(error, value.shape), ulps=8.0)


def _tail(
    o: dict[str, Value], lr: Bounded, plain: Bounded, times: Bounded, eps: Bounded
) -> Bounded:
    """Learning rate of rows, those that were counted often by the mode's formula."""
    mode = str(o["learning_rate_mode"])
    bound = float(o["adjustment_ub"])
    if mode == "equal":
        return plain
    threshold = float(o["tail_id_threshold"])
    most = Bounded.constant(float(o["max_counter"]))
    if o["tail_id_threshold_is_ratio"]:
        threshold = math.floor(threshold * float(o["max_counter"]))
    if mode == "counter_sgd":
        rate = lr / ((Bounded.constant(bound) * times).sqrt() + eps)
    elif mode == "tail_id_lr_increase":
        ratio = _raised(most / (times + ONE), bound)
        rate = plain * larger(smaller(ratio, Bounded.constant(10.0)), ONE)
    else:
        ratio = _raised((times + ONE) / most, bound)
        rate = plain * smaller(larger(ratio, Bounded.constant(0.1)), ONE)
    perhaps = (np.abs(times.value - threshold) <= times.error) & (times.error > 0)
    return unsure(where(times.value > threshold, rate, plain), perhaps)


def rate_and_keep(
    o: dict[str, Value],
    lr: Bounded,
    root: Bounded,
    times: Bounded,
    gap: Real,
    bends: frozenset[str],
) -> tuple[Bounded, Bounded]:
    """Rate and factor of the weights, [U] each, of the rule with counters."""
    plain = rate = lr / root
    keep = ONE
    share = Bounded.exactly(0.0)
    wd = Bounded.constant(float(o["weight_decay"]))
    step = int(o["step"])
    first = int(o["adjustment_iter"])
    mode = str(o["weight_decay_mode"])
    halflife = int(o["counter_halflife"])
    if first <= 0 or step > first:
        rate = _tail(o, lr, plain, times, Bounded.constant(float(o["eps"])))
        share = (
            Bounded.exactly(float(halflife if "counter_decay_grows" in bends else abs(halflife)))
            / times
        )
        if mode == "adagradw":
            if halflife == -1:
                rate = plain * times.sqrt()
            if halflife == -2:
                rate = smaller(lr * times, Bounded.constant(float(o["adjustment_ub"]))) / root
            base = 1 - float(o["learning_rate"]) * float(o["weight_decay"])
            days = np.minimum(gap, step - first) - 1
            lazy = rounded(
                base**days, np.zeros(days.shape), ulps=8.0 + 2 * float(np.max(days, initial=0))
            )
            rate = rate * lazy
            keep = Bounded(np.float64(base), np.float64(ULP)) * lazy  # type: ignore[arg-type]
    if mode == "decoupled":
        keep = ONE - share * wd * lr
    if mode == "l2":
        keep = ONE - wd * (share * plain - rate)
    shape = np.broadcast_shapes(np.shape(times.value), np.shape(keep.value))
    return rate, Bounded(np.broadcast_to(keep.value, shape), np.broadcast_to(keep.error, shape))
