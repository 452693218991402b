"""How does unedited FBGEMM code run on neocpu? `install()` replaces FBGEMM's classes and operators.

Classes are replaced in fbgemm_gpu's modules, and in every loaded module that holds the same class
under the same name. Operators are registered with `torch.library` as CPU implementations, over
which torch's dispatcher keeps FBGEMM's own; so callers from torch.compile, C++ and TorchScript
reach ours too. Without fbgemm_gpu, a package of its name is made from our classes,
and the operators are defined. `uninstall()` restores everything.

That package is a finder on `sys.meta_path`, which makes its modules when they are imported, so that
they are like those of any package: with a spec, a loader, a path, a version, and found by
`importlib.util.find_spec` and `importlib.metadata`. Pickled classes of fbgemm_gpu are found again
under their names.
"""

import contextlib
import io
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.message import Message
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder, PackageMetadata
from types import ModuleType
from typing import Any

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

# The version of FBGEMM whose interface is copied.
VERSION = "1.8.0"
PACKAGE = "fbgemm_gpu"
# Modules of the package beside itself; each holds all names.
SUBMODULES = (
    "sparse_ops",
    "split_embedding_configs",
    "split_table_batched_embeddings_ops",
    "split_table_batched_embeddings_ops_common",
    "split_table_batched_embeddings_ops_inference",
    "split_table_batched_embeddings_ops_training",
)
# FBGEMM's second names of classes.
ALIASES = {"OptimType": "EmbOptimType"}


class _Distribution(Distribution):
    """What `importlib.metadata` tells of the stand-in."""

    @property
    def metadata(self) -> PackageMetadata:
        message = Message()
        message["Metadata-Version"] = "2.1"
        message["Name"] = PACKAGE
        message["Version"] = VERSION
        message["Summary"] = "neocpu in place of fbgemm_gpu, which is not installed"
        return message  # type: ignore[return-value]

    def read_text(self, filename: str) -> str | None:
        return str(self.metadata) if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return path


class StandIn(DistributionFinder, Loader):
    """Finder and loader of the package; `contents` are the names that every module holds."""

    def __init__(self, contents: Mapping[str, object]) -> None:
        names = {alias: contents[name] for alias, name in ALIASES.items() if name in contents}
        self._contents = {**contents, **names, "__version__": VERSION, "open_source": True}
        self._modules = {PACKAGE, *(f"{PACKAGE}.{name}" for name in SUBMODULES)}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the package; None for others."""
        if fullname not in self._modules:
            return None
        return ModuleSpec(fullname, self, origin="neocpu", is_package=fullname == PACKAGE)

    def create_module(self, spec: ModuleSpec) -> None:
        """None: Python makes an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the names that every module holds into one."""
        module.__doc__ = "neocpu in place of fbgemm_gpu, which is not installed."
        # Callers import a name from any of FBGEMM's modules, and pickles name one of them.
        vars(module).update(self._contents)

    def find_distributions(self, *contexts: DistributionFinder.Context) -> Iterable[Distribution]:
        """The stand-in's metadata, unless a context names another package."""
        names = [context.name for context in contexts if context.name is not None]
        # Names of distributions ignore case, and take "-" for "_".
        matches = all(name.replace("-", "_").lower() == PACKAGE for name in names)
        return [_Distribution()] if matches else []

    def install(self) -> None:
        """Make the package importable."""
        sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        """Forget the package and its modules."""
        sys.meta_path.remove(self)
        for name in self._modules:
            sys.modules.pop(name, None)


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
