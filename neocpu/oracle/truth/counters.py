"""How do row counters change rate and weight decay? FBGEMM's frequency weighting and CowClip.

Over bounded numbers. A row counter says how often a row was updated; `prev_iter` says when.
"""

import math

import numpy as np

from neocpu.kernels.twins.numbers.elementary import exp, log
from neocpu.oracle.operator import Options, Switches
from neocpu.oracle.truth.numbers import (
    ULP,
    Bounded,
    Real,
    larger,
    powers,
    rounded,
    smaller,
    unsure,
    where,
)

LN2 = 0.6931471805599453
ONE = Bounded.exactly(1.0)


def elapsed(before: Bounded, step: int) -> Real:
    """Steps since a row was last updated; 1 at its first update."""
    return np.where(before.value > 0, step - before.value, 1.0)


def counted(states: dict[str, Bounded], step: int, halflife: int) -> Bounded:
    """How often a row was updated, this time included.

    An update counts half after `halflife` steps; negative: for ever; 0: this step only.
    """
    counter = states["row_counter"]
    if halflife < 0:
        return ONE + counter
    if halflife == 0:
        return ONE + Bounded.exactly(0.0) * counter
    # Kernels take an exp of fp32, hence 8 ulps.
    decay = exp(-elapsed(states["prev_iter"], step) * (LN2 / halflife))
    return ONE + rounded(decay, np.zeros(1), ulps=8.0) * counter


def clipped(limit: Bounded, norm: Bounded) -> Bounded:
    """min(1, limit / norm)."""
    # Surely inside the factor is exactly 1: there is no division to be rounded.
    inside = norm.value + norm.error <= limit.value - limit.error
    factor = smaller(limit / norm, ONE)
    return where(inside, Bounded.exactly(np.ones(inside.shape)), factor)


def _raised(x: Bounded, exponent: float) -> Bounded:
    """x^exponent of positive numbers; a relative error grows by the exponent."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = exp(exponent * log(x.value))
        # First order, and a thousandth for the rest.
        error = np.abs(value * exponent) * (x.error / np.abs(x.value)) * 1.001
    return rounded(value, np.broadcast_to(error, value.shape), ulps=8.0)


def _adjusted_rate(options: Options, lr: Bounded, plain: Bounded, counter: Bounded) -> Bounded:
    """Learning rate of rows: by the mode's formula for those above the threshold, else `plain`."""
    mode = str(options["learning_rate_mode"])
    bound = float(options["adjustment_ub"])
    if mode == "equal":
        return plain
    threshold = float(options["tail_id_threshold"])
    max_counter = Bounded.constant(float(options["max_counter"]))
    if options["tail_id_threshold_is_ratio"]:
        # FBGEMM compares with a whole number of updates.
        threshold = math.floor(threshold * float(options["max_counter"]))
    if mode == "counter_sgd":
        eps = Bounded.constant(float(options["eps"]))
        rate = lr / ((Bounded.constant(bound) * counter).sqrt() + eps)
    elif mode == "tail_id_lr_increase":
        ratio = _raised(max_counter / (counter + ONE), bound)
        rate = plain * larger(smaller(ratio, Bounded.constant(10.0)), ONE)
    else:
        ratio = _raised((counter + ONE) / max_counter, bound)
        rate = plain * smaller(larger(ratio, Bounded.constant(0.1)), ONE)
    # A kernel's counter may be on the other side of the threshold.
    near = (np.abs(counter.value - threshold) <= counter.error) & (counter.error > 0)
    return unsure(where(counter.value > threshold, rate, plain), near)


def rate_and_keep(
    options: Options, lr: Bounded, root: Bounded, counter: Bounded, gap: Real, bends: Switches
) -> tuple[Bounded, Bounded]:
    """Rate and factor of the weights, [U] each, of the rule with counters.

    root : sqrt(state) + eps of each row.
    counter, gap : how often a row was updated, and how many steps ago.
    """
    plain = lr / root
    rate = plain
    keep = ONE
    share = Bounded.exactly(0.0)
    weight_decay = Bounded.constant(float(options["weight_decay"]))
    step = int(options["step"])
    first_adjusted = int(options["adjustment_iter"])
    mode = str(options["weight_decay_mode"])
    halflife = int(options["counter_halflife"])
    if first_adjusted <= 0 or step > first_adjusted:
        rate = _adjusted_rate(options, lr, plain, counter)
        # FBGEMM's default is -1, which would make rows grow.
        signed = halflife if "counter_decay_grows" in bends else abs(halflife)
        share = Bounded.exactly(float(signed)) / counter
        if mode == "adagradw":
            if halflife == -1:
                rate = plain * counter.sqrt()
            if halflife == -2:
                rate_limit = Bounded.constant(float(options["adjustment_ub"]))
                rate = smaller(lr * counter, rate_limit) / root
            base = 1 - float(options["learning_rate"]) * float(options["weight_decay"])
            # Never below 0: a bent model may step a row twice, or count steps anew.
            steps_missed = np.maximum(np.minimum(gap, step - first_adjusted) - 1, 0)
            # A power by repeated products loses an ulp for each, base and product alike.
            ulps = 8.0 + 2 * float(np.max(steps_missed, initial=0))
            missed = rounded(powers(base, steps_missed), np.zeros(steps_missed.shape), ulps=ulps)
            rate = rate * missed
            keep = Bounded(np.asarray(base), np.asarray(ULP)) * missed
    if mode == "decoupled":
        keep = ONE - share * weight_decay * lr
    if mode == "l2":
        keep = ONE - weight_decay * (share * plain - rate)
    shape = np.broadcast_shapes(np.shape(counter.value), np.shape(keep.value))
    return rate, Bounded(np.broadcast_to(keep.value, shape), np.broadcast_to(keep.error, shape))
