"""Which bugs do kernel authors write? One module for each part of a kernel; importing fills it."""

from benchmarks.oracle_mutants.mutants import (  # noqa: F401, they register their mutants
    afterwards,
    bags,
    blocks,
    buckets,
    codecs,
    columns,
    idioms,
    layouts,
    merges,
    moments,
    movements,
    pooling,
    reports,
    reserves,
    rules,
    scale,
    steps,
    stores,
    strides,
    updates,
    weights,
)
from benchmarks.oracle_mutants.registry import MUTANTS

__all__ = ["MUTANTS"]
