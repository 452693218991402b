"""Which histories break key-value tables and caches? Cases of `kv_trajectory`, `row_cache`."""

from collections.abc import Iterator

import numpy as np

from neocpu.core.policies import EVICTIONS
from neocpu.core.types import Ints
from neocpu.oracle.cases.draw import Draw, Recipe
from neocpu.oracle.operator import Arrays, Case, Value
from neocpu.oracle.truth.key_store import STRATEGIES

DIM = 8
STEPS = 8
SECONDS = 30  # between steps
ABOUT = {
    "timestamp": "ids older than 60 s go; those of exactly 60 s stay",
    "counter": "counts fade by a tenth, rounded down, at every eviction; those of 0 go",
    "timestamp_and_counter": "only ids that are old and rare go",
    "l2_weight": "rows shorter than 2 go",
    "timestamp_threshold": "ids last seen before a moment go",
}


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; D is 8, or the next multiple."""
    dim = Recipe(seed, dim_multiple).width(DIM)
    for optimizer in ("exact_sgd", "exact_rowwise_adagrad"):
        for strategy in STRATEGIES:
            kind = "" if optimizer == "exact_sgd" else f"-{optimizer}"
            name = f"kv-{strategy.replace('_', '-')}{kind}"
            options: dict[str, Value] = {
                "optimizer": optimizer,
                "learning_rate": 0.0625,
                "eps": 2.0**-20,
                "strategy": strategy,
                "ttl": 60,
                "min_count": 1 if strategy == "counter" else 2,
                "decay_rate": 0.9 if strategy == "counter" else 0.75,
                "min_norm": 2.0,
            }
            about = f"{ABOUT[strategy]}; who comes back begins anew ({optimizer})"
            yield Case(name, "kv_trajectory", _history(seed, name, dim), options, about)
    name = "kv-counter-large"
    inputs = _history(seed, name, dim)
    # One more, and they need another bit.
    inputs["counts"] = np.resize([(1 << 8) - 1, (1 << 16) - 1, 0], inputs["keys"].size)
    about = "counts grow beyond 8 and 16 bits, and fade as whole numbers"
    store: dict[str, Value] = {"strategy": "counter", "min_count": 1, "decay_rate": 0.9}
    yield Case(name, "kv_trajectory", inputs, store, about)
    yield from _caches(seed)


def _caches(seed: int) -> Iterator[Case]:
    """Streams of batches for the caches of every policy."""
    for policy in EVICTIONS:
        for kind, rows, sets, in_flight, about in (
            ("one-set", 64, 1, 1, "one set: every row that comes makes another one leave"),
            ("in-flight", 70, 1, 3, "three batches in flight lock rows: some find no way"),
            ("sets", 1 << 62, 2, 1, "rows of 62 bits in two sets"),
        ):
            name = f"cache-{policy}-{kind}"
            stream = _stream(Draw(seed, name), rows, 24)
            options: dict[str, Value] = {"policy": policy, "sets": sets, "in_flight": in_flight}
            if policy == "lookahead":
                options["window"] = 4
            yield Case(name, "row_cache", stream, options, f"{policy}: {about}")
    name = "cache-lookahead-blind"
    blind: dict[str, Value] = {"policy": "lookahead", "sets": 1}
    about = "lookahead: no later batch is known, so that it falls back to the least recent"
    yield Case(name, "row_cache", _stream(Draw(seed, name), 64, 12), blind, about)
    name = "cache-empty"
    empty = {"training": np.array([1, 1]), **{f"step{k}/indices": _NO_ROWS for k in range(2)}}
    yield Case(name, "row_cache", empty, {"sets": 2}, "batches without a lookup")


_NO_ROWS = np.empty(0, np.int64)


def _stream(draw: Draw, rows: int, steps: int) -> Arrays:
    """Batches of some 30 lookups: a hot part, a moving one, and rows that occur once."""
    known = np.sort(draw.whole(96, 0, 1 << 31)) * (rows >> 31) if rows > 96 else np.arange(rows)
    inputs: Arrays = {"training": (draw.whole(steps, 0, 3) > 0).astype(np.int64)}
    for k in range(steps):
        hot = draw.whole(12, 0, 6)
        near = draw.whole(12, 0, 14) + 5 * k
        cold = draw.whole(8, 0, known.size)
        indices = known[np.concatenate([hot, near, cold]) % known.size]
        indices[::11] = -1
        inputs[f"step{k}/indices"] = indices
    return inputs


def _ids(draw: Draw, count: int) -> Ints:
    """Raw ids of 63 bits, ascending; the lower 32 bits of two agree."""
    low = draw.words(count).astype(np.int64)
    high = draw.words(count).astype(np.int64) & 0x7FFFFFFF
    ids = high << 32 | low
    # A hash of the lower 32 bits alone would take both for one.
    ids[1] = ids[0] ^ (1 << 40)
    return np.unique(np.concatenate([ids, [0, (1 << 63) - 1]]))


def _history(seed: int, name: str, dim: int) -> Arrays:
    draw = Draw(seed, name)
    keys = _ids(draw, 40)
    inputs: Arrays = {
        "keys": keys,
        "dims": np.array([dim], np.int64),
        "weights": draw.floats(keys.size * dim, -4, 1),
        "training": np.array([1, 1, 0, 1, 1, 0, 1, 1], np.int64),
        "evict": np.array([0, 1, 0, 1, 1, 1, 0, 1], np.int64),
        "times": 1_700_000_000 + SECONDS * np.arange(STEPS),
    }
    for k in range(STEPS):
        lengths = draw.whole(6, 0, 5)
        offsets = np.append(0, np.cumsum(lengths))
        # a window that moves over the ids and returns to the first ones
        near = draw.whole(int(offsets[-1]), 0, 18) + (3 * k if k < 6 else 0)
        ids = keys[near % keys.size]
        ids[::7] = -1
        if ids.size > 4:
            ids[3] = ids[2]  # twice in a batch, counted once
        inputs[f"step{k}/indices"] = ids
        inputs[f"step{k}/offsets"] = offsets
        if inputs["training"][k]:
            inputs[f"step{k}/grad_output"] = draw.floats((6, dim), -2, 2)
    return inputs
