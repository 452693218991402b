"""What is known of train data that are not converted yet? What their first megabyte lets expect."""

from collections.abc import Mapping
from dataclasses import dataclass

from neocpu.ingest.formats.files.folders import all_files
from neocpu.plan.cost.row_curves import RowCurve
from neocpu.train.before.conversions import convert_options
from neocpu.train.config.config import Config


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

    def row_curves(self) -> dict[str, RowCurve]:
        """Nothing: what rows codes will have is not known before they are converted."""
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
