"""What does each known mistake or quirk do, and how is it fixed? The texts of diagnoses."""

from neocpu.oracle.switches.of_loops import CODES, LOOPS
from neocpu.oracle.switches.of_rules import STATES, STEPS
from neocpu.oracle.switches.switch import (
    AT_SCALE,
    BAGS,
    JAGGED,
    MAXIMA,
    MERGES,
    SCATTERS,
    UPDATES,
    WEIGHTED,
    Switch,
    mistake,
    quirk,
)

__all__ = ["ALL", "Switch"]

_BOUNDARIES = (
    mistake(
        "last_lookup_dropped",
        (*BAGS, *JAGGED, *MAXIMA),
        "the last lookup of every bag is left out",
        "a bag ends before offsets[bag + 1]: loop while l < offsets[bag + 1]",
    ),
    mistake(
        "first_lookup_dropped",
        (*BAGS, *JAGGED, *MAXIMA),
        "the first lookup of every bag is left out",
        "a bag begins at offsets[bag], that lookup included",
    ),
    mistake(
        "bag_ends_late",
        (*WEIGHTED, *MAXIMA),
        "every bag takes in the first lookup of the next one",
        "a bag ends before offsets[bag + 1]: compare with <, not <=",
    ),
    mistake(
        "bag_starts_early",
        (*BAGS, *MAXIMA),
        "every bag takes in the last lookup of the one before",
        "a bag begins at offsets[bag], not one before",
    ),
    mistake(
        "pruned_reads_last_row",
        (*BAGS, *MAXIMA),
        "row -1 (a pruned row) reads or trains the last row of the table",
        "skip lookups with row < 0 before the row is addressed",
    ),
    mistake(
        "feature_is_table",
        (*BAGS, *MAXIMA),
        "feature f uses table f, whatever feature_table says",
        "take the table of a feature from feature_table",
    ),
    mistake(
        "columns_in_table_order",
        (*BAGS, *MAXIMA),
        "pooled columns stand in the order of tables instead of features",
        "column offsets are the running sum of dims[feature_table], feature by feature",
    ),
    mistake(
        "row_offset_32bit",
        ("linear_index", *AT_SCALE),
        "row * dim is computed in 32 bits and wraps around",
        "widen the row number to 64 bits before the multiplication",
    ),
    mistake(
        "byte_offset_32bit",
        AT_SCALE,
        "offsets in bytes, of rows and of gradients, are computed in 32 bits and wrap around",
        "add element offsets of 64 bits to a typed pointer, or widen before the multiplication",
    ),
    mistake(
        "table_offset_32bit",
        AT_SCALE,
        "where a table begins is held in 32 bits and wraps around",
        "keep the tables' offsets, and their running sum, in 64 bits",
    ),
)

_LAYOUT = (
    mistake(
        "bucket_by_modulo",
        ("block_bucketize",),
        "rows are dealt out to ranks one by one (row % ranks) instead of in blocks",
        "rank = row // block, local row = row - rank*block",
    ),
    mistake(
        "bucket_keeps_row",
        ("block_bucketize", "bucketize_uneven"),
        "row numbers are sent as they are, not counted from the block's first row",
        "subtract rank*block from the row",
    ),
    mistake(
        "padding_cuts_front",
        ("jagged_to_padded_dense",),
        "bags longer than max_length lose their first rows instead of their last",
        "keep the first max_length rows",
    ),
)

_POOLING = (
    mistake(
        "mean_not_divided",
        BAGS,
        "MEAN bags, or the gradients that flow into them, are not divided by their length",
        "divide by L = offsets[bag + 1] - offsets[bag], in forward and in backward",
    ),
    mistake(
        "mean_divided_twice",
        BAGS,
        "MEAN divides by the square of the bag's length",
        "divide once: either each term or the sum, either in the host code or in the kernel",
    ),
    mistake(
        "mean_counts_kept",
        BAGS,
        "MEAN divides by the number of lookups that are not pruned",
        "L counts pruned lookups too",
    ),
    mistake(
        "weights_ignored",
        WEIGHTED,
        "per-sample weights are not applied",
        "multiply each row (and in backward each gradient) by its lookup's weight",
    ),
    mistake(
        "weights_restart",
        WEIGHTED,
        "the weight is indexed by the place in the bag instead of the place among all lookups",
        "index per_sample_weights like indices, with offsets[bag] + i",
    ),
    mistake(
        "accumulated_narrow",
        ("lookup",),
        "the bag is summed in the output's narrow format, rounding after every lookup",
        "accumulate in fp32 and round once, at the end",
    ),
    mistake(
        "subnormals_flushed",
        WEIGHTED,
        "subnormal numbers are taken as 0",
        "compile without flush-to-zero (nvcc: -ftz=false), or say that the kernel flushes",
    ),
    mistake(
        "half_up",
        ("lookup", "round", "quantize", "backward", "trajectory"),
        "ties round away from zero instead of to even",
        "round to nearest even: add 0x7fff plus the last kept bit, not 0x8000",
    ),
    mistake(
        "truncated",
        ("lookup", "round", "quantize", "backward", "trajectory", "fp8_rowwise"),
        "bits are dropped instead of rounded",
        "round to nearest even before the narrow store",
    ),
)

_GRADIENT = (
    mistake(
        "gradient_without_weights",
        MERGES,
        "the gradient of a row is not multiplied by the lookup's per-sample weight",
        "the gradient of w*row by row is w*grad",
    ),
    mistake(
        "weight_gradient_times_weight",
        ("weight_gradient",),
        "the gradient of a per-sample weight is multiplied by that weight",
        "the gradient of w*row by w is the dot product of row and grad, without w",
    ),
    mistake(
        "gradient_without_grad_output",
        ("weight_gradient",),
        "the gradient of a per-sample weight is the sum of its row",
        "multiply the row by the gradient of its bag before the sum",
    ),
    mistake(
        "last_duplicate_wins",
        SCATTERS,
        (
            "of a row's duplicates only the last one counts: unordered stores, or lost atomic "
            "additions"
        ),
        "add with atomics, or sort by row and reduce segments",
    ),
    mistake(
        "first_duplicate_wins",
        SCATTERS,
        "of a row's duplicates only the first one counts",
        "reduce the whole segment of a row: from its first to its last lookup",
    ),
    mistake(
        "duplicates_averaged",
        SCATTERS,
        "the gradients of duplicates are averaged instead of added",
        "add the gradients of a row's lookups",
    ),
    mistake(
        "duplicates_in_sequence",
        UPDATES,
        "a row that occurs n times gets n optimizer steps instead of one from the merged gradient",
        "sort or hash the rows, add the gradients of duplicates, then update once",
    ),
    mistake(
        "features_in_sequence",
        UPDATES,
        "features that share a table update it one after the other",
        "merge the gradients of all features of a table before its update",
    ),
    mistake(
        "clip_after_merge",
        MERGES,
        "max_gradient clips merged gradients instead of the gradients of pooled rows",
        "clip grad_output, number by number, before anything is merged",
    ),
    *(
        mistake(
            f"divided_by_{n}",
            MERGES,
            f"gradients are divided by {n}, as by a world size",
            "divide by the number of ranks outside the operator, if at all",
        )
        for n in (2, 4, 8)
    ),
    mistake(
        "sign_flipped",
        UPDATES,
        "the step goes uphill: the gradient has the wrong sign",
        "subtract the step",
    ),
)

_RULES = (
    mistake(
        "update_before_state",
        UPDATES,
        "the weights are updated from the state before it takes the gradient in",
        "update the moment or accumulator first, then the weights from the new value",
    ),
    mistake(
        "squares_before_merge",
        UPDATES,
        (
            "the accumulator adds the squares of the single gradients instead of the square of "
            "their sum"
        ),
        "merge the gradients of duplicates first, then square",
    ),
    mistake(
        "square_sum_not_mean",
        UPDATES,
        "the row state adds the sum of squares over the columns instead of their mean",
        "divide the sum of squares by D",
    ),
    mistake(
        "eps_inside_root", UPDATES, "eps is added inside the square root", "use sqrt(state) + eps"
    ),
    mistake("eps_missing", UPDATES, "eps is not added", "use sqrt(state) + eps"),
    mistake(
        "root_missing",
        UPDATES,
        "the square root of the state is not taken",
        "divide by sqrt(state) + eps",
    ),
    mistake(
        "step_counted_late",
        UPDATES,
        "the rule works with the number of the step before (bias correction off by one)",
        "count the step before the update: the first one has t = 1",
    ),
    mistake(
        "step_counted_early",
        UPDATES,
        "the rule works with the number of the next step (bias correction off by one)",
        "count each step once: the first one has t = 1",
    ),
    mistake(
        "bias_correction_missing",
        UPDATES,
        "moments are not corrected for their start at 0",
        "divide m by 1 - beta1^t and v by 1 - beta2^t",
    ),
    mistake(
        "weight_decay_swapped",
        UPDATES,
        "L2 decay is applied as decoupled decay, or the other way round",
        "l2 adds wd*w to the gradient; decoupled multiplies w by 1 - lr*wd",
    ),
    mistake(
        "decay_after_step",
        UPDATES,
        "decoupled weight decay multiplies the weight after the step, so it shrinks the step too",
        "w = (1 - lr*wd)*w - step",
    ),
    mistake(
        "low_half_ignored",
        ("backward",),
        "split-SGD updates the upper halves alone: the lower ones are taken as 0",
        "join both halves to an fp32 weight, update that, split it again",
    ),
    mistake(
        "momentum_dampened",
        UPDATES,
        "momentum adds (1 - momentum)*g instead of g",
        "m = momentum*m + g",
    ),
    mistake(
        "state_not_kept",
        ("trajectory",),
        "states start anew at every step",
        "keep the states between steps",
    ),
    mistake(
        "rate_of_last_step",
        ("trajectory",),
        "the learning rate of the step before is used",
        "set the learning rate before the backward of its step",
    ),
)

_QUIRKS = (
    quirk(
        "out_of_bounds_row_0",
        (*BAGS, "bounds_check"),
        (
            "a row number out of range is set to 0, so that it reads and trains row 0 (FBGEMM: "
            "WARNING and IGNORE)"
        ),
    ),
    quirk(
        "out_of_bounds_wraps",
        (*BAGS, "bounds_check"),
        "a row number out of range is taken modulo the rows",
    ),
    quirk(
        "weighted_mean_not_divided",
        ("lookup",),
        "a weighted MEAN is the weighted sum (FBGEMM's CPU kernels with fp16 output)",
    ),
    quirk(
        "weighted_mean_backward_not_divided",
        ("weight_gradient", *MERGES),
        (
            "gradients of a weighted MEAN, of rows and of weights, are not divided by L, though "
            "forward divides (FBGEMM on CPU)"
        ),
    ),
    quirk(
        "weighted_mean_by_weights",
        BAGS,
        "a weighted MEAN divides by the sum of the weights plus 1e-6 (TorchRec, row-wise sharding)",
    ),
    quirk(
        "mean_divisor_plus_1e6",
        BAGS,
        "an unweighted MEAN divides by L + 1e-6 (TorchRec, row-wise sharding)",
    ),
    quirk("weight_decay_ignored", UPDATES, "weight decay has no effect"),
    quirk(
        "weight_decay_shared_only",
        UPDATES,
        (
            "weight decay acts in row-wise AdaGrad of shared, fp16 or unpooled tables alone "
            "(FBGEMM on CPU)"
        ),
    ),
    quirk("max_norm_ignored", UPDATES, "max_norm has no effect (FBGEMM on CPU)"),
    quirk(
        "stochastic_rounding_ignored",
        ("backward", "trajectory", "round"),
        "rows are rounded to nearest where stochastic rounding was asked for (FBGEMM on CPU)",
    ),
    quirk(
        "evaluation_counts",
        ("trajectory",),
        "every forward counts a step, evaluations too (FBGEMM's iter)",
    ),
    quirk(
        "counter_decay_grows",
        UPDATES,
        (
            "a negative counter half-life keeps its sign, so that weight decay makes weights grow "
            "(FBGEMM)"
        ),
    ),
    quirk(
        "ratio_unguarded",
        UPDATES,
        "LAMB's and LARS' ratio of norms is 0/0 or x/0 on rows of zeros (FBGEMM)",
    ),
    quirk(
        "untouched_rows_step",
        UPDATES,
        (
            "rows without a lookup take a step with gradient 0: moments fade, weights decay "
            "(torch's dense optimizers)"
        ),
    ),
    quirk(
        "adagrad_eps_1e10",
        UPDATES,
        "AdaGrad's eps is 1e-10, torch's default, whatever the case says",
    ),
    quirk(
        "sgd_duplicates_in_sequence",
        UPDATES,
        (
            "SGD subtracts a row's gradients one after the other, rounding each time (torch, "
            "sparse gradients)"
        ),
    ),
    quirk(
        "sparse_adam_eps",
        UPDATES,
        (
            "Adam's eps joins the root of the second moment before its bias is corrected (torch's "
            "SparseAdam)"
        ),
    ),
    quirk(
        "bf16_output_half_up",
        ("lookup",),
        (
            "sums of a bag become bf16 by half up instead of half to even (torch and FBGEMM's "
            "inference on CPU)"
        ),
    ),
    quirk(
        "bf16_cast_half_up",
        ("round",),
        (
            "numbers become bf16 by half up instead of half to even (FBGEMM's "
            "FloatToBfloat16Quantized)"
        ),
    ),
    quirk(
        "int8_epsilon_swapped",
        ("quantize",),
        "int8 rows are scaled with the other variant's eps: 1e-8 (FBGEMM's CPU) or 1e-20 (its GPU)",
    ),
)

_STATES = (
    mistake(
        "ftrl_sigma_missing",
        UPDATES,
        "FTRL's z adds the gradient alone, without sigma*w",
        "z += g - (sqrt(new n) - sqrt(old n))/lr * w, with w before the step",
    ),
    mistake(
        "ftrl_sign_of_z",
        UPDATES,
        "FTRL's weight has the sign of z instead of the opposite one",
        "w = (sign(z)*lambda1 - z) / ((beta + sqrt(n))/lr + lambda2)",
    ),
    mistake(
        "ftrl_threshold_missing",
        UPDATES,
        "FTRL's weight is not 0 where abs(z) <= lambda1",
        "set w to 0 where abs(z) <= lambda1, before the division",
    ),
    mistake(
        "ftrl_threshold_hard",
        UPDATES,
        "FTRL's z is cut off at lambda1, but lambda1 is not taken off it",
        "beyond the threshold w = (sign(z)*lambda1 - z) / ..., which begins at 0",
    ),
    mistake(
        "narrow_state_read_back",
        UPDATES,
        "weights are updated from the state after it was rounded to its narrow format",
        "go on with the fp32 number, and round only what is stored",
    ),
    mistake(
        "global_decay_forward_missing",
        ("trajectory",),
        "lookups of training steps read rows without the decay of the steps that they missed",
        "multiply a row by max(bound, (1 - lr*wd)^(t - prev_iter - 1)) in the forward kernel too",
    ),
    mistake(
        "global_decay_not_kept",
        UPDATES,
        "the update starts from rows without the decay of the steps that they missed",
        "multiply a row by the forward kernel's factor before its step",
    ),
    mistake(
        "global_decay_counts_this_step",
        UPDATES,
        "rows that rest decay once too often: by t - prev_iter steps",
        "the update itself decays too: take t - prev_iter - 1 steps before it",
    ),
    mistake(
        "global_decay_of_new_rows",
        UPDATES,
        "rows that were never updated (prev_iter 0) decay as if they had been at step 0",
        "take 1 as the factor of rows with prev_iter 0",
    ),
    mistake(
        "ensemble_coefficient_swapped",
        ("trajectory",),
        "the shadow keeps 1 - step_ema_coef of itself instead of step_ema_coef",
        "sparse_ema = step_ema_coef*sparse_ema + (1 - step_ema_coef)*w",
    ),
    mistake(
        "ensemble_swap_exchanges",
        ("trajectory",),
        "a swap exchanges weights and shadow",
        "copy the shadow to the weights; it keeps its numbers",
    ),
    mistake(
        "ensemble_touched_rows_only",
        ("trajectory",),
        "only the rows that a step looks up are averaged and swapped",
        "average and swap whole tables",
    ),
    quirk(
        "ftrl_eps_inside_root",
        UPDATES,
        "FTRL adds 2^-23 to n inside its square roots (HugeCTR)",
    ),
    quirk(
        "ftrl_l2_doubled",
        UPDATES,
        "FTRL's lambda2 counts twice (TensorFlow, Keras)",
    ),
)

ALL = (
    *_BOUNDARIES,
    *_LAYOUT,
    *_POOLING,
    *_GRADIENT,
    *_RULES,
    *LOOPS,
    *CODES,
    *STEPS,
    *STATES,
    *_QUIRKS,
    *_STATES,
)
