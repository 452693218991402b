"""Which arrays does neocpu itself return for operators on jagged data?

Those of its kernels, or of the model in `truth/layout.py`: whole numbers and copies have one right
answer, so the model serves as the twin, and what kernels return must equal it number for number.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from neocpu.kernels.compile.choice import backend_module
from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.oracle.canonical import NONE
from neocpu.oracle.operator import Arrays, Value
from neocpu.oracle.truth import layout as truth_layout


def run(name: str, inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical answer of a layout operator."""
    if backend == "kernels" and name in BY_KERNELS:
        from neocpu.tables.embedding import layouts  # kernels

        return BY_KERNELS[name](layouts, inputs, options)
    outputs: Arrays = getattr(truth_layout, name)(inputs, options, frozenset())
    return outputs


def _with_weights(outputs: Arrays, weights: Any) -> Arrays:
    return outputs if weights is None else {**outputs, "per_sample_weights": weights}


def _permute(layouts: Any, inputs: Arrays, options: dict[str, Value]) -> Arrays:
    lengths, indices, weights = layouts.permute_2d(
        inputs["permute"], inputs["lengths"], inputs["indices"], inputs.get("per_sample_weights")
    )
    return _with_weights({"lengths": lengths, "indices": indices}, weights)


def _bucketize(layouts: Any, inputs: Arrays, options: dict[str, Value]) -> Arrays:
    # beside boundaries the block sizes do not matter, but 0 would mean that rows are hashed
    block = inputs.get("block_sizes", np.ones(len(inputs.get("boundaries", ())), np.int64))
    uneven = list(inputs["boundaries"]) if "boundaries" in inputs else None
    buckets = layouts.block_bucketize(
        inputs["lengths"],
        inputs["indices"],
        block,
        int(options["ranks"]),
        inputs.get("per_sample_weights"),
        boundaries=uneven,
    )
    outputs = {
        "lengths": buckets.lengths,
        "indices": buckets.indices,
        "positions": buckets.positions,
        "unbucketize": buckets.unbucketize_permute,
    }
    return _with_weights(outputs, buckets.weights)


def _select_bags(layouts: Any, inputs: Arrays, options: dict[str, Value]) -> Arrays:
    values, lengths = layouts.jagged_index_select(
        inputs["values"], inputs["lengths"], inputs["select"]
    )
    return {"values": values, "lengths": lengths}


def _unique(layouts: Any, inputs: Arrays, options: dict[str, Value]) -> Arrays:
    return dict(zip(("unique", "inverse", "counts"), layouts.unique(inputs["indices"])))


def _bounds(layouts: Any, inputs: Arrays, options: dict[str, Value]) -> Arrays:
    from neocpu.tables.embedding.bounds import bounds_check

    mode = str(options["bounds_check"])
    checked = bounds_check(
        inputs["rows"],
        inputs["feature_table"],
        inputs["indices"],
        inputs["offsets"],
        mode,
        None,
        -1,
    )
    return {"indices": checked.indices, "outside": checked.outside}


def _padded(layouts: Any, inputs: Arrays, options: dict[str, Value]) -> Arrays:
    dense = layouts.jagged_to_padded_dense(
        inputs["values"], inputs["offsets"], int(options["max_length"]), float(options["padding"])
    )
    return {"dense": dense}


def _unpadded(layouts: Any, inputs: Arrays, options: dict[str, Value]) -> Arrays:
    return {"values": layouts.dense_to_jagged(inputs["dense"], inputs["offsets"])}


def _offsets(layouts: Any, inputs: Arrays, options: dict[str, Value]) -> Arrays:
    return {"offsets": layouts.complete_cumsum(inputs["lengths"])}


def _recat(layouts: Any, inputs: Arrays, options: dict[str, Value]) -> Arrays:
    return {"order": layouts.recat(int(options["features"]), int(options["ranks"]))}


def _select_rows(layouts: Any, inputs: Arrays, options: dict[str, Value]) -> Arrays:
    return {"values": layouts.index_select(inputs["values"], inputs["select"])}


BY_KERNELS: dict[str, Callable[[Any, Arrays, dict[str, Value]], Arrays]] = {
    "permute": _permute,
    "block_bucketize": _bucketize,
    "bucketize_uneven": _bucketize,
    "jagged_index_select": _select_bags,
    "unique": _unique,
    "bounds_check": _bounds,
    "jagged_to_padded_dense": _padded,
    "padded_dense_to_jagged": _unpadded,
    "lengths_to_offsets": _offsets,
    "recat": _recat,
    "index_select": _select_rows,
}


def segment_sum(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical sums of segments: exact, rounded once."""
    values = inputs["values"]
    offsets = inputs["offsets"].astype(np.int64)
    out = np.zeros((offsets.size - 1, values.shape[1]), np.float32)
    table = np.ascontiguousarray(values).reshape(-1)
    zero = np.zeros(1, np.int64)
    width = np.array([values.shape[1]])
    rows = np.arange(len(values))
    entries = Entries(zero, width, width, np.array([0, len(out)]))
    bags = Bags(offsets, rows, NONE)
    lines = Lines(zero, width)
    kernels = backend_module("rows.lookup", backend)
    with np.errstate(all="ignore"):
        kernels.pooled_rows(table, entries, bags, False, lines, out.reshape(-1))
    return {"sums": out}
