"""How are samples in memory read like those of a dataset file? As a dataset without a file."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Elements
from neocpu.ingest.dataset.columns import starts_to_indices
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.file import Samples
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.ingest.formats.fields import Parsed
from neocpu.ingest.formats.schema import Schema


class ParsedDataset(Dataset):
    """The samples of one parsed table; attributes as those of a `Dataset`.

    vocabularies : codes by feature, of the model.
    """

    def __init__(
        self, parsed: Parsed, schema: Schema, vocabularies: Mapping[str, Elements] | None = None
    ) -> None:
        # no super().__init__(), which opens files
        self.paths = [Path("the table")]  # what messages call it
        self.rows = len(parsed.dense)
        self.dense_columns = tuple(field.name for field in schema.dense)
        self.attributes = {}
        self.labelled = parsed.labels is not None
        self.schema = None if schema.tree is None else dict(schema.tree)
        self.label_names = [label.name for label in schema.labels]
        self.label = schema.label.name if schema.label else ""
        self.more_labels = []
        self.vocabularies = dict(vocabularies or {})
        self.features = {
            field.name: FeatureColumn(
                name=field.name,
                dtype=str(parsed.features[field.name].codes.dtype),
                hotness=int(parsed.features[field.name].lengths is None),
                weighted=parsed.features[field.name].weights is not None,
                kind=field.description,
            )
            for field in schema.categories
        }
        self._parsed = parsed
        # once for the table, not with every batch
        self._starts = {
            name: np.cumsum(bags.lengths, dtype=np.int64) - bags.lengths
            for name, bags in parsed.features.items()
            if bags.lengths is not None
        }

    def close(self) -> None:
        """Nothing to close."""

    def take(self, samples: NDArray[np.int64], features: Iterable[str] | None = None) -> Samples:
        """Gather samples int64[n], in any order, with the bags of `features` (default: all)."""
        labels = self._parsed.labels
        names = list(self.features) if features is None else list(features)
        return Samples(
            # predictions do not look at labels, but samples always have them
            np.zeros(samples.size, np.float32) if labels is None else labels[samples],
            self._parsed.dense[samples],
            {name: self._bags(name, samples) for name in names},
        )

    def _bags(self, name: str, samples: NDArray[np.int64]) -> BagColumn:
        """The bags of a feature in some samples."""
        bags = self._parsed.features[name]
        if bags.lengths is None:
            return BagColumn(bags.codes[samples])
        lengths = bags.lengths[samples]
        indices = starts_to_indices(self._starts[name][samples], lengths)
        weights = None if bags.weights is None else bags.weights[indices]
        return BagColumn(bags.codes[indices], lengths, weights)
