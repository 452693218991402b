"""How does unedited FBGEMM code run on neocpu? `install()` replaces FBGEMM's classes and operators.

Classes are replaced in fbgemm_gpu's modules, and in every loaded module that holds the same class
under the same name. Operators are registered with `torch.library` as CPU implementations, over
which torch's dispatcher keeps FBGEMM's own; so callers from torch.compile, C++ and TorchScript
reach ours too. Without fbgemm_gpu, modules of its names are made from our classes, and the
operators are defined. `uninstall()` restores everything.
"""

import contextlib
import io
import sys
import types
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch

from neocpu.peers.fbgemm import names
from neocpu.peers.fbgemm.dense import DenseTableBatchedEmbeddingBagsCodegen
from neocpu.peers.fbgemm.operators import load
from neocpu.peers.fbgemm.split import SplitTableBatchedEmbeddingBagsCodegen

# FBGEMM's class names, and our classes.
CLASSES = {
    c.__name__: c
    for c in (SplitTableBatchedEmbeddingBagsCodegen, DenseTableBatchedEmbeddingBagsCodegen)
}
# The module that defines FBGEMM's classes.
TRAINING = "fbgemm_gpu.split_table_batched_embeddings_ops_training"
# FBGEMM's enums and option records.
NAMES = {
    name: value
    for name, value in vars(names).items()
    if isinstance(value, type) and value.__module__ == names.__name__
}
# Modules that are made where fbgemm_gpu is missing; each holds all classes, enums and records.
STAND_IN_MODULES = (
    "fbgemm_gpu",
    "fbgemm_gpu.sparse_ops",
    "fbgemm_gpu.split_embedding_configs",
    "fbgemm_gpu.split_table_batched_embeddings_ops",
    "fbgemm_gpu.split_table_batched_embeddings_ops_common",
    TRAINING,
)


class _Installation:
    """What `uninstall` has to restore."""

    def __init__(self) -> None:
        self.attributes: list[tuple[Any, str, Any]] = []
        self.modules: list[str] = []
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
        _make_modules(_installation)
    elif classes:
        _replace_classes(_installation)
    if operators:
        _register(_installation, present)


def uninstall() -> None:
    """Restore FBGEMM's own classes and operators."""
    global _installation
    if _installation is None:
        return
    for owner, name, value in reversed(_installation.attributes):
        setattr(owner, name, value)
    for name in _installation.modules:
        sys.modules.pop(name, None)
    for library in _installation.libraries:
        library._destroy()
    _installation = None


def _import() -> bool:
    """Import fbgemm_gpu; False if it is not installed."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module(TRAINING)
    except ImportError:
        return False
    return True


def _holders(name: str, original: object) -> Iterator[Any]:
    """Loaded modules in which `name` is this object."""
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module.__dict__.get(name) is original:
            yield module


def _replace_classes(changes: _Installation) -> None:
    training = import_module(TRAINING)
    for name, replacement in CLASSES.items():
        original = getattr(training, name)
        for module in _holders(name, original):
            changes.attributes.append((module, name, original))
            setattr(module, name, replacement)


def _make_modules(changes: _Installation) -> None:
    for name in STAND_IN_MODULES:
        module = types.ModuleType(name, "neocpu in place of fbgemm_gpu, which is not installed")
        module.__dict__.update({**NAMES, **CLASSES, "open_source": True})
        sys.modules[name] = module
        changes.modules.append(name)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def _register(changes: _Installation, present: bool) -> None:
    """Register our operators with torch; define them first where FBGEMM has not."""
    library = torch.library.Library("fbgemm", "IMPL" if present else "FRAGMENT")
    changes.libraries.append(library)
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        for name, operator in load().items():
            if present and not torch._C._dispatch_has_kernel_for_dispatch_key(
                f"fbgemm::{name}", "CPU"
            ):
                # This FBGEMM lacks the operator, or composes it of others, which are replaced.
                continue
            if not present:
                library.define(name + operator.schema)
            # Without FBGEMM there is no autograd registration: torch differentiates the parts.
            library.impl(
                name,
                operator.function,
                "CPU" if present else "CompositeImplicitAutograd",
                allow_override=True,
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch's C++ prints on stderr about operators that are overridden on purpose."""
    import os

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
