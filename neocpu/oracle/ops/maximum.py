"""What must a lookup with MAX pooling return, and what its gradient?

Without per-sample weights, as in torch. Row -1 is padding: it is not looked at.
"""

import numpy as np

from neocpu.kernels.compile.choice import backend_module
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truths, Value
from neocpu.oracle.ops.backward import GRADIENT
from neocpu.oracle.ops.lookup import BAGS, FLOATS, POOLING, TABLES, joined, locate
from neocpu.oracle.options import OneOf
from neocpu.oracle.truth.bags import bags_of, rows_of, tables_of
from neocpu.oracle.truth.formats import in_format
from neocpu.oracle.truth.jagged import sums
from neocpu.oracle.truth.maximum import gradient_sums, maxima
from neocpu.oracle.truth.numbers import Bounded
from neocpu.tables.embedding.row_sums import summed

UNWEIGHTED = {name: field for name, field in BAGS.items() if name != "per_sample_weights"}
OPTIONS: dict[str, Value] = {
    "weights_format": OneOf("fp32", FLOATS),
    "bounds_check": POOLING["bounds_check"],
}
NONE: frozenset[str] = frozenset()


def _largest(inputs: Arrays, options: Options, switches: Switches) -> Bounded:
    bags = bags_of(inputs, options, switches)
    features = maxima(bags, rows_of(inputs, options), switches)
    return joined(bags, features, "batch_sizes" in inputs)


def _truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    return {"out": in_format(_largest(inputs, options, switches), "fp32")}


def _bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    # A maximum is one of the numbers: the model has its bits already.
    return {"out": _largest(inputs, options, NONE).value.astype(np.float32)}


def _backward_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    bags = bags_of(inputs, options, switches)
    rows = rows_of(inputs, options)
    total = sums(gradient_sums(inputs, options, bags, rows, switches))
    return {"weights_grad": in_format(Bounded(total.value[:, 0], total.error[:, 0]), "fp32")}


def _backward_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    bags = bags_of(inputs, options, NONE)
    description = gradient_sums(inputs, options, bags, rows_of(inputs, options), NONE)
    return {"weights_grad": summed(description, backend_module("rows.lookup", backend))[:, 0]}


def _locate(
    inputs: Arrays, options: Options, output: str, index: tuple[int, ...]
) -> dict[str, int]:
    return locate(inputs, {**options, "pooling": "max"}, output, index)


def _locate_element(
    inputs: Arrays, options: Options, output: str, index: tuple[int, ...]
) -> dict[str, int]:
    """Table, row and column of an element of all tables."""
    return tables_of(inputs).place_of_element(index[0])


OPERATORS = (
    Operator(
        name="lookup_max",
        about="The largest number of each bag, column by column; 0 for an empty bag (torch: "
        "EmbeddingBag with mode='max').",
        inputs={**TABLES, **UNWEIGHTED},
        options=OPTIONS,
        outputs={
            "out": Field(
                "fp32[B, sum of dims]; variable batches: flat, feature-major", ("sample", "column")
            )
        },
        run_=_bits,
        truth_=_truth,
        locate_=_locate,
    ),
    Operator(
        name="lookup_max_backward",
        about="Gradient of `lookup_max` by the tables: a bag's gradient goes to its largest number "
        "of each column, the first of equal ones.",
        inputs={**TABLES, **UNWEIGHTED, "grad_output": GRADIENT},
        options=OPTIONS,
        outputs={"weights_grad": Field("gradient of all tables, fp32, as `weights`", ("element",))},
        run_=_backward_bits,
        truth_=_backward_truth,
        locate_=_locate_element,
    ),
)
