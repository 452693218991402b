"""What does planning ask of train data? One protocol for data that are there and data to come."""

from typing import Protocol

from neocpu.plan.cost.row_curves import RowCurve


class TrainFacts(Protocol):
    """What a run that is planned asks of its train data: `datasets.Splits` know it,
    `dry_run.ExpectedData` estimate it.
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

    def row_curves(self) -> dict[str, RowCurve]:
        """How lookups are spread over the rows of each table where these are not alike."""

    def touchable_rows(self, samples: int) -> dict[str, int]:
        """Rows of each table that training on so many samples can touch, at most."""
