"""Bugs in permuted and selected embeddings, products on jagged rows, maxima, narrow rows."""

import numpy as np

from benchmarks.oracle_mutants.codecs import Codecs
from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import bend, named_mistake

# Permuted and selected embeddings.

PERMUTED = "permute_pooled permute_pooled_backward"
REGROUPED = "permute_multi_embedding permute_multi_embedding_backward"
SELECTED = "group_index_select group_index_select_backward"
COPIED = "permute_pooled_backward permute_multi_embedding_backward group_index_select_backward"


def last_copy(k: Kernel, gradient: Array, source: Array, size: int) -> Array:
    """The last copy's gradient overwrites the others."""
    out = np.zeros((size, gradient.shape[1]), F32)
    out[source] = gradient
    return out


def copies_averaged(k: Kernel, gradient: Array, source: Array, size: int) -> Array:
    """Gradients of copies are averaged."""
    count = np.maximum(np.bincount(source, minlength=size), 1).astype(F32)
    return (Kernel.copies_added(k, gradient, source, size) / count[:, None]).astype(F32)


bend("copies_overwrite", COPIED, "last_duplicate_wins", copies_added=last_copy)
bend("copies_averaged", COPIED, "duplicates_averaged", copies_added=copies_averaged)
bend(
    "pooled_not_permuted",
    PERMUTED,
    pooled_order=lambda k, permute: np.sort(permute),
)
bend(
    "pooled_blocks_of_first_width",
    PERMUTED,
    block_starts=lambda k, dims: np.minimum(
        np.arange(len(dims)) * int(dims[:1].sum()), int(dims.sum() - dims.max(initial=0))
    ),
)
bend("pooled_permuted_backwards", PERMUTED, pooled_order=lambda k, permute: permute[::-1])
named_mistake(
    "regroup_reads_output_columns",
    REGROUPED,
    read_column=lambda k, column, out_column: int(out_column),
)
bend("regroup_reads_first_columns", REGROUPED, read_column=lambda k, column, out_column: 0)
bend(
    "selects_of_first_matrix",
    SELECTED,
    "first_matrix_only",
    matrix_starts=lambda k, sizes: np.zeros_like(sizes),
)
bend("selects_not_interleaved", SELECTED, is_interleaved=lambda k, question: False)
bend(
    "selects_next_matrix",
    SELECTED,
    matrix_starts=lambda k, sizes: np.roll(np.cumsum(sizes) - sizes, -1),
)
bend(
    "keyed_select_of_first_key",
    "keyed_jagged_index_select",
    "samples_of_first_key",
    key_stride=lambda k, lengths: 0,
)
bend(
    "keyed_select_by_keys",
    "keyed_jagged_index_select",
    key_stride=lambda k, lengths: min(lengths.shape),
)
bend(
    "keyed_select_one_bag_late",
    "keyed_jagged_index_select",
    gathered=lambda k, offsets, bags: Kernel.gathered(
        k, offsets, np.minimum(bags + 1, len(offsets) - 2)
    ),
)

# Products on jagged rows.

PRODUCTS = "jagged_dense_bmm jagged_jagged_bmm dense_vec_jagged_mul jagged_dense_elementwise"


def transposed(k: Kernel, dense: Array) -> Array:
    """Matrices are read column by column."""
    return dense.transpose(0, 2, 1).reshape(dense.shape)


bend("jagged_last_row_lost", PRODUCTS, reached=lambda k, p, n: (p.place < n - 1) | (n == 0))
bend("jagged_one_row_more", PRODUCTS, reached=lambda k, p, n: (p.place <= n - 1) | (p.place > n))
bend(
    "jagged_first_row_lost",
    PRODUCTS,
    "first_lookup_dropped",
    reached=lambda k, p, n: Kernel.reached(k, p, n) & (p.place > 0),
)
named_mistake("matrix_transposed", "jagged_dense_bmm", matrices=transposed)
bend("matrix_of_first_bag", "jagged_dense_bmm", matrices=lambda k, m: m[:1].repeat(len(m), 0))
bend("matrix_of_next_bag", "jagged_dense_bmm", matrices=lambda k, m: np.roll(m, -1, axis=0))
named_mistake(
    "heads_bag_minor",
    "dense_vec_jagged_mul",
    vector_rows=lambda k, bag, head, heads, bags: head * bags + bag,
)
bend(
    "first_head_for_all",
    "dense_vec_jagged_mul",
    vector_rows=lambda k, bag, head, heads, bags: bag * heads,
)
bend(
    "heads_backwards",
    "dense_vec_jagged_mul",
    vector_rows=lambda k, bag, head, heads, bags: bag * heads + heads - 1 - head,
)
bend(
    "beyond_sum_zeroed",
    "jagged_dense_elementwise",
    "beyond_dense_swapped",
    beyond_sum=lambda k, values: np.zeros_like(values),
)
bend(
    "beyond_product_kept",
    "jagged_dense_elementwise",
    "beyond_dense_swapped",
    beyond_product=lambda k, values: values,
)
named_mistake(
    "softmax_over_batch",
    "jagged_softmax",
    shifted=lambda k, values, part, bags: (values - values.max(axis=0)).astype(F32),
    softmax_group=lambda k, part: np.zeros_like(part.sample),
)
bend(
    "softmax_base_2", "jagged_softmax", shifted=lambda k, v, part, bags: (v * np.log(2)).astype(F32)
)
bend(
    "softmax_of_two_bags",
    "jagged_softmax",
    softmax_group=lambda k, part: part.sample // 2,
)
named_mistake(
    "softmax_gradient_without_sum",
    "jagged_softmax_backward",
    softmax_gradient=lambda k, y, g, sums: (y * g).astype(F32),
)
bend(
    "softmax_gradient_adds_sum",
    "jagged_softmax_backward",
    softmax_gradient=lambda k, y, g, sums: (y * (g + sums)).astype(F32),
)
bend(
    "softmax_gradient_without_output",
    "jagged_softmax_backward",
    softmax_gradient=lambda k, y, g, sums: (g - sums).astype(F32),
)

# Maxima.

MAXIMA = "lookup_max lookup_max_backward"


def signed_from_zero(k: Kernel, rows: Array) -> Array:
    """The search starts at 0."""
    return np.maximum(rows.max(axis=0), F32(0))


def every_tie(k: Kernel, rows: Array) -> list[tuple[int, int]]:
    """All rows that hold the maximum get the gradient."""
    place, column = np.nonzero(rows == rows.max(axis=0))
    return list(zip(place.tolist(), column.tolist(), strict=True))


def last_tie(k: Kernel, rows: Array) -> list[tuple[int, int]]:
    """The last of equal maxima gets it."""
    last = len(rows) - 1 - rows[::-1].argmax(axis=0)
    return [(int(place), column) for column, place in enumerate(last)]


def by_first_column(k: Kernel, rows: Array) -> list[tuple[int, int]]:
    """The row with the largest first column gets all gradients."""
    place = int(rows[:, 0].argmax())
    return [(place, column) for column in range(rows.shape[1])]


def pruned_counts(k: Kernel, flat: Array, batch: Batch, feature: int) -> tuple[Array, list[Array]]:
    """A pruned lookup is a row of zeros."""
    rows, _ = Kernel.bag_rows(k, flat, batch, feature)
    part = k.lookups(batch, feature)
    size = int(batch.batch_sizes[feature])
    return rows, [np.flatnonzero(part.sample == bag) for bag in range(size)]


named_mistake("max_from_zero", "lookup_max", largest=signed_from_zero)
bend("max_by_magnitude", "lookup_max", largest=lambda k, rows: np.abs(rows).max(axis=0))
bend("max_skips_every_nan", "lookup_max", largest=lambda k, rows: np.fmax.reduce(rows, axis=0))
bend("max_of_first_32", "lookup_max", largest=lambda k, rows: rows[:32].max(axis=0))
bend("max_is_min", "lookup_max", largest=lambda k, rows: rows.min(axis=0))
named_mistake("max_empty_is_lowest", "lookup_max", of_empty_bag=lambda k: -np.inf)
bend("max_empty_is_nan", "lookup_max", of_empty_bag=lambda k: np.nan)
bend("max_counts_pruned", "lookup_max", bag_rows=pruned_counts)
named_mistake("max_gradient_to_ties", "lookup_max_backward", winners=every_tie)
named_mistake("max_takes_last", "lookup_max_backward", winners=last_tie)
bend("max_by_first_column", "lookup_max_backward", winners=by_first_column)
bend(
    "max_last_lookup_lost",
    MAXIMA,
    "last_lookup_dropped",
    ends=lambda k, ends, begins, b: ends - 1,
)

# fp8 rows and NVFP4.

FP8 = "fp8_rowwise"


def tensor_largest(k: Kernel, x: Array) -> Array:
    """One scale for all rows."""
    return np.full(len(x), np.abs(x).max(initial=0), F32)


named_mistake("fp8_scale_of_tensor", FP8, fp8_largest=tensor_largest)
named_mistake(
    "fp8_largest_signed",
    FP8,
    fp8_largest=lambda k, x: np.maximum(x.max(axis=1, initial=0), F32(1e-20)).astype(F32),
)
bend("fp8_rows_truncated", FP8, "truncated", nearest=lambda k, units: np.floor(units))
bend("fp8_row_bias_one_off", FP8, hfp8_bias=lambda k, bias: bias + 1)
bend(
    "fp8_row_codes_without_sign",
    FP8,
    hfp8=lambda k, x, mantissa, bias: Codecs.hfp8(k, np.abs(x), mantissa, bias),
)
NVFP4 = "nvfp4_dequantize"
bend("nvfp4_times_factor", NVFP4, without_factor=lambda k, x, factor: (x * factor).astype(F32))
bend("nvfp4_factor_ignored", NVFP4, without_factor=lambda k, x, factor: x)
bend(
    "nvfp4_high_code_first",
    NVFP4,
    "high_code_first",
    mx_nibbles=lambda k, packed: np.stack([packed >> 4, packed & 15], axis=-1).reshape(
        *packed.shape[:-1], -1
    ),
)
bend(
    "nvfp4_scales_e5m2",
    NVFP4,
    decode_small=lambda k, codes, name: Codecs.decode_small(k, codes.view(np.uint8), "fp8_e5m2"),
)
LAYOUT = "nvfp4_scale_layout"
bend("nvfp4_scales_row_major", LAYOUT, tile_axes=lambda k: (0, 1, 2, 3, 4))
bend("nvfp4_quarters_apart", LAYOUT, tile_axes=lambda k: (0, 3, 1, 2, 4))
bend("nvfp4_tiles_column_major", LAYOUT, tile_axes=lambda k: (3, 0, 2, 1, 4))
