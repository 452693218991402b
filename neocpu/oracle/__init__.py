"""Is this embedding kernel right, and if not, where and why? The public names of the oracle, loaded when first used.

    from neocpu import oracle
    truth = oracle.OPERATORS["lookup"].truth(inputs, options)

Importing this loads neither Numba nor torch.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "OPERATORS": "operators",
    "Case": "records",
    "Field": "records",
    "Operator": "records",
    "Truth": "records",
    "PRESETS": "semantics",
    "SWITCHES": "semantics",
    "Switch": "semantics",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"neocpu.oracle.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'neocpu.oracle' has no attribute {name!r}")
