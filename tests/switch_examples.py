"""What does each switch do to a few small numbers? Examples that can be checked by hand."""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from neocpu.oracle.operator import Value
from tests.oracle_examples import EXAMPLES_OF_MORE, Example, example

F = np.float32
Given = dict[str, np.ndarray]


def one(
    rows: list[list[float]], bags: list[list[int]], grad: list | None = None, **more: object
) -> Given:
    """One table, one feature, bags of its rows."""
    return many([rows], [0], [bags], grad, **more)


def many(
    tables: list[list[list[float]]],
    features: list[int],
    bags: list[list[list[int]]],
    grad: list | None = None,
    **more: object,
) -> Given:
    """Some tables, features and their bags."""
    flat = [bag for feature in bags for bag in feature]
    inputs: Mapping[str, object] = {
        "weights": np.concatenate([np.array(t, F).reshape(-1) for t in tables]),
        "rows": np.array([len(t) for t in tables]),
        "dims": np.array([len(t[0]) for t in tables]),
        "feature_table": np.array(features),
        "indices": np.array([i for bag in flat for i in bag], np.int64),
        "offsets": np.append(0, np.cumsum([len(bag) for bag in flat])),
        **({} if grad is None else {"grad_output": np.array(grad, F)}),
        **{name: np.array(a, F) for name, a in more.items()},
    }
    return {name: np.asarray(a) for name, a in inputs.items()}


ROWS = [[1.0], [2.0], [4.0]]
ABC = one(ROWS, [[0, 1], [2], [0]])
SUMS = one([[0.0]], [[0], [0], [0]], [[1], [2], [4]])
ADAGRAD: dict[str, Value] = {"optimizer": "exact_adagrad", "learning_rate": 1.0, "eps": 0.0}
SGD: dict[str, Value] = {"optimizer": "exact_sgd", "learning_rate": 0.1}
DECAY: dict[str, Value] = {"weight_decay": 0.5, "weight_decay_mode": "decoupled"}
ADAM: dict[str, Value] = {
    "optimizer": "adam",
    "learning_rate": 1.0,
    "eps": 0.0,
    "beta1": 0.5,
    "beta2": 0.75,
    "step": 2,
}
FTRL: dict[str, Value] = {"optimizer": "ftrl", "learning_rate": 1.0}
STEP = one([[2.0]], [[0]], [[1]])
WEIGHTED = one([[1.0], [5.0]], [[0, 1]], [[1]], per_sample_weights=[1, 3])
NONE: dict[str, Value] = {}


def at_scale(rows: list[int], table: int, row: int) -> Given:
    """Tables of one column by formula, and one lookup."""
    return {
        "rows": np.array(rows),
        "dims": np.ones(len(rows), np.int64),
        "feature_table": np.array([table]),
        "bags": np.zeros(1, np.int64),
        "indices": np.array([row]),
        "check_samples": np.zeros(1, np.int64),
    }


def adam(t: int) -> float:
    """A first Adam step from w = 2 with g = 1, corrected as if it were step t."""
    return 2 - (0.5 / (1 - 0.5**t)) / math.sqrt(0.25 / (1 - 0.75**t))


def history(training: list[int], rates: list[float], grads: list[float], **more: object) -> Given:
    """One row of one column, touched in every step."""
    inputs = {
        k: v
        for k, v in one([[2.0]], [[0]], None, **more).items()
        if k not in ("indices", "offsets")
    }
    for k, g in enumerate(grads):
        inputs |= {f"step{k}/indices": np.array([0]), f"step{k}/offsets": np.array([0, 1])}
        inputs[f"step{k}/grad_output"] = np.array([[g]], F)
    return {**inputs, "training": np.array(training), "learning_rates": np.array(rates)}


def touches(rows: list[float], touched: list[int], grad: float) -> Given:
    """Training steps of rate 0.5, each of which looks up one row of one column."""
    inputs = {
        k: v for k, v in one([[w] for w in rows], [[0]]).items() if k not in ("indices", "offsets")
    }
    for k, row in enumerate(touched):
        inputs |= {f"step{k}/indices": np.array([row]), f"step{k}/offsets": np.array([0, 1])}
        inputs[f"step{k}/grad_output"] = np.array([[grad]], F)
    steps = len(touched)
    return {**inputs, "training": np.ones(steps, int), "learning_rates": np.full(steps, 0.5)}


RESTING = touches([2.0, 0.0], [0, 1, 0], 0.0)
GLOBAL: dict[str, Value] = {
    "optimizer": "exact_rowwise_adagrad",
    "learning_rate": 0.5,
    "eps": 0.0,
    "weight_decay": 1.0,
    "weight_decay_mode": "decoupled_global",
    "step": 4,
}
ENSEMBLE: dict[str, Value] = {
    "optimizer": "exact_rowwise_adagrad",
    "eps": 1.0,
    "step_ema_coef": 0.75,
}
TWO = many([[[1.0], [2.0]], [[10.0], [20.0]]], [1, 0], [[[0]], [[1]]])
SHARED = many([[[0.0]]], [0, 0], [[[0]], [[0]]], [[3, 4]])
HUGE = {
    "rows": np.array([1 << 33]),
    "dims": np.array([128]),
    "feature_table": np.array([0]),
    "indices": np.array([1 << 25, (1 << 25) + 1]),
    "offsets": np.array([0, 2]),
}
BUCKETS = {"lengths": np.array([3]), "indices": np.array([0, 3, 4]), "block_sizes": np.array([3])}
DENSE = {"values": np.array([[1], [2], [3]], F), "offsets": np.array([0, 3])}
TIES = one([[1 + 2.0**-8], [1 + 3 * 2.0**-9]], [[0], [1]])
BF16: dict[str, Value] = {"output_format": "bf16"}
BOUNDS = {
    "rows": np.array([3]),
    "feature_table": np.array([0]),
    "indices": np.array([4, -1]),
    "offsets": np.array([0, 2]),
}
IGNORE: dict[str, Value] = {"bounds_check": "ignore"}
MEAN: dict[str, Value] = {"pooling": "mean"}
COUNTER: dict[str, Value] = {**SGD, **DECAY, "optimizer": "exact_rowwise_adagrad_with_counter"}
RANGE = {"x": np.array([[0, 3e-9]], F)}
SCALE = (F(3e-9) / F(255)).tobytes()


lookup = partial(example, "lookup")
unique_gradient = partial(example, "unique_gradient", output="values")


def backward(
    inputs: Given,
    options: Mapping[str, Value],
    right: list[float],
    wrong: list[float],
    output: str = "weights",
) -> Example:
    """An example of what an update leaves."""
    return example("backward", inputs, right, wrong, options, output)


EXAMPLES: dict[str, Example] = {
    "last_lookup_dropped": lookup(ABC, [3, 4, 1], [1, 0, 0]),
    "first_lookup_dropped": lookup(ABC, [3, 4, 1], [2, 0, 0]),
    "bag_ends_late": lookup(ABC, [3, 4, 1], [7, 5, 1]),
    "bag_starts_early": lookup(ABC, [3, 4, 1], [3, 6, 5]),
    "pruned_reads_last_row": lookup(one(ROWS, [[0, -1]]), [1], [5]),
    "feature_is_table": lookup(TWO, [10, 2], [1, 20]),
    "columns_in_table_order": lookup(TWO, [10, 2], [2, 10]),
    "row_offset_32bit": example(
        "linear_index", HUGE, [2**32, 2**32 + 128], [0, 128], output="element"
    ),
    # elements 0, 2^30 and 2^32 of the formula are -1/2, -1/4 and 5/256
    "byte_offset_32bit": example(
        "lookup_at_scale", at_scale([2**30 + 1], 0, 2**30), [-0.25], [-0.5]
    ),
    "table_offset_32bit": example("lookup_at_scale", at_scale([2**32, 1], 1, 0), [5 / 256], [-0.5]),
    "bucket_by_modulo": example("block_bucketize", BUCKETS, [0, 0, 1], [0, 2, 1], output="indices"),
    "bucket_keeps_row": example("block_bucketize", BUCKETS, [0, 0, 1], [0, 3, 4], output="indices"),
    "padding_cuts_front": example(
        "jagged_to_padded_dense", DENSE, [1, 2], [2, 3], {"max_length": 2}, "dense"
    ),
    "mean_not_divided": lookup(ABC, [1.5, 4, 1], [3, 4, 1], MEAN),
    "mean_divided_twice": lookup(ABC, [1.5, 4, 1], [0.75, 4, 1], MEAN),
    "mean_empty_is_nan": lookup(one(ROWS, [[2], []]), [4, 0], [4, np.nan], MEAN),
    "mean_counts_kept": lookup(one(ROWS, [[2, -1]]), [2], [4], MEAN),
    "weights_ignored": lookup(WEIGHTED, [16], [6]),
    "weights_restart": lookup(
        one(ROWS, [[0], [0]], None, per_sample_weights=[2, 3]), [2, 3], [2, 2]
    ),
    "accumulated_narrow": lookup(
        one([[2048.0], [1.0]], [[0, 1, 1]]), [2050], [2048], {"output_format": "fp16"}
    ),
    "subnormals_flushed": lookup(one([[2.0**-130]], [[0]]), [2.0**-130], [0]),
    "half_up": lookup(TIES, [1, 1 + 2.0**-7], [1 + 2.0**-7, 1 + 2.0**-7], BF16),
    "truncated": lookup(TIES, [1, 1 + 2.0**-7], [1, 1], BF16),
    "gradient_without_weights": unique_gradient(WEIGHTED, [1, 3], [1, 1]),
    "weight_gradient_times_weight": example(
        "weight_gradient", WEIGHTED, [1, 5], [1, 15], output="per_sample_weights_grad"
    ),
    "gradient_without_grad_output": example(
        "weight_gradient",
        one(ROWS, [[2]], [[8]], per_sample_weights=[1]),
        [32],
        [4],
        output="per_sample_weights_grad",
    ),
    "last_duplicate_wins": unique_gradient(SUMS, [7], [4]),
    "first_duplicate_wins": unique_gradient(SUMS, [7], [1]),
    "duplicates_averaged": unique_gradient(SUMS, [7], [7 / 3]),
    "duplicates_in_sequence": backward(
        one([[0.0]], [[0]] * 3, [[1], [1], [1]]),
        ADAGRAD,
        [-1],
        [-1 - math.sqrt(1 / 2) - math.sqrt(1 / 3)],
    ),
    "duplicates_merged_where_adjacent": backward(
        one([[0.0], [0.0]], [[0, 0, 1, 0]], [[1]]), ADAGRAD, [-1, -1], [-1 - math.sqrt(1 / 5), -1]
    ),
    "last_run_wins": unique_gradient(
        one([[0.0], [0.0]], [[0], [1], [0, 0]], [[1], [2], [4]]), [9, 2], [8, 2]
    ),
    "features_in_sequence": backward(SHARED, ADAGRAD, [-1], [-1 - 4 / 5]),
    "clip_after_merge": unique_gradient(
        one([[0.0]], [[0], [0]], [[3], [3]]), [1], [0.5], {"max_gradient": 0.5}
    ),
    "divided_by_2": unique_gradient(SUMS, [7], [3.5]),
    "divided_by_4": unique_gradient(SUMS, [7], [1.75]),
    "divided_by_8": unique_gradient(SUMS, [7], [0.875]),
    "sign_flipped": backward(STEP, SGD, [1.9], [2.1]),
    "update_before_state": backward(
        one([[0.0]], [[0]], [[4]], sum=[9]), ADAGRAD, [-4 / 5], [-4 / 3]
    ),
    "squares_before_merge": backward(
        one([[0.0]], [[0], [0]], [[3], [4]]), ADAGRAD, [49], [25], "sum"
    ),
    "square_sum_not_mean": backward(
        one([[0.0, 0.0]], [[0]], [[3, 4]]),
        {"optimizer": "exact_rowwise_adagrad"},
        [12.5],
        [25],
        "sum",
    ),
    "eps_inside_root": backward(
        one([[0.0]], [[0]], [[3]]), {**ADAGRAD, "eps": 16.0}, [-3 / 19], [-3 / 5]
    ),
    "eps_squared_inside_root": backward(
        one([[0.0]], [[0]], [[3]]), {**ADAGRAD, "eps": 4.0}, [-3 / 7], [-3 / 5]
    ),
    "eps_missing": backward(one([[0.0]], [[0]], [[3]]), {**ADAGRAD, "eps": 16.0}, [-3 / 19], [-1]),
    "root_missing": backward(
        one([[0.0]], [[0]], [[3]]), {**ADAGRAD, "eps": 16.0}, [-3 / 19], [-3 / 25]
    ),
    "step_counted_late": backward(STEP, ADAM, [adam(2)], [adam(1)]),
    "step_counted_early": backward(STEP, ADAM, [adam(2)], [adam(3)]),
    "bias_correction_missing": backward(STEP, ADAM, [adam(2)], [2 - 0.5 / 0.5]),
    "weight_decay_swapped": backward(
        STEP, {**ADAGRAD, **DECAY, "learning_rate": 0.1}, [1.8], [1.9]
    ),
    "decay_after_step": backward(STEP, {**SGD, **DECAY}, [1.8], [1.805]),
    "low_half_ignored": backward(
        one([[2.0]], [[0]], [[0]])
        | {"weights": np.array([0x4000], np.uint16), "weights_low": np.array([1], np.uint16)},
        {**SGD, "weights_format": "bf16"},
        [2 + 2.0**-22],
        [2],
        "joined",
    ),
    "momentum_dampened": backward(
        STEP, {"optimizer": "momentum_sgd", "momentum": 0.75}, [1], [0.25], "momentum_buffer"
    ),
    "ftrl_sigma_missing": backward(STEP, FTRL, [0.5], [-0.5]),
    "ftrl_sign_of_z": backward(STEP, FTRL, [0.5], [-0.5]),
    "ftrl_threshold_missing": backward(STEP, {**FTRL, "lambda1": 2.0}, [0], [-0.5]),
    "ftrl_threshold_hard": backward(STEP, {**FTRL, "lambda1": 0.5}, [0.25], [0.5]),
    "ftrl_eps_inside_root": backward(
        STEP, FTRL, [-1], [1 - 2 * (math.sqrt(1 + 2.0**-23) - math.sqrt(2.0**-23))], "linear"
    ),
    "ftrl_l2_doubled": backward(STEP, {**FTRL, "lambda2": 2.0}, [1 / 4], [1 / 6]),
    "global_decay_forward_missing": example(
        "trajectory",
        RESTING,
        [0.5],
        [1],
        {k: v for k, v in GLOBAL.items() if k not in ("step", "learning_rate")} | {"eps": 1.0},
        "step2/out",
    ),
    "global_decay_not_kept": backward(
        STEP | {"prev_iter": np.array([1], F)}, GLOBAL, [-0.25], [0.5]
    ),
    "global_decay_counts_this_step": backward(
        STEP | {"prev_iter": np.array([1], F)}, GLOBAL, [-0.25], [-0.375]
    ),
    "global_decay_of_new_rows": backward(STEP, GLOBAL, [0.5], [-0.375]),
    "ensemble_coefficient_swapped": example(
        "trajectory",
        touches([8.0], [0], 0.0) | {"sparse_ema": np.array([16], F)},
        [14],
        [10],
        {**ENSEMBLE, "step_ema": 1},
        "step0/sparse_ema",
    ),
    "ensemble_starts_early": example(
        "trajectory",
        touches([8.0], [0], 0.0) | {"sparse_ema": np.array([16], F)},
        [8],
        [14],
        {**ENSEMBLE, "step_ema": 1, "step_start": 1},
        "step0/sparse_ema",
    ),
    "ensemble_swap_exchanges": example(
        "trajectory",
        touches([8.0], [0], 0.0) | {"sparse_ema": np.array([16], F)},
        [16],
        [8],
        {**ENSEMBLE, "step_swap": 1},
        "step0/sparse_ema",
    ),
    "ensemble_touched_rows_only": example(
        "trajectory",
        touches([8.0, 4.0], [0], 0.0),
        [2, 1],
        [2, 0],
        {**ENSEMBLE, "step_ema": 1},
        "step0/sparse_ema",
    ),
    "narrow_state_read_back": backward(
        {**STEP, "sum": np.array([256], F)},
        {**ADAGRAD, "momentum1_format": "bf16"},
        [2 - 1 / math.sqrt(257)],
        [2 - 1 / 16],
    ),
    "state_not_kept": example(
        "trajectory",
        history([1, 1], [1, 1], [3, 4]),
        [25],
        [16],
        {"optimizer": "exact_adagrad"},
        "step1/sum",
    ),
    "rows_of_earlier_step": example(
        "trajectory",
        touches([8.0], [0, 0, 0], 1.0),
        [7],
        [7.5],
        {"optimizer": "exact_sgd"},
        "step2/out",
    ),
    "rate_of_last_step": example(
        "trajectory",
        history([1, 1], [1, 0.5], [1, 1]),
        [0.5],
        [0],
        {"optimizer": "exact_sgd"},
        "step1/weights",
    ),
    "evaluation_counts": example(
        "trajectory",
        history([1, 0, 0], [1, 1, 1], [1, 1, 1]) | {"training": np.array([0, 0, 1])},
        [adam(1)],
        [adam(3)],
        {k: v for k, v in ADAM.items() if k not in ("learning_rate", "step")},
        "step2/weights",
    ),
    "out_of_bounds_row_0": example("bounds_check", BOUNDS, [-1, -1], [0, -1], IGNORE, "indices"),
    "out_of_bounds_wraps": example("bounds_check", BOUNDS, [-1, -1], [1, -1], IGNORE, "indices"),
    "weighted_mean_not_divided": lookup(WEIGHTED, [8], [16], MEAN),
    "weighted_mean_backward_not_divided": unique_gradient(WEIGHTED, [0.5, 1.5], [1, 3], MEAN),
    "weighted_mean_by_weights": lookup(WEIGHTED, [8], [16 / (4 + 1e-6)], MEAN),
    "mean_divisor_plus_1e6": unique_gradient(
        one([[0.0]], [[0, -1]], [[1]]), [0.5], [1 / (2 + 1e-6)], MEAN
    ),
    "weight_decay_ignored": backward(STEP, {**SGD, **DECAY}, [1.8], [1.9]),
    "weight_decay_shared_only": backward(
        one([[2.0]], [[0]], [[1]]), {**SGD, **DECAY}, [1.8], [1.9]
    ),
    "max_norm_ignored": backward(
        one([[3.0, 4.0]], [[0]], [[0, 0]]), {**SGD, "max_norm": 1.0}, [0.6, 0.8], [3, 4]
    ),
    "counter_decay_grows": backward(one([[2.0]], [[0]], [[0]]), COUNTER, [1.9], [2.1]),
    "ratio_unguarded": backward(
        one([[0.0]], [[0]], [[1]]), {**ADAM, "optimizer": "lamb"}, [adam(2) - 2], [0]
    ),
    "untouched_rows_step": backward(
        one([[2.0], [2.0]], [[0]], [[1]], momentum_buffer=[0, 1]),
        {"optimizer": "momentum_sgd", "learning_rate": 0.5, "momentum": 0.5},
        [1.5, 2],
        [1.5, 1.75],
    ),
    "sgd_duplicates_in_sequence": backward(
        one([[2.0]], [[0]] * 2, [[1], [1]]),
        {**SGD, "weight_decay": 1.0, "weight_decay_mode": "l2"},
        [2 - 0.1 * 4],
        [2 - 0.3 - 0.1 * 2.7],
    ),
    "sparse_adam_eps": backward(
        STEP,
        {**ADAM, "eps": 1.0},
        [2 - 2 / 3 / (math.sqrt(0.25 / 0.4375) + 1)],
        [2 - 2 / 3 * math.sqrt(0.4375) / 1.5],
    ),
    "bf16_output_half_up": lookup(TIES, [1, 1 + 2.0**-7], [1 + 2.0**-7, 1 + 2.0**-7], BF16),
    "bf16_cast_half_up": example(
        "round",
        {"x": np.array([[1 + 2.0**-8]], F)},
        [1],
        [1 + 2.0**-7],
        {"format": "bf16"},
        "codes",
    ),
    "adagrad_eps_1e10": backward(STEP, {**ADAGRAD, "eps": 1.0}, [1.5], [1]),
    "int8_epsilon_swapped": example(
        "quantize",
        RANGE,
        [0, round(255 * 3 / 13), *SCALE, 0, 0, 0, 0],
        [0, 255, *SCALE, 0, 0, 0, 0],
        output="codes",
    ),
    **EXAMPLES_OF_MORE,
}

ONES = one([[0.0]], [[0]] * 40, [[1]] * 40)
MANY = one([[0.0]], [[0]] * 1030, [[1]] * 1030)
LONG = one([[1.0]], [[0] * 40])
VERY_LONG = one([[1.0]], [[0] * 1030])
PAIR = one([[0.0], [0.0]], [[0], [0], [0], [1]], [[1], [2], [4], [8]])
ROWWISE: dict[str, Value] = {"optimizer": "exact_rowwise_adagrad"}
WIDE = one([[0.0] * 3], [[0]], [[2, 2, 2]])
MOMENTUM: dict[str, Value] = {"optimizer": "momentum_sgd", "learning_rate": 0.5, "momentum": 0.5}
LAMB: dict[str, Value] = {**ADAM, "optimizer": "lamb"}
LAMB_STEP = adam(2) - 2  # before the ratio
COWCLIP: dict[str, Value] = {
    "optimizer": "exact_rowwise_adagrad_with_cowclip",
    "learning_rate": 1.0,
    "eps": 0.0,
    "weight_norm_coefficient": 0.125,
}
RMSPROP: dict[str, Value] = {
    "optimizer": "rowwise_rmsprop",
    "learning_rate": 0.5,
    "ar_alpha": 0.5,
    "beta2": 0.75,
    "eps": 0.0,
}


def int8(codes: list[int], scale: float, bias: float) -> Given:
    """One int8 row of the operator lookup."""
    row = [*codes, *F(scale).tobytes(), *F(bias).tobytes()]
    return one([[0.0] * len(codes)], [[0]]) | {"weights": np.array(row, np.uint8)}


def int4(first: int, second: int) -> Given:
    """One int4 row of two codes, scale 1 and bias 0."""
    header = np.array([1, 0], np.float16).tobytes()
    row = np.array([first | second << 4, *header], np.uint8)
    return one([[0.0, 0.0]], [[0]]) | {"weights": row}


INT8: dict[str, Value] = {"weights_format": "int8"}

EXAMPLES |= {
    "bag_capped_32": lookup(LONG, [40], [32]),
    "bag_capped_1024": lookup(VERY_LONG, [1030], [1024]),
    "bag_tail_dropped_2": lookup(one([[1.0]], [[0] * 5]), [5], [4]),
    "bag_tail_dropped_4": lookup(one([[1.0]], [[0] * 7]), [7], [4]),
    "bag_tail_dropped_8": lookup(one([[1.0]], [[0] * 15]), [15], [8]),
    "offsets_by_table": lookup(TWO, [10, 2], [20, 1]),
    "bag_deduplicated": lookup(one(ROWS, [[0, 1, 0]]), [4], [3]),
    "accumulator_kept": lookup(ABC, [3, 4, 1], [3, 7, 8]),
    "pruned_reads_row_0": lookup(one(ROWS, [[1, -1]]), [2], [3]),
    "out_of_bounds_clamped": example("bounds_check", BOUNDS, [-1, -1], [2, -1], IGNORE, "indices"),
    "weights_twice": lookup(WEIGHTED, [16], [46]),
    "weighted_mean_by_plain_weights": lookup(WEIGHTED, [8], [4], MEAN),
    "gradient_of_next_sample": unique_gradient(one(ROWS, [[0], [1]], [[3], [5]]), [3, 5], [5, 5]),
    "clip_ignored": unique_gradient(one([[0.0]], [[0]], [[3]]), [0.5], [3], {"max_gradient": 0.5}),
    "duplicate_lost": unique_gradient(PAIR, [7, 8], [5, 8]),
    "segment_ends_early": unique_gradient(PAIR, [7, 8], [3, 0]),
    "segment_starts_late": unique_gradient(PAIR, [7, 8], [6, 0]),
    "duplicates_capped_32": unique_gradient(ONES, [40], [32]),
    "duplicates_capped_1024": unique_gradient(MANY, [1030], [1024]),
    "duplicate_tail_dropped_2": unique_gradient(PAIR, [7, 8], [3, 0]),
    "duplicate_tail_dropped_4": unique_gradient(PAIR, [7, 8], [0, 0]),
    "duplicate_tail_dropped_8": unique_gradient(one([[0.0]], [[0]] * 9, [[1]] * 9), [9], [8]),
    "merged_in_fp16": unique_gradient(one([[0.0]], [[0]] * 3, [[2048], [1], [1]]), [2050], [2048]),
    "merged_in_bf16": unique_gradient(one([[0.0]], [[0]] * 3, [[256], [1], [1]]), [258], [256]),
    "gradients_in_fp16": unique_gradient(one([[0.0]], [[0]] * 2, [[2049], [2049]]), [4098], [4096]),
    "gradients_in_tf32": unique_gradient(
        one([[0.0]], [[0]] * 2, [[2.0**17 + 64], [2049]]),  # beyond fp16
        [2.0**17 + 64 + 2049],
        [2.0**17 + 128 + 2050],
    ),
    "gradients_in_bf16": unique_gradient(one([[0.0]], [[0]] * 2, [[257], [257]]), [514], [512]),
    "gradients_cut_to_bf16": unique_gradient(one([[0.0]], [[0]] * 2, [[259], [257]]), [516], [514]),
    "scale_and_bias_swapped": lookup(int8([3, 0], 2.0, 5.0), [11, 5], [17, 2], INT8),
    "scale_missing": lookup(int8([3, 0], 2.0, 5.0), [11, 5], [8, 5], INT8),
    "row_bias_missing": lookup(int8([3, 0], 2.0, 5.0), [11, 5], [6, 0], INT8),
    "codes_signed": lookup(int8([255, 1], 1.0, 0.0), [255, 1], [-1, 1], INT8),
    "high_code_first": lookup(int4(3, 9), [3, 9], [9, 3], {"weights_format": "int4"}),
    "permutation_inverted": example(
        "permute",
        {
            "lengths": np.array([[1], [2], [3]]),
            "permute": np.array([2, 0, 1]),
            "indices": np.arange(6),
        },
        [3, 1, 2],
        [2, 3, 1],
        output="lengths",
    ),
    "rate_twice": backward(STEP, {**SGD, "learning_rate": 0.5}, [1.5], [1.75]),
    "rate_missing": backward(STEP, {**SGD, "learning_rate": 0.5}, [1.5], [1]),
    "hyper_in_fp16": backward(
        one([[2.0]], [[0]], [[1024]]), {**SGD, "learning_rate": 1 + 2.0**-11}, [-1022.5], [-1022]
    ),
    "decay_sign_flipped": backward(STEP, {**SGD, **DECAY}, [1.8], [2]),
    "decay_without_rate": backward(STEP, {**SGD, **DECAY}, [1.8], [0.9]),
    "decay_not_in_state": backward(
        STEP, {**ADAGRAD, "weight_decay": 0.5, "weight_decay_mode": "l2"}, [4], [1], "sum"
    ),
    "eps_as_floor": backward(
        one([[0.0]], [[0]], [[3]]), {**ADAGRAD, "eps": 16.0}, [-3 / 19], [-3 / 16]
    ),
    "nesterov": backward(STEP, MOMENTUM, [1.5], [1.25]),
    "ratio_missing": backward(STEP, LAMB, [0], [2 + LAMB_STEP]),
    "ratio_inverted": backward(STEP, LAMB, [0], [2 - LAMB_STEP**2 / 2]),
    "norm_over_table": backward(
        one([[3.0], [4.0]], [[0]], [[0]]), {**SGD, "max_norm": 1.0}, [1, 4], [0.6, 4]
    ),
    "max_norm_before_step": backward(
        one([[4.0]], [[0]], [[1]]), {**SGD, "learning_rate": 1.0, "max_norm": 2.0}, [2], [1]
    ),
    "cowclip_ignored": backward(STEP, COWCLIP, [1.75], [1]),
    "shrinkage_ignored": backward(STEP, RMSPROP, [0.5], [1]),
    "mean_over_padded_4": backward(WIDE, ROWWISE, [4], [3], "sum"),
    "mean_over_padded_8": backward(WIDE, ROWWISE, [4], [1.5], "sum"),
    "mean_over_padded_32": backward(WIDE, ROWWISE, [4], [12 / 32], "sum"),
    "mean_over_padded_128": backward(WIDE, ROWWISE, [4], [12 / 128], "sum"),
    "states_ignored": backward(one([[0.0]], [[0]], [[4]], sum=[9]), ADAGRAD, [25], [16], "sum"),
    "states_not_stored": backward(one([[0.0]], [[0]], [[4]], sum=[9]), ADAGRAD, [25], [9], "sum"),
    "step_always_1": backward(STEP, ADAM, [adam(2)], [adam(1)]),
    "betas_swapped": backward(STEP, ADAM, [0.5], [0.25], "exp_avg"),
    "moment_not_weighted": backward(STEP, ADAM, [0.5], [1], "exp_avg"),
    "first_correction_missing": backward(
        STEP, ADAM, [adam(2)], [2 - 0.5 / math.sqrt(0.25 / (1 - 0.75**2))]
    ),
    "second_moment_maximum": backward(
        STEP | {"exp_avg_sq": np.array([8], F)}, ADAM, [6.25], [8], "exp_avg_sq"
    ),
    "second_correction_missing": backward(STEP, ADAM, [adam(2)], [2 - 0.5 / 0.75 / 0.5]),
}
