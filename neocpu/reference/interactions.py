"""What is each interaction as a plain formula?

In fp64 and whole arrays, to check gradients by finite differences. Not a twin to the bit: a second
opinion, as `model.py` for the whole model.
"""

from collections.abc import Mapping, Sequence

import numpy as np

F64 = np.ndarray


def cross(parameters: Mapping[str, F64], prefix: str, x: F64) -> F64:
    """Cross layers `prefix`.cross.0, ... of x f64[b, n] (DCN V2, equations 1 and 2)."""
    first = x
    layer = 0
    while any(name.startswith(f"{prefix}.cross.{layer}.") for name in parameters):
        name = f"{prefix}.cross.{layer}"
        if f"{name}.v.weight" in parameters:
            weight = parameters[f"{name}.u.weight"] @ parameters[f"{name}.v.weight"]
            bias = parameters[f"{name}.u.bias"]
        else:
            weight = parameters[f"{name}.weight"]
            bias = parameters[f"{name}.bias"]
        x = first * (x @ weight.T + bias) + x
        layer += 1
    return x


def dots(rows: Sequence[F64], diagonal: bool = False) -> F64:
    """The first of the vectors f64[b, D], then the products of all pairs."""
    pairs = [(i, j) for i in range(len(rows)) for j in range(i + 1 if diagonal else i)]
    products = [(rows[i] * rows[j]).sum(axis=1, keepdims=True) for i, j in pairs]
    return np.concatenate([rows[0], *products], axis=1)


def chain(
    parameters: Mapping[str, F64], names: Sequence[str], rows: Sequence[F64], diagonal: bool = False
) -> tuple[F64, F64]:
    """Interactions behind one another: (the top MLP's input f64[b, n], what they add to the logit).

    rows : vectors f64[b, width], the bottom MLP's output first.
    """
    logit = np.zeros(len(rows[0]))
    rows = list(rows)
    for position, name in enumerate(names):
        prefix = f"interaction.{position}"
        widths = [row.shape[1] for row in rows]
        if name == "dot":
            rows = [dots(rows, diagonal)]
        elif name == "dcnv2":
            x = cross(parameters, prefix, np.concatenate(rows, axis=1))
            rows = np.split(x, np.cumsum(widths)[:-1], axis=1)
    return np.concatenate(rows, axis=1), logit
