"""Which implementations look up fp16 and int8 rows? Ours and FBGEMM's, on the same bytes.

FBGEMM's training tables take fp16, its inference tables fp16 and int8.
Rows of the int8 inference tables are fp16 scale and bias, then the codes (our `nbit8`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals import preload
from benchmarks.shapes import Lookup

# Our format of the rows of each precision.
FORMATS = {"fp16": "fp16", "int8": "nbit8"}


@dataclass(frozen=True)
class Tables:
    """Rows of all tables of a shape in one format, for all contenders: codes u8[T, E, bytes]."""

    shape: Lookup
    precision: str
    codes: NDArray[np.uint8]

    @classmethod
    def draw(cls, shape: Lookup, precision: str) -> "Tables":
        """Random rows."""
        rng = np.random.default_rng(5)
        T = shape.tables
        E = shape.rows
        D = shape.dim
        if precision == "fp16":
            table_codes = rng.standard_normal((E, D), np.float32).astype(np.float16).view(np.uint8)
        else:
            table_codes = rng.integers(0, 256, (E, D + 4), dtype=np.uint8)
            table_codes[:, :4] = (
                (rng.standard_normal((E, 2)) * 0.01).astype(np.float16).view(np.uint8)
            )
        return cls(shape, precision, np.broadcast_to(table_codes, (T, *table_codes.shape)))


class NeocpuNarrow:
    """`neocpu.peers.arrays.lookup`: bounds check, decoding, exact sums, a new output."""

    def __init__(self, tables: Tables, batches: list[NDArray[np.int64]]) -> None:
        from neocpu.parallel.transport.buffers import in_lines
        from neocpu.peers import arrays as operators

        shape = tables.shape
        self._lookup = operators.lookup
        self._batches = batches
        self._offsets = shape.offsets()
        dtype = np.uint16 if tables.precision == "fp16" else np.uint8
        # as a table's rows in memory are
        codes = in_lines(tables.codes.size, np.dtype(np.uint8))
        codes[:] = tables.codes.reshape(-1)
        self._weights = codes.view(dtype)
        self._shape = (
            np.full(shape.tables, shape.rows),
            np.full(shape.tables, shape.dim),
            np.arange(shape.tables),
        )
        self._format = FORMATS[tables.precision]

    def forward(self, i: int) -> NDArray[np.float32]:
        """Pooled rows f32[B, T*D] of batch i."""
        rows = self._batches[i % len(self._batches)]
        return self._lookup(
            self._weights, *self._shape, rows, self._offsets, weights_format=self._format
        )


class FbgemmNarrow:
    """FBGEMM's CPU tables of one precision: for training (fp16), or for inference (fp16, int8)."""

    def __init__(self, tables: Tables, batches: list[NDArray[np.int64]], training: bool) -> None:
        preload()
        import torch

        self._torch = torch
        shape = tables.shape
        self._tbe = _training(shape) if training else _inference(shape, tables.precision)
        if training:
            table_codes = self._tbe.split_embedding_weights()
        else:
            table_codes = [
                w for w, _ in self._tbe.split_embedding_weights(split_scale_shifts=False)
            ]
        for table, codes in zip(table_codes, tables.codes, strict=True):
            table.view(torch.uint8).copy_(torch.from_numpy(np.array(codes)))
        kind = torch.int64 if training else torch.int32
        self._rows = [torch.from_numpy(b).to(kind) for b in batches]
        self._offsets = torch.from_numpy(shape.offsets()).to(kind)

    def forward(self, i: int) -> NDArray[np.float32]:
        """Pooled rows f32[B, T*D] of batch i."""
        with self._torch.no_grad():
            pooled: NDArray[np.float32] = self._tbe(
                self._rows[i % len(self._rows)], self._offsets
            ).numpy()
        return pooled


def _training(shape: Lookup) -> Any:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    return SplitTableBatchedEmbeddingBagsCodegen(
        [(shape.rows, shape.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * shape.tables,
        optimizer=EmbOptimType.EXACT_SGD,
        weights_precision=SparseType.FP16,
        output_dtype=SparseType.FP32,
    )


def _inference(shape: Lookup, precision: str) -> Any:
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
        IntNBitTableBatchedEmbeddingBagsCodegen,
    )

    kind = {"fp16": SparseType.FP16, "int8": SparseType.INT8}[precision]
    tbe = IntNBitTableBatchedEmbeddingBagsCodegen(
        [("", shape.rows, shape.dim, kind, EmbeddingLocation.HOST)] * shape.tables,
        device="cpu",
        output_dtype=SparseType.FP32,
    )
    tbe.initialize_weights()
    return tbe
