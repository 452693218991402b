"""How are rows pooled? The lookup, in fp32, as a GPU kernel would add it up."""

from typing import Any

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch, Geometry, Lookups
from benchmarks.oracle_mutants.questions import Array, Question


class Pooling(Geometry):
    """The operator lookup."""

    def op_lookup(self, question: Question) -> dict[str, Array]:
        """Answers of one lookup."""
        batch = self.batch(question.inputs, question.options)
        return {"out": self.forward(question.inputs["weights"], batch)}

    def forward(self, flat: Array, batch: Batch) -> Array:
        """Pooled rows of all features."""
        if batch.options["pooling"] == "none":
            out = self.sequence(flat, batch)
        else:
            parts = [self.pooled(flat, batch, feature) for feature in batch.features]
            out = self.side_by_side(parts, batch)
        name = batch.options.get("output_format", "fp32")
        return out if name == "fp32" else self.narrow(out, name)

    def side_by_side(self, parts: list[Array], batch: Batch) -> Array:
        """The features' results as one array: columns, or flat where batches differ."""
        if batch.variable:
            return np.concatenate([part.reshape(-1) for part in parts])
        size = int(batch.batch_sizes[0]) if len(batch.batch_sizes) else 0
        widths = batch.dims[batch.tables]
        out = np.zeros((size, int(widths.sum())), F32)
        for part, start in zip(parts, self.column_starts(batch), strict=True):
            stop = min(int(start) + part.shape[1], out.shape[1])
            if stop > start:
                out[:, int(start) : stop] = part[:, : stop - int(start)]
        return out

    def narrow(self, out: Array, name: str) -> Array:
        """The fp32 result in the format of the output."""
        return self.encode_small(out, name, "nearest")

    def feature_rows(self, flat: Array, batch: Batch, feature: int, part: Lookups) -> Array:
        """Rows of a feature's lookups, zeros where nothing is read."""
        row, inside = self.row_numbers(batch, feature, part)
        name = batch.options["weights_format"]
        table = int(batch.tables[feature])
        x = self.read(flat, batch, table, row, name)
        if batch.row_factors is not None:
            first_row = int(batch.rows[:table].sum())
            x = (x * batch.row_factors[first_row + row, None]).astype(F32)
        return np.where(inside[:, None], x, F32(0))

    def sequence(self, flat: Array, batch: Batch) -> Array:
        """One row for each lookup, in the order of the lookups."""
        width = int(batch.dims[batch.tables[0]]) if len(batch.tables) else 0
        out = np.zeros((len(batch.indices), width), F32)
        for feature in batch.features:
            part = self.lookups(batch, feature)
            x = self.feature_rows(flat, batch, feature, part)
            w = self.sequence_weights(batch, feature, part)
            out[part.position] = x if w is None else self.weighted(x, w)
        return self.vector(out)

    def sequence_weights(self, batch: Batch, feature: int, part: Lookups) -> Array | None:
        """Weights where nothing is pooled."""
        return self.lookup_weights(batch, feature, part)

    def weighted(self, x: Array, w: Array) -> Array:
        """Rows times the weights of their lookups; what is not read stays 0."""
        return (x * w[:, None]).astype(F32)

    def pooled(self, flat: Array, batch: Batch, feature: int) -> Array:
        """Sums or means of one feature's bags, fp32[B, D]."""
        part = self.lookups(batch, feature)
        _, inside = self.row_numbers(batch, feature, part)
        x = self.feature_rows(flat, batch, feature, part)
        w = self.lookup_weights(batch, feature, part)
        size = int(batch.batch_sizes[feature])
        lengths = self.lengths(batch, feature)
        if w is not None:
            w = np.where(inside, w, F32(0))
        sums = self.bag_sums(x, w, part, size, lengths, batch)
        if batch.options["pooling"] == "mean":
            sums = self.mean(sums, lengths, batch, feature, part)
        return self.vector(self.stored(sums, lengths, batch))

    def stored(self, sums: Array, lengths: Array, batch: Batch) -> Array:
        """What is written for each bag."""
        return sums

    def vector(self, out: Array) -> Array:
        """The columns of a result, as they are stored."""
        return out

    def bag_sums(
        self,
        x: Array,
        w: Array | None,
        part: Lookups,
        size: int,
        lengths: Array,
        batch: Batch,
    ) -> Array:
        """Sums of bags."""
        terms = x if w is None else self.weighted(x, w)
        return self.add_up(terms, part.sample, size)

    def add_up(self, terms: Array, group: Array, size: int) -> Array:
        """Sums of terms by group, fp32, one after the other."""
        sums = np.zeros((size, terms.shape[1]), F32)
        np.add.at(sums, group, terms)
        return sums

    def mean(self, sums: Array, lengths: Array, batch: Batch, feature: int, part: Lookups) -> Array:
        """Sums divided by what MEAN divides by."""
        return self.over_length(sums, self.divisor(lengths, batch, feature, part))

    def divisor(self, lengths: Array, batch: Batch, feature: int, part: Lookups) -> Array:
        """What MEAN divides each bag by."""
        return lengths

    def over_length(self, sums: Array, lengths: Array) -> Array:
        """Numbers divided by the length of their bag; an empty bag stays."""
        length = np.where(lengths == 0, 1, lengths).astype(F32)[:, None]
        return self.divided(sums, length)

    def divided(self, a: Array, b: Any) -> Array:
        """a / b in fp32."""
        return (np.asarray(a, F32) / np.asarray(b, F32)).astype(F32)
