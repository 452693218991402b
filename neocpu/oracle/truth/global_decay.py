"""How much do rows decay that no step touched? The weight decay `decoupled_global`.

Every row decays in every step by c = 1 - lr*wd, but only when it is needed: `prev_iter` p says when
a row was last updated. In training step t its lookups, and its update, start from G*w with

    G = max(decay_lower_bound, c^max(t - p - 1, 0)), 1 where p is 0: rows that were never updated

and the update itself decays once more, as decoupled weight decay does; then p = t. G is 1, and p
stays, before step `decay_start` and where weight decay is 0. Evaluations read rows as they are
stored. FBGEMM: WeightDecayMode.DECOUPLE_GLOBAL, `global_weight_decay` of its forward and backward
kernels (GPU; the CPU has none).
"""

import numpy as np

from neocpu.oracle.operator import Options, Switches
from neocpu.oracle.truth.numbers import ULP, Bounded, larger, powers, rounded, where
from neocpu.oracle.truth.states import GLOBAL


def is_active(options: Options) -> bool:
    """Whether this step applies the decay of the steps that rows missed."""
    in_force = options["weight_decay_mode"] == GLOBAL and float(options["weight_decay"]) > 0
    return in_force and int(options["step"]) >= int(options["decay_start"])


def factors(prev_iter: Bounded, options: Options, bends: Switches) -> Bounded:
    """G of rows with this `prev_iter`, by kernels that take the power in fp32."""
    last = prev_iter.value
    share = float(options["learning_rate"]) * float(options["weight_decay"])
    keep = 1 - share
    counted = 0 if "global_decay_counts_this_step" in bends else 1
    missed = np.maximum(int(options["step"]) - last - counted, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        power = powers(keep, missed)
        # The error of c, as often as it is a factor of the power.
        one_less = powers(abs(keep), np.maximum(missed - 1, 0))
        error = missed * (ULP * (1 + abs(share))) * one_less
    bounded = rounded(power, np.broadcast_to(error, power.shape), ulps=8.0)
    factor = larger(bounded, Bounded.constant(float(options["decay_lower_bound"])))
    # c^0 is exactly 1, by every pow.
    at_once = missed == 0
    if "global_decay_of_new_rows" not in bends:
        at_once = at_once | (last == 0)
    return where(at_once, Bounded.exactly(np.ones(power.shape)), factor)
