"""Which mistakes do optimizer steps make? Their texts."""

from neocpu.oracle.switches.switch import UPDATES, mistake
from neocpu.oracle.truth.bends import PADDED

STEPS = (
    mistake(
        "rate_twice",
        UPDATES,
        "the step is multiplied by the learning rate twice",
        "multiply once: in the host code or in the kernel",
    ),
    mistake(
        "rate_missing",
        UPDATES,
        "the learning rate is 1, whatever it should be",
        "multiply the step by the learning rate",
    ),
    mistake(
        "hyper_in_fp16",
        UPDATES,
        "hyper-parameters are rounded to fp16",
        "pass learning rate, eps, betas and decay as fp32",
    ),
    mistake(
        "decay_sign_flipped",
        UPDATES,
        "weight decay makes weights grow: it has the wrong sign",
        "l2 adds wd*w to the gradient; decoupled multiplies w by 1 - lr*wd",
    ),
    mistake(
        "decay_without_rate",
        UPDATES,
        "decoupled weight decay multiplies by 1 - wd, without the learning rate",
        "decoupled decay multiplies w by 1 - lr*wd",
    ),
    mistake(
        "decay_not_in_state",
        UPDATES,
        "L2 decay is in the step, but not in the squares that the state adds",
        "add wd*w to the gradient before anything else",
    ),
    mistake(
        "eps_as_floor",
        UPDATES,
        "the divisor is the larger of root and eps instead of their sum",
        "use sqrt(state) + eps",
    ),
    mistake(
        "nesterov",
        UPDATES,
        "momentum takes Nesterov's step g + momentum*m",
        "the step is lr*m",
    ),
    mistake(
        "ratio_missing",
        UPDATES,
        "LAMB's or LARS' ratio of norms is not applied",
        "multiply the step by the ratio of norms of its row",
    ),
    mistake(
        "ratio_inverted",
        UPDATES,
        "LAMB's or LARS' ratio of norms is upside down",
        "the ratio has the norm of the weights above",
    ),
    mistake(
        "norm_over_table",
        UPDATES,
        "norms (of LAMB, LARS, CowClip, max_norm) are those of the whole table, not of the row",
        "reduce the squares of each row by itself",
    ),
    mistake(
        "max_norm_before_step",
        UPDATES,
        "max_norm scales a row before its update instead of after it",
        "update the row, then scale it down to max_norm",
    ),
    mistake(
        "cowclip_ignored",
        UPDATES,
        "CowClip's factor is not applied to the gradient",
        "multiply the gradient by min(1, limit / norm)",
    ),
    mistake(
        "shrinkage_ignored",
        UPDATES,
        "row-wise RMSProp does not shrink weights by the steps since their last update",
        "multiply w by max(min_shrinkage, 1 - lr*ar_alpha*elapsed)",
    ),
)

STATES = (
    *(
        mistake(
            f"mean_over_padded_{multiple}",
            UPDATES,
            f"the mean square of a row divides by D rounded up to a multiple of {multiple}",
            "divide the sum of squares by D, not by the columns that a block covers",
        )
        for multiple in PADDED
    ),
    mistake(
        "states_ignored",
        ("backward",),
        "the states that came in are taken as 0",
        "read the state of a row before it is updated",
    ),
    mistake(
        "states_not_stored",
        UPDATES,
        "new states are used, but not stored",
        "write states back beside the weights",
    ),
    mistake(
        "step_always_1",
        UPDATES,
        "the rule works as if every step were the first",
        "count steps, and pass the number to the kernel",
    ),
    mistake(
        "betas_swapped",
        UPDATES,
        "beta1 and beta2 are taken for each other",
        "beta1 belongs to the first moment, beta2 to the second",
    ),
    mistake(
        "moment_not_weighted",
        UPDATES,
        "the first moment adds g instead of (1 - beta1)*g",
        "m = beta1*m + (1 - beta1)*g",
    ),
    mistake(
        "first_correction_missing",
        UPDATES,
        "only the second moment is corrected for its start at 0",
        "divide m by 1 - beta1^t, too",
    ),
    mistake(
        "second_correction_missing",
        UPDATES,
        "only the first moment is corrected for its start at 0",
        "divide v by 1 - beta2^t, too",
    ),
)
