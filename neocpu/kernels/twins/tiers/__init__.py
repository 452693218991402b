"""The plain twins of `kernels/tiers/`."""
