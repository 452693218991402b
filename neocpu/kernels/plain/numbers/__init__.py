"""Exact sums, as a textbook writes them."""
