"""How close do canonical matrix products come to OpenBLAS? In all layers of two models' MLPs.

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
from neocpu.core.trees import leaf_cuts

# The products of a layer.
PRODUCTS = ("forward", "input gradient", "weight gradient")
# Leaves of the gradient tree, as in training.
LEAVES = 16


@cache
def _openblas() -> Callable[[int], Any] | None:
    """The function that sets the threads of NumPy's own OpenBLAS; None if NumPy has another."""
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
        # The first layer reads the data: its input gradient is never computed.
        self.first = inputs == 13

    def canonical(self, product: str) -> np.ndarray:
        """The product as training computes it."""
        from neocpu.kernels.dense import gemm

        if product == "forward":
            gemm.layer(self.x, self.w, self.bias, True, self.y)
            return self.y
        if product == "input gradient":
            gemm.input_gradient(self.g, self.w, self.x, self.dx)
            return self.dx
        gemm.weight_gradient(self.g, self.x, self.cuts, self.dw, self.dbias)
        return self.dw

    def openblas(self, product: str) -> np.ndarray:
        """The bare product by OpenBLAS."""
        if product == "forward":
            return np.matmul(self.x, self.w.T, out=self.y)
        if product == "input gradient":
            return np.matmul(self.g, self.w, out=self.dx)
        return np.matmul(self.g.T, self.x, out=self.dw)

    def check(self, product: str) -> None:
        """Stop unless both ways agree to fp32 rounding."""
        canonical = self.canonical(product).copy()
        openblas = self.openblas(product).copy()
        if product == "forward":
            openblas = np.maximum(openblas + self.bias, 0)
        if product == "input gradient":
            openblas[self.x <= 0] = 0
        np.testing.assert_allclose(
            canonical, openblas, rtol=1e-3, atol=1e-3 * float(np.abs(openblas).max())
        )


def layers(model: Model) -> list[Layer]:
    """Every layer of the bottom and the top MLP."""
    widths = [(13, *model.bottom), (model.interactions, *model.top)]
    return [Layer(model.samples, a, b) for sizes in widths for a, b in pairwise(sizes)]


def case(name: str, product: str, layers: list[Layer], rounds: int, aim: bool) -> dict[str, Any]:
    """One product over some layers."""
    for layer in layers:
        layer.check(product)

    def run_canonical(_: int) -> None:
        for layer in layers:
            layer.canonical(product)

    def run_openblas(_: int) -> None:
        for layer in layers:
            layer.openblas(product)

    contenders = [
        Contender("neocpu, canonical", "ours", run_canonical, n, ours.threads) for n in THREADS
    ]
    contenders += [
        Contender("OpenBLAS, bare product", "rival", run_openblas, n, blas_threads) for n in THREADS
    ]
    measure(contenders, rounds)
    shape = {
        "B": len(layers[0].x),
        "in x out": ", ".join(f"{layer.x.shape[1]}x{layer.g.shape[1]}" for layer in layers),
    }
    record = summarise(
        f"gemm, {name}, {product}",
        shape,
        contenders,
        {"OpenBLAS, bare product": 0.85} if aim else None,
    )
    flops = sum(layer.flops for layer in layers)
    rates = [
        f"{c.name} {flops / c.median / 1e9:.0f} GFLOP/s"
        for c in contenders
        if c.threads == THREADS[-1]
    ]
    return record | {"notes": [f"At {THREADS[-1]} threads: " + ", ".join(rates) + "."]}


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Three products of each model."""
    ours.wait_as_in_training()
    records = []
    for model in (SMALL,) if options.quick else (KAGGLE, MLPERF):
        model_layers = layers(model)
        for product in PRODUCTS:
            product_layers = [
                layer for layer in model_layers if product != "input gradient" or not layer.first
            ]
            if options.layers:
                records += [
                    case(f"{model.name}, one layer", product, [layer], options.rounds, False)
                    for layer in product_layers
                ]
            else:
                records.append(
                    case(model.name, product, product_layers, options.rounds, not options.quick)
                )
    return records


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        lambda parser: parser.add_argument(
            "--layers", action="store_true", help="time every layer alone"
        ),
    )
