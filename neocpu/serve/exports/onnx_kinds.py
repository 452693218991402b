"""How do tables of kinds look in a graph of ONNX? Row maps before the lookups, operations after.

Integers are those of int64, whose arithmetic runtimes have, and wraps.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.serve.exports.onnx_graph import Graph
from neocpu.serve.exports.raw_values import Card
from neocpu.train.model.composition_layout import CompositionLayout, KeyVectors

WORD = np.uint64
ALL_BITS = (1 << 64) - 1


def mixed_rows(graph: Graph, values: str, key: int, rows: int) -> str:
    """splitmix64(key ^ value) mod rows of each value: i64, as the values."""
    count = graph.constant(rows, WORD)
    words = graph.cast(_mixed(graph, values, key), WORD)
    return graph.cast(graph.node("Mod", words, count), np.int64)


def _mixed(graph: Graph, values: str, key: int) -> str:
    """splitmix64(key ^ value), as the bits of i64."""
    x = graph.node("BitwiseXor", values, _word(graph, key))
    x = graph.node("Add", x, _word(graph, 0x9E3779B97F4A7C15))
    x = graph.node("Mul", _folded(graph, x, 30), _word(graph, 0xBF58476D1CE4E5B9))
    x = graph.node("Mul", _folded(graph, x, 27), _word(graph, 0x94D049BB133111EB))
    return _folded(graph, x, 31)


def _word(graph: Graph, word: int) -> str:
    """A 64-bit constant."""
    # As the int64 of the same bits: runtimes lack Add and Mul of uint64.
    return graph.constant(np.array(word, WORD).view(np.int64))


def _folded(graph: Graph, x: str, bits: int) -> str:
    """x ^ (x >> bits), logically."""
    # BitShift is defined for unsigned numbers only
    shifted = graph.node(
        "BitShift",
        graph.cast(x, WORD),
        graph.constant(bits, WORD),
        direction="RIGHT",
    )
    return graph.node("BitwiseXor", x, graph.cast(shifted, np.int64))


class OnnxKinds:
    """The tables of kinds of one model.

    layout : how its vectors are composed (None: they are not).
    """

    def __init__(self, graph: Graph, layout: CompositionLayout | None) -> None:
        self._graph = graph
        self._layout = layout

    def rows(self, rows: str, row_map: Card) -> str:
        """Rows of a table as those of one of its parts, by the card's `map`; where that has nothing
        for it, row 0, of the weight 0 that `weights` gives it.
        """
        graph = self._graph
        rule = row_map["rule"]
        modulus = graph.constant(row_map["modulus"])
        if rule == "salted":
            mapped = mixed_rows(graph, rows, int(row_map["key"]), row_map["modulus"])
        elif rule == "digit":
            digits = graph.node("Div", rows, graph.constant(row_map["divisor"]))
            mapped = graph.node("Mod", digits, modulus)
        elif rule == "range":
            from_first = graph.node("Sub", rows, graph.constant(row_map["first"]))
            return graph.node("Where", self._inside(rows, row_map), from_first, graph.constant(0))
        else:
            raise ConfigError(f"rows by the rule {rule!r} have no ONNX graph here")
        if not row_map["first"]:
            return mapped
        return graph.node("Add", mapped, graph.constant(row_map["first"]))

    def weights(self, rows: str, weights: str, row_map: Card) -> str:
        """Weights of the lookups of a part f32, in the shape of the table's rows; "": all are 1."""
        graph = self._graph
        factors = [weights] if weights and row_map["log_weights"] else []
        if row_map["signed"]:
            # another key than that of the rows: signs must not follow from rows
            word = _mixed(graph, rows, ALL_BITS ^ int(row_map["key"]))
            odd = graph.node("BitwiseAnd", word, graph.constant(1))
            minus = graph.constant(-1, np.float32)
            factors.append(
                graph.node("Where", graph.cast(odd, np.bool_), minus, graph.constant(1, np.float32))
            )
        if row_map["rule"] == "range":
            factors.append(graph.cast(self._inside(rows, row_map), np.float32))
        if not factors:
            return ""
        product = factors[0]
        for factor in factors[1:]:
            product = graph.node("Mul", product, factor)
        return product

    def _inside(self, rows: str, row_map: Card) -> str:
        """Which rows are in the range of a part?"""
        graph = self._graph
        start = row_map["first"]
        below = graph.node("Less", rows, graph.constant(start + row_map["modulus"]))
        return graph.node("And", below, graph.node("GreaterOrEqual", rows, graph.constant(start)))

    def composed(self, pooled: list[str], parameter: Callable[[str], str]) -> list[str]:
        """The model's vectors, of those of its tables; parameter(name) : a tensor of the graph."""
        if self._layout is None:
            return pooled
        once = cache(parameter)  # features of one table share its parameters
        return [self._composed_vector(part, pooled, once) for part in self._layout.parts]

    def _composed_vector(
        self, part: KeyVectors, pooled: list[str], parameter: Callable[[str], str]
    ) -> str:
        graph = self._graph
        names = iter(part.tensors)
        vectors = []
        for source in part.sources:
            vector = pooled[source.key]
            if part.operation == "project" and source.width < part.dim:
                weight = parameter(part.parameter(next(names)[0]))
                vector = graph.node("Gemm", vector, weight, transB=1)
            vectors.append(vector)
        if part.operation == "copy":
            return vectors[0] if len(vectors) == 1 else graph.node("Concat", *vectors, axis=1)
        result = vectors[0]
        for vector in vectors[1:]:
            result = graph.node("Mul" if part.operation == "multiply" else "Add", result, vector)
        return result
