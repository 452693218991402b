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
from typing import Any, NamedTuple

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
_FEW = ("flat", "two-level", "wires int8", "flat, overlapped")
# the ways that are measured, by shape and hosts
ROWS: Mapping[tuple[str, int], Sequence[str]] = {
    ("vectors", 2): tuple(WAYS),
    ("layers", 2): ("flat", "two-level"),
    ("vectors", 3): _FEW,
    ("layers", 3): ("flat", "two-level"),
    ("vectors", 4): _FEW,
    ("layers", 4): ("flat", "two-level"),
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
    summary: dict[str, Any] = json.loads((out / "run" / "run.json").read_text())
    return summary


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


class Alone(NamedTuple):
    """A way on links that are as fast as they go: a run of all steps, and one of a single step."""

    run: Mapping[str, Any]
    first: Mapping[str, Any]

    def on_links(self, machine: Machine, ranks: int, steps: int) -> float:
        """Seconds of a step's bytes on the links of a machine.

        What goes over links before the first step and after the last one goes once.
        """
        once = on_links(self.first, machine, ranks)
        return (on_links(self.run, machine, ranks) - once) / (steps - 1)


def lines(count: int, shape: str, options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """A line of the table for each rate and way, on so many hosts."""
    steps = options.steps
    hosts = [Host()] * count
    keys = {way: (*SHAPES[shape], *WAYS[way]) for way in ROWS[shape, count]}
    with ExitStack() as stack:
        fast = stack.enter_context(room(hosts))
        # the name of any machine: what is sent is counted for it by collective
        any_machine = "parallel.machine=zionex"
        alone = {
            way: Alone(*(trained(fast, folder, (*keys[way], any_machine), n) for n in (steps, 1)))
            for way in keys
        }
        for rate in options.rates:
            slow = stack.enter_context(room(hosts, rate))
            machine = machine_file.load(str(calibrated(slow, folder)))
            for way in keys:
                links = alone[way].on_links(machine, RANKS * count, steps)
                shortest = alone[way].run["seconds"] / steps
                rest = max(0.0, shortest - waited(alone[way].run))
                overlapped = "training.pipeline=full" in keys[way]
                predicted = max(shortest, links if overlapped else rest + links)
                measured = trained(slow, folder, keys[way], steps)
                assert measured["digest"] == alone[way].run["digest"]
                seconds = measured["seconds"] / steps
                figures = [rest, shortest, links, predicted, seconds]
                where = f"{rate / 1e6:,.0f} Mbit/s, {count} hosts: {shape}, {way}"
                text = " | ".join(f"{figure * 1e3:.0f}" for figure in figures)
                yield f"| {where} | {text} | {predicted / seconds:.2f} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e8, 1e9, 1e10])
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    print("| links | the rest, ms | on fast links | bytes | predicted | measured | ratio |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for shape, count in ROWS:
            if count in options.hosts:
                for line in lines(count, shape, options, Path(name)):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
