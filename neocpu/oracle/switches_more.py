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

MORE = (*_MOVES,)
