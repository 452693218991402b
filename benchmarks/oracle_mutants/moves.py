"""How do pooled rows move, and rows by number? Copies, and sums where something is copied twice."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.layouts import Layouts
from benchmarks.oracle_mutants.questions import Array, Question


class Moves(Layouts):
    """Permuted and selected embeddings."""

    def op_permute_pooled(self, question: Question) -> dict[str, Array]:
        """Columns of features in another order."""
        pooled = question.inputs["pooled"]
        return {"out": pooled[:, self.source_columns(question)]}

    def op_permute_pooled_backward(self, question: Question) -> dict[str, Array]:
        """Gradients of the columns, added where a feature is copied twice."""
        gradient = question.inputs["grad_output"]
        total = int(question.inputs["dims"].sum())
        sums = self.copies_added(gradient.T, self.source_columns(question), total)
        return {"pooled_grad": sums.T}

    def source_columns(self, question: Question) -> Array:
        """The column of the input for each of the output."""
        dims = question.inputs["dims"].astype(np.int64)
        permute = self.pooled_order(question.inputs["permute"].astype(np.int64))
        starts = self.block_starts(dims)
        blocks = [np.arange(starts[p], starts[p] + dims[p]) for p in permute]
        return np.concatenate([np.zeros(0, np.int64), *blocks])

    def pooled_order(self, permute: Array) -> Array:
        """Features in the order of the output."""
        return permute

    def block_starts(self, dims: Array) -> Array:
        """The first column of each feature."""
        return np.cumsum(dims) - dims

    def copies_added(self, gradient: Array, source: Array, size: int) -> Array:
        """Sums of the gradients of copies, by what they are copies of."""
        return self.add_up(gradient.astype(F32), source, size)

    def op_permute_multi_embedding(self, question: Question) -> dict[str, Array]:
        """Blocks of columns into other tensors."""
        values = question.inputs["values"]
        places, sources = self.block_places(question)
        samples = int(question.inputs["samples"][0])
        out = np.zeros(samples * int(question.inputs["out_widths"].sum()), F32)
        out[places] = values[sources]
        return {"out": out}

    def op_permute_multi_embedding_backward(self, question: Question) -> dict[str, Array]:
        """Gradients of blocks, added where one is copied twice."""
        places, sources = self.block_places(question)
        samples = int(question.inputs["samples"][0])
        size = samples * int(question.inputs["widths"].sum())
        gradient = question.inputs["grad_output"][places]
        return {"values_grad": self.copies_added(gradient[:, None], sources, size)[:, 0]}

    def block_places(self, question: Question) -> tuple[Array, Array]:
        """Where elements go in the flat output, and where they come from in the flat input."""
        samples = int(question.inputs["samples"][0])
        widths = question.inputs["widths"].astype(np.int64)
        out_widths = question.inputs["out_widths"].astype(np.int64)
        first = (np.cumsum(widths) - widths) * samples
        out_first = (np.cumsum(out_widths) - out_widths) * samples
        row = np.arange(samples)[:, None]
        places = [np.zeros(0, np.int64)]
        sources = [np.zeros(0, np.int64)]
        for source, target, column, out_column, length, _ in question.inputs["permutes"]:
            block = np.arange(length)
            place = out_first[target] + row * out_widths[target] + out_column + block
            origin = first[source] + row * widths[source] + self.read_column(column, out_column)
            places.append(place.reshape(-1))
            sources.append((origin + block).reshape(-1))
        return np.concatenate(places), np.concatenate(sources)

    def read_column(self, column: int, out_column: int) -> int:
        """Where a block is read."""
        return int(column)

    def op_group_index_select(self, question: Question) -> dict[str, Array]:
        """Rows by number out of several matrices."""
        return {"out": question.inputs["values"][self.selected_elements(question)]}

    def op_group_index_select_backward(self, question: Question) -> dict[str, Array]:
        """Gradients of rows, added where one is selected twice."""
        size = int((question.inputs["rows"] * question.inputs["dims"]).sum())
        gradient = question.inputs["grad_output"]
        elements = self.selected_elements(question)
        return {"values_grad": self.copies_added(gradient[:, None], elements, size)[:, 0]}

    def selected_elements(self, question: Question) -> Array:
        """The element of the input for each of the output."""
        dims = question.inputs["dims"].astype(np.int64)
        sizes = question.inputs["rows"].astype(np.int64) * dims
        starts = self.matrix_starts(sizes)
        counts = question.inputs["counts"].astype(np.int64)
        groups = np.split(question.inputs["select"].astype(np.int64), np.cumsum(counts)[:-1])
        rows = [
            [np.arange(starts[g] + row * dims[g], starts[g] + (row + 1) * dims[g]) for row in group]
            for g, group in enumerate(groups)
        ]
        if self.is_interleaved(question):
            order = [row for together in zip(*rows, strict=True) for row in together]
        else:
            order = [row for group in rows for row in group]
        return np.concatenate([np.zeros(0, np.int64), *order])

    def matrix_starts(self, sizes: Array) -> Array:
        """The first element of each matrix."""
        return np.cumsum(sizes) - sizes

    def is_interleaved(self, question: Question) -> bool:
        """First of all matrices, then second of all?"""
        return bool(question.options["interleaved"])

    def op_keyed_jagged_index_select(self, question: Question) -> dict[str, Array]:
        """The bags of some samples, of every key."""
        lengths = question.inputs["lengths"].astype(np.int64)
        offsets = self.cumsum(lengths.reshape(-1))
        select = question.inputs["select"].astype(np.int64)
        bags = np.arange(len(lengths))[:, None] * self.key_stride(lengths) + select
        return {"out": question.inputs["values"][self.gathered(offsets, bags.reshape(-1))]}

    def key_stride(self, lengths: Array) -> int:
        """Bags from one key to the next."""
        return lengths.shape[1]
