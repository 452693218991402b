"""How do vectors of physical tables become those of logical ones? The plain twin of
`kernels/dense/composition.py`.
"""

OPERATIONS = (
    lambda made, left, right: left,
    lambda made, left, right: left + right,
    lambda made, left, right: left * right,
    lambda made, left, right: made + right,
    lambda made, left, right: made * right,
)


def compose(steps, first, second, out):
    """Make each row of `out` by the same steps; see `kernels.dense.composition.compose`."""
    for operation, at, width, left, right in steps.tolist():
        made = out[:, at : at + width]
        made[:] = OPERATIONS[operation](
            made, first[:, left : left + width], second[:, right : right + width]
        )
