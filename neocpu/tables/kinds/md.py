"""How can large tables have narrow rows? With a projection to the dim of the model after pooling.

    row i of n rows      e_i in d columns, d <= dim           C3: rows x d
    vector of a bag      P (sum of its e_i)                   P: dim x d, dense, no bias

How wide? Rows that are seldom looked up deserve fewer columns. With n_i rows and k_i lookups a
sample, together for all tables of the kind:

    d_i = lambda (n_i / k_i)^-alpha                 rounded, from 1 to dim
    lambda = dim min(n / k)^alpha                   by the model's dim: the smallest table has it
    lambda = budget / sum (n_i / k_i)^(1 - alpha)   by a number of numbers
    lambda : the largest with numbers <= those of full tables / compression

Popularity blocks: rows sorted by falling frequency are cut in blocks, each a table of this rule
with its own columns and projection; the blocks' vectors are added.

Source: Ginart et al. 2019, arXiv 1909.11810.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from neocpu.core.errors import ConfigError
from neocpu.tables.specs.compositions import (
    Composition,
    Expanded,
    LogicalTable,
    terms_of,
    whole,
)
from neocpu.tables.specs.specs import RowMap, Start, TableSpec
from neocpu.tables.specs.table_keys import check_compression


@dataclass(frozen=True)
class MdKeys:
    """Keys of a table of kind "md".

    alpha : how fast the columns fall with the rows, from 0 (not at all) to 1, the same for all
        tables of the kind.
    budget : numbers that all of them may have, by the formula before rounding (0: the smallest
        table has the model's dim).
    compression : of all of them together, after rounding (0: not set).
    round_dims : whether numbers of columns are powers of two.
    full_rows : tables of so many rows or fewer keep all columns, but count in the rule.
    own_dim : columns of this table, whatever the rule says (0: by the rule).
    blocks : first rows of its popularity blocks but the first: `[1000, 50_000]` cuts off the 1000
        most frequent, which needs rows in the order of falling frequency (data.rows_by
        "vocabulary", or "code").
    block_dims : columns of each block, whatever the rule says.
    queries : lookups a sample, of each block ([]: one for each feature; blocks that say nothing are
        looked up alike).
    """

    alpha: float = 0.15
    budget: int = 0
    compression: float = 0.0
    round_dims: bool = True
    full_rows: int = 200
    own_dim: int = 0
    blocks: tuple[int, ...] = ()
    block_dims: tuple[int, ...] = ()
    queries: tuple[float, ...] = ()


@dataclass(frozen=True)
class DimBlock:
    """Rows [first, first + rows) of a table, that have one number of columns.

    dim : of the model.
    fixed : columns that the config gives (0: by the rule).
    queries : lookups a sample.
    """

    first: int
    rows: int
    dim: int
    fixed: int
    queries: float

    @property
    def load(self) -> float:
        """n / k, the rule's measure of how seldom a row is looked up."""
        return self.rows / self.queries

    def numbers(self, columns: int) -> int:
        """Numbers of the rows and of their projection, with so many columns."""
        return self.rows * columns + (columns * self.dim if columns < self.dim else 0)


def expand(tables: Sequence[LogicalTable]) -> list[Expanded]:
    """Physical tables of all tables of the kind. Raises ConfigError for rules that differ, blocks
    that are no parts of their table, and a compression out of reach.
    """
    blocks = [_blocks(table) for table in tables]
    # one lambda for all blocks of all tables, so they are asked for together
    columns = iter(columns_of([block for parts in blocks for block in parts], _rule(tables)))
    return [
        _expand(table, parts, [next(columns) for _ in parts])
        for table, parts in zip(tables, blocks)
    ]


def columns_of(blocks: Sequence[DimBlock], rule: MdKeys) -> list[int]:
    """Columns of each block by the rule."""
    if rule.compression:
        return _compressed(blocks, rule)
    if rule.budget:
        scale = rule.budget / sum(block.load ** (1 - rule.alpha) for block in blocks)
        return _columns(blocks, rule, [scale] * len(blocks))
    least = min(block.load for block in blocks)
    return _columns(blocks, rule, [block.dim * least**rule.alpha for block in blocks])


def _columns(blocks: Sequence[DimBlock], rule: MdKeys, scales: Sequence[float]) -> list[int]:
    """lambda (n / k)^-alpha of each block, rounded, from 1 to dim; scales : the lambdas."""
    columns = []
    for block, scale in zip(blocks, scales):
        width = max(1, round(min(scale * block.load**-rule.alpha, block.dim)))
        if rule.round_dims:
            width = 2 ** round(math.log2(width))
        # a power of two may have been rounded beyond the dim
        columns.append(block.fixed or min(width, block.dim))
    return columns


def _compressed(blocks: Sequence[DimBlock], rule: MdKeys) -> list[int]:
    """The columns of the largest lambda that meets the rule's compression.

    Raises ConfigError where none does.
    """
    allowed = sum(block.rows * block.dim for block in blocks) / rule.compression

    def numbers(columns: Sequence[int]) -> int:
        return sum(block.numbers(width) for block, width in zip(blocks, columns))

    low = 0.0
    high = max(block.dim * block.load**rule.alpha for block in blocks)
    widest = _columns(blocks, rule, [high] * len(blocks))
    if numbers(widest) <= allowed:
        return widest
    narrowest = _columns(blocks, rule, [low] * len(blocks))
    if numbers(narrowest) > allowed:
        most = sum(block.rows * block.dim for block in blocks) / numbers(narrowest)
        raise ConfigError(
            f"tables.*.compression: {rule.compression:g} cannot be reached by tables of kind md; "
            f"the most is {most:.1f}, one column each"
        )
    for _ in range(100):  # halvings, until neighbours of a double are told apart
        middle = (low + high) / 2
        if numbers(_columns(blocks, rule, [middle] * len(blocks))) <= allowed:
            low = middle
        else:
            high = middle
    return _columns(blocks, rule, [low] * len(blocks))


def _rule(tables: Sequence[LogicalTable]) -> MdKeys:
    """The rule of all tables. Raises ConfigError where they differ in it, and for keys of it that
    do not go together.
    """
    rule: MdKeys = tables[0].keys
    check_compression(tables[0].spec.name, rule.compression)
    for table in tables[1:]:
        for name in ("alpha", "budget", "compression", "round_dims"):
            if getattr(table.keys, name) != getattr(rule, name):
                raise ConfigError(
                    f"tables.{table.spec.name}.{name}: {getattr(table.keys, name)}, but that of "
                    f"table {tables[0].spec.name!r} is {getattr(rule, name)}; tables of kind md "
                    f"share one rule: write tables.default.{name}"
                )
    if rule.alpha > 1:
        raise ConfigError(
            f"tables.{tables[0].spec.name}.alpha: {rule.alpha:g} is out of range; it must be from "
            "0 to 1"
        )
    if rule.budget and rule.compression:
        raise ConfigError(
            f"tables.{tables[0].spec.name}.compression: {rule.compression:g}, but budget is set "
            "too; leave one of them out"
        )
    return rule


def _blocks(table: LogicalTable) -> list[DimBlock]:
    """The blocks of a table. Raises ConfigError for bounds outside it, and lists that do not have
    a value for each block.
    """
    spec = table.spec
    keys: MdKeys = table.keys
    bounds = [0, *keys.blocks, spec.rows]
    if any(last <= first for first, last in pairwise(bounds)):
        raise ConfigError(
            f"tables.{spec.name}.blocks: {list(keys.blocks)} must ascend, from 1 to {spec.rows - 1}"
        )
    if keys.own_dim and keys.blocks:
        raise ConfigError(
            f"tables.{spec.name}.own_dim: a table of blocks has columns for each; write block_dims"
        )
    full = spec.dim if spec.rows <= keys.full_rows else 0
    count = len(bounds) - 1
    fixed = keys.block_dims or (keys.own_dim or full,) * count
    queries = keys.queries or (len(spec.features) / count,) * count
    for name, values in (("block_dims", fixed), ("queries", queries)):
        if len(values) != count:
            raise ConfigError(
                f"tables.{spec.name}.{name}: {len(values)} values for a table of {count} blocks"
            )
        if name == "block_dims" and max(values) > spec.dim:
            key = "block_dims" if keys.block_dims else "own_dim"
            raise ConfigError(
                f"tables.{spec.name}.{key}: {max(values)} is more than the dim of the model's "
                f"vectors, {spec.dim}"
            )
        if not min(values) > 0 and (name == "queries" or keys.block_dims):
            raise ConfigError(f"tables.{spec.name}.{name}: {list(values)} must be above 0")
    return [
        DimBlock(first, last - first, spec.dim, columns, lookups)
        for (first, last), columns, lookups in zip(pairwise(bounds), fixed, queries)
    ]


def _expand(table: LogicalTable, blocks: Sequence[DimBlock], columns: Sequence[int]) -> Expanded:
    spec = table.spec
    if min(columns) == spec.dim:
        return whole(spec)
    parts = []
    tensors = []
    for number, (block, width) in enumerate(zip(blocks, columns)):
        parts.append(_part(spec, block, width, number if len(blocks) > 1 else None))
        if width < spec.dim:
            name = "projection" if len(blocks) == 1 else f"projection.{number}"
            tensors.append((f"{name}.weight", (spec.dim, width)))
    terms = terms_of(parts, len(spec.features))
    composition = Composition(spec.name, terms, "project", tuple(tensors))
    return Expanded(tuple(parts), composition)


def _part(spec: TableSpec, block: DimBlock, columns: int, number: int | None) -> TableSpec:
    """The physical table of a block; number : None of the only one, which keeps the name."""
    narrow = replace(spec, rows=block.rows, dim=columns)
    if columns < spec.dim:  # Glorot, as that of the projection
        bound = math.sqrt(6.0 / (block.rows + columns))
        narrow = replace(narrow, start=Start(0.0, bound))
    if number is None:
        return narrow
    row_map = RowMap("range", spec.rows, modulus=block.rows, first=block.first)
    return replace(narrow, name=f"{spec.name}.{number}", maps=(row_map,) * len(spec.features))
