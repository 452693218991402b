"""Which optimizers exist, what do they remember, and what must they be told? One record each.

The formula of a rule is a function of its name in `kernels/rows/rules.py` and its twin; its keys,
states and needs are here, without Numba, for the config, checkpoints, the planner and `--help`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from neocpu.core.types import Elements


class HyperParameters(NamedTuple):
    """What a rule reads at one step t, computed in fp64 and rounded to fp32 once; a flag is 0 or 1.

    lr : learning rate after its schedule.
    correction1, correction2 : 1 / (1 - beta^t).
    l2, decay : weight decay of mode l2, and of mode decoupled, 0 in the others.
    keep : 1 - lr * weight decay of the modes decoupled and adagradw, else 1.
    step : t.
    shrinkage : lr * ar_alpha.
    counter_frequency : |counter_halflife|.
    adjusting : t is beyond adjustment_iter, by adjusted_steps.
    learning_rate_mode : FBGEMM's number of it.
    adagradw : the weight decay is of this mode.

    The others are options of `tables.specs.optimizers.SparseOptimizer`.
    """

    lr: np.float32
    eps: np.float32
    beta1: np.float32
    one_minus_beta1: np.float32
    beta2: np.float32
    one_minus_beta2: np.float32
    correction1: np.float32
    correction2: np.float32
    l2: np.float32
    keep: np.float32
    decay: np.float32
    momentum: np.float32
    eta: np.float32
    max_norm: np.float32
    step: np.float32
    shrinkage: np.float32
    min_shrinkage: np.float32
    counter_halflife: np.float32
    counter_frequency: np.float32
    adjusting: np.float32
    adjusted_steps: np.float32
    learning_rate_mode: np.float32
    adagradw: np.float32
    max_counter: np.float32
    tail_id_threshold: np.float32
    adjustment_ub: np.float32
    weight_norm_coefficient: np.float32
    lower_bound: np.float32
    beta: np.float32
    lambda1: np.float32
    lambda2: np.float32


HYPER = HyperParameters._fields
# a NamedTuple whose fields are the states of a rule
StateRecord: TypeAlias = Callable[..., tuple[Elements, ...]]


@cache
def state_record(names: tuple[str, ...]) -> StateRecord:
    """The NamedTuple with these states as its fields: arrays of a table's states, or views of one
    row's.
    """
    name = "states_of_" + "__".join(names)
    record: Any = NamedTuple(name, [(state, object) for state in names])  # type: ignore[misc]
    record.__module__ = __name__
    globals()[name] = record  # cached kernels name the class of an argument so
    return record


@dataclass(frozen=True, eq=False)  # one object each: kernels are looked up by it
class Rule:
    """One optimizer: what it remembers, and what it must be told.

    element_state, row_state : names of its state tensors per element and per row, all fp32, from
        the rule's function to the checkpoint.
    row_scalars : 1: its update reads the row's sum of g*g, 2: and that of w*w.
    counts : it also reads the number of lookups of the row in the batch, those of all keys that
        share the table, pruned ones left out.
    direct : it has a phase before that turns g into the step's direction and reads the sum of g*g
        too.
    accumulator : the state that starts at `initial_accumulator_value`.
    options : keys of its own, of `tables.specs.optimizers.SparseOptimizer`.
    updates : it has an update; `none` leaves gradients to the caller.
    source : what it is after, for the table in docs/design.md §4.
    formula : its step in words of the page, without weight decay (`DECAYS`).
    """

    name: str
    element_state: tuple[str, ...] = ()
    row_state: tuple[str, ...] = ()
    row_scalars: int = 0
    counts: bool = False
    direct: bool = False
    accumulator: str | None = None
    options: tuple[str, ...] = ()
    updates: bool = True
    source: str = ""
    formula: str = ""

    @cached_property
    def element_record(self) -> StateRecord:
        """Record class of its element states."""
        return state_record(self.element_state)

    @cached_property
    def row_record(self) -> StateRecord:
        """Record class of its row states."""
        return state_record(self.row_state)


MOMENTS = ("exp_avg", "exp_avg_sq")
COUNTED = ("sum", "prev_iter", "row_counter")
TAIL_OPTIONS = (
    "learning_rate_mode",
    "max_counter",
    "tail_id_threshold",
    "tail_id_threshold_is_ratio",
)
# What weight decay of a mode does to a rule, for `neocpu oracle explain`.
DECAYS = {
    "l2": "g += weight_decay * w, before anything else",
    "decoupled": "w is taken times 1 - lr * weight_decay before the step is subtracted; LAMB adds "
    "weight_decay * w to its step instead",
}
RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "exact_sgd",
            source="FBGEMM",
            formula="w -= lr * g",
        ),
        Rule(
            "momentum_sgd",
            ("momentum_buffer",),
            options=("momentum",),
            source="torch's SGD, no dampening",
            formula="m = momentum * m + g; w -= lr * m",
        ),
        Rule(
            "lars_sgd",
            ("momentum_buffer",),
            row_scalars=2,
            options=("momentum", "eta"),
            source="FBGEMM, You et al. 2017; ratio 1 where a norm is 0",
            formula="trust = eta * ||w|| / (||g|| + wd * ||w||), 1 where a norm is 0; m = "
            "momentum * m + lr * trust * (g + wd * w); w -= m",
        ),
        Rule(
            "exact_adagrad",
            ("sum",),
            accumulator="sum",
            source="FBGEMM",
            formula="sum += g^2; w -= lr * g / (sqrt(sum) + eps)",
        ),
        Rule(
            "ftrl",
            ("accumulator", "linear"),
            accumulator="accumulator",
            options=("beta", "lambda1", "lambda2"),
            source="McMahan et al. 2013; HugeCTR, Keras. `beta` stands where other rules have "
            "`eps`. z starts at 0, so a row's initial values soon fade",
            formula="n += g^2; z += g - (sqrt(n) - sqrt(old n)) / lr * w; w = 0 where |z| "
            "<= lambda1, else (sign(z) * lambda1 - z) / ((beta + sqrt(n)) / lr + "
            "lambda2)",
        ),
        Rule(
            "exact_rowwise_adagrad",
            (),
            ("sum",),
            row_scalars=1,
            accumulator="sum",
            source="FBGEMM, Neo",
            formula="sum += mean(g^2); w -= lr / (sqrt(sum) + eps) * g",
        ),
        Rule(
            "exact_rowwise_adagrad_with_counter",
            (),
            COUNTED,
            row_scalars=1,
            accumulator="sum",
            options=("counter_halflife", "adjustment_iter", "adjustment_ub", *TAIL_OPTIONS),
            source="FBGEMM's weight decay mode COUNTER; also `weight_decay_mode` adagradw",
            formula="sum += mean(g^2); w = keep * w - rate / (sqrt(sum) + eps) * g; rate "
            "and keep by the counters of the row (docs/arithmetic.md §5)",
        ),
        Rule(
            "exact_rowwise_adagrad_with_cowclip",
            (),
            COUNTED,
            row_scalars=2,
            accumulator="sum",
            options=("counter_halflife", "weight_norm_coefficient", "lower_bound"),
            source="FBGEMM's COWCLIP, Zheng et al. 2022",
            formula="sum += mean(g^2); clip = min(1, count * max(weight_norm_coefficient "
            "* ||w||, lower_bound) / ||g||); w -= lr * clip * g / (sqrt(sum) + "
            "eps)",
        ),
        Rule(
            "adam",
            MOMENTS,
            source="FBGEMM, Kingma & Ba 2015; decoupled decay as in AdamW",
            formula="m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2; "
            "w -= lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)",
        ),
        Rule(
            "adam_with_cowclip",
            MOMENTS,
            row_scalars=2,
            counts=True,
            options=("weight_norm_coefficient", "lower_bound"),
            source="CowClip, Zheng et al. 2022: `adam` of clipped row gradients",
            formula="adam of g * min(1, lookups * max(weight_norm_coefficient * ||w||, "
            "lower_bound) / ||g||)",
        ),
        Rule(
            "partial_rowwise_adam",
            MOMENTS[:1],
            MOMENTS[1:],
            row_scalars=1,
            source="FBGEMM",
            formula="adam with v = beta2 * v + (1 - beta2) * mean(g^2), one number per row",
        ),
        Rule(
            "lamb",
            MOMENTS,
            row_scalars=2,
            source="FBGEMM, You et al. 2020, per row; ratio 1 where a norm is 0",
            formula="step = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) with the "
            "moments of adam; w -= lr * ||w|| / ||step|| * step, the ratio 1 "
            "where a norm is 0",
        ),
        Rule(
            "partial_rowwise_lamb",
            MOMENTS[:1],
            MOMENTS[1:],
            row_scalars=2,
            direct=True,
            source="FBGEMM",
            formula="lamb with v = beta2 * v + (1 - beta2) * mean(g^2), one number per row",
        ),
        Rule(
            "rowwise_rmsprop",
            (),
            ("square_avg", "prev_iter"),
            row_scalars=1,
            options=("ar_alpha", "min_shrinkage"),
            source="FBGEMM's ROWWISE_RMSPROP_AR; `beta2` is its decay",
            formula="v = beta2 * v + (1 - beta2) * mean(g^2); w = max(min_shrinkage, 1 - "
            "lr * ar_alpha * elapsed) * w - lr / (sqrt(v) + eps) * g",
        ),
        Rule("none", updates=False),
    )
}
