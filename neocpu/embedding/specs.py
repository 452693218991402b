"""What is an embedding table, and which features look it up? Records that everything above the kernels shares."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

POOLING = ("sum", "mean")


@dataclass(frozen=True)
class TableSpec:
    """One table: `rows` by `dim` fp32 numbers, looked up by `features`, each bag pooled by `pooling`."""

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    pooling: str = "sum"
    weighted: bool = False


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
