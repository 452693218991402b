"""Does scratch memory that a loop lends to a task live as long as the task looks at it?"""

from typing import NamedTuple

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import parallel_kernel
from neocpu.kernels.scratch import task_body
from neocpu.kernels.simd.bags import bare, view


class Lent(NamedTuple):
    """Arrays of one task."""

    sums: np.ndarray
    line: np.ndarray


@task_body
def fill_and_add(task, scratch, out):
    """Write the scratch arrays, allocate arrays of the same sizes, and add what was written."""
    sums = bare(scratch.sums)
    line = view(scratch.line, 3, 64)
    for i in range(sums.size):
        sums[i] = i + task
    for i in range(line.size):
        line[i] = 2 * i
    others = np.full(sums.size, 7.0)
    more = np.full(200, np.float32(9))
    total = 0.0 * (others[0] + more[0])
    for i in range(sums.size):
        total += sums[i]
    for i in range(line.size):
        total += line[i]
    out[task] = total


@parallel_kernel
def add_in_scratch(out):
    """One task for each number of `out`."""
    for task in prange(out.size):
        fill_and_add(task, Lent(np.empty(128), np.zeros(200, np.float32)), out)


def test_the_call_of_a_task_owns_its_scratch():
    out = np.zeros(2000)
    add_in_scratch(out)
    np.testing.assert_array_equal(out, sum(range(128)) + 128 * np.arange(2000) + 64 * 63)
