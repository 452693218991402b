"""Which bits do two ranks of TorchRec give when a table's rows are split between them?

Each rank sums the lookups of its block of rows (ceil(R/2) of them) in their order, as FBGEMM does;
the two partial sums are added by the reduce-scatter. Two numbers add up in one way only, so gloo,
MPI and NCCL agree; with more ranks the order is the transport's. MEAN is a division afterwards: by
fl(L + 1e-6), or, with weights, by the sum of the bag's weights plus 1e-6.
"""

import numpy as np

from neocpu.core.types import Floats
from neocpu.oracle.mirrors.order import F, NoMirror, features, running_sums, tables
from neocpu.oracle.operator import Arrays, Options

RANKS = 2


def lookup(inputs: Arrays, options: Options) -> Arrays:
    """Bits of `lookup`: an EmbeddingBagCollection sharded row-wise over two ranks."""
    if options["weights_format"] != "fp32" or options["output_format"] != "fp32":
        raise NoMirror("row-wise sums of narrow tables are not mirrored")
    if options["pooling"] == "none":
        raise NoMirror("TorchRec's EmbeddingBagCollection pools")
    outputs = []
    for feature in features(inputs, tables(inputs, "fp32")):
        # TorchRec's blocks: all of one size but the last.
        block = -(-len(feature.rows) // RANKS)
        total: Floats | None = None
        for rank in range(RANKS):
            on_rank = np.flatnonzero(feature.indices // block == rank)
            count = np.bincount(feature.bag[on_rank], minlength=feature.lengths.size)
            weights = None if feature.weights is None else feature.weights[on_rank]
            rows = feature.rows[feature.indices[on_rank]]
            partial = running_sums(rows, np.cumsum(count) - count, count, weights)
            total = partial if total is None else total + partial
        assert total is not None
        if options["pooling"] == "mean":
            divisor = feature.lengths.astype(np.float32)
            if feature.weights is not None:
                column = feature.weights[:, None]
                divisor = running_sums(column, feature.offsets[:-1], feature.lengths)[:, 0]
            total = total / (divisor + F(1e-6))[:, None]
        outputs.append(total)
    return {"out": np.concatenate(outputs, 1)}
