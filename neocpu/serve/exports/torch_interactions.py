"""How do the vectors of a sample meet, in torch? The interactions of `train/model/interactions/`,
each as its formula says.

They are what `TorchModel` predicts with, and what our own gradients are compared with.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Tensors = Mapping[str, Tensor]
Card = Mapping[str, Any]  # JSON: what an exported model says of its interactions
EPS = 1e-5  # of the layer normalisation


def interact(model: Card, tensors: Tensors, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """(input of the top MLP f32[B, n], what interactions add to the logit f32[B]).

    model : interaction (a name or several), diagonal and dhen (its shape) of the card.
    tensors : parameters by name.
    rows : vectors f32[B, width], the bottom MLP's output first.
    """
    names = model["interaction"]
    vectors = list(rows)
    logit = vectors[0].new_zeros(len(vectors[0]))
    for position, name in enumerate([names] if isinstance(names, str) else names):
        prefix = f"interaction.{position}"
        if name == "dot":
            vectors = [dots(vectors, model["diagonal"])]
        elif name == "dcnv2":
            widths = [vector.shape[1] for vector in vectors]
            vectors = list(cross(tensors, prefix, torch.cat(vectors, 1)).split(widths, 1))
        elif name == "fm":
            vectors = [torch.cat([vectors[0], pair_sum(vectors)[:, None]], 1)]
        elif name == "deepfm":
            logit = logit + pair_sum(vectors)
        elif name == "dhen":
            vectors = dhen(model["dhen"], tensors, prefix, vectors)
        elif name not in ("cat", "wide_deep"):
            raise ValueError(f"the interaction {name!r} is unknown here")
    return torch.cat(vectors, 1), logit


def dots(vectors: Sequence[Tensor], diagonal: bool) -> Tensor:
    """The first vector, then the products of all pairs, row by row."""
    stacked = torch.stack(list(vectors), 1)
    count = stacked.shape[1]
    i, j = torch.tril_indices(count, count, 0 if diagonal else -1, device=stacked.device)
    return torch.cat([vectors[0], torch.bmm(stacked, stacked.mT)[:, i, j]], 1)


def pair_sum(vectors: Sequence[Tensor]) -> Tensor:
    """Sum f32[B] of the products of all pairs."""
    stacked = torch.stack(list(vectors), 1)
    # linear in the number of vectors, unlike the products themselves
    return ((stacked.sum(1) ** 2) - (stacked**2).sum(1)).sum(1) / 2


def cross(tensors: Tensors, prefix: str, x: Tensor) -> Tensor:
    """Cross layers `prefix`.cross.0, ... of x f32[B, n]."""
    x0 = x
    layer = 0
    while any(name.startswith(f"{prefix}.cross.{layer}.") for name in tensors):
        name = f"{prefix}.cross.{layer}"
        if f"{name}.weight" in tensors:
            factor = _linear(tensors, name, x)
        else:
            middle = functional.linear(x, tensors[f"{name}.v.weight"])
            factor = _linear(tensors, f"{name}.u", middle)
        x = x0 * factor + x
        layer += 1
    return x


def attention(tensors: Tensors, prefix: str, vectors: Sequence[Tensor]) -> Tensor:
    """One head among vectors: their mixtures f32[B, count * D]."""
    x = torch.stack(list(vectors), 1)
    projections = [
        functional.linear(x, tensors[f"{prefix}.{name}.weight"])
        for name in ("query", "key", "value")
    ]
    return functional.scaled_dot_product_attention(*projections).flatten(1)


def dhen(shape: Card, tensors: Tensors, prefix: str, vectors: Sequence[Tensor]) -> list[Tensor]:
    """Vectors of the last layer of DHEN; shape : fields of `DhenShape`."""
    width = vectors[0].shape[1]
    for layer in range(shape["layers"]):
        name = f"{prefix}.dhen.{layer}"
        x = torch.cat(list(vectors), 1)
        outputs = []
        for module in shape["modules"]:
            if module == "dot":
                output = dots(vectors, False)
            elif module == "cross":
                output = cross(tensors, f"{name}.cross", x)
            elif module == "attention":
                output = attention(tensors, f"{name}.attention", vectors)
            else:
                output = x
            outputs.append(_linear(tensors, f"{name}.{module}.out", output))
        y = torch.cat(outputs, 1) if shape["ensemble"] == "concat" else sum(outputs[1:], outputs[0])
        if shape["residual"]:
            known = f"{name}.residual.weight" in tensors
            y = y + (_linear(tensors, f"{name}.residual", x) if known else x)
        vectors = list(y.split(width, 1))
        if shape["norm"]:
            vectors = [functional.layer_norm(vector, (width,), eps=EPS) for vector in vectors]
    return list(vectors)


def _linear(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    return functional.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])
