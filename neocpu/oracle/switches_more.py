"""What do the mistakes and quirks do that only one group of operators knows? Texts of diagnoses.

Permuted and selected embeddings, products on jagged data, maximum pooling, fp8 rows. Mistakes that
many operators share are in `switches.py`.
"""

from neocpu.oracle.switches import Switch

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

MORE = (*_MOVES, *_JAGGED)
