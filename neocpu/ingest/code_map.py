"""How does a category become a row of a table?

A code is hashed, looked up in a vocabulary, or taken modulo the rows (docs/arithmetic.md §10). That
row is of the logical table; where this has parts (`TableSpec.maps`), a row map leads on to the rows
of each part.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.errors import DataError
from neocpu.core.jagged import KJT
from neocpu.core.types import Floats, Ints
from neocpu.ingest.dataset_layout import BagColumn
from neocpu.ingest.settings import ROWS_BY
from neocpu.kernels.logs.hashing import hash_rows
from neocpu.kernels.twins.numbers.philox import feature_key
from neocpu.tables.specs.specs import BatchKey, RowMap, TableSpec, TableSpecs, bags

if TYPE_CHECKING:
    from neocpu.ingest.dataset.vocabulary import Codes, Vocabulary


def takes_weights(table: TableSpec, bag: BatchKey) -> bool:
    """Do the weights of the log count for a bag's lookups in its table?"""
    return table.weighted and (bag.row_map is None or bag.row_map.log_weights)


class CodeMap:
    """Rows of codes, for all bags of some tables.

    tables : whose bags are looked up.
    rows_by : "hash", "vocabulary" or "code".
    seed : of the hash.
    vocabularies : by feature; read for "vocabulary" only.
    source : names the data in errors.

    Raises DataError where a vocabulary is missing, or a table is smaller than its vocabulary.
    """

    def __init__(
        self,
        tables: TableSpecs,
        rows_by: str = "hash",
        seed: int = 0,
        vocabularies: "Mapping[str, Codes] | None" = None,
        source: str = "",
    ) -> None:
        self.tables = tuple(tables)
        self.bags = bags(tables)
        self._weighted = any(table.weighted for table in self.tables)
        self._by_code = rows_by == "code"
        self._vocabularies: dict[str, Vocabulary] = {}
        # By `bag.codes`, not by the feature: tables of same codes hash them all with one key.
        self._hash_keys = {bag.codes: feature_key(seed, bag.codes) for bag in self.bags}
        if rows_by == "vocabulary":
            self._use_vocabularies(vocabularies or {}, source)
        elif rows_by not in ROWS_BY:
            raise DataError(f"rows by {rows_by!r}; choose one of {', '.join(ROWS_BY)}")

    def _use_vocabularies(self, vocabularies: "Mapping[str, Codes]", source: str) -> None:
        from neocpu.ingest.dataset.vocabulary import Vocabulary

        for bag in self.bags:
            rows = self.logical_rows(bag)
            if bag.codes not in vocabularies:
                raise DataError(
                    f"{source}: no vocabulary of feature {bag.codes}; convert the train file "
                    "with --min-count N (and others with --vocabulary TRAIN.h5), or let the hash "
                    "choose rows"
                )
            codes = vocabularies[bag.codes]
            # Row 0 is that of all codes that the vocabulary lacks.
            if rows < codes.size + 1:
                name = self.tables[bag.table].name
                raise DataError(
                    f"table {name} has {rows} rows, but the vocabulary of feature "
                    f"{bag.codes} needs {codes.size + 1} ({codes.size} codes and row 0 for the "
                    f"unknown); set its rows to {codes.size + 1}"
                )
            if bag.codes not in self._vocabularies:
                self._vocabularies[bag.codes] = Vocabulary(codes)

    def logical_rows(self, bag: BatchKey) -> int:
        """Rows of the table that a bag looks up, or of the logical one that it is a part of."""
        return self.tables[bag.table].rows if bag.row_map is None else bag.row_map.rows

    def rows_of(self, bag: BatchKey, codes: "Codes") -> Ints:
        """The row of a bag's table that each code is looked up in."""
        rows = np.empty(codes.size, np.int64)
        self._find_rows(bag, codes, rows)
        if bag.row_map is not None:
            _map_rows(bag.row_map, rows, rows)
        return rows

    def kjt(self, features: Mapping[str, BagColumn], samples: int) -> KJT:
        """The KJT of all bags, every code mapped to a row of its table."""
        lengths = np.empty((len(self.bags), samples), np.int32)
        sizes = [features[bag.feature].codes.size for bag in self.bags]
        rows = np.empty(sum(sizes), np.int64)
        weights = np.ones(rows.size, np.float32) if self._weighted else None
        first = 0
        logical: dict[tuple[str, str, int], Ints] = {}
        for key, (bag, size) in enumerate(zip(self.bags, sizes)):
            column = features[bag.feature]
            lengths[key] = size // max(samples, 1) if column.lengths is None else column.lengths
            lookups = slice(first, first + size)
            first += size
            taken = takes_weights(self.tables[bag.table], bag)
            if taken and weights is not None and column.weights is not None:
                weights[lookups] = column.weights
            if bag.row_map is None:
                self._find_rows(bag, column.codes, rows[lookups])
                continue
            # parts of one table share its rows, which are looked up once
            shared = bag.feature, bag.codes, bag.row_map.rows
            if shared not in logical:
                logical[shared] = np.empty(size, np.int64)
                self._find_rows(bag, column.codes, logical[shared])
            signed = None if weights is None else weights[lookups]
            _map_rows(bag.row_map, logical[shared], rows[lookups], signed)
        return KJT(tuple(bag.key for bag in self.bags), lengths, rows, weights)

    def _find_rows(self, bag: BatchKey, codes: "Codes", out: Ints) -> None:
        """Logical rows of codes."""
        count = self.logical_rows(bag)
        if bag.codes in self._vocabularies:
            self._vocabularies[bag.codes].rows(codes, out)
        elif self._by_code:
            out[:] = np.remainder(codes, np.uint64(count))
        else:
            hash_rows(codes, self._hash_keys[bag.codes], count, out)


def _map_rows(row_map: RowMap, logical: Ints, out: Ints, weights: Floats | None = None) -> None:
    """Write the rows of a physical table into out, which may be `logical`; sign the weights."""
    from neocpu.tables.embedding.mapped_rows import physical_rows, sign

    if weights is not None:
        sign(row_map, logical, weights)
    physical_rows(row_map, logical, out)


def warm_up_rows() -> None:
    """Compile (or load) the kernels that make rows of codes."""
    from neocpu.ingest.dataset.vocabulary import Vocabulary

    vocabulary = Vocabulary(np.arange(3, dtype=np.uint64))
    out = np.empty(3, np.int64)
    for codes in (np.arange(3, dtype=np.uint32), np.arange(3, dtype=np.uint64)):
        hash_rows(codes, np.uint64(1), 3, out)
        vocabulary.rows(codes, out)
    row_map = RowMap("digit", out.size, signed=True)
    _map_rows(row_map, out, out, np.ones(out.size, np.float32))
