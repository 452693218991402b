"""What is the largest row of a bag, and who gets its gradient? MAX pooling."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch
from benchmarks.oracle_mutants.lookups import Pooling
from benchmarks.oracle_mutants.questions import Array, Question


class Maxima(Pooling):
    """lookup_max and its gradient."""

    def op_lookup_max(self, question: Question) -> dict[str, Array]:
        """The largest number of each bag and column."""
        batch = self.batch(question.inputs, question.options)
        parts = []
        for feature in batch.features:
            rows, bags = self.bag_rows(question.inputs["weights"], batch, feature)
            parts.append(self.maxima(rows, bags, int(batch.dims[batch.tables[feature]])))
        return {"out": self.side_by_side(parts, batch)}

    def bag_rows(self, flat: Array, batch: Batch, feature: int) -> tuple[Array, list[Array]]:
        """Rows of a feature's lookups, and which of them each bag has; pruned ones are left out."""
        part = self.lookups(batch, feature)
        _, inside = self.row_numbers(batch, feature, part)
        rows = self.feature_rows(flat, batch, feature, part)
        members = np.flatnonzero(inside)
        size = int(batch.batch_sizes[feature])
        return rows, [members[part.sample[members] == bag] for bag in range(size)]

    def maxima(self, rows: Array, bags: list[Array], width: int) -> Array:
        """The largest numbers of bags, [B, D]."""
        out = np.full((len(bags), width), self.of_empty_bag(), F32)
        for bag, members in enumerate(bags):
            if len(members):
                out[bag] = self.largest(rows[members])
        return out

    def largest(self, rows: Array) -> Array:
        """The largest number of each column; a NaN is larger than all."""
        return rows.max(axis=0)

    def of_empty_bag(self) -> float:
        """The maximum of nothing."""
        return 0.0

    def op_lookup_max_backward(self, question: Question) -> dict[str, Array]:
        """A bag's gradient to the first of its largest numbers, column by column."""
        batch = self.batch(question.inputs, question.options)
        gradient = question.inputs["grad_output"]
        sizes = batch.rows * batch.dims
        bases = np.cumsum(sizes) - sizes
        starts = np.cumsum(batch.dims[batch.tables]) - batch.dims[batch.tables]
        lengths = batch.batch_sizes * batch.dims[batch.tables]
        flat_starts = np.cumsum(lengths) - lengths
        terms = [np.zeros(0, F32)]
        places = [np.zeros(0, np.int64)]
        for feature in batch.features:
            table = int(batch.tables[feature])
            width = int(batch.dims[table])
            rows, bags = self.bag_rows(question.inputs["weights"], batch, feature)
            number, _ = self.row_numbers(batch, feature, self.lookups(batch, feature))
            for bag, members in enumerate(bags):
                if not len(members):
                    continue
                if batch.variable:
                    begin = int(flat_starts[feature]) + bag * width
                    arriving = gradient.reshape(-1)[begin : begin + width]
                else:
                    arriving = gradient[bag, starts[feature] : starts[feature] + width]
                for place, column in self.winners(rows[members]):
                    terms.append(arriving[column : column + 1])
                    element = bases[table] + number[members[place]] * width + column
                    places.append(np.array([element]))
        size = int(sizes.sum())
        sums = self.add_up(np.concatenate(terms)[:, None], np.concatenate(places), size)
        return {"weights_grad": sums[:, 0]}

    def winners(self, rows: Array) -> list[tuple[int, int]]:
        """Which row gets the gradient of each column."""
        return [(int(place), column) for column, place in enumerate(rows.argmax(axis=0))]
