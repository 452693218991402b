"""The plain twins of `kernels/numbers/`, and what exact arithmetic needs in NumPy."""
