"""What is a column whose values are of several types, as in lists and arrays of objects?

Numbers and missing values are numbers; with a text among them, all are texts.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl

EXACT = 1 << 53  # whole numbers up to it are fp64


def series_of_several_types(values: Sequence[object]) -> pl.Series | None:
    """Values of several types as numbers, else as texts; None where some are neither."""
    plain = [_plain(value) for value in values]
    kinds = {type(value) for value in plain} - {type(None)}
    if len(kinds) < 2:
        return pl.Series("", plain)
    largest = max((abs(value) for value in plain if isinstance(value, int)), default=0)
    if kinds <= {int, float, Decimal} and largest <= EXACT:
        return pl.Series(
            "", [None if value is None else float(value) for value in plain], pl.Float64
        )
    if kinds <= {bool, int, float, Decimal, str, bytes}:
        return pl.Series("", [_text(value) for value in plain], pl.String)
    return None


def _plain(value: Any) -> Any:
    """A value without NumPy's wrapping; None for one that is missing, of whichever library."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return None
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def _text(value: Any) -> str | None:
    """The text of a value in a file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float | Decimal) and abs(float(value)) < 1 << 63:
        return str(int(value)) if value == int(value) else str(value)
    return None if value is None else str(value)
