"""Which of our update rules does FBGEMM's constructor ask for? Its keyword arguments, turned into a
`SparseOptimizer`.

`optimizer_args` of a module is an `OptimizerArgs`: FBGEMM's names, FBGEMM's values. It is read
again at every update, so what `update_hyper_parameters` changes holds from the next update on.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.errors import ConfigError
from neocpu.peers.fbgemm.names import (
    CounterBasedRegularizationDefinition,
    CounterWeightDecayMode,
    CowClipDefinition,
    EmbOptimType,
    LearningRateMode,
    WeightDecayMode,
    of,
)

# FBGEMM's optimizer -> our rule. EMAINPLACE adds its averaging in the forward pass.
RULES = {
    EmbOptimType.EXACT_SGD: "exact_sgd",
    EmbOptimType.EXACT_ADAGRAD: "exact_adagrad",
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: "exact_rowwise_adagrad",
    EmbOptimType.EMAINPLACE_ROWWISE_ADAGRAD: "exact_rowwise_adagrad",
    EmbOptimType.ADAM: "adam",
    EmbOptimType.PARTIAL_ROWWISE_ADAM: "partial_rowwise_adam",
    EmbOptimType.LAMB: "lamb",
    EmbOptimType.PARTIAL_ROWWISE_LAMB: "partial_rowwise_lamb",
    EmbOptimType.LARS_SGD: "lars_sgd",
}
# Where FBGEMM's rule has weight decay without a mode: what its formula amounts to.
FIXED_MODES = {"adam": "decoupled", "partial_rowwise_adam": "decoupled", "lamb": "decoupled"}
FIXED_MODES |= {"partial_rowwise_lamb": "decoupled", "lars_sgd": "l2"}
NO_DECAY = ("exact_sgd", "exact_adagrad")  # FBGEMM's formulas have no weight decay
# CounterWeightDecayMode, and the first WeightDecayModes
MODES = {0: "none", 1: "l2", 2: "decoupled", 3: "adagradw"}


class OptimizerArgs(NamedTuple):
    """The hyper-parameters of a module under FBGEMM's names."""

    stochastic_rounding: bool = True
    gradient_clipping: bool = False
    max_gradient: float = 1.0
    max_norm: float = 0.0
    eps: float = 1.0e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    weight_decay_mode: int = 0
    eta: float = 0.001
    momentum: float = 0.9
    counter_halflife: int = -1
    adjustment_iter: int = -1
    adjustment_ub: float = 1.0
    learning_rate_mode: int = -1
    grad_sum_decay: int = -1
    tail_id_threshold: float = 0.0
    is_tail_id_thresh_ratio: int = 0
    total_hash_size: int = 0
    weight_norm_coefficient: float = 0.0
    lower_bound: float = 0.0
    regularization_mode: int = 0
    use_rowwise_bias_correction: bool = False


@dataclass(frozen=True)
class Choice:
    """What a module was asked to optimize with."""

    kind: EmbOptimType
    decay: WeightDecayMode
    args: OptimizerArgs
    max_counter_update_freq: int = -1

    @property
    def rule(self) -> str:
        """The name of our rule."""
        if self.kind is EmbOptimType.EXACT_ROWWISE_ADAGRAD:
            if self.decay is WeightDecayMode.COUNTER:
                return "exact_rowwise_adagrad_with_counter"
            if self.decay is WeightDecayMode.COWCLIP:
                return "exact_rowwise_adagrad_with_cowclip"
        return RULES[self.kind]


def choose(given: Mapping[str, Any], rows: int) -> Choice:
    """Read the optimizer's keyword arguments of FBGEMM's constructor (`rows`: those of all tables).

    Raises ConfigError for what neocpu does not have, in words that name the argument.
    """
    kind = of(EmbOptimType, given["optimizer"])
    decay = of(WeightDecayMode, given["weight_decay_mode"])
    _refuse(given, kind, decay)
    counter = given["counter_based_regularization"]
    cowclip = given["cowclip_regularization"]
    chosen = counter or cowclip
    counter = counter or CounterBasedRegularizationDefinition()
    cowclip = cowclip or CowClipDefinition()
    mode = (
        of(CounterWeightDecayMode, chosen.counter_weight_decay_mode).value
        if chosen
        else decay.value
    )
    names = (
        "stochastic_rounding",
        "gradient_clipping",
        "max_gradient",
        "max_norm",
        "eps",
        "beta1",
        "beta2",
    )
    args = OptimizerArgs(
        **{name: given[name] for name in (*names, "weight_decay", "eta", "momentum")},
        weight_decay_mode=mode,
        counter_halflife=chosen.counter_halflife if chosen else -1,
        adjustment_iter=counter.adjustment_iter,
        adjustment_ub=counter.adjustment_ub,
        learning_rate_mode=of(LearningRateMode, counter.learning_rate_mode).value,
        grad_sum_decay=counter.grad_sum_decay.value,
        tail_id_threshold=counter.tail_id_threshold.val,
        is_tail_id_thresh_ratio=int(counter.tail_id_threshold.is_ratio),
        total_hash_size=rows,
        weight_norm_coefficient=cowclip.weight_norm_coefficient,
        lower_bound=cowclip.lower_bound,
        regularization_mode=decay.value,
    )
    frequency = counter.max_counter_update_freq if decay is WeightDecayMode.COUNTER else -1
    choice = Choice(kind, decay, args, frequency)
    if args.weight_decay and choice.rule in NO_DECAY:
        warnings.warn(
            f"{kind.name} has no weight decay, as in FBGEMM: weight_decay is ignored", stacklevel=4
        )
    return choice


def _refuse(given: Mapping[str, Any], kind: EmbOptimType, decay: WeightDecayMode) -> None:
    if kind not in RULES:
        raise ConfigError(
            f"optimizer {kind.name} is not in neocpu; it has {', '.join(k.name for k in RULES)}"
        )
    if (decay is WeightDecayMode.COUNTER) != (given["counter_based_regularization"] is not None):
        raise ConfigError("weight_decay_mode COUNTER and counter_based_regularization go together")
    if (decay is WeightDecayMode.COWCLIP) != (given["cowclip_regularization"] is not None):
        raise ConfigError("weight_decay_mode COWCLIP and cowclip_regularization go together")
    if decay is WeightDecayMode.DECOUPLE_GLOBAL:
        raise ConfigError(
            "weight_decay_mode DECOUPLE_GLOBAL, which decays rows in the forward pass, is not in "
            "neocpu"
        )
    extra = given["extra_optimizer_config"]
    if extra is not None and extra.use_rowwise_bias_correction:
        raise ConfigError(
            "use_rowwise_bias_correction: neocpu's Adam corrects by the global step only"
        )
    if extra is not None and extra.use_writeback_bwd_prehook and kind is not EmbOptimType.EXACT_SGD:
        raise ConfigError("use_writeback_bwd_prehook is of EXACT_SGD only, as in FBGEMM")
    if given["ensemble_mode"] is not None:
        raise ConfigError("ensemble_mode: ENSEMBLE_ROWWISE_ADAGRAD is not in neocpu")
    if given["optimizer_state_dtypes"]:
        raise ConfigError("optimizer_state_dtypes: optimizer states are fp32 in neocpu")


def optimizer_of(
    choice: Choice, args: OptimizerArgs, learning_rate: float, max_counter: float
) -> SparseOptimizer:
    """Our optimizer with the hyper-parameters that hold now.

    Clipping of gradients is left out: it precedes the division of MEAN, hence the engine does it.
    """
    rule = choice.rule
    mode = FIXED_MODES.get(rule, MODES.get(args.weight_decay_mode, "none"))
    if rule in NO_DECAY or not args.weight_decay:
        mode = "none"
    rates = {m.value: m.name.lower() for m in LearningRateMode}
    return SparseOptimizer(
        name=rule,
        learning_rate=learning_rate,
        eps=args.eps,
        beta1=args.beta1,
        beta2=args.beta2,
        weight_decay=args.weight_decay if mode != "none" else 0.0,
        weight_decay_mode=mode,
        momentum=args.momentum,
        eta=args.eta,
        max_norm=args.max_norm,
        counter_halflife=args.counter_halflife,
        adjustment_iter=args.adjustment_iter,
        adjustment_ub=args.adjustment_ub,
        learning_rate_mode=rates[args.learning_rate_mode],
        max_counter=max_counter,
        tail_id_threshold=args.tail_id_threshold,
        tail_id_threshold_is_ratio=bool(args.is_tail_id_thresh_ratio),
        weight_norm_coefficient=args.weight_norm_coefficient,
        lower_bound=args.lower_bound,
    )


def fp32(value: float) -> float:
    """A number rounded to fp32, as Python's float."""
    return float(np.float32(value))
