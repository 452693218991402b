"""What is an embedding table, and which features look it up? Records that everything above the kernels shares."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

POOLING = ("sum", "mean")
NUMBER_FORMATS = {"fp32": 4, "fp16": 2, "bf16": 2, "bf16_split": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}  # bytes of a number
EXACT = ("fp32", "bf16_split")  # formats that hold every fp32 number
ROUNDINGS = ("nearest", "stochastic")


@dataclass(frozen=True)
class TableSpec:
    """One table: `rows` by `dim` numbers, looked up by `features`, each bag pooled by `pooling`.

    format : how its numbers are kept, a key of `NUMBER_FORMATS` (docs/formats.md). rounding : how they get into it after an
    update.
    """

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    pooling: str = "sum"
    weighted: bool = False
    format: str = "fp32"
    rounding: str = "nearest"

    @property
    def number_bytes(self) -> int:
        """Bytes that a number takes."""
        return NUMBER_FORMATS[self.format]

    @property
    def lookup_bytes(self) -> int:
        """Bytes of a number that a lookup reads: of bf16_split the upper half."""
        return 2 if self.format == "bf16_split" else self.number_bytes

    def row_bytes(self, columns: int, state_floats: tuple[int, int]) -> int:
        """Bytes of so many columns of a row, with optimizer state: floats per element and per row."""
        return columns * (self.number_bytes + 4 * state_floats[0]) + 4 * state_floats[1]

    def header(self) -> dict[str, Any]:
        """What decides the bits, for digests: no format if it is fp32, so that old digests stay, and rounding where there is
        any."""
        found = asdict(self)
        if self.format in EXACT:
            del found["rounding"]
        if self.format == "fp32":
            del found["format"]
        return found


@dataclass(frozen=True)
class TableKeys:
    """Keys of [tables.NAME] in a config; dim 0 is model.embedding_dim, no features are one of the table's name.

    format, rounding : how its numbers are kept, and rounded after an update; "": those of the model. bf16_split: fp32
    numbers of whose halves lookups read the upper one.
    """

    rows: int = 0
    dim: int = 0
    features: tuple[str, ...] = ()
    pooling: str = "sum"
    weighted: bool = False
    format: str = ""
    rounding: str = ""

    def spec(self, name: str, features: tuple[str, ...], dim: int, form: str, rounding: str) -> TableSpec:
        """The table, with what else is to hold where the keys are silent."""
        form, rounding = self.format or form, self.rounding or rounding
        rounding = "nearest" if form in EXACT else rounding
        return TableSpec(name, self.rows, self.dim or dim, features, self.pooling, self.weighted, form, rounding)


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
