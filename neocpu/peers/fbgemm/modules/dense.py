"""What if torch's optimizer trains the tables? DenseTableBatchedEmbeddingBagsCodegen has gradients.

Its tables are one parameter with a dense gradient, and nothing is fused into the backward.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from neocpu.core.errors import ConfigError
from neocpu.core.types import Floats, Ints
from neocpu.peers.fbgemm.modules import autograd, compiled, engine
from neocpu.peers.fbgemm.modules.compiled import Compilable
from neocpu.peers.fbgemm.modules.module import output_of
from neocpu.peers.fbgemm.names import Option, PoolingMode, SparseType, of
from neocpu.peers.fbgemm.operators import bounds
from neocpu.tables.specs.optimizers import SparseOptimizer

# The engine merges gradients here but updates nothing.
PLAIN = SparseOptimizer("none")


class DenseTableBatchedEmbeddingBagsCodegen(Compilable):
    """Table-batched embedding whose parameter `weights`, all tables in a row, has a dense gradient.

    embedding_specs : (rows, columns) of each table. weights_precision : fp32 (others are refused).
    output_dtype : fp32, fp16, bf16. The gradient of a row is the exact sum of its lookups' terms,
    rounded once; rows without a lookup get +0. Raises ConfigError. FBGEMM: the class of this name.
    """

    def __init__(
        self,
        embedding_specs: Sequence[tuple[int, int]],
        feature_table_map: list[int] | None = None,
        weights_precision: Option = SparseType.FP32,
        pooling_mode: Option = PoolingMode.SUM,
        use_cpu: bool = False,
        output_dtype: Option = SparseType.FP32,
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
        self.output_dtype, self._output = output_of(output_dtype)
        self.feature_table_map = tables
        self._feature_table = np.array(tables, np.int64)
        self._feature_dims = np.array([dims[t] for t in tables], np.int64)
        if self.pooling == "none" and len(set(dims)) > 1:
            raise ConfigError("pooling_mode NONE: all tables must have the same dimension")
        self.total_D = int(self._feature_dims.sum())
        self.max_D = max(dims)
        names = [f"table-{i}" for i in range(len(rows))]
        self._table_shapes = (names, np.array(rows, np.int64), np.array(dims, np.int64))
        base = np.append(0, np.cumsum(rows))
        self.weights_physical_offsets = [
            0,
            *np.cumsum([r * d for r, d in self.embedding_specs]).tolist(),
        ]
        self.register_buffer(
            "D_offsets", torch.tensor([0, *np.cumsum(self._feature_dims)], dtype=torch.int32)
        )
        self.register_buffer("feature_dims", torch.from_numpy(self._feature_dims.copy()))
        self.register_buffer(
            "hash_size_cumsum", torch.from_numpy(np.append(base[self._feature_table], base[-1]))
        )
        # FBGEMM draws them so.
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
        """As `SplitTableBatchedEmbeddingBagsCodegen.forward`, but indices are never repaired.

        Raises OutOfBounds for an index outside its table.
        """
        weights = None if per_sample_weights is None else per_sample_weights.float()
        sizes = compiled.sizes_of(batch_size_per_feature_per_rank)
        if torch.compiler.is_compiling():
            dims = [self.embedding_specs[t][1] for t in self.feature_table_map]
            pooled = self.pooling != "none"
            shape = compiled.output_shape(indices, offsets, dims, sizes, pooled)
            lookup = (indices, offsets, feature_requires_grad, sizes, self.handle)
            return torch.ops.neocpu.dense_lookup(
                self.weights, weights, *lookup, shape, self._output
            )
        batch = self.feature_batch(indices, offsets, weights, sizes)
        features = autograd.features_with_gradient(feature_requires_grad, self._feature_table.size)
        return autograd.DenseLookup.apply(self.weights, weights, self, batch, features)

    def feature_batch(
        self, indices: Tensor, offsets: Tensor, weights: Tensor | None, sizes: Sequence[int]
    ) -> engine.FeatureBatch:
        """The arguments of `forward` as the engine takes them; sizes : [F, R] flat, or empty.

        Raises OutOfBounds.
        """
        batch_sizes = None
        if sizes:
            batch_sizes = np.array(sizes, np.int64).reshape(len(self._feature_table), -1)
        index_array = bounds.as_numpy(indices)
        offset_array = bounds.as_numpy(offsets)
        weight_array = engine.NONE if weights is None else weights.detach().contiguous().numpy()
        batch = engine.FeatureBatch(
            self._feature_table,
            self._feature_dims,
            index_array,
            offset_array,
            weight_array,
            self.pooling,
            batch_sizes,
        )
        # Nothing is repaired here, and an index outside would read another table's rows.
        bounds.refuse_outside(
            self._table_shapes[1][self._feature_table], index_array, offset_array, batch.first_bag
        )
        return batch

    def _codes(self) -> tuple[Floats, Ints, Ints, str]:
        return self.weights.detach().numpy(), self._table_shapes[1], self._table_shapes[2], "fp32"

    def look_up(self, batch: engine.FeatureBatch) -> Tensor:
        """The pooled output, in the output's format."""
        return torch.from_numpy(engine.look_up(*self._codes(), batch)).to(self._output)

    def forward_pass(self, batch: engine.FeatureBatch) -> Tensor:
        """`look_up`: a forward pass changes nothing here."""
        return self.look_up(batch)

    def gradients(
        self,
        batch: engine.FeatureBatch,
        grad: Tensor,
        row_grad_needed: bool,
        features: autograd.Flags | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of `weights` and of the per-sample weights, each None unless it is needed.

        row_grad_needed : whether to compute the first. features : bool[F], whose per-sample weights
            get a gradient, or None.
        """
        # The engine divides in place, so it needs a copy of its own.
        gradient = engine.clipped(grad.detach().float().numpy(), 0.0)
        weight_grad = None
        if features is not None:
            weight_grad = torch.from_numpy(
                engine.weight_gradient(*self._codes(), batch, gradient, features)
            )
        if not row_grad_needed:
            return None, weight_grad
        tables = engine.ExternalTables(*self._table_shapes, PLAIN)
        table_batch = engine.sort_by_table(batch)
        # Dense: rows without a lookup have the gradient +0.
        row_grad = torch.zeros_like(self.weights)
        for table, (rows, values) in engine.unique_gradient(
            tables, table_batch, engine.divided(gradient, table_batch)
        ).items():
            self._split(row_grad)[table].numpy()[rows] = values
        return row_grad, weight_grad

    def _split(self, flat: Tensor) -> list[Tensor]:
        starts = self.weights_physical_offsets
        return [
            flat.detach()[start : start + r * d].view(r, d)
            for start, (r, d) in zip(starts, self.embedding_specs)
        ]

    def split_embedding_weights(self) -> list[Tensor]:
        """The rows of every table [rows, columns], in place."""
        return self._split(self.weights)

    def init_embedding_weights_uniform(self, min_val: float, max_val: float) -> None:
        """Uniform rows from torch's generator."""
        for table in self.split_embedding_weights():
            table.uniform_(min_val, max_val)
