"""Which rivals are measured? torch and FBGEMM CPU, with the same weights and lookups as ours.

torch and FBGEMM are imported only inside functions, as most machines lack them.
"""

import importlib.util
import sys
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.shapes import Lookup, Model, Sample

# Learning rate of every optimizer.
RATE = 0.01


def have(*modules: str) -> bool:
    """Whether all these packages are installed; prints on stderr which are not."""
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if missing:
        print(
            f"skipped: {', '.join(missing)} not installed (pip install -e '.[peers]')",
            file=sys.stderr,
        )
    return not missing


def preload() -> None:
    """Load torch and FBGEMM before ours sets how long OpenMP threads spin.

    Rivals so keep their own default.
    """
    if have("torch", "fbgemm_gpu"):
        import fbgemm_gpu  # noqa: F401
        import torch

        torch.zeros(1 << 20).add_(1)


def threads(count: int) -> None:
    """Let torch and FBGEMM use `count` threads."""
    import torch

    torch.set_num_threads(count)


def fbgemm(rows: tuple[int, ...], dim: int, rate: float = RATE) -> Any:
    """FBGEMM's CPU table-batched embedding: fp32, SUM, fused row-wise AdaGrad."""
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    torch.manual_seed(0)
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(r, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for r in rows],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=rate,
        eps=1e-8,
        weights_precision=SparseType.FP32,
        pooling_mode=PoolingMode.SUM,
    )


class FbgemmLookup:
    """FBGEMM CPU on one `Lookup` shape."""

    def __init__(
        self, shape: Lookup, weights: list[NDArray[np.float32]], batches: list[NDArray[np.int64]]
    ) -> None:
        import torch

        self._tbe = fbgemm((shape.rows,) * shape.tables, shape.dim)
        for table, weight in zip(self._tbe.split_embedding_weights(), weights, strict=True):
            table.copy_(torch.from_numpy(weight))
        self._rows = [torch.from_numpy(b) for b in batches]
        self._offsets = torch.from_numpy(shape.offsets())
        self._grad = torch.from_numpy(gradient(shape))
        self._out: Any = None

    @property
    def tables(self) -> list[Any]:
        """Views f32[E, D] of the weights."""
        return self._tbe.split_embedding_weights()

    def forward(self, i: int) -> NDArray[np.float32]:
        """Pooled rows f32[B, T*D] of batch i."""
        self._out = self._tbe(self._rows[i % len(self._rows)], self._offsets)
        return self._out.detach().numpy()

    def backward(self, _: int) -> None:
        """Backward and update of the last forward."""
        self._out.backward(self._grad)


class TorchLookup:
    """torch `embedding_bag` per table, on the tensors it is given; sparse gradients and torch's
    Adagrad.

    torch has no row-wise AdaGrad: its update does more arithmetic per row than ours.
    """

    def __init__(
        self, shape: Lookup, tables: list[Any], batches: list[NDArray[np.int64]], train: bool
    ) -> None:
        import torch

        self._torch = torch
        self._shape = shape
        self._tables = [t.detach().clone().requires_grad_(True) if train else t for t in tables]
        self._rows = [torch.from_numpy(b).view(shape.tables, -1) for b in batches]
        self._offsets = torch.arange(0, shape.samples * shape.length, shape.length)
        self._grad = torch.from_numpy(gradient(shape))
        self._train = train
        self._optimizer: Any = torch.optim.Adagrad(self._tables, lr=RATE) if train else None
        self._out: Any = None

    def forward(self, i: int) -> Any:
        """Pooled rows of batch i, one tensor per table."""
        rows = self._rows[i % len(self._rows)]
        bag = self._torch.nn.functional.embedding_bag
        with self._torch.set_grad_enabled(self._train):
            pooled = [
                bag(rows[t], w, self._offsets, mode="sum", sparse=self._train)
                for t, w in enumerate(self._tables)
            ]
            self._out = self._torch.cat(pooled, 1) if self._train else pooled
        return self._out

    def backward(self, _: int) -> None:
        """Backward and update of the last forward."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own sparse tensors
            self._optimizer.zero_grad()
            self._out.backward(self._grad)
            self._optimizer.step()


def gradient(shape: Lookup) -> NDArray[np.float32]:
    """Gradient of the pooled rows f32[B, T*D], the same for all contenders."""
    rng = np.random.default_rng(3)
    return rng.standard_normal((shape.samples, shape.tables * shape.dim), np.float32)


def _mlp(sizes: tuple[int, ...], inputs: int, last_relu: bool) -> Any:
    from torch import nn

    layers: list[Any] = []
    for n, out in enumerate(sizes):
        layers.append(nn.Linear(inputs, out))
        if last_relu or n < len(sizes) - 1:
            layers.append(nn.ReLU())
        inputs = out
    return nn.Sequential(*layers)


class TorchDlrm:
    """A DLRM of torch MLPs, compiled by `torch.compile` or not, and FBGEMM's fused embedding,
    torch's fastest on a CPU.
    """

    def __init__(self, model: Model, batches: list[Sample], compiled: bool = False) -> None:
        import torch

        self._torch = torch
        self._model = model
        torch.manual_seed(0)
        self._bottom = _mlp(model.bottom, 13, True)
        self._top = _mlp(model.top, model.interactions, False)
        if compiled:
            self._bottom.compile()
            self._top.compile()
        self._tbe = fbgemm(model.rows, model.dim)
        self._optimizer = torch.optim.SGD(
            [*self._bottom.parameters(), *self._top.parameters()], lr=0.1
        )
        self._pairs = torch.tril_indices(27, 27, -1)
        self._offsets = torch.arange(26 * model.samples + 1)
        names = ("dense", "rows", "labels")
        self._batches = [[torch.from_numpy(getattr(b, n)) for n in names] for b in batches]

    def step(self, i: int) -> float:
        """One training step on batch i; its loss."""
        torch = self._torch
        dense, rows, labels = self._batches[i % len(self._batches)]
        self._optimizer.zero_grad()
        x = self._bottom(dense)
        pooled = self._tbe(rows.view(-1), self._offsets).view(
            self._model.samples, 26, self._model.dim
        )
        E = torch.cat([x.unsqueeze(1), pooled], 1)
        products = torch.bmm(E, E.transpose(1, 2))[:, self._pairs[0], self._pairs[1]]
        logits = self._top(torch.cat([x, products], 1)).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())
