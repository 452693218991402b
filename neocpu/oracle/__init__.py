"""Is this embedding kernel right, and if not, where and why?

    from neocpu import oracle
    report = oracle.check("lookup", inputs, my_output, options={"pooling": "mean"})
    print(report)  # true when right; else says where, by how much, and which mistake explains it

The public names of the oracle, loaded when first used: importing this loads neither Numba nor
torch.
"""

from importlib import import_module
from typing import Any

# public name -> module that defines it
_HOMES = {
    "OPERATORS": "ops",
    "Case": "operator",
    "MIRRORS": "mirrors",
    "Field": "operator",
    "Operator": "operator",
    "Truth": "operator",
    "PRESETS": "semantics",
    "SWITCHES": "semantics",
    "Switch": "semantics",
    "Report": "report",
    "Suite": "suite",
    "NoMirror": "mirrors.order",
    "check": "checking",
    "check_drawn": "testing",
    "check_repeatedly": "repeat",
    "check_suite": "checking",
    "run": "checking",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"neocpu.oracle.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'neocpu.oracle' has no attribute {name!r}")
