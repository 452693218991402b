"""What if the optimizer is somebody else's? DenseTableBatchedEmbeddingBagsCodegen: a parameter with
a dense gradient.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.errors import ConfigError
from neocpu.peers.fbgemm import autograd, bounds, engine
from neocpu.peers.fbgemm.module import output_of
from neocpu.peers.fbgemm.names import PoolingMode, SparseType, of

PLAIN = SparseOptimizer("none")


class DenseTableBatchedEmbeddingBagsCodegen(nn.Module):
    """Table-batched embedding whose `weights`, all tables one after the other, get a dense
    gradient.

    embedding_specs : (rows, columns) of each table. weights_precision : fp32 (others are refused).
    output_dtype : fp32, fp16, bf16. The gradient of a row is the exact sum of its lookups' terms,
    rounded once; rows without a lookup get +0. Raises ConfigError. FBGEMM: the class of this name.
    """

    def __init__(
        self,
        embedding_specs: Sequence[tuple[int, int]],
        feature_table_map: list[int] | None = None,
        weights_precision: Any = SparseType.FP32,
        pooling_mode: Any = PoolingMode.SUM,
        use_cpu: bool = False,
        output_dtype: Any = SparseType.FP32,
        use_mtia: bool = False,
    ) -> None:
        super().__init__()
        if use_mtia or of(SparseType, weights_precision) is not SparseType.FP32:
            raise ConfigError("dense tables are fp32 on the CPU in neocpu")
        self.embedding_specs = [(int(r), int(d)) for r, d in embedding_specs]
        self.use_cpu = True
        rows, dims = zip(*self.embedding_specs)
        tables = list(range(len(rows))) if feature_table_map is None else feature_table_map
        self.pooling_mode = pooling_mode
        self.pooling = of(PoolingMode, pooling_mode).name.lower()
        self.weights_precision = weights_precision
        self.current_device = torch.device("cpu")
        self.output_dtype, self._out = output_of(output_dtype)
        self._table = np.array(tables, np.int64)
        self._wide = np.array([dims[t] for t in tables], np.int64)
        if self.pooling == "none" and len(set(dims)) > 1:
            raise ConfigError("pooling_mode NONE: all tables must have the same dimension")
        self.total_D = int(self._wide.sum())
        self.max_D = max(dims)
        names = [f"table-{i}" for i in range(len(rows))]
        self._shape = (names, np.array(rows, np.int64), np.array(dims, np.int64))
        base = np.append(0, np.cumsum(rows))
        self.weights_physical_offsets = [
            0,
            *np.cumsum([r * d for r, d in self.embedding_specs]).tolist(),
        ]
        self.register_buffer(
            "D_offsets", torch.tensor([0, *np.cumsum(self._wide)], dtype=torch.int32)
        )
        self.register_buffer("feature_dims", torch.from_numpy(self._wide.copy()))
        self.register_buffer(
            "hash_size_cumsum", torch.from_numpy(np.append(base[self._table], base[-1]))
        )
        self.weights = nn.Parameter(torch.randn(self.weights_physical_offsets[-1]))
        self.register_buffer(
            "weights_offsets", torch.tensor([self.weights_physical_offsets[t] for t in tables])
        )

    def forward(
        self,
        indices: Tensor,
        offsets: Tensor,
        per_sample_weights: Tensor | None = None,
        feature_requires_grad: Tensor | None = None,
        batch_size_per_feature_per_rank: list[list[int]] | None = None,
    ) -> Tensor:
        """As `SplitTableBatchedEmbeddingBagsCodegen.forward`; indices are not checked into range
        but refused.
        """
        weights = None if per_sample_weights is None else per_sample_weights.float()
        asked = self.asked(indices, offsets, weights, batch_size_per_feature_per_rank)
        wanted = autograd.wanted_features(feature_requires_grad, self._table.size)
        return autograd.DenseLookup.apply(self.weights, weights, self, asked, wanted)

    def asked(
        self, indices: Tensor, offsets: Tensor, weights: Tensor | None, batches: Any
    ) -> engine.LookupRequest:
        """The request that `forward` answers. Raises OutOfBounds."""
        sizes = (
            None if batches is None else np.array(batches, np.int64).reshape(len(self._table), -1)
        )
        index = bounds.as_numpy(indices)
        ends = bounds.as_numpy(offsets)
        factors = engine.NONE if weights is None else weights.detach().contiguous().numpy()
        asked = engine.LookupRequest(
            self._table, self._wide, index, ends, factors, self.pooling, sizes
        )
        bounds.refuse_outside(self._shape[1][self._table], index, ends, asked.first)
        return asked

    def _codes(self) -> tuple[Any, Any, Any, str]:
        return self.weights.detach().numpy(), self._shape[1], self._shape[2], "fp32"

    def look_up(self, asked: engine.LookupRequest) -> Tensor:
        """The result of a request, in the output's format."""
        return torch.from_numpy(engine.look_up(*self._codes(), asked)).to(self._out)

    def gradients(
        self, asked: engine.LookupRequest, grad: Tensor, rows: bool, wanted: Any
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradient of `weights`, if asked for, and of the per-sample weights of features wanted
        bool[F] (None: of none).
        """
        given = engine.clipped(grad.detach().float().numpy(), 0.0)
        of_weights = None
        if wanted is not None:
            of_weights = torch.from_numpy(
                engine.weight_gradient(*self._codes(), asked, given, wanted)
            )
        if not rows:
            return None, of_weights
        tables = engine.CallerTables(*self._shape, PLAIN)
        call = engine.call_of(asked)
        dense = torch.zeros_like(self.weights)
        for table, (unique, values) in engine.unique_gradient(
            tables, call, engine.divided(given, call)
        ).items():
            self._split(dense)[table].numpy()[unique] = values
        return dense, of_weights

    def _split(self, flat: Tensor) -> list[Tensor]:
        starts = self.weights_physical_offsets
        return [
            flat.detach()[at : at + r * d].view(r, d)
            for at, (r, d) in zip(starts, self.embedding_specs)
        ]

    def split_embedding_weights(self) -> list[Tensor]:
        """The rows of every table [rows, columns], in place."""
        return self._split(self.weights)

    def init_embedding_weights_uniform(self, min_val: float, max_val: float) -> None:
        """Uniform rows from torch's generator."""
        for table in self.split_embedding_weights():
            table.uniform_(min_val, max_val)
