"""Which arrays does neocpu itself return for operators on jagged data? Kernels where there are some, else the model."""

import numpy as np

from neocpu.oracle import truth_layout
from neocpu.oracle.canonical import NONE, asked
from neocpu.oracle.records import Arrays, Value


def run(name: str, inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical answer of a layout operator: these move whole numbers and copy floats, so the model is right to the bit."""
    own = globals().get(f"_{name}")
    if own is not None:
        found: Arrays = own(inputs, options, backend)
        return found
    found = getattr(truth_layout, name)(inputs, options, frozenset())
    return found


def _lengths_to_offsets(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    lengths = inputs["lengths"].reshape(-1).astype(np.int32)
    offsets = np.empty(lengths.size + 1, np.int64)
    asked("jagged", backend).lengths_to_offsets(lengths, offsets)
    return {"offsets": offsets}


def segment_sum(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical sums of segments: exact, rounded once."""
    values, offsets = inputs["values"], inputs["offsets"].astype(np.int64)
    out = np.zeros((offsets.size - 1, values.shape[1]), np.float32)
    table, zero = np.ascontiguousarray(values).reshape(-1), np.zeros(1, np.int64)
    width, rows = np.array([values.shape[1]]), np.arange(len(values))
    with np.errstate(all="ignore"):
        asked("pooling", backend).pooled_sum(table, zero, width, offsets, rows, NONE, out, zero)
    return {"sums": out}
