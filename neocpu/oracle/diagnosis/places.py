"""Where are answers wrong, and by how much, when nobody knows why? Told in words.

Columns, rows and samples that all wrong elements have in common; bags and rows by their number of
lookups; errors of a size that numbers of few bits have.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Ints
from neocpu.oracle.diagnosis.evidence import CaseTrial
from neocpu.oracle.diagnosis.patterns import by_row, wrong_outputs
from neocpu.oracle.operator import Case

Mask = NDArray[np.bool_]
MOST_CASES = 24  # the smallest ones
FROM = (2, 4, 8, 16, 32, 64, 128, 256, 1024)
LEAST_SIGNED = 8  # wrong elements, without which nothing is said of both directions
# Significant bits of numbers that kernels round to, and their names.
BITS = ((7, 9, "bf16"), (10, 13, "TF32 or fp16"))
FP32_BITS = 24

Predicate = Callable[[Ints, int], Mask]  # of places, and of how many there are


def _predicates(noun: str) -> dict[str, Predicate]:
    """What may be told of places (columns, rows), by its words."""
    predicates: dict[str, Predicate] = {
        f"the first {noun}": lambda k, n: k == 0,
        f"the last {noun}": lambda k, n: k == n - 1,
        f"the first half of the {noun}s": lambda k, n: k < n // 2,
        f"the second half of the {noun}s": lambda k, n: k >= n // 2,
        f"even {noun}s": lambda k, n: k % 2 == 0,
        f"odd {noun}s": lambda k, n: k % 2 == 1,
    }
    for place in range(4):
        predicates[f"{noun}s 4k + {place}"] = partial(_every_fourth, place)
    for size in (4, 8, 16, 32):
        predicates[f"every second {size} {noun}s"] = partial(_every_second, size)
    for begin in FROM:
        predicates[f"{noun}s from {begin} on"] = partial(_from, begin)
    return predicates


def _every_fourth(rest: int, place: Ints, count: int) -> Mask:
    return np.asarray(place % 4 == rest)


def _every_second(size: int, place: Ints, count: int) -> Mask:
    return np.asarray(place // size % 2 == 1)


def _from(begin: int, place: Ints, count: int) -> Mask:
    return np.asarray(place >= begin)


COLUMNS = _predicates("column")
ROWS = _predicates("row")


def wrong_places(trials: Sequence[CaseTrial]) -> str:
    """What the wrong elements of some failed cases of an operator have in common; "" for none."""
    trials = sorted(trials, key=lambda trial: trial.size)[:MOST_CASES]
    blocks = []
    count = total = 0
    for trial in trials:
        for _, _, x, right in wrong_outputs(trial.truths, trial.answers):
            count += int((~right).sum())
            total += x.size
            blocks += [block for block in _blocks(trial.case, ~right) if block.any()]
    if not count:
        return ""
    parts = [f"{count:,} of {total:,} elements are wrong in {_cases(len(trials))}"]
    parts += [_columns(blocks), _rows(blocks), _lookups(trials), _size(trials)]
    return "; ".join(filter(None, parts))


def _cases(count: int) -> str:
    return f"{count} cases" if count > 1 else "one case"


def _blocks(case: Case, wrong: Mask) -> Iterator[Mask]:
    """Wrong elements [rows, columns], by feature or table where an output has them."""
    blocks = list(by_row(case, wrong))
    if not blocks and wrong.ndim >= 2:
        blocks = [wrong.reshape(-1, wrong.shape[-1])]
    yield from blocks


def _common(predicates: dict[str, Predicate], places: Sequence[tuple[Ints, int]]) -> str:
    """The words that hold for all places, and for the fewest others."""
    best = ""
    fewest = 1.0
    if not places:  # outputs without rows and columns
        return ""
    for words, holds in predicates.items():
        shares = []
        for place, size in places:
            inside = holds(np.arange(size), size)
            if not inside[place].all():
                break
            shares.append(inside.mean())
        else:
            share = float(np.mean(shares))
            if share < fewest:
                fewest = share
                best = words
    return best


def columns_in_common(blocks: Sequence[Mask]) -> str:
    """What the wrong columns of rows [n, D] have in common; "" for nothing."""
    words = _common(COLUMNS, [(np.flatnonzero(b.any(0)), b.shape[1]) for b in blocks])
    return f"all in {words}" if words else ""


def _columns(blocks: Sequence[Mask]) -> str:
    """What the wrong columns have in common."""
    words = columns_in_common(blocks)
    if words:
        return words
    rows = [b[b.any(1)] for b in blocks]
    if rows and all(row.all() for row in rows):
        return "whole rows"
    return ""


def _rows(blocks: Sequence[Mask]) -> str:
    """What the wrong rows, or samples, have in common."""
    words = _common(ROWS, [(np.flatnonzero(b.any(1)), b.shape[0]) for b in blocks])
    return f"only {words} (or samples) of a table or feature" if words else ""


def _lookups(trials: Sequence[CaseTrial]) -> str:
    """From how many lookups on sums are wrong, if that tells wrong from right ones."""
    wrong: list[int] = []
    right: list[int] = []
    for trial in trials:
        if trial.op.name != "lookup" or "batch_sizes" in trial.case.inputs:
            return ""
        for _, _, _, correct in wrong_outputs(trial.truths, trial.answers):
            features = trial.case.inputs["feature_table"].size
            lengths = np.diff(trial.case.inputs["offsets"]).reshape(features, -1)
            for f, block in enumerate(_blocks(trial.case, ~correct)):
                if len(block) != lengths.shape[1]:
                    return ""
                bad = block.any(1)
                wrong += lengths[f][bad].tolist()
                right += lengths[f][~bad].tolist()
    if wrong and right and min(wrong) > max(right):
        return f"all bags of {min(wrong)} lookups or more, and none of {max(right)} or fewer"
    return ""


def _size(trials: Sequence[CaseTrial]) -> str:
    """Of which numbers errors have the size, where they go both ways."""
    ratios = []
    ups = 0
    for trial in trials:
        for _, truth, x, right in wrong_outputs(trial.truths, trial.answers):
            if truth.exact:
                return ""
            judged = ~right & (truth.bound > 0) & np.isfinite(truth.bound)
            with np.errstate(invalid="ignore"):
                error = (x - truth.reference)[judged]
            if not np.isfinite(error).all():
                return ""
            ratios.append(np.abs(error) / truth.bound[judged])
            ups += int((error > 0).sum())
    ratio = np.concatenate([np.zeros(0), *ratios])
    # Three deviations of a fair coin, as in `rounding_of_all`.
    if ratio.size < LEAST_SIGNED or abs(2 * ups - ratio.size) > 3 * math.sqrt(ratio.size):
        return ""
    bits = FP32_BITS - math.log2(float(ratio.max()))
    names = [name for low, high, name in BITS if low <= round(bits) <= high]
    if not names:
        return ""
    return f"errors go both ways and have the size of roundings to {names[0]}"
