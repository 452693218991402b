"""Is this NumPy kernel right, and what does the oracle say about a broken one?

python examples/oracle_from_numpy.py
"""

import _needs  # noqa: F401, what to install
import numpy as np

from neocpu import oracle

rng = np.random.default_rng(0)
offsets = np.array([0, 3, 3, 4, 9])
inputs = {
    "weights": rng.standard_normal(10 * 4, dtype=np.float32),
    "rows": np.array([10]),
    "dims": np.array([4]),
    "feature_table": np.array([0]),
    "indices": rng.integers(0, 10, 9),
    "offsets": offsets,
}


def lookup(divide: bool) -> np.ndarray:
    """MEAN of every bag, in fp32; `divide=False` forgets the division."""
    table = inputs["weights"].reshape(10, 4)
    out = np.zeros((4, 4), np.float32)
    for b, bag in enumerate(np.split(inputs["indices"], offsets[1:-1])):
        for row in bag:
            out[b] += table[row]
        if divide and bag.size:
            out[b] /= np.float32(bag.size)
    return out


if __name__ == "__main__":
    for divide in (True, False):
        print(oracle.check("lookup", inputs, lookup(divide), options={"pooling": "mean"}))
# Try changing the kernel: drop the last lookup of each bag, or accumulate in float16.
