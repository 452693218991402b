"""Do the operators with FBGEMM's names go through our kernels? Calls of kernels are recorded."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")

from neocpu.peers.fbgemm import OPERATORS  # noqa: E402
from neocpu.peers.fbgemm.operators.registry import Refused  # noqa: E402
from neocpu.tables.embedding import layouts  # noqa: E402

LENGTHS = torch.tensor([2, 0, 3, 1])
ORDER = torch.tensor([2, 0, 3, 1])
OFFSETS = torch.tensor([0, 2, 2, 5, 6])
ROWS = torch.arange(12.0).view(6, 2)
INDICES = torch.arange(6)
BATCHES = torch.tensor([0, 1, 2])
HALF = ROWS.to(torch.bfloat16)

CALLS: list[tuple[str, tuple[Any, ...], set[str]]] = [
    ("asynchronous_complete_cumsum", (LENGTHS,), {"running_sums"}),
    ("asynchronous_complete_cumsum", (LENGTHS.view(2, 2),), {"running_sums"}),
    ("asynchronous_inclusive_cumsum", (LENGTHS,), {"running_sums"}),
    ("asynchronous_exclusive_cumsum", (LENGTHS.int(),), {"running_sums"}),
    ("asynchronous_batched_complete_cumsum", (LENGTHS.view(2, 2),), {"running_sums"}),
    ("asynchronous_complete_cumsum", (ROWS,), {"running_sums"}),
    ("asynchronous_inclusive_cumsum", (HALF,), {"running_sums"}),
    ("asynchronous_exclusive_cumsum", (ROWS,), {"running_sums"}),
    ("offsets_range", (OFFSETS[:-1], 6), {"offsets_range"}),
    ("lengths_range", (LENGTHS,), {"expand_into_jagged_permute"}),
    ("repeat_arange", (LENGTHS,), {"expand_into_jagged_permute"}),
    ("invert_permute", (ORDER,), {"invert_permute"}),
    (
        "expand_into_jagged_permute",
        (ORDER, OFFSETS, torch.tensor([0, 3, 5, 6, 6]), 6),
        {"expand_into_jagged_permute"},
    ),
    (
        "permute_1D_sparse_data",
        (ORDER, LENGTHS, INDICES, ROWS[:, 0], None),
        {"index_select", "copy_segments"},
    ),
    (
        "permute_2D_sparse_data",
        (ORDER[1:2], LENGTHS.view(2, 2), INDICES, None, None),
        {"index_select", "copy_segments"},
    ),
    (
        "permute_sequence_embeddings",
        (ORDER[1:2], LENGTHS.view(2, 2), HALF),
        {"index_select", "copy_segments"},
    ),
    ("index_select_dim0", (ROWS, ORDER), {"index_select"}),
    ("segment_sum_csr", (1, OFFSETS, ROWS[:, 0].contiguous()), {"pooled_rows"}),
    ("segment_sum_csr", (1, OFFSETS, INDICES), {"running_sums"}),
    (
        "populate_bucketized_permute",
        (LENGTHS, torch.tensor([1, 0, 2, 0, 1, 0, 1, 1]), INDICES % 2),
        {"bucketized_permute"},
    ),
    (
        "block_bucketize_sparse_features",
        (LENGTHS, INDICES, True, True, torch.tensor([2, 3]), 2, ROWS[:, 0].contiguous()),
        {"block_bucketize_lengths", "block_bucketize", "invert_permute", "index_select"},
    ),
    (
        "bucketize_sparse_features",
        (LENGTHS, INDICES, True, 2),
        {"block_bucketize_lengths", "block_bucketize"},
    ),
    ("reorder_batched_ad_lengths", (LENGTHS, BATCHES, 2), {"reordered_bags", "index_select"}),
    (
        "reorder_batched_ad_indices",
        (OFFSETS, INDICES, torch.tensor([0, 2, 5, 5, 6]), BATCHES, 2),
        {"reordered_bags", "running_sums", "copy_segments"},
    ),
    ("jagged_to_padded_dense", (HALF, [OFFSETS], [2], 1.0), {"jagged_to_padded_dense"}),
    (
        "jagged_to_padded_dense",
        (HALF, [OFFSETS[[0, 1, 2]], OFFSETS[[0, 1, 2]]], [2, 2], 1.0),
        {"jagged_places", "select_or_fill"},
    ),
    (
        "dense_to_jagged",
        (torch.ones(2, 2, 3, 2), [torch.tensor([0, 1, 4]), OFFSETS]),
        {"jagged_places", "invert_places", "select_or_fill"},
    ),
    ("jagged_1d_to_dense", (INDICES, OFFSETS, 2, -1), {"jagged_to_padded_dense"}),
    ("dense_to_jagged", (torch.ones(4, 2, 2), [OFFSETS]), {"padded_dense_to_jagged"}),
    (
        "jagged_to_padded_dense_backward",
        (torch.ones(4, 2, 2), [OFFSETS], 6),
        {"padded_dense_to_jagged"},
    ),
    ("jagged_1d_to_truncated_values", (INDICES, LENGTHS, 1), {"copy_segments"}),
    ("jagged_index_select", (ROWS, LENGTHS, ORDER), {"index_select", "copy_segments"}),
]


@pytest.mark.parametrize(("name", "arguments", "kernels"), CALLS, ids=[call[0] for call in CALLS])
def test_operators_call_kernels(
    name: str, arguments: Any, kernels: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called_kernels = set()

    def counted(kernel: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            called_kernels.add(kernel)
            return function(*args)

        return call

    for module in (layouts.jagged, layouts.layout, layouts.lookup):
        for kernel, function in list(vars(module).items()):
            if kernel in kernels:  # others may be compiled into these
                monkeypatch.setattr(module, kernel, counted(kernel, function))
    OPERATORS[name].function(*arguments)
    assert kernels <= called_kernels


DTYPES = (
    torch.bool,
    torch.uint8,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.float32,
    torch.float64,
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype_moves_bit_for_bit(dtype: Any) -> None:
    size = torch.empty(0, dtype=dtype).element_size()
    bits = torch.from_numpy(np.random.default_rng(1).integers(0, 256, 6 * 3 * size, np.uint8))
    # NaNs too
    values = (
        (bits.view(6, 3 * size) & 1).bool() if dtype is torch.bool else bits.view(dtype).view(6, 3)
    )
    permuted = OPERATORS["permute_1D_sparse_data"].function(ORDER, LENGTHS, values, None, None)[1]
    index = torch.tensor([2, 3, 4, 0, 1, 5])
    assert permuted.dtype is dtype and permuted.contiguous().view(torch.uint8).equal(
        values[index].view(torch.uint8)
    )
    # not contiguous
    assert OPERATORS["index_select_dim0"].function(values.t(), ORDER[1:2]).shape == (1, 6)


def test_gradients_come_back_through_the_kernels() -> None:
    rows = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    order = torch.tensor([2, 2, 0])  # a bag twice, and one not at all
    for move in (
        lambda x: OPERATORS["permute_1D_sparse_data"].function(order, LENGTHS, x, None, None)[1],
        lambda x: OPERATORS["index_select_dim0"].function(x, order),
        lambda x: OPERATORS["jagged_to_padded_dense"].function(x, [OFFSETS], [2], 0.0),
        lambda x: OPERATORS["jagged_to_padded_dense"].function(
            x, [torch.tensor([0, 1, 4]), OFFSETS], [2, 2], 0.0
        ),
        lambda x: OPERATORS["dense_to_jagged"].function(
            x.view(2, 1, 3, 2), [torch.tensor([0, 1, 4]), OFFSETS]
        )[0],
        lambda x: OPERATORS["jagged_index_select"].function(x, LENGTHS, order)[0],
    ):
        assert torch.autograd.gradcheck(move, rows)
        assert torch.autograd.gradgradcheck(move, rows)


def test_what_would_read_beyond_an_array_is_refused() -> None:
    for name, arguments in (
        ("permute_1D_sparse_data", (ORDER, LENGTHS, INDICES[:5], None, None)),
        ("permute_1D_sparse_data", (ORDER + 1, LENGTHS, INDICES, None, None)),
        ("index_select_dim0", (ROWS, torch.tensor([6]))),
        ("jagged_index_select", (ROWS, LENGTHS, torch.tensor([-1]))),
        ("offsets_range", (torch.tensor([0, 4, 2]), 6)),
        ("offsets_range", (torch.tensor([0, 7]), 6)),
        ("jagged_to_padded_dense", (ROWS[:5], [torch.tensor([0, 1, 4]), OFFSETS], [3, 3], 0.0)),
        ("dense_to_jagged", (torch.ones(2, 3, 3, 2), [torch.tensor([0, 1, 4]), OFFSETS], 5)),
        ("populate_bucketized_permute", (LENGTHS, LENGTHS.repeat(2), INDICES)),
        ("populate_bucketized_permute", (LENGTHS, LENGTHS.repeat(2), INDICES[:5] % 2)),
        ("segment_sum_csr", (1, torch.tensor([0, 7]), INDICES)),
        ("segment_sum_csr", (1, torch.tensor([0, 6]), ROWS[:, 0].double())),
    ):
        with pytest.raises(Refused):
            OPERATORS[name].function(*arguments)
