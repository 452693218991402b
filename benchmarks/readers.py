"""How fast do readers turn raw logs into batches, and does memory stay as it is in a long stream?

    python -m benchmarks.readers              samples a second of readers, and of other programs
    python -m benchmarks.readers --stream 1e8     samples of Criteo's form, from a pipe
                                                  through 2 readers into 2 trainers
    python -m benchmarks.readers --carriers       what TCP costs between processes of one host, and
                                                  what pages of memory that they share would

Rows are drawn in Criteo's form: 13 integers, 26 hexadecimal categories, a tenth of the fields
empty. Each program makes the same of them: labels, log1p of the integers as fp32, and the row of
each category in a table of 100,000 rows, in batches of 2,048; neocpu hashes, others take the code
modulo the rows, which is less work (`reader_rivals.py`). Medians of rounds in which all take turns.
Beside the wall's clock stand samples for each second of CPU time, of all threads and processes
together, which other work on the machine hardly changes.
"""

import argparse
import itertools
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.reader_rivals import BATCH, CATEGORIES, DENSE, RIVALS, ROWS, Speed, Stopwatch
from neocpu.ingest.dataset.convert import schema_of
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.dataset.raw import RawLog, index_of
from neocpu.ingest.loader import BatchShare, Loader, Reading
from neocpu.ingest.readers.frames import receive, send
from neocpu.ingest.settings import ReadersConfig
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import mpiexec_command
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.run.reading import ReaderSchedule

TABLES = tuple(TableSpec(name, ROWS, 16, (name,)) for name in CATEGORIES)


def drawn_lines(rows: int, seed: int) -> bytes:
    """Rows of Criteo's form."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, rows)
    integers = draw.integers(-2, 5000, (rows, DENSE))
    codes = draw.zipf(1.2, (rows, 26)) % (1 << 31)
    empty = draw.random((rows, DENSE + 26)) < 0.1
    lines = []
    for row in range(rows):
        fields = [str(labels[row])]
        fields += ["" if empty[row, i] else str(n) for i, n in enumerate(integers[row])]
        fields += ["" if empty[row, DENSE + i] else f"{n:08x}" for i, n in enumerate(codes[row])]
        lines.append("\t".join(fields))
    return ("\n".join(lines) + "\n").encode()


def write_log(path: Path, rows: int) -> None:
    """A log of so many rows, of which 20,000 are drawn."""
    block = drawn_lines(20_000, 1)
    with open(path, "wb") as file:
        for _ in range(rows // 20_000):
            file.write(block)


# ---- samples a second ----


def schedule(path: Path, readers: int, shuffle: bool) -> ReaderSchedule:
    """One pass over a log by readers."""
    schema = schema_of("criteo", ConvertOptions())
    log = RawLog((index_of(path, schema, "fail"),), schema)
    loader = Loader(log.open(), TABLES, BatchShare(BATCH), Reading(shuffle=shuffle))
    return ReaderSchedule(
        loader, 1, 0, SingleComm(), ReadersConfig(count=readers, ahead=readers), print
    )


def by_readers(path: Path, readers: int, shuffle: bool) -> Speed:
    """Speed of readers behind the first split of each, whose batches nobody trains on."""
    run = schedule(path, readers, shuffle)
    samples = 0
    watch = None
    try:
        for batch in run.batches(0):
            # readers start, and load kernels, while their first splits are read; as few as can be
            # are read ahead, since they count and took their time before
            if batch.first >= readers << 16:
                watch = watch or Stopwatch()
                samples += batch.samples
        assert watch is not None
        return watch.speed(samples)
    finally:
        run.close()


def by_rival(name: str, python: str, path: Path, seconds: float) -> Speed:
    """Speed of another program, in a process of its own; RuntimeError says why there is none."""
    command = [python, "-m", "benchmarks.reader_rivals", name, str(path), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return Speed(*json.loads(done.stdout))


def compare(rows: int, seconds: float, rounds: int, torch_python: str) -> None:
    """Print samples a second of readers and of other programs, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.tsv"
        write_log(path, rows)
        print(f"{rows:,} rows, {path.stat().st_size / 2**20:,.0f} MiB, {os.cpu_count()} cores")
        runs: dict[str, Callable[[], Speed]] = {
            f"{readers} readers, {'shuffled' if shuffle else 'in order'}": partial(
                by_readers, path, readers, shuffle
            )
            for shuffle, readers in itertools.product((False, True), (1, 2))
        }
        for name, title in RIVALS.items():
            python = torch_python if name == "torch" else sys.executable
            runs[title] = partial(by_rival, name, python, path, seconds)
        speeds: dict[str, list[Speed]] = {}
        for _, (name, run) in itertools.product(range(rounds), runs.items()):
            try:
                speeds.setdefault(name, []).append(run())
            except RuntimeError as error:
                print(f"{name}: {error}")
        for name, each in speeds.items():
            cpu, wall = (statistics.median(values) for values in zip(*each))
            print(f"{name:30} {cpu:10,.0f} a second of CPU, {wall:10,.0f} by the wall")


# ---- from reader to trainer ----


def by_tcp(frames: int, size: int) -> tuple[float, float]:
    """Seconds of CPU that a process takes to send so many frames, and another to receive them."""
    listener = socket.create_server(("127.0.0.1", 0))
    receiver = socket.create_connection(listener.getsockname())
    sender, _ = listener.accept()
    payload = np.zeros(size // 4, np.float32)

    def send_all() -> None:
        for _ in range(frames):
            send(sender, {}, [payload])

    def receive_all() -> None:
        for _ in range(frames):
            frame = receive(receiver)
            assert frame is not None
            frame.arrays[0].sum()

    return _seconds_of_two(send_all, receive_all)


def by_shared_pages(frames: int, size: int) -> tuple[float, float]:
    """The same, where a frame is a file of memory of its own, whose descriptor is handed over."""
    sender, receiver = socket.socketpair(socket.AF_UNIX)
    payload = np.zeros(size // 4, np.float32)

    def send_all() -> None:
        for _ in range(frames):
            descriptor = os.memfd_create("frame")
            os.writev(descriptor, [payload.data])
            socket.send_fds(sender, [b" "], [descriptor])
            os.close(descriptor)

    def receive_all() -> None:
        for _ in range(frames):
            _, (descriptor,), _, _ = socket.recv_fds(receiver, 1, 1)
            with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as pages:
                os.close(descriptor)
                array = np.frombuffer(pages, np.float32)
                array.sum()
                del array

    return _seconds_of_two(send_all, receive_all)


def _seconds_of_two(here: Callable[[], None], there: Callable[[], None]) -> tuple[float, float]:
    """CPU seconds of this process and of a child that does the other half meanwhile."""
    child = os.fork()
    if not child:
        there()
        os._exit(0)
    started = time.process_time()
    here()
    own = time.process_time() - started
    usage = os.wait4(child, 0)[2]
    return own, usage.ru_utime + usage.ru_stime


def carriers() -> None:
    """Print milliseconds of CPU for each MiB, of both processes, in turns."""
    total = 256 << 20
    for size in (256 << 10, 4 << 20, 16 << 20):
        for name, carry in (("TCP", by_tcp), ("shared pages", by_shared_pages)) * 2:
            sent, received = (1000 * t / (total >> 20) for t in carry(total // size, size))
            print(f"{size >> 10:6} KiB, {name:12} {sent:.2f} to send, {received:.2f} to receive")


# ---- a long stream ----


def memory_of(group: int) -> dict[str, int]:
    """KiB of resident memory of the processes of a session or below it, by what they run."""
    parents = {}
    sizes = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            status = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines())
            parents[int(path.name)] = int(status["PPid"])
            words = (path / "cmdline").read_bytes().decode().split("\0")
            kind = "reader" if any("readers.reader" in word for word in words) else "trainer"
            if "VmRSS" in status and "python" in words[0]:
                sizes[int(path.name)] = (kind, int(status["VmRSS"].split()[0]))
    found = {}
    for process, (kind, size) in sizes.items():
        above = process
        while above in parents and above != group:
            above = parents[above]
        if above == group:
            found[f"{kind} {process}"] = size
    return found


def stream(samples: int, batch: int, readers: int, ranks: int) -> None:
    """Train on rows that are written into a pipe; print the throughput, and memory over time."""
    lines = 4000  # of a piece of the stream
    pieces = [drawn_lines(lines, seed) for seed in range(16)]
    with tempfile.TemporaryDirectory() as folder:
        # MPICH's launcher would hand stdin on faster than it is read
        pipe = Path(folder) / "rows"
        os.mkfifo(pipe)
        keys = [f"data.train={pipe}", "data.shuffle=false", "data.valid=[]", "data.test=[]"]
        keys += [f"training.batch_size={batch}", "training.epochs=1", "training.steps=100000000"]
        settings = [word for key in keys for word in ("--set", key)]
        words = ["-m", "neocpu", "train", "tiny", "--readers", str(readers)]
        command, environment = mpiexec_command(ranks, [*words, "--out", f"{folder}/run", *settings])
        job = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        ended = threading.Event()
        looks: list[dict[str, int]] = []

        def look() -> None:
            while not ended.wait(5):
                looks.append(memory_of(job.pid))

        watch = threading.Thread(target=look)
        watch.start()
        with suppress(BrokenPipeError), open(pipe, "wb") as rows:
            for piece in itertools.islice(itertools.cycle(pieces), samples // lines):
                rows.write(piece)
        job.wait()
        ended.set()
        watch.join()
        summary = json.loads((Path(folder) / "run" / "run.json").read_text())
    print(f"{summary['samples']:,} samples, {summary['samples_per_second']:,.0f} samples/s")
    print(json.dumps(summary["readers"], indent=1))
    settled = looks[12:]  # the first minute compiles
    for process in sorted({name for sizes in settled for name in sizes}):
        sizes_then = [sizes[process] // 1024 for sizes in settled if process in sizes]
        quarters = np.array_split(sizes_then, 4)
        medians = [int(np.median(quarter)) for quarter in quarters if len(quarter)]
        print(f"{process}: MiB, medians of the quarters behind the first minute {medians}")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each other program, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--stream", type=float, default=0.0, help="samples")
    parser.add_argument("--batch", type=int, default=2048, help="of the stream")
    parser.add_argument("--carriers", action="store_true")
    arguments = parser.parse_args()
    if arguments.carriers:
        carriers()
    elif arguments.stream:
        stream(int(arguments.stream), arguments.batch, 2, 2)
    else:
        compare(arguments.rows, arguments.seconds, arguments.rounds, arguments.torch)


if __name__ == "__main__":
    main()
