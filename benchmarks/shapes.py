"""Which inputs do benchmarks use? Synthetic lookups, and two DLRMs for whole training steps."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Rows per categorical feature of the Criteo Kaggle click log, as published with the DLRM reference
# implementation.
KAGGLE_ROWS = (
    1460,
    583,
    10131227,
    2202608,
    305,
    24,
    12517,
    633,
    3,
    93145,
    5683,
    8351593,
    3194,
    27,
    14992,
    5461306,
    10,
    5652,
    2173,
    4,
    7046547,
    18,
    15,
    286181,
    105,
    142572,
)
# Draws row numbers: (rng, rows, count, Zipf's exponent).
Draw = Callable[[np.random.Generator, int, int, float], NDArray[np.int64]]
# Factor that spreads the popular rows of a Zipf draw over the table.
SCRAMBLE = 2654435761


def draw(rng: np.random.Generator, rows: int, count: int, zipf: float) -> NDArray[np.int64]:
    """`count` row numbers below `rows`: uniform if zipf is 0, else scrambled Zipf."""
    if zipf == 0.0:
        return rng.integers(0, rows, count)
    return np.minimum(rng.zipf(zipf, count) - 1, 10**9) * SCRAMBLE % rows


@dataclass(frozen=True)
class Lookup:
    """T tables of E rows and D columns; B samples with bags of exactly L lookups.

    Rows are drawn uniformly, or by a Zipf law if `zipf` is not 0.
    """

    tables: int = 32
    samples: int = 512
    length: int = 20
    dim: int = 128
    rows: int = 100_000
    zipf: float = 0.0

    def describe(self, row_format: str = "fp32") -> dict[str, object]:
        """Shape for the printed table, in the letters of the glossary."""
        distribution = f"Zipf {self.zipf}" if self.zipf else "uniform"
        return {
            "T": self.tables,
            "B": self.samples,
            "L": self.length,
            "D": self.dim,
            "E": self.rows,
            "format": row_format,
            "distribution": distribution,
        }

    def batches(self, count: int) -> list[NDArray[np.int64]]:
        """`count` batches of row numbers i64[T*B*L], table-major."""
        rng = np.random.default_rng(7)
        return [
            draw(rng, self.rows, self.tables * self.samples * self.length, self.zipf)
            for _ in range(count)
        ]

    def offsets(self) -> NDArray[np.int64]:
        """Bag starts i64[T*B + 1]."""
        return np.arange(self.tables * self.samples + 1, dtype=np.int64) * self.length


@dataclass(frozen=True)
class Model:
    """One DLRM: 13 dense inputs, 26 single-valued features, dot interaction."""

    name: str
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    # most rows of a table
    cap: int
    samples: int = 2048
    # rows of every table instead of Kaggle's, if not 0
    equal: int = 0

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each of the 26 tables."""
        return (
            (self.equal,) * 26 if self.equal else tuple(min(rows, self.cap) for rows in KAGGLE_ROWS)
        )

    @property
    def interactions(self) -> int:
        """Inputs of the top MLP: the bottom's output and the 27 * 26 / 2 dot products."""
        return self.dim + 27 * 26 // 2

    def describe(self) -> dict[str, object]:
        """Shape for the printed table."""
        bottom, top = ("-".join(map(str, sizes)) for sizes in (self.bottom, self.top))
        return {
            "B": self.samples,
            "D": self.dim,
            "bottom": bottom,
            "top": top,
            "tables": 26,
            "rows": f"{sum(self.rows):,}",
        }


KAGGLE = Model("kaggle", 16, (512, 256, 64, 16), (512, 256, 1), 2_000_000)
MLPERF = Model("mlperf-like", 128, (512, 256, 128), (1024, 1024, 512, 256, 1), 400_000)
SMALL = Model("small", 16, (32, 16), (32, 1), 1_000, samples=64)


@dataclass(frozen=True)
class Sample:
    """A synthetic batch: dense f32[B, 13], row numbers i64[26, B], labels f32[B]."""

    dense: NDArray[np.float32]
    rows: NDArray[np.int64]
    labels: NDArray[np.float32]


def draw_within(rng: np.random.Generator, rows: int, count: int, zipf: float) -> NDArray[np.int64]:
    """`count` row numbers below `rows` by a Zipf law cut at `rows`, scrambled.

    The row of rank k has probability proportional to k^-zipf.
    """
    law = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -zipf)
    return np.searchsorted(law, rng.random(count) * law[-1]).astype(np.int64) * SCRAMBLE % rows


def clicks(
    model: Model,
    count: int,
    zipf: float = 1.2,
    part: tuple[int, int] | None = None,
    draw_rows: Draw = draw,
) -> list[Sample]:
    """`count` batches for `model`.

    part: first and last sample of each batch to return (a rank's share). draw_rows: the
    distribution of rows.
    """
    rng = np.random.default_rng(11)
    first, last = part or (0, model.samples)
    samples = []
    for _ in range(count):
        dense = rng.standard_normal((model.samples, 13)).astype(np.float32)
        rows = np.stack([draw_rows(rng, rows, model.samples, zipf) for rows in model.rows])
        labels = rng.integers(0, 2, model.samples).astype(np.float32)
        samples.append(
            Sample(
                dense[first:last].copy(),
                np.ascontiguousarray(rows[:, first:last]),
                labels[first:last].copy(),
            )
        )
    return samples
