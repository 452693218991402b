"""What is fbgemm_gpu where it is not installed? A package of modules that hold our names.

A finder on `sys.meta_path` makes its modules when they are imported, so that they are like those of
any package: with a spec, a loader, a path, a version, and found by `importlib.util.find_spec` and
`importlib.metadata`. Pickled classes of fbgemm_gpu are found again under their names.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from email.message import Message
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder, PackageMetadata
from types import ModuleType
from typing import Any

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
