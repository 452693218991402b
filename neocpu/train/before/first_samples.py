"""What do the first samples of a dataset say of all? How much, and which rows, a step looks up."""

import math
from collections.abc import Mapping

import numpy as np

from neocpu.core.types import Elements
from neocpu.ingest.code_map import CodeMap
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.plan.cost.row_curves import RowCurve, curve_of
from neocpu.train.config.config import Config

# Samples from which mean bag lengths and the skew of lookups are estimated.
LOOKED_AT = 4096


class FirstSamples:
    """The first samples of a dataset, whose codes these vocabularies give rows."""

    def __init__(
        self, config: Config, data: Dataset, vocabularies: Mapping[str, Elements] | None
    ) -> None:
        self._config = config
        self._data = data
        self._vocabularies = vocabularies
        self._samples = np.arange(min(LOOKED_AT, data.rows), dtype=np.int64)

    def pooling_factors(self) -> dict[str, float]:
        """Mean lookups per sample of each table."""
        lookups = {name: self._codes(name).size for name in self._features()}
        return self._of_tables(
            {name: count / max(self._samples.size, 1) for name, count in lookups.items()}
        )

    def distinct_codes(self) -> dict[str, float]:
        """Distinct codes that a batch looks up in each table."""
        # a batch may be larger than what is looked at; `distinct_codes` extrapolates then
        share = self._config.training.batch_size / max(self._samples.size, 1)
        distinct = {}
        for name in self._features():
            codes = self._codes(name)
            distinct[name] = distinct_codes(codes, share * codes.size)
        return self._of_tables(distinct)

    def row_curves(self) -> dict[str, RowCurve]:
        """How lookups are spread over the rows of each table where these are not alike.

        Tables that hold parts of others are left out: row maps spread their lookups.
        """
        config = self._config
        code_map = CodeMap(
            config.tables, config.data.rows_by, config.training.seed, self._vocabularies
        )
        curves = {}
        # table by table: rows of all of them may be too much for memory
        for number, table in enumerate(config.tables):
            own = [bag for bag in code_map.bags if bag.table == number and bag.row_map is None]
            rows = [code_map.rows_of(bag, self._codes(bag.feature)) for bag in own]
            curve = curve_of(np.concatenate(rows), table.rows) if rows else None
            if curve is not None:
                curves[table.name] = curve
        return curves

    def _features(self) -> set[str]:
        return {name for table in self._config.tables for name in table.features}

    def _of_tables(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Sums of numbers of features, by table."""
        return {
            table.name: sum(numbers[name] for name in table.features)
            for table in self._config.tables
        }

    def _codes(self, name: str) -> Elements:
        """Codes of a feature; one at a time, as together they may be too much for memory."""
        return self._data.take(self._samples, [name]).features[name].codes


def distinct_codes(codes: Elements, lookups: float) -> float:
    """Distinct codes among so many lookups, of which `codes` are the first.

    More lookups than there are codes find new ones as the second half of the codes did: distinct
    codes grow as a power of lookups (Heaps' law).
    """
    if lookups <= codes.size:
        return float(np.unique(codes[: round(lookups)]).size)
    all_codes = np.unique(codes).size
    half = np.unique(codes[: codes.size // 2]).size
    # too few codes to see how they repeat: as if none did
    if not half:
        return lookups
    power = min(math.log2(all_codes / half), 1.0)
    return float(all_codes * (lookups / codes.size) ** power)
