"""What is an embedding table, and which features look it up? Records that everything above the
kernels shares.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from neocpu.errors import ConfigError
from neocpu.records import choose
from neocpu.storage.formats import FORMATS
from neocpu.storage.placement import AUTO, PLACEMENTS

POOLING = ("sum", "mean")
# bytes of a number
NUMBER_FORMATS = {"fp32": 4, "fp16": 2, "bf16": 2, "bf16_split": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}
EXACT = ("fp32", "bf16_split")  # formats that hold every fp32 number
SCALED = ("int8", "int4")  # formats of whole rows, for rows at home below a cache of numbers
CACHES = {  # formats of a cache, and those that rows below may have
    "fp32": ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2", *SCALED),
    "fp16": ("fp8_e4m3", "fp8_e5m2", *SCALED),
}
ROUNDINGS = ("nearest", "stochastic")


@dataclass(frozen=True)
class TableSpec:
    """One table: `rows` by `dim` numbers, looked up by `features`, each bag pooled by `pooling`.

    format : how its numbers are kept, a key of `NUMBER_FORMATS` or one of `SCALED`
    (docs/formats.md). rounding : how they get into it after an update. cache_format : wider format
    of those in its caches, a key of `CACHES`; "": the same.
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

    @property
    def cached(self) -> "TableSpec":
        """The table as lookups and updates see it: in the format of its caches."""
        form = self.cache_format or self.format
        return replace(
            self,
            format=form,
            rounding="nearest" if form in EXACT else self.rounding,
            cache_format="",
        )

    @property
    def number_bytes(self) -> int:
        """Bytes that a number takes where it is used."""
        return NUMBER_FORMATS[self.cache_format or self.format]

    @property
    def lookup_bytes(self) -> int:
        """Bytes of a number that a lookup reads: of bf16_split the upper half."""
        return 2 if self.format == "bf16_split" else self.number_bytes

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
        if cut and self.format in SCALED:
            return (
                f"table {self.name!r}: {self.format} rows have one scale for all their columns "
                f"and cannot be cut; {plan}"
            )
        if copied and self.cache_format:
            holds = f"its caches of {self.cache_format} hold other rows on every rank"
            return (
                f"table {self.name!r}: copies of its {self.format} rows would differ, since "
                f"{holds}; {plan}"
            )
        return ""

    def header(self) -> dict[str, Any]:
        """What decides the bits, for digests: no format if it is fp32, so that old digests stay,
        and rounding, and a format of caches, where there is any.
        """
        found = asdict(self)
        if self.format in EXACT:
            del found["rounding"]
        if self.format == "fp32":
            del found["format"]
        if not self.cache_format:
            del found["cache_format"]
        return found


def numbers_bytes(form: str, columns: int) -> int:
    """Bytes of so many numbers of a row in a format."""
    return (
        columns * NUMBER_FORMATS[form]
        if form in NUMBER_FORMATS
        else FORMATS[form].row_bytes(columns)
    )


def with_caches(
    tables: Sequence[TableSpec], placements: Sequence[str], spec: str | Mapping[str, str]
) -> tuple[TableSpec, ...]:
    """The tables with the `cache_format` that the config's `memory.cache_format` gives them under
    their placements.

    Raises ConfigError where a cache could not hold every number of a table's rows, or rows need one
    and have none.
    """
    names = [table.name for table in tables]
    forms = (
        choose("memory.cache_format", "format of caches", names, spec, tuple(CACHES), "")
        if spec
        else [""] * len(names)
    )
    found = tuple(
        replace(t, cache_format=_cache_format(t, *given))
        for t, *given in zip(tables, forms, placements)
    )
    wide = next((table.name for table in found if table.cache_format), "")
    if wide and AUTO in placements:
        raise ConfigError(
            'memory.placement: "auto" for other tables would decide how many rows of table '
            f"{wide!r} are in caches, and with "
            "memory.cache_format bits depend on that; name the placements of all tables, or leave "
            "cache_format out"
        )
    return found


def _cache_format(table: TableSpec, form: str, placement: str) -> str:
    if placement == AUTO and form not in ("", table.format):
        raise ConfigError(
            f"memory.cache_format: table {table.name!r} has none while memory.placement may leave "
            "it without a cache; name a "
            "placement that has one, such as hbm_over_ddr, or leave cache_format out"
        )
    form = (
        form if placement != AUTO and PLACEMENTS[placement].caches and form != table.format else ""
    )
    if form and table.format not in CACHES[form]:
        others = [name for name, below in CACHES.items() if table.format in below]
        hint = f"take {' or '.join(others)}" if others else "leave it out"
        raise ConfigError(
            f"memory.cache_format: {form} cannot hold every number of table {table.name!r}, which "
            f"is {table.format}; {hint}"
        )
    if not form and table.format in SCALED:
        raise ConfigError(
            f"tables.{table.name}.format: {table.format} rows train below a cache of wider "
            "numbers: set memory.cache_format to "
            f"{' or '.join(CACHES)}, and memory.placement to one with a cache (now {placement}), "
            "such as hbm_over_ddr"
        )
    return form


@dataclass(frozen=True)
class TableKeys:
    """Keys of [tables.NAME] in a config; dim 0 is model.embedding_dim, no features are one of the
    table's name.

    format, rounding : how its numbers are kept, and rounded after an update; "": those of the
    model. bf16_split: fp32 numbers of whose halves lookups read the upper one.
    """

    rows: int = 0
    dim: int = 0
    features: tuple[str, ...] = ()
    pooling: str = "sum"
    weighted: bool = False
    format: str = ""
    rounding: str = ""

    def spec(
        self, name: str, features: tuple[str, ...], dim: int, form: str, rounding: str
    ) -> TableSpec:
        """The table, with what else is to hold where the keys are silent."""
        form = self.format or form
        rounding = self.rounding or rounding
        rounding = "nearest" if form in EXACT else rounding
        return TableSpec(
            name, self.rows, self.dim or dim, features, self.pooling, self.weighted, form, rounding
        )


@dataclass(frozen=True)
class Bag:
    """One key of the batch's KJT: the bags of one feature, as row numbers of one table."""

    key: str
    feature: str
    table: int


def bags(tables: Sequence[TableSpec]) -> tuple[Bag, ...]:
    """Keys of the KJT: every (table, feature) pair in table order.

    A key is the feature's name, or `feature@table` where one feature looks up several tables.
    """
    uses = Counter(feature for table in tables for feature in table.features)
    return tuple(
        Bag(feature if uses[feature] == 1 else f"{feature}@{table.name}", feature, number)
        for number, table in enumerate(tables)
        for feature in table.features
    )
