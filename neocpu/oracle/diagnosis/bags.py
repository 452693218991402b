"""Which bags does a lookup get wrong, and what would its lookups have added by mistake?

Other rows, other weights, what belongs to the lookup or the bag beside; rows and weights that were
rounded first.
"""

from collections.abc import Callable, Iterator

import numpy as np

from neocpu.core.types import Elements, Ints
from neocpu.oracle.diagnosis.evidence import CaseTrial
from neocpu.oracle.diagnosis.groups import (
    MOST_BESIDE,
    MOST_RIVALS,
    MOST_TERMS,
    Group,
    Mask,
    Sums,
    compared_output,
    numbers_at,
    of_rounded,
    sum_fits,
)
from neocpu.oracle.operator import Arrays, Options, Truth
from neocpu.oracle.truth.bags import JaggedBatch, bags_of, rows_of
from neocpu.oracle.truth.lookups import divisor, elements_of
from neocpu.oracle.truth.numbers import Real


def wrong_bags(trial: CaseTrial) -> Iterator[Group]:
    """The bags of a `lookup` that are wrong; where nothing is pooled each lookup is one."""
    compared = compared_output(trial, "out")
    if compared is None:
        return
    options = trial.op.complete(trial.case.options)
    reader = _Reader(trial.case.inputs, options)
    if options["pooling"] == "none":
        yield from _wrong_lookups(reader, trial.case.inputs, *compared)
        return
    bags = reader.bags
    begins = np.append(0, np.cumsum(bags.batch_sizes))
    flat = np.append(0, np.cumsum(bags.batch_sizes * bags.dims))
    tables = trial.case.inputs["feature_table"]
    for f, width in enumerate(bags.dims.tolist()):

        def block(array: Elements, f: int = f, width: int = width) -> Elements:
            if array.ndim == 1:
                return array[flat[f] : flat[f + 1]].reshape(-1, width)
            return array[:, bags.column[f] : bags.column[f] + width]

        truth, x, wrong = compared
        totals = reader.totals(int(begins[f]), int(begins[f + 1]), width)
        parts = block(x), block(truth.bound), block(wrong)
        for sample in np.flatnonzero(parts[2].any(1)).tolist():
            bag = int(begins[f]) + sample
            group = reader.group(
                f"bag of feature {f}, sample {sample}",
                np.flatnonzero(bags.bag == bag)[:MOST_TERMS],
                int(tables[f]),
                *(part[sample] for part in parts),
            )
            group.beside = reader.beside_bag(bag, width)
            group.rivals = totals
            for name, other in (("next", bag + 1), ("previous", bag - 1)):
                if begins[f] <= other < begins[f + 1]:
                    total = reader.terms(np.flatnonzero(bags.bag == other), width).sum(0)
                    group.extras[f"the whole bag of the {name} sample"] = total
                    group.sums["lookup_from_elsewhere", f"the sum is the {name} sample's"] = total
            yield group


def _wrong_lookups(
    reader: "_Reader", inputs: Arrays, truth: Truth, x: Real, wrong: Mask
) -> Iterator[Group]:
    """Rows that are wrong where nothing is pooled."""
    bags = reader.bags
    for number in np.flatnonzero(wrong.any(-1)).tolist():
        lookups = np.flatnonzero(bags.position == number)
        parts = (array[number] for array in (x, truth.bound, wrong))
        bag = int(np.searchsorted(inputs["offsets"], number, side="right")) - 1
        table = int(inputs["feature_table"][bags.feature[bag]])
        yield reader.group(f"lookup {number}", lookups, table, *parts)


class _Reader:
    """What lookups of a case add to their bags, and what they would add by mistake."""

    def __init__(self, inputs: Arrays, options: Options) -> None:
        self.bags = bags_of(inputs, options, frozenset())
        self._format = str(options["output_format"])
        self._rows = rows_of(inputs, options).value
        weights = inputs.get("per_sample_weights")
        self._weights = None if weights is None else weights.astype(np.float64)
        divisors = divisor(self.bags, options, frozenset())
        ones = np.ones(self.bags.length.size)
        self._divisors = ones if divisors is None else np.asarray(divisors, np.float64)

    def _factors(self, lookups: Ints) -> tuple[Real, Real]:
        """Weights of lookups, and what MEAN divides them by."""
        weights = np.ones(lookups.size)
        if self._weights is not None:
            weights = self._weights[self.bags.position[lookups]]
        return weights, self._divisors[self.bags.bag[lookups]]

    def terms(self, lookups: Ints, width: int) -> Real:
        """What lookups add, [n, D]."""
        weights, by = self._factors(lookups)
        return self._rows[elements_of(self.bags, lookups, width)] * (weights / by)[:, None]

    def group(
        self, place: str, lookups: Ints, table: int, x: Real, bound: Real, wrong: Mask
    ) -> Group:
        """The sum of some lookups of a table, of which an answer is wrong."""
        width = int(self.bags.tables.dims[table])
        terms = self.terms(lookups, width)
        weights, by = self._factors(lookups)
        base = self._rows[elements_of(self.bags, lookups, width)]
        factor = (weights / by)[:, None]
        return Group(
            place=place,
            terms=terms,
            fits=sum_fits(x, bound, terms, wrong, self._format),
            wrong=wrong,
            substitutes=_other_reads(self.bags, self._rows, lookups, weights / by)
            | self._other_weights(base, lookups)
            | self._other_lookups(lookups, width, factor),
            sums=_of_rounded(base, weights, by),
            answer=x,
            table=self._table(table, width),
            factors=weights / by,
        )

    def _table(self, number: int, width: int) -> Real:
        """All rows of a table."""
        tables = self.bags.tables
        begin = int(tables.first_element[number])
        return self._rows[begin : begin + int(tables.rows[number]) * width].reshape(-1, width)

    def _other_weights(self, base: Real, lookups: Ints) -> dict[str, Real]:
        """What lookups would add with another weight."""
        if self._weights is None:
            return {}
        weights, by = self._factors(lookups)
        others = {
            "no weight": np.ones(lookups.size),
            "the size of its weight": np.abs(weights),
            "the larger of its weight and 0": np.maximum(weights, 0.0),
        }
        position = self.bags.position[lookups]
        for name, place in (
            ("the weight of the next lookup", position + 1),
            ("the weight of the lookup before", position - 1),
            ("the weight of the first lookup", position[:1].repeat(lookups.size)),
            ("the weight of the last lookup", position[-1:].repeat(lookups.size)),
            ("the weight of the other of two lookups", _other_of_two(position)),
        ):
            others[name] = numbers_at(self._weights, place)
        return {name: base * (weight / by)[:, None] for name, weight in others.items()}

    def _other_lookups(self, lookups: Ints, width: int, factor: Real) -> dict[str, Real]:
        """What lookups would add with the row of a lookup beside them, and its weight too."""
        others = {}
        bags = self.bags
        for name, step in (("next lookup", 1), ("lookup before", -1)):
            place = lookups + step
            inside = (place >= 0) & (place < bags.bag.size)
            place = np.where(inside, place, lookups)
            inside &= bags.feature[bags.bag[place]] == bags.feature[bags.bag[lookups]]
            place = np.where(inside, place, lookups)
            others[f"what the {name} should add"] = np.where(
                inside[:, None], self.terms(place, width), np.nan
            )
            row = self._rows[elements_of(bags, place, width)] * factor
            if self._weights is not None:
                others[f"the row of the {name}"] = np.where(inside[:, None], row, np.nan)
            inside &= bags.bag[place] == bags.bag[lookups]
            others[f"the row of the {name} of its bag"] = np.where(inside[:, None], row, np.nan)
        return others

    def totals(self, begin: int, end: int, width: int) -> Real:
        """The sums of some bags of a feature, of the first ones of many, [R, D]."""
        bags = range(begin, min(end, begin + MOST_RIVALS))
        sums = [self.terms(np.flatnonzero(self.bags.bag == bag), width).sum(0) for bag in bags]
        return np.array(sums).reshape(-1, width)

    def beside_bag(self, bag: int, width: int) -> tuple[Real, Real]:
        """What lookups of its feature beside a bag would add to it."""
        inside = self.bags.feature[self.bags.bag] == self.bags.feature[bag]
        after = np.flatnonzero(inside & (self.bags.bag > bag))[:MOST_BESIDE]
        before = np.flatnonzero(inside & (self.bags.bag < bag))[::-1][:MOST_BESIDE]
        own = float(self._divisors[bag])

        def added(lookups: Ints) -> Real:
            share = self._divisors[self.bags.bag[lookups]] / own
            return self.terms(lookups, width) * share[:, None]

        return added(after), added(before)


def _other_of_two(position: Ints) -> Ints:
    """The other lookup of each pair of a bag; -1 for the last one of an odd number."""
    place = position[:1] + (position - position[:1] ^ 1)
    return np.where(place <= position[-1:], place, -1)


def _of_rounded(base: Real, weights: Real, by: Real) -> Sums:
    """Sums of rows and weights that were rounded first."""

    def sums(rounded: Callable[[Real], Real]) -> dict[str, Real]:
        terms = {
            "rows and weights are": rounded(base) * rounded(weights)[:, None],
            "rows are": rounded(base) * weights[:, None],
            "weights are": base * rounded(weights)[:, None],
            "weighted rows are": rounded(base * weights[:, None]),
        }
        return {words: (term / by[:, None]).sum(0) for words, term in terms.items()}

    return of_rounded(sums)


def _other_reads(bags: JaggedBatch, rows: Real, lookups: Ints, factor: Real) -> dict[str, Real]:
    """What lookups would add from rows beside their own, or of tables beside their own."""
    table = bags.table[lookups]
    width = int(bags.dims[bags.feature[bags.bag[lookups[0]]]]) if lookups.size else 1
    reads = {
        "the row after its own": (table, bags.row[lookups] + 1),
        "the row before its own": (table, bags.row[lookups] - 1),
        "row 0": (table, np.zeros(lookups.size, np.int64)),
        "the last row": (table, bags.tables.rows[table] - 1),
        "its row number of the next table": (table + 1, bags.row[lookups]),
        "its row number of the table before": (table - 1, bags.row[lookups]),
    }
    substitutes = {}
    for name, (other, row) in reads.items():
        exists = (other >= 0) & (other < bags.tables.rows.size)
        other = np.where(exists, other, 0)
        exists &= (bags.tables.dims[other] == width) & (row >= 0) & (row < bags.tables.rows[other])
        begin = bags.tables.first_element[other] + np.where(exists, row, 0) * width
        place = np.minimum(begin[:, None] + np.arange(width), max(rows.size - 1, 0))
        value = rows[place] * factor[:, None]
        substitutes[name] = np.where(exists[:, None], value, np.nan)
    return substitutes
