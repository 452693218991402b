"""Which of our optimizers do the arguments of FBGEMM's constructor describe?

`optimizer_args` of a module is an `OptimizerArgs`, with FBGEMM's names and values. It is read again
at every update, so a change by `update_hyper_parameters` holds from the next update on.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.peers.fbgemm.names import (
    CounterBasedRegularizationDefinition,
    CounterWeightDecayMode,
    CowClipDefinition,
    EmbOptimType,
    LearningRateMode,
    SparseType,
    WeightDecayMode,
    of,
)
from neocpu.tables.specs.optimizers import SparseOptimizer

# FBGEMM's constructor arguments by name; the constructor says their types.
Arguments: TypeAlias = Mapping[str, Any]
# Our rule for each optimizer of FBGEMM. EMAINPLACE and ENSEMBLE add averages in the forward pass.
RULES = {
    EmbOptimType.EXACT_SGD: "exact_sgd",
    EmbOptimType.EXACT_ADAGRAD: "exact_adagrad",
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: "exact_rowwise_adagrad",
    EmbOptimType.EMAINPLACE_ROWWISE_ADAGRAD: "exact_rowwise_adagrad",
    EmbOptimType.ENSEMBLE_ROWWISE_ADAGRAD: "exact_rowwise_adagrad",
    EmbOptimType.ADAM: "adam",
    EmbOptimType.PARTIAL_ROWWISE_ADAM: "partial_rowwise_adam",
    EmbOptimType.LAMB: "lamb",
    EmbOptimType.PARTIAL_ROWWISE_LAMB: "partial_rowwise_lamb",
    EmbOptimType.LARS_SGD: "lars_sgd",
    EmbOptimType.NONE: "none",
}
# Rules whose formula in FBGEMM fixes the mode of weight decay.
FIXED_MODES = {
    "adam": "decoupled",
    "partial_rowwise_adam": "decoupled",
    "lamb": "decoupled",
    "partial_rowwise_lamb": "decoupled",
    "lars_sgd": "l2",
}
# Rules whose formula in FBGEMM has no weight decay.
NO_DECAY = ("exact_sgd", "exact_adagrad", "none")
# Our names of CounterWeightDecayMode's numbers, which agree with WeightDecayMode's first ones.
MODES = {0: "none", 1: "l2", 2: "decoupled", 3: "adagradw", 5: "decoupled"}
# Optimizers whose states may be narrow, as in FBGEMM, and which of them.
NARROW_STATES = {
    EmbOptimType.PARTIAL_ROWWISE_ADAM: ("momentum1", "momentum2"),
    EmbOptimType.ENSEMBLE_ROWWISE_ADAGRAD: ("momentum2",),
}
# Formats that states may have.
STATE_FORMATS = (SparseType.FP32, SparseType.FP16, SparseType.BF16)


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
    """The optimizer that a module's constructor asked for."""

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


def choose(arguments: Arguments, rows: int) -> Choice:
    """The optimizer described by FBGEMM's constructor arguments; `rows`: of all tables together.

    Raises ConfigError, which names the argument, for options that neocpu does not have.
    """
    kind = of(EmbOptimType, arguments["optimizer"])
    decay = of(WeightDecayMode, arguments["weight_decay_mode"])
    _refuse(arguments, kind, decay)
    counter = arguments["counter_based_regularization"]
    cowclip = arguments["cowclip_regularization"]
    regularization = counter or cowclip
    counter = counter or CounterBasedRegularizationDefinition()
    cowclip = cowclip or CowClipDefinition()
    mode = (
        of(CounterWeightDecayMode, regularization.counter_weight_decay_mode).value
        if regularization
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
        **{name: arguments[name] for name in (*names, "weight_decay", "eta", "momentum")},
        weight_decay_mode=mode,
        counter_halflife=regularization.counter_halflife if regularization else -1,
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
    # Only COUNTER reads the largest counter, which costs a pass over all rows.
    counter_interval = counter.max_counter_update_freq if decay is WeightDecayMode.COUNTER else -1
    choice = Choice(kind, decay, args, counter_interval)
    if args.weight_decay and choice.rule in NO_DECAY:
        warnings.warn(
            f"{kind.name} has no weight decay, as in FBGEMM: weight_decay is ignored", stacklevel=4
        )
    return choice


def _refuse(arguments: Arguments, kind: EmbOptimType, decay: WeightDecayMode) -> None:
    if kind not in RULES:
        raise ConfigError(
            f"optimizer {kind.name} is not in neocpu; it has {', '.join(k.name for k in RULES)}"
        )
    if (decay is WeightDecayMode.COUNTER) != (
        arguments["counter_based_regularization"] is not None
    ):
        raise ConfigError("weight_decay_mode COUNTER and counter_based_regularization go together")
    if (decay is WeightDecayMode.COWCLIP) != (arguments["cowclip_regularization"] is not None):
        raise ConfigError("weight_decay_mode COWCLIP and cowclip_regularization go together")
    if decay is WeightDecayMode.DECOUPLE_GLOBAL and (
        kind is not EmbOptimType.EXACT_ROWWISE_ADAGRAD or arguments["global_weight_decay"] is None
    ):
        raise ConfigError(
            "weight_decay_mode DECOUPLE_GLOBAL: use EXACT_ROWWISE_ADAGRAD and give "
            "global_weight_decay, as in FBGEMM"
        )
    extra_config = arguments["extra_optimizer_config"]
    if extra_config is not None and extra_config.use_rowwise_bias_correction:
        raise ConfigError(
            "use_rowwise_bias_correction: neocpu's Adam corrects by the global step only"
        )
    if (
        extra_config is not None
        and extra_config.use_writeback_bwd_prehook
        and kind is not EmbOptimType.EXACT_SGD
    ):
        raise ConfigError("use_writeback_bwd_prehook is of EXACT_SGD only, as in FBGEMM")
    if kind is EmbOptimType.ENSEMBLE_ROWWISE_ADAGRAD and (
        of(SparseType, arguments["weights_precision"]) is SparseType.INT8
    ):
        raise ConfigError(
            "ENSEMBLE_ROWWISE_ADAGRAD cannot average int8 rows: use fp32, fp16 or bf16"
        )
    if arguments["optimizer_state_dtypes"] and kind not in NARROW_STATES:
        raise ConfigError(
            f"optimizer_state_dtypes: use {', '.join(k.name for k in NARROW_STATES)}, as in FBGEMM"
        )


def state_formats(arguments: Arguments, kind: EmbOptimType) -> dict[str, SparseType]:
    """Formats of the states that are not fp32, by FBGEMM's prefix. Raises ConfigError."""
    formats: dict[str, SparseType] = {}
    for prefix, value in (arguments["optimizer_state_dtypes"] or {}).items():
        form = of(SparseType, value)
        if form not in STATE_FORMATS:
            raise ConfigError(
                f"optimizer_state_dtypes: {prefix} is {form.value}; choose one of "
                f"{', '.join(choice.value for choice in STATE_FORMATS)}"
            )
        if form is not SparseType.FP32 and prefix in NARROW_STATES.get(kind, ()):
            formats[prefix] = form
    return formats


def optimizer_of(
    choice: Choice, args: OptimizerArgs, learning_rate: float, max_counter: float
) -> SparseOptimizer:
    """Our optimizer with the current hyper-parameters.

    The engine clips gradients, as that precedes the division of MEAN.
    """
    rule = choice.rule
    # Adam and LAMB decay decoupled whatever the mode is called: their formulas are fixed.
    mode = FIXED_MODES.get(rule, MODES.get(args.weight_decay_mode, "none"))
    if rule in NO_DECAY or not args.weight_decay:
        mode = "none"
    rate_modes = {m.value: m.name.lower() for m in LearningRateMode}
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
        learning_rate_mode=rate_modes[args.learning_rate_mode],
        max_counter=max_counter,
        tail_id_threshold=args.tail_id_threshold,
        tail_id_threshold_is_ratio=bool(args.is_tail_id_thresh_ratio),
        weight_norm_coefficient=args.weight_norm_coefficient,
        lower_bound=args.lower_bound,
    )


def fp32(value: float) -> float:
    """A number rounded to fp32, as a Python float."""
    return float(np.float32(value))
