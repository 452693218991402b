"""What does the dense part of a step cost beside its products? Layers, numbers, interaction.

The kernels of a DLRM run forward and backward for a few designed models, each rank with its share
of the samples. `phases.fit` turns their times into costs:

    entry_s       for each layer
    number_s      for each number that a layer reads or writes
    row_s         for each number of the interaction's input, or each parameter
    row_number_s  for each multiplication of the interaction
    curve         times the seconds by the rates of products
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.trees import aligned_nodes, leaf_cuts, rank_leaves, rank_samples
from neocpu.core.types import Floats
from neocpu.parallel.transport.comm import Comm
from neocpu.plan.machines.machine import PRODUCTS, Machine

if TYPE_CHECKING:
    from neocpu.plan.machines.measure.phase_clock import PhaseClock

LEAVES = 16


@dataclass(frozen=True)
class DenseDesign:
    """A DLRM's dense part: widths of the bottom MLP, vectors of the interaction, the top MLP.

    vectors : pooled vectors as wide as the bottom's output, or 0 for none; then `pooled` columns
    are concatenated.
    """

    batch: int
    bottom: tuple[int, ...]
    vectors: int
    pooled: int
    top: tuple[int, ...]

    @property
    def columns(self) -> int:
        """Columns of E."""
        return self.bottom[-1] * (1 + self.vectors) + self.pooled

    @property
    def top_inputs(self) -> int:
        """Inputs of the top MLP."""
        count = self.vectors + 1
        return self.bottom[-1] + count * (count - 1) // 2 if self.vectors else self.columns

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of all layers."""
        return [*pairwise(self.bottom), *pairwise((self.top_inputs, *self.top))]

    @property
    def parameters(self) -> int:
        """Weights and biases of all layers."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)


DENSE_DESIGNS = (
    DenseDesign(256, (13, 32, 16), 7, 0, (32, 1)),
    DenseDesign(4096, (13, 32, 16), 7, 0, (32, 1)),
    DenseDesign(2048, (13, 128, 32), 20, 0, (128, 64, 1)),
    DenseDesign(1024, (64, 256, 128), 10, 0, (512, 256, 1)),
    DenseDesign(1024, (13, 48), 0, 2000, (96, 1)),
    DenseDesign(512, (13, 32), 0, 4000, (64, 1)),
    DenseDesign(2048, (13, 384, 192, 64), 5, 0, (768, 512, 1)),
    DenseDesign(1024, (13, 64, 16), 40, 0, (64, 1)),
)


class DenseBench:
    """One design on this rank."""

    def __init__(self, design: DenseDesign, comm: Comm, machine: Machine) -> None:
        from neocpu.parallel.exchange.dense_reduction import DenseReduction
        from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
        from neocpu.tables.specs.optimizers import SparseOptimizer

        self._design = design
        self._machine = machine
        lo, hi = rank_samples(comm.rank, comm.size, design.batch, LEAVES)
        rng = np.random.default_rng(comm.rank)
        self._samples = hi - lo
        first, last = rank_leaves(comm.rank, comm.size, LEAVES)
        all_cuts = np.array(leaf_cuts(design.batch, LEAVES), np.int64)
        self._cuts = [
            all_cuts[node : node + size + 1] - lo for node, size in aligned_nodes(first, last)
        ]
        self._weights = [
            rng.standard_normal((outputs, inputs), np.float32) / np.float32(inputs**0.5)
            for inputs, outputs in design.layers
        ]
        self._biases = [np.zeros(outputs, np.float32) for _, outputs in design.layers]
        self._bottom = len(design.bottom) - 1
        self._dense = rng.standard_normal((self._samples, design.bottom[0]), np.float32)
        self._E = rng.standard_normal((self._samples, design.columns), np.float32)
        self._dE = np.empty_like(self._E)
        self._z = np.empty((self._samples, design.top_inputs), np.float32)
        self._inputs: list[Floats] = []
        self._outputs = [np.empty((self._samples, out), np.float32) for _, out in design.layers]
        self._gradients = [
            np.ones((self._samples, inputs), np.float32) for inputs, _ in design.layers
        ]
        self._last = np.ones((self._samples, 1), np.float32)
        self._reduction = DenseReduction(comm, design.parameters, LEAVES)
        self._nodes = {
            node: np.zeros(design.parameters, np.float32)
            for node in self._reduction.nodes[comm.rank]
        }
        sgd = SparseOptimizer(name="exact_sgd", learning_rate=0.01)
        self._optimizer = DenseOptimizer(sgd, np.zeros(design.parameters, np.float32))

    def run(self, clock: "PhaseClock", step: int) -> None:
        """Step number `step`; `clock(phase, work)` does and times each phase. Collective."""
        clock("dense_forward", self._forward)
        clock("dense_backward", self._backward)
        total = clock("dense_exchange", lambda: self._reduction.start(self._nodes).wait())
        clock("dense_update", lambda: self._optimizer.step(total, step + 1))

    def _forward(self) -> None:
        from neocpu.kernels.dense import gemm, interaction

        design = self._design
        self._inputs = []
        x = self._dense
        for i, output in enumerate(self._outputs):
            if i == self._bottom:
                self._E[:, : design.bottom[-1]] = x
                x = self._E
                if design.vectors:
                    x = self._z
                    interaction.dot_forward(self._E, design.bottom[-1], False, x)
            self._inputs.append(x)
            gemm.layer(x, self._weights[i], self._biases[i], i + 1 < len(self._weights), output)
            x = output

    def _backward(self) -> None:
        from neocpu.kernels.dense import gemm, interaction

        design = self._design
        gradient = self._last
        outer = []
        for i in range(len(self._weights) - 1, -1, -1):
            outer.append((i, gradient))
            if i:
                gate = self._inputs[i] if i != self._bottom else np.empty((0, 0), np.float32)
                gemm.input_gradient(gradient, self._weights[i], gate, self._gradients[i])
                gradient = self._gradients[i]
            if i == self._bottom:
                dE = gradient
                if design.vectors:
                    dE = self._dE
                    interaction.dot_backward(self._E, gradient, design.bottom[-1], False, dE)
                gradient = np.ascontiguousarray(dE[:, : design.bottom[-1]])
                # the bottom's ReLU: the interaction stands between, so the product has no gate
                gradient[self._outputs[i - 1] <= 0] = 0
        for cuts in self._cuts:
            for i, gradient in outer:
                weight = self._weights[i]
                gemm.weight_gradient(
                    gradient, self._inputs[i], cuts, np.empty_like(weight), self._biases[i] * 0
                )

    def amounts(self, phase: str) -> tuple[float, ...]:
        """What a phase counts, in the order of `machine.COUNTED`."""
        design = self._design
        if phase in ("dense_exchange", "dense_update"):
            return parameter_amounts(design.parameters)
        curve = product_curves(self._machine, design.layers, self._samples)[phase]
        vectors, width = (design.vectors + 1, design.bottom[-1]) if design.vectors else (0, 0)
        return dense_amounts(design.layers, self._samples, vectors, width, curve)


def product_curves(
    machine: Machine, layers: Sequence[tuple[int, int]], samples: int
) -> dict[str, float]:
    """Seconds of all products by the machine's rates, without their starts, by phase."""
    seconds = {"dense_forward": 0.0, "dense_backward": 0.0}
    for inputs, outputs in layers:
        operations = 2.0 * samples * inputs * outputs
        for product in PRODUCTS:
            phase = "dense_forward" if product == "forward" else "dense_backward"
            sides = (outputs, inputs, samples)
            rate = machine.product_flops_per_s(*sides, product=product)
            seconds[phase] += operations / rate
    return seconds


def parameter_amounts(parameters: int) -> tuple[float, ...]:
    """Amounts of the dense exchange and update: a call, and a row for each parameter."""
    return (1.0, 0.0, 0.0, 0.0, 0.0, float(parameters), 0.0, 0.0)


def dense_amounts(
    layers: Sequence[tuple[int, int]], samples: float, vectors: int, width: int, curve: float
) -> tuple[float, ...]:
    """Amounts of the dense part on a rank, in the order of `machine.COUNTED`.

    vectors : of the dot interaction, with the bottom's output; 0 without it. width : of each.
    curve : seconds of the products by the machine's rates.
    """
    numbers = samples * sum(inputs + outputs for inputs, outputs in layers)
    return (
        1.0,
        float(len(layers)),
        samples,
        0.0,
        numbers,
        samples * vectors * width,
        samples * vectors * vectors * width / 2.0,
        curve,
    )
