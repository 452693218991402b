"""The plain twins of `kernels/dense/`, and a model as formulas."""
