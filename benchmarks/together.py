"""How many products of a tensor train does the order of its rows save (`neocpu data order`)?

Each column of the click logs with more than 2,000 different values (in the folder
NEOCPU_TEST_DATA), and drawn bags of eight out of communities of fifty rows that stand anywhere. A
product is that of the first two cores for a distinct prefix of the rows of a batch of 256 samples;
rows of the last core are those of `cube_factors`. Orders are by falling frequency, and by what is
looked up together, learnt from the whole log, and then from its first four fifths and counted on
the last one.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import cache
from benchmarks.harness import main
from benchmarks.lookahead import by_frequency
from neocpu.ingest.dataset.together import Occurrences, order_together, prefixes
from neocpu.tables.kinds.tt import cube_factors

BATCH = 256
LEAST = 2000  # different values of a column
Log = NDArray[np.int64]


def drawn_bags(samples: int) -> Log:
    """Rows i64[samples, 8] of bags out of one community each, communities by Zipf's law."""
    rng = np.random.default_rng(0)
    places = rng.permutation(20_000)
    communities = rng.zipf(1.2, samples) % 400
    return places[communities[:, None] * 50 + rng.integers(0, 50, (samples, 8))]


def columns(quick: bool) -> Iterator[tuple[str, Log]]:
    """Names and rows of one feature each, by falling frequency; i64[samples] or [samples, bag]."""
    for name, log in cache.logs(quick):
        for number, column in enumerate(log.T if not name.startswith("Zipf") else ()):
            if np.unique(column).size > LEAST:
                yield f"{name}, column {number}", by_frequency(column)
    yield "bags of communities", by_frequency(drawn_bags(1000 if quick else 8000))


def together(rows: Log, group: int) -> Occurrences:
    """Which rows occur in which groups of so many samples."""
    groups = np.repeat(np.arange(len(rows)) // group, rows[0].size)
    pairs = np.unique(np.stack([groups, rows.reshape(-1)]), axis=1)
    return Occurrences(pairs[1], pairs[0])


def counted(name: str, rows: Log) -> str:
    """A line of the table."""
    size = int(rows.max()) + 1
    last = cube_factors(size + 1)[2]
    cut = len(rows) * 4 // 5
    cells = [name, f"{size:,}"]
    for learnt, asked in ((rows, rows), (rows[:cut], rows[cut:])):
        order = order_together(size, together(learnt, 1 if rows.ndim == 2 else BATCH))
        batches = together(asked, BATCH)
        before, after = (prefixes(batches, kind, last) for kind in (None, order))
        cells += [f"{before:.1f}", f"{after:.1f}", f"{before / after:.2f}"]
    return f"| {' | '.join(cells)} |"


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One table."""
    lines = [
        f"| column | rows | {' | '.join(['by frequency', 'together', 'times fewer'] * 2)} |",
        "|---|---|---|---|---|---|---|---|",
        *(counted(name, rows) for name, rows in columns(options.quick)),
    ]
    case = "products of a tensor train for a batch, by the order of its rows"
    table = "\n".join(lines)
    return [{"case": case, "shape": {"batch": BATCH}, "rounds": 1, "rows": [], "notes": [table]}]


if __name__ == "__main__":
    main(__doc__, benchmark)
