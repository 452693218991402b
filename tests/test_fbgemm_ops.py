"""Do the operators with FBGEMM's names give FBGEMM's answers, number for number?

Both get the same random and malformed inputs. Every operator that moves or counts must agree
exactly, dtypes included; sums and row-wise formats have their own tests below.
"""

import contextlib
import io
import sys
import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
    warnings.simplefilter("ignore")
    pytest.importorskip("fbgemm_gpu", reason="fbgemm_gpu is not installed (extra `peers`)")

from neocpu.peers.fbgemm import OPERATORS, SparseType, install, uninstall  # noqa: E402
from neocpu.peers.fbgemm.operators.registry import Refused  # noqa: E402
from tests.jobs import ran  # noqa: E402

I32 = torch.int32
I64 = torch.int64
LENGTHS = [[0], [3], [0, 0, 0], [1, 0, 5, 2, 0, 1], [2] * 12, [7, 0, 0, 0, 0, 0, 0, 1]]


def answers(name: str, *arguments: Any) -> tuple[Any, Any]:
    """FBGEMM's answer and ours, to copies of the arguments."""

    def copied(x: Any) -> Any:
        return (
            [copied(y) for y in x]
            if isinstance(x, list)
            else x.clone()
            if isinstance(x, torch.Tensor)
            else x
        )

    expected = getattr(torch.ops.fbgemm, name)(*map(copied, arguments))
    return expected, OPERATORS[name].function(*map(copied, arguments))


def agree(name: str, *arguments: Any) -> None:
    """Both give the same tensors."""
    for a, b in zip(
        *[x if isinstance(x, tuple | list) else [x] for x in answers(name, *arguments)], strict=True
    ):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)


def indices_below(lengths: Any, limit: int, dtype: Any = I64) -> Any:
    """sum(lengths) row numbers below a limit."""
    return torch.from_numpy(np.random.default_rng(5).integers(0, limit, int(sum(lengths)))).to(
        dtype
    )


def floats(n: int, dtype: Any = torch.float32) -> Any:
    """Numbers of very different magnitude."""
    rng = np.random.default_rng(7)
    return torch.from_numpy(rng.standard_normal(n) * 10.0 ** rng.integers(-20, 20, n)).to(dtype)


@pytest.mark.parametrize("dtype", [I32, I64], ids=["int32", "int64"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_sums_and_ranges(lengths: list[int], dtype: Any) -> None:
    length_tensor = torch.tensor(lengths, dtype=dtype)
    for kind in ("complete", "inclusive", "exclusive"):
        agree(f"asynchronous_{kind}_cumsum", length_tensor)
    agree("asynchronous_complete_cumsum", torch.stack([length_tensor, length_tensor]))
    agree("asynchronous_batched_complete_cumsum", torch.stack([length_tensor, length_tensor]))
    agree(
        "offsets_range",
        torch.cumsum(length_tensor, 0, dtype=dtype) - length_tensor,
        int(length_tensor.sum()),
    )
    agree("lengths_range", length_tensor)
    agree("repeat_arange", length_tensor)
    order = torch.from_numpy(np.random.default_rng(1).permutation(len(lengths))).to(dtype)
    agree("invert_permute", order)
    offsets, permuted_offsets = (
        torch.nn.functional.pad(torch.cumsum(x, 0, dtype=dtype), (1, 0))
        for x in (length_tensor, length_tensor[order.long()])
    )
    agree("expand_into_jagged_permute", order, offsets, permuted_offsets, int(length_tensor.sum()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS[3:], ids=str)
def test_permutations(lengths: list[int], dtype: Any) -> None:
    length_tensor = torch.tensor(lengths)
    weights = floats(sum(lengths), dtype)
    orders = ([1, 0], [0, 0, 1], [1], [])
    for order in orders:
        permute = torch.tensor(order, dtype=I32)
        agree(
            "permute_1D_sparse_data",
            permute,
            length_tensor,
            indices_below(lengths, 9),
            weights,
            None,
        )
        agree(
            "permute_2D_sparse_data",
            permute,
            length_tensor.view(2, -1),
            indices_below(lengths, 9),
            weights,
            None,
        )
        agree(
            "permute_2D_sparse_data",
            permute,
            length_tensor.view(2, -1).int(),
            indices_below(lengths, 9, I32),
            None,
            None,
        )


@pytest.mark.parametrize("dtype", [I32, I64], ids=["int32", "int64"])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS[3:], ids=str)
def test_bucketize(lengths: list[int], sequence: bool, dtype: Any) -> None:
    length_tensor = torch.tensor(lengths)
    indices = indices_below(lengths, 40, dtype)
    weights = floats(sum(lengths))
    indices[::5] = -1
    blocks = torch.tensor([5, 12], dtype=dtype)
    agree("bucketize_sparse_features", length_tensor.to(dtype), indices, True, 3, weights)
    for positions, factors in ((True, weights), (False, None)):
        common = (length_tensor, indices, positions, sequence, blocks, 3, factors)
        agree("block_bucketize_sparse_features", *common)
        agree("block_bucketize_sparse_features", *common, None, -1, None, True)
        agree(
            "block_bucketize_sparse_features",
            *common,
            None,
            -1,
            None,
            False,
            torch.tensor([6, 3], dtype=dtype),
        )
        uneven = [
            torch.tensor([0, 4, 9, 15], dtype=dtype),
            torch.tensor([0, 1, 30, 36], dtype=dtype),
        ]
        agree("block_bucketize_sparse_features", *common, None, -1, uneven)
        batches = torch.tensor([1, len(lengths) - 1])
        agree("block_bucketize_sparse_features", *common, batches, len(lengths) - 1)
    if sequence:
        agree("block_bucketize_sparse_features_inference", *common, None, -1, None, True)
        out = torch.ops.fbgemm.block_bucketize_sparse_features_inference(
            *common, None, -1, None, True
        )
        agree("populate_bucketized_permute", length_tensor, out[0], out[5])


def test_an_undivisible_number_of_blocks_is_a_runtime_error_for_both() -> None:
    arguments = (
        torch.tensor([1]),
        torch.tensor([3]),
        False,
        False,
        torch.tensor([5]),
        2,
        None,
        None,
        -1,
        None,
        False,
    )
    for function in (
        torch.ops.fbgemm.block_bucketize_sparse_features,
        OPERATORS["block_bucketize_sparse_features"].function,
    ):
        with pytest.raises(RuntimeError, match="multiple of my_size"):
            function(*arguments, torch.tensor([3]))


@pytest.mark.parametrize("broadcast", [False, True])
def test_reorder(broadcast: bool) -> None:
    rng = np.random.default_rng(2)
    batch_offsets = torch.tensor([0, 2, 2, 5, 6], dtype=I32)
    tables = 3
    lengths = torch.from_numpy(rng.integers(0, 4, tables * (4 if broadcast else 6)))
    agree("reorder_batched_ad_lengths", lengths, batch_offsets, 6, broadcast)
    if not broadcast:
        agree("reorder_batched_ad_lengths", lengths, batch_offsets, 6, False, 9)
    reordered_lengths = torch.ops.fbgemm.reorder_batched_ad_lengths(
        lengths, batch_offsets, 6, broadcast
    )
    starts, reordered_offsets = (
        torch.ops.fbgemm.asynchronous_complete_cumsum(x) for x in (lengths, reordered_lengths)
    )
    for values in (
        indices_below(lengths, 99),
        indices_below(lengths, 99, I32),
        floats(int(lengths.sum())),
    ):
        agree(
            "reorder_batched_ad_indices",
            starts,
            values,
            reordered_offsets,
            batch_offsets,
            6,
            broadcast,
            int(reordered_lengths.sum()),
        )
    if not broadcast:
        rows = floats(int(lengths.sum()) * 5).view(-1, 5)
        agree(
            "reorder_batched_sequence_embeddings",
            starts,
            rows,
            reordered_offsets,
            batch_offsets.long(),
            6,
        )


@pytest.mark.parametrize("max_length", [1, 3, 9])
@pytest.mark.parametrize("lengths", LENGTHS[1:], ids=str)
def test_jagged_and_dense(lengths: list[int], max_length: int) -> None:
    offsets = torch.nn.functional.pad(torch.cumsum(torch.tensor(lengths), 0), (1, 0))
    n = sum(lengths)
    for values in (floats(n), floats(3 * n).view(n, 3), indices_below(lengths, 9)):
        agree("jagged_to_padded_dense", values, [offsets], [max_length], 7.0)
    if n:
        agree("jagged_2d_to_dense", floats(3 * n).view(n, 3), offsets, max_length)
        agree("jagged_1d_to_dense", indices_below(lengths, 9), offsets, max_length, -1)
        agree(
            "dense_to_jagged_forward",
            floats(len(lengths) * max_length * 2).view(-1, max_length, 2),
            [offsets],
            n,
        )
        agree(
            "jagged_1d_to_truncated_values",
            indices_below(lengths, 9),
            torch.tensor(lengths),
            max_length,
        )


def test_two_jagged_dimensions() -> None:
    outer = torch.tensor([0, 2, 2, 3])
    inner = torch.tensor([0, 3, 3, 5])
    for max_lengths in ([2, 3], [1, 2], [4, 4]):
        agree("jagged_to_padded_dense", floats(10).view(5, 2), [outer, inner], max_lengths, 0.0)


def test_gradients_flow_through_what_only_moves() -> None:
    values = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([0, 2, 2, 5])

    def padded(x: Any) -> Any:
        return OPERATORS["jagged_to_padded_dense"].function(x, [offsets], [2], 1.0)

    assert torch.autograd.gradcheck(padded, values)
    dense = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: OPERATORS["dense_to_jagged"].function(x, [offsets])[0], dense
    )


def test_segment_sums_are_exact_where_fbgemm_rounds_every_addition() -> None:
    values = torch.tensor([1e8, 1.0, -1e8, 3.0, 2.0**-30])
    offsets = torch.tensor([0, 3, 3, 5])
    expected, actual = answers("segment_sum_csr", 1, offsets, values)
    assert actual.tolist() == [1.0, 0.0, 3.0] and expected.tolist() == [0.0, 0.0, 3.0]
    whole = torch.arange(10, dtype=torch.float32)
    agree("segment_sum_csr", 2, torch.tensor([0, 1, 5]), whole)
    agree("segment_sum_csr", 2, torch.tensor([0, 1, 5]), whole.long())


def test_running_sums_of_floats_are_rounded_once_where_fbgemm_rounds_every_addition() -> None:
    for whole in (torch.arange(6.0), torch.arange(6.0).half(), torch.empty(0)):
        for kind in ("complete", "inclusive", "exclusive"):
            agree(f"asynchronous_{kind}_cumsum", whole)
    agree("asynchronous_complete_cumsum", torch.arange(6.0).view(2, 3))
    expected, actual = answers("asynchronous_inclusive_cumsum", torch.tensor([2.0**24, 1.0, 1.0]))
    assert actual.tolist() == [2.0**24, 2.0**24, 2.0**24 + 2] and expected.tolist() == [2.0**24] * 3


def rows_of_all_kinds(columns: int) -> Any:
    """Random, constant, huge, tiny and infinite rows, one with a NaN."""
    x = floats(9 * columns).view(9, columns)
    x[1], x[2], x[3, 0], x[4, -1] = 3.0, 0.0, float("inf"), float("nan")
    x[5] *= 1e-30
    return x


@pytest.mark.parametrize("columns", [8, 16, 64])
def test_quantised_rows(columns: int) -> None:
    x = rows_of_all_kinds(columns)
    agree("FloatToFused8BitRowwiseQuantized", x)
    agree("FloatOrHalfToFused8BitRowwiseQuantized", x[:3].half())
    agree("FloatToBfloat16Quantized", x)
    codes = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(x)
    for name in ("Float", "Half", "Bfloat16"):
        agree(f"Fused8BitRowwiseQuantizedTo{name}", codes)
    for bits in (4, 2):
        agree("FloatToFusedNBitRowwiseQuantizedSBHalf", x, bits)
        small = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(x, bits)
        agree("FusedNBitRowwiseQuantizedSBHalfToFloat", small, bits)
        agree("FusedNBitRowwiseQuantizedSBHalfToHalf", small, bits)
    agree("Bfloat16QuantizedToFloat", x.bfloat16())


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dtype", [I32, I64], ids=["int32", "int64"])
def test_bounds_check_mends_in_place_as_fbgemm(mode: int, dtype: Any) -> None:
    """Rows outside their table; offsets that descend, begin below 0 or end elsewhere.

    FATAL raises for both implementations or for neither.
    """
    rng = np.random.default_rng(mode)
    for trial in range(60):
        bag_offsets = np.append(0, np.cumsum(rng.integers(0, 3, 6)))
        indices = rng.integers(-1, 5, int(bag_offsets[-1]))
        if trial % 3 == 1:
            bag_offsets = bag_offsets + rng.integers(-2, 3, 7)
        if trial % 3 == 2 and indices.size:
            indices[rng.integers(indices.size)] = rng.choice([-2, 5, 10**9])
        results = []
        for function in (
            torch.ops.fbgemm.bounds_check_indices,
            OPERATORS["bounds_check_indices"].function,
        ):
            index_tensor = torch.tensor(indices, dtype=dtype)
            offsets = torch.tensor(bag_offsets, dtype=dtype)
            warning = torch.zeros(1, dtype=I64)
            try:
                function(torch.tensor([5, 7]), index_tensor, offsets, mode, warning)
                results.append((index_tensor.tolist(), offsets.tolist(), int(warning)))
            except RuntimeError:
                results.append("raised")
        assert results[0] == results[1], (indices, bag_offsets)


def test_install_replaces_operators_and_classes_and_puts_them_back() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
    values = torch.tensor([1e8, 1.0, -1e8])
    offsets = torch.tensor([0, 3])
    fbgemm_class = training.SplitTableBatchedEmbeddingBagsCodegen
    install()
    try:
        assert float(torch.ops.fbgemm.segment_sum_csr(1, offsets, values)) == 1.0
        assert (
            training.SplitTableBatchedEmbeddingBagsCodegen.__module__
            == "neocpu.peers.fbgemm.modules.split"
        )
    finally:
        uninstall()
    assert float(torch.ops.fbgemm.segment_sum_csr(1, offsets, values)) == 0.0
    assert training.SplitTableBatchedEmbeddingBagsCodegen is fbgemm_class


def test_schemas_are_fbgemms() -> None:
    """Argument names, types and defaults are the same, so every call of FBGEMM's works."""
    expected = {s.name: s for s in torch._C._jit_get_all_schemas() if s.name.startswith("fbgemm::")}
    for name, operator in OPERATORS.items():
        actual = torch._C.parse_schema(f"fbgemm::{name}{operator.schema}")
        assert str(actual) == str(expected[f"fbgemm::{name}"])


WITHOUT = """
import sys
sys.modules["fbgemm_gpu"] = None
import torch, neocpu.peers.fbgemm
del sys.modules["fbgemm_gpu"]
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("fbgemm_gpu"): raise ImportError(name)
sys.meta_path.insert(0, Missing())
neocpu.peers.fbgemm.install()
import fbgemm_gpu.split_table_batched_embeddings_ops_training as training
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_embedding_configs import EmbOptimType
table = (3, 4, EmbeddingLocation.HOST, training.ComputeDevice.CPU)
training.SplitTableBatchedEmbeddingBagsCodegen([table], optimizer=EmbOptimType.ADAM)
print(torch.ops.fbgemm.asynchronous_complete_cumsum(torch.tensor([1, 2])).tolist())
"""


def test_install_makes_fbgemms_modules_where_it_is_missing() -> None:
    process = ran([sys.executable, "-c", WITHOUT], timeout=300)
    assert process.stdout.strip() == "[0, 1, 3]", process.stderr


def test_refusals_are_runtime_errors() -> None:
    with pytest.raises(Refused, match="output_dtype"):
        OPERATORS["Fused8BitRowwiseQuantizedToFloatOrHalf"].function(
            torch.zeros(1, 12, dtype=torch.uint8), 3
        )
    assert SparseType.from_int(SparseType.NFP8.as_int()) is SparseType.NFP8
