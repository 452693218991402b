"""How do tables of several sizes give the vectors of one model? Key by key, mixed and masked."""

from collections.abc import Sequence

import numpy as np

from neocpu.train.model.arrays import F32, Buffer
from neocpu.train.search.masks import Mask, Mixture
from neocpu.train.search.space import TableChoice


class KeyChoices:
    """The vector of one key, a feature of a table.

    name : of its sums. table : with its decisions. column : where the vector stands in E of the
    model. parts : where it stands in E of the tables, once for each number of rows.
    """

    def __init__(self, name: str, table: TableChoice, column: int, parts: Sequence[int]) -> None:
        dim = table.dim.largest
        self.columns = slice(column, column + dim)
        self.parts = [slice(start, start + dim) for start in parts]
        self.mask = Mask(f"{name}.dim", table.dim) if table.dim.open else None
        self.mixture = Mixture(f"{name}.rows", table.rows, dim) if table.rows.open else None
        self._mixed = Buffer(dim)
        self._vectors: F32 = self._mixed.matrix(0)

    def forward(self, E: F32, out: F32) -> None:
        """Write the vectors into E of the model, f32[b, columns], from that of the tables."""
        vectors = E[:, self.parts[0]]
        if self.mixture:
            vectors = self._mixed.matrix(len(E))
            self.mixture.forward([E[:, columns] for columns in self.parts], vectors)
        # what the mask multiplied, for its gradient
        self._vectors = vectors
        if self.mask:
            self.mask.forward(vectors, out[:, self.columns])
        else:
            out[:, self.columns] = vectors

    def backward(self, gradient: F32, E: F32, dE: F32, learn: bool) -> None:
        """Write the gradient of E of the tables into dE; gradient : of E of the model, which is
        used up. learn : as of `Mask.backward`.
        """
        of_vectors = gradient[:, self.columns]
        if self.mask:
            self.mask.backward(of_vectors, self._vectors, learn)
        if self.mixture:
            parts = [E[:, columns] for columns in self.parts]
            self.mixture.backward(
                of_vectors, parts, [dE[:, columns] for columns in self.parts], learn
            )
        else:
            dE[:, self.parts[0]] = of_vectors


class TableChoices:
    """E of the tables f32[b, columns] to E of the model, and back.

    tables : with their decisions. first_column : columns of the bottom MLP, the first of both.

    Attribute: learn, keep what the gradients of mixtures are made of in backward passes.
    """

    def __init__(self, tables: Sequence[TableChoice], first_column: int) -> None:
        self.learn = False
        self._first = first_column
        self._keys: list[KeyChoices] = []
        column = first_column
        self.columns = first_column
        for table in tables:
            dim = table.dim.largest
            features = table.spec.features
            for position, feature in enumerate(features):
                parts = [
                    self.columns + (choice * len(features) + position) * dim
                    # E of the tables has table after table, in each the features side by side
                    for choice in range(len(table.rows.choices))
                ]
                self._keys.append(KeyChoices(f"{feature}@{table.spec.name}", table, column, parts))
                column += dim
            # one table for each number of rows, all of the widest rows
            self.columns += len(table.rows.choices) * len(features) * dim
        self._E = np.empty((0, self.columns), np.float32)
        self._out = Buffer(column)
        self._dE = Buffer(self.columns)

    @property
    def choices(self) -> list[Mask | Mixture]:
        """The masks and mixtures of all keys."""
        return [choice for key in self._keys for choice in (key.mask, key.mixture) if choice]

    def forward(self, E: F32) -> F32:
        """E of the model, from that of the tables, which `backward` reads again."""
        if not self.choices:
            return E
        self._E = E
        out = self._out.matrix(len(E))
        out[:, : self._first] = E[:, : self._first]
        for key in self._keys:
            key.forward(E, out)
        return out

    def backward(self, gradient: F32) -> F32:
        """Gradient of E of the tables from that of E of the model, which is used up but for the
        columns of the bottom MLP.
        """
        if not self.choices:
            return gradient
        dE = self._dE.matrix(len(gradient))
        dE[:, : self._first] = gradient[:, : self._first]
        for key in self._keys:
            key.backward(gradient, self._E, dE, self.learn)
        return dE
