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

# (operator, inputs, options, output, what is right, what a switch makes of it)
Example = tuple[str, Inputs, Mapping[str, Value], str, list[float], list[float]]


def example(
    operator: str,
    inputs: Inputs,
    right: list[float],
    wrong: list[float],
    options: Mapping[str, Value] = NONE,
    output: str = "out",
) -> Example:
    """An example of an operator, usually without options, of its usual output."""
    return operator, inputs, options, output, right, wrong


EXAMPLES_OF_MORE: dict[str, Example] = {
    "permute_inverted": example("permute_pooled", THREE, [3, 1, 2], [2, 3, 1]),
    "regroup_reads_output_columns": example("permute_multi_embedding", TENSORS, [3, 1], [1, 2]),
    "first_matrix_only": example("group_index_select", MATRICES, [2, 3], [2, 1]),
    "samples_of_first_key": example(
        "keyed_jagged_index_select", {**KEYS, "select": counts(1)}, [2, 4], [2, 2]
    ),
    "kv_row_not_reset": example("kv_trajectory", RETURNS, [2], [1], AT_ONCE, "step2/out"),
    "kv_state_not_reset": example(
        "kv_trajectory", RETURNS, [4, 1], [5, 1], {**AT_ONCE, "optimizer": "exact_adagrad"}, "sum"
    ),
    "kv_ttl_inclusive": example("kv_trajectory", RETURNS, [5, 9], [9], {"ttl": 1}, "step1/kept"),
    "kv_decay_after_check": example(
        "kv_trajectory", history([[5], [5]], [0, 0], [0, 1]), [], [5], FADING, "step1/kept"
    ),
    "kv_counts_lookups": example(
        "kv_trajectory", history([[5, 5]], [0], [0]), [1], [2], output="counts"
    ),
    "kv_counts_8_bits": example("kv_trajectory", OFTEN, [256, 65536], [0, 0], output="counts"),
    "kv_counts_16_bits": example("kv_trajectory", OFTEN, [256, 65536], [256, 0], output="counts"),
    "kv_evaluation_counts": example(
        "kv_trajectory", history([[5], [5]], [0, 0], [0, 0], [1, 0]), [1], [2], output="counts"
    ),
    "matrix_transposed": example(
        "jagged_dense_bmm",
        {"values": floats([1, 0]), "dense": floats([[1, 2], [3, 4]]), "offsets": counts(0, 1)},
        [1, 2],
        [1, 3],
    ),
    "heads_bag_minor": example("dense_vec_jagged_mul", HEADS, [1, 2, 3, 4], [1, 3, 2, 4]),
    "beyond_dense_swapped": example(
        "jagged_dense_elementwise",
        {"values": floats([1], [2]), "dense": floats([[3]]), "offsets": counts(0, 2)},
        [4, 2],
        [4, 0],
        {"operation": "add_jagged"},
    ),
    "softmax_counts_padding": example("jagged_softmax", ROWS, [0.5, 0.5, 1], [0.5, 0.5, 0.5]),
    "softmax_over_batch": example("jagged_softmax", ROWS, [0.5, 0.5, 1], [1 / 3] * 3),
    "softmax_of_row": example("jagged_softmax", ROWS, [0.5, 0.5, 1], [1, 1, 1]),
    "softmax_gradient_without_sum": example(
        "jagged_softmax_backward",
        {"grad_output": floats([1], [3]), "output": floats([0.5], [0.5]), "offsets": counts(0, 2)},
        [-0.5, 0.5],
        [0.5, 1.5],
        output="values_grad",
    ),
    "max_from_zero": example("lookup_max", MAXIMA, [-1, 0], [0, 0]),
    "max_empty_is_lowest": example("lookup_max", MAXIMA, [-1, 0], [-1, -np.inf]),
    "max_gradient_to_ties": example(
        "lookup_max_backward",
        {**MAXIMA, "grad_output": floats([3], [5])},
        [3, 0, 0],
        [3, 3, 0],
        output="weights_grad",
    ),
    "max_takes_last": example(
        "lookup_max_backward",
        {**MAXIMA, "grad_output": floats([3], [5])},
        [3, 0, 0],
        [0, 3, 0],
        output="weights_grad",
    ),
    "max_skips_nan": example(
        "lookup_max", {**MAXIMA, "weights": floats(-1, np.nan, -2)}, [np.nan, 0], [-1, 0]
    ),
    "fp8_scale_inverted": example(
        "fp8_rowwise", FP8, [0.9375, 0.46875], [1 / 0.9375, 2 / 0.9375], output="scale"
    ),
    "fp8_scale_of_tensor": example(
        "fp8_rowwise", FP8, [0.9375, 0.46875], [0.46875] * 2, output="scale"
    ),
    "fp8_largest_signed": example(
        "fp8_rowwise", {"x": floats([1, -2])}, [0.46875], [0.9375], output="scale"
    ),
    "cache_hits_do_not_refresh": example(
        "row_cache", batches([*range(32)], [0], [40]), [1], [0], output="step2/evicted"
    ),
    "cache_lfu_counts_batches": example(
        "row_cache",
        batches([*range(32), *range(3), *range(4, 32)], [40, 40]),
        [3],
        [0],
        {"policy": "lfu"},
        "step1/evicted",
    ),
    "cache_lfu_forgets_counts": example(
        "row_cache",
        batches([*range(32)], [40, 40], [*range(1, 32)], [0]),
        [40],
        [],
        {"policy": "lfu"},
        "step3/evicted",
    ),
    "cache_drops_changes": example(
        "row_cache", batches([*range(32)], [40]), [0], [], output="step1/written"
    ),
    "cache_writes_all": example(
        "row_cache", batches([*range(32)], [40], training=0), [], [0], output="step1/written"
    ),
    "cache_evicts_locked_rows": example(
        "row_cache", batches([*range(32)], [40]), [40], [], {"in_flight": 2}, "step1/outside"
    ),
    "two_level_direct": example(
        "alltoall",
        travelling([[0.0] * 4] * 4, [4], 4) | {"nodes": counts(0, 0, 1, 1)},
        [0, 32, 16, 0],
        [0, 16, 16, 16],
        {"two_level": True},
        "sent_bytes",
    ),
    "wire_home_exact": example(
        "alltoall", travelling([[1 + 2.0**-12]], [1]), [1], [1 + 2.0**-12], {"format": "fp16"}
    ),
    "wire_blocks_span_keys": example(
        "alltoall",
        travelling([[1000, 0, 255, 100]], [1, 3]),
        [1000, 0, 255, 100],
        [1000, 0, 65 * 1000 / 255, 100],
        {"format": "int8", "block": 3},
    ),
    "wire_scale_not_divided": example(
        "alltoall", travelling([[1]], [1]), [1], [2], {"format": "fp16", "scale": 2.0}
    ),
    "wire_sums_not_rounded": example(
        "reduce_scatter",
        {"partials": floats([[2048]], [[1]]), "dims": counts(1), "cuts": counts(0, 1, 1)},
        [2048],
        [2049],
        {"format": "fp16", "round_sums": True},
    ),
    "operands_truncated": example("narrow_gemm", TIES, [1, 1 + 2**-6], [1, 1 + 2**-7]),
    "operands_half_up": example("narrow_gemm", TIES, [1, 1 + 2**-6], [1 + 2**-7, 1 + 2**-6]),
    # TF32's nearest number is 1 + 2^-8, which then is a tie
    "operands_rounded_twice": example("narrow_gemm", ABOVE, [1 + 2**-7], [1]),
    "operands_in_tf32": example("narrow_gemm", TIES, [1, 1 + 2**-6], [1 + 2**-8, 1 + 3 * 2**-8]),
    "operands_not_rounded": example("narrow_gemm", ABOVE, [1 + 2**-7], [1 + 2**-8 + 2**-12]),
    "accumulated_in_operand_format": example(
        "narrow_gemm", {"a": floats([256, 1, 1]), "b": floats([1, 1, 1])}, [258], [256]
    ),
    "last_steps_dropped": example(
        "narrow_gemm", {"a": np.ones((1, 18), F), "b": np.ones((1, 18), F)}, [18], [16]
    ),
    "bias_missing": example("narrow_gemm", BIASED, [1 + 2**-10], [1]),
    "bias_rounded": example(
        "narrow_gemm",
        {"a": floats([1]), "b": floats([1]), "bias": floats(1 + 2**-10)},
        [2 + 2**-10],
        [2],
    ),
    "sum_rounded_before_bias": example(
        "narrow_gemm",
        {"a": floats([1, 1]), "b": floats([1, 2**-10]), "bias": floats(1)},
        [2 + 2**-10],
        [2],
    ),
    "relu_before_bias": example(
        "narrow_gemm",
        {"a": floats([-1]), "b": floats([1]), "bias": floats(3)},
        [2],
        [3],
        {"relu": True},
    ),
    "hidden_not_rounded": example("narrow_mlp", LAYERS, [1], [1 + 2**-10]),
    "pairs_of_upper_triangle": example(
        "narrow_interaction", FOUR_VECTORS, [1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 16, 8, 32, 64]
    ),
}
