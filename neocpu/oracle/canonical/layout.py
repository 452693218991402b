"""Which arrays does neocpu itself return for operators on jagged data? Its kernels'; or the plain
model's, their twin here.

Whole numbers and copies have one right answer, so the model in `truth_layout.py` stands for the
twins: what kernels return is checked against it, number for number.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.oracle.canonical import NONE, asked
from neocpu.oracle.operator import Arrays, Value
from neocpu.oracle.truth import layout as truth_layout


def run(name: str, inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical answer of a layout operator."""
    if backend == "kernels" and name in BY_KERNELS:
        from neocpu.embedding import layouts  # kernels

        return BY_KERNELS[name](layouts, inputs, options)
    found: Arrays = getattr(truth_layout, name)(inputs, options, frozenset())
    return found


def _weighted(found: Arrays, weights: Any) -> Arrays:
    return found if weights is None else {**found, "per_sample_weights": weights}


def _permute(layouts: Any, i: Arrays, o: dict[str, Value]) -> Arrays:
    lengths, indices, weights = layouts.permute_2d(
        i["permute"], i["lengths"], i["indices"], i.get("per_sample_weights")
    )
    return _weighted({"lengths": lengths, "indices": indices}, weights)


def _bucketize(layouts: Any, i: Arrays, o: dict[str, Value]) -> Arrays:
    # 0 would hash rows
    block = i.get("block_sizes", np.ones(len(i.get("boundaries", ())), np.int64))
    uneven = list(i["boundaries"]) if "boundaries" in i else None
    found = layouts.block_bucketize(
        i["lengths"],
        i["indices"],
        block,
        int(o["ranks"]),
        i.get("per_sample_weights"),
        boundaries=uneven,
    )
    arrays = {"lengths": found.lengths, "indices": found.indices, "positions": found.positions}
    return _weighted({**arrays, "unbucketize": found.unbucketize_permute}, found.weights)


def _select(layouts: Any, i: Arrays, o: dict[str, Value]) -> Arrays:
    values, lengths = layouts.jagged_index_select(i["values"], i["lengths"], i["select"])
    return {"values": values, "lengths": lengths}


def _unique(layouts: Any, i: Arrays, o: dict[str, Value]) -> Arrays:
    return dict(zip(("unique", "inverse", "counts"), layouts.unique(i["indices"])))


def _bounds(layouts: Any, i: Arrays, o: dict[str, Value]) -> Arrays:
    from neocpu.embedding.bounds import bounds_check

    mode = str(o["bounds_check"])
    found = bounds_check(i["rows"], i["feature_table"], i["indices"], i["offsets"], mode, None, -1)
    return {"indices": found.indices, "outside": found.outside}


def _padded(layouts: Any, i: Arrays, o: dict[str, Value]) -> Arrays:
    return {
        "dense": layouts.jagged_to_padded_dense(
            i["values"], i["offsets"], int(o["max_length"]), float(o["padding"])
        )
    }


BY_KERNELS: dict[str, Callable[[Any, Arrays, dict[str, Value]], Arrays]] = {
    "permute": _permute,
    "block_bucketize": _bucketize,
    "bucketize_uneven": _bucketize,
    "jagged_index_select": _select,
    "unique": _unique,
    "bounds_check": _bounds,
    "jagged_to_padded_dense": _padded,
    "padded_dense_to_jagged": lambda layouts, i, o: {
        "values": layouts.dense_to_jagged(i["dense"], i["offsets"])
    },
    "lengths_to_offsets": lambda layouts, i, o: {"offsets": layouts.complete_cumsum(i["lengths"])},
    "recat": lambda layouts, i, o: {"order": layouts.recat(int(o["features"]), int(o["ranks"]))},
    "index_select": lambda layouts, i, o: {
        "values": layouts.index_select(i["values"], i["select"])
    },
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
    flat = out.reshape(-1)
    with np.errstate(all="ignore"):
        asked("lookup", backend).pooled_rows(table, entries, bags, False, Lines(zero, width), flat)
    return {"sums": out}
