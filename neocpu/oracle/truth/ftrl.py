"""What does one step of FTRL-Proximal do to weights? (McMahan et al. 2013, Algorithm 1)"""

import numpy as np

from neocpu.core.types import Bools
from neocpu.oracle.truth.hyper import Hyper
from neocpu.oracle.truth.numbers import Bounded, product, where


def proximal(
    states: dict[str, Bounded], w: Bounded, g: Bounded, square: Bounded, h: Hyper
) -> Bounded:
    """The new weights; `states` (accumulator, linear: n, z) are replaced.

    n += g^2; z += g - sigma * w; w = (clip(z) - z) / ((beta + sqrt(n)) / lr + lambda2), with sigma
    = (sqrt(n) - sqrt(old n)) / lr and clip(z) the nearest number in [-lambda1, lambda1].
    """
    old_root = _root(states["accumulator"], h)
    n = states["accumulator"] + square
    root = _root(n, h)
    # every kernel has equal roots where nothing is added; infinite ones have no difference
    unchanged = _surely_zero(g) & np.isfinite(root.value)
    grown = where(unchanged, Bounded.exactly(np.zeros(g.value.shape)), root - old_root)
    z = states["linear"] + g
    if "ftrl_sigma_missing" not in h.bends:
        pull = product(grown, w, over=(h["learning_rate"],))
        z = z - pull
        # Kernels may subtract the pull from g first; where z and g cancel, that differs.
        other_order = states["linear"] + (g - pull)
        z = Bounded(z.value, np.maximum(z.error, other_order.error))
    states["accumulator"] = n
    states["linear"] = z
    if "update_before_state" in h.bends:
        root = old_root
    lambda2 = h["lambda2"]
    if "ftrl_l2_doubled" in h.bends:
        lambda2 = lambda2 + lambda2
    slope = (h["beta"] + root) / h["learning_rate"] + lambda2
    step = product(_outside(z, h), over=(slope,))
    return step if "ftrl_sign_of_z" in h.bends else -step


def _root(n: Bounded, h: Hyper) -> Bounded:
    """sqrt(n)."""
    if "ftrl_eps_inside_root" in h.bends:
        n = n + Bounded.exactly(float(np.finfo(np.float32).eps))
    return n if "root_missing" in h.bends else n.sqrt()


def _surely_zero(x: Bounded) -> Bools:
    return (x.value == 0) & (x.error == 0)


def _outside(z: Bounded, h: Hyper) -> Bounded:
    """z - clip(z): how far z is outside [-lambda1, lambda1]; 0 inside."""
    threshold = h["lambda1"]
    # Surely inside the weight is exactly 0.
    inside = np.abs(z.value) + z.error + threshold.error <= threshold.value
    outside = z - threshold * Bounded.exactly(np.sign(z.value))
    value = np.where(np.abs(z.value) <= threshold.value, 0.0, outside.value)
    if "ftrl_threshold_missing" in h.bends:
        return outside
    if "ftrl_threshold_hard" in h.bends:
        outside = z
        value = np.where(np.abs(z.value) <= threshold.value, 0.0, z.value)
    return Bounded(value, np.where(inside, 0.0, outside.error))
