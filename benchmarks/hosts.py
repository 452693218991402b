"""How far is a predicted step from a measured one on several hosts? Links of a set rate between
hosts of this machine (`tests/hosts.py`), two ranks on each.

    python -m benchmarks.hosts                              # with nothing else to do
    python -m benchmarks.hosts --shape layers
    python -m benchmarks.hosts --hosts 2 3 --rates 1e8      # bits a second; on a busy machine

For each rate `neocpu calibrate --hosts` measures the links. Each way of exchanging then trains on
links that are as fast as they go, which gives what a step takes besides its exchanges (the rest),
and the bytes between hosts; and on the slow ones. A step is predicted as

    pipeline off     the rest + seconds of its bytes on the calibrated links
    pipeline full    the larger of the two

and nothing is fitted to what the slow links gave.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def on_links(summary: Mapping[str, Any]) -> float:
    """Seconds that the bytes of a run take on the links of its `parallel.machine`."""
    verbs = summary["machine"]["collectives"].values()
    return sum(verb["other_node"]["seconds"] for verb in verbs)


def waited(summary: Mapping[str, Any]) -> float:
    """Seconds of a step that a rank waits for exchanges, mean of the ranks."""
    return sum(queue["exposed"]["mean"] for queue in summary["exchanges"]["queues"])


def rows(count: int, rate: float, options: argparse.Namespace, folder: Path) -> None:
    """Print a line for each way on so many hosts."""
    steps = options.steps
    hosts = [Host()] * count
    with room(hosts, rate) as slow:
        machine = f"parallel.machine={calibrated(slow, folder)}"
        with room(hosts) as fast:
            for way in options.ways:
                keys = [*SHAPES[options.shape], *WAYS[way], machine]
                alone = trained(fast, folder, keys, steps)
                # what goes over links before the first step and after the last one goes once
                few = trained(fast, folder, keys, 1)
                links = (on_links(alone) - on_links(few)) / (steps - 1)
                rest = max(0.0, alone["seconds"] / steps - waited(alone))
                overlapped = "training.pipeline=full" in keys
                predicted = max(rest, links) if overlapped else rest + links
                measured = trained(slow, folder, keys, steps)
                assert measured["digest"] == alone["digest"]
                seconds = measured["seconds"] / steps
                where = f"{options.shape}, {rate / 1e6:,.0f} Mbit/s, {count}"
                print(
                    f"| {where} | {way} | {rest * 1e3:.0f} | "
                    f"{links * 1e3:.0f} | {predicted * 1e3:.0f} | {seconds * 1e3:.0f} | "
                    f"{predicted / seconds:.2f} |",
                    flush=True,
                )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e8, 1e9, 1e10])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--shape", choices=SHAPES, default="vectors")
    options = parser.parse_args()
    print("| shape, links, hosts | way | rest, ms | links, ms | predicted | measured | ratio |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for rate in options.rates:
            for count in options.hosts:
                rows(count, rate, options, Path(name))


if __name__ == "__main__":
    main()
