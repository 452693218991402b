"""Which kernels answer for operators on jagged data? Those of the embedding tables, compiled.

A module of its own, so that suites of the twins' answers load no compiler.
"""

from collections.abc import Callable

import numpy as np

from neocpu.core.types import Elements
from neocpu.oracle.operator import Arrays, Options
from neocpu.tables.embedding import layouts
from neocpu.tables.embedding.bounds import bounds_check


def _with_weights(outputs: Arrays, weights: Elements | None) -> Arrays:
    return outputs if weights is None else {**outputs, "per_sample_weights": weights}


def _permute(inputs: Arrays, options: Options) -> Arrays:
    lengths, indices, weights = layouts.permute_2d(
        inputs["permute"], inputs["lengths"], inputs["indices"], inputs.get("per_sample_weights")
    )
    return _with_weights({"lengths": lengths, "indices": indices}, weights)


def _bucketize(inputs: Arrays, options: Options) -> Arrays:
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


def _select_bags(inputs: Arrays, options: Options) -> Arrays:
    values, lengths = layouts.jagged_index_select(
        inputs["values"], inputs["lengths"], inputs["select"]
    )
    return {"values": values, "lengths": lengths}


def _unique(inputs: Arrays, options: Options) -> Arrays:
    return dict(zip(("unique", "inverse", "counts"), layouts.unique(inputs["indices"])))


def _reordered(inputs: Arrays, options: Options) -> Arrays:
    broadcast = bool(options["broadcast"])
    ends = inputs["batch_offsets"].astype(np.int64)
    of_table = ends.size - 1 if broadcast else int(ends[-1])
    tables = inputs["lengths"].size // max(of_table, 1)
    bags = layouts.reordered_bags(ends, tables, broadcast)
    rows, lengths = layouts.jagged_index_select(inputs["indices"], inputs["lengths"], bags)
    return {"lengths": lengths, "indices": rows}


def _bounds(inputs: Arrays, options: Options) -> Arrays:
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


def _padded(inputs: Arrays, options: Options) -> Arrays:
    dense = layouts.jagged_to_padded_dense(
        inputs["values"], inputs["offsets"], int(options["max_length"]), float(options["padding"])
    )
    return {"dense": dense}


def _unpadded(inputs: Arrays, options: Options) -> Arrays:
    return {"values": layouts.dense_to_jagged(inputs["dense"], inputs["offsets"])}


def _offsets(inputs: Arrays, options: Options) -> Arrays:
    return {"offsets": layouts.complete_cumsum(inputs["lengths"])}


def _recat(inputs: Arrays, options: Options) -> Arrays:
    return {"order": layouts.recat(int(options["features"]), int(options["ranks"]))}


def _select_rows(inputs: Arrays, options: Options) -> Arrays:
    return {"values": layouts.index_select(inputs["values"], inputs["select"])}


def _range(inputs: Arrays, options: Options) -> Arrays:
    offsets = inputs["offsets"].astype(np.int64)
    return {"range": layouts.offsets_range(offsets[:-1], int(offsets[-1]))}


def _inverse(inputs: Arrays, options: Options) -> Arrays:
    return {"inverse": layouts.invert_permute(inputs["permute"].astype(np.int64))}


def _sources(inputs: Arrays, options: Options) -> Arrays:
    permute = inputs["permute"].astype(np.int64)
    offsets = inputs["offsets"].astype(np.int64)
    permuted = np.append(0, np.cumsum(np.diff(offsets)[permute]))
    return {"sources": layouts.expand_into_jagged_permute(permute, offsets, permuted)}


BY_KERNELS: dict[str, Callable[[Arrays, Options], Arrays]] = {
    "permute": _permute,
    "block_bucketize": _bucketize,
    "bucketize_uneven": _bucketize,
    "jagged_index_select": _select_bags,
    "unique": _unique,
    "reorder_batched": _reordered,
    "bounds_check": _bounds,
    "jagged_to_padded_dense": _padded,
    "padded_dense_to_jagged": _unpadded,
    "lengths_to_offsets": _offsets,
    "recat": _recat,
    "index_select": _select_rows,
    "offsets_range": _range,
    "invert_permute": _inverse,
    "expand_into_jagged_permute": _sources,
}
