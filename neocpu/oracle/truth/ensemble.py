"""What becomes of rows that have a shadow, an average of themselves over steps?

FBGEMM's ENSEMBLE_ROWWISE_ADAGRAD keeps `sparse_ema` beside the weights, one number per element from
0. Before the lookup of training step t, on whole tables, whether rows are touched or not:

    every step_ema steps    sparse_ema = c*sparse_ema + (1 - c)*w, c = step_ema_coef, 0 up to step
                            step_start
    every step_swap steps   w = sparse_ema (a copy: the shadow keeps its numbers)
    every step_ema steps    sparse_ema = 0, where step_mode is "none"

The shadow is stored in `momentum2_format`; weights are rounded to it before they are averaged.
"""

from typing import NamedTuple

import numpy as np

from neocpu.core.types import Bools
from neocpu.oracle.operator import Options, Switches, Value
from neocpu.oracle.options import Number, OneOf, Whole
from neocpu.oracle.truth.formats import stored
from neocpu.oracle.truth.numbers import ULP, Bounded, where

OPTIONS: dict[str, Value] = {
    "step_ema": Whole(0, 0),
    "step_swap": Whole(0, 0),
    "step_start": Whole(0, 0),
    "step_ema_coef": Number(0.6, 0),
    "step_mode": OneOf("use_iter", ("none", "use_counter", "use_iter")),
}


class Due(NamedTuple):
    """What a step does before its lookup: take the average, copy it to the weights, set it to 0.

    coefficient : of the old average.
    """

    average: bool
    copy: bool
    clear: bool
    coefficient: float


def keeps_shadow(options: Options) -> bool:
    """Whether weights have a shadow."""
    return bool(options["step_ema"] or options["step_swap"])


def due(options: Options, step: int) -> Due:
    """What training step `step` (from 1) does."""
    interval = int(options["step_ema"])
    swap_every = int(options["step_swap"])
    average = interval > 0 and step % interval == 0
    started = step > int(options["step_start"])
    return Due(
        average=average,
        copy=swap_every > 0 and step % swap_every == 0,
        clear=average and options["step_mode"] == "none",
        coefficient=float(options["step_ema_coef"]) if started else 0.0,
    )


def averaged(
    weights: Bounded, shadow: Bounded, options: Options, step: int, touched: Bools, bends: Switches
) -> tuple[Bounded, Bounded]:
    """Weights and shadow [elements] after what is due before the lookup of a training step.

    touched : elements of the rows that the step looks up.
    """
    # a step earlier than step_start is one before its end
    early = "ensemble_starts_early" in bends
    due_now = due({**options, "step_start": int(options["step_start"]) - early}, step)
    form = str(options["momentum2_format"])
    new_shadow = shadow
    if due_now.average:
        # torch's lerp wants both operands in one dtype: the shadow's.
        narrowed = stored(weights, form)
        new_shadow = stored(_interpolated(shadow, narrowed, due_now.coefficient, bends), form)
    # The copy takes what was averaged just now: FBGEMM averages first.
    new_weights = new_shadow if due_now.copy else weights
    if due_now.copy and "ensemble_swap_exchanges" in bends:
        new_shadow = weights
    # Last, as the copy would take the zeros otherwise.
    if due_now.clear:
        new_shadow = Bounded.exactly(np.zeros(shadow.value.shape))
    if "ensemble_touched_rows_only" in bends:
        return where(touched, new_weights, weights), where(touched, new_shadow, shadow)
    return new_weights, new_shadow


def _interpolated(
    shadow: Bounded, weights: Bounded, coefficient: float, bends: Switches
) -> Bounded:
    """c*shadow + (1 - c)*w, by kernels that compute it so or as shadow + (1 - c)*(w - shadow)."""
    if "ensemble_coefficient_swapped" in bends:
        coefficient = 1 - coefficient
    old = Bounded.constant(coefficient)
    new = Bounded(np.asarray(1 - coefficient), np.asarray(ULP if 0 < coefficient < 1 else 0.0))
    direct = old * shadow + new * weights
    # torch's lerp, which may lose more where w and shadow differ much.
    by_difference = shadow + new * (weights - shadow)
    return Bounded(direct.value, np.maximum(direct.error, by_difference.error))
