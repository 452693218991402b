"""How does unedited FBGEMM code run on neocpu? `install()` replaces FBGEMM's classes and operators.

Classes are replaced in fbgemm_gpu's modules, and in every loaded module that holds the same class
under the same name. Operators are registered with `torch.library` as CPU implementations, over
which torch's dispatcher keeps FBGEMM's own; so callers from torch.compile, C++ and TorchScript
reach ours too. Without fbgemm_gpu, a package of its name is made from our classes (`standin.py`),
and the operators are defined. `uninstall()` restores everything.
"""

import contextlib
import io
import sys
import types
import warnings
from collections.abc import Iterator
from importlib import import_module

import torch

from neocpu.peers.fbgemm import names
from neocpu.peers.fbgemm.modules.dense import DenseTableBatchedEmbeddingBagsCodegen
from neocpu.peers.fbgemm.modules.inference import IntNBitTableBatchedEmbeddingBagsCodegen
from neocpu.peers.fbgemm.modules.inference_rows import (
    align_to_cacheline,
    round_up,
    rounded_row_size_in_bytes,
    unpadded_row_size_in_bytes,
)
from neocpu.peers.fbgemm.modules.split import SplitTableBatchedEmbeddingBagsCodegen
from neocpu.peers.fbgemm.operators.registration import register
from neocpu.peers.fbgemm.standin import StandIn

# The modules that define FBGEMM's classes.
TRAINING = "fbgemm_gpu.split_table_batched_embeddings_ops_training"
INFERENCE = "fbgemm_gpu.split_table_batched_embeddings_ops_inference"
# Our classes, and where FBGEMM's of the same names are.
HOMES = {
    SplitTableBatchedEmbeddingBagsCodegen: TRAINING,
    DenseTableBatchedEmbeddingBagsCodegen: TRAINING,
    IntNBitTableBatchedEmbeddingBagsCodegen: INFERENCE,
}
CLASSES = {replacement.__name__: replacement for replacement in HOMES}
# FBGEMM's functions about rows of inference tables.
FUNCTIONS = {
    function.__name__: function
    for function in (
        align_to_cacheline,
        round_up,
        rounded_row_size_in_bytes,
        unpadded_row_size_in_bytes,
    )
}
# FBGEMM's enums and option records.
NAMES = {
    name: value
    for name, value in vars(names).items()
    if isinstance(value, type) and value.__module__ == names.__name__
}


class _Installation:
    """What `uninstall` has to restore."""

    def __init__(self) -> None:
        self.attributes: list[tuple[types.ModuleType, str, object]] = []
        self.stand_in: StandIn | None = None
        self.libraries: list[torch.library.Library] = []


_installation: _Installation | None = None


def installed() -> bool:
    """Whether our classes and operators replace FBGEMM's."""
    return _installation is not None


def install(classes: bool = True, operators: bool = True) -> None:
    """Replace FBGEMM's classes and operators, once; modules imported later find ours."""
    global _installation
    if _installation is not None:
        return
    _installation = _Installation()
    present = _import()
    if not present:
        _installation.stand_in = StandIn({**NAMES, **CLASSES, **FUNCTIONS})
        _installation.stand_in.install()
    elif classes:
        _replace_classes(_installation)
    if operators:
        _installation.libraries.append(register(present))


def uninstall() -> None:
    """Restore FBGEMM's own classes and operators."""
    global _installation
    if _installation is None:
        return
    for owner, name, value in reversed(_installation.attributes):
        setattr(owner, name, value)
    if _installation.stand_in is not None:
        _installation.stand_in.uninstall()
    for library in _installation.libraries:
        # torch has no public way to take a registration back.
        library._destroy()
    _installation = None


def _import() -> bool:
    """Import fbgemm_gpu; False if it is not installed."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module(TRAINING)
            import_module(INFERENCE)
    except ImportError:
        return False
    return True


def _holders(name: str, original: object) -> Iterator[types.ModuleType]:
    """Loaded modules in which `name` is this object."""
    # A copy: an import in another thread would change the dictionary under the loop.
    for module in list(sys.modules.values()):
        # Not getattr, which would make lazy modules import what they only promise.
        if isinstance(module, types.ModuleType) and module.__dict__.get(name) is original:
            yield module


def _replace_classes(changes: _Installation) -> None:
    for replacement, home in HOMES.items():
        name = replacement.__name__
        original = getattr(import_module(home), name)
        for module in _holders(name, original):
            changes.attributes.append((module, name, original))
            setattr(module, name, replacement)
