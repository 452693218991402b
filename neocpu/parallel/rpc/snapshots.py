"""What if a function returns an array that it goes on to change? The caller gets it as it was when
the function returned: it is copied, unless nobody else can change it.
"""

import sys
from collections.abc import Sequence

import numpy as np

from neocpu.parallel.rpc.values import Value
from neocpu.parallel.transport.mail import BodyPool

# References to an item of a list that nobody else holds: the list's, and that of the count itself.
ALONE = 2


def snapshot(items: Sequence[Value], pool: BodyPool) -> list[Value]:
    """Items, with copies of arrays that others hold beside `items`. pool : of received arrays."""
    frozen: list[Value] = []
    for k in range(len(items)):
        alone = sys.getrefcount(items[k]) == ALONE
        # no variable for the item: it would be another reference
        if isinstance(items[k], np.ndarray):
            frozen.append(items[k] if alone and _owns(items, k, pool) else _copy(items[k]))
        elif isinstance(items[k], tuple | list | dict):
            frozen.append(_container(items[k], pool, alone))
        else:
            frozen.append(items[k])
    return frozen


def _owns(items: Sequence[Value], k: int, pool: BodyPool) -> bool:
    """Does nobody else hold the memory of an array that nobody else holds?"""
    array = items[k]
    assert isinstance(array, np.ndarray)
    base = array.base
    if base is None:
        return bool(array.flags.owndata)
    # memory that is no array's may be anybody's
    if not isinstance(base, np.ndarray) or not base.flags.owndata:
        return False
    # `base` here, the array, and for a received one the pool that its memory is of
    return sys.getrefcount(base) == ALONE + 1 + pool.has(base)


def _copy(array: Value) -> Value:
    return np.array(array, order="C")


def _container(value: Value, pool: BodyPool, alone: bool) -> Value:
    assert isinstance(value, tuple | list | dict)
    items = list(value.values()) if isinstance(value, dict) else value
    # arrays of a container that somebody holds are in reach of whoever does
    frozen = snapshot(items, pool) if alone and not isinstance(value, dict) else _copies(items)
    if isinstance(value, dict):
        return dict(zip(value, frozen))
    return tuple(frozen) if isinstance(value, tuple) else frozen


def _copies(items: Sequence[Value]) -> list[Value]:
    copies: list[Value] = []
    for item in items:
        if isinstance(item, np.ndarray):
            copies.append(_copy(item))
        elif isinstance(item, tuple | list | dict):
            inner = _copies(list(item.values()) if isinstance(item, dict) else item)
            if isinstance(item, dict):
                copies.append(dict(zip(item, inner)))
            else:
                copies.append(tuple(inner) if isinstance(item, tuple) else inner)
        else:
            copies.append(item)
    return copies
