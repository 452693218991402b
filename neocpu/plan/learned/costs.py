"""What does a plan cost, as the networks see it? Pieces of tables, their sums, and exchanges.

A piece is a table, a block of its columns, or its part on every rank where rows are cut or copies
are held. The first layer behind the sum is linear, so a rank's state is one vector of 64 numbers:
what the cost network predicts for a set after each further piece is a sum, a ReLU and a product.

    cost = max over ranks r ( compute_r + backward_r + forward_r(offset_r) )
    offset_r = compute_r + backward_r - min of those

(NeuroShard's simulator.) Where no exchange network was trained for a number of ranks, exchanges
take what the shared cost model says, the fullest rank's for all.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import shard_bytes
from neocpu.parallel.sharding.schemes import Shard
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import SCHEME_NAMES, CostModel
from neocpu.plan.cost.work import Floats, TableArrays, Workload, whole_rectangles
from neocpu.plan.learned.cost_nets import HIDDEN
from neocpu.plan.learned.features import FEATURES, Pieces, describe
from neocpu.plan.learned.nets import Array
from neocpu.plan.learned.reuse import histograms
from neocpu.plan.learned.store import Networks
from neocpu.tables.specs.specs import TableSpecs

COMM_PHASES = ("output", "gradient")
EXTRA_PHASES = ("replicas",)
# Schemes of which every rank has a part: moves of ours, which NeuroShard lacks.
EVERYWHERE = ("row_wise", "data_parallel")


class TablePart(NamedTuple):
    """What is placed: table number, "table_wise" or one of EVERYWHERE, and columns."""

    table: int
    scheme: str
    width: int


class Loads(NamedTuple):
    """What ranks have: hidden f32[..., ranks, HIDDEN], the others f64[..., ranks].

    hidden : sums of the pieces' first linear layer. size : bytes. dim : columns that travel. comm,
    extra : seconds of exchanges, and of what else there is.
    """

    hidden: Array
    size: Floats
    dim: Floats
    comm: Floats
    extra: Floats


class LearnedCosts:
    """Costs of one task's pieces and plans.

    networks : trained. tables, work, layout : the task. model : the shared cost model, asked for
    exchanges without a network and for copies.
    """

    def __init__(
        self,
        networks: Networks,
        tables: TableSpecs,
        work: Workload,
        layout: Layout,
        model: CostModel,
    ) -> None:
        self.networks = networks
        self.tables = tuple(tables)
        self.work = work
        self.layout = layout
        self.model = model
        self.arrays = TableArrays.of(tables, work)
        arrays = self.arrays
        self.reuse = histograms(arrays.lookups, arrays.distinct)
        self.scale = work.batch / networks.batch
        self.pieces: list[TablePart] = []
        self._number: dict[TablePart, int] = {}
        self.features = np.zeros((0, FEATURES))
        # the network's first layer behind the sum, applied piece by piece: it is linear
        self.hidden = np.zeros((0, HIDDEN), np.float32)
        self.facts = np.zeros((0, 4))  # size, dim, comm, extra by piece
        self.single = np.zeros(0)
        head = networks.compute.head.parameters
        self._inner, self._bias, self._outer, self._end = (p.astype(np.float32) for p in head)
        # piece t is table t as a whole, which callers rely on
        self.numbers([TablePart(t, "table_wise", table.dim) for t, table in enumerate(tables)])

    # ---- pieces ----

    def numbers(self, pieces: Sequence[TablePart]) -> list[int]:
        """Numbers of pieces, the same ones for equal pieces; new ones are described and priced."""
        fresh = [piece for piece in dict.fromkeys(pieces) if piece not in self._number]
        if fresh:
            self._add(fresh)
        return [self._number[piece] for piece in pieces]

    def _add(self, fresh: list[TablePart]) -> None:
        ranks = self.layout.ranks
        table = np.array([piece.table for piece in fresh])
        rows = np.array([self._rows(piece) for piece in fresh], np.float64)
        copied = np.array([piece.scheme == "data_parallel" for piece in fresh])
        width = np.array([float(piece.width) for piece in fresh])
        samples = np.where(copied, 1.0 / ranks, 1.0)
        pieces = Pieces(table, rows, width, samples)
        features = describe(pieces, self.arrays, self.work.batch, self.reuse)
        # a copy sees its own rank's samples, so measured reuse of all samples is not its own
        if copied.any():
            features[copied] = describe(
                Pieces(*(column[copied] for column in pieces)), self.arrays, self.work.batch
            )
        latents = self.networks.compute.latents(features).astype(np.float32)
        hidden = latents @ self._inner
        facts = self._facts(fresh, rows, width)
        for piece in fresh:
            self._number[piece] = len(self.pieces)
            self.pieces.append(piece)
        self.features = np.concatenate([self.features, features])
        self.hidden = np.concatenate([self.hidden, hidden])
        self.facts = np.concatenate([self.facts, facts])
        self.single = np.concatenate([self.single, self.compute(hidden)])

    def _rows(self, piece: TablePart) -> int:
        rows = self.tables[piece.table].rows
        return -(-rows // self.layout.ranks) if piece.scheme == "row_wise" else rows

    def _facts(self, fresh: list[TablePart], rows: Floats, width: Floats) -> Floats:
        """Bytes, columns that travel, seconds of exchanges and of copies, f64[n, 4]."""
        scheme = np.array([SCHEME_NAMES.index(piece.scheme) for piece in fresh])
        table = np.array([piece.table for piece in fresh])
        comm, extra = self._phases(table, scheme, rows, width)
        whole_scheme = np.full(scheme.size, SCHEME_NAMES.index("table_wise"))
        whole_comm, _ = self._phases(table, whole_scheme, self.arrays.rows[table], width)
        # Partial sums are wider than pooled vectors, and may take another route.
        dim = width * np.divide(comm, whole_comm, out=np.ones_like(comm), where=whole_comm > 0)
        state = self.work.state_floats
        size = [
            shard_bytes(self.tables[p.table], Shard(p.table, (0, int(h)), (0, p.width), 0), state)
            for p, h in zip(fresh, rows)
        ]
        return np.stack([np.array(size, np.float64), dim, comm, extra], axis=1)

    def _phases(
        self, table: Ints, scheme: Ints, rows: Floats, width: Floats
    ) -> tuple[Floats, Floats]:
        """Seconds of (exchanges, extras) under the shared model."""
        seconds = self.model.seconds(whole_rectangles(table, scheme, rows, width))
        names = self.model.phases
        zeros = np.zeros(table.size)
        comm = [seconds[:, names.index(name)] for name in COMM_PHASES if name in names]
        extra = [seconds[:, names.index(name)] for name in EXTRA_PHASES if name in names]
        return sum(comm, zeros), sum(extra, zeros)

    # ---- ranks ----

    def compute(self, hidden: Array) -> Floats:
        """Predicted seconds of sets by their hidden sums [..., HIDDEN]; 0 for empty sets."""
        active = np.maximum(hidden + self._bias, 0)
        outputs = (active @ self._outer)[..., 0] + self._end[0]
        seconds = np.maximum(outputs, 0).astype(np.float64)
        # networks know one batch; costs are taken to grow with it
        seconds *= self.networks.compute.unit * self.scale
        return np.where(np.any(hidden != 0, axis=-1), seconds, 0.0)

    def outputs(self, sums: Array, added: Array, scratch: Array) -> Array:
        """What `compute` says of sums [n, ranks, HIDDEN] with added [n, HIDDEN] on each rank, in
        the network's units, f32[n, ranks]. scratch : of the shape of sums.
        """
        # in the caller's memory, instead of another large array for each piece
        np.add(sums, (added + self._bias)[:, None, :], out=scratch)
        np.maximum(scratch, 0, out=scratch)
        return np.maximum((scratch @ self._outer)[..., 0] + self._end[0], 0)

    def loads(
        self, pieces: Sequence[int] | Ints, ranks: Ints, everywhere: Sequence[int] = ()
    ) -> Loads:
        """What ranks have when piece i is on ranks[i]; everywhere : pieces that all ranks have."""
        count = self.layout.ranks
        chosen = np.asarray(pieces, np.int64)
        hidden = np.zeros((count, HIDDEN), np.float32)
        facts = np.zeros((count, 4))
        np.add.at(hidden, ranks, self.hidden[chosen])
        np.add.at(facts, ranks, self.facts[chosen])
        shared = np.asarray(everywhere, np.int64)
        hidden += self.hidden[shared].sum(axis=0)
        facts += self.facts[shared].sum(axis=0)
        return Loads(hidden, *facts.T)

    def seconds(self, loads: Loads) -> Floats:
        """Predicted cost f64[...] of plans by what their ranks have."""
        compute = self.compute(loads.hidden) + loads.extra
        ranks = self.layout.ranks
        if ranks == 1:
            return compute[..., 0]
        if ranks not in self.networks.comm:
            return (compute + loads.comm.max(axis=-1, keepdims=True)).max(axis=-1)
        forward_net, backward_net = self.networks.comm[ranks]
        dims = loads.dim * self.scale
        backward = backward_net.seconds(dims)
        busy = compute + backward
        offsets = busy - busy.min(axis=-1, keepdims=True)
        forward = forward_net.seconds(np.concatenate([dims, offsets], axis=-1))
        return (busy + forward).max(axis=-1)
