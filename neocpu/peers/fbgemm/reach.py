"""Which tests does the drop-in answer? Calls of its operators and lookups are counted, or refused.

A test of FBGEMM that passes may never have called an operator that neocpu replaces. `watch` puts
counters before every replaced operator and before the lookups of every replaced class; a
constructor is no lookup and counts for itself. With `refuse=True` each of them raises `Reached`.
"""

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from neocpu.peers.fbgemm.installing import CLASSES
from neocpu.peers.fbgemm.operators.registry import load

P = ParamSpec("P")
R = TypeVar("R")
# Calls of each operator and lookup, by name.
CALLS: Counter[str] = Counter()
# Modules constructed, by the name of their class.
CONSTRUCTED: Counter[str] = Counter()


class Reached(Exception):
    """An operator or lookup of neocpu was called where none should be."""


def _counted(
    name: str, function: Callable[P, R], calls: Counter[str], refuse: bool
) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        calls[name] += 1
        if refuse:
            raise Reached(f"{name} was called")
        return function(*args, **kwargs)

    return call


def watch(refuse: bool = False) -> None:
    """Count, or with `refuse` raise `Reached` at, every call; call it once, before `install`."""
    operators = load()
    # The records are replaced in the registry itself, from which `install` takes them.
    for name, operator in list(operators.items()):
        function = _counted(name, operator.function, CALLS, refuse)
        operators[name] = replace(operator, function=function)
    classes: dict[str, Any] = CLASSES
    for name, module in classes.items():
        module.forward = _counted(name, module.forward, CALLS, refuse)
        # A constructor is no lookup: it never raises, and is counted apart.
        module.__init__ = _counted(name, module.__init__, CONSTRUCTED, False)
