"""Arguments for the operators on pooled embeddings and products of jagged rows."""

from typing import Any

import torch

OFFSETS = torch.tensor([0, 2, 2, 5, 6])
KEYS = ([["a", "b"], ["c"]], [[1, 1], [2]], [["c", "a"], ["b"]])
BLOCKS = torch.tensor(
    [[1, 0, 0, 0, 2, 0], [0, 0, 0, 2, 1, 0], [0, 1, 1, 0, 1, 0]], dtype=torch.int32
)
WIDTHS = (torch.tensor([2, 2], dtype=torch.int32), torch.tensor([3, 1], dtype=torch.int32))
COUNTS = torch.tensor([2, 1])


def pooled_and_jagged_calls(rows: Any, column: Any) -> dict[str, tuple[Any, ...]]:
    """By operator; rows [6, 2] and column [6] are fp32."""
    order = (torch.tensor([0, 1, 2]), torch.tensor([1, 0]))
    inverse = (torch.tensor([0, 1, 2]), torch.tensor([1, 0]))
    permutations = {
        f"permute_{duplicate}pooled_embs{gradient}{split}": (rows, *order, *inverse)
        for duplicate in ("", "duplicate_")
        for gradient in ("", "_auto_grad")
        for split in ("", "_split")
    }
    tensors = [torch.ones(6, 2), torch.ones(6, 2)]
    select = (torch.tensor([1, 0, 2]), [2, 1], [2, 4], [2, 2])
    matrices = torch.ones(4, 2, 3)
    vectors = torch.ones(8, 3)
    dense = torch.ones(4, 2, 2)
    lengths = torch.tensor([2.0, 0.0, 3.0, 1.0])
    flat = torch.arange(12.0)
    return {
        **permutations,
        "permute_multi_embedding": (tensors, BLOCKS, *WIDTHS, [3, 1]),
        "permute_multi_embedding_function": (tensors, BLOCKS, *WIDTHS, [3, 1]),
        "regroup_keyed_tensor": (tensors, *KEYS),
        "kt_regroup_arguments": (rows, *KEYS),
        "group_index_select_dim0": ([rows, rows], [torch.tensor([1, 1]), torch.tensor([5])]),
        "batch_index_select_dim0": (flat, *select),
        "batch_index_select_dim0_forward_cpu_impl": (flat, *select, False),
        "batch_index_select_dim0_backward_cpu_impl": (
            torch.ones(6),
            select[0],
            COUNTS,
            COUNTS,
            torch.tensor([2, 4]),
            torch.tensor([2, 2]),
            False,
            COUNTS,
        ),
        "keyed_jagged_index_select_dim1": (
            column,
            lengths,
            OFFSETS,
            torch.tensor([1, 0, 1]),
            2,
            column,
        ),
        "jagged_dense_bmm": (rows, OFFSETS, matrices, 3),
        "jagged_dense_bmm_forward": (rows, OFFSETS, matrices, 3),
        "jagged_jagged_bmm": (rows, rows, OFFSETS, 3),
        "jagged_jagged_bmm_forward": (rows, rows, OFFSETS, 2),
        "batched_dense_vec_jagged_2d_mul": (vectors, rows, OFFSETS),
        "batched_dense_vec_jagged_2d_mul_forward": (vectors, rows, OFFSETS),
        "batched_dense_vec_jagged_2d_mul_backward": (torch.ones(8, 1), vectors, rows, OFFSETS),
        "jagged_softmax": (rows, OFFSETS, 3),
        "jagged_softmax_forward": (rows, OFFSETS, 3),
        "jagged_softmax_backward": (torch.ones(6, 2), torch.ones(6, 2), OFFSETS, 3),
        "jagged_dense_elementwise_add_jagged_output": (rows, [OFFSETS], dense),
        "jagged_dense_dense_elementwise_add_jagged_output": (rows, [OFFSETS], dense, dense),
        "jagged_dense_dense_elementwise_add_jagged_output_forward": (rows, [OFFSETS], dense, dense),
        "jagged_dense_elementwise_mul": (rows, [OFFSETS], dense),
        "jagged_dense_elementwise_mul_forward": (rows, [OFFSETS], dense),
        "jagged_dense_elementwise_mul_backward": (torch.ones(6, 2), [OFFSETS], dense, rows),
        "FloatToFP8RowwiseQuantized": (rows, True),
        "FP8RowwiseQuantizedToFloat": (torch.ones((3, 16), dtype=torch.uint8), False),
    }
