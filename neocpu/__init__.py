"""neocpu: the CPU reference implementation of Neo and ZionEX.

Importing it loads neither Numba nor MPI.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

# Public names, imported when they are first used.
_HOMES = {
    "DLRM": "neocpu.serve.estimator.estimator",
    "fit": "neocpu.serve.scoring.fits",
    "init": "neocpu.train.advice.write",
    "load": "neocpu.serve.scoring.model",
    "load_config": "neocpu.train.config.config",
    "Trainer": "neocpu.train.run.trainer",
    "Dataset": "neocpu.ingest.dataset.dataset",
    "DatasetWriter": "neocpu.ingest.dataset.writer",
}
__all__ = [
    "DLRM",
    "Dataset",
    "DatasetWriter",
    "Trainer",
    "__version__",
    "fit",
    "init",
    "load",
    "load_config",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'neocpu' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), "load" if name == "load_config" else name)


def __dir__() -> list[str]:
    return __all__
