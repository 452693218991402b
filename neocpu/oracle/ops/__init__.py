"""Which embedding operators does the oracle know? The registry of all of them.

Each file of this folder lists its operators in OPERATORS; this file joins the lists. To add an
operator, write an `Operator` record in such a file: `list`, `explain`, `export`, `check` and the
reports pick it up from here.
"""

from neocpu.oracle.operator import Arrays, Case, Field, Operator, Options, Truth, Value
from neocpu.oracle.ops import (
    backward,
    codecs,
    collectives,
    fp8_rows,
    jagged,
    key_value,
    layout,
    lookup,
    maximum,
    moves,
    nvfp4,
    products,
    row_cache,
    scale,
    trajectory,
)

__all__ = [
    "OPERATORS",
    "Arrays",
    "Case",
    "Field",
    "Operator",
    "Options",
    "Truth",
    "Value",
    "operator",
]

MODULES = (
    lookup,
    backward,
    trajectory,
    layout,
    codecs,
    jagged,
    key_value,
    row_cache,
    moves,
    collectives,
    nvfp4,
    scale,
    maximum,
    fp8_rows,
    products,
)
OPERATORS: dict[str, Operator] = {op.name: op for module in MODULES for op in module.OPERATORS}


def operator(name: str) -> Operator:
    """The operator of that name. Raises KeyError with the names that exist."""
    if name not in OPERATORS:
        raise KeyError(f"no operator {name!r}; there are {', '.join(sorted(OPERATORS))}")
    return OPERATORS[name]
