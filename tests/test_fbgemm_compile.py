"""Do operators and modules work under torch.compile, with fbgemm_gpu and without?

With NEOCPU_WITHOUT_FBGEMM set, fbgemm_gpu is hidden before anything imports it: one test runs this
file so in a process of its own.
"""

import copy
import importlib.util
import os
import pickle
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")

WITHOUT = "NEOCPU_WITHOUT_FBGEMM"


class _Missing:
    """Finds no fbgemm_gpu, as where it is not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".", maxsplit=1)[0] == "fbgemm_gpu":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if os.environ.get(WITHOUT):
    sys.meta_path.insert(0, _Missing())  # type: ignore[arg-type]

from neocpu.peers import fbgemm  # noqa: E402
from tests.fbgemm_calls import pooled_and_jagged_calls  # noqa: E402
from tests.jobs import ran  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """neocpu in place of FBGEMM."""
    fbgemm.install()
    yield
    fbgemm.uninstall()


LENGTHS = torch.tensor([2, 0, 3, 1])
ORDER = torch.tensor([2, 0, 3, 1])
OFFSETS = torch.tensor([0, 2, 2, 5, 6])
ROWS = torch.arange(12.0).view(6, 2) / 7
COLUMN = ROWS[:, 0].contiguous()
# torch's opcheck adds up all results, and cannot add numbers to whole numbers.
REAL_LENGTHS = LENGTHS.float()
PAIRS = REAL_LENGTHS.view(2, 2)
SWAP = torch.tensor([1, 0])
INDICES = torch.arange(6)
BATCHES = torch.tensor([0, 1, 2])
BLOCKS = torch.tensor([2, 3])
# Below 0x7c: fp16 scales and biases of such bytes are finite, so that results can be compared.
INT8 = torch.randint(0, 0x7C, (3, 16), dtype=torch.uint8)

# Arguments of every operator; gradients flow through those that are fp32.
CALLS: dict[str, tuple[Any, ...]] = {
    "asynchronous_complete_cumsum": (LENGTHS,),
    "asynchronous_inclusive_cumsum": (LENGTHS,),
    "asynchronous_exclusive_cumsum": (LENGTHS,),
    "asynchronous_batched_complete_cumsum": (LENGTHS.view(2, 2),),
    "offsets_range": (OFFSETS[:-1], 6),
    "lengths_range": (LENGTHS,),
    "repeat_arange": (LENGTHS,),
    "invert_permute": (ORDER,),
    "expand_into_jagged_permute": (ORDER, OFFSETS, torch.tensor([0, 3, 5, 6, 6]), 6),
    "permute_1D_sparse_data": (ORDER, REAL_LENGTHS, ROWS, COLUMN, None),
    "permute_2D_sparse_data": (SWAP, PAIRS, COLUMN, COLUMN, None),
    "permute_sparse_data": (ORDER[1:2], PAIRS, COLUMN, COLUMN, None),
    "permute_2D_sparse_data_input1D": (SWAP, REAL_LENGTHS, COLUMN, 2, COLUMN, None),
    "permute_sparse_features": (SWAP, PAIRS, COLUMN, COLUMN),
    "permute_sequence_embeddings": (SWAP, PAIRS, ROWS),
    "index_select_dim0": (ROWS, ORDER),
    "segment_sum_csr": (1, OFFSETS, INDICES),
    "block_bucketize_sparse_features": (LENGTHS, INDICES, True, True, BLOCKS, 2),
    "block_bucketize_sparse_features_inference": (LENGTHS, INDICES, True, True, BLOCKS, 2),
    "block_bucketize_sparse_features_2d_weights": (
        LENGTHS,
        INDICES,
        True,
        True,
        BLOCKS,
        2,
        INDICES.repeat(2),
        2,
    ),
    "bucketize_sparse_features": (LENGTHS, INDICES, True, 2),
    "populate_bucketized_permute": (LENGTHS, torch.tensor([1, 0, 2, 0, 1, 0, 1, 1]), INDICES % 2),
    "reorder_batched_ad_lengths": (LENGTHS, BATCHES, 2),
    "reorder_batched_ad_indices": (OFFSETS, COLUMN, torch.tensor([0, 2, 5, 5, 6]), BATCHES, 2),
    "cat_reorder_batched_ad_indices": (
        OFFSETS,
        [INDICES[:2], INDICES[2:]],
        torch.tensor([0, 2, 5, 5, 6]),
        BATCHES,
        2,
        False,
        6,
    ),
    "reorder_batched_sequence_embeddings": (
        OFFSETS,
        ROWS,
        torch.tensor([0, 2, 5, 5, 6]),
        BATCHES,
        2,
    ),
    "jagged_to_padded_dense": (ROWS, [OFFSETS], [2], 1.0),
    "jagged_to_padded_dense_forward": (ROWS, [BATCHES * 2, OFFSETS], [2, 2], 1.0),
    "jagged_to_padded_dense_backward": (torch.ones(4, 2, 2), [OFFSETS], 6),
    "dense_to_jagged": (torch.ones(2, 2, 3, 2), [torch.tensor([0, 1, 4]), OFFSETS]),
    "dense_to_jagged_forward": (torch.ones(4, 2, 2), [OFFSETS], 6),
    "jagged_2d_to_dense": (ROWS, OFFSETS, 2),
    "jagged_1d_to_dense": (COLUMN, OFFSETS, 2, 7),
    "jagged_1d_to_truncated_values": (INDICES, LENGTHS, 1),
    "jagged_index_select": (ROWS, LENGTHS, ORDER),
    "jagged_dense_elementwise_add": (ROWS, [OFFSETS], torch.ones(4, 3, 2)),
    "FloatToFused8BitRowwiseQuantized": (ROWS,),
    "HalfToFused8BitRowwiseQuantized": (ROWS.half(),),
    "FloatOrHalfToFused8BitRowwiseQuantized": (ROWS.half(),),
    "Fused8BitRowwiseQuantizedToFloat": (INT8,),
    "Fused8BitRowwiseQuantizedToHalf": (INT8,),
    "Fused8BitRowwiseQuantizedToBfloat16": (INT8,),
    "Fused8BitRowwiseQuantizedToFloatOrHalf": (INT8, 1, False, False),
    "FloatToFusedNBitRowwiseQuantizedSBHalf": (ROWS, 4),
    "HalfToFusedNBitRowwiseQuantizedSBHalf": (ROWS.half(), 2),
    "FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf": (ROWS.half(), 8),
    "FusedNBitRowwiseQuantizedSBHalfToFloat": (INT8, 4),
    "FusedNBitRowwiseQuantizedSBHalfToHalf": (INT8, 2),
    "FusedNBitRowwiseQuantizedSBHalfToFloatOrHalf": (INT8, 4, 5),
    "FloatToBfloat16Quantized": (ROWS,),
    "Bfloat16QuantizedToFloat": (ROWS.to(torch.bfloat16),),
    "FloatToHFP8Quantized": (ROWS, 4, 14, 0.9375),
    "HFP8QuantizedToFloat": (INT8, 4, 14),
    "bounds_check_indices": (
        torch.tensor([5, 5]),
        torch.arange(6),
        OFFSETS.clone(),
        1,
        torch.zeros(1, dtype=torch.int64),
    ),
    **pooled_and_jagged_calls(ROWS, COLUMN),
}


def _with_gradients(name: str) -> tuple[Any, ...]:
    """The arguments of a call; rows require a gradient where the operator moves them."""
    if "Quantized" in name:
        return CALLS[name]
    return tuple(
        argument.clone().requires_grad_() if argument is ROWS or argument is COLUMN else argument
        for argument in CALLS[name]
    )


def test_every_operator_is_called() -> None:
    assert set(fbgemm.OPERATORS) <= set(CALLS)


@pytest.mark.skipif(not os.environ.get(WITHOUT), reason="FBGEMM's own shapes and gradients stay")
@pytest.mark.parametrize("name", CALLS)
def test_operators_are_well_registered(name: str) -> None:
    """Schema, shapes without numbers, and gradients under AOT autograd are those of eager calls."""
    operator = getattr(torch.ops.fbgemm, name).default
    torch.library.opcheck(operator, _with_gradients(name))


def _step(values: Any, lengths: Any) -> Any:
    """Operators as a front end composes them."""
    offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(lengths)
    padded = torch.ops.fbgemm.jagged_to_padded_dense(values, [offsets], [3], 0.0)
    jagged = torch.ops.fbgemm.dense_to_jagged(padded * 2, [offsets], values.shape[0])[0]
    return torch.ops.fbgemm.index_select_dim0(jagged, torch.tensor([5, 0, 0, 1])).sin()


def test_compiled_operators_give_the_same_bits_and_gradients() -> None:
    results = []
    for function in (_step, torch.compile(_step, fullgraph=True, backend="aot_eager")):
        values = ROWS.clone().requires_grad_()
        out = function(values, LENGTHS)
        out.sum().backward()
        results.append((out.detach(), values.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


class _Model(torch.nn.Module):
    """Lengths become offsets, tables are looked up, a linear layer follows."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.tables = module
        self.tables.init_embedding_weights_uniform(-1.0, 1.0)
        self.top = torch.nn.LazyLinear(3)

    def forward(self, lengths: Any, indices: Any, weights: Any, sizes: Any = None) -> Any:
        offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(lengths)
        out = self.tables(indices, offsets, weights, batch_size_per_feature_per_rank=sizes)
        return self.top(out).relu().sum()


SPECS = [(7, 4), (5, 4)]
# Modules, and the samples of each feature and rank of variable batches.
MODULES: dict[str, tuple[type[Any], dict[str, Any], Any]] = {
    "adam": (fbgemm.SplitTableBatchedEmbeddingBagsCodegen, {"optimizer": "adam"}, None),
    "sequence": (
        fbgemm.SplitTableBatchedEmbeddingBagsCodegen,
        {"optimizer": "exact_row_wise_adagrad", "pooling_mode": "none"},
        None,
    ),
    "variable": (
        fbgemm.SplitTableBatchedEmbeddingBagsCodegen,
        {"pooling_mode": "mean", "weights_precision": "fp16"},
        [[1, 1], [3, 1]],
    ),
    "dense": (fbgemm.DenseTableBatchedEmbeddingBagsCodegen, {"pooling_mode": "mean"}, None),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_compiled_modules_train_to_the_same_bits(name: str, weighted: bool) -> None:
    """Row 9 of table 1 is out of range: the modules with a fused optimizer repair it to 0."""
    torch._dynamo.reset()
    cls, options, sizes = MODULES[name]
    eager = _Model(cls(SPECS, **options))
    lengths = torch.tensor([2, 1, 0, 1, 2, 2])
    indices = torch.tensor([6, 0, 3, 3, 4, 1, 0, 4 if name == "dense" else 9])
    weights = torch.rand(8) if weighted else None
    with torch.no_grad():
        eager(lengths, indices.clone(), weights, sizes)
    model = copy.deepcopy(eager)
    assert model.tables.handle != eager.tables.handle
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        results = []
        for function in (eager, compiled):
            repaired = indices.clone()
            factors = weights.clone().requires_grad_() if weights is not None else None
            out = function(lengths, repaired, factors, sizes)
            out.backward()
            results.append(
                (out.detach(), repaired, torch.zeros(0) if factors is None else factors.grad)
            )
        assert all(torch.equal(a, b) for a, b in zip(*results))
    for a, b in zip(eager.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    if name == "dense":
        assert torch.equal(eager.tables.weights.grad, model.tables.weights.grad)
    else:
        assert eager.tables.step == model.tables.step


@pytest.mark.skipif(not os.environ.get(WITHOUT), reason="fbgemm_gpu itself is installed")
def test_the_stand_in_is_a_package() -> None:
    package = import_module("fbgemm_gpu")
    training = import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    configs = import_module("fbgemm_gpu.split_embedding_configs")
    assert importlib.util.find_spec("fbgemm_gpu.sparse_ops") is not None
    assert importlib.util.find_spec("fbgemm_gpu").submodule_search_locations == []
    assert package.__spec__.name == package.__package__ == "fbgemm_gpu"
    assert training.__package__ == "fbgemm_gpu" and package.__path__ == []
    assert package.__version__ == metadata.version("fbgemm_gpu") == "1.8.0"
    assert configs.EmbOptimType is training.OptimType
    assert pickle.loads(pickle.dumps(configs.SparseType.INT4)) is configs.SparseType.INT4
    fbgemms_pickle = b"cfbgemm_gpu.split_embedding_configs\nSparseType\n(Vint4\ntR."
    assert pickle.loads(fbgemms_pickle) is configs.SparseType.INT4
    with pytest.raises(ModuleNotFoundError, match=r"fbgemm_gpu\.unknown"):
        import_module("fbgemm_gpu.unknown")


@pytest.mark.skipif(bool(os.environ.get(WITHOUT)), reason="this is that process")
def test_all_of_it_without_fbgemm() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, WITHOUT: "1"}
    result = ran(command, env=environment, timeout=900)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
