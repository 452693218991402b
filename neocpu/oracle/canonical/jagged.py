"""Which bits are ours for products, softmax and elementwise arithmetic on jagged rows?

Products: each rounded to fp32, their sums exact and rounded once, by the kernels of lookups. The
softmax is computed in fp64, with our own exponential and exact sums, and rounded once to fp32;
elementwise arithmetic rounds once.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.kernels.compile.choice import backend_module
from neocpu.oracle.operator import Arrays, Options, Switches
from neocpu.oracle.truth import jagged as truth_jagged
from neocpu.oracle.truth.jagged import Products
from neocpu.tables.embedding.row_sums import summed

ProductsOf = Callable[[Arrays, Options, Switches], Products]


def product_bits(products_of: ProductsOf, inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical sums of products."""
    kernels = backend_module("rows.lookup", backend)
    products = products_of(inputs, options, frozenset())
    return {
        name: summed(description, kernels).reshape(shape)
        for name, (description, shape) in products.items()
    }


def _exact_sums(columns: np.ndarray) -> np.ndarray:
    """Sums over the first axis, f64[D], exact and rounded once where all terms are finite."""
    return np.array(
        [
            # fsum raises for infinities of both signs, where IEEE has NaN.
            math.fsum(column) if all(map(math.isfinite, column)) else sum(column)
            for column in columns.T.tolist()
        ],
        np.float64,
    )


def softmax_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical softmax of each column over each bag."""
    from neocpu.kernels.twins.numbers.elementary import exp

    x = np.asarray(inputs["values"], np.float64)
    out = np.zeros(x.shape, np.float32)
    ends = inputs["offsets"].astype(np.int64).tolist()
    for start, end in pairwise(ends):
        if start < end:
            # Our own exponential: libraries differ in the last place.
            power = exp(x[start:end] - x[start:end].max(0))
            out[start:end] = power / _exact_sums(power)
    return {"out": out}


def softmax_gradient_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical gradient of a softmax: the dot product exact, the rest in fp64, rounded once."""
    y = np.asarray(inputs["output"], np.float64)
    g = np.asarray(inputs["grad_output"], np.float64)
    out = np.zeros(y.shape, np.float32)
    ends = inputs["offsets"].astype(np.int64).tolist()
    for start, end in pairwise(ends):
        bag = slice(start, end)
        out[bag] = y[bag] * (g[bag] - _exact_sums(y[bag] * g[bag]))
    return {"values_grad": out}


def _inside(inputs: Arrays) -> tuple[Ints, tuple[Ints, Ints]]:
    """Rows that have a place in the dense array, and these places (bag, place)."""
    offsets = inputs["offsets"].astype(np.int64)
    bag = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    place = np.arange(bag.size) - offsets[bag]
    inside = np.flatnonzero(place < inputs["dense"].shape[1])
    return inside, (bag[inside], place[inside])


def elementwise_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical sums or products of jagged rows and dense ones."""
    x = np.asarray(inputs["values"], np.float32)
    dense = np.asarray(inputs["dense"], np.float32)
    inside, place = _inside(inputs)
    if options["operation"] == "add":
        out: Floats = dense + np.float32(0)  # padding is +0: the sum is never -0
        out[place] = dense[place] + x[inside]
        return {"out": out}
    beside = np.zeros(x.shape, np.float32)  # what stands beside each row: 0 beyond the array
    beside[inside] = dense[place]
    return {"out": x * beside if options["operation"] == "mul" else x + beside}


def elementwise_gradient_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical gradients of `elementwise_bits`: copies, or one product each."""
    gradients = truth_jagged.elementwise_gradients(inputs, options, frozenset())
    return {name: gradient.value.astype(np.float32) for name, gradient in gradients.items()}
