"""What does each known mistake or quirk do, and how is it fixed? The texts of diagnoses."""

from dataclasses import dataclass
from typing import Literal

# Operators that a switch may change, by what they do.
MERGES = ("backward", "trajectory", "unique_gradient")
UPDATES = ("backward", "trajectory")
BAGS = ("lookup", "weight_gradient", *MERGES)
WEIGHTED = ("lookup", *MERGES)
AT_SCALE = ("lookup_at_scale", "backward_at_scale")
MAXIMA = ("lookup_max", "lookup_max_backward")
JAGGED = (
    "jagged_dense_bmm",
    "jagged_dense_bmm_backward",
    "jagged_jagged_bmm",
    "jagged_jagged_bmm_backward",
    "dense_vec_jagged_mul",
    "dense_vec_jagged_mul_backward",
    "jagged_softmax",
    "jagged_softmax_backward",
    "jagged_dense_elementwise",
    "jagged_dense_elementwise_backward",
)
SCATTERS = (
    *MERGES,
    "permute_pooled_backward",
    "permute_multi_embedding_backward",
    "group_index_select_backward",
    "keyed_jagged_index_select_backward",
)


@dataclass(frozen=True)
class Switch:
    """One way to differ from the exact model: a mistake, with its remedy, or a peer's quirk."""

    name: str
    kind: Literal["quirk", "mistake"]
    about: str  # what it does: one sentence
    fix: str  # what to do about it: one sentence; "" for a quirk
    ops: tuple[str, ...]  # operators that it changes


def _mistake(name: str, ops: tuple[str, ...], about: str, fix: str) -> Switch:
    return Switch(name, "mistake", about, fix, ops)


def _quirk(name: str, ops: tuple[str, ...], about: str) -> Switch:
    return Switch(name, "quirk", about, "", ops)


_BOUNDARIES = (
    _mistake(
        "last_lookup_dropped",
        (*BAGS, *JAGGED, *MAXIMA),
        "the last lookup of every bag is left out",
        "a bag ends before offsets[bag + 1]: loop while l < offsets[bag + 1]",
    ),
    _mistake(
        "first_lookup_dropped",
        (*BAGS, *JAGGED, *MAXIMA),
        "the first lookup of every bag is left out",
        "a bag begins at offsets[bag], that lookup included",
    ),
    _mistake(
        "bag_ends_late",
        (*WEIGHTED, *MAXIMA),
        "every bag takes in the first lookup of the next one",
        "a bag ends before offsets[bag + 1]: compare with <, not <=",
    ),
    _mistake(
        "bag_starts_early",
        (*BAGS, *MAXIMA),
        "every bag takes in the last lookup of the one before",
        "a bag begins at offsets[bag], not one before",
    ),
    _mistake(
        "pruned_reads_last_row",
        (*BAGS, *MAXIMA),
        "row -1 (a pruned row) reads or trains the last row of the table",
        "skip lookups with row < 0 before the row is addressed",
    ),
    _mistake(
        "feature_is_table",
        (*BAGS, *MAXIMA),
        "feature f uses table f, whatever feature_table says",
        "take the table of a feature from feature_table",
    ),
    _mistake(
        "columns_in_table_order",
        (*BAGS, *MAXIMA),
        "pooled columns stand in the order of tables instead of features",
        "column offsets are the running sum of dims[feature_table], feature by feature",
    ),
    _mistake(
        "row_offset_32bit",
        ("linear_index", *AT_SCALE),
        "row * dim is computed in 32 bits and wraps around",
        "widen the row number to 64 bits before the multiplication",
    ),
    _mistake(
        "byte_offset_32bit",
        AT_SCALE,
        "offsets in bytes, of rows and of gradients, are computed in 32 bits and wrap around",
        "add element offsets of 64 bits to a typed pointer, or widen before the multiplication",
    ),
    _mistake(
        "table_offset_32bit",
        AT_SCALE,
        "where a table begins is held in 32 bits and wraps around",
        "keep the tables' offsets, and their running sum, in 64 bits",
    ),
)

_LAYOUT = (
    _mistake(
        "bucket_by_modulo",
        ("block_bucketize",),
        "rows are dealt out to ranks one by one (row % ranks) instead of in blocks",
        "rank = row // block, local row = row - rank*block",
    ),
    _mistake(
        "bucket_keeps_row",
        ("block_bucketize", "bucketize_uneven"),
        "row numbers are sent as they are, not counted from the block's first row",
        "subtract rank*block from the row",
    ),
    _mistake(
        "padding_cuts_front",
        ("jagged_to_padded_dense",),
        "bags longer than max_length lose their first rows instead of their last",
        "keep the first max_length rows",
    ),
)

_POOLING = (
    _mistake(
        "mean_not_divided",
        BAGS,
        "MEAN bags, or the gradients that flow into them, are not divided by their length",
        "divide by L = offsets[bag + 1] - offsets[bag], in forward and in backward",
    ),
    _mistake(
        "mean_divided_twice",
        BAGS,
        "MEAN divides by the square of the bag's length",
        "divide once: either each term or the sum, either in the host code or in the kernel",
    ),
    _mistake(
        "mean_counts_kept",
        BAGS,
        "MEAN divides by the number of lookups that are not pruned",
        "L counts pruned lookups too",
    ),
    _mistake(
        "weights_ignored",
        WEIGHTED,
        "per-sample weights are not applied",
        "multiply each row (and in backward each gradient) by its lookup's weight",
    ),
    _mistake(
        "weights_restart",
        WEIGHTED,
        "the weight is indexed by the place in the bag instead of the place among all lookups",
        "index per_sample_weights like indices, with offsets[bag] + i",
    ),
    _mistake(
        "accumulated_narrow",
        ("lookup",),
        "the bag is summed in the output's narrow format, rounding after every lookup",
        "accumulate in fp32 and round once, at the end",
    ),
    _mistake(
        "subnormals_flushed",
        ("lookup", "unique_gradient"),
        "subnormal numbers are taken as 0",
        "compile without flush-to-zero (nvcc: -ftz=false), or say that the kernel flushes",
    ),
    _mistake(
        "half_up",
        ("lookup", "round", "quantize", "backward", "trajectory"),
        "ties round away from zero instead of to even",
        "round to nearest even: add 0x7fff plus the last kept bit, not 0x8000",
    ),
    _mistake(
        "truncated",
        ("lookup", "round", "quantize", "backward", "trajectory", "fp8_rowwise"),
        "bits are dropped instead of rounded",
        "round to nearest even before the narrow store",
    ),
)

_GRADIENT = (
    _mistake(
        "gradient_without_weights",
        MERGES,
        "the gradient of a row is not multiplied by the lookup's per-sample weight",
        "the gradient of w*row by row is w*grad",
    ),
    _mistake(
        "weight_gradient_times_weight",
        ("weight_gradient",),
        "the gradient of a per-sample weight is multiplied by that weight",
        "the gradient of w*row by w is the dot product of row and grad, without w",
    ),
    _mistake(
        "gradient_without_grad_output",
        ("weight_gradient",),
        "the gradient of a per-sample weight is the sum of its row",
        "multiply the row by the gradient of its bag before the sum",
    ),
    _mistake(
        "last_duplicate_wins",
        SCATTERS,
        (
            "of a row's duplicates only the last one counts: unordered stores, or lost atomic "
            "additions"
        ),
        "add with atomics, or sort by row and reduce segments",
    ),
    _mistake(
        "first_duplicate_wins",
        SCATTERS,
        "of a row's duplicates only the first one counts",
        "reduce the whole segment of a row: from its first to its last lookup",
    ),
    _mistake(
        "duplicates_averaged",
        SCATTERS,
        "the gradients of duplicates are averaged instead of added",
        "add the gradients of a row's lookups",
    ),
    _mistake(
        "duplicates_in_sequence",
        UPDATES,
        "a row that occurs n times gets n optimizer steps instead of one from the merged gradient",
        "sort or hash the rows, add the gradients of duplicates, then update once",
    ),
    _mistake(
        "features_in_sequence",
        UPDATES,
        "features that share a table update it one after the other",
        "merge the gradients of all features of a table before its update",
    ),
    _mistake(
        "clip_after_merge",
        MERGES,
        "max_gradient clips merged gradients instead of the gradients of pooled rows",
        "clip grad_output, number by number, before anything is merged",
    ),
    *(
        _mistake(
            f"divided_by_{n}",
            MERGES,
            f"gradients are divided by {n}, as by a world size",
            "divide by the number of ranks outside the operator, if at all",
        )
        for n in (2, 4, 8)
    ),
    _mistake(
        "sign_flipped",
        UPDATES,
        "the step goes uphill: the gradient has the wrong sign",
        "subtract the step",
    ),
)

_RULES = (
    _mistake(
        "update_before_state",
        UPDATES,
        "the weights are updated from the state before it takes the gradient in",
        "update the moment or accumulator first, then the weights from the new value",
    ),
    _mistake(
        "squares_before_merge",
        UPDATES,
        (
            "the accumulator adds the squares of the single gradients instead of the square of "
            "their sum"
        ),
        "merge the gradients of duplicates first, then square",
    ),
    _mistake(
        "square_sum_not_mean",
        UPDATES,
        "the row state adds the sum of squares over the columns instead of their mean",
        "divide the sum of squares by D",
    ),
    _mistake(
        "eps_inside_root", UPDATES, "eps is added inside the square root", "use sqrt(state) + eps"
    ),
    _mistake("eps_missing", UPDATES, "eps is not added", "use sqrt(state) + eps"),
    _mistake(
        "root_missing",
        UPDATES,
        "the square root of the state is not taken",
        "divide by sqrt(state) + eps",
    ),
    _mistake(
        "step_counted_late",
        UPDATES,
        "the rule works with the number of the step before (bias correction off by one)",
        "count the step before the update: the first one has t = 1",
    ),
    _mistake(
        "step_counted_early",
        UPDATES,
        "the rule works with the number of the next step (bias correction off by one)",
        "count each step once: the first one has t = 1",
    ),
    _mistake(
        "bias_correction_missing",
        UPDATES,
        "moments are not corrected for their start at 0",
        "divide m by 1 - beta1^t and v by 1 - beta2^t",
    ),
    _mistake(
        "weight_decay_swapped",
        UPDATES,
        "L2 decay is applied as decoupled decay, or the other way round",
        "l2 adds wd*w to the gradient; decoupled multiplies w by 1 - lr*wd",
    ),
    _mistake(
        "decay_after_step",
        UPDATES,
        "decoupled weight decay multiplies the weight after the step, so it shrinks the step too",
        "w = (1 - lr*wd)*w - step",
    ),
    _mistake(
        "low_half_ignored",
        ("backward",),
        "split-SGD updates the upper halves alone: the lower ones are taken as 0",
        "join both halves to an fp32 weight, update that, split it again",
    ),
    _mistake(
        "momentum_dampened",
        UPDATES,
        "momentum adds (1 - momentum)*g instead of g",
        "m = momentum*m + g",
    ),
    _mistake(
        "state_not_kept",
        ("trajectory",),
        "states start anew at every step",
        "keep the states between steps",
    ),
    _mistake(
        "rate_of_last_step",
        ("trajectory",),
        "the learning rate of the step before is used",
        "set the learning rate before the backward of its step",
    ),
)

_QUIRKS = (
    _quirk(
        "out_of_bounds_row_0",
        (*BAGS, "bounds_check"),
        (
            "a row number out of range is set to 0, so that it reads and trains row 0 (FBGEMM: "
            "WARNING and IGNORE)"
        ),
    ),
    _quirk(
        "out_of_bounds_wraps",
        (*BAGS, "bounds_check"),
        "a row number out of range is taken modulo the rows",
    ),
    _quirk(
        "weighted_mean_not_divided",
        ("lookup",),
        "a weighted MEAN is the weighted sum (FBGEMM's CPU kernels with fp16 output)",
    ),
    _quirk(
        "weighted_mean_backward_not_divided",
        ("weight_gradient", *MERGES),
        (
            "gradients of a weighted MEAN, of rows and of weights, are not divided by L, though "
            "forward divides (FBGEMM on CPU)"
        ),
    ),
    _quirk(
        "weighted_mean_by_weights",
        BAGS,
        "a weighted MEAN divides by the sum of the weights plus 1e-6 (TorchRec, row-wise sharding)",
    ),
    _quirk(
        "mean_divisor_plus_1e6",
        BAGS,
        "an unweighted MEAN divides by L + 1e-6 (TorchRec, row-wise sharding)",
    ),
    _quirk("weight_decay_ignored", UPDATES, "weight decay has no effect"),
    _quirk(
        "weight_decay_shared_only",
        UPDATES,
        (
            "weight decay acts in row-wise AdaGrad of shared, fp16 or unpooled tables alone "
            "(FBGEMM on CPU)"
        ),
    ),
    _quirk("max_norm_ignored", UPDATES, "max_norm has no effect (FBGEMM on CPU)"),
    _quirk(
        "stochastic_rounding_ignored",
        ("backward", "trajectory", "round"),
        "rows are rounded to nearest where stochastic rounding was asked for (FBGEMM on CPU)",
    ),
    _quirk(
        "evaluation_counts",
        ("trajectory",),
        "every forward counts a step, evaluations too (FBGEMM's iter)",
    ),
    _quirk(
        "counter_decay_grows",
        UPDATES,
        (
            "a negative counter half-life keeps its sign, so that weight decay makes weights grow "
            "(FBGEMM)"
        ),
    ),
    _quirk(
        "ratio_unguarded",
        UPDATES,
        "LAMB's and LARS' ratio of norms is 0/0 or x/0 on rows of zeros (FBGEMM)",
    ),
    _quirk(
        "untouched_rows_step",
        UPDATES,
        (
            "rows without a lookup take a step with gradient 0: moments fade, weights decay "
            "(torch's dense optimizers)"
        ),
    ),
    _quirk(
        "adagrad_eps_1e10",
        UPDATES,
        "AdaGrad's eps is 1e-10, torch's default, whatever the case says",
    ),
    _quirk(
        "sgd_duplicates_in_sequence",
        UPDATES,
        (
            "SGD subtracts a row's gradients one after the other, rounding each time (torch, "
            "sparse gradients)"
        ),
    ),
    _quirk(
        "sparse_adam_eps",
        UPDATES,
        (
            "Adam's eps joins the root of the second moment before its bias is corrected (torch's "
            "SparseAdam)"
        ),
    ),
    _quirk(
        "bf16_output_half_up",
        ("lookup",),
        (
            "sums of a bag become bf16 by half up instead of half to even (torch and FBGEMM's "
            "inference on CPU)"
        ),
    ),
    _quirk(
        "bf16_cast_half_up",
        ("round",),
        (
            "numbers become bf16 by half up instead of half to even (FBGEMM's "
            "FloatToBfloat16Quantized)"
        ),
    ),
    _quirk(
        "int8_epsilon_swapped",
        ("quantize",),
        "int8 rows are scaled with the other variant's eps: 1e-8 (FBGEMM's CPU) or 1e-20 (its GPU)",
    ),
)

_STATES = (
    _mistake(
        "ftrl_sigma_missing",
        UPDATES,
        "FTRL's z adds the gradient alone, without sigma*w",
        "z += g - (sqrt(new n) - sqrt(old n))/lr * w, with w before the step",
    ),
    _mistake(
        "ftrl_sign_of_z",
        UPDATES,
        "FTRL's weight has the sign of z instead of the opposite one",
        "w = (sign(z)*lambda1 - z) / ((beta + sqrt(n))/lr + lambda2)",
    ),
    _mistake(
        "ftrl_threshold_missing",
        UPDATES,
        "FTRL's weight is not 0 where abs(z) <= lambda1",
        "set w to 0 where abs(z) <= lambda1, before the division",
    ),
    _mistake(
        "ftrl_threshold_hard",
        UPDATES,
        "FTRL's z is cut off at lambda1, but lambda1 is not taken off it",
        "beyond the threshold w = (sign(z)*lambda1 - z) / ..., which begins at 0",
    ),
    _mistake(
        "narrow_state_read_back",
        UPDATES,
        "weights are updated from the state after it was rounded to its narrow format",
        "go on with the fp32 number, and round only what is stored",
    ),
    _mistake(
        "global_decay_forward_missing",
        ("trajectory",),
        "lookups of training steps read rows without the decay of the steps that they missed",
        "multiply a row by max(bound, (1 - lr*wd)^(t - prev_iter - 1)) in the forward kernel too",
    ),
    _mistake(
        "global_decay_not_kept",
        UPDATES,
        "the update starts from rows without the decay of the steps that they missed",
        "multiply a row by the forward kernel's factor before its step",
    ),
    _mistake(
        "global_decay_counts_this_step",
        UPDATES,
        "rows that rest decay once too often: by t - prev_iter steps",
        "the update itself decays too: take t - prev_iter - 1 steps before it",
    ),
    _mistake(
        "global_decay_of_new_rows",
        UPDATES,
        "rows that were never updated (prev_iter 0) decay as if they had been at step 0",
        "take 1 as the factor of rows with prev_iter 0",
    ),
    _mistake(
        "ensemble_coefficient_swapped",
        ("trajectory",),
        "the shadow keeps 1 - step_ema_coef of itself instead of step_ema_coef",
        "sparse_ema = step_ema_coef*sparse_ema + (1 - step_ema_coef)*w",
    ),
    _mistake(
        "ensemble_swap_exchanges",
        ("trajectory",),
        "a swap exchanges weights and shadow",
        "copy the shadow to the weights; it keeps its numbers",
    ),
    _mistake(
        "ensemble_touched_rows_only",
        ("trajectory",),
        "only the rows that a step looks up are averaged and swapped",
        "average and swap whole tables",
    ),
    _quirk(
        "ftrl_eps_inside_root",
        UPDATES,
        "FTRL adds 2^-23 to n inside its square roots (HugeCTR)",
    ),
    _quirk(
        "ftrl_l2_doubled",
        UPDATES,
        "FTRL's lambda2 counts twice (TensorFlow, Keras)",
    ),
)

ALL = (*_BOUNDARIES, *_LAYOUT, *_POOLING, *_GRADIENT, *_RULES, *_QUIRKS, *_STATES)
