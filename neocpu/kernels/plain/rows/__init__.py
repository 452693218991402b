"""Lookup and update, as a textbook writes them."""
