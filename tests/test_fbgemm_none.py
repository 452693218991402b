"""Do modules without an optimizer (OptimType.NONE) give the oracle's gradients, bit for bit?"""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")

from neocpu.core.errors import ConfigError  # noqa: E402
from neocpu.oracle import OPERATORS  # noqa: E402
from neocpu.peers.fbgemm import (  # noqa: E402
    EmbOptimType,
    SplitTableBatchedEmbeddingBagsCodegen,
)

ROWS = (7, 5)
DIM = 4
FEATURES = (1, 0, 0)


def tables(seed: int = 0) -> dict[str, Any]:
    """Rows of two tables of one dimension."""
    rng = np.random.default_rng(seed)
    return {
        "weights": rng.standard_normal(sum(ROWS) * DIM).astype(np.float32),
        "rows": np.array(ROWS),
        "dims": np.array([DIM, DIM]),
        "feature_table": np.array(FEATURES),
    }


def batch(seed: int, samples: int = 3, pruned: bool = True) -> dict[str, Any]:
    """Ragged bags with duplicates, and a gradient of their sums."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, samples * len(FEATURES))
    heights = np.repeat(np.array(ROWS)[list(FEATURES)], samples)
    indices = np.concatenate(
        [rng.integers(0, h, n) for h, n in zip(heights, lengths)] + [np.empty(0, np.int64)]
    )
    if pruned:
        indices[rng.random(indices.size) < 0.1] = -1
    gradient = rng.standard_normal((samples, DIM * len(FEATURES))).astype(np.float32)
    offsets = np.append(0, np.cumsum(lengths))
    return {"indices": indices, "offsets": offsets, "grad_output": gradient}


def module_of(inputs: dict[str, Any], **options: Any) -> Any:
    """A module that holds the rows."""
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, DIM) for rows in ROWS], list(FEATURES), **options
    )
    with torch.no_grad():
        values = torch.from_numpy(inputs["weights"].copy()).to(module.weights_host.dtype)
        module.weights_host.copy_(values.view(module.weights_host.shape))
    return module


def same_bits(tensor: Any, array: Any) -> bool:
    """Whether a tensor's bytes are an array's."""
    stored = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return bool(stored.tobytes() == np.ascontiguousarray(array).tobytes())


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
def test_without_an_optimizer_rows_get_a_sparse_gradient(pooling: str) -> None:
    inputs = {**tables(), **batch(1)}
    if pooling == "none":
        shape = (inputs["indices"].size, DIM)
        inputs["grad_output"] = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    module = module_of(inputs, optimizer=EmbOptimType.NONE, pooling_mode=pooling)
    rows_before = module.weights_host.detach().clone()
    out = module(
        torch.from_numpy(inputs["indices"]),
        torch.from_numpy(inputs["offsets"]),
        total_unique_indices=3,
    )
    out.backward(torch.from_numpy(inputs["grad_output"]))
    expected = OPERATORS["unique_gradient"].run(inputs, {"pooling": pooling}, "reference")
    gradient = module.weights_host.grad
    assert gradient.is_sparse and gradient.shape == (sum(ROWS), DIM)
    gradient = gradient.coalesce()
    assert gradient.indices()[0].tolist() == expected["rows"].tolist()
    assert same_bits(gradient.values(), expected["values"])
    assert module.weights_host.detach().equal(rows_before)
    torch.optim.SGD([module.weights_host], lr=1.0).step()
    touched = torch.from_numpy(expected["rows"])
    changed = rows_before[touched] - gradient.values()
    assert module.weights_host.detach()[touched].equal(changed)
    assert module.split_embedding_weights()[1].shape == (ROWS[1], DIM)
    with pytest.raises(NotImplementedError, match="no optimizer states"):
        module.split_optimizer_states()


def test_the_gradient_of_weights_and_clipping_without_an_optimizer() -> None:
    inputs = {**tables(), **batch(1, pruned=False)}
    module = module_of(
        inputs, optimizer="none", gradient_clipping=True, max_gradient=0.5, weights_precision="fp16"
    )
    weights = torch.linspace(-1, 1, inputs["indices"].size).requires_grad_()
    out = module(torch.from_numpy(inputs["indices"]), torch.from_numpy(inputs["offsets"]), weights)
    out.backward(torch.from_numpy(inputs["grad_output"]))
    stored = module.weights_host.detach().float().numpy().reshape(-1)
    clipped = np.clip(inputs["grad_output"], -0.5, 0.5)
    question = {
        **inputs,
        "weights": stored,
        "grad_output": clipped,
        "per_sample_weights": weights.detach().numpy(),
    }
    expected = OPERATORS["unique_gradient"].run(question, {}, "reference")
    gradient = module.weights_host.grad.coalesce()
    assert gradient.dtype == torch.float16
    narrow = torch.from_numpy(expected["values"]).view(-1, DIM).half()
    assert gradient.values().equal(narrow)
    question.pop("per_sample_weights")
    expected = OPERATORS["weight_gradient"].run(question, {}, "reference")
    assert weights.grad.numpy().tobytes() == expected["per_sample_weights_grad"].tobytes()
    with pytest.raises(ConfigError, match=r"OptimType\.NONE"):
        SplitTableBatchedEmbeddingBagsCodegen([(5, 4)], optimizer="none", weights_precision="int8")
    with pytest.raises(ConfigError, match=r"OptimType\.NONE"):
        SplitTableBatchedEmbeddingBagsCodegen([(5, 4), (5, 8)], optimizer="none")
