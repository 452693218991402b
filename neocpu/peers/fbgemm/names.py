"""Which enums and option records does FBGEMM's interface use? Copies of them, without fbgemm_gpu.

Names and values are FBGEMM's. `of` accepts FBGEMM's own members, ours, their numbers, and strings.
Imports no torch.
"""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    import torch

E = TypeVar("E", bound=enum.Enum)
# A member of one of these enums, as `of` takes it.
Option: TypeAlias = enum.Enum | str | int


class EmbOptimType(enum.Enum):
    """Optimizers of FBGEMM; `RULES` in `options.py` has those that neocpu supports."""

    SGD = "sgd"
    EXACT_SGD = "exact_sgd"
    LAMB = "lamb"
    ADAM = "adam"
    EXACT_ADAGRAD = "exact_adagrad"
    EXACT_ROWWISE_ADAGRAD = "exact_row_wise_adagrad"
    LARS_SGD = "lars_sgd"
    PARTIAL_ROWWISE_ADAM = "partial_row_wise_adam"
    PARTIAL_ROWWISE_LAMB = "partial_row_wise_lamb"
    ROWWISE_ADAGRAD = "row_wise_adagrad"
    SHAMPOO = "shampoo"
    SHAMPOO_V2 = "shampoo_v2"
    MADGRAD = "madgrad"
    EXACT_ROWWISE_WEIGHTED_ADAGRAD = "exact_row_wise_weighted_adagrad"
    ENSEMBLE_ROWWISE_ADAGRAD = "ensemble_row_wise_adagrad"
    EMAINPLACE_ROWWISE_ADAGRAD = "ema_in_place_row_wise_adagrad"
    NONE = "none"

    def __str__(self) -> str:
        return str(self.value)


class SparseType(enum.Enum):
    """Formats of rows and outputs."""

    FP32 = "fp32"
    FP16 = "fp16"
    FP8 = "fp8"
    NFP8 = "nfp8"
    INT8 = "int8"
    INT4 = "int4"
    INT2 = "int2"
    BF16 = "bf16"
    MX4 = "mx4"

    def __str__(self) -> str:
        return str(self.value)

    def as_int(self) -> int:
        """The format's number in operators, as in FBGEMM's C++.

        FBGEMM's Python numbers MX4 and NFP8 one less.
        """
        return _NUMBERS[self.value]

    @staticmethod
    def from_int(number: int) -> "SparseType":
        """The inverse of `as_int`."""
        return SparseType({n: name for name, n in _NUMBERS.items()}[number])

    def as_dtype(self) -> "torch.dtype":
        """The torch dtype of one element of storage."""
        import torch

        narrow = {
            "int4": "quint4x2",
            "int2": "quint2x4",
            "nfp8": "float8_e4m3fn",
            "bf16": "bfloat16",
        }
        name = {"fp32": "float32", "fp16": "float16", **narrow}.get(self.value, "uint8")
        return getattr(torch, name)

    @staticmethod
    def from_dtype(dtype: "torch.dtype", is_mx: bool = False) -> "SparseType":
        """The format whose elements a torch dtype stores."""
        # MX4 rows are bytes like int8 ones: their dtype does not tell.
        if is_mx:
            return SparseType.MX4
        # By name, as this file imports no torch; fp8 types of AMD's GPUs end in "uz".
        name = str(dtype).removeprefix("torch.").removesuffix("uz")
        formats = {
            "float32": "fp32",
            "float16": "fp16",
            "bfloat16": "bf16",
            "uint8": "int8",
            "int8": "int8",
            "quint4x2": "int4",
            "quint2x4": "int2",
            "float8_e4m3fn": "nfp8",
        }
        if name not in formats:
            raise ValueError(f"no format of rows has elements of type {dtype}")
        return SparseType(formats[name])

    def bit_rate(self) -> int:
        """Bits of one element's code."""
        return {"fp32": 32, "fp16": 16, "bf16": 16, "int4": 4, "mx4": 4, "int2": 2}.get(
            self.value, 8
        )

    def align_size(self) -> int:
        """Elements that fill four bytes (MX4: eight, as FBGEMM has it)."""
        return 32 // self.bit_rate()

    def is_float(self) -> bool:
        """Whether an element's code alone determines its value, without a scale."""
        return self.value in ("fp32", "fp16", "fp8", "bf16", "nfp8")


# C++'s numbers; FBGEMM's Python counts MX4 and NFP8 one less, so that its own round trip fails.
_NUMBERS = {
    "fp32": 0,
    "fp16": 1,
    "int8": 2,
    "int4": 3,
    "int2": 4,
    "bf16": 5,
    "fp8": 6,
    "mx4": 8,
    "nfp8": 9,
}


class PoolingMode(enum.IntEnum):
    """How a bag becomes one row."""

    SUM = 0
    MEAN = 1
    NONE = 2

    def do_pooling(self) -> bool:
        """Whether the output has one row per bag rather than per lookup."""
        return self is not PoolingMode.NONE


class EmbeddingLocation(enum.IntEnum):
    """Where FBGEMM keeps a table; here every table is HOST."""

    DEVICE = 0
    MANAGED = 1
    MANAGED_CACHING = 2
    HOST = 3
    MTIA = 4


class ComputeDevice(enum.IntEnum):
    """What computes; here always CPU."""

    CPU = 0
    CUDA = 1
    MTIA = 2


class BoundsCheckMode(enum.IntEnum):
    """What to do with an index outside its table."""

    FATAL = 0
    WARNING = 1
    IGNORE = 2
    NONE = 3
    V2_IGNORE = 4
    V2_WARNING = 5
    V2_FATAL = 6


class CacheAlgorithm(enum.Enum):
    """Policies of caches, which a CPU does not need."""

    LRU = 0
    LFU = 1


class WeightDecayMode(enum.IntEnum):
    """How weight decay enters an update."""

    NONE = 0
    L2 = 1
    DECOUPLE = 2
    COUNTER = 3
    COWCLIP = 4
    DECOUPLE_GLOBAL = 5


class CounterWeightDecayMode(enum.IntEnum):
    """How weight decay enters an update of the rules with counters."""

    NONE = 0
    L2 = 1
    DECOUPLE = 2
    ADAGRADW = 3


class LearningRateMode(enum.IntEnum):
    """Learning rates by counters."""

    EQUAL = -1
    TAIL_ID_LR_INCREASE = 0
    TAIL_ID_LR_DECREASE = 1
    COUNTER_SGD = 2


class GradSumDecay(enum.IntEnum):
    """Whether the accumulator decays with its row's counter; FBGEMM's kernels never do it."""

    NO_DECAY = -1
    CTR_DECAY = 0


@dataclass(frozen=True)
class TailIdThreshold:
    """The counter above which a row is no longer a tail row."""

    val: float = 0
    is_ratio: bool = False


@dataclass(frozen=True)
class CounterBasedRegularizationDefinition:
    """Options of `WeightDecayMode.COUNTER`."""

    counter_weight_decay_mode: CounterWeightDecayMode = CounterWeightDecayMode.NONE
    # FBGEMM's default; its kernels keep the sign, so that decay makes rows grow.
    counter_halflife: int = -1
    adjustment_iter: int = -1
    adjustment_ub: float = 1.0
    learning_rate_mode: LearningRateMode = LearningRateMode.EQUAL
    grad_sum_decay: GradSumDecay = GradSumDecay.NO_DECAY
    tail_id_threshold: TailIdThreshold = field(default_factory=TailIdThreshold)
    max_counter_update_freq: int = 1000


@dataclass(frozen=True)
class CowClipDefinition:
    """Options of `WeightDecayMode.COWCLIP`."""

    counter_weight_decay_mode: CounterWeightDecayMode = CounterWeightDecayMode.NONE
    counter_halflife: int = -1
    # FBGEMM's defaults: both 0 clip every gradient to 0, and the table never changes.
    weight_norm_coefficient: float = 0.0
    lower_bound: float = 0.0


@dataclass(frozen=True)
class GlobalWeightDecayDefinition:
    """Options of `WeightDecayMode.DECOUPLE_GLOBAL`."""

    start_iter: int = 0
    lower_bound: float = 0.0


@dataclass(frozen=True)
class UserEnabledConfigDefinition:
    """Options that concern single optimizers."""

    use_rowwise_bias_correction: bool = False
    use_writeback_bwd_prehook: bool = False
    writeback_first_feature_only: bool = False
    precompute_writeback: bool = False


class StepMode(enum.IntEnum):
    """What becomes of a shadow after an average: NONE sets it to 0, the others keep it."""

    NONE = 0
    USE_COUNTER = 1
    USE_ITER = 2


@dataclass(frozen=True)
class EnsembleModeDefinition:
    """Options of ENSEMBLE_ROWWISE_ADAGRAD: rows have a shadow, averaged and copied back."""

    step_ema: float = 10000
    step_swap: float = 10000
    step_start: float = 0
    step_ema_coef: float = 0.6
    step_mode: StepMode = StepMode.USE_ITER


@dataclass(frozen=True)
class EmainplaceModeDefinition:
    """Options of EMAINPLACE_ROWWISE_ADAGRAD: the second half of a row follows the first."""

    step_ema: float = 10
    step_start: float = 0
    step_ema_coef: float = 0.6


class RecordCacheMetrics(NamedTuple):
    """Which cache misses to count; there are none."""

    record_cache_miss_counter: bool
    record_tablewise_cache_miss: bool


# FBGEMM's spelling of our names, where they differ.
OURS = {
    "exact_rowwise_adagrad": "exact_row_wise_adagrad",
    "partial_rowwise_adam": "partial_row_wise_adam",
    "partial_rowwise_lamb": "partial_row_wise_lamb",
    "decoupled": "DECOUPLE",
}


def of(kind: type[E], value: Option) -> E:
    """The member of our enum `kind` for FBGEMM's member, ours, a number, or a name.

    Raises ValueError, which lists the members.
    """
    if isinstance(value, kind):
        return value
    # FBGEMM's enums are other classes, with members of the same names.
    if isinstance(value, enum.Enum):
        value = value.name
    if isinstance(value, str):
        value = OURS.get(value.lower(), value)
        member = {
            **{m.name.lower(): m for m in kind},
            **{str(m.value).lower(): m for m in kind},
        }.get(value.lower())
    else:
        member = next((m for m in kind if m.value == value), None)
    if member is None:
        raise ValueError(
            f"{value!r} is no {kind.__name__}; choose one of {', '.join(m.name for m in kind)}"
        )
    return member
