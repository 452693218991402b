"""What does SplitTableBatchedEmbeddingBagsCodegen do, exactly? FBGEMM's module over neocpu's
engine, on the CPU.

Rows and optimizer states are torch tensors, named as FBGEMM names them on a CPU (`weights_host`,
`momentum1_host`, …), so that `state_dict`s go to and fro. The engine works in their memory: what
the user writes there, the next lookup reads.

Differences that are meant, all of them towards what FBGEMM's GPU does or says
(`docs/peer-differences.md`):
- Sums are exact and rounded once; weighted MEAN divides by the bag's length forward and backward.
- -1 reads nothing and gets no update, but counts in the length of its bag.
- Weight decay, max_norm and stochastic rounding (of rows that are not fp32) are obeyed.
- `iter` counts updates, not forward passes. Any dimension goes, not only multiples of 4.
- Adam, LAMB, LARS-SGD, their partial row-wise kin, and fp16, bf16, int8 and fp8 (NFP8) rows work.
"""

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neocpu.embedding.bounds import bag_cuts
from neocpu.errors import ConfigError
from neocpu.peers.fbgemm import autograd, bounds, engine
from neocpu.peers.fbgemm.borrowed import Borrowed
from neocpu.peers.fbgemm.module import Module
from neocpu.peers.fbgemm.names import (
    BoundsCheckMode,
    CacheAlgorithm,
    ComputeDevice,
    EmbeddingLocation,
    EmbOptimType,
    PoolingMode,
    SparseType,
    WeightDecayMode,
    of,
)
from neocpu.peers.fbgemm.options import optimizer_of

REFUSED = (
    "tbe_input_multiplexer_config",
    "enable_raw_embedding_streaming",
    "is_qr_tbe",
    "stats_reporter_config",
)


class SplitTableBatchedEmbeddingBagsCodegen(Module):
    """Table-batched embedding with a fused optimizer. Arguments are FBGEMM's, positions and
    defaults too.

    embedding_specs : (rows, columns, location, device) of each table, or (rows, columns).
    Everything lives on the host: location and device other than HOST and CPU are refused, as
    everything that asks for a GPU is. Arguments about caches, UVM, prefetching and logging are
    accepted and have no effect, as in FBGEMM on a CPU.
    weights_precision : fp32, fp16, bf16, int8, nfp8. output_dtype : fp32, fp16, bf16.

    Raises ConfigError for what neocpu does not have. FBGEMM: the class of this name in
    `split_table_batched_embeddings_ops_training`.
    """

    def __init__(
        self,
        embedding_specs: Sequence[tuple[Any, ...]],
        feature_table_map: list[int] | None = None,
        cache_algorithm: Any = CacheAlgorithm.LRU,
        cache_load_factor: float = 0.2,
        cache_sets: int = 0,
        cache_reserved_memory: float = 0.0,
        cache_precision: Any = None,
        weights_precision: Any = SparseType.FP32,
        output_dtype: Any = SparseType.FP32,
        enforce_hbm: bool = False,
        optimizer: Any = EmbOptimType.EXACT_SGD,
        record_cache_metrics: Any = None,
        gather_uvm_cache_stats: bool | None = False,
        stochastic_rounding: bool = True,
        gradient_clipping: bool = False,
        max_gradient: float = 1.0,
        max_norm: float = 0.0,
        learning_rate: float = 0.01,
        eps: float = 1.0e-8,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        weight_decay_mode: Any = WeightDecayMode.NONE,
        eta: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        ensemble_mode: Any = None,
        emainplace_mode: Any = None,
        counter_based_regularization: Any = None,
        cowclip_regularization: Any = None,
        pooling_mode: Any = PoolingMode.SUM,
        device: Any = None,
        bounds_check_mode: Any = BoundsCheckMode.WARNING,
        uvm_non_rowwise_momentum: bool = False,
        use_experimental_tbe: bool = False,
        prefetch_pipeline: bool = False,
        stats_reporter_config: Any = None,
        table_names: list[str] | None = None,
        optimizer_state_dtypes: Any = None,
        multipass_prefetch_config: Any = None,
        global_weight_decay: Any = None,
        uvm_host_mapped: bool = False,
        extra_optimizer_config: Any = None,
        tbe_input_multiplexer_config: Any = None,
        embedding_table_index_type: torch.dtype = torch.int64,
        embedding_table_offset_type: torch.dtype = torch.int64,
        embedding_shard_info: Any = None,
        enable_raw_embedding_streaming: bool = False,
        res_params: Any = None,
        is_qr_tbe: bool = False,
        preallocated_host_buffers: dict[str, Tensor] | None = None,
    ) -> None:
        given = dict(locals())
        super().__init__()
        self._begin(
            {name: value for name, value in given.items() if name not in ("self", "__class__")}
        )

    def _begin(self, given: dict[str, Any]) -> None:
        for name in REFUSED:
            if given[name]:
                raise ConfigError(f"{name} is not in neocpu")
        specs = [tuple(spec) for spec in given["embedding_specs"]]
        for spec in specs:
            if len(spec) > 2 and (
                spec[2] != EmbeddingLocation.HOST or spec[3] != ComputeDevice.CPU
            ):
                raise ConfigError(f"table {spec}: neocpu keeps tables on HOST and computes on CPU")
        if given["device"] is not None and torch.device(given["device"]).type != "cpu":
            raise ConfigError(f"device {given['device']}: neocpu computes on the CPU")
        self._make_features(specs, given)
        self._make_options(given)
        buffers = dict(given["preallocated_host_buffers"] or {})
        dtype = of(SparseType, given["weights_precision"]).as_dtype()
        self._make_weights(self.form, dtype, buffers.pop("weights", None))
        self._make_states(self.choice.rule, buffers)
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
        """Rows of the features, pooled: [B, sum of their dimensions]; NONE: [n, D]; variable
        batches: flat.

        indices int[n], offsets int[F*B+1] (feature-major), per_sample_weights float[n];
        feature_requires_grad int[F]: whose weights get a gradient; batch_size_per_feature_per_rank
        [F][R]: samples, where they vary, the result then being rank after rank, feature after
        feature. The other arguments have no meaning here. In modes WARNING and IGNORE the caller's
        indices and offsets are mended in place, as in FBGEMM. Raises OutOfBounds.
        """
        if vbe_output is not None or vbe_output_offsets is not None:
            raise ConfigError("vbe_output: not for the CPU, in FBGEMM either")
        sizes = None
        if batch_size_per_feature_per_rank is not None:
            sizes = np.array(batch_size_per_feature_per_rank, np.int64).reshape(
                len(self._table), -1
            )
        weights = None if per_sample_weights is None else per_sample_weights.float()
        asked = self._asked(indices, offsets, weights, sizes)
        self.step += 1
        self._average()
        wanted = autograd.wanted_features(feature_requires_grad, len(self._table))
        return autograd.FusedLookup.apply(
            self.placeholder_autograd_tensor, weights, self, asked, wanted
        )

    def _asked(
        self, indices: Tensor, offsets: Tensor, weights: Tensor | None, sizes: Any
    ) -> engine.LookupRequest:
        if self.embedding_table_index_type == torch.int32:
            indices = indices.to(torch.int32)
        offsets = offsets.to(indices.dtype)
        first = bag_cuts(len(self._table), bounds.as_numpy(offsets), sizes)
        if self.bounds_check_mode_int in bounds.CHECKED:
            batches = (
                {}
                if sizes is None
                else {"B_offsets": torch.from_numpy(first), "max_B": int(sizes.sum(1).max())}
            )
            rows = self.rows_per_table
            mode = self.bounds_check_mode_int
            count = self.bounds_check_warning
            bounds.bounds_check_indices(rows, indices, offsets, mode, count, weights, **batches)
        index = bounds.as_numpy(indices)
        ends = bounds.as_numpy(offsets)
        bounds.refuse_outside(self.rows_per_table.numpy(), index, ends, first)
        factors = engine.NONE if weights is None else weights.detach().contiguous().numpy()
        if factors.size != index.size and weights is not None:
            raise bounds.OutOfBounds(f"{index.size} indices, but {factors.size} per-sample weights")
        return engine.LookupRequest(
            self._table, self._wide, index, ends, factors, self.pooling, sizes
        )

    def look_up(self, asked: engine.LookupRequest) -> Tensor:
        """The result of a request, in the output's format."""
        return torch.from_numpy(engine.look_up(*self.codes(), self.form, asked)).to(self._out)

    def _optimizer(self) -> Any:
        return optimizer_of(self.choice, self.optimizer_args, self.rate(), self.max_counter.item())

    def _average(self) -> None:
        """EMAINPLACE: every `step_ema` updates the second half of each row moves towards the first,
        before the lookup.
        """
        if self.choice.kind is not EmbOptimType.EMAINPLACE_ROWWISE_ADAGRAD or not self.training:
            return
        step = int(self.iter.item()) + 1
        mode = self.emainplace
        if step % int(mode.step_ema) or step < int(mode.step_start) or step == self._averaged:
            return
        self._averaged = step
        for table in self.split_embedding_weights():
            if table.shape[1] % 2:
                raise ConfigError(
                    f"dimension {table.shape[1]}: EMAINPLACE_ROWWISE_ADAGRAD needs two halves"
                )
            half = table.shape[1] // 2
            table[:, half:].lerp_(table[:, :half], mode.step_ema_coef)

    # ---- backward ----

    def update(self, asked: engine.LookupRequest, grad: Tensor, wanted: Any) -> Tensor | None:
        """The fused update; gradient of the per-sample weights of features wanted bool[F] (None: of
        none), taken before.
        """
        if self.writeback is not None:
            asked = engine.first_occurrences(asked, self.writeback)
        args = self.optimizer_args
        step = int(self.iter.item()) + 1
        call = engine.call_of(asked)
        limit = args.max_gradient if args.gradient_clipping else 0.0
        given = engine.clipped(grad.detach().float().numpy(), limit)
        found = None
        if wanted is not None:
            found = torch.from_numpy(
                engine.weight_gradient(*self.codes(), self.form, asked, given, wanted)
            )
        self._count(step)
        optimizer = self._optimizer()
        given = engine.divided(given, call)
        if self.form == "fp32":
            engine.update(self.tables(optimizer), call, given, step)
        else:
            borrowed = Borrowed(self, call, optimizer)
            engine.update(borrowed.tables, borrowed.call, given, step)
            borrowed.give_back(step, bool(args.stochastic_rounding))
        self.iter.fill_(step)
        return found

    def _count(self, step: int) -> None:
        """The largest counter, looked for every `max_counter_update_freq` updates."""
        every = self.choice.max_counter_update_freq
        if every > 0 and step % every == 0:
            self.max_counter[0] = self.row_counter_host.detach().max() + 1
