"""Which embedding operators does the oracle know? The registry of all of them, and the one door to
their records.

Each `ops_*.py` file lists its operators in OPERATORS; this file joins the lists. To add an
operator, write an `Operator` record in such a file: `list`, `explain`, `export`, `check` and the
reports pick it up from here.
"""

from neocpu.oracle import ops_backward, ops_codecs, ops_layout, ops_lookup, ops_trajectory
from neocpu.oracle.records import Arrays, Case, Field, Operator, Options, Truth, Value

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

OPERATORS: dict[str, Operator] = {
    op.name: op
    for room in (ops_lookup, ops_backward, ops_trajectory, ops_layout, ops_codecs)
    for op in room.OPERATORS
}


def operator(name: str) -> Operator:
    """The operator of that name. Raises KeyError with the names that exist."""
    if name not in OPERATORS:
        raise KeyError(f"no operator {name!r}; there are {', '.join(sorted(OPERATORS))}")
    return OPERATORS[name]
