"""Bugs in the optimizers' formulas, term by term."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.pooling import bf16, flushed, fp16
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import STEPS, bend
from benchmarks.oracle_mutants.rules import Update

# Roots and eps.

bend(
    "eps_inside_root",
    STEPS,
    "eps_inside_root",
    root=lambda k, u, x: k.sqrt((x + u.eps).astype(F32)),
)
bend(
    "eps_squared_inside_root",
    STEPS,
    root=lambda k, u, x: k.sqrt((x + u.eps * u.eps).astype(F32)),
)
bend("eps_missing", STEPS, "eps_missing", root=lambda k, u, x: k.sqrt(x))
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
    "eps_as_maximum root_at_least_eps max_of_root_and_eps eps_is_floor",
    root=lambda k, u, x: np.maximum(k.sqrt(x), u.eps),
)
bend("root_missing", STEPS, "root_missing", root=lambda k, u, x: (x + u.eps).astype(F32))
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


bend("squares_before_merge", STEPS, "squares_before_merge", square_of=merged_squares)
bend("magnitudes_not_squares", STEPS, square_of=lambda k, u, g: np.abs(g))
bend("squares_fp16", STEPS, square_of=lambda k, u, g: fp16(g * g))
bend("squares_of_step", STEPS, square_of=lambda k, u, g: ((u.lr * g) ** 2).astype(F32))
bend(
    "square_sum_not_mean",
    STEPS,
    "square_sum_not_mean",
    mean_columns=lambda k, u: F32(1),
)
bend(
    "mean_over_columns_padded_to_4",
    STEPS,
    "mean_over_padded_columns mean_over_padded_d",
    mean_columns=lambda k, u: F32(-(-u.columns // 4) * 4),
)
bend(
    "mean_over_columns_padded_to_32",
    STEPS,
    "mean_over_padded_columns mean_over_padded_d",
    mean_columns=lambda k, u: F32(-(-u.columns // 32) * 32),
)
bend(
    "mean_over_columns_padded_to_128",
    STEPS,
    "mean_over_padded_columns mean_over_padded_d",
    mean_columns=lambda k, u: F32(-(-u.columns // 128) * 128),
)
bend(
    "mean_over_columns_padded_to_power",
    STEPS,
    "mean_over_padded_columns mean_over_padded_d",
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
bend("adagrad_state_replaced", STEPS, adagrad_state=lambda k, u, s, square: square)
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
bend("adagrad_without_rate", STEPS, rated=lambda k, u: u.g)
bend("rowwise_rate_without_root", STEPS, row_rate=lambda k, u: u.lr + 0 * Kernel.row_rate(k, u))

# Momentum and LARS.

bend(
    "momentum_dampened",
    STEPS,
    "momentum_dampened",
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
bend(
    "nesterov",
    STEPS,
    momentum_step=lambda k, u, m: (u.lr, k.madd(F32(u.options["momentum"]), m, u.g)),
)
bend("momentum_steps_by_gradient", STEPS, momentum_step=lambda k, u, m: (u.lr, u.g))
bend(
    "ratio_unguarded",
    STEPS,
    "ratio_unguarded",
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
bend("lars_norms_swapped", STEPS, lars_ratio=lars(lambda k, u, g, w: Kernel.lars_ratio(k, u, w, g)))
bend("lars_ratio_of_1", STEPS, lars_ratio=lars(lambda k, u, g, w: np.ones_like(g)))
bend(
    "lars_ratio_without_decay",
    STEPS,
    lars_ratio=lars(
        lambda k, u, g, w: np.where(g * w == 0, 1, u.options["eta"] * w / np.where(g == 0, 1, g))
    ),
)

# Adam and LAMB.


def moment(change):
    """Another moving average: change(k, beta, old, new)."""
    return lambda k, u, name, old, new: np.asarray(change(k, F32(u.options[name]), old, new), F32)


bend("moments_weighted_backwards", STEPS, moment=moment(lambda k, b, o, n: (1 - b) * o + b * n))
bend("moments_without_1_minus_beta", STEPS, moment=moment(lambda k, b, o, n: b * o + n))
bend("moments_forget", STEPS, moment=moment(lambda k, b, o, n: (1 - b) * n))
bend("moments_fp16", STEPS, moment=moment(lambda k, b, o, n: fp16(b * o + (1 - b) * n)))
bend(
    "betas_swapped",
    STEPS,
    moment=lambda k, u, name, old, new: Kernel.moment(
        k, u, {"beta1": "beta2", "beta2": "beta1"}[name], old, new
    ),
)
bend(
    "second_moment_of_first",
    STEPS,
    moment=lambda k, u, name, old, new: Kernel.moment(
        k, u, name, old, np.abs(u.g) if name == "beta2" and new.ndim == 2 else new
    ),
)


def corrections(change):
    """Other bias corrections: change(c1, c2, u)."""
    return lambda k, u: change(*Kernel.corrections(k, u), u)


bend(
    "bias_correction_missing",
    STEPS,
    "bias_correction_missing",
    corrections=corrections(lambda c1, c2, u: (F32(1), F32(1))),
)
bend(
    "first_bias_correction_missing",
    STEPS,
    "",
    corrections=corrections(lambda c1, c2, u: (F32(1), c2)),
)
bend(
    "second_bias_correction_missing",
    STEPS,
    "",
    corrections=corrections(lambda c1, c2, u: (c1, F32(1))),
)
bend("bias_corrections_swapped", STEPS, corrections=corrections(lambda c1, c2, u: (c2, c1)))
bend(
    "bias_corrections_multiplied",
    STEPS,
    corrections=corrections(lambda c1, c2, u: (F32(1) / c1, F32(1) / c2)),
)
bend(
    "second_bias_correction_under_no_root",
    STEPS,
    adam_root=lambda k, u, v, c2: k.madd(k.sqrt(v), c2, u.eps),
)
bend(
    "eps_before_bias_correction",
    STEPS,
    "sparse_adam_eps",
    adam_root=lambda k, u, v, c2: (k.root(u, v) * k.sqrt(np.array(c2))).astype(F32),
)
bend(
    "adam_root_missing",
    STEPS,
    "root_missing",
    adam_root=lambda k, u, v, c2: (v * c2 + u.eps).astype(F32),
)


def old_moments(k: Kernel, u: Update, square: Array) -> tuple[Array, Array]:
    """The step is taken from the moments before."""
    old = (u.states["exp_avg"], u.states["exp_avg_sq"])
    Kernel.moments(k, u, square)
    return old


def greatest_second(k: Kernel, u: Update, square: Array) -> tuple[Array, Array]:
    """The second moment never falls (AMSGrad)."""
    old = u.states["exp_avg_sq"]
    m, v = Kernel.moments(k, u, square)
    u.states["exp_avg_sq"] = np.maximum(v, old)
    return m, np.maximum(v, old)


def gradient_for_first(k: Kernel, u: Update, square: Array) -> tuple[Array, Array]:
    """The gradient itself in place of the first moment."""
    _, v = Kernel.moments(k, u, square)
    return u.g, v


bend("adam_steps_from_old_moments", STEPS, "update_before_state", moments=old_moments)
bend("adam_second_moment_never_falls", STEPS, moments=greatest_second)
bend("adam_steps_by_gradient", STEPS, moments=gradient_for_first)
bend(
    "moments_corrected_in_place",
    STEPS,
    kept_first=lambda k, u, m: (m * k.corrections(u)[0]).astype(F32),
    kept_second=lambda k, u, v: (v * k.corrections(u)[1]).astype(F32),
)
bend(
    "moments_flushed",
    STEPS,
    "subnormals_flushed subnormals_flushed_in_backward",
    kept_first=lambda k, u, m: flushed(m),
    kept_second=lambda k, u, v: flushed(v),
)


def lamb(change):
    """Another ratio of norms for LAMB."""
    return lambda k, u, weight, direction: np.asarray(change(k, u, weight, direction), F32)


bend("lamb_ratio_of_1", STEPS, lamb_ratio=lamb(lambda k, u, w, d: np.ones_like(w)))
bend(
    "lamb_ratio_inverted", STEPS, lamb_ratio=lamb(lambda k, u, w, d: Kernel.lamb_ratio(k, u, d, w))
)
bend(
    "lamb_ratio_at_most_1",
    STEPS,
    lamb_ratio=lamb(lambda k, u, w, d: np.minimum(Kernel.lamb_ratio(k, u, w, d), 1)),
)
bend(
    "lamb_ratio_to_gradient",
    STEPS,
    lamb_ratio=lamb(lambda k, u, w, d: Kernel.lamb_ratio(k, u, w, k.norm(u.g))),
)
bend("lamb_decay_ignored", STEPS, "weight_decay_ignored", lamb_decay=lambda k, u, d: d)
bend(
    "lamb_decay_with_rate",
    STEPS,
    lamb_decay=lambda k, u, d: k.madd(u.lr * F32(u.decay), u.w, d) if u.mode == "decoupled" else d,
)

# Counters, CowClip, RMSProp.

bend("age_from_0", STEPS, age=lambda k, u: (F32(u.t) - u.states["prev_iter"]).astype(F32))
bend("age_of_1", STEPS, age=lambda k, u: np.ones_like(u.states["prev_iter"]))
bend("age_one_too_great", STEPS, age=lambda k, u: Kernel.age(k, u) + F32(1))
bend("date_one_early", STEPS, dated=lambda k, u: Kernel.dated(k, u) - F32(1))
bend("count_one_too_great", STEPS, counted=lambda k, u, n: n + F32(1))
bend("tail_at_threshold_too", STEPS, is_frequent=lambda k, u, n: n >= F32(k.tail(u)))
bend("tail_and_head_swapped", STEPS, is_frequent=lambda k, u, n: n <= F32(k.tail(u)))
bend("tail_threshold_ignored", STEPS, is_frequent=lambda k, u, n: n >= F32(0))
bend(
    "counter_modes_ignored",
    STEPS,
    adjusted=lambda k, u, m, n, root, age: (m, np.ones_like(m)),
)
bend(
    "counter_decay_of_all_rows",
    STEPS,
    decay_share=lambda k, u, n: np.ones_like(n),
)
bend(
    "counter_decay_grows",
    STEPS,
    "counter_decay_grows",
    decay_share=lambda k, u, n: k.over(F32(u.options["counter_halflife"]), n),
)
bend(
    "counter_decay_ignored",
    STEPS,
    "weight_decay_ignored",
    counter_decay=lambda k, u, a, keep, m, f: keep,
)


def fading(base: float):
    """Counters fade by another base."""

    def count(k: Kernel, u: Update) -> Array:
        if u.options["counter_halflife"] <= 0:
            return Kernel.count(k, u)
        age = k.age(u)
        n = u.states["row_counter"]
        fade = base ** (-age / F32(u.options["counter_halflife"]))
        u.states["row_counter"] = (n * fade + 1).astype(F32)
        u.states["prev_iter"] = k.dated(u)
        return u.states["row_counter"]

    return count


bend("counter_fades_by_e", STEPS, count=fading(float(np.e)))
bend("counter_does_not_fade", STEPS, count=fading(1.0))


def cowclip(change):
    """Another clip of CowClip's."""
    return lambda k, u, n, weight, gradient: np.asarray(change(k, u, n, weight, gradient), F32)


bend("cowclip_missing", STEPS, cowclip=cowclip(lambda k, u, n, w, g: np.ones_like(w)))
bend(
    "cowclip_without_count",
    STEPS,
    cowclip=cowclip(lambda k, u, n, w, g: Kernel.cowclip(k, u, np.ones_like(n), w, g)),
)
bend(
    "cowclip_least_ignored",
    STEPS,
    cowclip=cowclip(
        lambda k, u, n, w, g: np.minimum(
            n * F32(u.options["weight_norm_coefficient"]) * w / np.where(g == 0, 1, g), 1
        )
    ),
)
bend(
    "cowclip_scales_up_too",
    STEPS,
    cowclip=cowclip(
        lambda k, u, n, w, g: np.where(
            g == 0,
            1,
            n
            * np.maximum(
                F32(u.options["weight_norm_coefficient"]) * w, F32(u.options["lower_bound"])
            )
            / np.where(g == 0, 1, g),
        )
    ),
)
bend(
    "cowclip_decay_ignored",
    STEPS,
    "weight_decay_ignored",
    rule_rowwise_adagrad_with_cowclip=lambda k, u: cowclip_undecayed(k, u),
)


def cowclip_undecayed(k: Kernel, u: Update) -> None:
    """CowClip without weight decay."""
    u.g = u.raw
    u.mode = "none"
    Kernel.rule_rowwise_adagrad_with_cowclip(k, u)


bend("shrinkage_ignored", STEPS, shrinkage=lambda k, u, age: np.ones_like(age))
bend(
    "least_shrinkage_ignored",
    STEPS,
    shrinkage=lambda k, u, age: np.maximum(
        1 - u.lr * F32(u.options["ar_alpha"]) * age, F32(0)
    ).astype(F32),
)
bend(
    "shrinkage_without_age",
    STEPS,
    shrinkage=lambda k, u, age: Kernel.shrinkage(k, u, np.ones_like(age)),
)
bend(
    "shrinkage_without_rate",
    STEPS,
    shrinkage=lambda k, u, age: np.maximum(
        1 - np.minimum(F32(u.options["ar_alpha"]) * age, 1), F32(u.options["min_shrinkage"])
    ).astype(F32),
)
