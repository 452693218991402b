"""What is a machine? Ranks on nodes, their memories, the links between them, and achieved rates.

    nodes x ranks_per_node ranks, each with

    compute        peak FLOP rates by precision, time to start a kernel
    hbm            the rank's fast memory            host_device    rank <-> its node's memory
    ddr, ssd       below it, of the rank or shared   inside_node    rank <-> ranks of its node
                   by the ranks of a node            between_nodes  rank <-> ranks of other nodes
                                                     rack, spine    switches that nodes share

Peaks say what a machine is; curves say what it achieves: products, embeddings, transfers (copies
and collectives) and moves of rows between memories, each by size. What has no curve is reckoned
from peaks: latency + bytes / bandwidth. `docs/zionex.md` has the file format.
"""

import math
import sys
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from neocpu.core.records import Limits
from neocpu.core.types import Doubles
from neocpu.plan.machines.curves import Curve, rate_between
from neocpu.plan.machines.fabric import FabricLevel
from neocpu.plan.machines.unequal import UnequalRanks

MEMORIES = ("hbm", "ddr", "ssd")
LINK_CLASSES = ("host_device", "inside_node", "between_nodes")
FABRIC = ("rack", "spine")
SHARED = ("rank", "node")
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
PRODUCTS = ("forward", "input_gradient", "weight_gradient")
EMBEDDING_WORK = ("lookup", "update")
TRANSFERS = ("copy", "alltoall", "alltoallv", "allgatherv", "reduce_scatter", "allreduce")
MOVES = ("read", "write")
# of our own step, as far as they depend on tables; see `PhaseCosts`
PHASES = (
    "input",
    "lookup",
    "lookup_words",
    "output",
    "output_words",
    "gradient",
    "gradient_words",
    "update",
    "update_columns",
    "replicas",
    "dense_forward",
    "dense_backward",
    "dense_exchange",
    "dense_update",
)
# what `PhaseCosts` count, in the order of their fields
COUNTED = (
    "call_s",
    "entry_s",
    "bag_s",
    "lookup_s",
    "number_s",
    "row_s",
    "row_number_s",
    "curve",
)


@dataclass(frozen=True)
class MemoryPeak:
    """A memory: capacity_bytes 0 means that there is none.

    shared : "rank", each rank has one, or "node", its ranks share capacity, bandwidth and
        operations. operations_per_s : random accesses, 0 where only bandwidth limits them.
    """

    capacity_bytes: int = 0
    bandwidth_bytes_per_s: float = 0.0
    operations_per_s: float = 0.0
    latency_s: float = 0.0
    shared: Annotated[str, Limits(SHARED)] = "rank"


@dataclass(frozen=True)
class LinkPeak:
    """A link of one rank, in one direction; bandwidth_bytes_per_s 0 means that there is none.

    message_s : that each rank more or less than a curve was measured with adds to a collective, or
    takes from it: a rank sends one message to each other. Of an allreduce, whose rounds double the
    ranks that have a sum, up and down: each doubling, twice.
    """

    bandwidth_bytes_per_s: float = 0.0
    latency_s: float = 0.0
    message_s: float = 0.0


@dataclass(frozen=True)
class ComputePeak:
    """Peak rates of one rank by precision (0: it has no such units); seconds to start a kernel."""

    launch_s: float = 0.0
    fp64_flops_per_s: float = 0.0
    fp32_flops_per_s: float = 0.0
    tf32_flops_per_s: float = 0.0
    fp16_flops_per_s: float = 0.0
    bf16_flops_per_s: float = 0.0
    fp8_flops_per_s: float = 0.0


@dataclass(frozen=True)
class ProductRates:
    """FLOP/s of one rank in products m x k times k x n, by the smallest of m, n and k.

    product : "forward", "input_gradient" or "weight_gradient" of a layer.
    ranks : of the node that multiplied at the same time.
    """

    precision: Annotated[str, Limits(PRECISIONS)] = "fp32"
    product: Annotated[str, Limits(PRODUCTS)] = "forward"
    ranks: int = 1
    smallest_side: tuple[float, ...] = ()
    flops_per_s: tuple[float, ...] = ()

    @cached_property
    def curve(self) -> Curve:
        """Smallest side -> FLOP/s."""
        return Curve(self.smallest_side, self.flops_per_s)


@dataclass(frozen=True)
class EmbeddingRates:
    """Bytes/s of one rank in table-batched lookups or fused updates, by bytes of a row.

    Bytes are lookups x bytes of a row, whatever else is read and written.
    rows : of the tables. ranks : of the node that did it at the same time.
    """

    work: Annotated[str, Limits(EMBEDDING_WORK)] = "lookup"
    rows: int = 1_000_000
    ranks: int = 1
    row_bytes: tuple[float, ...] = ()
    bytes_per_s: tuple[float, ...] = ()

    @cached_property
    def curve(self) -> Curve:
        """Bytes of a row -> bytes/s."""
        return Curve(self.row_bytes, self.bytes_per_s)


@dataclass(frozen=True)
class TransferRates:
    """Bytes/s of one rank in a collective, or a copy, by bytes.

    message_bytes : what a rank receives from other ranks in one call; of an allreduce the buffer,
        of a copy what is copied. ranks : of the collective; of a copy those that copy at a time.
    """

    operation: Annotated[str, Limits(TRANSFERS)] = "alltoallv"
    link: Annotated[str, Limits(LINK_CLASSES)] = "between_nodes"
    ranks: int = 1
    message_bytes: tuple[float, ...] = ()
    bytes_per_s: tuple[float, ...] = ()

    @cached_property
    def curve(self) -> Curve:
        """Bytes -> bytes/s."""
        return Curve(self.message_bytes, self.bytes_per_s)


@dataclass(frozen=True)
class MoveRates:
    """Bytes/s of one rank that reads or writes random records of a memory, by bytes of a record."""

    memory: Annotated[str, Limits(MEMORIES)] = "ssd"
    operation: Annotated[str, Limits(MOVES)] = "read"
    ranks: int = 1
    record_bytes: tuple[float, ...] = ()
    bytes_per_s: tuple[float, ...] = ()

    @cached_property
    def curve(self) -> Curve:
        """Bytes of a record -> bytes/s."""
        return Curve(self.record_bytes, self.bytes_per_s)


@dataclass(frozen=True)
class PhaseCosts:
    """Measured seconds of a phase of our own training step on each of so many ranks of a node.

    phase : one of PHASES. call_s : each time. entry_s : for each pair of a key and a rectangle of
    the rank. bag_s : for each bag of the global batch and entry. lookup_s : for each lookup of a
    rectangle. number_s : for each number of the bags of entries. row_s : for each unique row.
    row_number_s : for each number of unique rows. curve : times the seconds by the rates of
    embeddings, or of products.
    """

    phase: Annotated[str, Limits(PHASES)] = "input"
    ranks: int = 1
    call_s: float = 0.0
    entry_s: float = 0.0
    bag_s: float = 0.0
    lookup_s: float = 0.0
    number_s: float = 0.0
    row_s: float = 0.0
    row_number_s: float = 0.0
    curve: float = 0.0


Rates = ProductRates | EmbeddingRates | TransferRates | MoveRates
# the two columns of each kind of rates: sizes, rates
COLUMNS: dict[type, tuple[str, str]] = {
    ProductRates: ("smallest_side", "flops_per_s"),
    EmbeddingRates: ("row_bytes", "bytes_per_s"),
    TransferRates: ("message_bytes", "bytes_per_s"),
    MoveRates: ("record_bytes", "bytes_per_s"),
}


@dataclass(frozen=True)
class Machine:
    """A machine; origin : where its numbers are from. unequal : ranks unlike the others."""

    name: str = ""
    origin: str = ""
    nodes: int = 1
    ranks_per_node: int = 1
    hbm: MemoryPeak = field(default_factory=MemoryPeak)
    ddr: MemoryPeak = field(default_factory=MemoryPeak)
    ssd: MemoryPeak = field(default_factory=MemoryPeak)
    host_device: LinkPeak = field(default_factory=LinkPeak)
    inside_node: LinkPeak = field(default_factory=LinkPeak)
    between_nodes: LinkPeak = field(default_factory=LinkPeak)
    rack: FabricLevel = field(default_factory=FabricLevel)
    spine: FabricLevel = field(default_factory=FabricLevel)
    compute: ComputePeak = field(default_factory=ComputePeak)
    products: tuple[ProductRates, ...] = ()
    embeddings: tuple[EmbeddingRates, ...] = ()
    transfers: tuple[TransferRates, ...] = ()
    moves: tuple[MoveRates, ...] = ()
    phases: tuple[PhaseCosts, ...] = ()
    unequal: tuple[UnequalRanks, ...] = ()

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def fast(self) -> str:
        """Name of the memory that holds tables: "hbm", or "ddr" on a machine without any."""
        return "hbm" if self.hbm.capacity_bytes else "ddr"

    @property
    def fast_bytes_per_s(self) -> float:
        """Bandwidth of that memory for a rank while all ranks use it."""
        memory: MemoryPeak = getattr(self, self.fast)
        return self.share(memory.bandwidth_bytes_per_s, memory)

    # ---- achieved rates ----

    def phase_costs(self, phase: str, ranks: int) -> PhaseCosts | None:
        """Measured costs of a phase on the number of ranks of a node nearest below `ranks`.

        The least number that was measured if none is below; None where nothing was.
        """
        costs = sorted((c for c in self.phases if c.phase == phase), key=lambda c: c.ranks)
        below = [c for c in costs if c.ranks <= ranks]
        if below:
            return below[-1]
        return costs[0] if costs else None

    @cached_property
    def _curves(self) -> dict[tuple[object, ...], list[tuple[float, Curve]]]:
        """(ranks, curve) pairs by what they are of: the kind of rates, and its other fields."""
        curves: dict[tuple[object, ...], list[tuple[float, Curve]]] = {}
        kinds = ("products", "embeddings", "transfers", "moves")
        for rates in (rates for kind in kinds for rates in getattr(self, kind)):
            # curves that differ in ranks alone are of one thing, and are interpolated between
            varying = ("ranks", *COLUMNS[type(rates)])
            names = [spec.name for spec in fields(rates) if spec.name not in varying]
            key = (type(rates), *(getattr(rates, name) for name in names))
            curves.setdefault(key, []).append((float(rates.ranks), rates.curve))
        return curves

    def product_flops_per_s(
        self, m: int, n: int, k: int, precision: str = "fp32", product: str = "forward"
    ) -> float:
        """FLOP/s of a rank in a product; its peak where nothing was measured at this precision.

        A product that was not measured is as fast as a forward one.
        """
        curves = self._curves.get((ProductRates, precision, product))
        curves = curves or self._curves.get((ProductRates, precision, "forward"))
        if curves:
            return rate_between(curves, self.ranks_per_node, min(m, n, k))
        return getattr(self.compute, f"{precision}_flops_per_s")

    def product_seconds(
        self, m: int, n: int, k: int, precision: str = "fp32", product: str = "forward"
    ) -> float:
        """Seconds of a rank for a product of 2 m n k operations, its start included.

        Infinite where it has no units of this precision.
        """
        rate = self.product_flops_per_s(m, n, k, precision, product)
        if not rate:
            return float("inf")
        return self.compute.launch_s + 2.0 * m * n * k / rate

    def embedding_bytes_per_s(self, work: str, rows: int, row_bytes: float) -> float:
        """Bytes/s of a rank in lookups or updates of tables of so many rows.

        Without a measured curve: lookups at the bandwidth of the memory that holds tables, updates
        at half of it.
        """
        return self.embedding_curve(work, row_bytes).rate(rows)

    def embedding_curve(self, work: str, row_bytes: float) -> Curve:
        """Rows of a table -> `embedding_bytes_per_s`, for rows of one size."""
        speeds = [
            (float(height), rate_between(curves, self.ranks_per_node, row_bytes))
            for height, curves in self._heights.get(work, ())
        ]
        if speeds:
            return Curve(*zip(*speeds))
        rate = self.fast_bytes_per_s / (1 if work == "lookup" else 2)
        # a curve has rates above 0; the least float stands for a memory without bandwidth
        return Curve((1.0,), (rate or sys.float_info.min,))

    @cached_property
    def _heights(self) -> dict[str, list[tuple[int, list[tuple[float, Curve]]]]]:
        """(rows of the tables, curves) pairs, ascending, by work."""
        heights: dict[str, dict[int, list[tuple[float, Curve]]]] = {}
        for rates in self.embeddings:
            curves = self._curves[EmbeddingRates, rates.work, rates.rows]
            heights.setdefault(rates.work, {})[rates.rows] = curves
        return {work: sorted(by_rows.items()) for work, by_rows in heights.items()}

    def share(self, amount: float, memory: MemoryPeak) -> float:
        """A rank's part of a memory's capacity, bandwidth or operations while all ranks use it."""
        return amount / self.ranks_per_node if memory.shared == "node" else amount

    def transfer_seconds(self, operation: str, link: str, ranks: int, size: float) -> float:
        """Seconds of a collective of so many ranks, or of a copy, for `size` bytes.

        size : as `TransferRates.message_bytes`. Never less than the link's latency; without a
        measured curve latency + bytes / bandwidth.
        """
        peak: LinkPeak = getattr(self, link)
        curves = self._curves.get((TransferRates, operation, link))
        if curves:
            seconds = size / rate_between(curves, ranks, size)
            counts = [count for count, _ in curves]
            # between curves ranks are interpolated already
            known = min(max(ranks, min(counts)), max(counts))
            if operation == "allreduce":
                seconds += 2 * math.log2(ranks / known) * peak.message_s
            elif operation != "copy":
                seconds += (ranks - known) * peak.message_s
            # a flat end of the curve would let small messages take no time
            return max(peak.latency_s, seconds)
        if not peak.bandwidth_bytes_per_s:
            return float("inf") if size else 0.0
        return peak.latency_s + size / peak.bandwidth_bytes_per_s

    def move_seconds(
        self, memory: str, operation: str, records: ArrayLike, record_bytes: ArrayLike
    ) -> Doubles:
        """Seconds of a rank to read or write random records of "hbm", "ddr" or "ssd": f64[n] of so
        many records f64[n], of so many bytes each f64[n].

        Without a measured curve: latency, then bandwidth or operations, whichever takes longer.
        """
        peak: MemoryPeak = getattr(self, memory)
        curves = self._curves.get((MoveRates, memory, operation))
        count = np.asarray(records, np.float64)
        each = np.asarray(record_bytes, np.float64)
        size = count * each
        # a call that moves nothing is not made
        latency = np.where(count > 0, peak.latency_s, 0.0)
        if curves:
            # rates are asked once for each size of a record
            sizes, inverse = np.unique(each, return_inverse=True)
            known = [rate_between(curves, self.ranks_per_node, x) for x in sizes.tolist()]
            rates = np.array(known)[inverse].reshape(each.shape)
            # a measured rate holds for many records, so the latency bounds few of them from below
            return np.maximum(latency, size / rates)
        if not peak.bandwidth_bytes_per_s:
            return np.where(count > 0, np.inf, 0.0)
        seconds = size / self.share(peak.bandwidth_bytes_per_s, peak)
        if peak.operations_per_s:
            seconds = np.maximum(seconds, count / self.share(peak.operations_per_s, peak))
        return latency + seconds
