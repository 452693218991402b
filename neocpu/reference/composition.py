"""How do vectors of physical tables become those of logical ones? The plain twin of
`kernels/composition.py`.
"""

import numpy as np

OPERATIONS = (lambda left, _: left.copy(), np.add, np.multiply)


def compose(steps, first, second, out):
    """Make each row of `out` by the same steps; see `kernels.composition.compose`."""
    matrices = (first, second, out)
    for operation, at, width, left, left_at, right, right_at in steps.tolist():
        out[:, at : at + width] = OPERATIONS[operation](
            matrices[left][:, left_at : left_at + width],
            matrices[right][:, right_at : right_at + width],
        )
