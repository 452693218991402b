"""What does the public reference of Distributed Shampoo make of some gradients?
`shampoo_golden.json` has its parameters.

The reference (facebookresearch/optimizers) needs Python 3.12 and torch, so its numbers are written
once, with the commit noted beside them:

    PYTHONPATH=CHECKOUT python3.12 tests/shampoo_golden.py COMMIT
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_suffix(".json")
SHAPES = {"wide": (6, 9), "tall": (20, 3), "vector": (7,)}
DIM = 8
EVERY = 2
START = 8  # by then factors have their full rank
STEPS = 13
RATE = 0.05


class Golden(NamedTuple):
    """A case: the grafted rule there, and what else differs.

    grafting, options : the reference's config, and its options. rule, keys : ours, of
    optimizer.dense and optimizer.shampoo.
    """

    grafting: tuple[str, dict[str, Any]]
    options: dict[str, Any]
    rule: dict[str, Any]
    keys: dict[str, Any]


CASES = {
    "sgd": Golden(("SGD", {}), {"betas": (0.0, 1.0)}, {"name": "sgd"}, {}),
    "adagrad": Golden(
        ("AdaGrad", {"epsilon": 1e-8}),
        {"betas": (0.0, 1.0)},
        {"name": "adagrad", "eps": 1e-8},
        {},
    ),
    "adam": Golden(
        ("Adam", {"beta2": 0.9, "epsilon": 1e-8}),
        {"betas": (0.8, 0.95), "weight_decay": 0.1},
        {
            "name": "adam",
            "beta1": 0.8,
            "beta2": 0.9,
            "eps": 1e-8,
            "weight_decay": 0.1,
            "weight_decay_mode": "decoupled",
        },
        {"beta2": 0.95},
    ),
}


def gradients() -> Iterator[dict[str, NDArray[np.float32]]]:
    """Of each step, by parameter; their scales differ by parameter and column."""
    random = np.random.default_rng(11)
    for _ in range(STEPS):
        yield {
            name: (
                random.standard_normal(shape) * np.exp(random.standard_normal(shape[-1]))
            ).astype(np.float32)
            for name, shape in SHAPES.items()
        }


def reference(case: Golden) -> dict[str, list[float]]:
    """Parameters after all steps from 1, flat, by the public reference."""
    import torch
    from distributed_shampoo import DistributedShampoo, shampoo_types

    parameters = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in SHAPES.items()}
    kind, options = case.grafting
    optimizer = DistributedShampoo(
        parameters.values(),
        lr=RATE,
        epsilon=1e-12,
        max_preconditioner_dim=DIM,
        precondition_frequency=EVERY,
        start_preconditioning_step=START,
        grafting_config=getattr(shampoo_types, f"{kind}PreconditionerConfig")(**options),
        **case.options,
    )
    for step in gradients():
        for name, gradient in step.items():
            parameters[name].grad = torch.from_numpy(gradient)
        optimizer.step()
    return {name: each.detach().reshape(-1).tolist() for name, each in parameters.items()}


if __name__ == "__main__":
    golden = {name: reference(case) for name, case in CASES.items()}
    record = {"facebookresearch/optimizers": sys.argv[1], "parameters": golden}
    FILE.write_text(json.dumps(record) + "\n")
