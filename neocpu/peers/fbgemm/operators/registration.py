"""How does torch come to know our operators? Each has up to three registrations.

    CPU         the function itself
    fake        shapes and dtypes, for torch.compile (`fakes.py`)
    autograd    the gradient, where values flow through (`gradients.py`)

Where fbgemm_gpu is installed, its schemas, shapes and gradients stay, and ours fill what it lacks.
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from neocpu.peers.fbgemm.operators.fakes import FAKES, implementation
from neocpu.peers.fbgemm.operators.gradients import formulas
from neocpu.peers.fbgemm.operators.registry import load
from neocpu.peers.fbgemm.operators.traced import COMPOSITES as TRACED
from neocpu.peers.fbgemm.operators.traced import formulas as traced_formulas


def _dense_to_jagged(
    dense: Tensor, x_offsets: list[Tensor], total_L: int | None = None
) -> tuple[Tensor, list[Tensor]]:
    return torch.ops.fbgemm.dense_to_jagged_forward(dense, x_offsets, total_L), x_offsets


# Operators that return an argument itself, which torch forbids to all but compositions of others.
COMPOSITES = {"dense_to_jagged": _dense_to_jagged, **TRACED}


def _registered(name: str, *keys: str) -> bool:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has_kernel(f"fbgemm::{name}", key) for key in keys)


def register(present: bool) -> torch.library.Library:
    """Register all operators; `present`: fbgemm_gpu is, so that it has defined them.

    An operator that this FBGEMM lacks, or composes of others, which are replaced, is left out.
    The library that is returned removes them when it is destroyed.
    """
    library = torch.library.Library("fbgemm", "IMPL" if present else "FRAGMENT")
    gradients = formulas() | traced_formulas()
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        for name, operator in load().items():
            if present and not _registered(name, "CPU"):
                continue
            if not present:
                library.define(name + operator.schema)
            if name in COMPOSITES and not present:
                library.impl(name, COMPOSITES[name], "CompositeImplicitAutograd")
                continue
            library.impl(name, operator.function, "CPU", allow_override=True)
            qualified = f"fbgemm::{name}"
            if name in FAKES and not _registered(name, "Meta", "CompositeImplicitAutograd"):
                if present:
                    # FBGEMM's operators take a fake only from a module that it names.
                    library.impl(name, implementation(name), "Meta")
                else:
                    torch.library.register_fake(qualified, implementation(name), lib=library)
            if name in gradients and not _registered(
                name, "Autograd", "AutogradCPU", "CompositeImplicitAutograd"
            ):
                backward, setup_context = gradients[name]
                torch.library.register_autograd(
                    qualified, backward, setup_context=setup_context, lib=library
                )
    return library


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch's C++ prints on stderr about operators that are overridden on purpose."""
    # C++ writes to the descriptor, past Python's sys.stderr: only the descriptor can be turned off.
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)
        os.close(null)
