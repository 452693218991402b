"""Does every answer to a suite get a verdict? Other shapes, types, numbers and runs of outputs."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import Random, Reader

from neocpu.oracle.adapters import codes_of
from neocpu.oracle.answers import REPEATS, read_answers
from neocpu.oracle.cases import all_cases
from neocpu.oracle.checking import check_suite
from neocpu.oracle.suite import Question, ask

# of several kinds of output: bags, stochastic rows with a state, whole numbers, codes
CASES = (
    "lookup-mean",
    "backward-rows-fp16-stochastic",
    "round-fp16-stochastic",
    "permute-repeats",
    "quantize-int8",
)
PRESETS = (None, None, "fbgemm_cpu", "torch")
TYPES = ("f2", "f4", "f8", "i4", "i8", "u1", "u2", "?", "c8", "U3", "M8[s]", ">f4")
VALUES = (0.0, 1.0, -1.0, 1e30, np.nan, np.inf, -np.inf)


def readers() -> dict[str, Reader]:
    """The one of verdicts."""
    return {"verdicts": Reader(_make, _read, _mutate)}


@cache
def _suite() -> dict[str, Question]:
    ops = {name.split("-", 1)[0] for name in CASES}
    suite = {case.name: ask(case) for case in all_cases(ops) if case.name in CASES}
    assert len(suite) == len(CASES)
    return suite


def _make(folder: Path) -> Path:
    path = folder / "answers.npz"
    right = {
        f"{name}/{output}": codes_of(expected.canonical)
        for name, question in _suite().items()
        for output, expected in question.outputs.items()
        if expected.canonical is not None
    }
    np.savez(path, allow_pickle=False, **right)
    return path


def _read(path: Path) -> Any:
    """The report within bounds and in bits, the second without explanations."""
    with read_answers(path) as answers:
        within = check_suite(_suite(), answers, budget=0.05)
        preset = PRESETS[len(answers) % len(PRESETS)]
        bits = check_suite(_suite(), answers, bits=True, preset=preset, budget=0)
        return within.to_json(), bits.to_json(), len(within.to_html()), within.verdicts()


def _mutate(path: Path, chance: Random) -> bool:
    with np.load(path) as stored:
        arrays = dict(stored)
    for key in list(arrays):
        if chance.random() < 0.6:
            continue
        array = _otherwise(arrays.pop(key), chance)
        ending = str(chance.choice(["", "", "", REPEATS, "@", "/more"]))
        arrays[key + ending] = array
    np.savez(path, allow_pickle=False, **arrays)
    return True


def _otherwise(array: Any, chance: Random) -> Any:
    """The array in another type or shape, with other numbers, or several of it."""
    runs = np.stack([array] * int(chance.integers(1, 5)))
    numbers = array.astype(np.float32)
    some = chance.random(array.shape) < 0.3
    others: tuple[Any, ...] = (
        np.zeros(array.shape, str(chance.choice(TYPES))),
        np.zeros(chance.integers(0, 4, int(chance.integers(0, 5))), np.float32),
        np.where(some, np.float32(chance.choice(VALUES)), numbers),
        np.where(some, array[::-1], array),
        np.where(chance.random(runs.shape) < 0.1, 0, runs).astype(array.dtype),
        runs,
        runs.reshape(-1),
        runs[:0],
        array[:0],
        array[:-1],
        array[..., None],
        array.T,
        array.reshape(-1),
        chance.permutation(array.reshape(-1)).reshape(array.shape),
    )
    return others[int(chance.integers(len(others)))]
