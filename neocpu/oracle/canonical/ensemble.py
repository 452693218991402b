"""Which bits do rows and their shadow have after an average? torch's `lerp`, in fp32.

Operation by operation `fl(e + fl((1 - c)*fl(w - e)))` where 1 - c < 1/2, else
`fl(w - fl(fl(w - e)*fl(1 - fl(1 - c))))`; one NumPy program is kernel and twin. What it means:
`truth/ensemble.py`.
"""

import numpy as np

from neocpu.core.types import Floats
from neocpu.oracle.adapters import Array, codes_of
from neocpu.oracle.canonical import decoded, encoded
from neocpu.oracle.operator import Options
from neocpu.oracle.truth.ensemble import due


def averaged_bits(
    weights: Array, shadow: Array, options: Options, step: int, backend: str
) -> tuple[Array, Array]:
    """Weights and shadow, in their formats, after what is due before the lookup of a step."""
    due_now = due(options, step)
    form = str(options["momentum2_format"])
    if due_now.average:
        row_format = str(options["weights_format"])
        narrowed = decoded(encoded(decoded(weights, row_format), form, backend), form)
        old = decoded(shadow, form)
        with np.errstate(all="ignore"):
            shadow = encoded(_interpolated(old, narrowed, due_now.coefficient), form, backend)
    if due_now.copy:
        row_format = str(options["weights_format"])
        weights = encoded(decoded(shadow, form), row_format, backend)
    if due_now.clear:
        # The caller's outputs of earlier steps share this array.
        shadow = shadow.copy()
        codes_of(shadow)[...] = 0
    return weights, shadow


def _interpolated(shadow: Floats, weights: Floats, coefficient: float) -> Floats:
    share = np.float32(1.0 - coefficient)
    distance = weights - shadow
    # torch's lerp starts from the nearer end.
    if share < np.float32(0.5):
        return shadow + share * distance
    return weights - distance * (np.float32(1.0) - share)
