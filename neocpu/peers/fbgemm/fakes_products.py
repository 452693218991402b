"""What shapes have pooled rows in another order, products of jagged rows, and fp8 rows?

Fake implementations, as in `fakes.py`. Operators of `UNTRACED` have none, nor a gradient that
torch.compile could trace: without fbgemm_gpu it refuses them instead of dropping their gradients.
"""

from typing import Any

import torch
from torch import Tensor

from neocpu.peers.fbgemm.fakes import fake

UNTRACED = frozenset(
    {
        "batch_index_select_dim0",
        "batch_index_select_dim0_backward_cpu_impl",
        "batch_index_select_dim0_forward_cpu_impl",
        "group_index_select_dim0",
        "jagged_dense_bmm",
        "jagged_dense_bmm_forward",
        "jagged_dense_dense_elementwise_add_jagged_output",
        "jagged_dense_dense_elementwise_add_jagged_output_forward",
        "jagged_dense_elementwise_add_jagged_output",
        "jagged_dense_elementwise_mul",
        "jagged_dense_elementwise_mul_backward",
        "jagged_dense_elementwise_mul_forward",
        "jagged_jagged_bmm",
        "jagged_jagged_bmm_forward",
        "keyed_jagged_index_select_dim1",
        "kt_regroup_arguments",
        "permute_duplicate_pooled_embs",
        "permute_duplicate_pooled_embs_auto_grad",
        "permute_duplicate_pooled_embs_auto_grad_split",
        "permute_duplicate_pooled_embs_split",
        "permute_multi_embedding",
        "permute_multi_embedding_function",
        "regroup_keyed_tensor",
    }
)
# Bytes of an fp8 row's scale.
FP8_HEADER = 8


@fake(
    "permute_pooled_embs",
    "permute_pooled_embs_split",
    "permute_pooled_embs_auto_grad",
    "permute_pooled_embs_auto_grad_split",
)
def _permuted_columns(pooled_embs: Tensor, *lists: Tensor) -> Tensor:
    return pooled_embs.new_empty(pooled_embs.shape)


@fake("batched_dense_vec_jagged_2d_mul", "batched_dense_vec_jagged_2d_mul_forward")
def _vectors_times_rows(v: Tensor, a_values: Tensor, a_offsets: Tensor) -> Tensor:
    heads = v.shape[0] // (a_offsets.shape[0] - 1)
    return a_values.new_empty((v.shape[0], a_values.shape[1] // heads))


@fake("batched_dense_vec_jagged_2d_mul_backward")
def _vectors_times_rows_backward(
    grad_output: Tensor, v: Tensor, a_values: Tensor, a_offsets: Tensor
) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), a_values.new_empty(a_values.shape)


@fake("jagged_softmax_forward", "jagged_softmax_backward")
def _softmax(values: Tensor, *arguments: Any) -> Tensor:
    return values.new_empty(values.shape)


@fake("FloatToFP8RowwiseQuantized")
def _to_fp8(t: Tensor, forward: bool) -> Tensor:
    size = (t.shape[-1] + 3) // 4 * 4 + FP8_HEADER
    return t.new_empty((*t.shape[:-1], size), dtype=torch.uint8)


@fake("FP8RowwiseQuantizedToFloat")
def _from_fp8(input: Tensor, forward: bool, output_dtype: int = 0) -> Tensor:
    dtype = {0: torch.float32, 1: torch.float16, 5: torch.bfloat16}[output_dtype]
    return input.new_empty((*input.shape[:-1], input.shape[-1] - FP8_HEADER), dtype=dtype)
