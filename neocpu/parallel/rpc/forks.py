"""What does an owner know of a value, and a user of a fork?"""

from typing import NamedTuple

from neocpu.parallel.rpc.failures import BadMessage
from neocpu.parallel.rpc.futures import Future


class GlobalId(NamedTuple):
    """A number that no other rank gives: the rank that gave it, and how many it had given."""

    rank: int
    serial: int


class OwnedValue:
    """A value of this rank and the forks that refer to it: number -> rank that holds it.

    begun : has the call come that makes it?
    """

    def __init__(self, outcome: Future) -> None:
        self.outcome = outcome
        self.begun = False
        self.forks: dict[GlobalId, int] = {}


class HeldFork:
    """A fork that this rank holds of another's value.

    released : is it to be deleted? children : forks made from it that are on their way.
    """

    def __init__(self, owner: int, value: GlobalId) -> None:
        self.owner = owner
        self.value = value
        self.released = False
        self.children: set[GlobalId] = set()


def integers(values: object, count: int) -> list[int]:
    """Numbers that came from a rank. Raises BadMessage."""
    if not isinstance(values, tuple) or len(values) != count:
        raise BadMessage(f"a reference in it has no {count} numbers")
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) != count:
        raise BadMessage("a number of a reference in it is none")
    return numbers


def global_id(value: object) -> GlobalId:
    """A number of a value or fork that came from a rank. Raises BadMessage."""
    return GlobalId(*integers(value, 2))
