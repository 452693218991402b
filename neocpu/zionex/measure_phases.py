"""What do the parts of our own step cost beside bytes? Calls, entries, bags, lookups, rows.

A phase of a step is timed for a few designed workloads: few and many tables, short and long bags,
narrow and wide rows, all tables sharded alike so that all ranks do the same. Then

    seconds = call_s + entry_s entries + bag_s bags + ... + curve (seconds by the measured rates)

is fitted to the times of the phase: least squares of relative errors, no cost below 0. These
workloads serve nothing else; models and plans that are predicted later play no part.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.jagged import KJT
from neocpu.parallel.comm import Comm
from neocpu.trees import rank_samples
from neocpu.zionex.machine import COUNTED, Machine, PhaseCosts
from neocpu.zionex.measure_dense import DENSE_DESIGNS, DenseBench
from neocpu.zionex.timing import Stopwatch

Floats = NDArray[np.float64]
LEAVES = 16
# of weighing errors anew
ROUNDS = 10
# errors below are as good as none
LEAST_ERROR = 0.03
# what may enter the costs of a phase
TERMS = {
    "input": ("call_s", "entry_s", "bag_s", "lookup_s"),
    "lookup": ("call_s", "entry_s", "bag_s", "lookup_s", "number_s", "curve"),
    "lookup_words": ("call_s", "entry_s", "bag_s", "lookup_s", "number_s", "curve"),
    "output": ("call_s", "entry_s", "bag_s", "number_s"),
    "output_words": ("call_s", "entry_s", "bag_s", "number_s"),
    "gradient": ("call_s", "entry_s", "bag_s", "number_s"),
    "gradient_words": ("call_s", "entry_s", "bag_s", "number_s"),
    "update": ("call_s", "entry_s", "lookup_s", "row_s", "row_number_s", "curve"),
    "update_columns": ("call_s", "entry_s", "lookup_s", "row_s", "row_number_s", "curve"),
    "dense_forward": ("call_s", "entry_s", "bag_s", "number_s", "row_s", "row_number_s", "curve"),
    "dense_backward": ("call_s", "entry_s", "bag_s", "number_s", "row_s", "row_number_s", "curve"),
    "replicas": ("call_s", "entry_s", "lookup_s", "row_s", "row_number_s", "curve"),
}


@dataclass(frozen=True)
class Design:
    """A workload: tables of one shape under one scheme, bags of one length."""

    scheme: str
    tables: int
    rows: int
    dim: int
    length: int
    batch: int


SHAPES = (
    # tables, rows, dim, length, batch
    (4, 2_000, 16, 1, 256),
    (64, 2_000, 16, 1, 256),
    (8, 20_000, 16, 1, 4096),
    (32, 20_000, 32, 1, 1024),
    (8, 20_000, 128, 2, 1024),
    (8, 20_000, 32, 16, 1024),
    (4, 20_000, 256, 4, 1024),
    (8, 1_000, 64, 16, 1024),
    (4, 100_000, 64, 16, 1024),
)
SCHEMES = ("table_wise", "row_wise", "column_wise", "data_parallel")


def designs(ranks: int) -> list[Design]:
    """All workloads of a job; a rank alone has whole tables only."""
    schemes = SCHEMES if ranks > 1 else SCHEMES[:1]
    return [Design(scheme, *shape) for scheme in schemes for shape in SHAPES]


@dataclass(frozen=True)
class Timed:
    """One phase of one workload: amounts on a rank, in the order of COUNTED, and seconds."""

    phase: str
    amounts: tuple[float, ...]
    seconds: float


class Workbench:
    """The exchanges and tables of one workload on this rank."""

    def __init__(self, design: Design, comm: Comm, machine: Machine) -> None:
        from neocpu.embedding.optimizers import SparseOptimizer
        from neocpu.embedding.specs import TableSpec
        from neocpu.parallel.plan import place
        from neocpu.parallel.sharded import ShardedEmbedding

        self._design = design
        self._comm = comm
        self._machine = machine
        specs = tuple(
            TableSpec(f"t{t}", design.rows, design.dim, (f"f{t}",)) for t in range(design.tables)
        )
        plan = place(specs, [design.scheme] * design.tables, comm.size)
        optimizer = SparseOptimizer(name="exact_rowwise_adagrad", learning_rate=0.01)
        self._tables = ShardedEmbedding(plan, comm, optimizer, 1, LEAVES)
        lo, hi = rank_samples(comm.rank, comm.size, design.batch, LEAVES)
        rng = np.random.default_rng(comm.rank)
        lengths = np.full((design.tables, hi - lo), design.length, np.int32)
        rows = rng.integers(0, design.rows, int(lengths.sum()))
        self._kjt = KJT(self._tables.keys, lengths, rows)
        self._gradient = rng.standard_normal((hi - lo, self._tables.columns), np.float32)
        self._out = np.zeros_like(self._gradient)
        self._step = 0

    def close(self) -> None:
        """Free the tables."""
        self._tables.tbe.close()

    def phases(self) -> dict[str, Callable[[], object]]:
        """The phases of a step as calls that can be repeated."""
        tables = self._tables
        exchange = tables.exchange
        batch = self._design.batch
        batch_input = tables.start(self._kjt, batch).wait()
        if exchange.alone:
            lookups = batch_input.classes[0]
            assert lookups is not None
            tables.tbe.forward(tables._home, lookups, self._out)
            return {
                "input": lambda: tables.start(self._kjt, batch).wait(),
                "lookup": lambda: tables.tbe.forward(tables._home, lookups, self._out),
                "update": lambda: tables.tbe.backward(
                    tables._home, lookups, self._gradient, self._next()
                ),
            }
        if batch_input.copies is not None:
            copies = batch_input.copies
            tables.tbe.forward(tables._copies, copies, self._out)
            return {
                "lookup": lambda: tables.tbe.forward(tables._copies, copies, self._out),
                "replicas": lambda: self._reduce(batch_input),
            }
        shape = batch_input.shape
        whole, words, _ = tables._lookup(batch_input)
        split = self._design.scheme == "row_wise"
        narrow = self._design.scheme == "column_wise"
        suffix = "_words" if split else ""
        gradients = exchange.start_gradients(shape, self._gradient).wait()
        return {
            "input": self._exchange_input,
            f"lookup{suffix}": lambda: tables._lookup(batch_input),
            f"output{suffix}": lambda: exchange.start_output(shape, whole, words, []).finish(
                self._out
            ),
            f"gradient{suffix}": lambda: exchange.start_gradients(shape, self._gradient).wait(),
            "update_columns" if narrow else "update": lambda: self._update(batch_input, gradients),
        }

    def _next(self) -> int:
        self._step += 1
        return self._step

    def _exchange_input(self) -> None:
        self._tables.exchange.release(self._tables.start(self._kjt, self._design.batch).wait())

    def _update(self, batch_input: Any, gradients: tuple[Any, Any]) -> None:
        from neocpu.parallel.started import Started

        tables = self._tables
        step = self._next()
        for i, block in ((0, gradients[0]), (3, gradients[1])):
            lookups = batch_input.classes[i]
            if lookups is not None:
                tables.tbe.backward(tables._classes[i], lookups, block, step)
        if tables._any_scalars:
            Started(tables._share(batch_input, *gradients, step)).wait()

    def _reduce(self, batch_input: Any) -> None:
        from neocpu.parallel.started import Started

        tables = self._tables
        assert tables._replicas is not None
        words = tables._row_words(batch_input, self._gradient)
        merged = Started(tables._replicas.reduce(words)).wait()
        step = self._next()
        for i, (rows, rounded) in zip(tables._copied, merged):
            tables.tbe.apply_rows(i, rows, rounded, step)

    def amounts(self, phase: str) -> tuple[float, ...]:
        """What a phase counts on each rank, in the order of COUNTED."""
        d = self._design
        ranks = self._comm.size
        copies = d.scheme == "data_parallel"
        cut_rows = ranks if d.scheme == "row_wise" else 1
        cut_columns = ranks if d.scheme == "column_wise" else 1
        entries = d.tables / ranks * cut_rows * cut_columns
        bags = entries * d.batch
        if copies:
            entries = float(d.tables)
            bags = entries * d.batch / ranks
        lookups = bags * d.length / cut_rows
        width = d.dim / cut_columns
        height = d.rows // cut_rows
        each = lookups / entries
        rows = entries * unique_rows(each, height)
        if phase == "replicas":
            rows += entries * unique_rows(each * ranks, height)
        work = "lookup" if phase.startswith("lookup") else "update"
        rate = self._machine.embedding_bytes_per_s(work, height, 4 * width)
        curve = lookups * 4 * width / rate
        return (1.0, entries, bags, lookups, bags * width, rows, rows * width, curve)


def unique_rows(lookups: float, rows: float) -> float:
    """Expected unique rows of uniform lookups in a table."""
    return float(-rows * np.expm1(lookups * np.log1p(-1.0 / max(rows, 2.0))))


def measure_phases(watch: Stopwatch, comm: Comm, machine: Machine) -> list[Any]:
    """Costs of all phases on this job's ranks. Collective.

    machine : with the rates of embeddings and products that the job measured.
    """
    timed: list[Timed] = []
    for dense in DENSE_DESIGNS:
        model = DenseBench(dense, comm, machine)
        for phase, work in model.phases().items():
            timed.append(Timed(phase, model.amounts(phase), watch.least(work)))
    for design in designs(comm.size):
        bench = Workbench(design, comm, machine)
        for phase, call in bench.phases().items():
            timed.append(Timed(phase, bench.amounts(phase), watch.least(call)))
        bench.close()
    names = dict.fromkeys(each.phase for each in timed)
    return [
        PhaseCosts(name, comm.size, **fit(name, [t for t in timed if t.phase == name]))
        for name in names
    ]


def fit(phase: str, timed: list[Timed]) -> dict[str, float]:
    """Costs of a phase: least relative errors, the costs below 0 left out one by one.

    Noise only makes times longer, so errors count less the larger they are.
    """
    seconds = np.array([each.seconds for each in timed])
    amounts = np.array([each.amounts for each in timed]) / seconds[:, None]
    terms = [COUNTED.index(term) for term in TERMS[phase]]
    while terms:
        costs = _least_errors(amounts[:, terms])
        if costs.min() >= 0:
            return {COUNTED[term]: float(cost) for term, cost in zip(terms, costs)}
        worst = int(np.argmin(costs * amounts[:, terms].max(axis=0)))
        terms.pop(worst)
    return {}


def _least_errors(columns: Floats) -> Floats:
    """x with columns @ x near 1, by least squares that are weighted again and again."""
    scale = columns.max(axis=0)
    scale[scale == 0] = 1.0
    weights = np.ones(len(columns))
    x = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        target = weights
        x = np.linalg.lstsq(columns / scale * weights[:, None], target, rcond=None)[0]
        errors = np.abs(columns / scale @ x - 1.0)
        weights = 1.0 / np.sqrt(np.maximum(errors, LEAST_ERROR))
    result: Floats = x / scale
    return result


def as_values(costs: list[PhaseCosts]) -> list[dict[str, Any]]:
    """Costs as JSON values, four digits each."""
    return [
        {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in asdict(cost).items()
        }
        for cost in costs
    ]
