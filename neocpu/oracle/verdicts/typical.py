"""Is an answer unlikely, though within the proven bound? Warnings about long sums.

The proven bound lets all roundings of a sum point the same way, so a long bag of ordinary numbers
can lose a lookup and stay within it. `Truth.typical` is the second, statistical bound of
`truth/chance.py`: an honest sum passes it with a chance of 3e-8 at most. An element that does fails
no check; it is worth a warning.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Doubles, Elements
from neocpu.oracle.operator import Arrays, Case, Operator, Options, Switches, Truth, Truths
from neocpu.oracle.truth.lookups import PROBABLE

# sums of fewer terms: the proven bound tells as much
LEAST_TERMS = 64
# a statistical bound that is not smaller by so much is not kept
LEAST_GAIN = 1.5

Places = NDArray[np.bool_]
Ratios = NDArray[np.float64]


def with_typical(
    op: Operator, inputs: Arrays, options: Options, truths: Truths, switches: Switches = frozenset()
) -> Truths:
    """The truths with their statistical bounds, where these say more than the proven ones.

    switches : those that the truths were made under.
    """
    if not _has_long_sums(inputs):
        return truths
    # The whole model once more: rules carry the errors of their sums on.
    probable = op.truth(inputs, options, switches | {PROBABLE})
    return {name: _with_bound(truth, probable[name].bound) for name, truth in truths.items()}


def _has_long_sums(inputs: Arrays) -> bool:
    """Is there a bag, a segment, a row of lookups, or a row of columns of that many terms?"""
    for name, array in inputs.items():
        kind = name.rsplit("/", 1)[-1]
        if not array.size:
            continue
        if kind == "offsets" and np.diff(array).max(initial=0) >= LEAST_TERMS:
            return True
        if kind == "indices" and np.unique(array, return_counts=True)[1].max() >= LEAST_TERMS:
            return True
        # Norms and mean squares are sums over the columns.
        if kind == "dims" and "grad_output" in inputs and array.max() >= LEAST_TERMS:
            return True
    return False


def _with_bound(truth: Truth, bound: Doubles) -> Truth:
    if truth.exact or bound.shape != truth.bound.shape:
        return truth
    with np.errstate(invalid="ignore"):
        smaller = bound * LEAST_GAIN < truth.bound
    if not smaller.any():
        return truth
    return replace(truth, typical=np.where(smaller, bound, np.inf))


def unlikely(truth: Truth, x: Elements, right: Places) -> tuple[Places, Ratios]:
    """Which right elements of x are beyond the statistical bound, and by which factor."""
    if truth.typical is None:
        return np.zeros(x.shape, bool), np.zeros(x.shape)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.abs(x - truth.reference)
        factor = np.where(right & np.isfinite(error), error / truth.typical, 0.0)
    return factor > 1, factor


def warnings(
    op: Operator, case: Case, output: str, truth: Truth, x: Elements, right: Places
) -> tuple[str, ...]:
    """A sentence about right elements that honest rounding hardly ever gives; none if none is."""
    beyond, factor = unlikely(truth, x, right)
    if not beyond.any():
        return ()
    worst = np.unravel_index(int(np.argmax(factor)), x.shape)
    index = tuple(int(i) for i in worst)[x.ndim - np.ndim(truth.reference) :]
    place = ", ".join(f"{name} {at}" for name, at in op.locate(case, output, index).items())
    sentence = (
        f"{int(beyond.sum())} of {x.size} elements are within the proven bound, but up to "
        f"{float(factor.max()):.3g} times farther off than rounding usually takes an honest sum; "
        f"worst at {place or f'index {list(index)}'}; a lost or doubled lookup of a long bag "
        "looks like that"
    )
    return (sentence,)
