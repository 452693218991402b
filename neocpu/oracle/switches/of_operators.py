"""What do the mistakes and quirks do that only one group of operators knows? Texts of diagnoses.

Permuted and selected embeddings, products on jagged data, maximum pooling, fp8 rows. Mistakes that
many operators share are in `shared.py`.
"""

from neocpu.oracle.switches.switch import MAXIMA, Switch

COPIES = ("permute_pooled", "permute_multi_embedding", "group_index_select")
KEYED = "keyed_jagged_index_select"


def _mistake(name: str, ops: tuple[str, ...], about: str, fix: str) -> Switch:
    return Switch(name, "mistake", about, fix, ops)


def _with_backward(*ops: str) -> tuple[str, ...]:
    return (*ops, *(f"{op}_backward" for op in ops))


_MOVES = (
    _mistake(
        "permute_inverted",
        _with_backward("permute_pooled"),
        "features are permuted by the inverse of the permutation",
        "output block p is input block permute[p]; backward scatters to permute[p]",
    ),
    _mistake(
        "regroup_reads_output_columns",
        _with_backward("permute_multi_embedding"),
        "a block is read at its column in the output instead of its column in the input",
        "read at permutes[p, 2], write at permutes[p, 3]",
    ),
    _mistake(
        "first_matrix_only",
        _with_backward("group_index_select"),
        "every group selects rows of the first matrix",
        "add the first element of the group's own matrix",
    ),
    _mistake(
        "samples_of_first_key",
        _with_backward(KEYED),
        "every key reads where the bags of the first key begin",
        "the bag of key k and sample s is k*B + s",
    ),
)

_KEY_VALUE = (
    _mistake(
        "kv_row_not_reset",
        ("kv_trajectory",),
        "an id that was evicted finds its old row when it comes back",
        "write the initial row when an id is inserted, also into memory that is used again",
    ),
    _mistake(
        "kv_state_not_reset",
        ("kv_trajectory",),
        "the optimizer's state of an evicted id is still there when it comes back",
        "set the states of a row to 0 when its id is inserted",
    ),
    _mistake(
        "kv_ttl_inclusive",
        ("kv_trajectory",),
        "ids that are exactly as old as the time to live are evicted, too",
        "evict where now - last > ttl",
    ),
    _mistake(
        "kv_decay_after_check",
        ("kv_trajectory",),
        "counts are compared before they fade",
        "fade the count, then compare it with the threshold",
    ),
    _mistake(
        "kv_counts_lookups",
        ("kv_trajectory",),
        "an id is counted for each of its lookups instead of once per step",
        "count unique ids of a step",
    ),
    _mistake(
        "kv_evaluation_counts",
        ("kv_trajectory",),
        "evaluations count ids and refresh their time",
        "leave counts and times alone outside of training",
    ),
)

_JAGGED = (
    _mistake(
        "matrix_transposed",
        _with_backward("jagged_dense_bmm", "jagged_jagged_bmm"),
        "the second matrix of a product, or the product, is taken transposed",
        "element (k, n) of bag b stands at (b*K + k)*N + n",
    ),
    _mistake(
        "heads_bag_minor",
        ("dense_vec_jagged_mul",),
        "vectors are taken head by head (h*B + b) instead of bag by bag",
        "the vector of bag b and head h is b*H + h",
    ),
    _mistake(
        "beyond_dense_swapped",
        ("jagged_dense_elementwise",),
        "rows beyond the dense array are 0 in a sum, or kept in a product",
        "beyond the array add 0, multiply by 0",
    ),
    _mistake(
        "softmax_counts_padding",
        ("jagged_softmax",),
        "the padding of short bags counts in the softmax as zeros",
        "reduce over the rows of the bag only, or pad with -infinity",
    ),
    _mistake(
        "softmax_over_batch",
        ("jagged_softmax",),
        "the softmax is over all rows of the batch instead of those of a bag",
        "reduce over the rows from offsets[bag] to offsets[bag + 1]",
    ),
    _mistake(
        "softmax_of_row",
        ("jagged_softmax",),
        "the softmax is over the columns of a row instead of the rows of a bag",
        "reduce over the rows of a bag, column by column",
    ),
    _mistake(
        "softmax_gradient_without_sum",
        ("jagged_softmax_backward",),
        "the gradient is y*g: the dot product of y and g is not subtracted",
        "multiply y by g minus the sum of g*y over the bag",
    ),
)

_MAXIMA = (
    _mistake(
        "max_from_zero",
        MAXIMA,
        "the maximum starts at 0, so that a bag of negative numbers gives 0",
        "start with the first row of the bag",
    ),
    _mistake(
        "max_empty_is_lowest",
        ("lookup_max",),
        "the maximum of an empty bag is -infinity, where the search started, instead of 0",
        "write 0 for bags without lookups",
    ),
    _mistake(
        "max_gradient_to_ties",
        ("lookup_max_backward",),
        "every lookup that holds the maximum gets the whole gradient",
        "keep the number of the one lookup that won in forward, and scatter to its row",
    ),
    _mistake(
        "max_takes_last",
        ("lookup_max_backward",),
        "of equal maxima the last one gets the gradient",
        "replace the maximum only by a larger number: compare with >, not >=",
    ),
    Switch(
        "max_skips_nan",
        "quirk",
        "a NaN counts only where it is the first of its bag (torch): every comparison with it is "
        "false",
        "",
        MAXIMA,
    ),
)

FP8 = ("fp8_rowwise",)
_FP8 = (
    _mistake(
        "fp8_scale_inverted",
        FP8,
        "the scale that is stored is largest / limit, as for e4m3 tensors, not limit / largest",
        "store limit / (1e-20 + largest); readers divide by it",
    ),
    _mistake(
        "fp8_scale_of_tensor",
        FP8,
        "all rows share the scale of the largest number of the tensor",
        "reduce abs(x) over a row",
    ),
    _mistake(
        "fp8_largest_signed",
        FP8,
        "the scale follows the largest number instead of the largest by size",
        "reduce abs(x), not x",
    ),
)

MORE = (*_MOVES, *_KEY_VALUE, *_JAGGED, *_MAXIMA, *_FP8)
