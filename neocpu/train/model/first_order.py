"""What does a linear model add to the logit? A weight for each dense feature and each category.

    E [bottom | key 0 | key 0's weight | key 1 | ...]     gather what is no weight     V
    first order = w x + c + weight of key 0 + weight of key 1 + ...

x f32[b, dense features] are the inputs of the bottom MLP. A category's weight is a row of a table
of dim 1 that looks up the same feature (`model.wide` names these tables): FM's and Wide & Deep's
linear term (Rendle, ICDM 2010; arXiv 1606.07792). Sums: `docs/arithmetic.md` §6.
"""

from collections.abc import Sequence

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.kernels.compile.choice import chosen
from neocpu.train.model.arrays import Buffer, NodeGradient

NAME = "first_order"


class FirstOrder:
    """The linear term, which stands before the interaction and takes its keys out of E.

    first_column : columns of the bottom MLP's output. dims : columns of each key's vector. wide :
    positions of the keys whose one column is a weight. parameters : by name.
    """

    def __init__(
        self, first_column: int, dims: Sequence[int], wide: Sequence[int], parameters: FloatsByName
    ) -> None:
        starts = np.cumsum([first_column, *dims]).tolist()
        self._weight = parameters[f"{NAME}.weight"]
        self._bias = parameters[f"{NAME}.bias"]
        self._columns = [starts[key] for key in wide]
        self._others = np.setdiff1d(np.arange(starts[-1]), self._columns)
        self._vectors = Buffer(self._others.size)
        self._dE = Buffer(starts[-1])
        self._logit = Buffer(1)
        self._x = np.empty((0, 0), np.float32)
        self._dlogit = np.empty(0, np.float32)

    def forward(self, x: Floats, E: Floats) -> tuple[Floats, Floats]:
        """Vectors V f32[b, columns that are no weights] of E f32[b, columns], and the term f32[b].

        x : f32[b, dense features], read again for gradients. Valid until the next call.
        """
        self._x = x
        logit = self._logit.matrix(len(x))
        chosen("dense.gemm", "layer")(x, self._weight, self._bias, False, logit)
        for column in self._columns:
            # key after key: an order that docs/arithmetic.md fixes
            logit[:, 0] += E[:, column]
        if not self._columns:
            return E, logit.reshape(-1)
        vectors = self._vectors.matrix(len(x))
        np.take(E, self._others, axis=1, out=vectors)
        return vectors, logit.reshape(-1)

    def backward(self, gradient: Floats, dlogit: Floats) -> Floats:
        """Gradient dE f32[b, columns] from that of V and of the logit; valid until the next."""
        self._dlogit = dlogit
        if not self._columns:
            return gradient
        dE = self._dE.matrix(len(gradient))
        dE[:, self._others] = gradient
        for column in self._columns:
            # a weight's gradient is that of the logit
            dE[:, column] = dlogit
        return dE

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Of w and c, summed over each of the nodes."""
        for node in nodes:
            node.write(NAME, self._dlogit.reshape(-1, 1), self._x)
