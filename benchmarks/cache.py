"""How often does a software cache miss, by policy and size, and what does a prefetch cost?

Misses: real click logs (in the folder NEOCPU_TEST_DATA) and Zipf's law, in batches of 256 samples.
A miss is a row of a batch that was not in the cache; the rate is over the unique rows of all
batches. The bound is Belady's: the least rate of any cache of that many lines, fully associative,
that knows the future. `benchmarks.all --write` draws
docs/cache-misses.svg.
Cost: prefetch (find and populate) of a batch of which 1 % is missing, against the pooled lookup of
the same batch.
"""

import argparse
import csv
import gzip
import io
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import charts, ours
from benchmarks.harness import CORES, THREADS, Contender, main, measure, summarise
from benchmarks.shapes import Lookup
from neocpu.core import svg
from neocpu.core.policies import EVICTIONS
from neocpu.tables.tiers.cache import Cache, batches_ahead, sets_for

# Where the click logs are.
FOLDER = Path(
    os.environ.get("NEOCPU_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
)
# Samples of a batch.
SAMPLES = 256
# Batches that the policy `lookahead` knows.
WINDOW = 8
# Sizes of the cache, as shares of the log's unique rows.
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
# Aim of the cost: at most this share of the lookup's time.
MOST_OF_LOOKUP = 0.15
# Unique rows, ascending, and the lookups of each.
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


def read_criteo(text: io.TextIOBase) -> NDArray[np.str_]:
    """Categories str[samples, 26]."""
    return np.array([line.rstrip("\n").split("\t")[14:] for line in text])


def read_avazu(text: io.TextIOBase) -> NDArray[np.str_]:
    """Categories str[samples, 21], without the hour, which is the same in all lines."""
    return np.array(list(csv.reader(text))[1:])[:, 3:]


# Caption, file and reader of each log.
LOGS = (
    ("Criteo Kaggle, 40,000 samples", "criteo_kaggle_40k.tsv.gz", read_criteo),
    ("Avazu, 10,000 samples", "avazu_10k.csv.gz", read_avazu),
)


def number(categories: NDArray[np.str_]) -> NDArray[np.int64]:
    """Row numbers i64[samples, columns]; the tables of all columns follow one another."""
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
    """Names and rows i64[samples, columns] of all logs that exist."""
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
    """For each batch, in how many batches each of its rows is used next, within the window."""
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
    """Least miss rate of any cache of `lines` lines.

    After each batch it keeps the rows whose next use is soonest.
    """
    rows = int(max(ids[-1] for ids, _ in batches)) + 1
    never = len(batches)
    following = []
    upcoming = np.full(rows, never)
    for b, (ids, _) in reversed(list(enumerate(batches))):
        following.append(upcoming[ids])
        upcoming[ids] = b
    cached_rows = np.empty(0, np.int64)
    missed = 0
    next_use = np.full(rows, never)
    is_cached = np.zeros(rows, bool)
    for ids, _ in batches:
        missed += np.count_nonzero(~is_cached[ids])
        next_use[ids] = following.pop()
        is_cached[cached_rows] = False
        cached_rows = np.union1d(cached_rows, ids)
        cached_rows = cached_rows[next_use[cached_rows] < never]
        cached_rows = cached_rows[np.argsort(next_use[cached_rows], kind="stable")[:lines]]
        is_cached[cached_rows] = True
    return missed / sum(ids.size for ids, _ in batches)


def misses(name: str, log: NDArray[np.int64], rounds: int) -> dict[str, Any]:
    """Record of one log: miss rates by policy and cache size, and the time of a replay."""
    batches = cut(log)
    rows = np.unique(log).size
    ahead = ahead_of(batches)
    unique_rows = sum(ids.size for ids, _ in batches)
    sizes = [sets_for(rows, share) for share in SHARES]
    curves: dict[str, list[float]] = {}
    for policy in EVICTIONS:
        unique_misses = [
            replay(policy, sets, batches, ahead).stats()["unique_misses"] for sets in sizes
        ]
        curves[policy] = [n / unique_rows for n in unique_misses]
    curves["Belady's bound"] = [belady(32 * sets, batches) for sets in sizes]
    shares = [f"{share:.0%}" for share in SHARES]
    lines = [
        "| rows missed, cache of | " + " | ".join(shares) + " |",
        "|---|" + "---|" * len(shares),
    ]
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
        for policy in EVICTIONS
    ]
    measure(replays, min(rounds, 5))
    shape = {"lookups": log.size, "batches": len(batches), "rows": rows, "asked for": unique_rows}
    record = summarise(f"cache misses, {name}", shape, replays)
    notes = [
        (
            "Times: the whole log, cache of 10 % of the rows. First uses alone are "
            f"{100 * rows / unique_rows:.1f} %. "
            f"`lookahead` knows {WINDOW} batches."
        ),
        "\n".join(lines),
    ]
    return record | {"notes": notes, "log": name, "sizes": list(SHARES), "curves": curves}


class MissingRows:
    """Batches of which 1 % of the rows are missing from the cache."""

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
        """Release the batch before, and draw the next: batch i with new rows in place of 1 %."""
        self.release()
        ids, counts = self._batches[i % len(self._batches)]
        keep = self._rng.random(ids.size) >= 0.01
        cold = self._cold(np.count_nonzero(~keep))
        self._ids = np.append(ids[keep], cold)
        self._counts = np.append(counts[keep], np.ones_like(cold))

    def prefetch(self, _: int = 0) -> None:
        """Prefetch the batch."""
        self._lines = self._cache.prefetch(self._ids, self._counts).lines

    def prefetched(self, i: int) -> None:
        """Draw and prefetch the next batch."""
        self.draw(i)
        self.prefetch()

    def release(self, _: int = 0) -> None:
        """Release the batch, unless that was done."""
        if self._lines is not None:
            self._cache.release(self._lines)
        self._lines = None

    def rate(self) -> float:
        """Share of the rows that were missing."""
        stats = self._cache.stats()
        return (stats["unique_misses"] - self._before["unique_misses"]) / (
            stats["unique"] - self._before["unique"]
        )


def cost(shape: Lookup, rounds: int) -> dict[str, Any]:
    """Record of the cost beside one lookup."""
    batches = shape.batches(4)
    lookup = ours.NeocpuLookup(shape, batches)
    missing = MissingRows(shape, batches)
    pooled = "neocpu, pooled lookup"
    contenders = [
        Contender("prefetch", "ours", missing.prefetch, n, ours.threads, missing.draw)
        for n in THREADS
    ]
    contenders += [
        Contender("release", "note", missing.release, n, ours.threads, missing.prefetched)
        for n in THREADS
    ]
    contenders += [Contender(pooled, "limit", lookup.forward, n, ours.threads) for n in THREADS]
    measure(contenders, rounds)
    case = f"cache, LRU, 1 % misses, D {shape.dim}"
    record = summarise(
        case, shape.describe() | {"batches": 4}, contenders, {pooled: round(1 / MOST_OF_LOOKUP, 2)}
    )
    prefetch_seconds, release_seconds, lookup_seconds = (
        min(c.median for c in contenders if c.name == name)
        for name in ("prefetch", "release", pooled)
    )
    lookups = batches[0].size
    notes = [
        (
            f"{missing.unique:,} unique rows of {lookups:,} lookups, "
            f"{missing.rate():.2%} of them missing: "
            f"{prefetch_seconds / missing.unique * 1e9:.1f} ns per unique row, "
            f"{release_seconds / missing.unique * 1e9:.1f} for its release, "
            f"{lookup_seconds / lookups * 1e9:.1f} ns per pooled lookup; "
            f"{prefetch_seconds / lookup_seconds:.1%} of the lookup's time."
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


MARKS = {  # colour and dashes of a curve
    "lru": (svg.BLUE, ""),
    "lfu": (svg.ORANGE, ""),
    "sieve": (svg.GREEN, ""),
    "lookahead": (svg.RED, ""),
    "Belady's bound": (svg.INK, "6 4"),
}


def recorded(page: str) -> list[dict[str, Any]]:
    """The records of the picture, from the tables in a page of docs/."""
    text = (charts.DOCS / page).read_text()
    logs = re.findall("### cache misses, (.*)", text)
    return [
        {
            "log": log,
            "sizes": list(SHARES),
            "curves": {name: [float(rate[:-2]) / 100 for rate in rates] for name, *rates in rows},
        }
        for log, rows in zip(logs, charts.rows_of(page, "| rows missed, cache of |"))
    ]


def picture(records: list[dict[str, Any]]) -> str:
    """The miss rates as an SVG picture, a panel per log."""
    logs = [record for record in records if "curves" in record]
    title = "Rows missed, by policy and size of the cache"
    body = svg.headings(
        title, "% of the rows asked for, over lines of the cache in % of a log's rows"
    )
    sizes = [100 * size for size in logs[0]["sizes"]]
    x = charts.Scale(0.9, 44, [(size, f"{size:g}") for size in sizes], logarithmic=True)
    y = charts.Scale(0, 100, [(value, f"{value:g}") for value in range(0, 101, 20)])
    for number, record in enumerate(logs):
        axes = charts.Axes(70 + 300 * number, 130, 250, 230, x, y)
        body += axes.frame(
            record["log"], "lines of the cache, %", "" if number else "rows missed, %"
        )
        for name, rates in record["curves"].items():
            colour, dashes = MARKS[name]
            along = [(size, 100 * rate) for size, rate in zip(sizes, rates)]
            body.append(axes.curve(along, colour, dashes=dashes))
            if not dashes:
                for at, rate in along:
                    tip = f"{name}, {at:g} %: {rate:.1f} %"
                    body.append(svg.dot(*axes.point(at, rate), colour, tip, 3))
    for number, (name, (colour, dashes)) in enumerate(MARKS.items()):
        left = 70 + 110 * number
        body.append(svg.polyline([(left, 86), (left + 20, 86)], colour, dashes=dashes))
        body.append(svg.text(left + 26, 90, name))
    words = "; ".join(
        f"{record['log']}, {name}: {', '.join(f'{100 * rate:.0f} %' for rate in rates)}"
        for record in logs
        for name, rates in record["curves"].items()
    )
    return svg.document(50 + 300 * len(logs), 420, title, words, body)


if __name__ == "__main__":
    main(__doc__, benchmark)
