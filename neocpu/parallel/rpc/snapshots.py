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


def snapshot(items: Sequence[Value], pool: BodyPool, reached: bool = False) -> list[Value]:
    """Items, with copies of arrays that others hold beside `items`.

    pool : of received arrays. reached : does anybody else hold what the items are in?
    """
    frozen: list[Value] = []
    for k in range(len(items)):
        alone = not reached and sys.getrefcount(items[k]) == ALONE
        # no variable for the item: it would be another reference
        if isinstance(items[k], np.ndarray):
            frozen.append(items[k] if alone and _owns(items, k, pool) else _copy(items[k]))
        elif isinstance(items[k], dict):
            frozen.append(_dict(items[k], pool))
        elif isinstance(items[k], tuple | list):
            inner = snapshot(items[k], pool, not alone)  # type: ignore[arg-type]
            frozen.append(tuple(inner) if isinstance(items[k], tuple) else inner)
        else:
            frozen.append(items[k])
    return frozen


def _dict(value: Value, pool: BodyPool) -> Value:
    assert isinstance(value, dict)
    # a list of its values is one more that holds them
    return dict(zip(value, snapshot([*value.values()], pool, reached=True)))


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
    # with a mask, which the message refuses
    return np.array(array, order="C", subok=True)
