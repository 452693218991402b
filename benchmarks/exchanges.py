"""Which way is quickest between ranks of this host? MPI's own collective, its messages, windows.

Every way moves the same bytes between all pairs of ranks, in turns; what is printed are medians of
the slowest rank's microseconds. Run it under mpiexec, with as many ranks as are asked about:

    mpiexec -n 4 python -m mpi4py -m benchmarks.exchanges --per-node 2

The two-level way emulates nodes: there are no links between them that would be slower here.
"""

import argparse
import json
import time

import numpy as np

from neocpu.parallel.exchange.two_level import two_level
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.mpi import MpiComm

SIZES = (64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
# Bytes that one rank may send in an exchange, and all ranks in a measurement.
MOST_OF_RANK = 64 << 20
MOST_OF_TURN = 256 << 20


def ways(per_node: int) -> dict[str, Comm]:
    """A comm for each way to exchange."""
    comms: dict[str, Comm] = {
        "collective": MpiComm(windows=False, chunked=False, crowd=0),
        "messages": MpiComm(windows=False, chunked=True, crowd=0),
        "asleep": MpiComm(windows=False, chunked=True, crowd=1.0),
        "windows": MpiComm(windows=True),
        "auto": MpiComm(),
    }
    size = comms["auto"].size
    if size > per_node > 1:
        comms["two-level"] = two_level(MpiComm(ranks_per_node=per_node))
    return comms


def microseconds(comm: Comm, size: int, turns: int) -> float:
    """Of one exchange of `size` bytes between each two ranks, on this rank."""
    counts = np.full(comm.size, size, np.int64)
    send = np.zeros(size * comm.size, np.uint8)
    recv = np.empty_like(send)
    table = np.broadcast_to(counts, (comm.size, comm.size))
    comm.alltoallv(send, counts, recv, counts, table=table)
    comm.barrier()
    start = time.perf_counter()
    for _ in range(turns):
        comm.alltoallv(send, counts, recv, counts, table=table)
    return (time.perf_counter() - start) / turns * 1e6


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-node", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, default=50, help="most exchanges in a round")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()
    comms = ways(options.per_node)
    direct = comms["collective"]
    for size in options.sizes:
        sent = size * direct.size
        if sent > MOST_OF_RANK:
            continue
        turns = max(2, min(options.turns, MOST_OF_TURN // (sent * direct.size * 8)))
        spent: dict[str, list[int]] = {name: [] for name in comms}
        for _ in range(options.rounds):
            for name, comm in comms.items():
                spent[name].append(direct.largest(int(microseconds(comm, size, turns) * 10)))
        if direct.rank == 0:
            medians = {name: float(np.median(times)) / 10 for name, times in spent.items()}
            print(json.dumps({"ranks": direct.size, "bytes": size} | medians), flush=True)


if __name__ == "__main__":
    main()
