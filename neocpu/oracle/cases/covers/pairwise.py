"""Which few combinations of options meet every pair of values? Covers by a greedy search.

Most faults of kernels with many options need one or two of them to have certain values (Kuhn,
Wallace, Gallo 2004), so a list in which every pair that is allowed occurs finds what single options
do not, with far fewer cases than all combinations.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from neocpu.oracle.operator import Value

Row = dict[str, Any]  # a value of each factor, of that factor's type
Allowed = Callable[[Row], bool]
Pair = tuple[tuple[str, Value], tuple[str, Value]]


class _Search(NamedTuple):
    """A cover in the making."""

    factors: Mapping[str, Sequence[Value]]
    allowed: Allowed
    cheapest_first: frozenset[str]
    uncovered: Mapping[Pair, None]

    def completed(self, row: Row) -> Row | None:
        """The row with a value of every factor: of those allowed, each with most uncovered pairs.

        None if no choice is allowed.
        """
        if not self.allowed(row):
            return None
        missing = [name for name in self.factors if name not in row]
        if not missing:
            return row
        for value in self.by_gain(row, missing[0]):
            complete = self.completed({**row, missing[0]: value})
            if complete is not None:
                return complete
        return None

    def by_gain(self, row: Row, name: str) -> list[Value]:
        """Values of a factor, those first with which the row covers more."""

        def gain(value: Value) -> int:
            pairs = _pairs_of({**row, name: value}, self.factors)
            return sum(pair in self.uncovered for pair in pairs)

        values = self.factors[name]
        turn = 0 if name in self.cheapest_first else len(self.uncovered) % len(values)
        return sorted([*values[turn:], *values[:turn]], key=gain, reverse=True)


def pairwise(
    factors: Mapping[str, Sequence[Value]], allowed: Allowed, cheapest_first: Sequence[str] = ()
) -> list[Row]:
    """Rows with a value of each factor, in which every pair of values that is allowed occurs.

    factors : the values of each; they are hashable.
    allowed : whether values go together. It is also asked of rows that lack factors, and must not
        refuse one that it would allow once they are there.
    cheapest_first : factors of which a later value is only taken where that covers a pair; of all
        others, values take turns where none does.
    The same rows for the same factors, whatever the machine.
    """
    uncovered = dict.fromkeys(_pairs(factors))
    search = _Search(factors, allowed, frozenset(cheapest_first), uncovered)
    rows = []
    while uncovered:
        pair = next(iter(uncovered))
        row = search.completed(dict(pair))
        if row is None:  # no row may have the pair
            del uncovered[pair]
            continue
        for covered in _pairs_of(row, factors):
            uncovered.pop(covered, None)
        rows.append(row)
    return rows


def _pairs(factors: Mapping[str, Sequence[Value]]) -> list[Pair]:
    """All pairs of values of two factors."""
    return [
        ((a, x), (b, y))
        for a, b in combinations(factors, 2)
        for x in factors[a]
        for y in factors[b]
    ]


def _pairs_of(row: Row, factors: Mapping[str, Sequence[Value]]) -> list[Pair]:
    """The pairs of values that a row has, so far."""
    present = [(name, row[name]) for name in factors if name in row]
    return list(combinations(present, 2))
