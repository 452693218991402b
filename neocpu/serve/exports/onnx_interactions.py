"""How do the vectors of a sample meet, in ONNX? The interactions of `train/model/interactions/`,
each a few nodes.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from neocpu.serve.exports.onnx_graph import Graph
from neocpu.train.model.first_order import NAME as FIRST_ORDER
from neocpu.train.model.interactions.attention import PARTS
from neocpu.train.model.interactions.dhen import EPS, DhenLayerLayout, DhenLayout
from neocpu.train.model.layout import ModelLayout


class OnnxInteractions:
    """Adds interactions to a graph.

    layout : of the model.
    parameter : puts a dense parameter into the graph, and names it.
    """

    def __init__(self, graph: Graph, layout: ModelLayout, parameter: Callable[[str], str]) -> None:
        self._graph = graph
        self._layout = layout
        self._parameter = parameter
        self._names = {name for name, _ in layout.tensors()}

    def chain(self, vectors: list[str], widths: Sequence[int]) -> tuple[str, str]:
        """(input of the top MLP, what interactions add to the logit f32[batch, 1] or "").

        widths : of the vectors, the bottom MLP's output first.
        """
        graph = self._graph
        logit = ""
        sizes = list(widths)
        layouts = self._layout.chain()
        for position, name in enumerate(self._layout.interaction_names):
            prefix = f"interaction.{position}"
            if name == "dot":
                vectors = [self.dots(vectors, self._layout.diagonal)]
            elif name == "dcnv2":
                vectors = graph.split(self._cross(prefix, self._side_by_side(vectors)), sizes)
            elif name == "fm":
                vectors = [graph.node("Concat", vectors[0], self._pair_sum(vectors), axis=1)]
            elif name == "deepfm":
                term = self._pair_sum(vectors)
                logit = graph.node("Add", logit, term) if logit else term
            elif name == "dhen":
                layout = layouts[position]
                assert isinstance(layout, DhenLayout)
                for layer in layout.layers():
                    vectors = self._dhen_layer(layer, vectors)
            sizes = list(layouts[position].widths)
        return self._side_by_side(vectors), logit

    def first_order(self, dense: str, weights: Sequence[str]) -> str:
        """The linear term f32[batch, 1] of dense features and of pooled weights f32[batch, 1]."""
        term = self._linear(FIRST_ORDER, dense)
        for weight in weights:
            term = self._graph.node("Add", term, weight)
        return term

    def dots(self, vectors: Sequence[str], diagonal: bool) -> str:
        """The first vector, then the products of all pairs."""
        graph = self._graph
        stacked = self._stacked(vectors)
        count = len(vectors)
        products = graph.node("MatMul", stacked, graph.node("Transpose", stacked, perm=[0, 2, 1]))
        flat = graph.node("Reshape", products, graph.constant([-1, count * count]))
        i, j = np.tril_indices(count, 0 if diagonal else -1)
        pairs = graph.node("Gather", flat, graph.constant(i * count + j), axis=1)
        return graph.node("Concat", vectors[0], pairs, axis=1)

    def _stacked(self, vectors: Sequence[str]) -> str:
        """Vectors f32[batch, D] as f32[batch, count, D]."""
        graph = self._graph
        rows = [graph.node("Unsqueeze", vector, graph.constant([1])) for vector in vectors]
        return graph.node("Concat", *rows, axis=1)

    def _side_by_side(self, vectors: Sequence[str]) -> str:
        return vectors[0] if len(vectors) == 1 else self._graph.node("Concat", *vectors, axis=1)

    def _linear(self, name: str, x: str) -> str:
        bias = self._parameter(f"{name}.bias")
        return self._graph.node("Gemm", x, self._parameter(f"{name}.weight"), bias, transB=1)

    def _pair_sum(self, vectors: Sequence[str]) -> str:
        """The factorisation machine's term f32[batch, 1]."""
        graph = self._graph
        stacked = self._stacked(vectors)
        axis = graph.constant([1])
        total = graph.node("ReduceSum", stacked, axis, keepdims=0)
        squares = graph.node("ReduceSum", graph.node("Mul", stacked, stacked), axis, keepdims=0)
        # ((sum v)^2 - sum v^2) / 2: linear in the number of vectors
        twice = graph.node("Sub", graph.node("Mul", total, total), squares)
        summed = graph.node("ReduceSum", twice, axis, keepdims=1)
        return graph.node("Mul", summed, graph.constant(0.5, np.float32))

    def _cross(self, prefix: str, x: str) -> str:
        graph = self._graph
        x0 = x
        layer = 0
        while any(name.startswith(f"{prefix}.cross.{layer}.") for name in self._names):
            name = f"{prefix}.cross.{layer}"
            if f"{name}.weight" in self._names:
                factor = self._linear(name, x)
            else:
                middle = graph.node("Gemm", x, self._parameter(f"{name}.v.weight"), transB=1)
                factor = self._linear(f"{name}.u", middle)
            x = graph.node("Add", graph.node("Mul", x0, factor), x)
            layer += 1
        return x

    def _attention(self, prefix: str, vectors: Sequence[str]) -> str:
        graph = self._graph
        width = self._layout.first_column
        stacked = self._stacked(vectors)
        query, key, value = (
            graph.node(
                "MatMul",
                stacked,
                graph.node("Transpose", self._parameter(f"{prefix}.{name}.weight"), perm=[1, 0]),
            )
            for name in PARTS
        )
        scores = graph.node("MatMul", query, graph.node("Transpose", key, perm=[0, 2, 1]))
        scale = graph.constant(1 / math.sqrt(width), np.float32)
        weights = graph.node("Softmax", graph.node("Mul", scores, scale), axis=2)
        mixed = graph.node("MatMul", weights, value)
        return graph.node("Reshape", mixed, graph.constant([-1, len(vectors) * width]))

    def _dhen_layer(self, layout: DhenLayerLayout, vectors: list[str]) -> list[str]:
        """Vectors of one layer of DHEN."""
        graph = self._graph
        x = self._side_by_side(vectors)
        outputs = []
        for module in layout.shape.modules:
            if module == "dot":
                output = self.dots(vectors, False)
            elif module == "cross":
                output = self._cross(f"{layout.name}.cross", x)
            elif module == "attention":
                output = self._attention(f"{layout.name}.attention", vectors)
            else:
                output = x
            outputs.append(self._linear(f"{layout.name}.{module}.out", output))
        if layout.shape.ensemble == "concat":
            y = self._side_by_side(outputs)
        else:
            y = outputs[0] if len(outputs) == 1 else graph.node("Sum", *outputs)
        if layout.shape.residual:
            projected = layout.projects_residual
            y = graph.node("Add", y, self._linear(f"{layout.name}.residual", x) if projected else x)
        result = graph.split(y, layout.widths)
        if not layout.shape.norm:
            return result
        # DHEN's norm learns no gain, but the operator must have one
        gain = graph.constant(np.ones(layout.widths[0]), np.float32)
        return [
            graph.node("LayerNormalization", vector, gain, axis=1, epsilon=EPS) for vector in result
        ]
