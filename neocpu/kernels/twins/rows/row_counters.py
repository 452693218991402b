"""How do row counters change a rule's rate, and how do rows decay between updates?

Twins of the helpers of `kernels/rows/rules.py` for rules that count the updates of a row. Formulas:
docs/arithmetic.md §5, Counters; docs/semantics.md §2.
"""

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels.twins.numbers.elementary import exp, log


def elapsed(prev_iter, hyper) -> np.float32:
    """Steps since a row was last updated; 1 at its first update."""
    return hyper.step - prev_iter if prev_iter > 0 else np.float32(1)


def count_row(row, hyper) -> None:
    """Count this update in row_counter, where each is worth half after `counter_halflife` steps."""
    one = np.float32(1)
    halflife = hyper.counter_halflife
    if halflife > 0:
        exponent = -float(elapsed(row.prev_iter[0], hyper)) * 0.6931471805599453 / float(halflife)
        row.row_counter[0] = one + np.float32(exp(np.array(exponent))) * row.row_counter[0]
    elif halflife == 0:
        row.row_counter[0] = one
    else:
        row.row_counter[0] += one


def raised(x, y) -> np.float32:
    """x^y of positive fp32 numbers, in fp64, rounded once."""
    return np.float32(exp(np.float64(y) * log(np.array(x, np.float64))))


def powered(base, n: int) -> np.float32:
    """base^n by binary powering in fp64, rounded once."""
    result = np.float64(1)
    square = np.float64(base)
    for digit in bin(max(n, 0))[:1:-1]:
        result = result * (square if digit == "1" else 1)
        # once more than is needed: it may overflow to infinity, which no result takes
        square = square * square
    return np.float32(result)


def missed_decay(
    prev_iter: NDArray[np.float32], step: int, keep: np.float32, bound: float
) -> NDArray[np.float32]:
    """Decay f32[R] of rows for the steps since `prev_iter`, this one excluded: keep to the power of
    their number, at least `bound`; 1 where `prev_iter` is 0.
    """
    last = prev_iter.astype(np.float64)
    missed = np.maximum(step - last - 1, 0).astype(np.int64)
    steps, number = np.unique(missed, return_inverse=True)
    powers = np.array([powered(keep, n) for n in steps.tolist()], np.float32)[number]
    bounded = np.maximum(powers, np.float32(bound))
    return np.where((last == 0) | (missed == 0), np.float32(1), bounded)


def tail_rate(rate, count, hyper) -> np.float32:
    """Learning rate of a row of this row_counter, from its plain one."""
    f = np.float32
    mode = hyper.learning_rate_mode
    if mode < 0 or not count > hyper.tail_id_threshold:
        return rate
    if mode == 2:
        return hyper.lr / (np.sqrt(hyper.adjustment_ub * count) + hyper.eps)
    if mode == 0:
        more = raised(hyper.max_counter / (count + f(1)), hyper.adjustment_ub)
        # fmin and fmax leave a NaN out, as the kernel's comparisons do
        return rate * np.fmax(np.fmin(more, f(10)), f(1))
    less = raised((count + f(1)) / hyper.max_counter, hyper.adjustment_ub)
    return rate * np.fmin(np.fmax(less, f(0.1)), f(1))
