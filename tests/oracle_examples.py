"""What does each switch of `switches_more.py` do? One example each, to be checked by hand."""

from collections.abc import Mapping

import numpy as np

from neocpu.oracle.operator import Value

F = np.float32
Inputs = dict[str, np.ndarray]
NONE: dict[str, Value] = {}


def floats(*numbers: object) -> np.ndarray:
    """An fp32 array."""
    return np.array(numbers, F)


def counts(*numbers: int) -> np.ndarray:
    """An int64 array."""
    return np.array(numbers, np.int64)


THREE = {"pooled": floats([1, 2, 3]), "dims": counts(1, 1, 1), "permute": counts(2, 0, 1)}
TENSORS = {
    "values": floats(1, 2, 3),
    "widths": counts(3),
    "out_widths": counts(2),
    "samples": counts(1),
    "permutes": np.array([[0, 0, 2, 0, 1, 0], [0, 0, 0, 1, 1, 0]], np.int32),
}
MATRICES = {
    "values": floats(1, 2, 3, 4),
    "rows": counts(2, 2),
    "dims": counts(1, 1),
    "select": counts(1, 0),
    "counts": counts(1, 1),
}
KEYS = {"values": floats(1, 2, 3, 4), "lengths": counts(1, 1, 1, 1).reshape(2, 2)}
HEADS = {
    "vectors": floats([1], [2], [3], [4]),
    "values": floats([1, 1], [1, 1]),
    "offsets": counts(0, 1, 2),
}
ROWS = {"values": floats([0], [0], [0]), "offsets": counts(0, 2, 3)}

# switch: (operator, inputs, options, output, what is right, what the switch makes of it)
EXAMPLES_OF_MORE: dict[
    str, tuple[str, Inputs, Mapping[str, Value], str, list[float], list[float]]
] = {
    "permute_inverted": ("permute_pooled", THREE, NONE, "out", [3, 1, 2], [2, 3, 1]),
    "regroup_reads_output_columns": (
        "permute_multi_embedding",
        TENSORS,
        NONE,
        "out",
        [3, 1],
        [1, 2],
    ),
    "first_matrix_only": ("group_index_select", MATRICES, NONE, "out", [2, 3], [2, 1]),
    "samples_of_first_key": (
        "keyed_jagged_index_select",
        {**KEYS, "select": counts(1)},
        NONE,
        "out",
        [2, 4],
        [2, 2],
    ),
    "matrix_transposed": (
        "jagged_dense_bmm",
        {
            "values": floats([1, 0]),
            "dense": floats([[1, 2], [3, 4]]),
            "offsets": counts(0, 1),
        },
        NONE,
        "out",
        [1, 2],
        [1, 3],
    ),
    "heads_bag_minor": ("dense_vec_jagged_mul", HEADS, NONE, "out", [1, 2, 3, 4], [1, 3, 2, 4]),
    "beyond_dense_swapped": (
        "jagged_dense_elementwise",
        {"values": floats([1], [2]), "dense": floats([[3]]), "offsets": counts(0, 2)},
        {"operation": "add_jagged"},
        "out",
        [4, 2],
        [4, 0],
    ),
    "softmax_counts_padding": ("jagged_softmax", ROWS, NONE, "out", [0.5, 0.5, 1], [0.5, 0.5, 0.5]),
    "softmax_over_batch": ("jagged_softmax", ROWS, NONE, "out", [0.5, 0.5, 1], [1 / 3] * 3),
    "softmax_of_row": ("jagged_softmax", ROWS, NONE, "out", [0.5, 0.5, 1], [1, 1, 1]),
    "softmax_gradient_without_sum": (
        "jagged_softmax_backward",
        {"grad_output": floats([1], [3]), "output": floats([0.5], [0.5]), "offsets": counts(0, 2)},
        NONE,
        "values_grad",
        [-0.5, 0.5],
        [0.5, 1.5],
    ),
}
