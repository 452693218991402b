"""Which store holds which shard, and where does its memory come from? One store per format and
rounding, all of them in one mapping.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Elements, Ints
from neocpu.tables.embedding.rows import RowStore
from neocpu.tables.specs.specs import TableSpec
from neocpu.tables.storage.arena import Arena


class Shelves(NamedTuple):
    """Which store each shard is in and where it begins there, i64[H]; a table of each format and
    rounding, a store each, and the elements of those.
    """

    store: Ints
    base: Ints
    kinds: list[TableSpec]
    elements: list[int]


def shelve(specs: Sequence[TableSpec], sizes: Ints) -> Shelves:
    """Deal shards of these tables, of so many elements i64[H], to one store per format and
    rounding.
    """
    # a rank without shards has a store all the same, which is empty
    kinds = {(t.format, t.rounding): t for t in specs or [TableSpec("", 0, 1, ())]}
    names = list(kinds)
    store = np.array([names.index((t.format, t.rounding)) for t in specs], np.int64)
    base = np.zeros(store.size, np.int64)
    elements = []
    for i, spec in enumerate(kinds.values()):
        in_store = np.flatnonzero(store == i)
        # what a lookup reads counts: of split rows that is one of two arrays
        line = 64 // spec.lookup_bytes
        whole = -(-sizes[in_store] // line) * line  # every shard begins on a cache line
        base[in_store] = np.cumsum(whole) - whole
        elements.append(int(whole.sum()))
    return Shelves(store, base, list(kinds.values()), elements)


def allocate(
    specs: Sequence[TableSpec],
    elements: Sequence[int],
    per_element: int,
    row_arrays: Sequence[tuple[int, str]],
    budget: int,
    huge: bool = True,
) -> tuple[list[RowStore], list[Elements]]:
    """Stores in the formats of `specs`, with room for so many elements and `per_element` states;
    and `row_arrays`, (size, dtype) each.

    All are zeros in one mapping, of huge pages if `huge`. Raises TrainingError where they do not
    fit `budget` bytes (0: any number fits).
    """
    code_dtypes = [spec.row_format.arrays for spec in specs]
    state_parts = ["f4"] * per_element
    sizes = [
        (count, dtype)
        for count, dtypes in zip(elements, code_dtypes)
        for dtype in (*dtypes, *state_parts)
    ]
    arena = Arena(sum(Arena.space(*size) for size in (*sizes, *row_arrays)), budget, huge)
    stores = []
    for spec, count, dtypes in zip(specs, elements, code_dtypes):
        arrays = [arena.take(count, dtype) for dtype in dtypes]
        states = [arena.take(count, dtype) for dtype in state_parts]
        stores.append(_store(spec, arrays, states))
    return stores, [arena.take(n, kind) for n, kind in row_arrays]


def _store(spec: TableSpec, arrays: Sequence[Elements], states: Sequence[Elements]) -> RowStore:
    """A store in a table's format, over these arrays."""
    if spec.format == "fp32":
        return RowStore(arrays[0], states)
    # where all rows are fp32, its kernels are never imported
    from neocpu.tables.embedding.coded import CodedRowStore

    return CodedRowStore(spec.format, spec.rounding, arrays, states)
