"""What does each switch of `switches/of_operators.py` do? One example each, made by hand."""

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
MAXIMA = {
    "weights": floats(-1, -1, -2),
    "rows": counts(3),
    "dims": counts(1),
    "feature_table": counts(0),
    "indices": counts(2, 0, 1),
    "offsets": counts(0, 3, 3),
}


def batches(*lookups: list[int], training: int = 1) -> Inputs:
    """Batches for a cache, all of which change their rows, or none."""
    steps = {f"step{k}/indices": counts(*rows) for k, rows in enumerate(lookups)}
    return {"training": np.full(len(lookups), training), **steps}


def travelling(values: list[list[float]], dims: list[int], ranks: int = 1) -> Inputs:
    """Vectors that rank 0 pools, a sample for each rank."""
    return {
        "values": floats(*values),
        "dims": counts(*dims),
        "owner": np.zeros(len(dims), np.int64),
        "cuts": np.arange(ranks + 1),
    }


def history(
    ids: list[list[int]], grads: list[float], evict: list[int], training: list[int] | None = None
) -> Inputs:
    """Ids 5 and 9 of one column, which begin at 2; one bag and one second a step."""
    inputs = {
        "keys": counts(5, 9),
        "dims": counts(1),
        "weights": floats(2, 2),
        "training": counts(*(training or [1] * len(ids))),
        "evict": counts(*evict),
        "times": np.arange(len(ids)),
    }
    for k, (bag, grad) in enumerate(zip(ids, grads)):
        inputs[f"step{k}/indices"] = counts(*bag)
        inputs[f"step{k}/offsets"] = counts(0, len(bag))
        inputs[f"step{k}/grad_output"] = floats([grad])
    return inputs


RETURNS = history([[5], [9], [5]], [1, 1, 2], [0, 1, 0])
AT_ONCE: dict[str, Value] = {"ttl": 0, "learning_rate": 1.0}
OFTEN = {**history([[5, 9]], [0], [0]), "counts": counts(255, 65535)}
FADING: dict[str, Value] = {"strategy": "counter", "min_count": 2, "decay_rate": 0.5}
FP8 = {"x": floats([1, -0.5], [0, -2])}

# 1 + 2^-8 is a tie between 1 and 1 + 2^-7; 1 + 3*2^-8 one between that and 1 + 2^-6
TIES = {"a": floats([1 + 2**-8], [1 + 3 * 2**-8]), "b": floats([1])}
ABOVE = {"a": floats([1 + 2**-8 + 2**-12]), "b": floats([1])}
BIASED = {"a": floats([1]), "b": floats([1]), "bias": floats(2**-10)}
LAYERS = {
    "x": floats([1]),
    "w1": floats([1]),
    "b1": floats(2**-10),
    "w2": floats([1]),
    "b2": floats(0),
}
FOUR_VECTORS = {"e": floats([[1], [2], [4], [16]])}

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
    "kv_row_not_reset": ("kv_trajectory", RETURNS, AT_ONCE, "step2/out", [2], [1]),
    "kv_state_not_reset": (
        "kv_trajectory",
        RETURNS,
        {**AT_ONCE, "optimizer": "exact_adagrad"},
        "sum",
        [4, 1],
        [5, 1],
    ),
    "kv_ttl_inclusive": ("kv_trajectory", RETURNS, {"ttl": 1}, "step1/kept", [5, 9], [9]),
    "kv_decay_after_check": (
        "kv_trajectory",
        history([[5], [5]], [0, 0], [0, 1]),
        FADING,
        "step1/kept",
        [],
        [5],
    ),
    "kv_counts_lookups": (
        "kv_trajectory",
        history([[5, 5]], [0], [0]),
        NONE,
        "counts",
        [1],
        [2],
    ),
    "kv_counts_8_bits": ("kv_trajectory", OFTEN, NONE, "counts", [256, 65536], [0, 0]),
    "kv_counts_16_bits": ("kv_trajectory", OFTEN, NONE, "counts", [256, 65536], [256, 0]),
    "kv_evaluation_counts": (
        "kv_trajectory",
        history([[5], [5]], [0, 0], [0, 0], [1, 0]),
        NONE,
        "counts",
        [1],
        [2],
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
    "max_from_zero": ("lookup_max", MAXIMA, NONE, "out", [-1, 0], [0, 0]),
    "max_empty_is_lowest": ("lookup_max", MAXIMA, NONE, "out", [-1, 0], [-1, -np.inf]),
    "max_gradient_to_ties": (
        "lookup_max_backward",
        {**MAXIMA, "grad_output": floats([3], [5])},
        NONE,
        "weights_grad",
        [3, 0, 0],
        [3, 3, 0],
    ),
    "max_takes_last": (
        "lookup_max_backward",
        {**MAXIMA, "grad_output": floats([3], [5])},
        NONE,
        "weights_grad",
        [3, 0, 0],
        [0, 3, 0],
    ),
    "max_skips_nan": (
        "lookup_max",
        {**MAXIMA, "weights": floats(-1, np.nan, -2)},
        NONE,
        "out",
        [np.nan, 0],
        [-1, 0],
    ),
    "fp8_scale_inverted": (
        "fp8_rowwise",
        FP8,
        NONE,
        "scale",
        [0.9375, 0.46875],
        [1 / 0.9375, 2 / 0.9375],
    ),
    "fp8_scale_of_tensor": ("fp8_rowwise", FP8, NONE, "scale", [0.9375, 0.46875], [0.46875] * 2),
    "fp8_largest_signed": (
        "fp8_rowwise",
        {"x": floats([1, -2])},
        NONE,
        "scale",
        [0.46875],
        [0.9375],
    ),
    "cache_hits_do_not_refresh": (
        "row_cache",
        batches([*range(32)], [0], [40]),
        NONE,
        "step2/evicted",
        [1],
        [0],
    ),
    "cache_lfu_counts_batches": (
        "row_cache",
        batches([*range(32), *range(3), *range(4, 32)], [40, 40]),
        {"policy": "lfu"},
        "step1/evicted",
        [3],
        [0],
    ),
    "cache_lfu_forgets_counts": (
        "row_cache",
        batches([*range(32)], [40, 40], [*range(1, 32)], [0]),
        {"policy": "lfu"},
        "step3/evicted",
        [40],
        [],
    ),
    "cache_drops_changes": (
        "row_cache",
        batches([*range(32)], [40]),
        NONE,
        "step1/written",
        [0],
        [],
    ),
    "cache_writes_all": (
        "row_cache",
        batches([*range(32)], [40], training=0),
        NONE,
        "step1/written",
        [],
        [0],
    ),
    "cache_evicts_locked_rows": (
        "row_cache",
        batches([*range(32)], [40]),
        {"in_flight": 2},
        "step1/outside",
        [40],
        [],
    ),
    "two_level_direct": (
        "alltoall",
        travelling([[0.0] * 4] * 4, [4], 4) | {"nodes": counts(0, 0, 1, 1)},
        {"two_level": True},
        "sent_bytes",
        [0, 32, 16, 0],
        [0, 16, 16, 16],
    ),
    "wire_home_exact": (
        "alltoall",
        travelling([[1 + 2.0**-12]], [1]),
        {"format": "fp16"},
        "out",
        [1],
        [1 + 2.0**-12],
    ),
    "wire_blocks_span_keys": (
        "alltoall",
        travelling([[1000, 0, 255, 100]], [1, 3]),
        {"format": "int8", "block": 3},
        "out",
        [1000, 0, 255, 100],
        [1000, 0, 65 * 1000 / 255, 100],
    ),
    "wire_scale_not_divided": (
        "alltoall",
        travelling([[1]], [1]),
        {"format": "fp16", "scale": 2.0},
        "out",
        [1],
        [2],
    ),
    "wire_sums_not_rounded": (
        "reduce_scatter",
        {"partials": floats([[2048]], [[1]]), "dims": counts(1), "cuts": counts(0, 1, 1)},
        {"format": "fp16", "round_sums": True},
        "out",
        [2048],
        [2049],
    ),
    "operands_truncated": ("narrow_gemm", TIES, NONE, "out", [1, 1 + 2**-6], [1, 1 + 2**-7]),
    "operands_half_up": (
        "narrow_gemm",
        TIES,
        NONE,
        "out",
        [1, 1 + 2**-6],
        [1 + 2**-7, 1 + 2**-6],
    ),
    # TF32's nearest number is 1 + 2^-8, which then is a tie
    "operands_rounded_twice": ("narrow_gemm", ABOVE, NONE, "out", [1 + 2**-7], [1]),
    "operands_in_tf32": (
        "narrow_gemm",
        TIES,
        NONE,
        "out",
        [1, 1 + 2**-6],
        [1 + 2**-8, 1 + 3 * 2**-8],
    ),
    "operands_not_rounded": (
        "narrow_gemm",
        ABOVE,
        NONE,
        "out",
        [1 + 2**-7],
        [1 + 2**-8 + 2**-12],
    ),
    "accumulated_in_operand_format": (
        "narrow_gemm",
        {"a": floats([256, 1, 1]), "b": floats([1, 1, 1])},
        NONE,
        "out",
        [258],
        [256],
    ),
    "last_steps_dropped": (
        "narrow_gemm",
        {"a": np.ones((1, 18), F), "b": np.ones((1, 18), F)},
        NONE,
        "out",
        [18],
        [16],
    ),
    "bias_missing": ("narrow_gemm", BIASED, NONE, "out", [1 + 2**-10], [1]),
    "bias_rounded": (
        "narrow_gemm",
        {"a": floats([1]), "b": floats([1]), "bias": floats(1 + 2**-10)},
        NONE,
        "out",
        [2 + 2**-10],
        [2],
    ),
    "sum_rounded_before_bias": (
        "narrow_gemm",
        {"a": floats([1, 1]), "b": floats([1, 2**-10]), "bias": floats(1)},
        NONE,
        "out",
        [2 + 2**-10],
        [2],
    ),
    "relu_before_bias": (
        "narrow_gemm",
        {"a": floats([-1]), "b": floats([1]), "bias": floats(3)},
        {"relu": True},
        "out",
        [2],
        [3],
    ),
    "hidden_not_rounded": ("narrow_mlp", LAYERS, NONE, "out", [1], [1 + 2**-10]),
    "pairs_of_upper_triangle": (
        "narrow_interaction",
        FOUR_VECTORS,
        NONE,
        "out",
        [1, 2, 4, 8, 16, 32, 64],
        [1, 2, 4, 16, 8, 32, 64],
    ),
}
