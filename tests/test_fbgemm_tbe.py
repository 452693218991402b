"""Do the modules with FBGEMM's names give neocpu's bits, and FBGEMM's numbers within what its own arithmetic may err?

Bits: the oracle's canonical operators on the same arrays. FBGEMM: its CPU module, where it has one, against the oracle's exact
model; what it lacks on a CPU (Adam, LAMB, …) is compared with torch's optimizers and with formulas elsewhere
(tests/test_oracle_truth*.py, tests/test_torch.py): the module gives those bits.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")

from neocpu.oracle import OPERATORS  # noqa: E402
from neocpu.oracle.fbgemm import (  # noqa: E402
    EmbOptimType,
    PoolingMode,
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)
from neocpu.reference.rules import RULES  # noqa: E402

OPTIMIZERS = {
    EmbOptimType.EXACT_SGD: "exact_sgd",
    EmbOptimType.EXACT_ADAGRAD: "exact_adagrad",
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: "exact_rowwise_adagrad",
    EmbOptimType.ADAM: "adam",
    EmbOptimType.PARTIAL_ROWWISE_ADAM: "partial_rowwise_adam",
    EmbOptimType.LAMB: "lamb",
    EmbOptimType.PARTIAL_ROWWISE_LAMB: "partial_rowwise_lamb",
    EmbOptimType.LARS_SGD: "lars_sgd",
}
STATES = ("momentum1_host", "momentum2_host", "prev_iter_host", "row_counter_host")


@dataclass(frozen=True)
class Batch:
    """Tables and one batch of lookups, as arrays of the oracle."""

    rows: Any
    dims: Any
    table: Any
    arrays: dict[str, Any]
    pooling: str

    def tensor(self, name: str) -> Any:
        """A fresh tensor of an array."""
        return torch.from_numpy(self.arrays[name].copy())


def batch_of(seed: int, pooling: str, weighted: bool, B: int = 5, pruned: bool = True) -> Batch:
    """Shared and unsorted tables, empty bags, one hot row, -1, numbers of very different size."""
    rng = np.random.default_rng(seed)
    rows, dims = np.array([7, 1, 40]), np.array([4, 4, 4] if pooling == "none" else [4, 8, 12])
    table = np.array([2, 0, 1, 2])
    lengths = rng.integers(0, 5, table.size * B)
    limit = np.repeat(rows[table], B)
    indices = np.concatenate([rng.integers(0, h, n) for h, n in zip(limit, lengths)] + [np.empty(0, np.int64)])
    indices[rng.random(indices.size) < 0.3] = 0
    if pruned:
        indices[rng.random(indices.size) < 0.1] = -1
    size = int((rows * dims).sum())
    width = int(dims[table].sum())
    arrays = {
        "weights": (rng.standard_normal(size) * 2.0 ** rng.integers(-20, 20, size)).astype(np.float32),
        "rows": rows,
        "dims": dims,
        "feature_table": table,
        "indices": indices.astype(np.int64),
        "offsets": np.append(0, np.cumsum(lengths)).astype(np.int64),
        "grad_output": rng.standard_normal((indices.size, 4) if pooling == "none" else (B, width)).astype(np.float32),
    }
    if weighted:
        arrays["per_sample_weights"] = rng.standard_normal(indices.size).astype(np.float32)
    return Batch(rows, dims, table, arrays, pooling)


def module_of(batch: Batch, cls: Any = SplitTableBatchedEmbeddingBagsCodegen, **options: Any) -> Any:
    """A module with the batch's rows in it."""
    mode = PoolingMode[batch.pooling.upper()]
    specs = [(int(h), int(d), 3, 0) for h, d in zip(batch.rows, batch.dims)]
    module = cls(specs, feature_table_map=batch.table.tolist(), pooling_mode=mode, **options)
    if module.weights_host.dtype == torch.float32:
        module.weights_host.data.copy_(batch.tensor("weights"))
    return module


def run(module: Any, batch: Batch) -> tuple[Any, Any]:
    """One step: the result, and the gradient of the per-sample weights."""
    weights = batch.tensor("per_sample_weights").requires_grad_() if "per_sample_weights" in batch.arrays else None
    out = module(batch.tensor("indices"), batch.tensor("offsets"), weights)
    out.backward(batch.tensor("grad_output").to(out.dtype))
    return out.detach(), None if weights is None else weights.grad


def same(a: Any, b: Any) -> None:
    """Equal to the bit; any NaN equals any."""
    a, b = np.asarray(a, np.float32).reshape(-1), np.asarray(b, np.float32).reshape(-1)
    assert a.size == b.size
    different = np.flatnonzero((a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b)))
    assert different.size == 0, f"element {different[:1]}: {a[different[:1]]} is not {b[different[:1]]}"


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_lookup_and_weight_gradient_are_canonical(pooling: str, weighted: bool) -> None:
    for seed in range(4):
        batch = batch_of(seed, pooling, weighted)
        out, gradient = run(module_of(batch), batch)
        same(out, OPERATORS["lookup"].run(batch.arrays, {"pooling": pooling}, "reference")["out"])
        if weighted and pooling == "none":
            tables = module_of(batch).split_embedding_weights()
            for j, row in enumerate(batch.arrays["indices"].tolist()):
                bag = int(np.searchsorted(batch.arrays["offsets"], j, side="right")) - 1
                x, g = tables[batch.table[bag // 5]][row].numpy(), batch.arrays["grad_output"][j]
                right = math.fsum((x.astype(np.float64) * g).tolist()) if row >= 0 else 0.0
                assert gradient[j] == np.float32(right)
        elif weighted:
            right = OPERATORS["weight_gradient"].run(batch.arrays, {"pooling": pooling}, "reference")
            same(gradient, right["per_sample_weights_grad"])


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda k: k.name)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_three_steps_are_canonical(kind: EmbOptimType, pooling: str) -> None:
    rule = OPTIMIZERS[kind]
    decayed = {"weight_decay": 0.05} if rule not in ("exact_sgd", "exact_adagrad") else {}
    mode = {"lars_sgd": "l2", "exact_rowwise_adagrad": "l2"}.get(rule, "decoupled") if decayed else "none"
    batch = batch_of(1, pooling, weighted=True)
    module = module_of(
        batch,
        optimizer=kind,
        learning_rate=0.1,
        weight_decay_mode=WeightDecayMode.L2 if rule == "exact_rowwise_adagrad" else WeightDecayMode.NONE,
        gradient_clipping=True,
        max_gradient=0.7,
        **decayed,
    )
    options = {"pooling": pooling, "optimizer": rule, "learning_rate": 0.1, "weight_decay_mode": mode, **decayed}
    arrays = dict(batch.arrays)
    for step in (1, 2, 3):
        run(module, batch)
        arrays |= OPERATORS["backward"].run(arrays, {**options, "max_gradient": 0.7, "step": step}, "reference")
    same(module.weights_host.detach(), arrays["weights"])
    names = (*RULES[rule].element_state, *RULES[rule].row_state)
    for prefix, name in zip(module._prefixes, names):
        same(getattr(module, f"{prefix}_host").detach(), arrays[name])
    states = module.get_optimizer_state()
    assert [set(s) for s in states] == [set(names)] * len(states)
    assert int(module.iter) == 3
