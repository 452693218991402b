"""What is known of train data that are not converted yet? What their first megabyte lets expect."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from neocpu.ingest.formats.files.folders import all_files
from neocpu.train.before.conversions import convert_options
from neocpu.train.config.config import Config


class TrainFacts(Protocol):
    """What a run that is planned asks of its train data: `Splits` know it, `ExpectedData` estimate
    it.
    """

    @property
    def train_rows(self) -> int:
        """Samples."""

    @property
    def dense_features(self) -> int:
        """Dense columns."""

    def pooling_factors(self) -> dict[str, float]:
        """Mean lookups per sample of each table."""

    def distinct_rows(self) -> dict[str, float]:
        """Distinct codes that a batch looks up in each table; {}: not known."""

    def touchable_rows(self, samples: int) -> dict[str, int]:
        """Rows of each table that training on so many samples can touch, at most."""


@dataclass(frozen=True)
class ExpectedData:
    """The train data of a config, as estimated.

    config : with the batch size and rates that follow from the number of samples. lookups : of each
    feature, per sample.
    """

    config: Config
    train_rows: int
    dense_features: int
    lookups: Mapping[str, float]

    def pooling_factors(self) -> dict[str, float]:
        """Mean lookups per sample of each table."""
        return {
            table.name: sum(self.lookups.get(name, 0.0) for name in table.features)
            for table in self.config.tables
        }

    def distinct_rows(self) -> dict[str, float]:
        """Nothing: a megabyte does not say how codes repeat."""
        return {}

    def touchable_rows(self, samples: int) -> dict[str, int]:
        """Rows of each table that training on so many samples can touch, at most."""
        # another epoch looks up the same rows again
        seen = min(samples, self.train_rows)
        pooling = self.pooling_factors()
        return {
            table.name: min(table.rows, round(seen * pooling[table.name]))
            for table in self.config.tables
        }


def expected_data(config: Config) -> ExpectedData:
    """The raw train data of a config. Raises NeocpuError where they cannot be read."""
    from neocpu.ingest.dataset.convert import expected_dataset

    data = config.data
    options = convert_options(config, "train")
    expected = expected_dataset(all_files(data.train), data.format, options)
    rows = round(expected.rows * (data.split[0] if data.split else 1.0))
    return ExpectedData(
        config=config.for_samples(rows),
        train_rows=rows,
        dense_features=expected.dense_columns,
        lookups={name: count / max(expected.rows, 1) for name, count in expected.lookups.items()},
    )
