"""The plain twins of `kernels/rows/`."""
