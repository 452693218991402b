"""What does a kernel do wrong, in words? One record, beside the switches that bend the model."""

from typing import NamedTuple


class Mistake(NamedTuple):
    """What a kernel does, and what to do about it."""

    name: str
    about: str
    fix: str
