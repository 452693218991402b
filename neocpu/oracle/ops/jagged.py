"""What must products, softmax and elementwise arithmetic on jagged rows return, and gradients?"""

import numpy as np

from neocpu.oracle.canonical import jagged as canonical
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truths, Value
from neocpu.oracle.ops.layout import OFFSETS
from neocpu.oracle.options import OneOf, Whole
from neocpu.oracle.truth import jagged
from neocpu.oracle.truth.formats import in_format
from neocpu.oracle.truth.jagged import sums

ROWS = ("lookup", "column")
LENGTH: dict[str, Value] = {"max_length": Whole(0, 0)}  # rows of a bag that count; 0: all of them
ELEMENTWISE: dict[str, Value] = {"operation": OneOf("add", ("add", "add_jagged", "mul"))}


def _rows(width: str) -> Field:
    return Field(f"rows of all bags, fp32[n, {width}]", ROWS)


def _by_bag(rows: str, columns: str) -> Field:
    return Field(f"fp32[B, {rows}, {columns}]", ("bag", "row", "column"))


def _products(
    name: str, about: str, inputs: dict[str, Field], outputs: dict[str, Field], options: Options
) -> Operator:
    """An operator whose outputs are sums of products."""
    products_of = getattr(jagged, name)

    def truth(arrays: Arrays, settings: Options, switches: Switches) -> Truths:
        truths = {}
        for output, (description, shape) in products_of(arrays, settings, switches).items():
            truths[output] = in_format(sums(description).reshape(*shape), "fp32")
        return truths

    def run(arrays: Arrays, settings: Options, backend: str) -> Arrays:
        return canonical.product_bits(products_of, arrays, settings, backend)

    return Operator(name, about, inputs, options, outputs, run, truth)


def _softmax_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    return {"out": in_format(jagged.softmax(inputs, options, switches), "fp32")}


def _softmax_gradient_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    return {"values_grad": in_format(jagged.softmax_gradient(inputs, options, switches), "fp32")}


def _elementwise_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    return {"out": in_format(jagged.elementwise(inputs, options, switches), "fp32")}


def _elementwise_gradient_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    gradients = jagged.elementwise_gradients(inputs, options, switches)
    return {name: in_format(gradient, "fp32") for name, gradient in gradients.items()}


def _locate_by_bag(
    inputs: Arrays, options: Options, output: str, index: tuple[int, ...]
) -> dict[str, int]:
    """Bag, place in it and column of an element of jagged rows."""
    if len(index) != 2 or len(inputs.get("values", ())) != inputs["offsets"][-1]:
        return {}
    bag = int(np.searchsorted(inputs["offsets"], index[0], side="right")) - 1
    place = index[0] - int(inputs["offsets"][bag])
    return {"lookup": index[0], "bag": bag, "place": place, "column": index[1]}


_VALUES_GRAD = {"values_grad": Field("gradient of the rows, fp32, shaped as they are", ROWS)}
_DENSE = Field("fp32[B, L, D]", ("bag", "place", "column"))
_HEADS = Field("a vector of each bag and head, fp32[B*H, L]", ("vector", "place"))

OPERATORS = (
    _products(
        "jagged_dense_bmm",
        "Rows of each bag times a matrix of its own (FBGEMM: jagged_dense_bmm). Rows beyond "
        "max_length give 0.",
        {"values": _rows("K"), "dense": _by_bag("K", "N"), "offsets": OFFSETS},
        {"out": Field("fp32[n, N]", ROWS)},
        LENGTH,
    ),
    _products(
        "jagged_dense_bmm_backward",
        "Gradients of `jagged_dense_bmm` by rows and matrices.",
        {
            "grad_output": _rows("N"),
            "values": _rows("K"),
            "dense": _by_bag("K", "N"),
            "offsets": OFFSETS,
        },
        {**_VALUES_GRAD, "dense_grad": _by_bag("K", "N")},
        LENGTH,
    ),
    _products(
        "jagged_jagged_bmm",
        "Transposed rows of each bag times other rows of it (FBGEMM: jagged_jagged_bmm).",
        {"values": _rows("M"), "other": _rows("N"), "offsets": OFFSETS},
        {"out": _by_bag("M", "N")},
        LENGTH,
    ),
    _products(
        "jagged_jagged_bmm_backward",
        "Gradients of `jagged_jagged_bmm` by both kinds of rows.",
        {
            "grad_output": _by_bag("M", "N"),
            "values": _rows("M"),
            "other": _rows("N"),
            "offsets": OFFSETS,
        },
        {**_VALUES_GRAD, "other_grad": _rows("N")},
        LENGTH,
    ),
    _products(
        "dense_vec_jagged_mul",
        "A vector of each bag and head times the bag's rows (FBGEMM: "
        "batched_dense_vec_jagged_2d_mul); rows beyond the vector's length do not count.",
        {"vectors": _HEADS, "values": _rows("H*D"), "offsets": OFFSETS},
        {"out": Field("fp32[B*H, D]", ("vector", "column"))},
        {},
    ),
    _products(
        "dense_vec_jagged_mul_backward",
        "Gradients of `dense_vec_jagged_mul` by vectors and rows.",
        {
            "grad_output": Field("fp32[B*H, D]", ("vector", "column")),
            "vectors": _HEADS,
            "values": _rows("H*D"),
            "offsets": OFFSETS,
        },
        {"vectors_grad": _HEADS, **_VALUES_GRAD},
        {},
    ),
    Operator(
        "jagged_softmax",
        "Softmax of each column over the rows of each bag (FBGEMM: jagged_softmax).",
        {"values": _rows("D"), "offsets": OFFSETS},
        {},
        {"out": Field("fp32[n, D]", ROWS)},
        canonical.softmax_bits,
        _softmax_truth,
        _locate_by_bag,
    ),
    Operator(
        "jagged_softmax_backward",
        "Gradient of `jagged_softmax` from its output y: y*(g - sum of g*y over the bag).",
        {"grad_output": _rows("D"), "output": _rows("D"), "offsets": OFFSETS},
        {},
        _VALUES_GRAD,
        canonical.softmax_gradient_bits,
        _softmax_gradient_truth,
    ),
    Operator(
        "jagged_dense_elementwise",
        "Jagged rows and a dense array (FBGEMM: jagged_dense_elementwise_…). add: rows padded with "
        "0 plus the array, dense; add_jagged: jagged, rows beyond it as they are; mul: jagged, "
        "rows beyond it 0.",
        {"values": _rows("D"), "dense": _DENSE, "offsets": OFFSETS},
        ELEMENTWISE,
        {"out": Field("fp32[B, L, D] (add) or fp32[n, D]")},
        canonical.elementwise_bits,
        _elementwise_truth,
        _locate_by_bag,
    ),
    Operator(
        "jagged_dense_elementwise_backward",
        "Gradients of `jagged_dense_elementwise` by both operands.",
        {
            "grad_output": Field("shaped as the output, fp32"),
            "values": _rows("D"),
            "dense": _DENSE,
            "offsets": OFFSETS,
        },
        ELEMENTWISE,
        {**_VALUES_GRAD, "dense_grad": _DENSE},
        canonical.elementwise_gradient_bits,
        _elementwise_gradient_truth,
    ),
)
