"""Does a kernel give the right answer each time it is called?"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.oracle.adapters import Array, to_numpy
from neocpu.oracle.checking import check, find_operator
from neocpu.oracle.operator import Value
from neocpu.oracle.report import Report

Kernel = Callable[[dict[str, Any], dict[str, Value]], Any]
RUNS = 20


def check_repeatedly(
    op: str,
    inputs: Mapping[str, object],
    kernel: Kernel,
    options: Mapping[str, Value] | None = None,
    runs: int = RUNS,
    seeds: bool = False,
    bits: bool = False,
    preset: str | None = None,
    strict: bool = False,
) -> Report:
    """Call a kernel several times with the same question, and judge all of its answers.

    kernel : kernel(inputs, options) -> one array, or outputs by name. Each call gets copies of the
        inputs, so it may update them in place, and all options, defaults included.
    seeds : give every run a seed of its own (the option `seed`, and those that follow it); else all
        runs have the same options, and a kernel that rounds stochastically must repeat itself.
    bits, preset, strict : as those of `check`.
    Raises OracleError where the answers of two runs have different outputs or shapes, or where
    seeds are asked for of an operator that has none.
    """
    operator = find_operator(op)
    try:
        complete = operator.complete(options or {})
    except ValueError as error:
        raise OracleError(str(error)) from error
    if seeds and "seed" not in complete:
        raise OracleError(f"{op} has no option seed: give seeds=False")
    if runs < 1:
        raise OracleError(f"runs is {runs}: call the kernel at least once")
    answers = []
    for run in range(runs):
        call = {**complete, "seed": int(complete["seed"]) + run} if seeds else dict(complete)
        # A kernel that updates in place must not answer another question the second time.
        copies = {name: _copy(array) for name, array in inputs.items()}
        answers.append(_arrays(kernel(copies, call)))
    return check(
        op,
        inputs,
        _stacked(op, answers),
        options,
        bits,
        preset,
        strict,
        runs="seeds" if seeds else "repeats",
    )


def _copy(array: object) -> object:
    """An array of the same kind that a kernel may write to."""
    if hasattr(array, "clone"):  # torch
        return array.clone()
    return array.copy() if hasattr(array, "copy") else array


def _arrays(answer: object) -> dict[str, Array]:
    """Copies of the outputs of one run on the host; the name "" where there is one without a name.

    The kernel may return the same buffer in every run.
    """
    named = answer if isinstance(answer, Mapping) else {"": answer}
    return {
        str(name): np.array(to_numpy(array, f'answer "{name}"')) for name, array in named.items()
    }


def _stacked(op: str, answers: list[dict[str, Array]]) -> Array | dict[str, Array]:
    """Outputs of all runs, with runs as the first axis."""
    first = answers[0]
    for run, answer in enumerate(answers):
        kinds = {name: (array.shape, array.dtype) for name, array in answer.items()}
        expected = {name: (array.shape, array.dtype) for name, array in first.items()}
        if kinds != expected:
            raise OracleError(
                f"{op}: run {run} answered {_described(answer)}, run 0 {_described(first)}: every "
                "run must give the same outputs, shapes and types"
            )
    stacked = {name: np.stack([answer[name] for answer in answers]) for name in first}
    if len(answers) == 1:
        stacked = {name: array[0] for name, array in stacked.items()}
    return stacked.get("", stacked)


def _described(answer: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in answer.items())
