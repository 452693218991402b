"""How are tables of more than 2^31 elements answered? By the formula of their elements, at need."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.lookups import Pooling
from benchmarks.oracle_mutants.questions import Array, Question

LOW = 2654435761
HIGH = 2246822519
SALT = 3266489917
WORD = 1 << 32


def element_of(place: Array, salt: int) -> Array:
    """Elements by their places: the formula of the operators' documentation."""
    place = place.astype(np.uint64)
    mixed = (place % WORD) * np.uint64(LOW) % WORD + (place // WORD) * np.uint64(HIGH) % WORD
    mixed = (mixed + np.uint64(SALT * salt % WORD)) % WORD
    return (((mixed >> np.uint64(24)).astype(np.int64) - 128) / 256).astype(F32)


class Scales(Pooling):
    """The operators lookup_at_scale and backward_at_scale, exact sums of small dyadic numbers."""

    def table_place(self, question: Question, feature: Array, row: Array) -> tuple[Array, int]:
        """The first element of rows in the memory of all tables, and their columns."""
        table = question.inputs["feature_table"][feature]
        dims = question.inputs["dims"].astype(np.int64)
        sizes = question.inputs["rows"].astype(np.int64) * dims
        base = self.scale_bases(sizes)[table]
        code = 4 if question.options["weights_format"] == "fp32" else 2
        return self.scale_address(base, row, dims[table], code), int(dims[table].max(initial=0))

    def scale_bases(self, sizes: Array) -> Array:
        """The first element of each table."""
        return np.cumsum(sizes) - sizes

    def scale_address(self, base: Array, row: Array, columns: Array, code: int) -> Array:
        """The first element of rows."""
        return base + row * columns

    def scale_columns(self, question: Question) -> Array:
        """The first column of each feature, and the end of the last."""
        dims = question.inputs["dims"][question.inputs["feature_table"]]
        return np.concatenate([[0], np.cumsum(dims)])

    def output_place(self, sample: Array, width: int) -> Array:
        """Where a sample's row of the output, or of its gradient, begins."""
        return sample * width

    def op_lookup_at_scale(self, question: Question) -> dict[str, Array]:
        """Pooled rows of some samples."""
        inputs = question.inputs
        batch = int(question.options["batch"])
        feature = inputs["bags"] // batch
        sample = inputs["bags"] % batch
        columns = self.scale_columns(question)
        first, _ = self.table_place(question, feature, inputs["indices"])
        written = self.output_place(np.arange(batch), int(columns[-1]))
        out = np.zeros((len(inputs["check_samples"]), int(columns[-1])), F32)
        for number, checked in enumerate(inputs["check_samples"]):
            place = self.output_place(np.array(checked), int(columns[-1]))
            source = int(np.flatnonzero(written == checked * int(columns[-1])).max(initial=-1))
            if place != checked * int(columns[-1]) and source < 0:
                continue
            for lookup in np.flatnonzero(sample == max(source, 0)):
                start = int(columns[feature[lookup]])
                stop = int(columns[feature[lookup] + 1])
                cells = first[lookup] + np.arange(stop - start)
                out[number, start:stop] += element_of(np.maximum(cells, 0), 0)
        return {"out": out}

    def op_backward_at_scale(self, question: Question) -> dict[str, Array]:
        """Some rows, and their states, after one step."""
        inputs = question.inputs
        batch = int(question.options["batch"])
        feature = inputs["bags"] // batch
        sample = inputs["bags"] % batch
        columns = self.scale_columns(question)
        table = inputs["feature_table"][feature]
        number = (np.cumsum(inputs["rows"]) - inputs["rows"])[table] + inputs["indices"]
        all_first, _ = self.table_place(question, feature, inputs["indices"])
        weights = []
        sums = []
        lr = F32(question.options["learning_rate"])
        for checked in inputs["check_rows"]:
            home = int(np.searchsorted(np.cumsum(inputs["rows"]), checked, side="right"))
            width = int(inputs["dims"][home])
            before = inputs["rows"][:home] * inputs["dims"][:home]
            inside = int(checked - inputs["rows"][:home].sum())
            place = int(before.sum()) + inside * width
            w = element_of(place + np.arange(width), 0)
            s = F32(0)
            touching = np.flatnonzero(all_first == place)
            for row in np.unique(number[touching]):
                g = np.zeros(width, F32)
                for lookup in touching[number[touching] == row]:
                    start = int(columns[feature[lookup]])
                    begin = self.output_place(sample[lookup], int(columns[-1])) + start
                    g += element_of(np.maximum(begin + np.arange(width), 0), 1)
                rate = lr
                if question.options["optimizer"] == "exact_rowwise_adagrad":
                    s = F32(s + (g * g).sum(dtype=F32) / F32(width))
                    rate = lr / (np.sqrt(s) + F32(question.options["eps"]))
                w = w - rate * g
            weights.append(w.astype(F32))
            sums.append(s)
        name = question.options["weights_format"]
        rows = np.concatenate(weights)
        if name != "fp32":
            rows = self.encode_small(rows, name, "nearest")
        return {"weights": rows, "sum": np.array(sums, F32)}
