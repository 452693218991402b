"""What does SplitTableBatchedEmbeddingBagsCodegen do here? It is FBGEMM's module over our engine.

Rows and optimizer states are torch tensors with FBGEMM's CPU names (`weights_host`,
`momentum1_host`, …), so `state_dict`s are interchangeable. The engine works in their memory: the
next lookup reads what a user has written there.

Intended differences from FBGEMM's CPU module, all towards its GPU code or its documentation
(`docs/peer-differences.md`):
- Sums are exact and rounded once; weighted MEAN divides by the bag's length forward and backward.
- An index of -1 reads nothing and gets no update, but counts in the length of its bag.
- Weight decay, max_norm and stochastic rounding (of rows that are not fp32) are obeyed.
- `iter` counts updates, not forward passes. Any dimension works, not only multiples of 4.
- Adam, LAMB, their partial row-wise variants, LARS-SGD, ENSEMBLE_ROWWISE_ADAGRAD, DECOUPLE_GLOBAL,
  and fp16, bf16, int8 and fp8 (NFP8) rows work.
"""

import uuid
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from neocpu.core.errors import ConfigError
from neocpu.core.types import Elements, Floats, Ints
from neocpu.peers.fbgemm.modules import autograd, averages, compiled, engine, global_decay
from neocpu.peers.fbgemm.modules.module import Module, TableShape
from neocpu.peers.fbgemm.modules.narrow import NarrowRows, TouchedRows
from neocpu.peers.fbgemm.modules.options import Arguments, optimizer_of, state_formats
from neocpu.peers.fbgemm.names import (
    BoundsCheckMode,
    CacheAlgorithm,
    ComputeDevice,
    CounterBasedRegularizationDefinition,
    CowClipDefinition,
    EmainplaceModeDefinition,
    EmbeddingLocation,
    EmbOptimType,
    EnsembleModeDefinition,
    GlobalWeightDecayDefinition,
    Option,
    PoolingMode,
    SparseType,
    UserEnabledConfigDefinition,
    WeightDecayMode,
    of,
)
from neocpu.peers.fbgemm.operators import bounds
from neocpu.tables.embedding.bounds import bag_cuts
from neocpu.tables.specs.optimizers import SparseOptimizer

# Arguments that must not be set.
REFUSED = (
    "tbe_input_multiplexer_config",
    "enable_raw_embedding_streaming",
    "is_qr_tbe",
    "stats_reporter_config",
)


class SplitTableBatchedEmbeddingBagsCodegen(Module):
    """Table-batched embedding with a fused optimizer.

    Arguments, their positions and defaults are FBGEMM's.

    embedding_specs : (rows, columns, location, device) of each table, or (rows, columns).
    Location and device other than HOST and CPU are refused, as is
    every argument that needs a GPU. Arguments about caches, UVM, prefetching and logging are
    accepted and have no effect, as in FBGEMM on a CPU.
    weights_precision : fp32, fp16, bf16, int8, nfp8. output_dtype : fp32, fp16, bf16.

    Raises ConfigError for what neocpu does not have. FBGEMM: the class of this name in
    `split_table_batched_embeddings_ops_training`.
    """

    def __init__(
        self,
        embedding_specs: Sequence[TableShape],
        feature_table_map: list[int] | None = None,
        cache_algorithm: Option = CacheAlgorithm.LRU,
        cache_load_factor: float = 0.2,
        cache_sets: int = 0,
        cache_reserved_memory: float = 0.0,
        cache_precision: object = None,
        weights_precision: Option = SparseType.FP32,
        output_dtype: Option = SparseType.FP32,
        enforce_hbm: bool = False,
        optimizer: Option = EmbOptimType.EXACT_SGD,
        record_cache_metrics: object = None,
        gather_uvm_cache_stats: bool | None = False,
        stochastic_rounding: bool = True,
        gradient_clipping: bool = False,
        max_gradient: float = 1.0,
        max_norm: float = 0.0,
        learning_rate: float = 0.01,
        eps: float = 1.0e-8,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        weight_decay_mode: Option = WeightDecayMode.NONE,
        eta: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        ensemble_mode: EnsembleModeDefinition | None = None,
        emainplace_mode: EmainplaceModeDefinition | None = None,
        counter_based_regularization: CounterBasedRegularizationDefinition | None = None,
        cowclip_regularization: CowClipDefinition | None = None,
        pooling_mode: Option = PoolingMode.SUM,
        device: str | torch.device | None = None,
        bounds_check_mode: Option = BoundsCheckMode.WARNING,
        uvm_non_rowwise_momentum: bool = False,
        use_experimental_tbe: bool = False,
        prefetch_pipeline: bool = False,
        stats_reporter_config: object = None,
        table_names: list[str] | None = None,
        optimizer_state_dtypes: dict[str, Option] | None = None,
        multipass_prefetch_config: object = None,
        global_weight_decay: GlobalWeightDecayDefinition | None = None,
        uvm_host_mapped: bool = False,
        extra_optimizer_config: UserEnabledConfigDefinition | None = None,
        tbe_input_multiplexer_config: object = None,
        embedding_table_index_type: torch.dtype = torch.int64,
        embedding_table_offset_type: torch.dtype = torch.int64,
        embedding_shard_info: object = None,
        enable_raw_embedding_streaming: bool = False,
        res_params: object = None,
        is_qr_tbe: bool = False,
        preallocated_host_buffers: dict[str, Tensor] | None = None,
    ) -> None:
        # Before anything else is a local variable.
        arguments = dict(locals())
        super().__init__()
        self._build(
            {name: value for name, value in arguments.items() if name not in ("self", "__class__")}
        )

    def _build(self, arguments: Arguments) -> None:
        for name in REFUSED:
            if arguments[name]:
                raise ConfigError(f"{name} is not in neocpu")
        specs = [tuple(spec) for spec in arguments["embedding_specs"]]
        for spec in specs:
            if len(spec) > 2 and (
                spec[2] != EmbeddingLocation.HOST or spec[3] != ComputeDevice.CPU
            ):
                raise ConfigError(f"table {spec}: neocpu keeps tables on HOST and computes on CPU")
        if arguments["device"] is not None and torch.device(arguments["device"]).type != "cpu":
            raise ConfigError(f"device {arguments['device']}: neocpu computes on the CPU")
        self._make_features(specs, arguments)
        self._make_options(arguments)
        # A copy: `pop` must not change the caller's dictionary.
        buffers = dict(arguments["preallocated_host_buffers"] or {})
        dtype = of(SparseType, arguments["weights_precision"]).as_dtype()
        self._make_weights(self.form, dtype, buffers.pop("weights", None))
        self._make_optimizer_states(buffers, state_formats(arguments, self.choice.kind))
        self._make_rest()
        self.uuid = str(uuid.uuid4())
        self.step = 0

    # ---- forward ----

    def forward(
        self,
        indices: Tensor,
        offsets: Tensor,
        per_sample_weights: Tensor | None = None,
        feature_requires_grad: Tensor | None = None,
        batch_size_per_feature_per_rank: list[list[int]] | None = None,
        total_unique_indices: int | None = None,
        hash_zch_identities: Tensor | None = None,
        hash_zch_runtime_meta: Tensor | None = None,
        vbe_output: Tensor | None = None,
        vbe_output_offsets: Tensor | None = None,
    ) -> Tensor:
        """Pooled output [B, sum of dimensions]; pooling NONE: [n, D]; variable batches: flat.

        indices : int[n]. offsets : int[F*B+1], feature-major. per_sample_weights : float[n].
        feature_requires_grad : int[F], whose weights get a gradient.
        batch_size_per_feature_per_rank : [F][R], samples, where they vary; the result is rank after
            rank, feature after feature then.
        The other arguments have no meaning here. In modes WARNING and IGNORE the caller's indices
        and offsets are repaired in place, as in FBGEMM. Raises OutOfBounds.
        """
        if vbe_output is not None or vbe_output_offsets is not None:
            raise ConfigError(
                "vbe_output, vbe_output_offsets: leave them out on a CPU, as in FBGEMM"
            )
        weights = None if per_sample_weights is None else per_sample_weights.float()
        sizes = compiled.sizes_of(batch_size_per_feature_per_rank)
        if self.embedding_table_index_type == torch.int32:
            indices = indices.to(torch.int32)
        offsets = offsets.to(indices.dtype)
        checked = self.bounds_check_mode_int in bounds.CHECKED
        # What requires a gradient: nothing of the rows, unless there is no fused optimizer.
        placeholder = self.weights_host if self.is_none else self.placeholder_autograd_tensor
        if torch.compiler.is_compiling():
            if self.is_none:
                raise ConfigError(
                    "OptimType.NONE: torch.compile has no sparse gradients; do not compile it"
                )
            if checked:
                torch.ops.neocpu.tbe_check(self.handle, indices, offsets, weights, sizes)
            dims = [self.dims[t] for t in self.feature_table_map]
            shape = compiled.output_shape(indices, offsets, dims, sizes, not self.is_nobag)
            lookup = (indices, offsets, feature_requires_grad, sizes, self.handle)
            return torch.ops.neocpu.tbe_lookup(placeholder, weights, *lookup, shape, self._output)
        if checked:
            self.check_bounds(indices, offsets, weights, sizes)
        batch = self.feature_batch(indices, offsets, weights, sizes)
        features = autograd.features_with_gradient(feature_requires_grad, len(self._feature_table))
        function = autograd.SparseLookup if self.is_none else autograd.FusedLookup
        return function.apply(placeholder, weights, self, batch, features)

    def _batch_sizes(self, sizes: Sequence[int]) -> Ints | None:
        """Batch sizes i64[F, R] of the flat list; None where all features have one size."""
        return np.array(sizes, np.int64).reshape(len(self._feature_table), -1) if sizes else None

    def check_bounds(
        self, indices: Tensor, offsets: Tensor, weights: Tensor | None, sizes: Sequence[int]
    ) -> None:
        """Check indices and offsets, and repair them in place; sizes : [F, R] flat, or empty."""
        variable_batch = {}
        batch_sizes = self._batch_sizes(sizes)
        if batch_sizes is not None:
            first_bag = bag_cuts(len(self._feature_table), bounds.as_numpy(offsets), batch_sizes)
            variable_batch = {
                "B_offsets": torch.from_numpy(first_bag),
                "max_B": int(batch_sizes.sum(1).max()),
            }
        rows = self.rows_per_table
        mode = self.bounds_check_mode_int
        warning = self.bounds_check_warning
        bounds.bounds_check_indices(
            rows, indices, offsets, mode, warning, weights, **variable_batch
        )

    def feature_batch(
        self, indices: Tensor, offsets: Tensor, weights: Tensor | None, sizes: Sequence[int]
    ) -> engine.FeatureBatch:
        """The arguments of a lookup as the engine takes them. Raises OutOfBounds."""
        batch_sizes = self._batch_sizes(sizes)
        index_array = bounds.as_numpy(indices)
        offset_array = bounds.as_numpy(offsets)
        first_bag = bag_cuts(len(self._feature_table), offset_array, batch_sizes)
        bounds.refuse_outside(self.rows_per_table.numpy(), index_array, offset_array, first_bag)
        weight_array = engine.NONE if weights is None else weights.detach().contiguous().numpy()
        if weight_array.size != index_array.size and weights is not None:
            raise bounds.OutOfBounds(
                f"{index_array.size} indices, but {weight_array.size} per-sample weights"
            )
        return engine.FeatureBatch(
            self._feature_table,
            self._feature_dims,
            index_array,
            offset_array,
            weight_array,
            self.pooling,
            batch_sizes,
        )

    def forward_pass(self, batch: engine.FeatureBatch) -> Tensor:
        """Count a forward pass, take the averages that the optimizer asks for, and look up."""
        self.step += 1
        self._average()
        return self.look_up(batch)

    def look_up(self, batch: engine.FeatureBatch) -> Tensor:
        """The pooled output, in the output's format."""
        return torch.from_numpy(engine.look_up(*self._seen(batch))).to(self._output)

    def _optimizer(self) -> SparseOptimizer:
        return optimizer_of(self.choice, self.optimizer_args, self.rate(), self.max_counter.item())

    def _average(self) -> None:
        """The averages that FBGEMM takes before the lookup of a training step, once per update."""
        step = int(self.iter.item()) + 1
        # Two lookups before one update must not average twice.
        if not self.training or step == self._averaged:
            return
        self._averaged = step
        if self.choice.kind is EmbOptimType.EMAINPLACE_ROWWISE_ADAGRAD:
            averages.average_halves(self.split_embedding_weights(), self.emainplace, step)
        if self.choice.kind is EmbOptimType.ENSEMBLE_ROWWISE_ADAGRAD:
            weights = self.split_embedding_weights()
            averages.average_shadows(weights, self.split_state("momentum2"), self.ensemble, step)

    def _decayed(self, table: Ints, rows: Ints) -> TouchedRows | None:
        """Rows of lookups i64[n], decayed for the steps that they missed; None: nothing decays so.

        FBGEMM: DECOUPLE_GLOBAL.
        """
        step = int(self.iter.item()) + 1
        in_force = self.decays_globally and self.optimizer_args.weight_decay > 0
        if not in_force or not self.training or step < self.gwd_start_iter:
            return None
        # As the update rounds it, so that lookup and update decay alike.
        keep = self._optimizer().hyper(step).keep
        bound = self.gwd_lower_bound
        return global_decay.decayed_rows(self, table, rows, step, keep, bound)

    def _seen(
        self, batch: engine.FeatureBatch
    ) -> tuple[Elements, Ints, Ints, str, engine.FeatureBatch]:
        """The tables and the batch of a lookup, as the engine's functions take them."""
        touched = self._decayed(global_decay.lookup_tables(batch), batch.indices)
        if touched is None:
            return (*self.codes(), self.form, batch)
        dims = np.array(self.dims, np.int64)
        seen_batch = global_decay.renumbered(batch, touched)
        return touched.flat, touched.heights, dims, "fp32", seen_batch

    # ---- backward ----

    def update(
        self, batch: engine.FeatureBatch, grad: Tensor, features: autograd.Flags | None
    ) -> Tensor | None:
        """The fused update; returns the gradient of the per-sample weights.

        features : bool[F], whose weights get one; None: of none. It is computed from the rows
            before their update.
        """
        # Before the sort, as it goes by the features of the batch.
        if self.writeback is not None:
            batch = engine.first_occurrences(batch, self.writeback)
        args = self.optimizer_args
        step = int(self.iter.item()) + 1
        table_batch = engine.sort_by_table(batch)
        gradient = self._clipped(grad)
        # MEAN divides within; below the same gradient is divided in place.
        weight_grad = self._weight_gradient(batch, gradient, features)
        self._update_max_counter(step)
        optimizer = self._optimizer()
        gradient = engine.divided(gradient, table_batch)
        touched = self._decayed(table_batch.table, table_batch.lookups.rows)
        if self.form == "fp32" and not self.narrow_states and touched is None:
            engine.update(self.tables(optimizer), table_batch, gradient, step)
        else:
            decoded = NarrowRows(self, table_batch, optimizer, touched)
            engine.update(decoded.tables, decoded.batch, gradient, step)
            decoded.write_back(step, bool(args.stochastic_rounding))
        if touched is not None:
            global_decay.note_update(self, touched, step)
        # Last: what failed on the way has not been counted.
        self.iter.fill_(step)
        return weight_grad

    def _clipped(self, grad: Tensor) -> Floats:
        """A gradient as fp32, within the limits that the module's arguments set."""
        args = self.optimizer_args
        limit = args.max_gradient if args.gradient_clipping else 0.0
        return engine.clipped(grad.detach().float().numpy(), limit)

    def _weight_gradient(
        self, batch: engine.FeatureBatch, gradient: Floats, features: autograd.Flags | None
    ) -> Tensor | None:
        """Gradient of the per-sample weights, from rows before their update; None: not needed."""
        if features is None:
            return None
        return torch.from_numpy(engine.weight_gradient(*self._seen(batch), gradient, features))

    def sparse_gradients(
        self, batch: engine.FeatureBatch, grad: Tensor, features: autograd.Flags | None
    ) -> tuple[Tensor, Tensor | None]:
        """With OptimType.NONE: gradients of `weights_host` [rows, D], sparse, and of the weights.

        The rows of the first are unique and ascend over all tables; each is the exact sum of its
        lookups' terms, rounded once to fp32, then to the dtype of the rows.
        """
        gradient = self._clipped(grad)
        weight_grad = self._weight_gradient(batch, gradient, features)
        table_batch = engine.sort_by_table(batch)
        shapes = (self.names, np.array(self.rows), np.array(self.dims))
        tables = engine.ExternalTables(*shapes, self._optimizer())
        divided = engine.divided(gradient, table_batch)
        merged = engine.unique_gradient(tables, table_batch, divided)
        # Rows are numbered over all tables, as in `weights_host`.
        first = np.cumsum(self.rows) - self.rows
        rows = [first[t] + merged[t][0] for t in sorted(merged)]
        values = [merged[t][1] for t in sorted(merged)]
        row_numbers = np.concatenate([np.empty(0, np.int64), *rows])
        row_gradients = np.concatenate([np.empty((0, self.max_D), np.float32), *values])
        sparse = torch.sparse_coo_tensor(
            torch.from_numpy(row_numbers)[None],
            torch.from_numpy(row_gradients).to(self.weights_host.dtype),
            self.weights_host.shape,
            # Rows are unique and ascend already: torch need not sort them again.
            is_coalesced=True,
            check_invariants=False,
        )
        return sparse, weight_grad

    def _update_max_counter(self, step: int) -> None:
        """Refresh the largest counter, every `max_counter_update_freq` updates."""
        interval = self.choice.max_counter_update_freq
        if interval > 0 and step % interval == 0:
            self.max_counter[0] = self.row_counter_host.detach().max() + 1
