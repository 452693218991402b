"""Does a model learn the same on 128 ranks as on one? 16 nodes of 8 ranks, here on any machine.

    python examples/emulate_128_ranks.py                # minutes on two cores, under 16 GB
    python examples/emulate_128_ranks.py --ranks 32     # a quarter of that

The model is Neo's model A, scaled down (`MODEL` says how); its log is generated in a temporary
folder. The ranks are started under mpiexec, and one rank alone is trained for comparison. What is
printed of memory is the proportional set size: a page that n ranks share counts 1/n for each.
docs/zionex.md, "Emulation", has measured figures.
"""

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import _needs  # noqa: F401, what to install

from neocpu.ingest.synthetic.generate import write_dataset
from neocpu.ingest.synthetic.law import SyntheticCriteo, parse_hotness
from neocpu.parallel.transport.launch import mpiexec_command

RANKS_PER_NODE = 8
# Of the paper's model A (data/models/neo-a.toml, whose numbers are partly remembered, unverified):
# its cycle of dims by 4, so that a rank holds few columns; thousands of tables become hundreds.
# Bags have the same 15 lookups on average, of the 26 categories of a Criteo-shaped log.
DIMS = (4, 4, 8, 12, 16, 16, 32, 96)
POOLING = 15
# Rows of the first table; the n-th has 1/n of them, as in the preset.
FIRST_ROWS = 200_000
LEAST_ROWS = 16
# Samples of each rank in a step, of 512 in the paper (remembered): a step must not take minutes.
SAMPLES_PER_RANK = 4
MODEL = """
[data]
train = "{log}"
shuffle = false

[model]
bottom = [64, 16]
top = [16, 64, 1]
interaction = "cat"

[optimizer.sparse]
name = "exact_rowwise_adagrad"
learning_rate = 0.02
eps = 1e-8

[training]
batch_size = {batch}
steps = {steps}
leaves = {leaves}

[parallel]
ranks_per_node = {ranks_per_node}
machine = "zionex"

[tables]
"""
# Seconds between two looks at the memory of the ranks.
LOOK = 2.0


@dataclass
class Use:
    """Memory of a run at the moment when its processes had most of it together.

    kinds : bytes of all processes by what they are: "private" to one, "shared" between several,
    or in "files" that are mapped, such as libraries.
    """

    processes: int = 0
    bytes: int = 0
    largest: int = 0
    kinds: Counter[str] = field(default_factory=Counter)


def write_model(folder: Path, ranks: int, tables: int, steps: int) -> Path:
    """Write the config and its log into a folder; returns the config's path."""
    batch = SAMPLES_PER_RANK * ranks
    log = folder / "log.h5"
    criteo = SyntheticCriteo(1, hotness=parse_hotness(f"geometric:{POOLING}"), max_rows=100_000)
    write_dataset(criteo, log, 0, batch * steps)
    leaves = 1 << (ranks - 1).bit_length()
    text = MODEL.format(
        log=log, batch=batch, steps=steps, leaves=leaves, ranks_per_node=RANKS_PER_NODE
    )
    lines = [
        f"T{n + 1} = {{ rows = {max(FIRST_ROWS // (n + 1), LEAST_ROWS)}, "
        f'dim = {DIMS[n % len(DIMS)]}, features = ["C{n % 26 + 1}"] }}'
        for n in range(tables)
    ]
    path = folder / "model-a.toml"
    path.write_text(text + "\n".join(lines) + "\n")
    return path


def descendants(root: int) -> list[int]:
    """A process and all that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        children.setdefault(parent, []).append(int(entry.parent.name))
    processes = [root]
    for process in processes:
        processes.extend(children.get(process, ()))
    return processes


def memory_of(processes: list[int]) -> Use:
    """Proportional set sizes of processes, as Linux tells them."""
    use = Use()
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            continue
        sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}
        use.processes += 1
        use.bytes += sizes["Pss"]
        use.largest = max(use.largest, sizes["Pss"])
        for kind, name in (("private", "Anon"), ("shared", "Shmem"), ("files", "File")):
            use.kinds[kind] += sizes[f"Pss_{name}"]
    return use


def run(config: Path, ranks: int) -> tuple[str, Use]:
    """Train on so many ranks; (what was printed, memory at its peak).

    Raises SystemExit with what was printed if the run fails.
    """
    arguments = ["-m", "neocpu", "train", str(config), "--out", str(config.parent / f"{ranks}")]
    command, environment = mpiexec_command(ranks, arguments)
    if ranks == 1:
        command = command[3:]  # without mpiexec -n 1
    peak = Use()
    with open(config.parent / f"{ranks}.txt", "w+") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True
        )
        try:
            while process.poll() is None:
                time.sleep(LOOK if ranks > 1 else 0.2)
                use = memory_of(descendants(process.pid))
                peak = use if use.bytes > peak.bytes else peak
        finally:
            process.terminate()
            process.wait()
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise SystemExit(f"{ranks} rank(s) ended with status {process.returncode}:\n{text[-3000:]}")
    return text, peak


def main(ranks: int = 128, steps: int = 20, tables: int = 384) -> None:
    """Train on one rank and on `ranks`, and compare."""
    digests = []
    with tempfile.TemporaryDirectory() as name:
        config = write_model(Path(name), ranks, tables, steps)
        for count in (1, ranks):
            start = time.perf_counter()
            text, peak = run(config, count)
            seconds = time.perf_counter() - start
            lines = text.splitlines()
            digests.append(lines[-1])
            print(f"{count} rank(s): {seconds:.1f} s from the start to the end of all processes")
            for line in lines:
                if line.startswith(("first step", f"{steps} steps", "sent by", "on zionex", "all")):
                    print(f"    {line}")
            size = peak.bytes / 2**20
            kinds = ", ".join(f"{kind} {use / 2**20:,.0f}" for kind, use in peak.kinds.items())
            print(f"    memory of {peak.processes} processes: {size:,.0f} MiB ({kinds})")
            print(f"    of a rank: {size / count:,.0f} MiB, at most {peak.largest / 2**20:,.0f}")
            print(f"    {digests[-1]}", flush=True)
    if digests[0] != digests[1]:
        raise SystemExit("the digests differ: a bit was lost, which is a bug")
    nodes = -(-ranks // RANKS_PER_NODE)
    print(f"{ranks} ranks, {nodes} nodes of up to {RANKS_PER_NODE}: the same digest as one rank.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tables", type=int, default=384)
    options = parser.parse_args()
    main(options.ranks, options.steps, options.tables)
