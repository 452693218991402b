"""How far is a predicted step from a measured one on several hosts? Links of a set rate between
hosts of this machine (`tests/hosts.py`), two ranks on each.

    python -m benchmarks.hosts                              # with nothing else to do
    python -m benchmarks.hosts --hosts 2 --rates 1e8        # bits a second; on a busy machine

For each rate `neocpu calibrate --hosts` measures the links. Each way of exchanging trains on links
that are as fast as they go, which gives what a step takes besides waiting for exchanges (the rest),
and the bytes between hosts; and then on the slow ones. A step is predicted as

    pipeline off     the rest + seconds of its bytes on the calibrated links
    pipeline full    seconds of its bytes on the calibrated links

but never below what it takes on fast links, where the hosts' cores are what limits an exchange.
Nothing is fitted to what the slow links gave.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from neocpu.plan.machines import machine_file
from neocpu.plan.machines.machine import Machine
from tests.hosts import Host, Room, room

RANKS = 2  # of each host
# ways of exchanging, by the keys of a config
WAYS: Mapping[str, Sequence[str]] = {
    "flat": (),
    "two-level": ("parallel.alltoall=two_level",),
    "wires fp16, bf16": ("wires.forward=fp16", "wires.backward=bf16"),
    "wires int8": ("wires.forward=int8", "wires.backward=int8"),
    "towers": ("parallel.towers=true",),
    "unique rows": ("parallel.unique_rows=auto",),
    "flat, overlapped": ("training.pipeline=full",),
    "two-level, overlapped": ("parallel.alltoall=two_level", "training.pipeline=full"),
}
# the README's log, so that a step is mostly exchanges: of wide vectors in large batches, or of the
# gradients of wide layers
SHAPES: Mapping[str, Sequence[str]] = {
    "vectors": ("model.embedding_dim=64", "model.bottom=[64,64]", "training.batch_size=1024"),
    "layers": ("model.bottom=[1024,8]", "model.top=[1024,512,1]", "training.batch_size=256"),
}
_FEW = (
    *(("vectors", way) for way in ("flat", "two-level", "wires int8", "flat, overlapped")),
    *(("layers", way) for way in ("flat", "two-level")),
)
# what is measured on so many hosts, by shape and way
ROWS: Mapping[int, Sequence[tuple[str, str]]] = {
    2: (*(("vectors", way) for way in WAYS), ("layers", "flat"), ("layers", "two-level")),
    3: _FEW,
    4: _FEW,
}
JOB = (
    "training.pipeline=off",
    "training.threads=1",
    "data.test=[]",
    "eval.every_steps=0",
    "checkpoint.every_steps=0",
)


def named(hosts: Room) -> list[str]:
    """The options that name all hosts."""
    return ["--hosts", ",".join(f"{name}:{RANKS}" for name in hosts.names)]


def calibrated(hosts: Room, folder: Path) -> Path:
    """The file of the machine whose links are those of the hosts."""
    path = folder / "machine.toml"
    words = ["calibrate", "--quick", "--ranks", str(RANKS), "--out", str(path), "--force"]
    hosts.run([sys.executable, "-m", "neocpu", *words, *named(hosts)], {})
    return path


def trained(hosts: Room, folder: Path, keys: Sequence[str], steps: int) -> dict[str, Any]:
    """run.json of a job."""
    out = Path(tempfile.mkdtemp(dir=folder))
    words = ["train", "tiny", "--out", str(out / "run"), *named(hosts)]
    for key in (*JOB, *keys, f"training.steps={steps}"):
        words += ["--set", key]
    hosts.run([sys.executable, "-m", "neocpu", *words], {})
    return json.loads((out / "run" / "run.json").read_text())


def on_links(summary: Mapping[str, Any], machine: Machine, ranks: int) -> float:
    """Seconds that the bytes of a run between hosts take on the links of a machine."""
    seconds = 0.0
    for verb, times in summary["machine"]["collectives"].items():
        calls = times["calls"]
        size = times["other_node"]["bytes"]
        if size:
            seconds += calls * machine.transfer_seconds(verb, "between_nodes", ranks, size / calls)
    return seconds


def waited(summary: Mapping[str, Any]) -> float:
    """Seconds of a step that a rank waits for exchanges, mean of the ranks."""
    return sum(queue["exposed"]["mean"] for queue in summary["exchanges"]["queues"])


class Row:
    """A shape and way of exchanging, on links that are as fast as they go."""

    def __init__(self, shape: str, way: str) -> None:
        self.name = f"{shape}, {way}"
        self.shape = shape
        self.keys = (*SHAPES[shape], *WAYS[way])
        self.overlapped = "training.pipeline=full" in self.keys
        self.summary: Mapping[str, Any] = {}

    def train_alone(self, hosts: Room, folder: Path, steps: int) -> None:
        """Take these steps on fast links."""
        # the name of any machine: what is sent is counted for it by collective
        keys = (*self.keys, "parallel.machine=zionex")
        self.summary = trained(hosts, folder, keys, steps)

    def figures(self, links: float, steps: int) -> list[float]:
        """The rest of a step, a step on fast links, and a predicted one; links : seconds of its
        bytes there.
        """
        alone = self.summary["seconds"] / steps
        rest = max(0.0, alone - waited(self.summary))
        return [rest, alone, links, max(alone, links if self.overlapped else rest + links)]


def lines(count: int, options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """A line of the table for each rate and row, on so many hosts."""
    steps = options.steps
    hosts = [Host()] * count
    ranks = RANKS * count
    rows = [Row(shape, way) for shape, way in ROWS[count]]
    first = {shape: Row(shape, "flat") for shape in SHAPES}
    with ExitStack() as stack:
        fast = stack.enter_context(room(hosts))
        for row in first.values():
            row.train_alone(fast, folder, 1)
        for row in rows:
            row.train_alone(fast, folder, steps)
        flat = {shape: next(row for row in rows if row.shape == shape) for shape in SHAPES}
        for rate in options.rates:
            slow = stack.enter_context(room(hosts, rate))
            machine = machine_file.load(str(calibrated(slow, folder)))
            for row in rows:
                whole = on_links(flat[row.shape].summary, machine, ranks)
                begun = on_links(first[row.shape].summary, machine, ranks)
                # what goes over links before the first step and after the last one goes once
                once = begun - (whole - begun) / (steps - 1)
                links = (on_links(row.summary, machine, ranks) - once) / steps
                measured = trained(slow, folder, row.keys, steps)
                assert measured["digest"] == row.summary["digest"]
                figures = [*row.figures(links, steps), measured["seconds"] / steps]
                text = " | ".join(f"{figure * 1e3:.0f}" for figure in figures)
                where = f"{rate / 1e6:,.0f} Mbit/s, {count} hosts: {row.name}"
                yield f"| {where} | {text} | {figures[-2] / figures[-1]:.2f} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--rates", type=float, nargs="+", default=[1e8, 1e9, 1e10])
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    print("| links | the rest, ms | on fast links | bytes | predicted | measured | ratio |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for count in options.hosts:
            for line in lines(count, options, Path(name)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
