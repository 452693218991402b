"""The plain twins of `kernels/codecs/`."""
