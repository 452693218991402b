"""Bugs in dealing lookups out to ranks."""

import numpy as np

from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.registry import bend, named_mistake

BUCKETS = "block_bucketize bucketize_uneven"

named_mistake(
    "bucket_by_modulo",
    "block_bucketize",
    block_destination=lambda k, row, block, ranks: (row % ranks, row // ranks),
)
named_mistake(
    "bucket_keeps_row",
    "block_bucketize",
    block_destination=lambda k, row, block, ranks: (
        Kernel.block_destination(k, row, block, ranks)[0],
        row,
    ),
)
bend(
    "bucket_beyond_to_last_rank",
    "block_bucketize",
    block_destination=lambda k, row, block, ranks: (
        np.minimum(row // block, ranks - 1),
        row - np.minimum(row // block, ranks - 1) * block,
    ),
)
bend(
    "bucket_beyond_to_rank_0",
    "block_bucketize",
    block_destination=lambda k, row, block, ranks: (
        np.where(row >= block * ranks, 0, row // block),
        np.where(row >= block * ranks, row, row % block),
    ),
)
bend(
    "bucket_edge_off_by_one",
    "block_bucketize",
    block_destination=lambda k, row, block, ranks: Kernel.block_destination(
        k, np.maximum(row - 1, 0), block, ranks
    ),
)
bend(
    "bucket_blocks_of_first_key",
    "block_bucketize",
    block_of=lambda k, blocks, key: np.full(len(key), blocks[:1].sum()),
)
bend(
    "uneven_keeps_row",
    "bucketize_uneven",
    "bucket_keeps_row",
    uneven_destination=lambda k, row, edges, ranks: (
        Kernel.uneven_destination(k, row, edges, ranks)[0],
        row,
    ),
)
bend(
    "uneven_edge_to_rank_before",
    "bucketize_uneven",
    rank_between=lambda k, row, edges: (row[:, None] > edges[:, 1:]).sum(axis=1),
)
bend(
    "uneven_edges_of_first_key",
    "bucketize_uneven",
    uneven_destination=lambda k, row, edges, ranks: Kernel.uneven_destination(
        k, row, edges[:1].repeat(len(edges), 0), ranks
    ),
)
bend(
    "bucket_order_backwards",
    BUCKETS,
    bucket_order=lambda k, rank, bag, bags: np.lexsort((-np.arange(len(bag)), rank * bags + bag)),
)
bend("bucket_positions_in_all", BUCKETS, positions=lambda k, place, bag, o: place + o[bag])
bend("bucket_positions_0", BUCKETS, positions=lambda k, place, bag, offsets: place * 0)
bend("unbucketize_is_order", BUCKETS, way_back=lambda k, went, order: order)
bend("bucket_weights_not_moved", BUCKETS, bucket_weights=lambda k, weights, order: weights)
bend(
    "bucket_weights_of_next",
    BUCKETS,
    bucket_weights=lambda k, weights, order: np.roll(weights[order], 1),
)
bend("recat_rank_major", "recat", recat=lambda k, features, ranks: np.arange(features * ranks))
bend(
    "recat_swapped",
    "recat",
    recat=lambda k, features, ranks: (
        np.arange(features * ranks).reshape(features, ranks).T.reshape(-1)
    ),
)
