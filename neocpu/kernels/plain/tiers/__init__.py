"""A cache's probe, as a textbook writes it."""
