"""Which jagged data break the small operators? Cases of layout and of sums of segments.

Widths are as real kernels take them: any where rows are copied or added.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from neocpu.oracle.cases.draw import ABOUT, Draw, Recipe, bags, ragged, tables
from neocpu.oracle.operator import Arrays, Case, Value


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for make in (_checks, _moves, _dense, _sums, _batches):
        yield from make(recipe)


def _case(name: str, op: str, inputs: Arrays, about: str = "", **options: Value) -> Case:
    return Case(name, op, inputs, options, about or ABOUT[name])


def _checks(recipe: Recipe) -> Iterator[Case]:
    draw = Draw(recipe.seed, "checks")
    table_inputs = tables(draw, (11, 7), recipe.widths(1, 1), (1, 0, 1))
    batch = bags(draw, table_inputs, ragged(draw, 3, 4))
    inputs = {"rows": table_inputs["rows"], "feature_table": table_inputs["feature_table"], **batch}
    yield _case("bounds-check-good", "bounds_check", inputs)
    bad = {**inputs, "indices": inputs["indices"].copy()}
    bad["indices"][::2] = np.resize([-1, 7, 11, -2, 1 << 40, -(1 << 63)], bad["indices"][::2].size)
    yield _case("bounds-check-bad", "bounds_check", bad)
    huge = {
        "rows": np.array([1 << 33, 5, 1 << 31], np.int64),
        "dims": np.array(recipe.widths(128, 3, 4), np.int64),
        "feature_table": np.array([0, 2, 1, 0], np.int64),
        "offsets": np.array([0, 3, 6, 8, 10], np.int64),
    }
    huge["indices"] = np.array(
        [0, (1 << 33) - 1, 1 << 25, (1 << 31) - 1, 1 << 29, -1, 4, 0, 16777216, 16777215], np.int64
    )
    yield _case("linear-index-huge", "linear_index", huge)
    small = {**table_inputs, **bags(draw, table_inputs, ragged(draw, 3, 4))}
    del small["weights"]
    yield _case("linear-index-small", "linear_index", small)


def _moves(recipe: Recipe) -> Iterator[Case]:
    draw = Draw(recipe.seed, "moves")
    lengths = np.array(ragged(draw, 4, 3), np.int32)
    count = int(lengths.sum())
    base: Arrays = {
        "lengths": lengths,
        "indices": draw.whole(count, 0, 20),
        "per_sample_weights": draw.floats(count),
    }
    yield from _permutes(base)
    yield from _buckets(base)
    yield from _offsets(lengths)
    yield from _uniques(draw)


def _permutes(base: Arrays) -> Iterator[Case]:
    """Keys in other orders; base : lengths [keys, samples], indices and weights."""
    yield _case("permute", "permute", {**base, "permute": np.array([2, 0, 3, 1])})
    yield _case("permute-repeats", "permute", {**base, "permute": np.array([1, 1, 3])})
    offsets = np.append(0, np.cumsum(base["lengths"].sum(1)))
    for name, order, about in (
        ("expand-permute", [2, 0, 3, 1], "segments in another order"),
        ("expand-permute-repeats", [3, 3, 0], "a segment twice, others not at all"),
        ("expand-permute-none", [], "no segment"),
    ):
        segments = {"permute": np.array(order, np.int64), "offsets": offsets}
        yield _case(name, "expand_into_jagged_permute", segments, about)
    for size in (1, 7, 300):
        shuffled = {"permute": (11 * np.arange(size) + 5) % size}
        about = f"{size} numbers in another order"
        yield _case(f"invert-permute-{size}", "invert_permute", shuffled, about)
    empty: Arrays = {
        "lengths": np.zeros((3, 0), np.int32),
        "indices": np.zeros(0, np.int64),
        "permute": np.array([2, 1, 0]),
    }
    yield _case("permute-empty", "permute", empty, "B = 0")


def _buckets(base: Arrays) -> Iterator[Case]:
    """Lookups to ranks; base : lengths [keys, samples], indices and weights."""
    flat: Arrays = {**base, "lengths": base["lengths"].reshape(-1)}
    flat["block_sizes"] = np.array([5, 7, 20, 3])
    yield _case("block-bucketize", "block_bucketize", flat, ranks=3)
    yield _case("block-bucketize-one", "block_bucketize", flat, ranks=1)
    last: Arrays = {
        **flat,
        "indices": np.full(base["indices"].size, 9),
        "block_sizes": np.array([5, 5, 5, 5]),
    }
    yield _case("block-bucketize-edge", "block_bucketize", last, ranks=2)
    uneven: Arrays = {name: array for name, array in flat.items() if name != "block_sizes"}
    uneven["boundaries"] = np.array([[0, 1, 1, 9], [0, 6, 8, 20], [0, 0, 0, 20], [0, 3, 4, 5]])
    about = "blocks of unequal size, some empty; rows at their edges and beyond the last"
    yield _case("bucketize-uneven", "bucketize_uneven", uneven, about, ranks=3)
    yield _case("recat", "recat", {}, features=4, ranks=3)


def _offsets(lengths: NDArray[np.int32]) -> Iterator[Case]:
    yield _case("offsets-ragged", "lengths_to_offsets", {"lengths": lengths.reshape(-1)})
    yield _case("offsets-empty", "lengths_to_offsets", {"lengths": np.zeros(0, np.int32)})
    for name, bag_lengths, about in (
        ("offsets-range", lengths.reshape(-1), "places start again in every bag"),
        ("offsets-range-empty", np.zeros(3, np.int32), "bags without a lookup"),
        ("offsets-range-long", np.array([0, 0, 1025, 1, 0, 33, 0]), "runs of empty bags"),
    ):
        ends = {"offsets": np.append(0, np.cumsum(bag_lengths))}
        yield _case(name, "offsets_range", ends, about)
    big = np.array([1 << 30, 1 << 30, 1 << 30, 5], np.int32)
    yield _case("offsets-beyond-32-bits", "lengths_to_offsets", {"lengths": big})
    yield _case("lengths-ragged", "offsets_to_lengths", {"offsets": np.array([0, 0, 4, 4, 9])})


def _uniques(draw: Draw) -> Iterator[Case]:
    rows = draw.whole(200, 0, 25)
    yield _case("unique-duplicates", "unique", {"indices": rows})
    wide = np.array([1 << 40, 5, (1 << 40) + 1, 5, 1 << 31, 1 << 32, 0, 1 << 40], np.int64)
    yield _case("unique-wide", "unique", {"indices": wide})
    far = (1 << 53) + np.array([0, 1, 2, 1, 3], np.int64)
    keys = np.concatenate([far, (1 << 62) + far, [(1 << 63) - 1, (1 << 63) - 2]])
    yield _case("unique-beyond-fp64", "unique", {"indices": keys})
    yield _case("unique-empty", "unique", {"indices": np.zeros(0, np.int64)})


def _batches(recipe: Recipe) -> Iterator[Case]:
    """Unique rows of tables, and batches that become one."""
    draw = Draw(recipe.seed, "batches")
    for name, features, samples, rows, about in (
        ("jagged-unique", [0, 0, 1, 2], 5, 12, "features that share a table share its rows"),
        ("jagged-unique-equal-rows", [0, 1, 2], 5, 7, "equal rows of different tables stay apart"),
        ("jagged-unique-many-rows", [3, 1], 40, 500, "more rows than a warp takes"),
        ("jagged-unique-few-lookups", [0, 0, 2], 9, 2, "fewer rows than bags"),
    ):
        lengths = draw.whole(len(features) * samples, 0, 5)
        unique: Arrays = {
            "feature_table": np.array(features),
            "indices": draw.whole(int(lengths.sum()), 0, rows),
            "offsets": np.append(0, np.cumsum(lengths)),
        }
        yield _case(name, "jagged_unique", unique, about)
    for name, sizes, broadcast, about in (
        ("reorder-batched", [2, 3, 1], False, "three batches of different sizes, two tables"),
        ("reorder-batched-empty", [2, 0, 4], False, "a batch without a sample"),
        ("reorder-batched-broadcast", [2, 0, 3], True, "samples share the bags of their batch"),
    ):
        lengths = draw.whole(2 * (len(sizes) if broadcast else sum(sizes)), 0, 5)
        batches: Arrays = {
            "lengths": lengths.astype(np.int32),
            "indices": draw.whole(int(lengths.sum()), 0, 100),
            "batch_offsets": np.append(0, np.cumsum(sizes)),
        }
        yield _case(name, "reorder_batched", batches, about, broadcast=broadcast)


def _dense(recipe: Recipe) -> Iterator[Case]:
    draw = Draw(recipe.seed, "dense")
    offsets = np.array([0, 3, 3, 10, 11])
    values = draw.floats((11, 3))
    values[4, 1] = np.nan
    # Copies keep NaN and -0 as they are.
    values[9, 2] = -0.0
    inputs: Arrays = {"values": values, "offsets": offsets}
    yield _case("padded-short", "jagged_to_padded_dense", inputs, max_length=4, padding=-1.0)
    yield _case("padded-long", "jagged_to_padded_dense", inputs, max_length=9)
    picked: Arrays = {"values": values, "select": np.array([10, 0, 0, 4, 9])}
    yield _case("index-select-rows", "index_select", picked)
    dense = draw.floats((4, 5, 3))
    yield _case("unpadded", "padded_dense_to_jagged", {"dense": dense, "offsets": offsets})
    select: Arrays = {
        "values": values,
        "lengths": np.array([3, 0, 7, 1], np.int32),
        "select": np.array([2, 0, 2, 1]),
    }
    yield _case("index-select", "jagged_index_select", select)


def _sums(recipe: Recipe) -> Iterator[Case]:
    draw = Draw(recipe.seed, "sums")
    long: Arrays = {
        "values": draw.dyadic((2200, 2)),
        "offsets": np.array([0, 0, 31, 64, 1089, 2200, 2200]),
    }
    yield _case("segment-sum-long", "segment_sum", long)
    real: Arrays = {"values": draw.floats((40, 7)), "offsets": np.arange(9) * 5}
    yield _case("segment-sum", "segment_sum", real)
