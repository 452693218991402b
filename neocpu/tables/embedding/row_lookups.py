"""What does a key without pooling give, and what does it take back? Rows, lookup by lookup."""

from dataclasses import dataclass

from neocpu.core.types import Floats, Ints


@dataclass(frozen=True)
class KeyLookups:
    """The lookups of one key without pooling, of this rank's samples.

    offsets : i64[b+1], sample s has lookups [offsets[s], offsets[s+1]).
    rows : i64[n], the row of each lookup, -1: none, which gives zeros.
    values : f32[m, D], the rows that were looked up.
    lines : i64[n], where in `values` each lookup finds its row, whose weight is not applied (None:
        m is n, each lookup has a line, multiplied by its weight if there are weights).
    weights : f32[n], of the lookups, or None.
    leaves : i64[l+1], first sample of each of this rank's leaves, and the end.
    """

    offsets: Ints
    rows: Ints
    values: Floats
    lines: Ints | None
    weights: Floats | None
    leaves: Ints


@dataclass(frozen=True)
class RowTerms:
    """Gradients of one key without pooling: f32[m, D], one term for each of rows i64[m].

    rows : -1: no row. None: those that were looked up, a term for each line of
    `KeyLookups.values`; weights are applied to it then.
    """

    gradient: Floats
    rows: Ints | None = None
