"""What must the operators on jagged data return?

Permute, bucketize, pad, select, unique, sums of segments, checks of bounds.
"""

from collections.abc import Callable

import numpy as np

from neocpu.core.types import Elements
from neocpu.oracle.canonical import layout as canonical_layout
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truth, Truths
from neocpu.oracle.ops.lookup import BAGS, BOUNDS_CHECKS, TABLES
from neocpu.oracle.options import OneOf, Whole
from neocpu.oracle.truth import layout as truth_layout
from neocpu.oracle.truth.formats import in_format
from neocpu.oracle.truth.lookups import PROBABLE
from neocpu.oracle.truth.numbers import Bounded
from neocpu.oracle.truth.sums import segment_sums

LENGTHS = Field("lookups of each bag, int32 or int64", ("bag",))
OFFSETS = Field("where each bag begins, and the end of the last, int64[bags+1]", ("bag",))
INDICES = Field("row numbers, int64[n]", ("lookup",))
WEIGHTS = Field("a factor of each lookup, fp32[n]", ("lookup",), optional=True)
VALUES = Field("rows of all bags, fp32[n, D]", ("lookup", "column"))

BUCKETS = {
    "lengths": Field("rank-major, then keys, then samples, int64[W*F*B]", ("bag",)),
    "indices": Field("row numbers inside the block, int64[n]", ("lookup",)),
    "per_sample_weights": WEIGHTS,
    "positions": Field("place of each lookup in its bag before, int64[n]", ("lookup",)),
    "unbucketize": Field("where each lookup went, int64[n]", ("lookup",)),
}


def as_truth(array: Elements) -> Truth:
    """Copies: whole numbers exactly, fp32 numbers without error."""
    if array.dtype.kind == "f":
        return in_format(Bounded.exactly(array), "fp32")
    return Truth.exactly(array)


def _operator(
    name: str, about: str, inputs: dict[str, Field], options: Options, outputs: dict[str, Field]
) -> Operator:
    model: Callable[..., Arrays] = getattr(truth_layout, name)  # the function of that name

    def truth(arrays: Arrays, values: Options, switches: Switches) -> Truths:
        return {key: as_truth(array) for key, array in model(arrays, values, switches).items()}

    def run(arrays: Arrays, values: Options, backend: str) -> Arrays:
        return canonical_layout.run(name, arrays, values, backend)

    return Operator(name, about, inputs, options, outputs, run, truth)


def _segment_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    terms = Bounded.exactly(inputs["values"])
    starts = inputs["offsets"].astype(np.int64)
    divisions = np.zeros(1, np.int64)
    probable = PROBABLE in switches
    sums = segment_sums(terms, np.abs(terms.value), starts, 0, divisions, probable)
    return {"sums": in_format(sums, "fp32")}


OPERATORS = (
    _operator(
        "bounds_check",
        "Row numbers out of range: counted by table, and -1 in a copy (FBGEMM: "
        "bounds_check_indices, which writes 0s into the caller's array). fatal: an error instead.",
        {"rows": TABLES["rows"], **{k: BAGS[k] for k in ("feature_table", "indices", "offsets")}},
        {"bounds_check": OneOf("ignore", BOUNDS_CHECKS)},
        {
            "indices": INDICES,
            "outside": Field("row numbers out of range of each table, int64[T]", ("table",)),
        },
    ),
    _operator(
        "linear_index",
        "Where a row begins in the memory of all tables. Rows are only counted here, so tables of "
        "2^33 rows cost nothing: this is where 32-bit products show.",
        {
            k: f
            for k, f in {**TABLES, **BAGS}.items()
            if k in ("rows", "dims", "feature_table", "indices", "offsets")
        },
        {},
        {
            "element": Field(
                "first element of each lookup's row, int64[n]; -1 for pruned ones", ("lookup",)
            ),
            "row": Field("number of the row among the rows of all tables, int64[n]", ("lookup",)),
        },
    ),
    _operator(
        "lengths_to_offsets",
        "Running sums of lengths (FBGEMM: asynchronous_complete_cumsum).",
        {"lengths": LENGTHS},
        {},
        {"offsets": OFFSETS},
    ),
    _operator(
        "offsets_to_lengths",
        "Differences of offsets.",
        {"offsets": OFFSETS},
        {},
        {"lengths": LENGTHS},
    ),
    _operator(
        "offsets_range",
        "The place of each lookup in its bag (FBGEMM: offsets_range, lengths_range).",
        {"offsets": OFFSETS},
        {},
        {"range": Field("int64[n]", ("lookup",))},
    ),
    _operator(
        "invert_permute",
        "The permutation that undoes one (FBGEMM: invert_permute).",
        {"permute": Field("a permutation, int32 or int64[P]", ("key",))},
        {},
        {"inverse": Field("int64[P]", ("key",))},
    ),
    _operator(
        "expand_into_jagged_permute",
        "Where each lookup comes from when segments are permuted (FBGEMM: "
        "expand_into_jagged_permute).",
        {
            "permute": Field("number of the segment that comes here, int32 or int64[P]", ("key",)),
            "offsets": Field("where segments begin, and the end of the last", ("key",)),
        },
        {},
        {"sources": Field("places of lookups, int64[n]", ("lookup",))},
    ),
    _operator(
        "permute",
        "Keys of jagged data in another order (FBGEMM: permute_2D_sparse_data).",
        {
            "permute": Field("number of the key that comes here, int64[P]", ("key",)),
            "lengths": Field("lookups of each bag, int32 or int64[F, B]", ("key", "sample")),
            "indices": INDICES,
            "per_sample_weights": WEIGHTS,
        },
        {},
        {
            "lengths": Field("int64[P, B]", ("key", "sample")),
            "indices": INDICES,
            "per_sample_weights": WEIGHTS,
        },
    ),
    _operator(
        "block_bucketize",
        "Lookups to the ranks that own their rows, blocks of rows each (FBGEMM: "
        "block_bucketize_sparse_features).",
        {
            "lengths": LENGTHS,
            "indices": INDICES,
            "block_sizes": Field("rows of a rank's block, of each key, int64[F]", ("key",)),
            "per_sample_weights": WEIGHTS,
        },
        {"ranks": Whole(2, 1)},
        BUCKETS,
    ),
    _operator(
        "bucketize_uneven",
        "Lookups to ranks whose blocks have sizes of their own (FBGEMM: "
        "block_bucketize_sparse_features, block_bucketize_pos).",
        {
            "lengths": LENGTHS,
            "indices": INDICES,
            "boundaries": Field(
                "first row of each rank's block and the end of the last, int64[F, W+1]",
                ("key", "rank"),
            ),
            "per_sample_weights": WEIGHTS,
        },
        {"ranks": Whole(2, 1)},
        BUCKETS,
    ),
    _operator(
        "recat",
        "The order that makes blocks by (rank, key) key-major; no inputs (TorchRec: _get_recat).",
        {},
        {"features": Whole(2, 0), "ranks": Whole(2, 1)},
        {"order": Field("numbers of blocks, int64[features * ranks]", ("block",))},
    ),
    _operator(
        "index_select",
        "Rows by number, in any order, with repeats (FBGEMM: index_select_dim0).",
        {"values": VALUES, "select": Field("numbers of rows, int64[S]", ("row",))},
        {},
        {"values": Field("fp32[S, D]", ("row", "column"))},
    ),
    _operator(
        "jagged_to_padded_dense",
        "Bags of rows as one dense array, cut off or padded (FBGEMM: jagged_to_padded_dense).",
        {"values": VALUES, "offsets": OFFSETS},
        {"max_length": Whole(4, 0), "padding": 0.0},
        {"dense": Field("fp32[bags, max_length, D]", ("bag", "place", "column"))},
    ),
    _operator(
        "padded_dense_to_jagged",
        "The rows of bags out of a dense array (FBGEMM: dense_to_jagged).",
        {"dense": Field("fp32[bags, L, D]", ("bag", "place", "column")), "offsets": OFFSETS},
        {},
        {"values": VALUES},
    ),
    _operator(
        "jagged_index_select",
        "Some bags of rows, in any order, with repeats (FBGEMM: jagged_index_select).",
        {
            "values": VALUES,
            "lengths": LENGTHS,
            "select": Field("numbers of bags, int64[S]", ("bag",)),
        },
        {},
        {"values": VALUES, "lengths": LENGTHS},
    ),
    _operator(
        "unique",
        "Different row numbers, ascending, with the way back (torch: unique).",
        {"indices": INDICES},
        {},
        {
            "unique": Field("different row numbers, ascending, int64[U]", ("unique",)),
            "inverse": Field("where each lookup finds its own, int64[n]", ("lookup",)),
            "counts": Field("how often each occurs, int64[U]", ("unique",)),
        },
    ),
    _operator(
        "jagged_unique",
        "Different rows of each table, ascending, as bags of the features that share it, which "
        "stand side by side: the first bags take one more where they do not share evenly (FBGEMM: "
        "jagged_unique_indices).",
        {k: BAGS[k] for k in ("feature_table", "indices", "offsets")},
        {},
        {
            "unique": Field("different rows, table after table, int64[U]", ("unique",)),
            "inverse": Field("where each lookup finds its own, int64[n]", ("lookup",)),
            "lengths": Field("rows of each bag, int64[F*B]", ("bag",)),
        },
    ),
    _operator(
        "reorder_batched",
        "Batches, each table-major, as one table-major batch; broadcast: a batch has one bag for "
        "each table, which all its samples share (FBGEMM: reorder_batched_ad_lengths, "
        "reorder_batched_ad_indices).",
        {
            "lengths": LENGTHS,
            "indices": INDICES,
            "batch_offsets": Field("first sample of each batch, and their number", ("batch",)),
        },
        {"broadcast": False},
        {
            "lengths": Field("lookups of each bag, int64[tables*samples]", ("bag",)),
            "indices": INDICES,
        },
    ),
    Operator(
        "segment_sum",
        "Sums of the rows of each segment (FBGEMM: segment_sum_csr).",
        {"values": VALUES, "offsets": OFFSETS},
        {},
        {"sums": Field("fp32[segments, D]", ("bag", "column"))},
        canonical_layout.segment_sum,
        _segment_truth,
    ),
)
