"""How do wrong kernels round? Helpers of several bugs."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.questions import Array

TINY = np.finfo(F32).tiny


def flushed(x: Array) -> Array:
    """Numbers, subnormals as zeros."""
    return np.where(np.abs(x) < TINY, F32(0), x)


def bf16(x: Array) -> Array:
    """Numbers rounded to bf16."""
    k = Kernel()
    return k.decode_small(k.encode_small(x, "bf16", "nearest"), "bf16")


def fp16(x: Array) -> Array:
    """Numbers rounded to fp16."""
    return x.astype(np.float16).astype(F32)


def tf32(x: Array) -> Array:
    """Numbers with ten bits of mantissa."""
    bits = np.ascontiguousarray(x, F32).view(np.uint32)
    return (bits + 0x1000 & 0xFFFFE000).astype(np.uint32).view(F32)


def narrow_sums(rounded):
    """Sums that are rounded after every addition."""

    def add_up(k: Kernel, terms: Array, group: Array, size: int) -> Array:
        sums = np.zeros((size, terms.shape[1]), F32)
        order = np.argsort(group, kind="stable")
        counts = np.bincount(group, minlength=size)
        begins = np.cumsum(counts) - counts
        for place in range(int(counts.max(initial=0))):
            bags = np.flatnonzero(counts > place)
            sums[bags] = rounded(sums[bags] + terms[order[begins[bags] + place]])
        return sums

    return add_up
