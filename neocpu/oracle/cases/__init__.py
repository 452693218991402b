"""Which inputs break embedding kernels? The cases of every operator, chosen for that, and the same
for ever for one seed.
"""

from collections.abc import Iterable, Iterator

from neocpu.oracle.cases import backward as cases_backward
from neocpu.oracle.cases import layout as cases_layout
from neocpu.oracle.cases import lookup as cases_lookup
from neocpu.oracle.cases import trajectory as cases_trajectory
from neocpu.oracle.operator import Case

__all__ = ["Case", "all_cases"]

ROOMS = (cases_lookup, cases_backward, cases_trajectory, cases_layout)


def all_cases(ops: Iterable[str] | None = None, seed: int = 0) -> Iterator[Case]:
    """All cases of some operators (of all without names), in a fixed order. Another seed draws
    other numbers, same shapes.
    """
    wanted = None if ops is None else set(ops)
    for room in ROOMS:
        for case in room.cases(seed):
            if wanted is None or case.op in wanted:
                yield case
