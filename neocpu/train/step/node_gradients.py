"""Where do gradients of dense parameters go, leaf by leaf, before ranks add them?

A sum for each aligned node of a rank's leaves (`docs/arithmetic.md` §2). Without a wire the kernel
adds the leaves of a node itself; on a wire each node of the tree is rounded, so leaves come one by
one (§13).
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Floats, FloatsByName, Ints
from neocpu.parallel.exchange.dense_reduction import sum_leaves
from neocpu.parallel.exchange.wires import Wire
from neocpu.parallel.transport.buffers import Buffers
from neocpu.train.model.arrays import NO_BIAS, NodeGradient


@dataclass(frozen=True)
class RoundedNodeGradient(NodeGradient):
    """A node of a tree on a wire: all nodes below it rounded, itself not."""

    wire: Wire
    buffers: Buffers

    def write(self, layer: str, outer: Floats, inputs: Floats, rows: int = 1) -> None:
        """As `NodeGradient.write`."""
        weight = self.into[f"{layer}.weight"]
        bias = self.into.get(f"{layer}.bias", NO_BIAS)
        cuts = self.cuts * rows
        total = self.buffers.take("node", weight.size + bias.size, np.float32)

        def leaf(number: int, out: Floats) -> None:
            leaf_weight = out[: weight.size].reshape(weight.shape)
            leaf_bias = out[weight.size :]
            # one leaf: its sum is rounded before it is added to the next
            leaf_cuts = cuts[number : number + 2]
            self._sum(outer, inputs, leaf_cuts, leaf_weight, leaf_bias)

        sum_leaves(leaf, cuts.size - 1, self.wire, total, self.buffers)
        weight[...] = total[: weight.size].reshape(weight.shape)
        bias[...] = total[weight.size :]


def node_gradient(
    cuts: Ints, into: FloatsByName, unscale: np.float32, wire: Wire | None, buffers: Buffers
) -> NodeGradient:
    """Where the gradients of one node go, on a wire or none; cuts, into, unscale : as of
    `NodeGradient`.
    """
    if wire is None:
        return NodeGradient(cuts, into, unscale=unscale)
    return RoundedNodeGradient(cuts, into, wire, buffers, unscale=unscale)
