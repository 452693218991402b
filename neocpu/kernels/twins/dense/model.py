"""What is the loss of a DLRM as a plain formula? In fp64 and whole arrays, to check gradients by
finite differences.

Not a twin to the bit: a second opinion. Nothing is tiled, chained or rounded to fp32 here.
"""

from collections.abc import Mapping

import numpy as np

F64 = np.ndarray


def mlp(parameters: Mapping[str, F64], name: str, x: F64, last_relu: bool) -> F64:
    """Output f64[b, out] of the layers `name`.0, `name`.1, ... with weights [out, in]."""
    layers = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in parameters)
    for layer in range(layers):
        x = x @ parameters[f"{name}.{layer}.weight"].T + parameters[f"{name}.{layer}.bias"]
        if last_relu or layer < layers - 1:
            x = np.maximum(x, 0)
    return x


def interact(rows: list[F64], kind: str, diagonal: bool) -> F64:
    """Top MLP's input from the bottom's output and the pooled vectors, f64[b, dim] each."""
    if kind == "cat":
        return np.concatenate(rows, axis=1)
    pairs = [(i, j) for i in range(len(rows)) for j in range(i + 1 if diagonal else i)]
    return np.concatenate(
        [rows[0]] + [(rows[i] * rows[j]).sum(axis=1, keepdims=True) for i, j in pairs], axis=1
    )


def tower_vectors(
    parameters: Mapping[str, F64], towers: Mapping[str, list[int]], width: int, pooled: list[F64]
) -> list[F64]:
    """Vectors f64[b, width] that towers make of pooled f64[b, dim], one per key.

    towers : name -> positions of its keys. Joint vectors of a tower come before those of each key.
    """
    vectors = []
    for name, keys in towers.items():
        inputs = [("joint", np.concatenate([pooled[key] for key in keys], axis=1))]
        inputs += [("feature", pooled[key]) for key in keys]
        for layer, x in inputs:
            if f"towers.{name}.{layer}.weight" in parameters:
                weight = parameters[f"towers.{name}.{layer}.weight"]
                y = x @ weight.T + parameters[f"towers.{name}.{layer}.bias"]
                vectors += np.split(y, len(weight) // width, axis=1)
    return vectors


def logits(
    parameters: Mapping[str, F64],
    dense: F64,
    pooled: list[F64],
    kind: str,
    diagonal: bool,
    towers: Mapping[str, list[int]] | None = None,
    width: int = 0,
) -> F64:
    """Logits f64[b] from dense f64[b, features] and one pooled f64[b, dim] per key.

    towers, width : as for `tower_vectors`, or none.
    """
    bottom = mlp(parameters, "bottom", dense, True)
    if towers:
        pooled = tower_vectors(parameters, towers, width, pooled)
    return mlp(parameters, "top", interact([bottom, *pooled], kind, diagonal), False)[:, 0]


def mean_loss(z: F64, labels: F64, loss: str) -> float:
    """Mean over the batch of binary cross-entropy with logits, or of the squared error."""
    if loss == "mse":
        return float(np.mean((z - labels) ** 2))
    return float(np.mean(np.logaddexp(0.0, z) - z * labels))
