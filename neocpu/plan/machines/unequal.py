"""Which ranks of a machine are unlike the others? Parts of its memory, and of its speed.

[[unequal]]
ranks = "0-3, 8"
memory = 0.5
speed = 0.8
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.types import Doubles
from neocpu.parallel.sharding.pins import named_ranks

if TYPE_CHECKING:
    from neocpu.core.records import Reader


@dataclass(frozen=True)
class UnequalRanks:
    """Ranks that have less memory, or are slower or faster, than a machine's numbers say.

    ranks : which, like "0-3, 8". memory : part of each memory of a rank that they have. speed :
    theirs in all phases of a step, as a multiple of the other ranks'.
    """

    ranks: str = ""
    memory: float = 1.0
    speed: float = 1.0


def read_unequal(reader: "Reader", entries: object) -> tuple[UnequalRanks, ...]:
    """The entries of a machine's file, each rank once; ConfigError names what is wrong."""
    if not isinstance(entries, list):
        raise reader.wrong("unequal", f"expected a list of tables [[unequal]], got {entries!r}")
    records: list[UnequalRanks] = []
    seen: set[int] = set()
    for i, entry in enumerate(entries):
        key = f"unequal[{i}]"
        record: UnequalRanks = reader.record(UnequalRanks, entry, key)
        try:
            ranks = named_ranks(record.ranks)
        except ValueError as error:
            raise reader.wrong(f"{key}.ranks", str(error)) from error
        if twice := sorted(seen.intersection(ranks)):
            raise reader.wrong(f"{key}.ranks", f"rank {twice[0]} is in an entry above")
        seen.update(ranks)
        if not 0 < record.memory <= 1:
            raise reader.wrong(f"{key}.memory", f"{record.memory} must be above 0, and 1 at most")
        if not record.speed:
            raise reader.wrong(f"{key}.speed", "0 must be above 0")
        records.append(record)
    return tuple(records)


def of_ranks(unequal: Sequence[UnequalRanks], ranks: int) -> tuple[Doubles, Doubles]:
    """(part of the memory, speed) of each rank, f64[ranks] both, 1 of those like the others."""
    memory = np.ones(ranks)
    speed = np.ones(ranks)
    for record in unequal:
        # a run may have fewer ranks than the machine
        at = [rank for rank in named_ranks(record.ranks) if rank < ranks]
        memory[at] = record.memory
        speed[at] = record.speed
    return memory, speed
