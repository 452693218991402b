"""Which row of a physical table stands for a row of a logical one?

A table kind (`neocpu/tables/kinds/`) keeps the rows of one logical table in other, smaller tables.
A row map says where: it takes a row number of the logical table to one of the physical table, or to
-1 where the physical table has nothing for it.

    digit     first + (row // divisor) mod modulus     a digit of the row in a mixed radix
    salted    first + mix(salt, row) mod modulus       a hash, another one for each salt
    range     row - first where first <= row < first + modulus, else -1
    row       row itself: where rows move as training goes on (`compositions.DynamicMap`), the
              training step finds them

Source: docs/arithmetic.md §14.
"""

from dataclasses import asdict, dataclass, replace

from neocpu.kernels.twins.numbers.philox import fnv1a64, splitmix64

RULES = ("digit", "salted", "range", "row")


@dataclass(frozen=True)
class RowMap:
    """A map from the rows of a logical table to those of a physical one.

    rule : one of RULES.
    rows : of the logical table.
    divisor, modulus, first : as above.
    salt : of a hash.
    signed : whether each lookup has a weight of 1 or -1, by another hash.
    log_weights : does a lookup take its weight of the log, if its table is weighted? (A table may
        be weighted for the sake of signs only.)
    """

    rule: str
    rows: int
    divisor: int = 1
    modulus: int = 1
    first: int = 0
    salt: str = ""
    signed: bool = False
    log_weights: bool = True

    @property
    def number(self) -> int:
        """The rule as kernels know it: its place in RULES."""
        return RULES.index(self.rule)

    @property
    def key(self) -> int:
        """Key of the hash, below 2^64; lookups' signs take the hash of its complement."""
        return splitmix64(fnv1a64(self.salt))

    def keeps_rows_of(self, before: "RowMap") -> bool:
        """Has every row of a logical table that may have grown the place it had by another map?"""
        # any other difference moves rows
        if replace(self, rows=0, modulus=0) != replace(before, rows=0, modulus=0):
            return False
        if self.modulus == before.modulus:
            return True
        fit = before.rows <= before.divisor * before.modulus  # none began again at the first row
        return self.rule == "digit" and fit and self.modulus > before.modulus

    def header(self) -> dict[str, object]:
        """What decides the bits."""
        return asdict(self)
