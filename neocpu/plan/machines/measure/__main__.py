"""What does this machine achieve? One job of one or more ranks that does the same on all, timed.

`calibration.py` starts it, alone and under mpiexec:

    python -m neocpu.plan.machines.measure FOLDER quick|full

Rank 0 prints a line per topic, and at last a JSON text: {"products": [...], ...} with the fields of
the curves in `machine.py`, and "facts". FOLDER is for files that play the SSD. Every time is the
least of several tries, each of which takes as long as the slowest rank. A job on several hosts
measures the links between them, and nothing else.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from neocpu.core.types import Ints, Tell
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.launch import (
    bind_kernel_threads,
    get_comm,
    prepare_threads,
    run_guarded,
)
from neocpu.plan.machines.machine import (
    PRODUCTS,
    EmbeddingRates,
    Machine,
    PhaseCosts,
    ProductRates,
    Rates,
    TransferRates,
)
from neocpu.plan.machines.measure.phases import as_values, measure_phases
from neocpu.plan.machines.measure.tiers import measure_ddr, measure_ssd
from neocpu.plan.machines.measure.timing import BATCHES, EFFORTS, Effort, Stopwatch, rates

LEAVES = 16  # of the weight gradient, as in training
INPUTS = 256  # of a layer, at least
FLOAT = 4  # bytes of an fp32 number


def measure_products(
    watch: Stopwatch, effort: Effort, ranks: int
) -> tuple[list[ProductRates], float]:
    """(curves of the three products of a layer, seconds to start a kernel)."""
    from neocpu.kernels.dense import gemm

    one = np.ones((1, 1), np.float32)
    out = np.empty_like(one)
    start = watch.least(lambda: gemm.layer(one, one, one[0], True, out))
    samples = effort.samples
    widths = [max(side, INPUTS) for side in effort.sides]
    measured = [
        _layer_seconds(watch, samples, inputs, side) for inputs, side in zip(widths, effort.sides)
    ]
    operations = [2.0 * samples * inputs * side for inputs, side in zip(widths, effort.sides)]
    sizes = tuple(float(min(side, samples)) for side in effort.sides)
    curves = []
    for product in PRODUCTS:
        # A kernel's start is counted apart; it cannot be all of a product's time.
        times = [max(seconds[product] - start, seconds[product] / 4) for seconds in measured]
        speeds = rates(operations, times)
        curves.append(ProductRates("fp32", product, ranks, sizes, speeds))
    return curves, start


def _layer_seconds(watch: Stopwatch, samples: int, inputs: int, outputs: int) -> dict[str, float]:
    """Seconds of each product of a layer."""
    from neocpu.core.trees import leaf_cuts
    from neocpu.kernels.dense import gemm

    rng = np.random.default_rng(outputs)
    x = rng.standard_normal((samples, inputs), np.float32)
    w = rng.standard_normal((outputs, inputs), np.float32)
    g = rng.standard_normal((samples, outputs), np.float32)
    bias = np.zeros(outputs, np.float32)
    y = np.empty_like(g)
    dx = np.empty_like(x)
    dw = np.empty_like(w)
    dbias = np.empty_like(bias)
    cuts = np.array(leaf_cuts(samples, LEAVES), np.int64)
    return {
        "forward": watch.least(lambda: gemm.layer(x, w, bias, True, y)),
        "input_gradient": watch.least(lambda: gemm.input_gradient(g, w, x, dx)),
        "weight_gradient": watch.least(lambda: gemm.weight_gradient(g, x, cuts, dw, dbias)),
    }


def measure_embeddings(watch: Stopwatch, effort: Effort, ranks: int) -> list[EmbeddingRates]:
    """Curves of lookups and of fused row-wise AdaGrad updates, by height of a table."""
    curves = []
    lookups = effort.samples * effort.bag
    sizes = tuple(float(size) for size in effort.row_bytes)
    work = [lookups * size for size in sizes]
    for height in effort.heights:
        pairs = [
            _embedding_seconds(watch, effort, height, size // FLOAT) for size in effort.row_bytes
        ]
        for name, seconds in zip(("lookup", "update"), zip(*pairs)):
            curves.append(EmbeddingRates(name, height, ranks, sizes, rates(work, seconds)))
    return curves


def _embedding_seconds(
    watch: Stopwatch, effort: Effort, height: int, dim: int
) -> tuple[float, float]:
    """(seconds of a lookup, seconds of an update) of a batch in a table of this shape."""
    from neocpu.parallel.sharding.schemes import Shard
    from neocpu.tables.embedding.lookups import EntryLayout, Lookups
    from neocpu.tables.embedding.tbe import TableBatchedEmbedding
    from neocpu.tables.specs.optimizers import SparseOptimizer
    from neocpu.tables.specs.specs import TableSpec

    optimizer = SparseOptimizer(name="exact_rowwise_adagrad", learning_rate=0.01)
    spec = TableSpec("t", height, dim, ("f",))
    table = TableBatchedEmbedding((spec,), [Shard(0, (0, height), (0, dim), 0)], optimizer, 1)
    layout = EntryLayout(np.zeros(1, np.int64), np.zeros(1, np.int64))
    samples = effort.samples
    rng = np.random.default_rng(height + dim)
    offsets = np.arange(samples + 1, dtype=np.int64) * effort.bag
    unweighted = np.zeros(0, np.float32)
    batches = [
        Lookups(offsets, rng.integers(0, height, samples * effort.bag), unweighted, samples)
        for _ in range(BATCHES)
    ]
    out = np.zeros((samples, dim), np.float32)
    gradient = rng.standard_normal((samples, dim), np.float32)
    # rows come into being at their first lookup, which is not to be timed
    for batch in batches:
        table.forward(layout, batch, out)
    turn = 0

    def forward() -> None:
        nonlocal turn
        turn += 1
        table.forward(layout, batches[turn % BATCHES], out)

    def backward() -> None:
        nonlocal turn
        turn += 1
        table.backward(layout, batches[turn % BATCHES], gradient, turn)

    seconds = watch.least(forward), watch.least(backward)
    table.close()
    return seconds


def measure_copies(watch: Stopwatch, effort: Effort, ranks: int) -> list[TransferRates]:
    """The curve of memory copies."""
    seconds = [_copy_seconds(watch, size) for size in effort.copies]
    sizes = tuple(float(size) for size in effort.copies)
    return [TransferRates("copy", "host_device", ranks, sizes, rates(sizes, seconds))]


def _copy_seconds(watch: Stopwatch, size: int) -> float:
    source = np.ones(size, np.uint8)
    target = np.zeros(size, np.uint8)
    return watch.least(lambda: np.copyto(target, source))


def measure_collectives(watch: Stopwatch, effort: Effort, comm: Comm) -> list[TransferRates]:
    """Curves of the collectives that a step uses; none for a rank alone."""
    if comm.size == 1:
        return []
    peers = comm.size - 1
    # sizes are what a rank receives from all others, as `TransferRates` counts them
    blocks = [max(1, size // peers) for size in effort.messages]
    sizes = tuple(float(block * peers) for block in blocks)
    counts = [np.full(comm.size, block, np.int64) for block in blocks]
    measured = [
        _collective_seconds(watch, comm, block, count) for block, count in zip(blocks, counts)
    ]
    curves = []
    for operation in measured[0]:
        speeds = rates(sizes, [seconds[operation] for seconds in measured])
        curves.append(TransferRates(operation, "inside_node", comm.size, sizes, speeds))
    return curves


def _collective_seconds(watch: Stopwatch, comm: Comm, block: int, sizes: Ints) -> dict[str, float]:
    """Seconds of each collective with so many bytes from every rank to every other.

    sizes : i64[ranks], bytes to and from each rank in an `alltoallv`.
    """
    counts = np.full(comm.size, block, np.int64)
    send = np.ones((comm.size, block), np.uint8)
    recv = np.zeros(comm.size * block, np.uint8)
    sent = send.reshape(-1)[: sizes.sum()]
    into = recv[: sizes.sum()]
    return {
        "alltoall": watch.least(lambda: comm.alltoall(send)),
        "alltoallv": watch.least(lambda: comm.alltoallv(sent, sizes, into, sizes)),
        "allgatherv": watch.least(lambda: comm.allgatherv(send[0], recv, counts)),
    }


def measure_links(watch: Stopwatch, effort: Effort, comm: Comm) -> list[TransferRates]:
    """Curves of the same collectives by what a rank receives from ranks of other hosts.

    In an `alltoallv` ranks of a host send each other nothing.
    """
    elsewhere = comm.nodes != comm.nodes[comm.rank]
    peers = int(elsewhere.sum())
    blocks = [max(1, size // peers) for size in effort.messages]
    sizes = tuple(float(block * peers) for block in blocks)
    measured = [
        _collective_seconds(watch, comm, block, np.where(elsewhere, block, 0)) for block in blocks
    ]
    return [
        TransferRates(
            operation,
            "between_nodes",
            comm.size,
            sizes,
            rates(sizes, [seconds[operation] for seconds in measured]),
        )
        for operation in measured[0]
    ]


def measure(
    comm: Comm, effort: Effort, folder: Path, threads: int, tell: Tell
) -> dict[str, object]:
    """All curves and facts of one job, as JSON values. Collective."""
    watch = Stopwatch(comm, effort)
    facts: dict[str, float] = {"ranks": comm.size, "threads": threads}
    if comm.nodes.any():
        tell("links between hosts")
        links = measure_links(watch, effort, comm)
        return {"transfers": [asdict(curve) for curve in links], "facts": facts}
    tell("matrix products")
    products, launch = measure_products(watch, effort, comm.size)
    tell("lookups and updates")
    embeddings = measure_embeddings(watch, effort, comm.size)
    tell("copies and collectives")
    transfers = measure_copies(watch, effort, comm.size) + measure_collectives(watch, effort, comm)
    tell("phases of a step")
    # phases are told beside rates of this very job, which their fit takes
    costs: list[PhaseCosts] = []
    if effort.phases:
        machine = Machine(
            ranks_per_node=comm.size, embeddings=tuple(embeddings), products=tuple(products)
        )
        costs = measure_phases(comm, machine)
    tell("memory tiers")
    moves = measure_ddr(watch, effort, comm.size)
    ssd_moves, ssd_latency = measure_ssd(watch, effort, comm, folder)
    curves: dict[str, Sequence[Rates]] = {
        "products": products,
        "embeddings": embeddings,
        "transfers": transfers,
        "moves": moves + ssd_moves,
    }
    facts |= {"launch_s": launch, "ssd_latency_s": ssd_latency}
    return {
        **{kind: [asdict(curve) for curve in of_kind] for kind, of_kind in curves.items()},
        "phases": as_values(costs),
        "facts": facts,
    }


def main() -> int:
    """One rank of the job; see the module's docstring for its arguments."""
    folder, effort = sys.argv[1:]
    comm = get_comm()
    threads = prepare_threads(comm)
    bind_kernel_threads(comm)

    def tell(topic: str) -> None:
        if comm.rank == 0:
            print(topic, flush=True)

    measured = measure(comm, EFFORTS[effort], Path(folder), threads, tell)
    if comm.rank == 0:
        print(json.dumps(measured), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
