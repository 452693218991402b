"""What are products, softmax and elementwise arithmetic on jagged rows? By FBGEMM's names.

Products of matrices are exact sums: products rounded to fp32, added exactly, rounded once. The
sums of a softmax and of its gradient are plain ones in fp64.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from neocpu.core.types import Floats, Ints
from neocpu.peers.fbgemm.context import Tensors
from neocpu.peers.fbgemm.operators.exact_sums import differentiable, numbers, sums
from neocpu.peers.fbgemm.operators.jagged import dense_to_jagged_forward, jagged_to_padded_dense
from neocpu.peers.fbgemm.operators.moves import ints
from neocpu.peers.fbgemm.operators.registry import Refused, operator
from neocpu.tables.embedding.row_sums import (
    SumsOfRows,
    row_by_matrix,
    segment_starts,
    transposed_by_matrix,
)


def _fp32(tensor: Tensor) -> Floats:
    """A tensor as an fp32 array. Raises Refused for fp64, as FBGEMM does."""
    if tensor.dtype == torch.float64:
        raise Refused("products and softmax on jagged rows have no fp64, as in FBGEMM")
    return numbers(tensor)


def _bags(offsets: Tensor, rows: int, longest: int) -> tuple[Ints, Ints, Ints]:
    """First row and rows of each bag, at most `longest`; bag of each row, -1 beyond that."""
    ends = ints(offsets)
    if ends.size < 1 or ends[0] < 0 or (np.diff(ends) < 0).any() or ends[-1] > rows:
        raise Refused(f"offsets must ascend from 0 to at most {rows}, the number of rows")
    # Rows beyond max_L stay in the tensor, but take no part.
    lengths = np.minimum(np.diff(ends), max(longest, 0))
    # Rows beyond max_L, or behind the last bag, belong to none.
    bag = np.full(rows, -1, np.int64)
    for number, (start, length) in enumerate(zip(ends.tolist(), lengths.tolist())):
        bag[start : start + length] = number
    return ends[:-1], lengths, bag


@operator("(Tensor x_values, Tensor x_offsets, Tensor y, int max_L) -> Tensor")
def jagged_dense_bmm_forward(x_values: Tensor, x_offsets: Tensor, y: Tensor, max_L: int) -> Tensor:
    """Rows [n, K] times the matrix [K, N] of their bag: [n, N]; 0 beyond max_L rows of a bag."""

    def product(x: Tensor, matrices: Tensor) -> Tensor:
        _, _, bag = _bags(x_offsets, x.shape[0], max_L)
        return sums(row_by_matrix(_fp32(x), _fp32(matrices), bag), x.dtype)

    def gradients(grad: Tensor, x: Tensor, matrices: Tensor) -> tuple[Tensor, Tensor]:
        first, lengths, bag = _bags(x_offsets, x.shape[0], max_L)
        transposed = _fp32(matrices).transpose(0, 2, 1)
        row_gradient = sums(row_by_matrix(_fp32(grad), transposed, bag), x.dtype)
        by_bag = transposed_by_matrix(_fp32(x), _fp32(grad), first, lengths)
        return row_gradient, sums(by_bag, matrices.dtype).view(matrices.shape)

    return differentiable(x_values, y, product, gradients)


@operator("(Tensor x_values, Tensor x_offsets, Tensor y, int max_L) -> (Tensor, Tensor)")
def jagged_dense_bmm(
    x_values: Tensor, x_offsets: Tensor, y: Tensor, max_L: int
) -> tuple[Tensor, Tensor]:
    """(`jagged_dense_bmm_forward`, the offsets)."""
    return jagged_dense_bmm_forward(x_values, x_offsets, y, max_L), x_offsets


@operator("(Tensor x_values, Tensor y_values, Tensor x_offsets, int max_L) -> Tensor")
def jagged_jagged_bmm(x_values: Tensor, y_values: Tensor, x_offsets: Tensor, max_L: int) -> Tensor:
    """Rows [n, M] transposed times rows [n, N], at most max_L of each bag: [B, M, N]."""

    def product(x: Tensor, y: Tensor) -> Tensor:
        first, lengths, _ = _bags(x_offsets, x.shape[0], max_L)
        by_bag = sums(transposed_by_matrix(_fp32(x), _fp32(y), first, lengths), x.dtype)
        return by_bag.view(lengths.size, x.shape[1], y.shape[1])

    def gradients(grad: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        _, _, bag = _bags(x_offsets, x.shape[0], max_L)
        matrices = _fp32(grad)
        x_gradient = row_by_matrix(_fp32(y), matrices.transpose(0, 2, 1), bag)
        return sums(x_gradient, x.dtype), sums(row_by_matrix(_fp32(x), matrices, bag), y.dtype)

    return differentiable(x_values, y_values, product, gradients)


@operator("(Tensor x_values, Tensor y_values, Tensor x_offsets, int max_L) -> Tensor")
def jagged_jagged_bmm_forward(
    x_values: Tensor, y_values: Tensor, x_offsets: Tensor, max_L: int
) -> Tensor:
    """`jagged_jagged_bmm`, as FBGEMM's differentiation calls it."""
    return jagged_jagged_bmm(x_values, y_values, x_offsets, max_L)


class _HeadRows:
    """Elements of vectors [B*H, L] and the rows [n, H*D] that they multiply, pair by pair.

    vector, place : i64[pairs], where a factor is. head_row : i64[pairs], its row of [n*H, D].
    starts : i64[B*H + 1], the first pair of each vector.
    """

    def __init__(self, vectors: Tensor, values: Tensor, offsets: Tensor) -> None:
        # The vectors' length is that of the longest bag that they can meet.
        self.first, self.lengths, _ = _bags(offsets, values.shape[0], vectors.shape[1])
        bags = self.lengths.size
        if bags and vectors.shape[0] % bags:
            raise Refused(f"{vectors.shape[0]} vectors: give a multiple of the {bags} bags")
        self.heads = vectors.shape[0] // max(bags, 1)
        if self.heads and values.shape[1] % self.heads:
            raise Refused(f"{values.shape[1]} columns: give a multiple of the {self.heads} heads")
        self.width = values.shape[1] // max(self.heads, 1)
        counts = np.repeat(self.lengths, self.heads)  # rows that meet each vector
        self.starts = segment_starts(counts)
        self.vector = np.repeat(np.arange(counts.size), counts)
        self.place = np.arange(self.vector.size) - self.starts[self.vector]
        first_row = np.repeat(self.first, self.heads)[self.vector]
        # Vectors come bag by bag, head by head.
        head = self.vector % max(self.heads, 1)
        self.head_row = (first_row + self.place) * self.heads + head


@operator("(Tensor v, Tensor a_values, Tensor a_offsets) -> Tensor")
def batched_dense_vec_jagged_2d_mul(v: Tensor, a_values: Tensor, a_offsets: Tensor) -> Tensor:
    """Vectors [B*H, L] times the rows of their bag and head [n, H*D]: [B*H, D]."""

    def product(vectors: Tensor, values: Tensor) -> Tensor:
        head_rows = _HeadRows(vectors, values, a_offsets)
        factors = _fp32(vectors)[head_rows.vector, head_rows.place]
        by_head = _fp32(values).reshape(values.shape[0] * head_rows.heads, head_rows.width)
        description = SumsOfRows(by_head, head_rows.head_row, head_rows.starts, factors)
        return sums(description, values.dtype).view(vectors.shape[0], head_rows.width)

    def gradients(grad: Tensor, vectors: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return batched_dense_vec_jagged_2d_mul_backward(grad, vectors, values, a_offsets)

    return differentiable(v, a_values, product, gradients)


@operator("(Tensor v, Tensor a_values, Tensor a_offsets) -> Tensor")
def batched_dense_vec_jagged_2d_mul_forward(
    v: Tensor, a_values: Tensor, a_offsets: Tensor
) -> Tensor:
    """`batched_dense_vec_jagged_2d_mul`, as FBGEMM's differentiation calls it."""
    return batched_dense_vec_jagged_2d_mul(v, a_values, a_offsets)


@operator("(Tensor grad_output, Tensor v, Tensor a_values, Tensor a_offsets) -> (Tensor, Tensor)")
def batched_dense_vec_jagged_2d_mul_backward(
    grad_output: Tensor, v: Tensor, a_values: Tensor, a_offsets: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the vectors and of the rows."""
    head_rows = _HeadRows(v, a_values, a_offsets)
    grad = _fp32(grad_output)
    width = head_rows.width
    elements = head_rows.head_row[:, None] * width + np.arange(width)
    dots = SumsOfRows(
        rows=_fp32(a_values).reshape(-1, 1),
        picks=elements.reshape(-1),
        starts=np.arange(head_rows.vector.size + 1) * width,
        factors=grad[head_rows.vector].reshape(-1),
    )
    vector_gradient = torch.zeros_like(v)
    places = (torch.from_numpy(head_rows.vector), torch.from_numpy(head_rows.place))
    vector_gradient[places] = sums(dots, v.dtype).reshape(-1)
    factors = numbers(v)[head_rows.vector, head_rows.place]
    row_gradient = torch.zeros(a_values.shape[0] * head_rows.heads, width, dtype=a_values.dtype)
    product = torch.from_numpy(factors[:, None] * grad[head_rows.vector]).to(a_values.dtype)
    row_gradient[torch.from_numpy(head_rows.head_row)] = product
    return vector_gradient, row_gradient.view(a_values.shape)


def _softmax(values: Floats, ends: list[int]) -> Floats:
    """Softmax of each column over each bag, computed in fp64 by our exponential."""
    from neocpu.kernels.twins.numbers.elementary import exp

    out = np.zeros(values.shape, np.float32)
    for start, end in pairwise(ends):
        if start < end:
            bag = values[start:end].astype(np.float64)
            power = exp(bag - bag.max(0))
            out[start:end] = power / power.sum(0)
    return out


@operator("(Tensor values, Tensor x_offsets, int max_L) -> Tensor")
def jagged_softmax_forward(values: Tensor, x_offsets: Tensor, max_L: int) -> Tensor:
    """Softmax of each column over the rows of each bag, [n, D], at most max_L; 0 beyond."""
    first, lengths, _ = _bags(x_offsets, values.shape[0], max_L)
    if (lengths < np.diff(ints(x_offsets))).any():
        raise Refused(
            f"a bag is longer than max_L, {max_L}: FBGEMM leaves its rest undefined; raise max_L"
        )
    out = _softmax(_fp32(values), [*first.tolist(), int(ints(x_offsets)[-1])])
    return torch.from_numpy(out).to(values.dtype)


@operator("(Tensor grad_output, Tensor output, Tensor x_offsets, int max_L) -> Tensor")
def jagged_softmax_backward(
    grad_output: Tensor, output: Tensor, x_offsets: Tensor, max_L: int
) -> Tensor:
    """Gradient of the values: output * (grad - sum of grad * output over the bag)."""
    y = _fp32(output).astype(np.float64)
    grad = _fp32(grad_output)
    gradient = np.zeros(y.shape, np.float32)
    for start, end in pairwise(ints(x_offsets).tolist()):
        bag = slice(start, end)
        gradient[bag] = y[bag] * (grad[bag] - (y[bag] * grad[bag]).sum(0))
    return torch.from_numpy(gradient).to(grad_output.dtype)


@operator("(Tensor values, Tensor x_offsets, int max_L) -> (Tensor, Tensor)")
def jagged_softmax(values: Tensor, x_offsets: Tensor, max_L: int) -> tuple[Tensor, Tensor]:
    """(`jagged_softmax_forward`, the offsets), differentiable."""

    def value(x: Tensor, unused: Tensor) -> Tensor:
        return jagged_softmax_forward(x, x_offsets, max_L)

    def gradient(grad: Tensor, x: Tensor, unused: Tensor) -> tuple[Tensor, Tensor | None]:
        output = jagged_softmax_forward(x, x_offsets, max_L)
        return jagged_softmax_backward(grad, output, x_offsets, max_L), None

    return differentiable(values, values.new_empty(0), value, gradient), x_offsets


ELEMENTWISE = "(Tensor x_values, Tensor[] x_offsets, Tensor y) -> "


@operator(ELEMENTWISE + "(Tensor, Tensor[])")
def jagged_dense_elementwise_add_jagged_output(
    x_values: Tensor, x_offsets: Tensors, y: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """(Jagged rows plus the dense rows at their places, the offsets); other rows stay."""
    added = dense_to_jagged_forward(y, x_offsets, x_values.shape[0])
    return x_values + added, list(x_offsets)


DENSE_DENSE = "(Tensor x_values, Tensor[] x_offsets, Tensor y_0, Tensor y_1) -> "


@operator(DENSE_DENSE + "Tensor")
def jagged_dense_dense_elementwise_add_jagged_output_forward(
    x_values: Tensor, x_offsets: Tensors, y_0: Tensor, y_1: Tensor
) -> Tensor:
    """Jagged rows plus those of two dense tensors, the first one first."""
    first, _ = jagged_dense_elementwise_add_jagged_output(x_values, x_offsets, y_0)
    total, _ = jagged_dense_elementwise_add_jagged_output(first, x_offsets, y_1)
    return total


@operator(DENSE_DENSE + "(Tensor, Tensor[])")
def jagged_dense_dense_elementwise_add_jagged_output(
    x_values: Tensor, x_offsets: Tensors, y_0: Tensor, y_1: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """(`jagged_dense_dense_elementwise_add_jagged_output_forward`, the offsets)."""
    total = jagged_dense_dense_elementwise_add_jagged_output_forward(x_values, x_offsets, y_0, y_1)
    return total, list(x_offsets)


@operator(ELEMENTWISE + "Tensor")
def jagged_dense_elementwise_mul_forward(x_values: Tensor, x_offsets: Tensors, y: Tensor) -> Tensor:
    """Jagged rows times the dense rows at their places; other rows become 0."""
    return x_values * dense_to_jagged_forward(y, x_offsets, x_values.shape[0])


@operator(ELEMENTWISE + "(Tensor, Tensor[])")
def jagged_dense_elementwise_mul(
    x_values: Tensor, x_offsets: Tensors, y: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """(`jagged_dense_elementwise_mul_forward`, the offsets)."""
    return jagged_dense_elementwise_mul_forward(x_values, x_offsets, y), list(x_offsets)


@operator("(Tensor grad_output, Tensor[] x_offsets, Tensor y, Tensor x_values) -> (Tensor, Tensor)")
def jagged_dense_elementwise_mul_backward(
    grad_output: Tensor, x_offsets: Tensors, y: Tensor, x_values: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the jagged rows and of the dense tensor."""
    row_gradient = jagged_dense_elementwise_mul_forward(grad_output, x_offsets, y)
    longest = y.shape[1 : 1 + len(x_offsets)]
    return row_gradient, jagged_to_padded_dense(grad_output * x_values, x_offsets, longest)
