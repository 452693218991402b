"""Target attention: the sum of a history's rows, each weighted by its likeness to a candidate.

    [h_l, a, h_l - a, h_l * a] --MLP--> score_l --(softmax)--> w_l      v = sum of w_l h_l

The MLP sees a matrix with a line for each lookup; its parameters' gradients are sums over the
lookups of a leaf's samples. An empty history gives zeros. `attention_layout.py` has the source.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neocpu.core.types import Floats, FloatsByName, Ints
from neocpu.kernels.dense import attention as kernels
from neocpu.train.model.arrays import Buffer, NodeGradient
from neocpu.train.model.attention_layout import AttentionLayout
from neocpu.train.model.mlp import Mlp


class Attention:
    """One history. layout : its shape. parameters : of the model, by name."""

    def __init__(self, layout: AttentionLayout, parameters: FloatsByName) -> None:
        dim = layout.dim
        self._softmax = layout.normalise == "softmax"
        self._mlp = Mlp(layout.prefix, layout.sizes, parameters, last_relu=False)
        self._inputs = Buffer(4 * dim)
        self._target = Buffer(dim)
        self._sums = Buffer(dim)
        self._shares = Buffer(1)
        self._by_weight = Buffer(1)
        self._by_score = Buffer(1)
        self._gradient = Buffer(dim)
        self._by_row = Buffer(dim)
        self._by_target = Buffer(dim)
        nothing = np.empty((0, dim), np.float32)
        self._histories = kernels.Histories(nothing, np.zeros(1, np.int64), nothing)
        self._weights = np.empty(0, np.float32)

    def forward(self, rows: Floats, offsets: Ints, target: Floats, out: Floats) -> None:
        """Write the vectors of a batch into out f32[b, D].

        rows : f32[n, D], C-contiguous, read again by `backward`. offsets : i64[b+1], of each
        sample's lookups. target : f32[b, D], the candidates.
        """
        lookups = len(rows)
        candidates = self._target.matrix(len(target))
        # a slice of E's columns; kernels want rows without gaps, and `backward` reads it
        candidates[:] = target
        inputs = self._inputs.matrix(lookups)
        self._histories = kernels.Histories(rows, offsets, candidates)
        kernels.attention_inputs(self._histories, inputs)
        scores = self._mlp.forward(inputs).reshape(-1)
        self._weights = scores
        if self._softmax:
            self._weights = self._shares.matrix(lookups).reshape(-1)
            kernels.softmax_bags(scores, offsets, self._weights)
        sums = self._sums.matrix(len(target))
        kernels.weighted_rows(rows, self._weights, offsets, sums)
        out[:] = sums

    def backward(self, gradient: Floats, target: Floats) -> Floats:
        """Gradient f32[n, D] of the rows, from that of the vectors f32[b, D]; valid until the next
        call.

        target : f32[b, D], to which the gradient of the candidates is added.
        """
        samples = len(gradient)
        rows, offsets, _ = self._histories
        lookups = len(rows)
        outer = self._gradient.matrix(samples)
        outer[:] = gradient
        by_weight = self._by_weight.matrix(lookups).reshape(-1)
        kernels.weights_gradient(outer, rows, offsets, by_weight)
        by_score = by_weight
        if self._softmax:
            by_score = self._by_score.matrix(lookups).reshape(-1)
            kernels.softmax_gradient(self._weights, by_weight, offsets, by_score)
        inner = self._mlp.backward(by_score.reshape(-1, 1), need_input=True)
        by_row = self._by_row.matrix(lookups)
        by_target = self._by_target.matrix(samples)
        kernels.attention_gradients(self._histories, inner, self._weights, outer, by_row, by_target)
        # added: the candidate's vector also interacts by itself
        np.add(target, by_target, out=target)
        return by_row

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Write the gradients of the MLP's parameters, summed over each of the nodes."""
        # lines are lookups: leaves are cut at samples, so at where their lookups begin
        by_lookups = [replace(node, cuts=self._histories.offsets[node.cuts]) for node in nodes]
        for layer in range(self._mlp.layers):
            self._mlp.weight_gradient(layer, by_lookups)
