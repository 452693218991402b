"""Which element of a bag is the largest, column by column, and where does its gradient go?

The first of equal ones; a NaN is larger than any number. A bag without lookups gives 0 and takes no
gradient.
"""

import numpy as np

from neocpu.core.types import Ints
from neocpu.oracle.operator import Arrays, Options, Switches
from neocpu.oracle.truth.bags import DecodedRows, JaggedBatch
from neocpu.oracle.truth.lookups import elements_of, gradients
from neocpu.oracle.truth.numbers import Bounded, Real
from neocpu.tables.embedding.row_sums import SumsOfRows, by_target


def _winners(x: Real, switches: Switches) -> Ints:
    """Row of the largest element of each column of x [L, D], L > 0: i64[D]; -1: none."""
    if "max_skips_nan" in switches:  # a comparison with NaN is false: only the first may stay
        first_is_nan = np.isnan(x[0])
        x = np.where(np.isnan(x), -np.inf, x)
        x[0, first_is_nan] = np.inf
    row: Ints = np.argmax(x, axis=0)  # the first; NaN counts as the largest
    if "max_takes_last" in switches:
        row = len(x) - 1 - np.argmax(x[::-1], axis=0)
    if "max_from_zero" in switches:
        row = np.where(x[row, np.arange(x.shape[1])] <= 0, -1, row)
    return row


def elements_of_maxima(
    bags: JaggedBatch, rows: DecodedRows, switches: Switches
) -> list[tuple[Ints, Ints]]:
    """By feature, i64[B_f, D_f] each: elements of the largest numbers, and lookups that read them.

    -1 where the bag is empty.
    """
    features = []
    bag_limits = np.append(0, np.cumsum(bags.batch_sizes))
    for f, first_bag in enumerate(bag_limits[:-1].tolist()):
        width = int(bags.dims[f])
        shape = (int(bags.batch_sizes[f]), width)
        element = np.full(shape, -1, np.int64)
        lookup = np.full(shape, -1, np.int64)
        for number in range(shape[0]):
            bag = first_bag + number
            start, end = np.searchsorted(bags.bag, (bag, bag + 1))
            if start == end:
                continue
            elements = elements_of(bags, np.arange(start, end), width)
            row = _winners(rows.value[elements], switches)
            winners = elements[row, np.arange(width)]
            element[number] = np.where(row < 0, -1, winners)
            lookup[number] = np.where(row < 0, -1, start + row)
        features.append((element, lookup))
    return features


def maxima(bags: JaggedBatch, rows: DecodedRows, switches: Switches) -> list[Bounded]:
    """The largest numbers of every feature's bags, [B_f, D_f] each; 0 for empty bags."""
    # Element -1 (an empty bag) is the 0 at the end.
    padded = np.append(rows.value, 0.0)
    features = []
    for f, (element, _) in enumerate(elements_of_maxima(bags, rows, switches)):
        value = padded[element]
        if "max_empty_is_lowest" in switches:
            empty = np.bincount(bags.bag, minlength=bags.length.size)[bags.feature == f] == 0
            value[empty] = -np.inf
        features.append(Bounded.exactly(value))
    return features


def gradient_sums(
    inputs: Arrays, options: Options, bags: JaggedBatch, rows: DecodedRows, switches: Switches
) -> SumsOfRows:
    """The terms of the gradient of each element of all tables: sums f32[elements, 1]."""
    targets = [np.empty(0, np.int64)]
    terms = [np.empty(0)]
    # The gradient of a maximum is neither divided nor weighted.
    summed_options = {**options, "pooling": "sum"}
    for f, (element, lookup) in enumerate(elements_of_maxima(bags, rows, switches)):
        lookups = np.flatnonzero(bags.feature[bags.bag] == f)
        gradient = gradients(bags, inputs, summed_options, f, lookups)  # of each lookup's bag
        width = int(bags.dims[f])
        if "max_gradient_to_ties" in switches:
            elements = elements_of(bags, lookups, width)
            first_bag = int(bags.batch_sizes[:f].sum())
            winner = element[bags.bag[lookups] - first_bag]
            equal = (winner >= 0) & (rows.value[elements] == rows.value[winner])
            targets.append(elements[equal])
            terms.append(gradient[equal])
            continue
        sample, column = np.nonzero(lookup >= 0)
        order = lookup[sample, column] - (lookups[0] if lookups.size else 0)
        targets.append(element[sample, column])
        terms.append(gradient[order, column])
    count = int(bags.tables.first_element[-1])
    return by_target(np.concatenate(terms)[:, None], np.concatenate(targets), count)
