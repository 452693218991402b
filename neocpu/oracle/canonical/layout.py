"""Which arrays does neocpu itself return for operators on jagged data?

Those of its kernels, or of the model in `truth/layout.py`: whole numbers and copies have one right
answer, so the model serves as the twin, and what kernels return must equal it number for number.
"""

import numpy as np

from neocpu.kernels.compile.choice import backend_module
from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.oracle.canonical import NONE
from neocpu.oracle.operator import Arrays, Options
from neocpu.oracle.truth import layout as truth_layout


def run(name: str, inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical answer of a layout operator."""
    if backend == "kernels":
        # Imported late: suites with the twins' answers load no compiler.
        from neocpu.oracle.canonical.layout_kernels import BY_KERNELS

        if name in BY_KERNELS:
            return BY_KERNELS[name](inputs, options)
    return getattr(truth_layout, name)(inputs, options, frozenset())


def segment_sum(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical sums of segments: exact, rounded once."""
    values = inputs["values"]
    offsets = inputs["offsets"].astype(np.int64)
    out = np.zeros((offsets.size - 1, values.shape[1]), np.float32)
    table = np.ascontiguousarray(values).reshape(-1)
    zero = np.zeros(1, np.int64)
    width = np.array([values.shape[1]])
    rows = np.arange(len(values))
    # Segments are bags of a table whose rows are the values, each read once.
    entries = Entries(zero, width, width, np.array([0, len(out)]))
    bags = Bags(offsets, rows, NONE)
    lines = Lines(zero, width)
    kernels = backend_module("rows.lookup", backend)
    with np.errstate(all="ignore"):
        kernels.pooled_rows(table, entries, bags, False, lines, out.reshape(-1))
    return {"sums": out}
