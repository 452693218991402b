"""What does a kernel copy from a matrix into a message? Blocks, each described by one job.

`kernels/exchange/blocks.py` and `wires.py` take the jobs of a whole exchange as one array.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints


class BlockJob(NamedTuple):
    """A block of `rows` by `width`, in elements (of a message of codes: in bytes).

    Row i stands at source + i * source_stride, and goes to target + i * target_stride.
    """

    source: int
    source_stride: int
    target: int
    target_stride: int
    rows: int
    width: int


def job_array(jobs: Iterable[BlockJob]) -> Ints:
    """The jobs as kernels take them: i64[J, 6]."""
    return np.array(list(jobs), np.int64).reshape(-1, len(BlockJob._fields))


def run_jobs(source: Ints, target: Ints, width: Ints) -> Ints:
    """Jobs i64[J, 6] that copy runs: `width` elements from `source` on to `target` on."""
    # by columns, not job by job: every batch has runs of its own, for each entry and rank
    no_stride = np.zeros_like(source)
    one_row = np.ones_like(source)
    columns = [source, no_stride, target, no_stride, one_row, width]
    # in C order, whatever `stack` chooses: another would be another signature of the kernels
    return np.ascontiguousarray(np.stack(columns, axis=1))


def reversed_jobs(jobs: Ints) -> Ints:
    """The same jobs from target to source."""
    job = BlockJob(*range(len(BlockJob._fields)))
    columns = [
        job.target,
        job.target_stride,
        job.source,
        job.source_stride,
        job.rows,
        job.width,
    ]
    return np.ascontiguousarray(jobs[:, columns])
