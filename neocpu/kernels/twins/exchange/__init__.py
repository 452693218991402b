"""The plain twins of `kernels/exchange/`."""
