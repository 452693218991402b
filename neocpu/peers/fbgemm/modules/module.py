"""What does FBGEMM's module offer beside lookups? Attributes, optimizer states, hyper-parameters.

Names, shapes and orders are FBGEMM's. Methods about caches and prefetching do nothing, as in FBGEMM
on a CPU.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from neocpu.core.errors import ConfigError
from neocpu.peers.fbgemm.modules.options import Arguments, OptimizerArgs, choose, fp32
from neocpu.peers.fbgemm.modules.storage import StateName, Storage
from neocpu.peers.fbgemm.names import (
    ComputeDevice,
    EmainplaceModeDefinition,
    EmbeddingLocation,
    EmbOptimType,
    EnsembleModeDefinition,
    GlobalWeightDecayDefinition,
    Option,
    PoolingMode,
    SparseType,
    WeightDecayMode,
    of,
)
from neocpu.peers.fbgemm.operators import bounds, codes

# Rows, columns, location and device of a table; or the first two.
TableShape: TypeAlias = tuple[int, int, Option, Option] | tuple[int, int]
# Formats of the output.
OUTPUTS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Hyper-parameters beside lr that `update_hyper_parameters` sets.
SETTABLE = ("eps", "beta1", "beta2", "weight_decay")
# Optimizers whose `iter` FBGEMM saves in the state_dict.
COUNTED = (
    EmbOptimType.ADAM,
    EmbOptimType.LAMB,
    EmbOptimType.PARTIAL_ROWWISE_ADAM,
    EmbOptimType.PARTIAL_ROWWISE_LAMB,
    EmbOptimType.EMAINPLACE_ROWWISE_ADAGRAD,
    EmbOptimType.ENSEMBLE_ROWWISE_ADAGRAD,
)


def output_of(output: Option) -> tuple[int, torch.dtype]:
    """FBGEMM's number of an output format, and its torch dtype."""
    sparse_type = of(SparseType, output)
    if sparse_type.value not in OUTPUTS:
        raise ConfigError(f"output_dtype {sparse_type.value}: choose one of {', '.join(OUTPUTS)}")
    return sparse_type.as_int(), OUTPUTS[sparse_type.value]


class Module(Storage):
    """Features, options and states; `SplitTableBatchedEmbeddingBagsCodegen` adds the lookup."""

    def _make_features(self, specs: list[TableShape], arguments: Arguments) -> None:
        """Set the attributes that follow from `embedding_specs` and `feature_table_map`."""
        if not specs:
            raise ConfigError("embedding_specs: give at least one table")
        self.embedding_specs = [
            (*s[:2], *(s[2:4] or (EmbeddingLocation.HOST, ComputeDevice.CPU))) for s in specs
        ]
        self.rows = [int(s[0]) for s in specs]
        self.dims = [int(s[1]) for s in specs]
        tables = arguments["feature_table_map"]
        self.feature_table_map = list(range(len(specs)) if tables is None else tables)
        if set(self.feature_table_map) != set(range(len(specs))):
            raise ConfigError(
                f"feature_table_map {self.feature_table_map}: each of {len(specs)} tables needs a "
                "feature"
            )
        self.table_names = arguments["table_names"]
        self.names = list(self.table_names or [f"table-{i}" for i in range(len(specs))])
        self.pooling_mode = arguments["pooling_mode"]
        self.mixed_D = len(set(self.dims)) > 1
        self.pooling = of(PoolingMode, self.pooling_mode).name.lower()
        self.is_nobag = self.pooling == "none"
        if self.is_nobag and self.mixed_D:
            raise ConfigError("pooling_mode NONE: all tables must have the same dimension")
        feature_dims = [self.dims[t] for t in self.feature_table_map]
        self.total_D = sum(feature_dims)
        self.max_D = max(self.dims)
        self.max_D_cache = 0
        self.total_hash_size = sum(self.rows)
        self._feature_table = np.array(self.feature_table_map, np.int64)
        self._feature_dims = np.array(feature_dims, np.int64)
        base = np.append(0, np.cumsum(self.rows))
        self.register_buffer(
            "D_offsets", torch.tensor([0, *np.cumsum(feature_dims)], dtype=torch.int32)
        )
        self.register_buffer(
            "hash_size_cumsum", torch.from_numpy(np.append(base[self._feature_table], base[-1]))
        )
        self.register_buffer(
            "rows_per_table", torch.tensor([self.rows[t] for t in self.feature_table_map])
        )
        self.register_buffer("bounds_check_warning", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("feature_dims", torch.tensor(feature_dims))

    def _make_options(self, arguments: Arguments) -> None:
        """Set formats, optimizer and bounds check."""
        self.weights_precision = arguments["weights_precision"]
        self.optimizer = arguments["optimizer"]
        form = of(SparseType, self.weights_precision).value
        if form not in codes.NAMES:
            raise ConfigError(f"weights_precision {form}: choose one of {', '.join(codes.NAMES)}")
        self.form = codes.NAMES[form]
        self.output_dtype, self._output = output_of(arguments["output_dtype"])
        self.choice = choose(arguments, self.total_hash_size)
        self.optimizer_args: OptimizerArgs = self.choice.args
        self.weight_decay_mode = arguments["weight_decay_mode"]
        self.stochastic_rounding = arguments["stochastic_rounding"]
        self.emainplace = arguments["emainplace_mode"] or EmainplaceModeDefinition()
        self.ensemble = arguments["ensemble_mode"] or EnsembleModeDefinition()
        decay = arguments["global_weight_decay"] or GlobalWeightDecayDefinition()
        self.gwd_start_iter = int(decay.start_iter)
        self.gwd_lower_bound = float(decay.lower_bound)
        extra_config = arguments["extra_optimizer_config"]
        self.writeback = (
            extra_config.writeback_first_feature_only
            if extra_config and extra_config.use_writeback_bwd_prehook
            else None
        )
        # Kept in fp64 beside the tensor, which rounds it to fp32.
        self._rate = float(arguments["learning_rate"])
        self._averaged = 0
        self.learning_rate_tensor = torch.tensor(self._rate, dtype=torch.float32)
        self.bounds_check_mode_int = bounds.mode_of(arguments["bounds_check_mode"])
        self.embedding_table_index_type = arguments["embedding_table_index_type"]
        self.embedding_table_offset_type = arguments["embedding_table_offset_type"]
        self.current_device = torch.device("cpu")
        self.use_cpu = True
        self.gather_uvm_cache_stats = bool(arguments["gather_uvm_cache_stats"])

    @property
    def decays_globally(self) -> bool:
        """Whether rows decay for the steps between their updates, too."""
        return self.choice.decay is WeightDecayMode.DECOUPLE_GLOBAL

    def _make_optimizer_states(
        self, buffers: dict[str, Tensor], formats: Mapping[str, SparseType]
    ) -> None:
        """Register the optimizer's states, in `formats` by prefix where they are not fp32."""
        extra = {}
        if self.choice.kind is EmbOptimType.ENSEMBLE_ROWWISE_ADAGRAD:
            extra["momentum2"] = StateName("sparse_ema", False)
        if self.decays_globally:
            extra["prev_iter"] = StateName("prev_iter", True)
        dtypes = {prefix: form.as_dtype() for prefix, form in formats.items()}
        self._make_states(self.choice.rule, buffers, extra, dtypes)
        if self.is_none:
            if self.mixed_D or self.form not in OUTPUTS:
                raise ConfigError(
                    "OptimType.NONE: rows are fp32, fp16 or bf16, of one dimension in all tables"
                )
            # A sparse gradient needs rows as the first axis.
            self.weights_host.data = self.weights_host.data.view(-1, self.max_D)

    @property
    def is_none(self) -> bool:
        """Whether nothing is updated (OptimType.NONE): rows get a sparse gradient instead."""
        return self.choice.kind is EmbOptimType.NONE

    def _make_rest(self) -> None:
        """Register what else FBGEMM's state_dict holds."""
        counted = self.choice.rule.endswith("_with_counter") or self.choice.rule.endswith(
            "_with_cowclip"
        )
        self.placeholder_autograd_tensor = nn.Parameter(torch.zeros(0))
        persistent = self.choice.kind in COUNTED or self.decays_globally
        self.register_buffer("iter", torch.zeros(1, dtype=torch.int64), persistent=persistent)
        self.register_buffer("max_counter", torch.ones(1), persistent=counted)
        self.register_buffer("table_wise_cache_miss", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("lxu_cache_weights", torch.zeros(0, 0, dtype=self.weights_host.dtype))
        self.register_buffer(
            "cache_miss_counter", torch.zeros(2, dtype=torch.int64), persistent=False
        )
        self.register_buffer("uvm_cache_stats", torch.zeros(6, dtype=torch.int32), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Module":
        # `half()`, `cuda()` and others end here: what they would do to a tensor tells which it is.
        probe = fn(torch.empty(0))
        if probe.dtype != torch.float32 or probe.device.type != "cpu":
            raise ConfigError(
                f"rows stay where they were made, as {self.form} on the CPU, not {probe.dtype} on "
                f"{probe.device}"
            )
        return super()._apply(fn, recurse)

    @staticmethod
    def get_table_name_for_logging(table_names: list[str] | None) -> str:
        """A short text that names the tables of a module."""
        names = sorted(set(table_names or ()))
        if table_names is None:
            return "<Unknown>"
        return names[0] if len(names) == 1 else f"<{len(names)} tables>: {names}"

    # ---- states ----

    def split_optimizer_states(self) -> list[list[Tensor]]:
        """The states of every table, in place: [rows, columns], or [rows] of row-wise states.

        Order: momentum1, momentum2, prev_iter, row_counter, as far as the optimizer has them.
        """
        if self.is_none:
            raise NotImplementedError("OptimType.NONE has no optimizer states")
        states = [self.split_state(prefix) for prefix in self._prefixes]
        return [list(table_states) for table_states in zip(*states)]

    def get_optimizer_state(self) -> list[dict[str, Tensor]]:
        """The states of every table, by torch's names."""
        names = [state.name for state in self._prefixes.values()]
        table_states = [dict(zip(names, states)) for states in self.split_optimizer_states()]
        adagradw = (
            self.choice.rule.endswith("_with_counter")
            and self.optimizer_args.weight_decay_mode == 3
        )
        if adagradw or self.decays_globally:
            # FBGEMM has the step among the states of these rules.
            return [{**states, "iter": self.iter} for states in table_states]
        return table_states

    def get_optimizer_buffer(self, state: str) -> Tensor:
        """The buffer of that name. Raises ValueError if there is none."""
        buffers = dict(self.named_buffers())
        if state not in buffers:
            raise ValueError(f"Optimizer buffer {state} not found")
        return buffers[state]

    def get_states(self, prefix: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(dev, host, uvm, placements, offsets) of weights, momentum1, …; dev and uvm are empty."""
        if not hasattr(self, f"{prefix}_physical_placements"):
            raise ValueError(f"no state {prefix!r}; there are weights, {', '.join(self._prefixes)}")
        parts = [getattr(self, f"{prefix}_{part}") for part in ("dev", "host", "uvm")]
        placements = torch.tensor(getattr(self, f"{prefix}_physical_placements"), dtype=torch.int32)
        offsets = torch.tensor(getattr(self, f"{prefix}_physical_offsets"), dtype=torch.int64)
        return (*parts, placements, offsets)

    def get_all_states(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """`get_states` of the weights and of every state."""
        return [self.get_states(prefix) for prefix in ("weights", *self._prefixes)]

    # ---- hyper-parameters ----

    def set_learning_rate(self, lr: float) -> None:
        """The learning rate of updates from now on."""
        self._rate = float(lr)
        self.learning_rate_tensor.fill_(self._rate)

    def get_learning_rate(self) -> float:
        """The learning rate, as fp32 has it."""
        return self.learning_rate_tensor.item()

    def rate(self) -> float:
        """The learning rate in fp64, or the value that a caller wrote to the tensor."""
        written = self.learning_rate_tensor.item()
        # Schedulers may write to the tensor itself.
        return self._rate if fp32(self._rate) == written else written

    def update_hyper_parameters(self, params_dict: dict[str, float]) -> None:
        """Set `lr`, `eps`, `beta1`, `beta2`, `weight_decay` or `lower_bound` (DECOUPLE_GLOBAL).

        Raises NotImplementedError for other names, as FBGEMM does.
        """
        for name, value in params_dict.items():
            if name == "lr":
                self.set_learning_rate(value)
            elif name == "lower_bound":
                self.gwd_lower_bound = float(value)
            elif name in SETTABLE:
                setting: dict[str, Any] = {name: value}
                self.optimizer_args = self.optimizer_args._replace(**setting)
            else:
                raise NotImplementedError(f"Setting hyper-parameter {name} is not supported")

    def set_optimizer_step(self, step: int) -> None:
        """Set the number of updates so far."""
        self.iter[0] = step

    @property
    def iter_cpu(self) -> Tensor:
        """Number of updates so far: i64[1]."""
        return self.iter

    # ---- caches: there are none on a CPU ----

    def prefetch(self, *args: object, **kwargs: object) -> None:
        """Nothing to fetch."""

    def flush(self) -> None:
        """Nothing to write back."""

    def reset_cache_states(self) -> None:
        """Nothing is cached."""

    def reset_uvm_cache_stats(self) -> None:
        """Nothing is counted."""

    def get_uvm_cache_stats(self, use_local_cache: bool = False) -> Tensor:
        """Six zeros."""
        return self.uvm_cache_stats

    def print_uvm_cache_stats(self, use_local_cache: bool = False) -> None:
        """Nothing to print."""

    def get_cache_miss_counter(self) -> Tensor:
        """Two zeros."""
        return self.cache_miss_counter

    def get_table_wise_cache_miss(self) -> Tensor:
        """No tables are cached: i64[0]."""
        return self.table_wise_cache_miss
