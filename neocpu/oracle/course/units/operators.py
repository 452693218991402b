"""How do problems of the course become questions to the oracle?"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Elements, Floats
from neocpu.oracle.course.unit import Problem
from neocpu.oracle.operator import Arrays, Case, Options, Value
from neocpu.oracle.ops import OPERATORS


def _case(problem: Problem, op: str, inputs: Arrays, options: Options) -> Case:
    return Case("", op, inputs, options, problem.about)


def _reference(case: Case, *outputs: str) -> tuple[Elements, ...]:
    """What the oracle expects of some outputs."""
    truths = OPERATORS[case.op].truth(case.inputs, case.options)
    return tuple(truths[name].reference for name in outputs)


def _one_table(table: Elements) -> Arrays:
    """A table as the oracle has tables: flat, side by side."""
    return {
        "weights": table.reshape(-1),
        "rows": np.array([table.shape[0]]),
        "dims": np.array([table.shape[1]]),
        "feature_table": np.array([0]),
    }


def lookup_case(problem: Problem) -> Case:
    """`pool` as the operator `lookup`."""
    x = problem.arguments
    inputs = {
        **_one_table(x["table"]),
        "indices": x["rows"],
        "offsets": x["offsets"],
        "per_sample_weights": x["weights"],
    }
    pooling = "mean" if x["mean"] else "sum"
    return _case(problem, "lookup", inputs, {"pooling": pooling})


def lookup_reference(**arguments: Any) -> Elements:
    """What `pool` should return."""
    return _reference(lookup_case(Problem("", arguments)), "out")[0]


def backward_case(problem: Problem) -> Case:
    """`backward` as the operator of that name, by row-wise AdaGrad."""
    x = problem.arguments
    inputs = {
        **_one_table(x["table"]),
        "indices": x["rows"],
        "offsets": x["offsets"],
        "grad_output": x["gradient"],
        "sum": x["sums"],
    }
    options: dict[str, Value] = {
        "optimizer": "exact_rowwise_adagrad",
        "learning_rate": x["rate"],
        "eps": x["eps"],
    }
    return _case(problem, "backward", inputs, options)


def backward_reference(**arguments: Any) -> tuple[Elements, ...]:
    """What `backward` should return: the table and its sums."""
    problem = Problem("", arguments)
    weights, sums = _reference(backward_case(problem), "weights", "sum")
    return weights.reshape(arguments["table"].shape), sums


def bf16_case(problem: Problem) -> Case:
    """`round_to_bf16` as the operator `round`."""
    inputs = {"x": problem.arguments["x"]}
    return _case(problem, "round", inputs, {"format": "bf16", "rounding": "stochastic"})


def bf16_reference(x: Floats, random: NDArray[np.uint16]) -> Elements:
    """Codes of the right shape; either neighbour is right."""
    return np.zeros(x.shape, np.uint16)


def bucketize_case(problem: Problem) -> Case:
    """`bucketize` as the operator `block_bucketize`, of one key."""
    x = problem.arguments
    inputs = {
        "lengths": x["lengths"],
        "indices": x["rows"],
        "block_sizes": np.array([x["block"]]),
    }
    return _case(problem, "block_bucketize", inputs, {"ranks": x["ranks"]})


def bucketize_reference(**arguments: Any) -> tuple[Elements, ...]:
    """What `bucketize` should return: lengths and rows."""
    return _reference(bucketize_case(Problem("", arguments)), "lengths", "indices")
