"""Which losses may a fit minimise, and which activations have its hidden units? Each is a function
of a sample's scores, or of a number, with its curvature.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels.dense import curves

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Loss:
    """A loss.

    curve : kernel (scores f64[n, K], labels f64[n], loss f64[n], slope f64[n, K],
        curvature f64[n, K]). labels : what they must be: "class" (two values), "number", "classes".
    name : of the linear model that minimises it. coupled : do scores of a sample meet in it?
    """

    curve: Callable[[F64, F64, F64, F64, F64], None]
    labels: str
    name: str
    coupled: bool = False

    def curved(self, curvature: F64, moved: F64) -> F64:
        """The change f64[n, K] of slopes where scores move by f64[n, K]."""
        if not self.coupled:
            return curvature * moved
        out = np.empty_like(moved)
        curves.softmax_curved(curvature, moved, out)
        return out


# by `keys.LOSS_NAMES`
LOSSES = {
    "logistic": Loss(curves.logistic, "class", "logistic regression"),
    "squares": Loss(curves.squares, "number", "linear regression"),
    "squared_hinge": Loss(curves.squared_hinge, "class", "support vector machine"),
    "softmax": Loss(curves.softmax, "classes", "multinomial regression", coupled=True),
}

# kernels (z, value, slope, curvature), f64[n, h] each, by `keys.ACTIVATION_NAMES`
ACTIVATIONS: dict[str, Callable[[F64, F64, F64, F64], None]] = {
    "tanh": curves.tanh_units,
    "relu": curves.relu_units,
}
