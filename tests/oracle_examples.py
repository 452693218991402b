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
}
