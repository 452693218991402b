"""How does a mixture of sizes become part of a model? As a mask, or as a mixture of vectors.

    widths, columns   mask_u = sum over k of m_k [u < w_k];   y' = mask * y
    rows              E = sum over k of m_k E_k

Backward: the gradient of a mask is a sum over samples, sum_b g_b,u y_b,u, so each sample's products
are kept, and summed as gradients of dense parameters are: by nodes of leaves (`write`). What they
make of m's gradient is the same on all ranks.
"""

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Doubles, Floats
from neocpu.train.model.arrays import Buffer, NodeGradient
from neocpu.train.search.draws import in_order
from neocpu.train.search.space import Decision


class Sums:
    """Products of samples whose sums over the batch a gradient is made of.

    name : of their sums among those of others. size : of a sample.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._buffer = Buffer(size)
        self.products = self._buffer.matrix(0)

    def begin(self, samples: int) -> Floats:
        """Where the products f32[samples, size] go."""
        self.products = self._buffer.matrix(samples)
        return self.products

    def write(self, node: NodeGradient) -> None:
        """Write their sums over a node: a layer of one output whose gradient is 1."""
        # the kernel of weight gradients: one order of additions for all sums over samples
        node.write(self.name, np.ones((len(self.products), 1), np.float32), self.products)


class Mask:
    """The mask of units or columns whose number is a decision.

    name : of its sums. Units below the smallest choice are in every model and stay as they are.
    """

    def __init__(self, name: str, decision: Decision) -> None:
        self.decision = decision
        self.first = decision.choices[0]
        self.values = np.ones(decision.largest - self.first, np.float32)
        self.sums = Sums(name, self.values.size)

    def choose(self, m: Doubles) -> None:
        """Take the mixture m f64[choices]."""
        tail = 0.0
        for k in range(len(m) - 1, 0, -1):
            # from the largest choice down: a unit is in all models that are at least as wide
            tail += float(m[k])
            low, high = self.decision.choices[k - 1 : k + 1]
            self.values[low - self.first : high - self.first] = tail

    def forward(self, x: Floats, out: Floats) -> None:
        """out f32[b, n] = mask * x."""
        out[:, : self.first] = x[:, : self.first]
        np.multiply(x[:, self.first :], self.values, out=out[:, self.first :])

    def backward(self, gradient: Floats, x: Floats, learn: bool) -> None:
        """Make the gradient f32[b, n] of the output that of x, in place.

        x : what was masked. learn : keep the products of the samples.
        """
        masked = gradient[:, self.first :]
        if learn:
            # before the gradient is masked in place: m's gradient has none of the mask
            np.multiply(masked, x[:, self.first :], out=self.sums.begin(len(x)))
        np.multiply(masked, self.values, out=masked)

    def gradient(self, sums: NDArray[np.float32]) -> Doubles:
        """Gradient f64[choices] of m from the sums of the products; 0 for the first choice, whose
        units all others have too.
        """
        gradient = np.zeros(len(self.decision.choices))
        for k in range(1, gradient.size):
            low, high = (width - self.first for width in self.decision.choices[k - 1 : k + 1])
            gradient[k] = gradient[k - 1] + in_order(sums[low:high])
        return gradient


class Mixture:
    """The mixture of the vectors of one key from tables of several numbers of rows.

    name : of its sums. dim : columns of a vector.
    """

    def __init__(self, name: str, decision: Decision, dim: int) -> None:
        self.decision = decision
        self.weights = np.ones(len(decision.choices), np.float32)
        self.sums = Sums(name, dim * self.weights.size)
        self._dim = dim
        self._weighted = Buffer(dim)

    def choose(self, m: Doubles) -> None:
        """Take the mixture m f64[choices]."""
        self.weights[:] = m

    def forward(self, parts: list[Floats], out: Floats) -> None:
        """out f32[b, dim] = sum of the parts, each f32[b, dim], with their weights, in order."""
        np.multiply(parts[0], self.weights[0], out=out)
        weighted = self._weighted.matrix(len(out))
        for vectors, weight in zip(parts[1:], self.weights[1:]):
            np.multiply(vectors, weight, out=weighted)
            np.add(out, weighted, out=out)

    def backward(
        self, gradient: Floats, parts: list[Floats], out: list[Floats], learn: bool
    ) -> None:
        """Write the gradient of each part, from that of the mixture; arguments as of `forward`,
        learn as of `Mask.backward`.
        """
        if learn:
            products = self.sums.begin(len(gradient))
            for k, vectors in enumerate(parts):
                columns = slice(k * self._dim, (k + 1) * self._dim)
                np.multiply(gradient, vectors, out=products[:, columns])
        for weight, vectors in zip(self.weights, out):
            np.multiply(gradient, weight, out=vectors)

    def gradient(self, sums: NDArray[np.float32]) -> Doubles:
        """Gradient f64[choices] of m from the sums of the products."""
        return np.array([in_order(columns) for columns in sums.reshape(-1, self._dim)])
