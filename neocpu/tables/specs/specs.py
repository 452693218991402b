"""What is an embedding table, and which features look it up? Records that everything above the
kernels shares.

A table kind (`neocpu/tables/kinds/`) keeps the rows of one logical table in other, smaller tables.
A row map says where: it takes a row number of the logical table to one of the physical table, or to
-1 where the physical table has nothing for it (docs/arithmetic.md §14).

    digit     first + (row // divisor) mod modulus     a digit of the row in a mixed radix
    salted    first + mix(salt, row) mod modulus       a hash, another one for each salt
    range     row - first where first <= row < first + modulus, else -1
    row       row itself: where rows move as training goes on (`compositions.DynamicMap`), the
              training step finds them
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, TypeAlias

from neocpu.core.errors import ConfigError
from neocpu.core.formats import CACHES, TRAINED, RowFormat, table_format
from neocpu.core.records import Limits, choose
from neocpu.kernels.twins.numbers.philox import fnv1a64, splitmix64
from neocpu.tables.tiers.placement import AUTO, PLACEMENTS

MAP_RULES = ("digit", "salted", "range", "row")


@dataclass(frozen=True)
class RowMap:
    """A map from the rows of a logical table to those of a physical one.

    rule : one of MAP_RULES.
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
        """The rule as kernels know it: its place in MAP_RULES."""
        return MAP_RULES.index(self.rule)

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


POOLING = ("sum", "mean", "none")
ROUNDINGS = ("nearest", "stochastic")
MOST_COLUMNS = 2**31 - 1


@dataclass(frozen=True)
class Start:
    """Initial values of a table's rows: uniform in [mean - bound, mean + bound)."""

    mean: float
    bound: float


@dataclass(frozen=True)
class TableSpec:
    """One table: `rows` by `dim` numbers, looked up by `features`, each bag pooled by `pooling`.

    pooling : "none" gives every lookup's row instead of a vector for each bag.
    format : how its numbers are kept, one of `neocpu.core.formats.TRAINED` (docs/formats.md).
    rounding : how they are rounded to it after an update.
    cache_format : a wider format of the rows in its caches, a key of `neocpu.core.formats.CACHES`;
        "": the same.
    same_codes : do all its features have the rows of the first one, code by code?
    maps : of a part of a table of some kind (`neocpu/tables/kinds/`), for each feature: which of
        its rows stands for a row of that table.
    start : of its rows (None: as docs/arithmetic.md §9 says).
    """

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    pooling: str = "sum"
    weighted: bool = False
    format: str = "fp32"
    rounding: str = "nearest"
    cache_format: str = ""
    maps: tuple[RowMap, ...] = ()
    start: Start | None = None
    same_codes: bool = False

    @classmethod
    def of_json(cls, entry: Mapping[str, Any]) -> "TableSpec":
        """The table whose fields `asdict` gave, after a way through JSON. Raises TypeError."""
        start = entry.get("start")
        records = {
            "features": tuple(entry["features"]),
            "maps": tuple(RowMap(**row_map) for row_map in entry.get("maps", ())),
            "start": None if start is None else Start(**start),
        }
        return cls(**{**entry, **records})

    @property
    def initial(self) -> Start:
        """Where its rows start: by default uniform in ±1/√rows."""
        return self.start or Start(0.0, 1.0 / math.sqrt(self.rows))

    @property
    def row_format(self) -> RowFormat:
        """The record of its format. Raises ConfigError if there is none."""
        return table_format(self.format)

    @property
    def pooled_dim(self) -> int:
        """Columns that a key of the table has among the pooled vectors; 0 if it is not pooled."""
        return 0 if self.pooling == "none" else self.dim

    @cached_property
    def cached(self) -> "TableSpec":
        """The table as lookups and updates see it: in the format of its caches."""
        form = self.cache_format or self.format
        return replace(
            self,
            format=form,
            # nothing is rounded in a cache that holds every number
            rounding="nearest" if table_format(form).exact else self.rounding,
            cache_format="",
        )

    @property
    def number_bytes(self) -> int:
        """Bytes that a number takes where it is used."""
        return table_format(self.cache_format or self.format).bits // 8

    @property
    def lookup_bytes(self) -> int:
        """Bytes of a number that a lookup reads: of bf16_split the upper half."""
        return table_format(self.cache_format or self.format).lookup_bytes

    def row_bytes(self, columns: int, state_floats: tuple[int, int]) -> int:
        """Bytes of so many columns of a row where it is at home, with optimizer state: floats per
        element and per row.
        """
        return numbers_bytes(self.format, columns) + 4 * (
            columns * state_floats[0] + state_floats[1]
        )

    def unfit(self, cut: bool = False, copied: bool = False) -> str:
        """Why it may not be cut by columns, or have copies on other ranks; "" where it may."""
        plan = "set parallel.plan to row_wise or table_wise"
        # the scale of a part of a row would be another one
        if cut and self.row_format.row_scaled:
            return (
                f"table {self.name!r}: {self.format} rows have one scale for all their columns "
                f"and cannot be cut; {plan}"
            )
        # rows are rounded as they leave a cache, and each rank has its own
        if copied and self.cache_format:
            holds = f"its caches of {self.cache_format} hold other rows on every rank"
            return (
                f"table {self.name!r}: copies of its {self.format} rows would differ, since "
                f"{holds}; {plan}"
            )
        return ""

    def header(self) -> dict[str, object]:
        """What decides the bits, for digests: no format if it is fp32, so that old digests stay,
        and rounding, and a format of caches, where there is any.
        """
        header = asdict(self)
        if self.row_format.exact:
            del header["rounding"]
        if self.format == "fp32":
            del header["format"]
        if not self.cache_format:
            del header["cache_format"]
        if not self.maps:
            del header["maps"]
        if self.start is None:
            del header["start"]
        if not self.same_codes:
            del header["same_codes"]
        return header


TableSpecs: TypeAlias = Sequence[TableSpec]


def numbers_bytes(form: str, columns: int) -> int:
    """Bytes of so many numbers of a row in a format."""
    return table_format(form).row_bytes(columns)


def with_caches(
    tables: TableSpecs, placements: Sequence[str], spec: str | Mapping[str, str]
) -> tuple[TableSpec, ...]:
    """The tables with the `cache_format` that the config's `memory.cache_format` gives them under
    their placements.

    Raises ConfigError where a format lacks what training in it needs, a cache could not hold every
    number of a table's rows, or rows need one and have none.
    """
    for table in tables:
        if why := _untrainable(table.row_format):
            raise ConfigError(
                f"tables.{table.name}.format: {table.format} cannot be trained: {why}"
            )
    names = [table.name for table in tables]
    forms = (
        choose("memory.cache_format", "format of caches", names, spec, tuple(CACHES), "")
        if spec
        else [""] * len(names)
    )
    cached_tables = tuple(
        replace(table, cache_format=_cache_format(table, form, placement))
        for table, form, placement in zip(tables, forms, placements)
    )
    wide = next((table.name for table in cached_tables if table.cache_format), "")
    if wide and AUTO in placements:
        raise ConfigError(
            'memory.placement: "auto" for other tables would decide how many rows of table '
            f"{wide!r} are in caches, and with memory.cache_format bits depend on that; name the "
            "placements of all tables, or leave cache_format out"
        )
    return cached_tables


def _untrainable(form: RowFormat) -> str:
    """What a format lacks for tables to be trained in it; "" if nothing."""
    if why := form.fault():
        return f"{why} (neocpu/core/formats.py)"
    if form.exact:
        return ""
    from neocpu.core.codecs import CODECS

    if form.name not in CODECS:
        return "no functions write and read its rows (CODECS in neocpu/core/codecs.py)"
    return ""


def _cache_format(table: TableSpec, form: str, placement: str) -> str:
    """The format of a table's caches, `form` in the config, under its placement; "": none."""
    if placement == AUTO and form not in ("", table.format):
        raise ConfigError(
            f"memory.cache_format: table {table.name!r} has none while memory.placement may leave "
            "it without a cache; name a placement that has one, such as hbm_over_ddr, or leave "
            "cache_format out"
        )
    if placement == AUTO or not PLACEMENTS[placement].caches or form == table.format:
        form = ""
    if form and table.format not in CACHES[form]:
        wider = [name for name, narrower in CACHES.items() if table.format in narrower]
        hint = f"take {' or '.join(wider)}" if wider else "leave it out"
        raise ConfigError(
            f"memory.cache_format: {form} cannot hold every number of table {table.name!r}, which "
            f"is {table.format}; {hint}"
        )
    if not form and table.row_format.row_scaled:
        key = f"tables.*.format: {table.name}:" if table.maps else f"tables.{table.name}.format:"
        raise ConfigError(
            f"{key} {table.format} rows train below a cache of wider "
            f"numbers: set memory.cache_format to {' or '.join(CACHES)}, and memory.placement to "
            f"one with a cache (now {placement}), such as hbm_over_ddr"
        )
    return form


@dataclass(frozen=True)
class TableKeys:
    """Keys of [tables.NAME] in a config; dim 0 is model.embedding_dim, no features are one of the
    table's name. NAME may be "default" or a pattern like "C*" (`table_keys.py`).

    rows, dim : shape of the table: one row for each category, and its columns.
    features : whose categories are looked up in it.
    pooling : how the rows of a bag become one vector: their sum, or mean; none: they stay, for an
        operation of the model that takes them.
    weighted : whether each lookup has a weight, which its row is multiplied by.
    same_codes : whether a value has one row, whichever of the features it is of: that of the first.
    format, rounding : how its numbers are kept, and rounded after an update; "": those of the
        model. bf16_split: fp32 numbers of whose halves lookups read the upper one.
    kind : full: a row for each of its rows; others keep them in smaller tables (docs/kinds.md).
    kind_above : tables of this many rows or fewer are full, whatever `kind` says.
    """

    rows: Annotated[int, Limits(least=1)] = 0
    dim: Annotated[int, Limits(least=1, most=MOST_COLUMNS)] = 0
    features: tuple[str, ...] = ()
    pooling: Annotated[str, Limits(POOLING)] = "sum"
    weighted: bool = False
    same_codes: bool = False
    format: Annotated[str, Limits(TRAINED)] = ""
    rounding: Annotated[str, Limits(ROUNDINGS)] = ""
    kind: str = "full"
    kind_above: int = 0

    def spec(
        self, name: str, features: tuple[str, ...], dim: int, form: str, rounding: str
    ) -> TableSpec:
        """The table, with what else is to hold where the keys are silent."""
        form = self.format or form
        rounding = self.rounding or rounding
        rounding = "nearest" if table_format(form).exact else rounding
        return TableSpec(
            name=name,
            rows=self.rows,
            dim=self.dim or dim,
            features=features,
            pooling=self.pooling,
            weighted=self.weighted,
            format=form,
            rounding=rounding,
            same_codes=self.same_codes,
        )


@dataclass(frozen=True)
class BatchKey:
    """One key of the batch's KJT: the bags of one feature, as row numbers of one table.

    row_map : from rows of the logical table that it is a part of (None: it is a table itself).
    codes : the feature whose hash or vocabulary says which code has which logical row.
    """

    key: str
    feature: str
    table: int
    row_map: RowMap | None = None
    codes: str = ""


def bags(tables: TableSpecs) -> tuple[BatchKey, ...]:
    """Keys of the KJT: every (table, feature) pair in table order.

    A key is the feature's name, or `feature@table` where one feature looks up several tables, or
    `feature@table:place` where it looks up one table in several ways.
    """
    # keys must differ, but stay the feature's name where that is enough
    uses = Counter(feature for table in tables for feature in table.features)
    keys = []
    for number, table in enumerate(tables):
        in_table = Counter(table.features)
        for place, feature in enumerate(table.features):
            key = feature if uses[feature] == 1 else f"{feature}@{table.name}"
            if in_table[feature] > 1:
                key = f"{key}:{place}"
            row_map = table.maps[place] if table.maps else None
            codes = table.features[0] if table.same_codes else feature
            keys.append(BatchKey(key, feature, number, row_map, codes))
    return tuple(keys)
