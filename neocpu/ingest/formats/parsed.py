"""What comes of a block of rows? Columns of the good ones, and the faults of the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from neocpu.ingest.dataset_layout import BagColumn
from neocpu.ingest.formats.fields import Fault


@dataclass(frozen=True)
class Parsed:
    """The good lines of a block as columns, and its faults in line order.

    labels : f32[n]. dense : f32[n, Nd]. features : by name. missing_dense, missing : how many
    fields were empty. lines : of the block, faulty ones too. more_labels : f32[n] by name, besides
    `labels`. invalid : how many of the empty fields of dense columns were texts, by name of those
    where that is no fault.
    """

    labels: NDArray[np.float32] | None
    dense: NDArray[np.float32]
    features: dict[str, BagColumn]
    missing_dense: NDArray[np.int64]
    missing: dict[str, int]
    lines: int
    faults: list[Fault]
    more_labels: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    invalid: Mapping[str, int] = field(default_factory=dict)


def joined(parts: list[Parsed]) -> Parsed:
    """Parsed rows of several blocks as one."""
    if len(parts) == 1:
        return parts[0]
    columns = {}
    for name in parts[0].features:
        bags = [part.features[name] for part in parts]
        lengths = [bag.lengths for bag in bags if bag.lengths is not None]
        weights = [bag.weights for bag in bags if bag.weights is not None]
        columns[name] = BagColumn(
            np.concatenate([bag.codes for bag in bags]),
            np.concatenate(lengths) if lengths else None,
            np.concatenate(weights) if weights else None,
        )
    labels = [part.labels for part in parts if part.labels is not None]
    return Parsed(
        labels=np.concatenate(labels) if labels else None,
        dense=np.concatenate([part.dense for part in parts]),
        features=columns,
        missing_dense=np.sum([part.missing_dense for part in parts], axis=0, dtype=np.int64),
        missing={name: sum(part.missing.get(name, 0) for part in parts) for name in columns},
        lines=sum(part.lines for part in parts),
        faults=[],
        more_labels={
            name: np.concatenate([part.more_labels[name] for part in parts])
            for name in parts[0].more_labels
        },
        invalid={name: sum(part.invalid[name] for part in parts) for name in parts[0].invalid},
    )
