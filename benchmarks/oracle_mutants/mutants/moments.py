"""Bugs in Adam, LAMB and the rules that count, term by term."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.numbers import flushed, fp16
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import STEPS, bend, named_mistake
from benchmarks.oracle_mutants.terms import Update

# Adam and LAMB.


def moment(change):
    """Another moving average: change(k, beta, old, new)."""
    return lambda k, u, name, old, new: np.asarray(change(k, F32(u.options[name]), old, new), F32)


bend("moments_weighted_backwards", STEPS, moment=moment(lambda k, b, o, n: (1 - b) * o + b * n))
bend(
    "moments_without_1_minus_beta",
    STEPS,
    "moment_not_weighted",
    moment=moment(lambda k, b, o, n: b * o + n),
)
bend("moments_forget", STEPS, moment=moment(lambda k, b, o, n: (1 - b) * n))
bend("moments_fp16", STEPS, moment=moment(lambda k, b, o, n: fp16(b * o + (1 - b) * n)))
named_mistake(
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


named_mistake(
    "bias_correction_missing", STEPS, corrections=corrections(lambda c1, c2, u: (F32(1), F32(1)))
)
bend(
    "first_bias_correction_missing",
    STEPS,
    "first_correction_missing",
    corrections=corrections(lambda c1, c2, u: (F32(1), c2)),
)
bend(
    "second_bias_correction_missing",
    STEPS,
    "second_correction_missing",
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
    "subnormals_flushed",
    kept_first=lambda k, u, m: flushed(m),
    kept_second=lambda k, u, v: flushed(v),
)


def lamb(change):
    """Another ratio of norms for LAMB."""
    return lambda k, u, weight, direction: np.asarray(change(k, u, weight, direction), F32)


bend("lamb_ratio_of_1", STEPS, "ratio_missing", lamb_ratio=lamb(lambda k, u, w, d: np.ones_like(w)))
bend(
    "lamb_ratio_inverted",
    STEPS,
    "ratio_inverted",
    lamb_ratio=lamb(lambda k, u, w, d: Kernel.lamb_ratio(k, u, d, w)),
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
    adjusted=lambda k, u, m, n: m,
)
bend(
    "counter_decay_of_all_rows",
    STEPS,
    decay_share=lambda k, u, n: np.ones_like(n),
)
named_mistake(
    "counter_decay_grows",
    STEPS,
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


bend(
    "cowclip_missing",
    STEPS,
    "cowclip_ignored",
    cowclip=cowclip(lambda k, u, n, w, g: np.ones_like(w)),
)
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


def cowclip_undecayed(k: Kernel, u: Update) -> None:
    """CowClip without weight decay."""
    u.g = u.raw
    u.mode = "none"
    Kernel.rule_rowwise_adagrad_with_cowclip(k, u)


bend(
    "cowclip_decay_ignored",
    STEPS,
    "weight_decay_ignored",
    rule_rowwise_adagrad_with_cowclip=cowclip_undecayed,
)
named_mistake("shrinkage_ignored", STEPS, shrinkage=lambda k, u, age: np.ones_like(age))
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
