"""Are messages encoded and decoded at the speed of memory? Every wire, beside the copy that packs
fp32.

A message holds 16 keys of 64 columns for 2,048 samples, 8 MiB of fp32. The copy is `copy_blocks`
with the same jobs, which packs and unpacks fp32 messages; it runs on one thread, as it does in a
step. Rates count the fp32 numbers, so that more than the copy's means that a compressed message is
packed in less time than an exact one.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.harness import THREADS, Contender, main, measure, summarise
from neocpu.kernels.exchange.blocks import copy_blocks
from neocpu.parallel.exchange.wire_formats import WIRE_FORMATS, WireSpec
from neocpu.parallel.exchange.wires import Wire, reversed_jobs

KEYS = 16
COLUMNS = 64
SAMPLES = 2048


def jobs_of(size: int, samples: int) -> np.ndarray:
    """Jobs between columns of a matrix and rows of a message with so many elements for a key."""
    jobs = [(COLUMNS * k, COLUMNS * KEYS, size * k, size * KEYS) for k in range(KEYS)]
    return np.array([(*job, samples, COLUMNS) for job in jobs], np.int64)


def case(name: str, samples: int, rounds: int) -> list[dict[str, Any]]:
    """Encoding, decoding and rounding in place on one wire."""
    x = np.random.default_rng(0).standard_normal((samples, KEYS * COLUMNS), np.float32)
    wire = Wire(WireSpec(name))
    size = wire.bytes(COLUMNS)
    message = np.empty(samples * KEYS * size, np.uint8)
    exact = np.empty(x.size, np.float32)
    arrived = np.empty_like(x)
    jobs = jobs_of(size, samples)
    back = reversed_jobs(jobs)
    pack = jobs_of(COLUMNS, samples)
    unpack = reversed_jobs(pack)
    stay = pack.copy()
    stay[:, 2:4] = stay[:, :2]
    copies: dict[str, Callable[[], Any]] = {
        "encode": lambda: copy_blocks(x.reshape(-1), exact, pack),
        "decode": lambda: copy_blocks(exact, arrived.reshape(-1), unpack),
    }
    works: dict[str, Callable[[], Any]] = {
        "encode": lambda: wire.encode(x, message, jobs),
        "decode": lambda: wire.decode(message, arrived, back),
        "round": lambda: wire.round(x, arrived, stay),
    }
    copies["encode"]()
    records = []
    for direction, work in works.items():
        contenders = [
            Contender("neocpu", "ours", lambda _, f=work: f(), n, ours.threads) for n in THREADS
        ]
        copy = copies.get(direction, copies["encode"])
        contenders.append(Contender("fp32: copy_blocks", "note", lambda _, f=copy: f()))
        measure(contenders, rounds)
        shape = {"keys": KEYS, "D": COLUMNS, "samples": samples}
        record = summarise(f"{direction} {name}", shape, contenders)
        rates = {(c.side, c.threads): x.nbytes / c.median / 1e9 for c in contenders}
        note = ", ".join(
            f"{'copy' if side == 'note' else f'{threads} thread(s)'} {rate:.1f} GB/s"
            for (side, threads), rate in rates.items()
        )
        records.append(record | {"notes": [f"Of fp32 numbers: {note}."], "rates": note})
    return records


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every wire."""
    names = [name for name in WIRE_FORMATS if name != "fp32"]
    samples = 64 if options.quick else SAMPLES
    return [
        r
        for name in (names[::2] if options.quick else names)
        for r in case(name, samples, options.rounds)
    ]


if __name__ == "__main__":
    main(__doc__, benchmark)
