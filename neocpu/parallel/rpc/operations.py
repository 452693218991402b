"""Which operations does the tape know? Those of a DLRM, by the kernels that training uses; others
are a `GradientRule` each.

Every sum is one that docs/arithmetic.md orders: chains over ascending columns in products, exact
sums of pooled rows, leaves of `weight_gradient` (here one leaf: the samples of the call).
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.errors import RpcError
from neocpu.core.types import Elements, Floats, Ints
from neocpu.kernels.dense import gemm
from neocpu.kernels.dense.interaction import dot_backward, dot_forward
from neocpu.kernels.dense.loss import bce
from neocpu.parallel.rpc.tape import (
    Gradient,
    GradientRule,
    Summable,
    Variable,
    apply,
    as_variable,
)
from neocpu.tables.embedding.lookups import EntryLayout, Lookups
from neocpu.tables.embedding.tbe import TableBatchedEmbedding

NO_FLOATS = np.empty(0, np.float32)
_LAYOUT = EntryLayout(np.zeros(1, np.int64), np.zeros(1, np.int64))


# ---- products ----


def linear(x: Variable | Floats, w: Variable | Floats, bias: Variable | Floats) -> Variable:
    """A fully connected layer, x wᵀ + bias: x f32[b, k], w f32[n, k], bias f32[n]."""
    return apply(LINEAR, x, w, bias)


def _floats(operation: str, array: Elements, dimensions: int) -> Floats:
    """A contiguous copy of an array, which may change before the way back. Raises RpcError."""
    if array.dtype != np.float32 or array.ndim != dimensions:
        raise RpcError(
            f"{operation!r} takes float32 of {dimensions} dimension(s) here, not {array.dtype} of "
            f"shape {array.shape}"
        )
    return np.array(array, order="C")


def _linear(x: Elements, w: Elements, bias: Elements) -> tuple[Elements, object]:
    x, w, bias = (_floats("linear", array, n) for array, n in ((x, 2), (w, 2), (bias, 1)))
    if x.shape[1] != w.shape[1] or bias.shape[0] != w.shape[0]:
        raise RpcError(
            f"'linear' cannot multiply x {x.shape} by w {w.shape} with bias {bias.shape}: they "
            "have to be [b, k], [n, k] and [n]"
        )
    out = np.empty((x.shape[0], w.shape[0]), np.float32)
    gemm.layer(x, w, bias, False, out)
    return out, (x, w)


def _linear_back(saved: object, gradient: Elements) -> Sequence[Gradient]:
    assert isinstance(saved, tuple)
    x, w = saved
    gradient = np.ascontiguousarray(gradient)
    of_x = np.empty(x.shape, np.float32)
    gemm.input_gradient(gradient, w, np.empty((0, 0), np.float32), of_x)
    of_w = np.empty(w.shape, np.float32)
    of_bias = np.empty(w.shape[0], np.float32)
    cuts = np.array([0, x.shape[0]])
    gemm.weight_gradient(gradient, x, cuts, of_w, of_bias)
    return of_x, of_w, of_bias


LINEAR = GradientRule("linear", _linear, _linear_back)


def interact(vectors: Variable | Floats, dim: int) -> Variable:
    """Dot products of the vectors of each sample, after the first of them.

    vectors : f32[b, count*dim]; to f32[b, dim + count(count-1)/2].
    """

    def forward(e: Elements) -> tuple[Elements, object]:
        e = _floats("interact", e, 2)
        if dim < 1 or e.shape[1] % dim:
            raise RpcError(f"{e.shape[1]} columns are no vectors of {dim} numbers")
        count = e.shape[1] // dim
        out = np.empty((e.shape[0], dim + count * (count - 1) // 2), np.float32)
        dot_forward(e, dim, False, out)
        return out, e

    def backward(saved: object, gradient: Elements) -> Sequence[Gradient]:
        assert isinstance(saved, np.ndarray)
        out = np.empty(saved.shape, np.float32)
        dot_backward(saved, np.ascontiguousarray(gradient), dim, False, out)
        return (out,)

    return apply(GradientRule("interact", forward, backward), vectors)


# ---- element by element ----


def add(a: Variable | Elements, b: Variable | Elements) -> Variable:
    """a + b, of one dtype and shape."""
    _check_alike("add", a, b)
    return apply(ADD, a, b)


def multiply(a: Variable | Elements, b: Variable | Elements) -> Variable:
    """a · b, element by element, of one dtype and shape."""
    _check_alike("multiply", a, b)
    return apply(MULTIPLY, a, b)


def relu(x: Variable | Elements) -> Variable:
    """x, and 0 where it is not above 0; the gradient is 0 there too."""
    return apply(RELU, x)


ADD = GradientRule("add", lambda a, b: (np.add(a, b), None), lambda saved, g: (g, g))
MULTIPLY = GradientRule(
    "multiply",
    lambda a, b: (np.multiply(a, b), (np.copy(a), np.copy(b))),
    lambda saved, g: (np.multiply(g, saved[1]), np.multiply(g, saved[0])),  # type: ignore[index]
)
RELU = GradientRule(
    "relu",
    lambda x: (np.where(x > 0, x, x.dtype.type(0)), x > 0),
    lambda saved, g: (np.where(saved, g, g.dtype.type(0)),),  # type: ignore[call-overload]
)


def _check_alike(operation: str, *values: Variable | Elements) -> None:
    arrays = [as_variable(value).array for value in values]
    kinds = [f"{array.dtype} {array.shape}" for array in arrays]
    # a gradient would have the shape of the larger one
    if kinds[0] != kinds[1]:
        raise RpcError(
            f"{operation!r} takes arrays of one dtype and shape, not {' and '.join(kinds)}"
        )


def concatenate(*parts: Variable | Elements) -> Variable:
    """Columns of all parts side by side: f32[b, …] each."""
    shapes = [as_variable(part).array.shape for part in parts]
    if len({shape[:1] for shape in shapes}) != 1 or any(len(shape) != 2 for shape in shapes):
        raise RpcError(f"'concatenate' takes arrays [b, …] of as many samples, not {shapes}")
    widths = np.cumsum([shape[1] for shape in shapes])
    rule = GradientRule(
        "concatenate",
        lambda *arrays: (np.concatenate(arrays, axis=1), None),
        lambda saved, g: np.split(g, widths[:-1], axis=1),
    )
    return apply(rule, *parts)


# ---- the loss ----


def binary_cross_entropy(logit: Variable | Floats, labels: Floats, batch: int = 0) -> Variable:
    """Losses f32[b] of logits f32[b], whose gradients are divided by `batch`, the samples of all
    ranks (0: those here).
    """

    def forward(z: Elements) -> tuple[Elements, object]:
        logits = _floats("binary_cross_entropy", z.reshape(-1), 1)
        right = _floats("binary_cross_entropy", np.asarray(labels), 1)
        if logits.size != right.size:
            raise RpcError(f"there are {right.size} labels of {logits.size} logits")
        prediction, gradient, loss = (np.empty(z.size, np.float32) for _ in range(3))
        bce(logits, right, batch or z.size, prediction, gradient, loss)
        return loss, (z.shape, gradient)

    def backward(saved: object, gradient: Elements) -> Sequence[Gradient]:
        assert isinstance(saved, tuple)
        shape, of_logit = saved
        return (np.multiply(of_logit, gradient).reshape(shape),)

    return apply(GradientRule("binary cross-entropy", forward, backward), logit)


# ---- embedding bags ----


class EmbeddingParameter(Variable):
    """The rows of a table-batched embedding with one table, as a parameter."""

    def __init__(self, embedding: TableBatchedEmbedding) -> None:
        if len(embedding.shards) != 1:
            raise RpcError(
                f"a parameter is one table, not {len(embedding.shards)}; make an embedding of each"
            )
        super().__init__(NO_FLOATS)
        self.embedding = embedding
        # an embedding has scratch memory of its own, so functions use it one after the other
        self.lock = threading.Lock()

    @property
    def dim(self) -> int:
        """Numbers of a row."""
        return int(self.embedding.width[0])


@dataclass(frozen=True)
class BagGradient:
    """The gradient of a table: the lookups that read it, and the gradient of each bag, f32[S, D].

    Rows are merged when the table is updated, exactly, so no order of sums is left.
    """

    lookups: Lookups
    bags: Floats

    def plus(self, other: Summable) -> "BagGradient":
        """The bags of both."""
        assert isinstance(other, BagGradient)
        first = self.lookups
        second = other.lookups
        offsets = np.concatenate([first.offsets, second.offsets[1:] + first.offsets[-1]])
        rows = np.concatenate([first.rows, second.rows])
        lookups = Lookups(offsets, rows, NO_FLOATS, first.samples + second.samples)
        return BagGradient(lookups, np.concatenate([self.bags, other.bags]))

    def of_rows(self, table: EmbeddingParameter) -> tuple[Ints, Floats]:
        """Rows i64[U] that were looked up, ascending, and their gradients f32[U, D], exactly
        summed and rounded once.
        """
        with table.lock:
            return table.embedding.unique_gradient(_LAYOUT, self.lookups, self.bags)[0]


def embedding_bag(table: EmbeddingParameter, rows: Ints, offsets: Ints) -> Variable:
    """Sums of rows: bag s is rows[offsets[s] : offsets[s+1]]; rows[n] and offsets[S+1] are
    integers, to f32[S, D].

    Raises RpcError for rows that the table lacks, or offsets that are none.
    """
    if not isinstance(table, EmbeddingParameter):
        raise RpcError(f"bags are of an EmbeddingParameter, not of a {type(table).__name__}")
    rows, offsets = (_integers(values) for values in (rows, offsets))
    _check_lookups(table, rows, offsets)
    lookups = Lookups(offsets, rows, NO_FLOATS, offsets.size - 1)

    def forward(_: Floats) -> tuple[Elements, object]:
        out = np.empty((lookups.samples, table.dim), np.float32)
        with table.lock:
            table.embedding.forward(_LAYOUT, lookups, out)
        return out, None

    def backward(saved: object, gradient: Elements) -> Sequence[Gradient]:
        return (BagGradient(lookups, np.ascontiguousarray(gradient)),)

    return apply(GradientRule("embedding bag", forward, backward), table)


def update_table(table: EmbeddingParameter, gradient: BagGradient, step: int) -> None:
    """One update of the rows that were looked up, by the rule of the table."""
    with table.lock:
        table.embedding.backward(_LAYOUT, gradient.lookups, gradient.bags, step)


def _integers(values: object) -> Ints:
    """A copy of numbers, which may change before the way back. Raises RpcError."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise RpcError(
            "rows and offsets of bags are integers of one dimension, not "
            f"{array.dtype} of shape {array.shape}"
        )
    return np.array(array, np.int64)


def _check_lookups(table: EmbeddingParameter, rows: Ints, offsets: Ints) -> None:
    height = int(table.embedding.heights[0])
    if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < height:
        raise RpcError(
            f"rows {int(rows.min())} to {int(rows.max())} are looked up in a table of {height}"
        )
    right = offsets.size and offsets[0] == 0 and offsets[-1] == rows.size
    if not right or np.any(np.diff(offsets) < 0):
        raise RpcError(f"offsets of bags have to rise from 0 to the number of rows, {rows.size}")
