"""The oracle's cases, drawn once for all tests of a process: all of them take a second."""

import functools
from collections.abc import Iterable, Iterator

from neocpu.oracle import cases
from neocpu.oracle.cases import DIM_MULTIPLE, Case


@functools.cache
def _drawn(seed: int, dim_multiple: int) -> tuple[Case, ...]:
    return tuple(cases.all_cases(None, seed, dim_multiple))


def all_cases(
    ops: Iterable[str] | None = None, seed: int = 0, dim_multiple: int = DIM_MULTIPLE
) -> Iterator[Case]:
    """As `neocpu.oracle.cases.all_cases`; nobody may write to the inputs."""
    names = None if ops is None else set(ops)
    return (case for case in _drawn(seed, dim_multiple) if names is None or case.op in names)
