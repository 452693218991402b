"""How is jagged data permuted, selected, padded and reordered?

Segments are copied, and maps of positions say where each one comes from.

    segment t of the result is segment[t] of the input;
    starts and offsets say where each begins

        values   | a a | b | c c c |        segment = 2, 0        | c c c | a a |
                 starts 0   2   3                                 offsets 0    3    5

FBGEMM has a dozen operators for this; here they are one copy (`copy_segments`) and a few maps.
Values are copied and never computed with, so they may have any dtype.
"""

from numba import prange

from neocpu.kernels.compile.jit import kernel, parallel_kernel
from neocpu.kernels.simd.bags import view

# segments or rows that one task of a parallel loop copies
RUN = 64


@parallel_kernel
def copy_segments(values, starts, segment, offsets, width, out):
    """Segment t of out = offsets[t+1] - offsets[t] rows of values from starts[segment[t]] on.

    Shapes: values, out 1-D of one dtype, rows of `width` elements; starts i64[N]; segment i64[S];
    offsets i64[S+1].
    Source: FBGEMM permute_1D_sparse_data, permute_2D_sparse_data, jagged_index_select,
    reorder_batched_ad_indices. Order: none.
    """
    for task in prange((segment.size + RUN - 1) // RUN):
        for t in range(task * RUN, min(task * RUN + RUN, segment.size)):
            n = (offsets[t + 1] - offsets[t]) * width
            # bare views: a slice would count references in every thread
            source = view(values, starts[segment[t]] * width, n)
            target = view(out, offsets[t] * width, n)
            for i in range(n):
                target[i] = source[i]


@parallel_kernel
def index_select(values, index, width, out):
    """Row i of out = row index[i] of values.

    Shapes: values, out 1-D of one dtype, rows of `width` elements; index i64[n].
    Source: FBGEMM index_select_dim0. Order: none.
    """
    for task in prange((index.size + RUN - 1) // RUN):
        for i in range(task * RUN, min(task * RUN + RUN, index.size)):
            source = view(values, index[i] * width, width)
            target = view(out, i * width, width)
            for c in range(width):
                target[c] = source[c]


@parallel_kernel
def select_or_fill(values, index, width, filler, out):
    """Row i of out = row index[i] of values, or a row of `filler` where index[i] is negative.

    Shapes: values, out 1-D of one dtype, rows of `width` elements; index i64[n]; filler of that
    dtype.
    Source: FBGEMM jagged_to_padded_dense, dense_to_jagged of several jagged dimensions.
    Order: none.
    """
    for task in prange((index.size + RUN - 1) // RUN):
        for i in range(task * RUN, min(task * RUN + RUN, index.size)):
            target = view(out, i * width, width)
            if index[i] < 0:
                for c in range(width):
                    target[c] = filler
            else:
                source = view(values, index[i] * width, width)
                for c in range(width):
                    target[c] = source[c]


@parallel_kernel
def jagged_to_padded_dense(values, offsets, width, longest, padding, out):
    """out[b] = the first `longest` rows of bag b, then rows of `padding`.

    Shapes: values, out 1-D of one dtype, rows of `width` elements; offsets i64[B+1]; out has
    B * longest rows; padding of that dtype.
    Source: FBGEMM jagged_to_padded_dense. Order: none.
    """
    for b in prange(offsets.size - 1):
        full = longest * width
        n = min((offsets[b + 1] - offsets[b]) * width, full)
        source = view(values, offsets[b] * width, n)
        target = view(out, b * full, full)
        for i in range(n):
            target[i] = source[i]
        for i in range(n, full):
            target[i] = padding


@parallel_kernel
def padded_dense_to_jagged(dense, offsets, width, longest, out):
    """Bag b of out = the first rows of dense[b]; zeros where a bag is longer than `longest`.

    Shapes: dense, out 1-D of one dtype, rows of `width` elements; dense has B * longest rows;
    offsets i64[B+1].
    Source: FBGEMM dense_to_jagged. Order: none.
    """
    for b in prange(offsets.size - 1):
        n = (offsets[b + 1] - offsets[b]) * width
        m = min(n, longest * width)
        source = view(dense, b * longest * width, m)
        target = view(out, offsets[b] * width, n)
        for i in range(m):
            target[i] = source[i]
        for i in range(m, n):
            target[i] = 0


@kernel
def expand_into_jagged_permute(permute, input_offsets, output_offsets, out):
    """Source position of each lookup of permuted segments.

    out[output_offsets[t] + i] = input_offsets[permute[t]] + i.
    Shapes: permute i64[S]; input_offsets i64[N+1]; output_offsets i64[S+1]; out
    i64[output_offsets[S]].
    Source: FBGEMM expand_into_jagged_permute.
    """
    for t in range(permute.size):
        first = input_offsets[permute[t]] - output_offsets[t]
        for i in range(output_offsets[t], output_offsets[t + 1]):
            out[i] = first + i


@kernel
def jagged_places(bags, offsets, longest, places):
    """places[i*longest + j] = position of entry j of bag bags[i], -1 where there is no such entry.

    One call resolves one jagged dimension: its entries are the bags of the next one.
    Shapes: bags i64[n], -1 for no bag; offsets i64[B+1]; places i64[n * longest].
    Source: FBGEMM jagged_to_padded_dense.
    """
    for i in range(bags.size):
        bag = bags[i]
        first = 0
        count = 0
        # -1: an outer dimension was padded here already, so there is nothing inside
        if 0 <= bag < offsets.size - 1:
            first = offsets[bag]
            count = offsets[bag + 1] - offsets[bag]
        for j in range(longest):
            places[i * longest + j] = first + j if j < count else -1


@kernel
def invert_places(places, out):
    """out[places[i]] = i for places[i] >= 0, and -1 everywhere else.

    Shapes: places i64[n], -1 or distinct; out i64[m]. Source: FBGEMM dense_to_jagged.
    """
    out[:] = -1
    for i in range(places.size):
        if places[i] >= 0:
            out[places[i]] = i


@kernel
def bucketized_permute(offsets, bucket, starts, out):
    """Position of each lookup after bucketization: the next free one of its rank and bag.

    Shapes: offsets i64[bags+1]; bucket i64[n], the rank of each lookup; starts i64[ranks*bags],
    where the lookups of (rank, bag) begin, on return where they end; out i64[n].
    Source: FBGEMM populate_bucketized_permute. Order: lookups ascending.
    """
    bags = offsets.size - 1
    for b in range(bags):
        for j in range(offsets[b], offsets[b + 1]):
            segment = bucket[j] * bags + b
            out[j] = starts[segment]
            starts[segment] += 1


@kernel
def invert_permute(permute, out):
    """out[permute[i]] = i. Shapes: permute, out i64[n]. Source: FBGEMM invert_permute."""
    for i in range(permute.size):
        out[permute[i]] = i


@kernel
def offsets_range(offsets, out):
    """Position of every lookup in its bag: 0, 1, 2, ... from each offset on.

    Shapes: offsets i64[B], the first is 0 and the last bag ends with out; out i64[n].
    Source: FBGEMM offsets_range.
    """
    for b in range(offsets.size):
        end = offsets[b + 1] if b + 1 < offsets.size else out.size
        for i in range(offsets[b], end):
            out[i] = i - offsets[b]


@kernel
def recat(features, ranks, stagger, out):
    """Permutation that makes (rank, feature) segments feature-major, as all ranks send them.

    Shapes: out i64[features * ranks]; stagger i64: 1, or the number of nodes, and then the ranks
    are taken across nodes first.
    Source: TorchRec _get_recat.
    """
    position = 0
    ranks_per_node = ranks // stagger
    for feature in range(features):
        for local_rank in range(ranks_per_node):
            for node in range(stagger):
                out[position] = feature + (local_rank + ranks_per_node * node) * features
                position += 1


@kernel
def reordered_bags(batch_offsets, tables, broadcast, out):
    """Source bag of each bag when batches, each table-major, are joined into one table-major batch.

    Shapes: batch_offsets i64[N+1], batch b has the samples [batch_offsets[b], batch_offsets[b+1]);
    broadcast bool: a batch has one bag for each table, which all its samples share;
    out i64[tables * batch_offsets[N]].
    Source: FBGEMM reorder_batched_ad_lengths, reorder_batched_ad_indices.
    """
    batches = batch_offsets.size - 1
    position = 0
    for t in range(tables):
        for b in range(batches):
            first = batch_offsets[b]
            count = batch_offsets[b + 1] - batch_offsets[b]
            for i in range(count):
                out[position] = tables * b + t if broadcast else tables * first + t * count + i
                position += 1


@kernel
def mark_unique(values, order, unique, inverse, counts):
    """Unique values ascending, the number of each value among them, and how often each occurs.

    Returns how many unique values there are.
    Shapes: values, inverse i64[n]; order i64[n], a permutation that sorts the values; unique,
    counts i64[n], filled from the front.
    Source: FBGEMM jagged_unique_indices.
    """
    unique_count = 0
    for i in range(order.size):
        value = values[order[i]]
        if i == 0 or value != values[order[i - 1]]:
            unique[unique_count] = value
            counts[unique_count] = 0
            unique_count += 1
        counts[unique_count - 1] += 1
        inverse[order[i]] = unique_count - 1
    return unique_count
