"""Bugs in roots, squares, norms, AdaGrad, momentum and LARS, term by term."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.numbers import bf16, fp16
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import STEPS, bend, named_mistake
from benchmarks.oracle_mutants.terms import Update

# Roots and eps.

named_mistake("eps_inside_root", STEPS, root=lambda k, u, x: k.sqrt((x + u.eps).astype(F32)))
named_mistake(
    "eps_squared_inside_root", STEPS, root=lambda k, u, x: k.sqrt((x + u.eps * u.eps).astype(F32))
)
named_mistake("eps_missing", STEPS, root=lambda k, u, x: k.sqrt(x))
bend("eps_times_10", STEPS, root=lambda k, u, x: k.sqrt(x) + u.eps * 10)
bend(
    "eps_1e10",
    STEPS,
    "adagrad_eps_1e10",
    root_for_step=lambda k, u, old, new: (k.sqrt(new) + F32(1e-10)).astype(F32),
)
bend(
    "eps_as_least_root",
    STEPS,
    "eps_as_floor",
    root=lambda k, u, x: np.maximum(k.sqrt(x), u.eps),
)
named_mistake("root_missing", STEPS, root=lambda k, u, x: (x + u.eps).astype(F32))
bend("root_of_root", STEPS, root=lambda k, u, x: k.sqrt(k.sqrt(x)) + u.eps)
bend(
    "root_of_10_bits",
    STEPS,
    sqrt=lambda k, x: fp16(np.sqrt(x)) if len(x) and np.isfinite(x).all() else np.sqrt(x),
)
bend("quotient_bf16", STEPS, over=lambda k, a, b: bf16(np.asarray(a, F32) / np.asarray(b, F32)))

# Squares and means of squares.


def merged_squares(k: Kernel, u: Update, g: Array) -> Array:
    """The sum of the squares of single gradients."""
    return u.squares.astype(F32)


def mean_square(change):
    """Another scalar of a row: change(k, u, squares) -> fp32[U]."""
    return lambda k, u, g: np.asarray(change(k, u, k.square_of(u, g)), F32)


def norm_of_table(k: Kernel, x: Array) -> Array:
    """One norm for all rows of the step."""
    return np.full(len(x), np.sqrt((x * x).sum(dtype=F32)), F32)


def power_of_two(columns: int) -> int:
    """The next power of two."""
    return 1 << max(columns - 1, 0).bit_length()


named_mistake("squares_before_merge", STEPS, square_of=merged_squares)
bend("magnitudes_not_squares", STEPS, square_of=lambda k, u, g: np.abs(g))
bend("squares_fp16", STEPS, square_of=lambda k, u, g: fp16(g * g))
bend("squares_of_step", STEPS, square_of=lambda k, u, g: ((u.lr * g) ** 2).astype(F32))
named_mistake("square_sum_not_mean", STEPS, mean_columns=lambda k, u: F32(1))
bend(
    "mean_over_columns_padded_to_4",
    STEPS,
    "mean_over_padded_4",
    mean_columns=lambda k, u: F32(-(-u.columns // 4) * 4),
)
bend(
    "mean_over_columns_padded_to_32",
    STEPS,
    "mean_over_padded_32",
    mean_columns=lambda k, u: F32(-(-u.columns // 32) * 32),
)
bend(
    "mean_over_columns_padded_to_128",
    STEPS,
    "mean_over_padded_128",
    mean_columns=lambda k, u: F32(-(-u.columns // 128) * 128),
)
bend(
    "mean_over_columns_padded_to_power",
    STEPS,
    mean_columns=lambda k, u: F32(power_of_two(u.columns)),
)
bend("mean_over_root_of_columns", STEPS, mean_columns=lambda k, u: F32(np.sqrt(u.columns)))
bend(
    "mean_of_first_32_columns",
    STEPS,
    mean_square=mean_square(lambda k, u, q: q[:, :32].mean(axis=1)),
)
bend(
    "mean_of_whole_vectors",
    STEPS,
    mean_square=mean_square(lambda k, u, q: q[:, : q.shape[1] // 8 * 8].sum(1) / F32(q.shape[1])),
)
bend(
    "greatest_square_not_mean",
    STEPS,
    mean_square=mean_square(lambda k, u, q: q.max(axis=1, initial=0)),
)
bend(
    "square_of_mean",
    STEPS,
    mean_square=lambda k, u, g: (g.mean(axis=1, dtype=F32) ** 2).astype(F32),
)
bend(
    "mean_over_rows_too",
    STEPS,
    mean_square=mean_square(lambda k, u, q: np.full(len(q), q.mean() if q.size else 0)),
)
bend("column_sum_in_fp16", STEPS, column_sum=lambda k, x: fp16(x).sum(axis=1, dtype=np.float16))
bend(
    "last_column_not_in_sums",
    STEPS,
    column_sum=lambda k, x: Kernel.column_sum(k, x[:, :-1]),
)
bend("norm_of_table", STEPS, "norm_over_table", norm=norm_of_table)
bend("norm_without_root", STEPS, norm=lambda k, x: k.column_sum((x * x).astype(F32)))
bend(
    "norm_root_mean_square",
    STEPS,
    norm=lambda k, x: k.sqrt(k.column_sum((x * x).astype(F32)) / F32(max(x.shape[1], 1))),
)
bend("norm_of_magnitudes", STEPS, norm=lambda k, x: k.column_sum(np.abs(x)))
bend(
    "norm_of_first_32_columns",
    STEPS,
    norm=lambda k, x: k.sqrt(k.column_sum((x * x)[:, :32].astype(F32))),
)

# AdaGrad.

bend(
    "adagrad_root_before_update",
    STEPS,
    "update_before_state",
    root_for_step=lambda k, u, old, new: k.root(u, old),
)
bend(
    "adagrad_state_replaced", STEPS, "states_ignored", adagrad_state=lambda k, u, s, square: square
)
bend(
    "adagrad_state_averaged",
    STEPS,
    adagrad_state=lambda k, u, s, square: ((s + square) / 2).astype(F32),
)
bend(
    "adagrad_state_maximum",
    STEPS,
    adagrad_state=lambda k, u, s, square: np.maximum(s, square),
)
bend(
    "adagrad_state_twice", STEPS, adagrad_state=lambda k, u, s, square: (s + 2 * square).astype(F32)
)
bend("adagrad_state_bf16", STEPS, adagrad_state=lambda k, u, s, square: bf16(s + square))
bend("adagrad_gradient_squared", STEPS, rated=lambda k, u: (u.lr * u.g * u.g).astype(F32))
bend("adagrad_without_rate", STEPS, "rate_missing", rated=lambda k, u: u.g)
bend("rowwise_rate_without_root", STEPS, row_rate=lambda k, u: u.lr + 0 * Kernel.row_rate(k, u))

# Momentum and LARS.

named_mistake(
    "momentum_dampened",
    STEPS,
    momentum=lambda k, u, m, g: k.madd(
        F32(u.options["momentum"]), m, (F32(1 - u.options["momentum"]) * g).astype(F32)
    ),
)
bend("momentum_ignored", STEPS, momentum=lambda k, u, m, g: g)
bend("momentum_of_1", STEPS, momentum=lambda k, u, m, g: (m + g).astype(F32))
bend("momentum_on_gradient", STEPS, momentum=lambda k, u, m, g: k.madd(u.options["momentum"], g, m))
bend(
    "momentum_subtracts_gradient",
    STEPS,
    momentum=lambda k, u, m, g: k.madd(F32(u.options["momentum"]), m, -g),
)
named_mistake(
    "nesterov",
    STEPS,
    momentum_step=lambda k, u, m: (u.lr, k.madd(F32(u.options["momentum"]), m, u.g)),
)
bend("momentum_steps_by_gradient", STEPS, momentum_step=lambda k, u, m: (u.lr, u.g))
named_mistake(
    "ratio_unguarded",
    STEPS,
    lamb_ratio=lambda k, u, weight, direction: weight / direction,
    lars_ratio=lambda k, u, gradient, weight: (
        F32(u.options["eta"]) * weight / (gradient + F32(u.decay if u.mode == "l2" else 0) * weight)
    ),
)


def lars(change):
    """Another ratio of norms for LARS."""
    return lambda k, u, gradient, weight: np.asarray(change(k, u, gradient, weight), F32)


bend(
    "lars_without_eta",
    STEPS,
    lars_ratio=lars(
        lambda k, u, g, w: Kernel.lars_ratio(k, u, g, w) / np.where(g * w == 0, 1, u.options["eta"])
    ),
)
bend(
    "lars_norms_swapped",
    STEPS,
    "ratio_inverted",
    lars_ratio=lars(lambda k, u, g, w: Kernel.lars_ratio(k, u, w, g)),
)
bend("lars_ratio_of_1", STEPS, "ratio_missing", lars_ratio=lars(lambda k, u, g, w: np.ones_like(g)))
bend(
    "lars_ratio_without_decay",
    STEPS,
    lars_ratio=lars(
        lambda k, u, g, w: np.where(g * w == 0, 1, u.options["eta"] * w / np.where(g == 0, 1, g))
    ),
)

# FTRL.

named_mistake(
    "ftrl_sigma_missing", STEPS, ftrl_linear=lambda k, u, z, sigma, w: (z + u.g).astype(F32)
)
bend(
    "ftrl_sigma_added",
    STEPS,
    ftrl_linear=lambda k, u, z, sigma, w: k.madd(sigma, w, (z + u.g).astype(F32)),
)
bend(
    "ftrl_sigma_of_new_weight",
    STEPS,
    ftrl_linear=lambda k, u, z, sigma, w: (z + u.g - sigma * (w - u.lr * u.g)).astype(F32),
)
named_mistake(
    "ftrl_sign_of_z", STEPS, ftrl_weight=lambda k, u, z, root: -Kernel.ftrl_weight(k, u, z, root)
)
named_mistake(
    "ftrl_threshold_missing",
    STEPS,
    ftrl_weight=lambda k, u, z, root: ftrl_quotient(k, u, z, root, F32(u.options["lambda1"])),
)
bend(
    "ftrl_lambda1_not_taken_off",
    STEPS,
    "ftrl_threshold_hard",
    ftrl_weight=lambda k, u, z, root: np.where(
        np.abs(z) <= u.options["lambda1"], F32(0), ftrl_quotient(k, u, z, root, F32(0))
    ),
)
bend(
    "ftrl_beta_missing",
    STEPS,
    ftrl_weight=lambda k, u, z, root: Kernel.ftrl_weight(k, u, z, root - F32(u.options["beta"])),
)
bend(
    "ftrl_root_before_update",
    STEPS,
    "update_before_state",
    ftrl_weight=lambda k, u, z, root: Kernel.ftrl_weight(
        k, u, z, k.sqrt(np.maximum(root * root - u.g * u.g, 0))
    ),
)


def ftrl_quotient(k: Kernel, u: Update, z: Array, root: Array, least: np.float32) -> Array:
    """FTRL's weight without its threshold."""
    slope = (F32(u.options["beta"]) + root) / u.lr + F32(u.options["lambda2"])
    return k.over(np.copysign(least, z) - z, slope)


# Global decay.

named_mistake(
    "global_decay_not_kept", STEPS, missed_decay=lambda k, options, before: np.ones_like(before)
)
named_mistake(
    "global_decay_counts_this_step",
    STEPS,
    missed_decay=lambda k, options, before: Kernel.missed_decay(k, options, before - F32(1)),
)
bend(
    "global_decay_not_noted",
    STEPS,
    note_step=lambda k, u: None,
)
named_mistake(
    "global_decay_forward_missing", "trajectory", forward_decay=lambda k, tables, options: None
)
