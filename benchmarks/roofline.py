"""Where do our kernels stand under the machine's roofline? GFLOP/s against flops per byte.

The roof: memory read in order by all cores, and fused multiply-adds of fp32 vectors from registers,
both in C. A kernel's bytes are those that it must move between memory and cores (rows, gradients,
activations, each once), its flops those of the formula, exactness not counted. `benchmarks.all
--write` draws docs/roofline.svg from this.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log10
from typing import Any

import numpy as np

from benchmarks import gemm, ours
from benchmarks.harness import CORES, Contender, main, measure, summarise
from benchmarks.limits import MULTIPLY_ADD, Limit, library
from benchmarks.shapes import KAGGLE, MLPERF, SMALL, Lookup, Model

# Steps of the multiply-add limit.
STEPS = 1_000_000
# Floats that the memory limit reads.
FLOATS = 64 << 20


@dataclass(frozen=True)
class Point:
    """A kernel: the flops and the bytes of memory of one call."""

    name: str
    flops: float
    bytes: float
    run: Callable[[int], Any]
    prepare: Callable[[int], Any] | None = None


def tables(shape: Lookup, name: str) -> list[Point]:
    """Lookup and fused backward of one shape."""
    batches = shape.batches(4)
    lookup = ours.NeocpuLookup(shape, batches)
    grad = np.random.default_rng(1).standard_normal(
        (shape.samples, shape.tables * shape.dim), np.float32
    )
    numbers = batches[0].size * shape.dim
    unique = len(
        np.unique(
            batches[0]
            + np.repeat(np.arange(shape.tables), batches[0].size // shape.tables) * shape.rows
        )
    )
    pooled = 4 * grad.size
    rows = 4 * unique * shape.dim
    return [
        Point(
            f"lookup, {name}", numbers, 4 * numbers + pooled + 8 * batches[0].size, lookup.forward
        ),
        # Merging adds once per element of a lookup. An update squares, sums, scales and subtracts,
        # and reads and writes its rows.
        Point(
            f"backward, {name}",
            numbers + 4 * unique * shape.dim,
            2 * rows + pooled + 16 * batches[0].size,
            lambda i: lookup.backward(i, grad),
            lookup.forward,
        ),
    ]


def products(model: Model) -> list[Point]:
    """The three products of a model's MLPs."""
    points = []
    for product in gemm.PRODUCTS:
        layers = [
            layer for layer in gemm.layers(model) if product != "input gradient" or not layer.first
        ]

        def run(_: int, layers: list[gemm.Layer] = layers, product: str = product) -> None:
            for layer in layers:
                layer.canonical(product)

        moved = 4 * sum(layer.x.size + layer.g.size + layer.w.size for layer in layers)
        points.append(
            Point(f"{product}, {model.name}", sum(layer.flops for layer in layers), moved, run)
        )
    return points


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All kernels and both limits, in turn."""
    shape = Lookup(2, 64, 4, 32, 200) if options.quick else Lookup()
    models = (SMALL,) if options.quick else (KAGGLE, MLPERF)
    points = tables(shape, f"D {shape.dim}")
    if not options.quick:
        points += tables(replace(shape, dim=16), "D 16")
    points += [point for model in models for point in products(model)]
    contenders = [Contender(p.name, "note", p.run, CORES, ours.threads, p.prepare) for p in points]
    if library(shape.dim) is not None:
        limit = Limit([np.zeros((1, shape.dim), np.float32)], 1, 1)
        memory = np.ones(FLOATS >> 8 * options.quick, np.float32)
        contenders.append(
            Contender(
                "memory, read", "limit", lambda _: limit.read_all(memory), CORES, limit.threads
            )
        )
        contenders.append(
            Contender(
                "multiply-add", "limit", lambda _: limit.multiply_add(STEPS), CORES, limit.threads
            )
        )
        points.append(Point("memory, read", 0, 4 * memory.size, contenders[-2].run))
        points.append(Point("multiply-add", STEPS * MULTIPLY_ADD * CORES, 0, contenders[-1].run))
    measure(contenders, options.rounds)
    record = summarise("roofline", shape.describe() | {"threads": CORES}, contenders)
    record["points"] = [
        {"name": p.name, "gflops": p.flops / c.median / 1e9, "gbytes": p.bytes / c.median / 1e9}
        for p, c in zip(points, contenders, strict=True)
    ]
    lines = [
        f"{p['name']} {p['gflops']:.1f} GFLOP/s, {p['gbytes']:.1f} GB/s" for p in record["points"]
    ]
    return [record | {"notes": ["; ".join(lines) + "."]}]


def picture(records: list[dict[str, Any]]) -> str:
    """The record as an SVG picture with logarithmic axes; empty without the limits."""
    limits = {p["name"]: p for p in records[0]["points"]}
    if "multiply-add" not in limits:
        return ""
    peak = limits.pop("multiply-add")["gflops"]
    bandwidth = limits.pop("memory, read")["gbytes"]
    dots = [(p["gflops"] / p["gbytes"], p["gflops"], p["name"]) for p in limits.values()]
    x0 = -1.5
    x1 = max(log10(d[0]) for d in dots) + 0.6
    y0 = min(log10(bandwidth * 10**x0), *(log10(d[1]) - 0.3 for d in dots))
    y1 = log10(peak) + 0.3
    width = 860
    height = 460
    left = 70
    bottom = 50

    def place(flops_per_byte: float, gflops: float) -> tuple[float, float]:
        x = left + (log10(flops_per_byte) - x0) / (x1 - x0) * (width - left - 20)
        return x, height - bottom - (log10(gflops) - y0) / (y1 - y0) * (height - bottom - 30)

    def text(x: float, y: float, words: str, more: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{words}</text>'

    ridge = peak / bandwidth
    roof = " ".join(
        f"{x:.1f},{y:.1f}"
        for x, y in (place(10**x0, bandwidth * 10**x0), place(ridge, peak), place(10**x1, peak))
    )
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<polyline points="{roof}" fill="none" stroke="#444" stroke-width="2"/>',
        text(
            *place(10 ** (x0 + 0.2), bandwidth * 10 ** (x0 + 0.1)),
            f"memory, read in order: {bandwidth:.0f} GB/s",
        ),
        text(
            place(ridge, peak)[0] + 10,
            place(ridge, peak)[1] - 8,
            f"multiply-add: {peak:.0f} GFLOP/s",
        ),
        text(width / 2, height - 12, "flops per byte of memory", 'text-anchor="middle"'),
        text(
            18,
            height / 2,
            "GFLOP/s",
            f'text-anchor="middle" transform="rotate(-90 18 {height / 2})"',
        ),
    ]
    for power in range(int(x0), int(x1) + 1):
        x, _ = place(10.0**power, 1)
        parts.append(
            f'<line x1="{x:.1f}" y1="30" x2="{x:.1f}" y2="{height - bottom}" stroke="#ddd"/>'
        )
        parts.append(text(x, height - bottom + 16, f"{10.0**power:g}", 'text-anchor="middle"'))
    for power in range(int(y0) if y0 >= 0 else int(y0) - 1, int(y1) + 1):
        if y0 <= power <= y1:
            _, y = place(1, 10.0**power)
            parts.append(
                f'<line x1="{left}" y1="{y:.1f}" x2="{width - 20}" y2="{y:.1f}" stroke="#ddd"/>'
            )
            parts.append(text(left - 6, y + 4, f"{10.0**power:g}", 'text-anchor="end"'))
    label_rows: list[float] = []
    for intensity, gflops, name in sorted(dots, key=lambda d: -d[1]):
        x, y = place(intensity, gflops)
        label = y + 4
        while any(abs(label - label_row) < 13 for label_row in label_rows):
            label += 13
        label_rows.append(label)
        left_of_dot = x > width / 2
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#b00"/>')
        parts.append(
            text(
                x - 8 if left_of_dot else x + 8,
                label,
                name,
                f'text-anchor="{"end" if left_of_dot else "start"}"',
            )
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main(__doc__, benchmark)
