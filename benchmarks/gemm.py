"""How close do canonical matrix products come to OpenBLAS? The three products of every layer of the
two models' MLPs.

forward: x wT + bias, ReLU; input gradient: g w, gated; weight gradient: gT x over 16 leaves, and
the bias gradient. OpenBLAS (NumPy's) computes the bare product, without bias, ReLU, gate or leaves,
and in an order of its own. One time is one pass through all layers of a model; `--layers` times
every layer alone.
"""

import argparse
import ctypes
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.harness import THREADS, Contender, main, measure, summarise
from benchmarks.shapes import KAGGLE, MLPERF, SMALL, Model
from neocpu.trees import leaf_cuts

PRODUCTS = ("forward", "input gradient", "weight gradient")
LEAVES = 16


@cache
def _openblas() -> Callable[[int], Any] | None:
    """Function that sets the number of threads of NumPy's own OpenBLAS, if that is what NumPy
    brought.
    """
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for path in sorted(folder.glob("*openblas*")):
        library = ctypes.CDLL(str(path))
        for name in (
            "scipy_openblas_set_num_threads64_",
            "openblas_set_num_threads64_",
            "openblas_set_num_threads",
        ):
            if hasattr(library, name):
                return getattr(library, name)
    return None


def blas_threads(count: int) -> None:
    """Let NumPy's matrix product use `count` threads."""
    setter = _openblas()
    if setter is not None:
        setter(count)


class Layer:
    """Operands of one layer's three products, and both ways to compute them."""

    def __init__(self, samples: int, inputs: int, outputs: int) -> None:
        rng = np.random.default_rng(inputs * outputs)
        x = rng.standard_normal((samples, inputs), np.float32)
        g = rng.standard_normal((samples, outputs), np.float32)
        self.x = np.maximum(x, np.float32(0))
        self.g = g
        self.w = rng.standard_normal((outputs, inputs), np.float32)
        self.bias = rng.standard_normal(outputs, np.float32)
        self.y = np.empty_like(g)
        self.dx = np.empty_like(x)
        self.dw = np.empty_like(self.w)
        self.dbias = np.empty_like(self.bias)
        self.cuts = np.array(leaf_cuts(samples, LEAVES), np.int64)
        self.flops = 2 * samples * inputs * outputs
        self.first = inputs == 13  # reads the data: its input gradient is never computed

    def mine(self, product: str) -> np.ndarray:
        """The product as training computes it."""
        from neocpu.kernels import gemm

        if product == "forward":
            gemm.layer(self.x, self.w, self.bias, True, self.y)
            return self.y
        if product == "input gradient":
            gemm.input_gradient(self.g, self.w, self.x, self.dx)
            return self.dx
        gemm.weight_gradient(self.g, self.x, self.cuts, self.dw, self.dbias)
        return self.dw

    def theirs(self, product: str) -> np.ndarray:
        """The bare product by OpenBLAS."""
        if product == "forward":
            return np.matmul(self.x, self.w.T, out=self.y)
        if product == "input gradient":
            return np.matmul(self.g, self.w, out=self.dx)
        return np.matmul(self.g.T, self.x, out=self.dw)

    def check(self, product: str) -> None:
        """Stop unless both ways agree to fp32 rounding."""
        mine = self.mine(product).copy()
        theirs = self.theirs(product).copy()
        if product == "forward":
            theirs = np.maximum(theirs + self.bias, 0)
        if product == "input gradient":
            theirs[self.x <= 0] = 0
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3 * float(np.abs(theirs).max()))


def layers(model: Model) -> list[Layer]:
    """Every layer of the bottom and the top MLP."""
    widths = [(13, *model.bottom), (model.interactions, *model.top)]
    return [Layer(model.samples, a, b) for sizes in widths for a, b in pairwise(sizes)]


def case(name: str, product: str, found: list[Layer], rounds: int, aim: bool) -> dict[str, Any]:
    """One product over some layers."""
    for layer in found:
        layer.check(product)

    def mine(_: int) -> None:
        for layer in found:
            layer.mine(product)

    def theirs(_: int) -> None:
        for layer in found:
            layer.theirs(product)

    who = [Contender("neocpu, canonical", "ours", mine, n, ours.threads) for n in THREADS]
    who += [Contender("OpenBLAS, bare product", "rival", theirs, n, blas_threads) for n in THREADS]
    measure(who, rounds)
    shape = {
        "B": len(found[0].x),
        "in x out": ", ".join(f"{layer.x.shape[1]}x{layer.g.shape[1]}" for layer in found),
    }
    record = summarise(
        f"gemm, {name}, {product}", shape, who, {"OpenBLAS, bare product": 0.85} if aim else None
    )
    flops = sum(layer.flops for layer in found)
    rates = [
        f"{c.name} {flops / c.median / 1e9:.0f} GFLOP/s" for c in who if c.threads == THREADS[-1]
    ]
    return record | {"notes": [f"At {THREADS[-1]} threads: " + ", ".join(rates) + "."]}


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Three products of each model."""
    ours.wait_as_in_training()
    records = []
    for model in (SMALL,) if options.quick else (KAGGLE, MLPERF):
        found = layers(model)
        for product in PRODUCTS:
            chosen = [layer for layer in found if product != "input gradient" or not layer.first]
            if options.layers:
                records += [
                    case(f"{model.name}, one layer", product, [layer], options.rounds, False)
                    for layer in chosen
                ]
            else:
                records.append(case(model.name, product, chosen, options.rounds, not options.quick))
    return records


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        lambda parser: parser.add_argument(
            "--layers", action="store_true", help="time every layer alone"
        ),
    )
