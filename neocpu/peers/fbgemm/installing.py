"""How does code that says FBGEMM get neocpu without being edited? `install()` puts our classes and
operators in its place.

Classes: the attributes of fbgemm_gpu's modules, and of every loaded module that holds the same
class under the same name.
Operators: `torch.library` implementations for the CPU, under which torch's dispatcher keeps
FBGEMM's own; so torch.compile, C++ and TorchScript callers get ours too. Without fbgemm_gpu,
modules of its names are made, with what is here in them, and the operators are defined.
`uninstall()` puts everything back.
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

CLASSES = {
    c.__name__: c
    for c in (SplitTableBatchedEmbeddingBagsCodegen, DenseTableBatchedEmbeddingBagsCodegen)
}
TRAINING = "fbgemm_gpu.split_table_batched_embeddings_ops_training"
WORDS = {
    name: value
    for name, value in vars(names).items()
    if isinstance(value, type) and value.__module__ == names.__name__
}
# Modules that are made where fbgemm_gpu is missing. All of them hold all classes and words.
MADE = (
    "fbgemm_gpu",
    "fbgemm_gpu.sparse_ops",
    "fbgemm_gpu.split_embedding_configs",
    "fbgemm_gpu.split_table_batched_embeddings_ops",
    "fbgemm_gpu.split_table_batched_embeddings_ops_common",
    TRAINING,
)


class _Installed:
    """What `uninstall` has to put back."""

    def __init__(self) -> None:
        self.attributes: list[tuple[Any, str, Any]] = []
        self.modules: list[str] = []
        self.libraries: list[torch.library.Library] = []


_installed: _Installed | None = None


def installed() -> bool:
    """Whether ours stand in FBGEMM's place."""
    return _installed is not None


def install(classes: bool = True, operators: bool = True) -> None:
    """Put our classes and operators in FBGEMM's place, once; modules imported later find ours."""
    global _installed
    if _installed is not None:
        return
    _installed = _Installed()
    present = _import()
    if not present:
        _make_modules(_installed)
    elif classes:
        _replace_classes(_installed)
    if operators:
        _register(_installed, present)


def uninstall() -> None:
    """Put FBGEMM's own classes and operators back."""
    global _installed
    if _installed is None:
        return
    for owner, name, value in reversed(_installed.attributes):
        setattr(owner, name, value)
    for name in _installed.modules:
        sys.modules.pop(name, None)
    for library in _installed.libraries:
        library._destroy()
    _installed = None


def _import() -> bool:
    """Import fbgemm_gpu, if there is one."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module(TRAINING)
    except ImportError:
        return False
    return True


def _holders(name: str, original: object) -> Iterator[Any]:
    """Loaded modules in which `name` is that very object."""
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module.__dict__.get(name) is original:
            yield module


def _replace_classes(done: _Installed) -> None:
    training = import_module(TRAINING)
    for name, ours in CLASSES.items():
        original = getattr(training, name)
        for module in _holders(name, original):
            done.attributes.append((module, name, original))
            setattr(module, name, ours)


def _make_modules(done: _Installed) -> None:
    for name in MADE:
        module = types.ModuleType(name, "neocpu in place of fbgemm_gpu, which is not installed")
        module.__dict__.update({**WORDS, **CLASSES, "open_source": True})
        sys.modules[name] = module
        done.modules.append(name)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def _register(done: _Installed, present: bool) -> None:
    """Give torch our operators: implementations of FBGEMM's, or definitions where there are none."""
    library = torch.library.Library("fbgemm", "IMPL" if present else "FRAGMENT")
    done.libraries.append(library)
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        for name, operator in load().items():
            if present and not torch._C._dispatch_has_kernel_for_dispatch_key(
                f"fbgemm::{name}", "CPU"
            ):
                # a version of FBGEMM that lacks it, or that makes it of others, which are replaced
                continue
            if not present:
                library.define(name + operator.schema)
            # without FBGEMM, operators are differentiable because what they are made of is
            library.impl(
                name,
                operator.function,
                "CPU" if present else "CompositeImplicitAutograd",
                allow_override=True,
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says on stderr about operators that get another implementation: it is
    meant.
    """
    import os

    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
