"""What do the parts of our own step cost beside bytes? Calls, entries, bags, lookups, rows.

Phases are timed within steps, as a run has them: one after the other, in caches that the others
filled, for a few designed workloads: few and many tables, short and long bags,
narrow and wide rows, all tables sharded alike so that all ranks do the same. Then

    seconds = call_s + entry_s entries + bag_s bags + ... + curve (seconds by the measured rates)

is fitted to the times of the phase: least squares of relative errors, no cost below 0. These
workloads serve nothing else; models and plans that are predicted later play no part.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.core.types import Doubles
from neocpu.parallel.transport.buffers import in_lines
from neocpu.parallel.transport.comm import Comm
from neocpu.plan.machines.machine import COUNTED, Machine, PhaseCosts
from neocpu.plan.machines.measure.dense import DENSE_DESIGNS, DenseBench
from neocpu.plan.machines.measure.phase_clock import PhaseClock

if TYPE_CHECKING:
    from neocpu.parallel.exchange.input_dist import Input

Numbers = NDArray[np.float32]
LEAVES = 16
# that take turns, so that rows are not all in the processor's cache
BATCHES = 3
# over all workloads, so that a slow moment of the machine spoils one at most
PASSES = 2
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
    "dense_exchange": ("call_s", "row_s"),
    "dense_update": ("call_s", "row_s"),
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
    """The exchanges and tables of one workload on this rank, for a few batches."""

    def __init__(self, design: Design, comm: Comm, machine: Machine) -> None:
        from neocpu.parallel.embeddings.sharded import ShardedEmbedding
        from neocpu.parallel.exchange.sharding_env import ShardingEnv
        from neocpu.parallel.sharding.plan import place
        from neocpu.tables.specs.optimizers import SparseOptimizer
        from neocpu.tables.specs.specs import TableSpec

        self._design = design
        self._comm = comm
        self._machine = machine
        specs = tuple(
            TableSpec(f"t{t}", design.rows, design.dim, (f"f{t}",)) for t in range(design.tables)
        )
        plan = place(specs, [design.scheme] * design.tables, comm.size)
        optimizer = SparseOptimizer(name="exact_rowwise_adagrad", learning_rate=0.01)
        # the real exchange and tables: their private steps are timed one by one
        self._tables = ShardedEmbedding(ShardingEnv(plan, comm, optimizer, 1, LEAVES))
        lo, hi = rank_samples(comm.rank, comm.size, design.batch, LEAVES)
        rng = np.random.default_rng(comm.rank)
        lengths = np.full((design.tables, hi - lo), design.length, np.int32)
        self._batches = [
            KJT(self._tables.keys, lengths, rng.integers(0, design.rows, int(lengths.sum())))
            for _ in range(BATCHES)
        ]
        self._gradient = rng.standard_normal((hi - lo, self._tables.columns), np.float32)
        # as a step's E, whose lookups are written past the caches
        self._out = in_lines(self._gradient.size, np.float32).reshape(self._gradient.shape)
        self._step = 0

    def close(self) -> None:
        """Free the tables."""
        self._tables.tbe.close()

    def measure(self) -> dict[str, float]:
        """Seconds of each phase of a step. Collective."""
        clock = PhaseClock(self._comm)

        def run(step: int) -> None:
            self._step += 1
            self._run(clock, self._batches[step % BATCHES])

        return clock.steps(run)

    def _run(self, clock: PhaseClock, kjt: KJT) -> None:
        """The phases of a step, one by one (`parallel/embeddings/sharded.py`)."""
        tables = self._tables
        tbe = tables.tbe
        exchange = tables.exchange
        coming = clock("input", lambda: tables.start(kjt, self._design.batch).wait())
        if exchange.alone:
            home = tables.all_keys.layouts.whole
            lookups = coming.classes.whole
            assert lookups is not None
            clock("lookup", lambda: tbe.forward(home, lookups, self._out))
            clock("update", lambda: tbe.backward(home, lookups, self._gradient, self._step))
        elif coming.copies is not None:
            copies = coming.copies
            clock("lookup", lambda: tbe.forward(tables.all_keys.copies, copies, self._out))
            clock("replicas", lambda: self._reduce(coming))
        else:
            self._exchange(clock, coming)
        exchange.release(coming)

    def _exchange(self, clock: PhaseClock, coming: "Input") -> None:
        tables = self._tables
        exchange = tables.exchange
        shape = coming.shape
        words = "_words" if self._design.scheme == "row_wise" else ""
        columns = "_columns" if self._design.scheme == "column_wise" else ""
        pooled = clock(f"lookup{words}", lambda: tables.pool(coming, tables.all_keys))
        clock(f"output{words}", lambda: exchange.start_output(shape, pooled).finish(self._out))
        gradients = clock(
            f"gradient{words}", lambda: exchange.start_gradients(shape, self._gradient).wait()
        )
        clock(f"update{columns}", lambda: tables.update_shards(coming, gradients, self._step))

    def _reduce(self, batch_input: "Input") -> None:
        tables = self._tables
        summed = tables.start_replicas(tables.merge_copies(batch_input, self._gradient))
        assert summed is not None
        tables.update_copies(summed.wait(), self._step)

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


def measure_phases(comm: Comm, machine: Machine) -> list[PhaseCosts]:
    """Costs of all phases on this job's ranks. Collective.

    machine : with the rates of embeddings and products that the job measured.
    """
    best: dict[tuple[int, str], Timed] = {}
    for _ in range(PASSES):
        for number, (bench, seconds) in enumerate(_all_workloads(comm, machine)):
            for name, least in seconds.items():
                before = best.get((number, name))
                if before is None or least < before.seconds:
                    best[number, name] = Timed(name, bench.amounts(name), least)
    timed = list(best.values())
    names = dict.fromkeys(each.phase for each in timed)
    return [
        PhaseCosts(name, comm.size, **fit(name, [t for t in timed if t.phase == name]))
        for name in names
        if name in TERMS
    ]


def _all_workloads(
    comm: Comm, machine: Machine
) -> Iterator[tuple[DenseBench | Workbench, dict[str, float]]]:
    """Every workload, and the least seconds of its phases in a few steps. Collective."""
    for dense in DENSE_DESIGNS:
        model = DenseBench(dense, comm, machine)
        clock = PhaseClock(comm)
        yield model, clock.steps(partial(model.run, clock))
    for design in designs(comm.size):
        bench = Workbench(design, comm, machine)
        yield bench, bench.measure()
        bench.close()


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
        # the term that lowers the times most is the one that fits worst
        worst = int(np.argmin(costs * amounts[:, terms].max(axis=0)))
        terms.pop(worst)
    return {}


def _least_errors(columns: Doubles) -> Doubles:
    """x with columns @ x near 1, by least squares that are weighted again and again."""
    # columns differ by powers of ten, and lstsq would take the smallest of them for nothing
    scale = columns.max(axis=0)
    scale[scale == 0] = 1.0
    weights = np.ones(len(columns))
    x = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        target = weights
        x = np.linalg.lstsq(columns / scale * weights[:, None], target, rcond=None)[0]
        errors = np.abs(columns / scale @ x - 1.0)
        # weights of least absolute errors: a few slow moments must not bend the whole fit
        weights = 1.0 / np.sqrt(np.maximum(errors, LEAST_ERROR))
    return x / scale


def as_values(costs: list[PhaseCosts]) -> list[dict[str, object]]:
    """Costs as JSON values, four digits each."""
    return [
        {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in asdict(cost).items()
        }
        for cost in costs
    ]
