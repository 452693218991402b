"""The plain twins of `kernels/logs/`."""
