"""Does a kernel give the right answer each time it is called, and touch nothing else?"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.oracle.adapters import Array, arrays, to_numpy
from neocpu.oracle.checking import check, find_operator
from neocpu.oracle.guards import GuardedCall, read_outside
from neocpu.oracle.operator import Operator, Options, Truths
from neocpu.oracle.report import Report
from neocpu.oracle.verdicts.compare import Verdict

Kernel = Callable[..., Any]
RUNS = 20
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def check_repeatedly(
    op: str,
    inputs: Mapping[str, object],
    kernel: Kernel,
    options: Options | None = None,
    runs: int = RUNS,
    seeds: bool = False,
    bits: bool = False,
    preset: str | None = None,
    strict: bool = False,
) -> Report:
    """Call a kernel several times with the same question, and judge all of its answers.

    kernel : kernel(inputs, options) -> one array, or outputs by name. Each call gets copies of the
        inputs, so it may update tables and states in place, and all options, defaults included.
        kernel(inputs, options, outputs) is handed buffers to write to by name, too, and may return
        nothing. What it does to memory beside its answer is judged as well (guards.py).
    seeds : give every run a seed of its own (the option `seed`, and those that follow it); else all
        runs have the same options, and a kernel that rounds stochastically must repeat itself.
    bits, preset, strict : as those of `check`.
    Raises OracleError where the answers of two runs have different outputs or shapes, or where
    seeds are asked for of an operator that has none.
    """
    operator = find_operator(op)
    complete = operator.complete(options or {})
    if seeds and "seed" not in complete:
        raise OracleError(f"{op} has no option seed: give seeds=False")
    if runs < 1:
        raise OracleError(f"runs is {runs}: call the kernel at least once")
    guarded = _GuardedKernel(kernel, inputs, _truths(operator, inputs, complete, kernel))
    answers = []
    for run in range(runs):
        call = {**complete, "seed": int(complete["seed"]) + run} if seeds else dict(complete)
        answers.append(guarded(call, operator.updated))
    if any(np.isnan(array).any() for array in answers[-1].values() if array.dtype.kind == "f"):
        guarded.look_outside(call, answers[-1])
    return check(
        op,
        inputs,
        _stacked(op, answers),
        options,
        bits,
        preset,
        strict,
        runs="seeds" if seeds else "repeats",
        effects=guarded.effects.values(),
    )


def _truths(
    operator: Operator, inputs: Mapping[str, object], options: Options, kernel: Kernel
) -> Truths:
    """The outputs that a kernel wants buffers for; none where it takes inputs and options only."""
    try:
        parameters = inspect.signature(kernel).parameters.values()
    except (TypeError, ValueError):  # of some callables in C nobody knows
        return {}
    # A lambda in a loop binds the loop's names as defaults: these are nobody's buffers.
    required = [p for p in parameters if p.default is p.empty and p.kind in POSITIONAL]
    return operator.truth(arrays(inputs, "input"), options) if len(required) > 2 else {}


class _GuardedKernel:
    """A kernel, and what it did to memory beside its answers.

    Attributes: effects, the first verdict of each kind on each buffer.
    """

    def __init__(self, kernel: Kernel, inputs: Mapping[str, object], truths: Truths) -> None:
        self._kernel = kernel
        self._inputs = inputs
        self._truths = truths
        self.effects: dict[tuple[str, str], Verdict] = {}

    def __call__(self, options: Options, updated: frozenset[str]) -> dict[str, Array]:
        """The outputs of one run."""
        call = GuardedCall(self._inputs, self._truths)
        answer = self._answer(call, options)
        self._note(call.verdicts(updated))
        return answer

    def look_outside(self, options: Options, answer: dict[str, Array]) -> None:
        """Run once more with zeros in place of NaN around the inputs: another answer tells."""
        zeros = GuardedCall(self._inputs, self._truths, zone_byte=0)
        self._note(read_outside(answer, self._answer(zeros, options)))

    def _answer(self, call: GuardedCall, options: Options) -> dict[str, Array]:
        buffers = [call.outputs] if self._truths else []
        answer = self._kernel(call.inputs, dict(options), *buffers)
        return _arrays(call.outputs if answer is None and buffers else answer)

    def _note(self, verdicts: list[Verdict]) -> None:
        for verdict in verdicts:
            self.effects.setdefault((verdict.output, verdict.mistakes[0].name), verdict)


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
