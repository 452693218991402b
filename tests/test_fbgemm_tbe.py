"""Do the modules with FBGEMM's names give neocpu's bits, and FBGEMM's numbers within its error?

Bits: the oracle's canonical operators on the same arrays. FBGEMM: its CPU module, where it has one,
against the oracle's exact model; what it lacks on a CPU (Adam, LAMB, …) is compared with torch's
optimizers and with formulas elsewhere (tests/test_oracle_truth*.py, tests/test_torch.py): the
module gives those bits.
"""

import contextlib
import copy
import io
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")

from neocpu.core.errors import ConfigError, IndexRangeError  # noqa: E402
from neocpu.core.rules import RULES  # noqa: E402
from neocpu.oracle import OPERATORS  # noqa: E402
from neocpu.peers.fbgemm import (  # noqa: E402
    BoundsCheckMode,
    CounterBasedRegularizationDefinition,
    CounterWeightDecayMode,
    DenseTableBatchedEmbeddingBagsCodegen,
    EmbOptimType,
    PoolingMode,
    SparseType,
    SplitTableBatchedEmbeddingBagsCodegen,
    UserEnabledConfigDefinition,
    WeightDecayMode,
)

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


@dataclass(frozen=True)
class Batch:
    """Tables and one batch of lookups, as arrays of the oracle."""

    rows: Any
    dims: Any
    table: Any
    arrays: dict[str, Any]
    pooling: str

    @property
    def lookup(self) -> dict[str, Any]:
        """The inputs of a lookup."""
        return {name: array for name, array in self.arrays.items() if name != "grad_output"}

    def tensor(self, name: str) -> Any:
        """A fresh tensor of an array."""
        return torch.from_numpy(self.arrays[name].copy())


def make_batch(
    seed: int, pooling: str, weighted: bool, B: int = 5, pruned: bool = True, order: str = "2012"
) -> Batch:
    """Shared and unsorted tables, empty bags, one hot row, -1, numbers of very different size."""
    rng = np.random.default_rng(seed)
    rows = np.array([7, 1, 40])
    dims = np.array([4, 4, 4] if pooling == "none" else [4, 8, 12])
    table = np.array([int(t) for t in order])
    lengths = rng.integers(0, 5, table.size * B)
    limit = np.repeat(rows[table], B)
    indices = np.concatenate(
        [rng.integers(0, h, n) for h, n in zip(limit, lengths)] + [np.empty(0, np.int64)]
    )
    indices[rng.random(indices.size) < 0.3] = 0
    if pruned:
        indices[rng.random(indices.size) < 0.1] = -1
    size = int((rows * dims).sum())
    width = int(dims[table].sum())
    arrays = {
        "weights": (rng.standard_normal(size) * 2.0 ** rng.integers(-20, 20, size)).astype(
            np.float32
        ),
        "rows": rows,
        "dims": dims,
        "feature_table": table,
        "indices": indices.astype(np.int64),
        "offsets": np.append(0, np.cumsum(lengths)).astype(np.int64),
        "grad_output": rng.standard_normal(
            (indices.size, 4) if pooling == "none" else (B, width)
        ).astype(np.float32),
    }
    if weighted:
        arrays["per_sample_weights"] = rng.standard_normal(indices.size).astype(np.float32)
    return Batch(rows, dims, table, arrays, pooling)


def make_module(
    batch: Batch, cls: Any = SplitTableBatchedEmbeddingBagsCodegen, **options: Any
) -> Any:
    """A module that holds the batch's rows."""
    mode = PoolingMode[batch.pooling.upper()]
    specs = [(int(h), int(d), 3, 0) for h, d in zip(batch.rows, batch.dims)]
    module = cls(specs, feature_table_map=batch.table.tolist(), pooling_mode=mode, **options)
    if module.weights_host.dtype == torch.float32:
        module.weights_host.data.copy_(batch.tensor("weights"))
    return module


def train_step(module: Any, batch: Batch) -> tuple[Any, Any]:
    """One training step: the pooled output, and the gradient of the per-sample weights."""
    weights = (
        batch.tensor("per_sample_weights").requires_grad_()
        if "per_sample_weights" in batch.arrays
        else None
    )
    out = module(batch.tensor("indices"), batch.tensor("offsets"), weights)
    out.backward(batch.tensor("grad_output").to(out.dtype))
    return out.detach(), None if weights is None else weights.grad


def assert_same_bits(a: Any, b: Any) -> None:
    """Equal bits; any NaN equals any other."""
    a = np.asarray(a, np.float32).reshape(-1)
    b = np.asarray(b, np.float32).reshape(-1)
    assert a.size == b.size
    different = np.flatnonzero(
        (a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b))
    )
    assert different.size == 0, (
        f"element {different[:1]}: {a[different[:1]]} is not {b[different[:1]]}"
    )


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_lookup_and_weight_gradient_are_canonical(pooling: str, weighted: bool) -> None:
    for seed in range(4):
        batch = make_batch(seed, pooling, weighted)
        out, gradient = train_step(make_module(batch), batch)
        assert_same_bits(
            out, OPERATORS["lookup"].run(batch.lookup, {"pooling": pooling}, "reference")["out"]
        )
        if weighted and pooling == "none":
            tables = make_module(batch).split_embedding_weights()
            for j, row in enumerate(batch.arrays["indices"].tolist()):
                bag = int(np.searchsorted(batch.arrays["offsets"], j, side="right")) - 1
                x = tables[batch.table[bag // 5]][row].numpy()
                g = batch.arrays["grad_output"][j]
                expected = math.fsum((x.astype(np.float64) * g).tolist()) if row >= 0 else 0.0
                assert gradient[j] == np.float32(expected)
        elif weighted:
            expected = OPERATORS["weight_gradient"].run(
                batch.arrays, {"pooling": pooling}, "reference"
            )
            assert_same_bits(gradient, expected["per_sample_weights_grad"])


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda k: k.name)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_three_steps_are_canonical(kind: EmbOptimType, pooling: str) -> None:
    rule = OPTIMIZERS[kind]
    decayed = {"weight_decay": 0.05} if rule not in ("exact_sgd", "exact_adagrad") else {}
    mode = (
        {"lars_sgd": "l2", "exact_rowwise_adagrad": "l2"}.get(rule, "decoupled")
        if decayed
        else "none"
    )
    batch = make_batch(1, pooling, weighted=True)
    module = make_module(
        batch,
        optimizer=kind,
        learning_rate=0.1,
        weight_decay_mode=WeightDecayMode.L2
        if rule == "exact_rowwise_adagrad"
        else WeightDecayMode.NONE,
        gradient_clipping=True,
        max_gradient=0.7,
        **decayed,
    )
    options = {
        "pooling": pooling,
        "optimizer": rule,
        "learning_rate": 0.1,
        "weight_decay_mode": mode,
        **decayed,
    }
    arrays = dict(batch.arrays)
    for step in (1, 2, 3):
        train_step(module, batch)
        arrays |= OPERATORS["backward"].run(
            arrays, {**options, "max_gradient": 0.7, "step": step}, "reference"
        )
    assert_same_bits(module.weights_host.detach(), arrays["weights"])
    names = (*RULES[rule].element_state, *RULES[rule].row_state)
    for prefix, name in zip(module._prefixes, names):
        assert_same_bits(getattr(module, f"{prefix}_host").detach(), arrays[name])
    states = module.get_optimizer_state()
    assert [set(s) for s in states] == [set(names)] * len(states)
    assert int(module.iter) == 3


def fbgemm_training() -> Any:
    """FBGEMM's own training module; skips the test where it is not installed."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            "fbgemm_gpu.split_table_batched_embeddings_ops_training",
            reason="fbgemm_gpu is not installed (extra `peers`)",
        )


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
@pytest.mark.parametrize("name", ["EXACT_SGD", "EXACT_ADAGRAD", "EXACT_ROWWISE_ADAGRAD"])
def test_fbgemm_agrees_within_what_fp32_sums_may_err(name: str, pooling: str) -> None:
    """Both modules are within the exact model's bound, which holds for sums in any order.

    Their state_dicts are interchangeable.
    """
    training = fbgemm_training()
    from fbgemm_gpu.split_embedding_configs import EmbOptimType as FbgemmOptimType

    # FBGEMM wants features in table order
    batch = make_batch(3, pooling, weighted=False, pruned=False, order="0122")
    options = {"optimizer": FbgemmOptimType[name], "learning_rate": 0.1}
    specs = [
        (int(h), int(d), training.EmbeddingLocation(3), training.ComputeDevice.CPU)
        for h, d in zip(batch.rows, batch.dims)
    ]
    fbgemm_module = training.SplitTableBatchedEmbeddingBagsCodegen(
        specs,
        feature_table_map=batch.table.tolist(),
        pooling_mode=training.PoolingMode[pooling.upper()],
        **options,
    )
    fbgemm_module.weights_host.data.copy_(batch.tensor("weights"))
    module = make_module(batch, **options)
    module.load_state_dict(fbgemm_module.state_dict())
    oracle_options = {
        "pooling": pooling,
        "optimizer": OPTIMIZERS[EmbOptimType[name]],
        "learning_rate": 0.1,
    }
    pooled_truth = OPERATORS["lookup"].truth(batch.lookup, {"pooling": pooling})["out"]
    state_truth = OPERATORS["backward"].truth(batch.arrays, oracle_options)
    for trained_module in (fbgemm_module, module):
        out, _ = train_step(trained_module, batch)
        assert_within_bound(out, pooled_truth)
        assert_within_bound(trained_module.weights_host.detach(), state_truth["weights"])
        if name != "EXACT_SGD":
            assert_within_bound(trained_module.momentum1_host.detach(), state_truth["sum"])
    fbgemm_module.load_state_dict(module.state_dict())
    assert module.state_dict().keys() == fbgemm_module.state_dict().keys()


def assert_within_bound(answer: Any, truth: Any) -> None:
    """|answer - reference| <= bound."""
    error = np.abs(answer.numpy().astype(np.float64).reshape(-1) - truth.reference.reshape(-1))
    assert (error <= truth.bound.reshape(-1)).all(), float(error.max())


@pytest.mark.parametrize("row_format", ["bf16", "int8"])
def test_narrow_rows(row_format: str) -> None:
    """Rows are decoded exactly, updated in fp32 and written back, as fp32 rows would be."""
    plain = make_batch(2, "sum", weighted=False)
    narrow = make_module(
        plain,
        weights_precision=SparseType(row_format),
        stochastic_rounding=False,
        learning_rate=0.25,
    )
    torch.manual_seed(1)
    narrow.init_embedding_weights_uniform(-1, 1)
    from neocpu.peers.fbgemm.operators import codes

    views = zip(narrow.split_embedding_weights(), plain.dims.tolist())
    numbers = [codes.decode(narrow.words(w), narrow.form, d).reshape(-1) for w, d in views]
    wide = replace(plain, arrays={**plain.arrays, "weights": np.concatenate(numbers)})
    reference = make_module(wide, learning_rate=0.25)
    assert_same_bits(train_step(narrow, plain)[0], train_step(reference, wide)[0])
    for (w, d), expected_rows in zip(
        zip(narrow.split_embedding_weights(), plain.dims.tolist()),
        reference.split_embedding_weights(),
    ):
        touched = (codes.decode(narrow.words(w), narrow.form, d) != 0).any(1)
        written = codes.decode(codes.encode(expected_rows.numpy(), narrow.form), narrow.form, d)
        assert (
            touched.any()
            and np.abs(codes.decode(narrow.words(w), narrow.form, d) - written).max() <= 0.02
        )


def test_stochastic_rounding_moves_rows_that_nearest_leaves() -> None:
    moved = []
    for stochastic in (True, False):
        module = SplitTableBatchedEmbeddingBagsCodegen(
            [(64, 8)],
            weights_precision="fp16",
            stochastic_rounding=stochastic,
            learning_rate=2.0**-13,
        )
        module.split_embedding_weights()[0].fill_(1)
        out = module(torch.arange(64), torch.arange(65))
        out.backward(torch.ones_like(out))
        moved.append(int((module.split_embedding_weights()[0] != 1).sum()))
    assert moved[1] == 0 and 64 < moved[0] < 192  # a quarter of 512


def test_variable_batches_are_rank_major() -> None:
    batch_sizes = [[2, 1], [0, 3]]
    dims = [4, 8]
    module = SplitTableBatchedEmbeddingBagsCodegen([(9, 4), (9, 8)], learning_rate=1.0)
    module.init_embedding_weights_uniform(-1, 1)
    rows_before = [w.clone() for w in module.split_embedding_weights()]
    indices = torch.tensor([1, 2, 3, 4, 5, 6])
    out = module(indices, torch.arange(7), batch_size_per_feature_per_rank=batch_sizes)
    blocks = [rows_before[0][1:3], rows_before[1][4:4], rows_before[0][3:4], rows_before[1][4:7]]
    assert torch.equal(out, torch.cat([b.reshape(-1) for b in blocks]))
    out.backward(torch.ones_like(out))
    for t, w in enumerate(module.split_embedding_weights()):
        assert int(((rows_before[t] - w) != 0).sum()) == 3 * dims[t]


def test_memory_is_shared_with_the_user_and_survives_copies() -> None:
    batch = make_batch(4, "sum", weighted=False)
    module = make_module(batch, optimizer="partial_rowwise_adam", learning_rate=0.1)
    module.split_embedding_weights()[0][:] = 2.0
    copied = copy.deepcopy(module)
    train_step(module, batch)
    train_step(copied, batch)
    assert_same_bits(module.weights_host.detach(), copied.weights_host.detach())
    train_step(copied, batch)
    assert (
        not torch.equal(module.weights_host, copied.weights_host)
        and int(copied.iter) == 2
        and int(module.iter) == 1
    )
    module.set_optimizer_step(7)
    module.update_hyper_parameters({"lr": 0.0})
    rows_before = module.weights_host.detach().clone()
    train_step(module, batch)
    assert torch.equal(module.weights_host, rows_before) and int(module.iter) == 8
    assert [s.shape for s in module.split_optimizer_states()[0]] == [(7, 4), (7,)]


def test_counters_are_beside_each_other_and_separate_in_a_copy() -> None:
    batch = make_batch(5, "sum", weighted=False)
    definition = CounterBasedRegularizationDefinition(
        CounterWeightDecayMode.DECOUPLE, counter_halflife=2
    )
    module = make_module(
        batch,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        weight_decay=0.1,
        weight_decay_mode=WeightDecayMode.COUNTER,
        counter_based_regularization=definition,
    )
    copied = copy.deepcopy(module)
    for _ in range(2):
        train_step(module, batch)
        train_step(copied, batch)
    for name in ("weights_host", "momentum1_host", "prev_iter_host", "row_counter_host"):
        assert_same_bits(getattr(module, name).detach(), getattr(copied, name).detach())
    assert (
        set(module.get_optimizer_state()[0]) == {"sum", "prev_iter", "row_counter"}
        and module.row_counter_host.max() > 1
    )


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
def test_dense_gradient_is_the_merged_one(pooling: str) -> None:
    batch = make_batch(6, pooling, weighted=False)
    mode = PoolingMode[pooling.upper()]
    specs = [(int(h), int(d)) for h, d in zip(batch.rows, batch.dims)]
    dense = DenseTableBatchedEmbeddingBagsCodegen(specs, batch.table.tolist(), pooling_mode=mode)
    dense.weights.data.copy_(batch.tensor("weights"))
    train_step(dense, batch)
    fused = make_module(batch, learning_rate=1.0)
    fused.weights_host.data.zero_()
    train_step(fused, batch)
    assert_same_bits(-fused.weights_host.detach() + 0.0, dense.weights.grad + 0.0)


def test_bounds_modes() -> None:
    for mode, error in (
        (BoundsCheckMode.FATAL, True),
        (BoundsCheckMode.NONE, True),
        (BoundsCheckMode.IGNORE, False),
    ):
        module = SplitTableBatchedEmbeddingBagsCodegen([(5, 4)], bounds_check_mode=mode)
        indices = torch.tensor([1, 9, -1])
        if error:
            with pytest.raises(
                IndexRangeError, match="index 9 of feature 0, sample 0: its table has 5 rows"
            ) as caught:
                module(indices, torch.tensor([0, 3]))
            assert isinstance(caught.value, RuntimeError) and indices[1] == 9
        else:
            module(indices, torch.tensor([0, 3]))
            assert indices.tolist() == [1, 0, -1]


def test_writeback_trains_the_first_occurrence_of_a_row() -> None:
    extra_config = UserEnabledConfigDefinition(use_writeback_bwd_prehook=True)
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(5, 4)], learning_rate=1.0, extra_optimizer_config=extra_config
    )
    module(torch.tensor([3, 3, 1]), torch.arange(4)).sum().backward()
    assert module.split_embedding_weights()[0][:, 0].tolist() == [0, -1, 0, -1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "shampoo"}, "optimizer SHAMPOO is not in neocpu"),
        (
            {"optimizer": "adam", "optimizer_state_dtypes": {"momentum1": SparseType.FP16}},
            "optimizer_state_dtypes",
        ),
        ({"weights_precision": "int4"}, "weights_precision int4: choose one of"),
        ({"output_dtype": SparseType.INT8}, "output_dtype int8"),
        ({"device": "meta"}, "computes on the CPU"),
        ({"feature_table_map": [0, 5]}, "feature_table_map"),
        ({"weight_decay_mode": WeightDecayMode.DECOUPLE_GLOBAL}, "DECOUPLE_GLOBAL"),
    ],
)
def test_what_is_not_here_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SplitTableBatchedEmbeddingBagsCodegen([(5, 4, 3, 0)], **options)


def test_rows_cannot_be_moved_away() -> None:
    with pytest.raises(ConfigError, match="stay where they were made"):
        SplitTableBatchedEmbeddingBagsCodegen([(5, 4)]).double()
