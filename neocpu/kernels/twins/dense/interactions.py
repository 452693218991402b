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


def pair_sum(rows: Sequence[F64]) -> F64:
    """Sum f64[b] of the dot products of all pairs of vectors (the factorisation machine's term)."""
    total = np.zeros(len(rows[0]))
    for i in range(len(rows)):
        for j in range(i):
            total = total + (rows[i] * rows[j]).sum(axis=1)
    return total


def attention(parameters: Mapping[str, F64], prefix: str, rows: Sequence[F64]) -> F64:
    """One head among vectors f64[b, D]: their mixtures f64[b, count * D], one behind the other."""
    x = np.stack(rows, axis=1)
    query, key, value = (
        x @ parameters[f"{prefix}.{part}.weight"].T for part in ("query", "key", "value")
    )
    scores = query @ key.transpose(0, 2, 1) / np.sqrt(x.shape[2])
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights = weights / weights.sum(axis=2, keepdims=True)
    return (weights @ value).reshape(len(x), -1)


def layer_norm(x: F64, width: int) -> F64:
    """Vectors of a width side by side, each brought to mean 0 and variance 1 (eps 1e-5)."""
    rows = x.reshape(-1, width)
    rows = rows - rows.mean(axis=1, keepdims=True)
    rows = rows / np.sqrt((rows * rows).mean(axis=1, keepdims=True) + 1e-5)
    return rows.reshape(x.shape)


def dhen_layer(
    parameters: Mapping[str, F64],
    name: str,
    rows: Sequence[F64],
    modules: Sequence[str],
    concat: bool,
) -> F64:
    """A layer of DHEN with residual and normalisation: f64[b, vectors * D], from vectors f64[b,
    D].
    """
    x = np.concatenate(rows, axis=1)
    outputs = []
    for module in modules:
        if module == "dot":
            vectors = dots(rows)
        elif module == "cross":
            vectors = cross(parameters, f"{name}.cross", x)
        elif module == "attention":
            vectors = attention(parameters, f"{name}.attention", rows)
        else:
            vectors = x
        weight = parameters[f"{name}.{module}.out.weight"]
        outputs.append(vectors @ weight.T + parameters[f"{name}.{module}.out.bias"])
    y = np.concatenate(outputs, axis=1) if concat else sum(outputs[1:], outputs[0])
    if f"{name}.residual.weight" in parameters:
        x = x @ parameters[f"{name}.residual.weight"].T + parameters[f"{name}.residual.bias"]
    return layer_norm(y + x, rows[0].shape[1])


def chain(
    parameters: Mapping[str, F64],
    names: Sequence[str],
    rows: Sequence[F64],
    diagonal: bool = False,
    modules: Sequence[str] = (),
    concat: bool = False,
) -> tuple[F64, F64]:
    """Interactions behind one another: (the top MLP's input f64[b, n], what they add to the logit).

    rows : vectors f64[b, width], the bottom MLP's output first. modules, concat : of layers of
    DHEN.
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
        elif name == "fm":
            rows = [np.concatenate([rows[0], pair_sum(rows)[:, None]], axis=1)]
        elif name == "deepfm":
            logit = logit + pair_sum(rows)
        layer = 0
        while any(key.startswith(f"{prefix}.dhen.{layer}.") for key in parameters):
            x = dhen_layer(parameters, f"{prefix}.dhen.{layer}", rows, modules, concat)
            rows = np.split(x, x.shape[1] // widths[0], axis=1)
            layer += 1
    return np.concatenate(rows, axis=1), logit
