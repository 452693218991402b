"""How are jagged rows multiplied? Products, softmax and arithmetic with dense arrays."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Lookups, spread
from benchmarks.oracle_mutants.moves import Moves
from benchmarks.oracle_mutants.questions import Array, Question


class Products(Moves):
    """Operators on jagged rows and dense arrays."""

    def jagged_rows(self, question: Question, longest: int = 0) -> tuple[Lookups, Array]:
        """Bag and place of each row, and which rows count; longest 0: all of them."""
        offsets = question.inputs["offsets"].astype(np.int64)
        part = spread(offsets[:-1], offsets[1:])
        return part, self.reached(part, longest)

    def reached(self, part: Lookups, longest: int) -> Array:
        """Rows that are not beyond the dense array."""
        return (part.place < longest) | (longest == 0)

    def op_jagged_dense_bmm(self, question: Question) -> dict[str, Array]:
        """Rows of each bag times its matrix."""
        values = question.inputs["values"]
        dense = self.matrices(question.inputs["dense"])
        part, counts = self.jagged_rows(question, int(question.options["max_length"]))
        terms = (values[:, None, :] * dense[part.sample].transpose(0, 2, 1)).astype(F32)
        n, columns, inner = terms.shape
        out = self.column_sum(terms.reshape(n * columns, inner)).reshape(n, columns)
        return {"out": np.where(counts[:, None], out, F32(0))}

    def matrices(self, dense: Array) -> Array:
        """The matrix of each bag, [B, K, N]."""
        return dense

    def op_jagged_jagged_bmm(self, question: Question) -> dict[str, Array]:
        """Transposed rows of each bag times other rows of it."""
        values = question.inputs["values"]
        other = question.inputs["other"]
        part, counts = self.jagged_rows(question, int(question.options["max_length"]))
        bags = len(question.inputs["offsets"]) - 1
        terms = (values[:, :, None] * other[:, None, :]).astype(F32)[counts]
        shape = terms.shape[1:]
        sums = self.add_up(terms.reshape(len(terms), -1), part.sample[counts], bags)
        return {"out": sums.reshape(bags, *shape)}

    def op_dense_vec_jagged_mul(self, question: Question) -> dict[str, Array]:
        """A vector of each bag and head times the bag's rows."""
        vectors = question.inputs["vectors"]
        values = question.inputs["values"]
        bags = len(question.inputs["offsets"]) - 1
        heads = len(vectors) // max(bags, 1)
        part, counts = self.jagged_rows(question, vectors.shape[1])
        columns = values.shape[1] // max(heads, 1)
        out = np.zeros((len(vectors), columns), F32)
        for head in range(heads):
            row = self.vector_rows(part.sample[counts], head, heads, bags)
            factor = vectors[row, part.place[counts]][:, None]
            terms = (factor * values[counts, head * columns : (head + 1) * columns]).astype(F32)
            out[head::heads] = self.add_up(terms, part.sample[counts], bags)
        return {"out": out}

    def vector_rows(self, bag: Array, head: int, heads: int, bags: int) -> Array:
        """The vector of a bag and head."""
        return bag * heads + head

    def op_jagged_dense_elementwise(self, question: Question) -> dict[str, Array]:
        """Sums and products of rows and a dense array."""
        values = question.inputs["values"]
        dense = question.inputs["dense"]
        part, counts = self.jagged_rows(question, dense.shape[1])
        place = np.minimum(part.place, dense.shape[1] - 1)
        operation = question.options["operation"]
        if operation == "add":
            out = dense.copy()
            out[part.sample[counts], place[counts]] += values[counts]
            return {"out": out}
        opposite = dense[part.sample, place]
        if operation == "add_jagged":
            sums = (values + opposite).astype(F32)
            return {"out": np.where(counts[:, None], sums, self.beyond_sum(values))}
        products = (values * opposite).astype(F32)
        return {"out": np.where(counts[:, None], products, self.beyond_product(values))}

    def beyond_sum(self, values: Array) -> Array:
        """Rows beyond the dense array, in a sum."""
        return values

    def beyond_product(self, values: Array) -> Array:
        """Rows beyond the dense array, in a product."""
        return np.zeros_like(values)

    def op_jagged_softmax(self, question: Question) -> dict[str, Array]:
        """Softmax of each column over the rows of each bag."""
        values = question.inputs["values"]
        part, _ = self.jagged_rows(question)
        bags = len(question.inputs["offsets"]) - 1
        power = np.exp(self.shifted(values, part, bags)).astype(F32)
        sums = self.add_up(power, self.softmax_group(part), bags)
        return {"out": self.divided(power, sums[self.softmax_group(part)])}

    def shifted(self, values: Array, part: Lookups, bags: int) -> Array:
        """Numbers without the largest of their bag and column."""
        largest = np.full((bags, values.shape[1]), -np.inf, F32)
        np.maximum.at(largest, part.sample, values)
        return (values - largest[part.sample]).astype(F32)

    def softmax_group(self, part: Lookups) -> Array:
        """What a softmax is over."""
        return part.sample

    def op_jagged_softmax_backward(self, question: Question) -> dict[str, Array]:
        """y * (g - sum of g*y)."""
        y = question.inputs["output"]
        g = question.inputs["grad_output"]
        part, _ = self.jagged_rows(question)
        bags = len(question.inputs["offsets"]) - 1
        sums = self.add_up((g * y).astype(F32), part.sample, bags)
        return {"values_grad": self.softmax_gradient(y, g, sums[part.sample])}

    def softmax_gradient(self, y: Array, g: Array, sums: Array) -> Array:
        """The gradient of one row."""
        return (y * (g - sums).astype(F32)).astype(F32)
