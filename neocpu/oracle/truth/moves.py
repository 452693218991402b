"""From which element does each element come when embeddings are permuted, regrouped or selected?

`source` of an operator is an array of the output's shape: the number of the input's element that
stands there, or -1. Forward copies; the gradient of an input's element is the sum of the gradients
of all places that it was copied to.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.oracle.operator import Arrays, Options, Switches
from neocpu.oracle.truth.numbers import Bounded, U
from neocpu.oracle.truth.sums import segment_sums
from neocpu.tables.embedding.row_sums import ranges, segment_starts


@dataclass(frozen=True)
class CopyMap:
    """Where the elements of an output come from."""

    source: Ints  # i64[output's shape]
    shape: tuple[int, ...]  # of the input


CopyMapOf = Callable[[Arrays, Options, Switches], CopyMap]


def permute_pooled(inputs: Arrays, options: Options, switches: Switches) -> CopyMap:
    """Columns of features in another order (permute_pooled_embs)."""
    dims = inputs["dims"].astype(np.int64)
    permute = inputs["permute"].astype(np.int64)
    # Only a permutation has an inverse: one that repeats features cannot be taken for its own.
    inverse = np.argsort(permute, kind="stable")
    if "permute_inverted" in switches and np.array_equal(permute[inverse], np.arange(dims.size)):
        permute = inverse
    first = segment_starts(dims)
    columns = ranges(first[permute], dims[permute])
    samples = len(inputs["pooled" if "pooled" in inputs else "grad_output"])
    width = int(first[-1])
    return CopyMap(np.arange(samples)[:, None] * width + columns, (samples, width))


def permute_multi_embedding(inputs: Arrays, options: Options, switches: Switches) -> CopyMap:
    """Columns of several tensors into other tensors (permute_multi_embedding).

    permutes : i32[P, 6]; input tensor, output tensor, first column there and there, columns; the
        last number is FBGEMM's link to the next duplicate, which is not read.
    """
    widths = inputs["widths"].astype(np.int64)
    out_widths = inputs["out_widths"].astype(np.int64)
    samples = int(inputs["samples"][0])
    input_start = segment_starts(widths) * samples
    output_start = segment_starts(out_widths) * samples
    sample = np.arange(samples)[:, None]
    source = np.full(int(output_start[-1]), -1, np.int64)
    for from_tensor, to_tensor, from_column, to_column, length, _ in inputs["permutes"].tolist():
        columns = np.arange(length)
        to_place = output_start[to_tensor] + sample * out_widths[to_tensor] + to_column + columns
        if "regroup_reads_output_columns" in switches:
            # A kernel with this mistake would read beyond the tensor; the model stays inside.
            from_column = min(to_column, int(widths[from_tensor]) - length)
        from_place = input_start[from_tensor] + sample * widths[from_tensor] + from_column
        source[to_place] = from_place + columns
    return CopyMap(source, (int(input_start[-1]),))


def group_index_select(inputs: Arrays, options: Options, switches: Switches) -> CopyMap:
    """Rows by number out of each of several matrices (group_, batch_index_select_dim0)."""
    rows = inputs["rows"].astype(np.int64)
    dims = inputs["dims"].astype(np.int64)
    counts = inputs["counts"].astype(np.int64)
    select = inputs["select"].astype(np.int64)
    matrix = np.repeat(np.arange(rows.size), counts)
    first = segment_starts(rows * dims)
    if "first_matrix_only" in switches:
        first = np.zeros_like(first)
    row_start = first[matrix] + select * dims[matrix]
    order = np.arange(select.size)
    if options["interleaved"]:
        order = order.reshape(rows.size, -1).T.reshape(-1)
    return CopyMap(ranges(row_start[order], dims[matrix[order]]), (int((rows * dims).sum()),))


def keyed_jagged_index_select(inputs: Arrays, options: Options, switches: Switches) -> CopyMap:
    """The bags of some samples, key by key (keyed_jagged_index_select_dim1)."""
    lengths = inputs["lengths"].astype(np.int64)
    keys, samples = lengths.shape
    select = inputs["select"].astype(np.int64)
    starts = segment_starts(lengths.reshape(-1))
    bags = (np.arange(keys)[:, None] * samples + select).reshape(-1)
    first = np.tile(select, keys) if "samples_of_first_key" in switches else bags
    count = int(starts[-1])
    source = ranges(starts[first], lengths.reshape(-1)[bags])
    # Bent lengths may ask for more than there is.
    return CopyMap(np.minimum(source, count - 1), (count,))


def scattered(move: CopyMap, gradient: Arrays, switches: Switches) -> Bounded:
    """Gradients of the input: [shape]; those of places that hold the same element added up."""
    terms = np.asarray(gradient["grad_output"], np.float64).reshape(-1)
    source = move.source.reshape(-1)
    count = int(np.prod(move.shape))
    order = np.argsort(source, kind="stable")
    order = order[source[order] >= 0]
    lengths = np.bincount(source[order], minlength=count)
    starts = segment_starts(lengths)
    filled = lengths > 0
    if "last_duplicate_wins" in switches or "first_duplicate_wins" in switches:
        last = "last_duplicate_wins" in switches
        order = order[starts[1:][filled] - 1 if last else starts[:-1][filled]]
        starts = segment_starts(filled.astype(np.int64))
    single = Bounded.exactly(terms[order, None])
    no_divisions = np.zeros(1, np.int64)
    total = segment_sums(single, np.abs(single.value), starts, 0, no_divisions)
    if "duplicates_averaged" in switches:
        share = np.maximum(lengths, 1)[:, None]
        total = Bounded(total.value / share, total.error + np.abs(total.value) * U)
    return total.reshape(*move.shape)
