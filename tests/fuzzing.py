"""What is fuzzed, and what counts as an answer? Records and mutations that all readers share."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Random = np.random.Generator


@dataclass(frozen=True)
class Reader:
    """A reader of one kind of input.

    make : writes a small valid input into a folder, and returns its path. read : all that the
    reader gives of an input, as nested tuples of text, numbers and bytes. mutate : damages an
    input in place, and says whether what comes of it may be another valid input (a log with another
    number in it, a file that was changed and sealed anew); where it may not, the reader must refuse
    it or give the values of the original.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    mutate: Callable[[Path, Random], bool]


def mutate_bytes(path: Path, chance: Random) -> None:
    """Damage a file somewhere: bits, bytes, spans that go, come twice or are zeroed, its end."""
    data = bytearray(path.read_bytes())
    for _ in range(int(chance.choice([1, 1, 1, 2, 4]))):
        data = damaged(data, chance)
    path.write_bytes(data)


def damaged(data: bytearray, chance: Random) -> bytearray:
    """One piece of damage."""
    if not data:
        return bytearray(chance.bytes(int(chance.integers(1, 64))))
    at = int(chance.integers(len(data)))
    length = int(min(2 ** chance.integers(0, 13), len(data) - at))
    kind = chance.choice(["bit", "bit", "byte", "number", "cut", "drop", "twice", "zero", "noise"])
    if kind == "bit":
        data[at] ^= 1 << int(chance.integers(8))
    elif kind == "byte":
        data[at] = int(chance.choice([0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x2C, 0x0A, 0x5B]))
    elif kind == "number":
        width = int(chance.choice([2, 4, 8]))
        value = int(
            chance.choice([0, 1, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1])
        )
        data[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    elif kind == "cut":
        del data[at:]
    elif kind == "drop":
        del data[at : at + length]
    elif kind == "twice":
        data[at:at] = data[at : at + length]
    elif kind == "zero":
        data[at : at + length] = bytes(length)
    else:
        data[at : at + length] = chance.bytes(length)
    return data


def minimal(original: bytes, bad: bytes, fails: Callable[[bytes], bool]) -> bytes:
    """As few changed spans of the original as still fail; the input where lengths differ."""
    if len(original) != len(bad):
        return bad
    changed = np.flatnonzero(np.frombuffer(original, np.uint8) != np.frombuffer(bad, np.uint8))
    kept = changed.tolist()
    step = max(len(kept) // 2, 1)
    while kept:
        for first in range(0, len(kept), step):
            fewer = kept[:first] + kept[first + step :]
            trial = bytearray(original)
            for at in fewer:
                trial[at] = bad[at]
            if fails(bytes(trial)):
                kept = fewer
                break
        else:
            if step == 1:
                break
            step //= 2
    result = bytearray(original)
    for at in kept:
        result[at] = bad[at]
    return bytes(result)


@contextlib.contextmanager
def quiet() -> Any:
    """Nothing that libraries print within is seen."""
    with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink):
        yield
