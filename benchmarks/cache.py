"""What does a software cache miss, by policy and size, and what does asking it cost?

Misses: real click logs (in the folder NEOCPU_TEST_DATA) and Zipf's law, in batches of 256 samples.
A miss is a row of a batch that was not in the cache; the rate is over the rows that batches ask
for, each counted once a batch. The bound is Belady's: the best that any cache of that many lines
can do, not cut into sets, all of the future known. `benchmarks.all --write` draws
docs/cache-misses.svg.
Cost: prefetch (find and populate) of a batch of which 1 % is missing, against the pooled lookup of
the same batch.
"""

import argparse
import csv
import gzip
import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import ours
from benchmarks.harness import CORES, THREADS, Contender, main, measure, summarise
from benchmarks.shapes import Lookup
from neocpu.reference.policies import POLICIES
from neocpu.storage.cache import Cache, batches_ahead, sets_for

FOLDER = Path(
    os.environ.get("NEOCPU_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
)
SAMPLES = 256
WINDOW = 8
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
MOST = 0.15  # of the lookup's time
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]  # rows, ascending, and lookups of each


def read_criteo(text: io.TextIOBase) -> NDArray[np.str_]:
    """Categories str[samples, 26]."""
    return np.array([line.rstrip("\n").split("\t")[14:] for line in text])


def read_avazu(text: io.TextIOBase) -> NDArray[np.str_]:
    """Categories str[samples, 21]; the file is of one hour."""
    return np.array(list(csv.reader(text))[1:])[:, 3:]


LOGS = (
    ("Criteo Kaggle, 40,000 samples", "criteo_kaggle_40k.tsv.gz", read_criteo),
    ("Avazu, 10,000 samples", "avazu_10k.csv.gz", read_avazu),
)


def number(categories: NDArray[np.str_]) -> NDArray[np.int64]:
    """A number for every category of every column: rows of consecutive tables."""
    out = np.empty(categories.shape, np.int64)
    first = 0
    for column, ids in zip(categories.T, out.T):
        names, ids[:] = np.unique(column, return_inverse=True)
        ids += first
        first += names.size
    return out


def zipf(
    samples: int, columns: int = 26, rows: int = 1_000_000, power: float = 1.05
) -> NDArray[np.int64]:
    """Rows by Zipf's law, cut at `rows`."""
    shares = np.cumsum(np.arange(1, rows + 1) ** -power)
    return np.searchsorted(shares, np.random.default_rng(3).random((samples, columns)) * shares[-1])


def logs(quick: bool) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Names and rows i64[samples, columns] of all logs that are here."""
    for name, file, read in () if quick else LOGS:
        if (FOLDER / file).exists():
            with gzip.open(FOLDER / file, "rt") as text:
                yield name, number(read(text))
    yield "Zipf 1.05, 10^6 rows", zipf(2000 if quick else 40_000)


def cut(log: NDArray[np.int64]) -> list[Batch]:
    """A log in batches."""
    return [
        np.unique(log[i : i + SAMPLES], return_counts=True) for i in range(0, len(log), SAMPLES)
    ]


def ahead_of(batches: list[Batch]) -> list[NDArray[np.int64]]:
    """How many batches ahead each row is used next, within the window; for all batches."""
    rows = [ids for ids, _ in batches]
    return [batches_ahead(ids, rows[b + 1 : b + 1 + WINDOW]) for b, ids in enumerate(rows)]


def replay(policy: str, sets: int, batches: list[Batch], ahead: list[NDArray[np.int64]]) -> Cache:
    """All batches through a cache, one at a time."""
    cache = Cache(sets, policy)
    for b, (ids, counts) in enumerate(batches):
        cache.release(cache.prefetch(ids, counts, ahead[b]).lines)
        if cache.policy.next_use and b + WINDOW + 1 < len(batches):
            cache.expect(batches[b + WINDOW + 1][0], WINDOW + 1)
    return cache


def belady(lines: int, batches: list[Batch]) -> float:
    """Least miss rate of any cache of `lines` lines: after each batch it keeps the rows used
    soonest.
    """
    rows = int(max(ids[-1] for ids, _ in batches)) + 1
    never = len(batches)
    following = []
    upcoming = np.full(rows, never)
    for b, (ids, _) in reversed(list(enumerate(batches))):
        following.append(upcoming[ids])
        upcoming[ids] = b
    held = np.empty(0, np.int64)
    missed = 0
    next_use = np.full(rows, never)
    there = np.zeros(rows, bool)
    for ids, _ in batches:
        missed += np.count_nonzero(~there[ids])
        next_use[ids] = following.pop()
        there[held] = False
        held = np.union1d(held, ids)
        held = held[next_use[held] < never]
        held = held[np.argsort(next_use[held], kind="stable")[:lines]]
        there[held] = True
    return missed / sum(ids.size for ids, _ in batches)


def misses(name: str, log: NDArray[np.int64], rounds: int) -> dict[str, Any]:
    """Record of one log: miss rates of all policies over the size of the cache, and the time of a
    replay.
    """
    batches = cut(log)
    rows = np.unique(log).size
    ahead = ahead_of(batches)
    asked = sum(ids.size for ids, _ in batches)
    sizes = [sets_for(rows, share) for share in SHARES]
    curves: dict[str, list[float]] = {}
    for policy in POLICIES:
        found = [replay(policy, sets, batches, ahead).stats()["unique_misses"] for sets in sizes]
        curves[policy] = [n / asked for n in found]
    curves["Belady's bound"] = [belady(32 * sets, batches) for sets in sizes]
    heads = [f"{share:.0%}" for share in SHARES]
    lines = ["| rows missed, cache of | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    lines += [
        f"| {policy} | " + " | ".join(f"{100 * rate:.1f} %" for rate in rates) + " |"
        for policy, rates in curves.items()
    ]
    replays = [
        Contender(
            policy,
            "note",
            lambda _, p=policy: replay(p, sets_for(rows, 0.1), batches, ahead),
            CORES,
            ours.threads,
        )
        for policy in POLICIES
    ]
    measure(replays, min(rounds, 5))
    shape = {"lookups": log.size, "batches": len(batches), "rows": rows, "asked for": asked}
    record = summarise(f"cache misses, {name}", shape, replays)
    notes = [
        (
            "Times: the whole log, cache of 10 % of the rows. First uses alone are "
            f"{100 * rows / asked:.1f} %. "
            f"`lookahead` knows {WINDOW} batches."
        ),
        "\n".join(lines),
    ]
    return record | {"notes": notes, "log": name, "sizes": list(SHARES), "curves": curves}


class Asked:
    """Batches of a lookup as a cache sees them: 1 % of each batch is in the cache for the first
    time.
    """

    def __init__(self, shape: Lookup, batches: list[NDArray[np.int64]]) -> None:
        tables = np.repeat(np.arange(shape.tables), shape.samples * shape.length) * shape.rows
        self._batches = [np.unique(batch + tables, return_counts=True) for batch in batches]
        self.unique = sum(ids.size for ids, _ in self._batches) // len(batches)
        self._cache = Cache(sets_for(2 * len(batches) * self.unique, 1.0))
        self._rng = np.random.default_rng(4)
        self._fresh = 1 << 40
        self._lines: NDArray[np.int64] | None = None
        for _ in range(4):
            for ids in np.array_split(self._cold(self._cache.lines), 8):
                self._cache.release(self._cache.prefetch(ids, np.ones_like(ids)).lines)
        for i in range(2 * len(batches)):
            self.draw(i)
            self.prefetch()
        self._before = self._cache.stats()

    def _cold(self, count: int) -> NDArray[np.int64]:
        self._fresh += count
        return np.arange(self._fresh - count, self._fresh)

    def draw(self, i: int) -> None:
        """The next batch: 1 % of batch i's rows give way to rows that nobody has seen. The one
        before is done.
        """
        self.release()
        ids, counts = self._batches[i % len(self._batches)]
        kept = self._rng.random(ids.size) >= 0.01
        cold = self._cold(np.count_nonzero(~kept))
        self._ids = np.append(ids[kept], cold)
        self._counts = np.append(counts[kept], np.ones_like(cold))

    def prefetch(self, _: int = 0) -> None:
        """Prefetch it."""
        self._lines = self._cache.prefetch(self._ids, self._counts).lines

    def prefetched(self, i: int) -> None:
        """The next batch, prefetched."""
        self.draw(i)
        self.prefetch()

    def release(self, _: int = 0) -> None:
        """Release it, unless that was done."""
        if self._lines is not None:
            self._cache.release(self._lines)
        self._lines = None

    def rate(self) -> float:
        """Share of rows that were missing."""
        now = self._cache.stats()
        return (now["unique_misses"] - self._before["unique_misses"]) / (
            now["unique"] - self._before["unique"]
        )


def cost(shape: Lookup, rounds: int) -> dict[str, Any]:
    """Record of the cost beside one lookup."""
    batches = shape.batches(4)
    lookup = ours.OurLookup(shape, batches)
    asked = Asked(shape, batches)
    pooled = "neocpu, pooled lookup"
    found = [
        Contender("prefetch", "ours", asked.prefetch, n, ours.threads, asked.draw) for n in THREADS
    ]
    found += [
        Contender("release", "note", asked.release, n, ours.threads, asked.prefetched)
        for n in THREADS
    ]
    found += [Contender(pooled, "limit", lookup.forward, n, ours.threads) for n in THREADS]
    measure(found, rounds)
    case = f"cache, LRU, 1 % misses, D {shape.dim}"
    record = summarise(case, shape.describe() | {"batches": 4}, found, {pooled: round(1 / MOST, 2)})
    mine, after, theirs = (
        min(c.median for c in found if c.name == name) for name in ("prefetch", "release", pooled)
    )
    lookups = batches[0].size
    notes = [
        (
            f"{asked.unique:,} unique rows of {lookups:,} lookups, "
            f"{asked.rate():.2%} of them missing: "
            f"{mine / asked.unique * 1e9:.1f} ns per unique row, "
            f"{after / asked.unique * 1e9:.1f} for its release, "
            f"{theirs / lookups * 1e9:.1f} ns per pooled lookup; "
            f"{mine / theirs:.1%} of the lookup's time."
        )
    ]
    return record | {"notes": notes}


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Misses of every log, then costs."""
    ours.wait_as_in_training()
    shape = Lookup(2, 64, 4, 32, 200, 1.05) if options.quick else Lookup(zipf=1.05)
    shapes = (shape,) if options.quick else (shape, replace(shape, dim=16))
    records = [misses(name, log, options.rounds) for name, log in logs(options.quick)]
    return records + [cost(shape, options.rounds) for shape in shapes]


def picture(records: list[dict[str, Any]]) -> str:
    """The miss rates as an SVG picture, a panel per log; empty without matplotlib (the extra
    `viz`).
    """
    try:
        import matplotlib
    except ImportError:
        return ""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [record for record in records if "curves" in record]
    style = {
        "svg.hashsalt": "neocpu",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 10,
    }
    with pyplot.rc_context(style):
        figure, panels = pyplot.subplots(
            1, len(shown), figsize=(4.2 * len(shown), 3.8), squeeze=False
        )
        for record, panel in zip(shown, panels[0]):
            for (name, rates), mark in zip(record["curves"].items(), ("o", "s", "^", "D", "")):
                look = (
                    {"color": "black", "linestyle": "--"}
                    if not mark
                    else {"marker": mark, "markersize": 4}
                )
                panel.plot(
                    [100 * size for size in record["sizes"]],
                    [100 * r for r in rates],
                    label=name,
                    **look,
                )
            panel.set(
                title=record["log"],
                xscale="log",
                xlabel="lines of the cache, % of the log's rows",
                ylim=(0, 100),
            )
            panel.set_xticks(
                [100 * size for size in record["sizes"]], [f"{100 * s:g}" for s in record["sizes"]]
            )
            panel.minorticks_off()
            panel.grid(alpha=0.3)
        panels[0][0].set_ylabel("rows missed, % of rows asked for")
        panels[0][-1].legend(frameon=False)
        figure.tight_layout()
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return out.getvalue()


if __name__ == "__main__":
    main(__doc__, benchmark)
