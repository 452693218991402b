"""Where do our kernels stand under the machine's roofline? GFLOP/s against flops per byte.

The roof: memory read in order by all cores, and fused multiply-adds of fp32 vectors from registers,
both in C. A kernel's bytes are those that it must move between memory and cores (rows, gradients,
activations, each once), its flops those of the formula, exactness not counted. `benchmarks.all
--write` draws a picture of docs/ from this.
"""

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import charts, gemm, ours
from benchmarks.harness import CORES, Contender, main, measure, summarise
from benchmarks.limits import MULTIPLY_ADD, Limit, library
from benchmarks.shapes import KAGGLE, MLPERF, SMALL, Lookup, Model
from neocpu.core import svg

# Steps of the multiply-add limit.
STEPS = 1_000_000
# Floats that the memory limit reads.
FLOATS = 64 << 20
# Least flops per byte of the picture.
LEAST = 0.03


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


def recorded(page: str) -> list[dict[str, Any]]:
    """The record of the picture, from the figures in a page of docs/."""
    text = (charts.DOCS / page).read_text()
    text = text.partition("### roofline")[2].partition("\n## ")[0].replace("\n", " ")
    figures = re.findall(r"(?:; |\|  )([a-zA-Z0-9 ,-]+?) ([0-9.]+) GFLOP/s, ([0-9.]+) GB/s", text)
    points = [
        {"name": name, "gflops": float(gflops), "gbytes": float(gbytes)}
        for name, gflops, gbytes in figures
    ]
    return [{"points": points}]


def picture(records: list[dict[str, Any]]) -> str:
    """The record as an SVG picture with logarithmic axes; empty without the limits."""
    limits = {p["name"]: p for p in records[0]["points"]}
    if "multiply-add" not in limits:
        return ""
    peak = limits.pop("multiply-add")["gflops"]
    bandwidth = limits.pop("memory, read")["gbytes"]
    dots = {name: (p["gflops"] / p["gbytes"], p["gflops"]) for name, p in limits.items()}
    ridge = peak / bandwidth
    most = 10 * max(intensity for intensity, _ in dots.values())
    least = 0.6 * min(bandwidth * LEAST, *(gflops for _, gflops in dots.values()))
    x = charts.Scale(LEAST, most, charts.powers(LEAST, most), logarithmic=True)
    y = charts.Scale(least, 2 * peak, charts.powers(least, 2 * peak), logarithmic=True)
    axes = charts.Axes(76, 84, 800, 380, x, y)
    title = "Our kernels under the machine's roof"
    body = svg.headings(title, "GFLOP/s over flops per byte of memory, both axes logarithmic")
    body += axes.frame(x="flops per byte of memory", y="GFLOP/s")
    body.append(axes.curve([(LEAST, bandwidth * LEAST), (ridge, peak), (most, peak)], svg.QUIET))
    at, height = axes.point(ridge, peak)
    body.append(svg.text(at + 6, height - 8, f"multiply-add: {peak:.0f} GFLOP/s"))
    at, height = axes.point(ridge / 20, peak / 20)
    words = f"memory, read in order: {bandwidth:.0f} GB/s"
    body.append(svg.text(at - 10, height - 10, words, anchor="end"))
    places = {name: axes.point(*each) for name, each in dots.items()}
    for name, place in places.items():
        body.append(svg.dot(*place, svg.RED, f"{name}: {dots[name][1]:.1f} GFLOP/s"))
    along = np.geomspace(LEAST, most, 300).tolist()
    roof = [axes.point(intensity, min(peak, bandwidth * intensity)) for intensity in along]
    body += charts.named(places, roof)
    figures = "; ".join(f"{name}: {gflops:.1f} GFLOP/s" for name, (_, gflops) in dots.items())
    return svg.document(900, 520, title, figures, body)


if __name__ == "__main__":
    main(__doc__, benchmark)
