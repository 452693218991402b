"""Which bits does FBGEMM give on a CPU for copies, their gradients, and products on jagged rows?

Sums of copies are added one after the other, in the order of the output; products are chains of
fused multiply-adds from +0, row after row, or column after column (found by experiment, confirmed
by tests/test_oracle_jagged_mirrors.py). Softmax takes the C library's exponential, and the gradient
of vectors times jagged rows is vectorised by the compiler: both within bounds only.
"""

from collections.abc import Callable

import numpy as np

from neocpu.core.types import Floats
from neocpu.oracle.mirrors.order import NoMirror, running_sums
from neocpu.oracle.operator import Arrays, Options, Switches
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.truth import jagged, moves
from neocpu.oracle.truth.jagged import Products
from neocpu.tables.embedding.row_sums import SumsOfRows

NONE: frozenset[str] = frozenset()
Compute = Callable[[Arrays, Options], Arrays]


def one_answer(op: str) -> Compute:
    """Bits of an operator that copies, or rounds each number once: ours."""

    def bits(inputs: Arrays, options: Options) -> Arrays:
        return OPERATORS[op].run(inputs, options, "reference")

    return bits


def group_index_select_backward(inputs: Arrays, options: Options) -> Arrays:
    """Gradients added to zeros in the order of the output."""
    move = moves.group_index_select(inputs, options, NONE)
    out = np.zeros(move.shape, np.float32)
    gradient = np.asarray(inputs["grad_output"], np.float32).reshape(-1)
    # One by one in the order given, which `bincount` or a sum of groups would not keep.
    np.add.at(out, move.source.reshape(-1), gradient)
    return {"values_grad": out}


def permute_multi_embedding_backward(inputs: Arrays, options: Options) -> Arrays:
    """The first gradient of a column is stored, others are added in the order of the blocks."""
    move = moves.permute_multi_embedding(inputs, options, NONE)
    blocks = inputs["permutes"].tolist()
    gradient = np.asarray(inputs["grad_output"], np.float32)
    samples = int(inputs["samples"][0])
    widths = inputs["widths"].astype(np.int64)
    out_widths = inputs["out_widths"].astype(np.int64)
    parts = [np.full((samples, width), np.nan, np.float32) for width in widths.tolist()]
    sources = np.split(gradient, np.cumsum(out_widths * samples)[:-1])
    written = [np.zeros(width, bool) for width in widths.tolist()]
    for to_tensor, from_tensor, to_column, from_column, length, _ in blocks:
        source = sources[from_tensor].reshape(samples, -1)[:, from_column : from_column + length]
        columns = slice(to_column, to_column + length)
        # FBGEMM stores or adds whole blocks, which its links chain.
        if written[to_tensor][columns].all():
            parts[to_tensor][:, columns] += source
        else:
            parts[to_tensor][:, columns] = source
        written[to_tensor][columns] = True
    if not all(columns.all() for columns in written):
        raise NoMirror("FBGEMM leaves gradients of columns that go nowhere uninitialised")
    flat = np.concatenate([part.reshape(-1) for part in parts])
    return {"values_grad": flat.reshape(move.shape)}


def permute_pooled_backward(inputs: Arrays, options: Options) -> Arrays:
    """The gradient, copied back."""
    move = moves.permute_pooled(inputs, options, NONE)
    if np.unique(inputs["permute"]).size < max(inputs["permute"].size, inputs["dims"].size):
        raise NoMirror("FBGEMM differentiates permutations only, on a CPU")
    out = np.zeros(int(np.prod(move.shape)), np.float32)
    out[move.source.reshape(-1)] = np.asarray(inputs["grad_output"], np.float32).reshape(-1)
    return {"pooled_grad": out.reshape(move.shape)}


def _chain(description: SumsOfRows) -> Floats:
    """Sums of products, one fused multiply-add after the other."""
    if description.factors is None:
        raise NoMirror("sums without factors are no products")
    terms = np.ascontiguousarray(description.rows, np.float32)[description.picks]
    starts = description.starts
    return running_sums(terms, starts[:-1], np.diff(starts), description.factors)


def products(op: str) -> Compute:
    """Bits of an operator of products on jagged rows."""
    products_of: Callable[[Arrays, Options, Switches], Products]
    products_of = getattr(jagged, op)

    def bits(inputs: Arrays, options: Options) -> Arrays:
        outputs = products_of(inputs, options, NONE)
        return {
            name: _chain(description).reshape(shape)
            for name, (description, shape) in outputs.items()
        }

    return bits
