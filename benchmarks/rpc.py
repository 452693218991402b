"""How quick are calls between two ranks, beside plain MPI messages and torch's RPC (TensorPipe)?

    python -m benchmarks.rpc                                # torch where it is installed
    python -m benchmarks.rpc --torch ../venv-torch/bin/python

Two jobs of two processes run side by side and take turns, size by size, round by round; the one
whose turn it is not waits at its standard input. `round trip` is a call whose array comes back
(rpc_sync), with the function in a worker and, "quick", in the thread that reads; MPI's is a
ping-pong of Send and Recv between arrays that exist. `one way` is arrays that are only sent, eight
calls under way at a time; MPI's is eight Isend and Irecv at a time. Medians of rounds, in
microseconds of a call; GB/s count each array once a way.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = (1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
UNDER_WAY = 8
MOST_BYTES = 128 << 20  # of one way's turn
MOST_CALLS = 200


def calls_of(size: int) -> int:
    """Calls of a turn, a multiple of those under way."""
    return max(UNDER_WAY, min(MOST_CALLS, MOST_BYTES // size)) // UNDER_WAY * UNDER_WAY


def median_of(call: Callable[[], object], count: int) -> float:
    """Median seconds of a call."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def mean_of(start: Callable[[], Any], wait: Callable[[Any], object], count: int) -> float:
    """Mean seconds of a call, several of which are under way."""
    begun = time.perf_counter()
    flights: list[Any] = []
    for _ in range(count):
        if len(flights) == UNDER_WAY:
            wait(flights.pop(0))
        flights.append(start())
    for flight in flights:
        wait(flight)
    return (time.perf_counter() - begun) / count


# ---- ours, and plain MPI ----


def ping_pong(comm: Any, size: int, count: int) -> float:
    """Median seconds of a message there and back."""
    out = np.ones(size, np.uint8)
    into = np.ones(size, np.uint8)

    def there_and_back() -> None:
        if comm.Get_rank() == 0:
            comm.Send(out, 1)
            comm.Recv(into, 1)
        else:
            comm.Recv(into, 0)
            comm.Send(into, 0)

    return median_of(there_and_back, count)


def stream(comm: Any, size: int, count: int) -> float:
    """Mean seconds of a message, several of which are under way."""
    # ones, not zeros: their memory is there before it is measured
    arrays = [np.ones(size, np.uint8) for _ in range(UNDER_WAY)]
    token = np.zeros(1, np.uint8)
    begun = time.perf_counter()
    for _ in range(count // UNDER_WAY):
        if comm.Get_rank() == 0:
            requests = [comm.Isend(arrays[0], 1) for _ in arrays]
        else:
            requests = [comm.Irecv(array, 0) for array in arrays]
        for request in requests:
            request.Wait()
    if comm.Get_rank() == 0:
        comm.Recv(token, 1)
    else:
        comm.Send(token, 0)
    return (time.perf_counter() - begun) / count


def neocpu_rank() -> None:
    """One of two ranks of ours."""
    from mpi4py import MPI

    from neocpu.parallel.rpc.agent import RpcAgent
    from neocpu.parallel.rpc.functions import Functions
    from neocpu.parallel.transport.mpi import MpiComm

    plain = MPI.COMM_WORLD.Dup()
    functions = Functions()
    functions.add("echo", lambda array: array)
    functions.add("echo quickly", lambda array: array, quick=True)
    functions.add("take", lambda array: None)
    functions.add("ping-pong", lambda *numbers: ping_pong(plain, *numbers))
    functions.add("stream", lambda *numbers: stream(plain, *numbers))
    with RpcAgent(MpiComm(), functions) as agent:
        if agent.rank:
            return

        def measure(size: int, count: int) -> dict[str, float]:
            array = np.ones(size, np.uint8)
            other = agent.rpc_async(1, "ping-pong", size, count)
            seconds = {"MPI round trip": ping_pong(plain, size, count)}
            other.wait()
            for name, key in (("echo", "round trip"), ("echo quickly", "quick round trip")):
                seconds[f"neocpu {key}"] = median_of(
                    lambda name=name: agent.rpc_sync(1, name, array),
                    count,  # type: ignore[misc]
                )
            other = agent.rpc_async(1, "stream", size, count)
            seconds["MPI one way"] = stream(plain, size, count)
            other.wait()
            seconds["neocpu one way"] = mean_of(
                lambda: agent.rpc_async(1, "take", array), lambda call: call.wait(), count
            )
            return seconds

        answer(measure)


# ---- torch ----


def torch_echo(array: Any) -> Any:
    """What torch calls by its name in this module."""
    return array


def torch_take(array: Any) -> None:
    """The same."""


def torch_rank(rank: int, folder: str) -> None:
    """One of two ranks of torch."""
    import torch
    from torch.distributed import rpc

    from benchmarks.rpc import torch_echo, torch_take

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/meeting")
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:

        def measure(size: int, count: int) -> dict[str, float]:
            array = torch.ones(size, dtype=torch.uint8)
            return {
                "torch round trip": median_of(
                    lambda: rpc.rpc_sync("rank1", torch_echo, (array,)), count
                ),
                "torch one way": mean_of(
                    lambda: rpc.rpc_async("rank1", torch_take, (array,)),
                    lambda call: call.wait(),
                    count,
                ),
            }

        answer(measure)
    rpc.shutdown()


# ---- turns ----


def answer(measure: Callable[[int, int], dict[str, float]]) -> None:
    """Measure what stands in each line of the standard input, until it ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        size, count = map(int, line.split())
        print(json.dumps(measure(size, count)), flush=True)


class Job:
    """Processes that measure when they are told to. The first of them reads and prints."""

    def __init__(self, commands: list[list[str]]) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE if not number else subprocess.DEVNULL,
                stdout=subprocess.PIPE if not number else subprocess.DEVNULL,
                text=True,
            )
            for number, command in enumerate(commands)
        ]
        self._read()

    def _read(self) -> str:
        output = self._processes[0].stdout
        assert output is not None
        line = output.readline()
        if not line:
            sys.exit("a job ended before its turn; its error stands above")
        return line

    def turn(self, size: int, count: int) -> dict[str, float]:
        """Seconds by what was measured."""
        orders = self._processes[0].stdin
        assert orders is not None
        print(size, count, file=orders, flush=True)
        return json.loads(self._read())

    def end(self) -> None:
        """No more turns."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()


def start_jobs(torch_python: str, folder: str) -> list[Job]:
    """Both jobs, or ours alone."""
    from neocpu.parallel.transport.launch import find_mpiexec

    own = [find_mpiexec(), "-n", "2", sys.executable, "-m", "mpi4py", "-m", "benchmarks.rpc"]
    jobs = [Job([[*own, "--rank", "neocpu"]])]
    can = subprocess.run([torch_python, "-c", "import torch.distributed.rpc"], capture_output=True)
    if can.returncode:
        print(f"skipped: {torch_python} has no torch", file=sys.stderr)
        return jobs
    start = [torch_python, "-m", "benchmarks.rpc", "--folder", folder]
    jobs.append(Job([[*start, "--rank", f"torch{rank}"] for rank in range(2)]))
    return jobs


def record_of(size: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """What is printed of a size."""
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    record: dict[str, Any] = {"bytes": size}
    record |= {f"{name} us": round(value * 1e6, 1) for name, value in medians.items()}
    for way in ("round trip", "one way"):
        ours = seconds[f"neocpu {way}"]
        ratios = [plain / own for plain, own in zip(seconds[f"MPI {way}"], ours)]
        record[f"{way}, of MPI's speed"] = round(statistics.median(ratios), 2)
        record[f"{way} GB/s"] = round(
            size * (1 + (way == "round trip")) / 1e9 / medians[f"neocpu {way}"], 2
        )
        if f"torch {way}" in seconds:
            ratios = [rival / own for rival, own in zip(seconds[f"torch {way}"], ours)]
            record[f"{way}, of torch's speed"] = round(statistics.median(ratios), 2)
    return record


def main() -> None:
    """Print a line for each size, or be a rank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank == "neocpu":
        return neocpu_rank()
    if options.rank:
        return torch_rank(int(options.rank[-1]), options.folder)
    with tempfile.TemporaryDirectory() as folder:
        jobs = start_jobs(options.torch, folder)
        for size in options.sizes:
            seconds: dict[str, list[float]] = defaultdict(list)
            for number in range(options.rounds + 1):
                for job in jobs:
                    for name, taken in job.turn(size, calls_of(size)).items():
                        # the first round warms up
                        if number:
                            seconds[name].append(taken)
            print(json.dumps(record_of(size, seconds)), flush=True)
        for job in jobs:
            job.end()


if __name__ == "__main__":
    main()
