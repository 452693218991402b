"""Which of two kernels with the same bits runs: the tuned one, or its plain sibling?

`use("plain")` chooses the siblings in `kernels/plain/` for this process (`neocpu train --kernels
plain`), and for the processes that it starts: the choice is in the environment. A kernel without a
sibling is the tuned one in both families.
"""

import os
from importlib import import_module
from typing import Any

FAMILIES = ("tuned", "plain")
VARIABLE = "NEOCPU_KERNELS"
# who computes: the compiled kernels, or their NumPy twins
BACKENDS = {"kernels": "neocpu.kernels", "reference": "neocpu.kernels.twins"}


def family() -> str:
    """The family that is used now. Raises ValueError where the environment names no family."""
    name = os.environ.get(VARIABLE) or FAMILIES[0]
    if name not in FAMILIES:
        raise ValueError(f"{VARIABLE}={name}: choose one of {', '.join(FAMILIES)}")
    return name


def use(name: str) -> None:
    """Use a family from now on; objects ask for their kernels when they call them."""
    # in the environment, so that local ranks, which are processes of their own, choose the same
    os.environ[VARIABLE] = name
    family()


def backend_module(module: str, backend: str) -> Any:
    """The module, "dense.gemm" for example, of one of the `BACKENDS`."""
    return import_module(f"{BACKENDS[backend]}.{module}")


def chosen(module: str, kernel: str) -> Any:
    """The kernel of this name in `neocpu/kernels/`, or its sibling in `neocpu/kernels/plain/`.

    module : folder and file, "dense.gemm" for example.
    """
    name = family()
    function = _CHOSEN.get((name, module, kernel))
    if function is None:
        plain = name == "plain" and kernel in PLAIN.get(module, ())
        package = "neocpu.kernels.plain" if plain else "neocpu.kernels"
        function = getattr(import_module(f"{package}.{module}"), kernel)
        _CHOSEN[name, module, kernel] = function
    return function


# Kernels by (family, module, name): a step asks for some fifteen.
_CHOSEN: dict[tuple[str, str, str], Any] = {}

# What has a plain sibling.
PLAIN = {
    "rows.lookup": ("pooled_rows",),
    "rows.update": ("fused",),
    "rows.narrow": ("fused",),
    "dense.gemm": ("layer", "input_gradient", "weight_gradient"),
    "dense.interaction": ("dot_forward", "dot_backward"),
    "tiers.cache": ("locate", "finder"),
}
