"""Are the answers still those that were recorded? `NEOCPU_RECORD=1 pytest tests/test_x.py` records.

For code that is mostly constants: pictures, prices of plans, bounds. A test of its meaning sees few
of them. Numbers are held apart from words: they may differ a little from machine to machine.
"""

import os
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

FILE = Path(__file__).resolve().parent / "recorded.npz"
CLOSE = 1e-5  # relative; numbers are recorded as fp32
NUMBER = re.compile(r"(?<![#\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")

Entry = tuple[str, Sequence[float]]


def lines_of(text: str) -> list[Entry]:
    """Lines without their numbers, and these."""
    return [
        (NUMBER.sub("#", line), [float(number) for number in NUMBER.findall(line)])
        for line in text.splitlines()
    ]


def summary(array: np.ndarray) -> list[float]:
    """Three numbers that change where any element of an array does, or two change places."""
    x = array.astype(np.float64).reshape(-1)
    ramp = np.linspace(1, 2, x.size)
    finite = np.isfinite(x)
    x = np.where(finite, x, 0.0)
    size = np.abs(x).max(initial=0.0) or 1.0
    # logarithms, so that small elements count; what is left where large ones cancel does not
    sizes = np.log2(np.abs(x) / size + 2.0**-30)
    return [float(finite @ ramp), float(np.log2(size)), float((sizes * (2 + np.sign(x))) @ ramp)]


def check(name: str, entries: Iterable[Entry]) -> None:
    """Compare labels and numbers with those recorded by this name."""
    entries = [*entries]
    labels = np.array([zlib.crc32(label.encode()) for label, _ in entries], np.uint32)
    counts = np.array([len(numbers) for _, numbers in entries], np.uint32)
    numbers = np.array([number for _, each in entries for number in each], np.float32)
    if os.environ.get("NEOCPU_RECORD"):
        _record(name, np.concatenate([[labels.size], labels, counts, numbers.view(np.uint32)]))
        return
    with np.load(FILE) as stored:
        size, *words = np.split(stored[name], [1, 1 + int(stored[name][0])])
    was_labels, rest = words
    was_counts, was = rest[: size[0]], rest[size[0] :].view(np.float32)
    least = min(labels.size, was_labels.size)
    same = (labels[:least] == was_labels[:least]) & (counts[:least] == was_counts[:least])
    assert same.all(), f"{name}: other than recorded is {entries[int(np.argmin(same))]}"
    assert labels.size == was_labels.size, f"{name}: {labels.size} entries, not {was_labels.size}"
    near = np.isclose(numbers, was, rtol=CLOSE, atol=CLOSE, equal_nan=True)
    if not near.all():
        at = int(np.argmin(near))
        entry = entries[int(np.searchsorted(np.cumsum(counts), at, side="right"))]
        raise AssertionError(f"{name}: {entry} has {numbers[at]} where {was[at]} was recorded")


def _record(name: str, words: np.ndarray) -> None:
    stored = dict(np.load(FILE)) if FILE.exists() else {}
    np.savez_compressed(FILE, **{**stored, name: words.astype(np.uint32)})
