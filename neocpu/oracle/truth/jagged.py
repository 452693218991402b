"""What do products, softmax and elementwise arithmetic on jagged rows give, and their gradients?

Products are sums of rows times factors (`tables/embedding/row_sums.py`), whose bound is that of any
sum in any order. A softmax may subtract the largest number or not, as long as nothing overflows.
"""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.kernels.twins.numbers.elementary import exp
from neocpu.oracle.operator import Arrays, Options, Switches
from neocpu.oracle.truth.numbers import TINY, ULP, Bounded, Real, gamma
from neocpu.oracle.truth.sums import segment_sums
from neocpu.tables.embedding.row_sums import SumsOfRows, row_by_matrix, segment_starts
from neocpu.tables.embedding.row_sums import transposed_by_matrix as by_bag

EXP_ULPS = 4.0  # of an exponential, beside the error of its argument
OVERFLOW = 88.0  # e^x of larger x may overflow fp32
NOTHING: Ints = np.zeros(1, np.int64)


class JaggedRows(NamedTuple):
    """The rows of each bag, i64[B] each, and the bag and place of each row, i64[n]."""

    first: Ints
    lengths: Ints  # of what is read: at most max_length
    bag: Ints  # -1: beyond max_length
    place: Ints


def jagged_rows(
    inputs: Arrays, options: Options, switches: Switches, longest: int = 0
) -> JaggedRows:
    """Bags of rows.

    longest : rows of a bag that count; 0: the option max_length, where 0 means all.
    """
    offsets = inputs["offsets"].astype(np.int64)
    whole = np.diff(offsets)
    first = offsets[:-1].copy()
    longest = longest or int(options.get("max_length", 0)) or int(whole.max(initial=0))
    lengths = np.clip(whole, 0, max(longest, 0))
    if "last_lookup_dropped" in switches:
        lengths = np.maximum(lengths - 1, 0)
    if "first_lookup_dropped" in switches:
        # Empty bags have no first lookup to drop.
        first += lengths > 0
        lengths = np.maximum(lengths - 1, 0)
    count = int(offsets[-1])
    bag = np.full(count, -1, np.int64)
    place = np.zeros(count, np.int64)
    for number, (start, length) in enumerate(zip(first.tolist(), lengths.tolist())):
        bag[start : start + length] = number
        place[start : start + length] = np.arange(length)
    return JaggedRows(first, lengths, bag, place)


def sums(description: SumsOfRows) -> Bounded:
    """Sums of rows times factors, exact, with the bound of any order: [S, W]."""
    terms = np.asarray(description.rows, np.float64)[description.picks]
    if description.factors is not None:
        terms = terms * np.asarray(description.factors, np.float64)[:, None]
    products = int(description.factors is not None)
    total = segment_sums(
        Bounded.exactly(terms), np.abs(terms), description.starts, products, NOTHING
    )
    return Bounded(total.value, total.error)


Products = dict[str, tuple[SumsOfRows, tuple[int, ...]]]  # by output: the sums and the shape


def jagged_dense_bmm(inputs: Arrays, options: Options, switches: Switches) -> Products:
    """Rows [n, K] times the matrix [K, N] of their bag."""
    rows = jagged_rows(inputs, options, switches)
    dense = inputs["dense"]
    if "matrix_transposed" in switches and dense.shape[1] == dense.shape[2]:
        dense = dense.transpose(0, 2, 1)
    shape = (len(inputs["values"]), dense.shape[2])
    return {"out": (row_by_matrix(inputs["values"], dense, rows.bag), shape)}


def jagged_dense_bmm_backward(inputs: Arrays, options: Options, switches: Switches) -> Products:
    """grad [n, N] times each matrix transposed; rows transposed times grad, bag by bag."""
    rows = jagged_rows(inputs, options, switches)
    dense = inputs["dense"]
    gradient = inputs["grad_output"]
    if not ("matrix_transposed" in switches and dense.shape[1] == dense.shape[2]):
        dense = dense.transpose(0, 2, 1)
    values_grad = row_by_matrix(gradient, dense, rows.bag)
    dense_grad = by_bag(inputs["values"], gradient, rows.first, rows.lengths)
    return {
        "values_grad": (values_grad, inputs["values"].shape),
        "dense_grad": (dense_grad, inputs["dense"].shape),
    }


def jagged_jagged_bmm(inputs: Arrays, options: Options, switches: Switches) -> Products:
    """Rows [n, M] transposed times rows [n, N], bag by bag: [B, M, N]."""
    rows = jagged_rows(inputs, options, switches)
    left = inputs["values"]
    right = inputs["other"]
    shape = (rows.lengths.size, left.shape[1], right.shape[1])
    if "matrix_transposed" in switches and left.shape[1] == right.shape[1]:
        left, right = right, left
    return {"out": (by_bag(left, right, rows.first, rows.lengths), shape)}


def jagged_jagged_bmm_backward(inputs: Arrays, options: Options, switches: Switches) -> Products:
    """Rows of each side times the gradient [B, M, N] of their bag, transposed for the first."""
    rows = jagged_rows(inputs, options, switches)
    gradient = inputs["grad_output"]
    transposed = gradient.transpose(0, 2, 1)
    if "matrix_transposed" in switches and gradient.shape[1] == gradient.shape[2]:
        gradient, transposed = transposed, gradient
    return {
        "values_grad": (
            row_by_matrix(inputs["other"], transposed, rows.bag),
            inputs["values"].shape,
        ),
        "other_grad": (row_by_matrix(inputs["values"], gradient, rows.bag), inputs["other"].shape),
    }


class _Heads(NamedTuple):
    """The elements of `dense_vec_jagged_mul`: vectors of B bags and H heads times rows."""

    rows: JaggedRows
    heads: int
    bag_rows: Ints  # rows that count, bag by bag
    width: int  # columns of a head


def _heads(inputs: Arrays, options: Options, switches: Switches) -> _Heads:
    vectors = inputs["vectors"]
    rows = jagged_rows(inputs, options, switches, longest=vectors.shape[1] or -1)
    bags = rows.lengths.size
    heads = len(vectors) // max(bags, 1)
    width = inputs["values"].shape[1] // max(heads, 1)
    return _Heads(rows, heads, np.flatnonzero(rows.bag >= 0), width)


def dense_vec_jagged_mul(inputs: Arrays, options: Options, switches: Switches) -> Products:
    """Vector [L] of each bag and head times the bag's rows of that head: [B*H, D]."""
    h = _heads(inputs, options, switches)
    by_head = inputs["values"].reshape(len(inputs["values"]) * h.heads, h.width)
    picks = []
    factors = []
    for number, (first, length) in enumerate(zip(h.rows.first.tolist(), h.rows.lengths.tolist())):
        for head in range(h.heads):
            vector = number * h.heads + head
            if "heads_bag_minor" in switches:
                vector = head * h.rows.lengths.size + number
            picks.append((first + np.arange(length)) * h.heads + head)
            factors.append(inputs["vectors"][vector, :length])
    description = SumsOfRows(
        rows=by_head,
        picks=np.concatenate([np.empty(0, np.int64), *picks]),
        starts=segment_starts(np.repeat(h.rows.lengths, h.heads)),
        factors=np.concatenate([np.empty(0, np.float32), *factors]),
    )
    return {"out": (description, (len(inputs["vectors"]), h.width))}


def dense_vec_jagged_mul_backward(inputs: Arrays, options: Options, switches: Switches) -> Products:
    """Of the vectors: dot products of gradient and rows; of the rows: vector times gradient."""
    h = _heads(inputs, options, switches)
    gradient = inputs["grad_output"]  # [B*H, D]
    bags, length = h.rows.lengths.size, inputs["vectors"].shape[1]
    row = np.full((bags, length), -1, np.int64)
    row[h.rows.bag[h.bag_rows], h.rows.place[h.bag_rows]] = h.bag_rows
    row = np.repeat(row, h.heads, axis=0)  # [B*H, L]
    head = np.tile(np.arange(h.heads), bags)[:, None]
    vector, place = np.nonzero(row >= 0)
    element = (row[vector, place] * h.heads + head[vector, 0])[:, None] * h.width
    vectors_grad = SumsOfRows(
        rows=inputs["values"].reshape(-1, 1),
        picks=(element + np.arange(h.width)).reshape(-1),
        starts=segment_starts(np.where(row.reshape(-1) >= 0, h.width, 0)),
        factors=gradient[vector].reshape(-1),
    )
    every_head = np.repeat(h.rows.bag, h.heads) * h.heads
    every_head += np.tile(np.arange(h.heads), h.rows.bag.size)
    counted = np.repeat(h.rows.bag >= 0, h.heads)
    values_grad = SumsOfRows(
        rows=gradient,
        picks=every_head[counted],
        starts=segment_starts(counted.astype(np.int64)),
        factors=inputs["vectors"][every_head[counted], np.repeat(h.rows.place, h.heads)[counted]],
    )
    return {
        "vectors_grad": (vectors_grad, inputs["vectors"].shape),
        "values_grad": (values_grad, inputs["values"].shape),
    }


def softmax(inputs: Arrays, options: Options, switches: Switches) -> Bounded:
    """Softmax of each column over the rows of each bag: [n, D].

    Unknown where the bag holds +infinity: kernels that subtract it give NaN, others 0.
    """
    x = np.asarray(inputs["values"], np.float64)
    value = np.zeros(x.shape)
    error = np.zeros(x.shape)
    rows = jagged_rows(inputs, {}, switches)
    longest = int(rows.lengths.max(initial=0))
    batch_starts = [0, len(x)] if "softmax_over_batch" in switches else None
    ends = zip(rows.first.tolist(), (rows.first + rows.lengths).tolist())
    for start, end in pairwise(batch_starts) if batch_starts else ends:
        if start == end:
            continue
        padding = longest - (end - start) if "softmax_counts_padding" in switches else 0
        bag = _softmax_of_bag(x[start:end], padding, "softmax_of_row" in switches)
        value[start:end] = bag.value
        error[start:end] = bag.error
    return Bounded(value, error)


def _softmax_of_bag(x: Real, padding: int, of_row: bool) -> Bounded:
    """Softmax over the first axis of x [L, D]; padding : zeros that count in the denominator.

    of_row : over the columns of each row instead.
    """
    if of_row:
        transposed = _softmax_of_bag(x.T, 0, False)
        return Bounded(transposed.value.T, transposed.error.T)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        # Padding counts as zeros, in the maximum too.
        largest = x.max(0, initial=0.0 if padding else -np.inf)
        shifted = x - largest
        power = exp(shifted)
        # a kernel may subtract the largest number or not: the longer argument has the larger error
        plain = np.where((np.abs(largest) <= OVERFLOW) & np.isfinite(x), np.abs(x), 0.0)
        argument = np.maximum(np.where(np.isfinite(shifted), np.abs(shifted), 0.0), plain)
        # e^(x + d) is e^x times about 1 + d: the error of the argument is relative.
        power_error = power * (EXP_ULPS + 2 * argument) * ULP + np.where(power > 0, TINY, 0.0)
        total = power.sum(0) + (padding * exp(-largest) if padding else 0.0)
        total_error = power_error.sum(0) + gamma(len(x) + padding) * total
        quotient = Bounded(power, power_error) / Bounded(total, total_error)
        unknown = np.isposinf(x).any(0)
        error = np.where(np.isfinite(quotient.value), quotient.error + TINY, 0.0)
    return Bounded(quotient.value, np.where(unknown, np.inf, error))


def softmax_gradient(inputs: Arrays, options: Options, switches: Switches) -> Bounded:
    """y*(g - Σ g*y) over each bag, from the softmax y and the gradient g: [n, D]."""
    y = np.asarray(inputs["output"], np.float64)
    g = np.asarray(inputs["grad_output"], np.float64)
    rows = jagged_rows(inputs, {}, switches)
    counted = np.flatnonzero(rows.bag >= 0)
    with np.errstate(invalid="ignore", over="ignore"):
        products = (y * g)[counted]
        starts = segment_starts(rows.lengths)
        dots = segment_sums(Bounded.exactly(products), np.abs(products), starts, 1, NOTHING)
        dot = dots.take(rows.bag[counted])
        if "softmax_gradient_without_sum" in switches:
            dot = Bounded.exactly(np.zeros(products.shape))
        gradient = Bounded.exactly(g[counted])
        inner = Bounded.exactly(y[counted]) * (gradient - dot)
        # y*g - y*dot is the same formula
        split = np.abs(y[counted]) * (np.abs(g[counted]) + np.abs(dot.value)) * ULP
        finite = np.isfinite(inner.value) & np.isfinite(split)
        # With a dot product of 0 both forms are one product.
        exact = (inner.error == 0) & (dot.error == 0) & (dot.value == 0)
        inner = replace(inner, error=inner.error + np.where(finite & ~exact, split + TINY, 0.0))
    out = Bounded.exactly(np.zeros(y.shape))
    out.put(counted, inner)
    return out


def elementwise(inputs: Arrays, options: Options, switches: Switches) -> Bounded:
    """Jagged rows and dense ones, added or multiplied; rows beyond the dense array, and padding."""
    x = Bounded.exactly(inputs["values"])
    dense = Bounded.exactly(inputs["dense"])
    rows, inside = _inside(inputs, switches)
    place = (rows.bag[inside], rows.place[inside])
    if options["operation"] == "add":
        out = Bounded.exactly(dense.value.copy())
        out.put(place, x.take(inside) + dense.take(place))
        return out
    beyond_kept = (options["operation"] == "add_jagged") != ("beyond_dense_swapped" in switches)
    out = Bounded.exactly(x.value.copy() if beyond_kept else np.zeros(x.value.shape))
    multiplied = options["operation"] == "mul"
    if multiplied:  # beyond the array some multiply by 0: infinity and NaN become NaN
        out.error[~np.isfinite(x.value)] = np.inf
    counted = x.take(inside)
    out.put(inside, counted * dense.take(place) if multiplied else counted + dense.take(place))
    return out


def _inside(inputs: Arrays, switches: Switches) -> tuple[JaggedRows, Ints]:
    """The bags of rows, and the rows that have a place in the dense array."""
    longest = inputs["dense"].shape[1]
    rows = jagged_rows(inputs, {}, switches, longest=longest or -1)
    return rows, np.flatnonzero(rows.bag >= 0)


def elementwise_gradients(
    inputs: Arrays, options: Options, switches: Switches
) -> dict[str, Bounded]:
    """Gradients of the rows and of the dense array, for mul: each times the other operand."""
    rows, inside = _inside(inputs, switches)
    place = (rows.bag[inside], rows.place[inside])
    gradient = Bounded.exactly(inputs["grad_output"])
    values = Bounded.exactly(np.zeros(inputs["values"].shape))
    dense = Bounded.exactly(np.zeros(inputs["dense"].shape))
    if options["operation"] == "add":
        dense = gradient
        row_gradient = gradient.take(place)
    elif options["operation"] == "add_jagged":
        values = Bounded.exactly(np.array(gradient.value))
        row_gradient = gradient.take(inside)
        dense.put(place, row_gradient)
    else:
        row_gradient = gradient.take(inside) * Bounded.exactly(inputs["dense"]).take(place)
        dense.put(place, gradient.take(inside) * Bounded.exactly(inputs["values"]).take(inside))
    values.put(inside, row_gradient)
    return {"values_grad": values, "dense_grad": dense}
