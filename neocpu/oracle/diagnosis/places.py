"""Where are answers wrong, and by how much, when nobody knows why? Told in words.

Columns, rows and samples that all wrong elements have in common; bags and rows by their number of
lookups; errors of a size that numbers of few bits have.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from neocpu.core.types import Ints
from neocpu.oracle.diagnosis.attribution import wrong_sums
from neocpu.oracle.diagnosis.evidence import CaseTrial
from neocpu.oracle.diagnosis.patterns import by_row, wrong_outputs
from neocpu.oracle.diagnosis.regions import Mask, columns_in_common, rows_in_common
from neocpu.oracle.truth.bags import bags_of
from neocpu.oracle.truth.numbers import Real
from neocpu.oracle.verdicts.compare import numbers

MOST_CASES = 24  # the smallest ones
MOST_SUMS = 64  # wrong ones of a case, whose errors are looked at
MOST_OTHERS = 0.5  # of the right sums, that have what all wrong ones have
LEAST_SIGNED = 8  # wrong elements, without which nothing is said of both directions
# Significant bits of numbers that kernels round to, and their names.
BITS = ((7, 9, "bf16"), (10, 13, "TF32 or fp16"))
FP32_BITS = 24


def wrong_places(trials: Sequence[CaseTrial]) -> str:
    """What the wrong elements of some failed cases of an operator have in common; "" for none."""
    trials = sorted(trials, key=lambda trial: trial.size)[:MOST_CASES]
    blocks = []
    count = total = 0
    for trial in trials:
        for _, _, x, right in wrong_outputs(trial.truths, trial.answers):
            count += int((~right).sum())
            total += x.size
        blocks += [block for _, block in _wrong_blocks(trial) if block.any()]
    if not count:
        return ""
    parts = [f"{count:,} of {total:,} elements are wrong in {_cases(len(trials))}"]
    parts += [_columns(blocks), rows_in_common(blocks), _held(trials)]
    parts += [sums_in_common(trials), _size(trials)]
    return "; ".join(filter(None, parts))


def _cases(count: int) -> str:
    return f"{count} cases" if count > 1 else "one case"


def _wrong_blocks(trial: CaseTrial) -> Iterator[tuple[str, Mask]]:
    """Wrong elements [rows, columns], by output, and feature or table where it has them."""
    for output, _, _, right in wrong_outputs(trial.truths, trial.answers):
        wrong = ~right
        blocks = list(by_row(trial.case, wrong))
        if not blocks and wrong.ndim >= 2:
            blocks = [wrong.reshape(-1, wrong.shape[-1])]
        yield from ((output, block) for block in blocks)


def _columns(blocks: Sequence[Mask]) -> str:
    """What the wrong columns have in common."""
    words = columns_in_common(blocks)
    if words:
        return words
    rows = [b[b.any(1)] for b in blocks]
    if rows and all(row.all() for row in rows):
        return "whole rows"
    return ""


def sums_in_common(trials: Sequence[CaseTrial]) -> str:
    """What wrong sums have, and few right ones: many lookups, odd numbers of them, pruned ones."""
    facts: dict[str, list[Ints]] = {}
    wrong: list[Mask] = []
    for trial in trials:
        sums = SUMS[trial.op.name](trial) if trial.op.name in SUMS else None
        bad = [
            np.asarray(b.any(1))
            for output, b in _wrong_blocks(trial)
            if output in ("out", "weights")
        ]
        if sums is None or [mask.size for mask in bad] != [len(of["lookups"]) for of in sums]:
            return ""
        for mask, of in zip(bad, sums, strict=True):
            # A row without lookups has no sum; a bag without them has one.
            there = of["lookups"] >= (0 if trial.op.name == "lookup" else 1)
            wrong.append(mask[there])
            for name, number in of.items():
                facts.setdefault(name, []).append(number[there])
    if not wrong or not any(mask.any() for mask in wrong):
        return ""
    return _of_sums({name: np.concatenate(of) for name, of in facts.items()}, np.concatenate(wrong))


def _of_sums(facts: dict[str, Ints], wrong: Mask) -> str:
    """The words that hold of all wrong sums and of the fewest right ones, of a few at most."""
    count = facts["lookups"]
    least = int(count[wrong].min())
    most = int(count[wrong].max())
    holds = {
        f"of {least} lookups or more": count >= least,
        f"of {most} lookups or fewer": count <= most,
        "of an odd number of lookups": count % 2 == 1,
        **{f"whose lookups are no multiple of {n}": count % n != 0 for n in (4, 8, 32)},
        **{f"with {name}": numbers > 0 for name, numbers in facts.items() if name != "lookups"},
    }
    # A sum without a lookup that could be wrong says nothing.
    others = {
        words: int((mask & ~wrong).sum()) for words, mask in holds.items() if mask[wrong].all()
    }
    words = min(others, key=lambda name: others[name], default="")
    right = int((~wrong).sum())
    if not words or others[words] > MOST_OTHERS * right or not right:
        return ""
    share = f"of {right:,} right ones {others[words]:,}" if others[words] else "no right one"
    return f"all wrong sums are those {words}, {share}"


def _sums_of_bags(trial: CaseTrial) -> list[dict[str, Ints]]:
    """Facts of the bags of each feature."""
    options = trial.op.complete(trial.case.options)
    bags = bags_of(trial.case.inputs, options, frozenset())
    kept = np.bincount(bags.bag, minlength=bags.length.size)
    different = np.unique(np.stack([bags.bag, bags.table, bags.row]), axis=1)[0]
    facts = {
        "lookups": bags.length,
        "pruned lookups": bags.length - kept,
        "a row twice": kept - np.bincount(different, minlength=bags.length.size),
    }
    ends = np.cumsum(bags.batch_sizes)[:-1]
    return [dict(zip(facts, of)) for of in zip(*(np.split(x, ends) for x in facts.values()))]


def _sums_of_rows(trial: CaseTrial) -> list[dict[str, Ints]]:
    """Facts of the rows of each table."""
    options = trial.op.complete(trial.case.options)
    bags = bags_of(trial.case.inputs, options, frozenset())
    number = bags.tables.first_row[bags.table] + bags.row
    rows = int(bags.tables.first_row[-1])
    features = np.unique(np.stack([number, bags.feature[bags.bag]]), axis=1)[0]
    facts = {
        "lookups": np.bincount(number, minlength=rows),
        "lookups of several features": np.bincount(features, minlength=rows) - 1,
    }
    ends = bags.tables.first_row[1:-1]
    return [dict(zip(facts, of)) for of in zip(*(np.split(x, ends) for x in facts.values()))]


SUMS: dict[str, Callable[[CaseTrial], list[dict[str, Ints]]]] = {
    "lookup": _sums_of_bags,
    "backward": _sums_of_rows,
}


def _held(trials: Sequence[CaseTrial]) -> str:
    """What all wrong elements hold, if that is nothing that a kernel computed."""
    zeros = old = True
    for trial in trials:
        for output, truth, x, right in wrong_outputs(trial.truths, trial.answers):
            wrong = ~right
            zeros &= not x[wrong].any()
            before = trial.case.inputs.get(output)
            old &= before is not None and before.size == x.size
            if old and before is not None:
                old &= bool((numbers(truth, before) == x)[wrong].all())
    return "they are as they came in" if old else "they are 0" if zeros else ""


def _size(trials: Sequence[CaseTrial]) -> str:
    """Of which numbers errors have the size, where they go both ways."""
    errors = np.concatenate([np.zeros(0), *(_relative_errors(trial) for trial in trials)])
    if not np.isfinite(errors).all() or not errors.any():
        return ""
    ups = int((errors > 0).sum())
    # Three deviations of a fair coin, as in `rounding_of_all`.
    if errors.size < LEAST_SIGNED or abs(2 * ups - errors.size) > 3 * math.sqrt(errors.size):
        return ""
    bits = round(-math.log2(float(np.abs(errors).max())))
    names = [name for low, high, name in BITS if low <= bits <= high]
    return f"errors go both ways and have the size of roundings to {names[0]}" if names else ""


def _relative_errors(trial: CaseTrial) -> Real:
    """Errors over the size of what was added up, or what a bound says of it; NaN for no idea."""
    groups = islice(wrong_sums(trial), MOST_SUMS)
    errors = [
        ((group.answer - group.terms.sum(0)) / np.abs(group.terms).sum(0))[group.wrong]
        for group in groups
        if group.answer is not None
    ]
    for _, truth, x, right in [] if errors else wrong_outputs(trial.truths, trial.answers):
        if truth.exact:
            return np.full(1, np.nan)
        judged = ~right & (truth.bound > 0) & np.isfinite(truth.bound)
        with np.errstate(invalid="ignore", divide="ignore"):
            errors.append(((x - truth.reference) / (truth.bound * 2.0**FP32_BITS))[judged])
    return np.concatenate([np.zeros(0), *errors])
