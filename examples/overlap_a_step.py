"""What does a step wait for, and what can it do meanwhile? From the serial step to the overlapped.

    python examples/overlap_a_step.py                      # about a minute on two cores
    python examples/overlap_a_step.py --keep out           # traces for ui.perfetto.dev
    python examples/overlap_a_step.py --picture docs/overlap.svg

The same steps are trained three times on 4 ranks whose links are slow (`parallel.link_bandwidth`),
so that exchanges take a good part of the step: with `training.pipeline` off, where everything
waits for what comes before; with input, where the lookups of the next batch travel during a step;
and full, where pooled vectors travel under the bottom MLP and dense gradients under the rest of the
backward pass. Each time it is printed what rank 0 did in one step and what it waited for, and how
long exchanges took and were waited for. The digest is the same three times.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import _needs  # noqa: F401, what to install

from neocpu.ingest.synthetic.generate import write_dataset
from neocpu.ingest.synthetic.law import SyntheticCriteo
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.launch import mpiexec_command
from neocpu.plan.simulation.trace_picture import Panel, trace_svg
from neocpu.train.config import config as configs
from neocpu.train.watch.exchange_times import exchange_lines

KINDS = ("off", "input", "full")
SAMPLES = 4096
MODEL = """
[data]
train = "{log}"
shuffle = false

[model]
embedding_dim = 32
bottom = [512, 256, 32]
top = [512, 256, 1]

[training]
batch_size = {samples}
steps = {steps}

[parallel]
plan = "table_wise"
link_bandwidth = {bandwidth}
link_latency = 1e-4

[tables]
"""


def write_model(folder: Path, steps: int, samples: int, bandwidth: float) -> Path:
    """Write the config and its log into a folder; returns the config's path."""
    log = folder / "log.h5"
    write_dataset(SyntheticCriteo(1, max_rows=100_000), log, 0, samples * steps)
    text = MODEL.format(log=log, samples=samples, steps=steps, bandwidth=bandwidth)
    tables = [f"C{n} = {{ rows = 20_000 }}" for n in range(1, 27)]
    path = folder / "model.toml"
    path.write_text(text + "\n".join(tables) + "\n")
    return path


def train(config: Path, kind: str, ranks: int, threads: bool) -> dict[str, Any]:
    """Train with a kind of pipelining; the summary, the trace beside the config.

    threads : ranks are threads of this process; else processes under mpiexec.
    """
    out = config.parent / kind
    trace = config.parent / f"{kind}.json"
    override = f"training.pipeline={kind}"
    if threads:
        from neocpu.parallel.transport.threads import run_threads
        from neocpu.train.run.trainer import Trainer
        from neocpu.train.watch.trace import RunTrace

        settings = configs.load(config, [override])

        def body(comm: Comm) -> dict[str, Any]:
            return Trainer(settings, comm, out, trace=RunTrace(trace, comm)).run()

        return run_threads(ranks, body)[0]
    arguments = ["-m", "neocpu", "train", str(config), "--out", str(out)]
    arguments += ["--set", override, "--trace", str(trace)]
    command, environment = mpiexec_command(ranks, arguments)
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"pipeline {kind} ended with an error:\n{result.stderr[-3000:]}")
    return json.loads((out / "run.json").read_text())


def print_step(trace: Mapping[str, Any], step: int, least: float = 0.05) -> None:
    """What rank 0 computed and waited for in one step, in its order; `least` ms to be shown."""
    pieces = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
    whole = next(event for event in pieces if event["name"] == f"step {step}")
    begin = whole["ts"]
    end = begin + whole["dur"]
    # tracks: 0 steps, 1 compute, 2 waiting, then the network
    local = [event for event in pieces if event["tid"] in (1, 2) and begin <= event["ts"] < end]
    network = [event for event in pieces if event["tid"] > 2]
    for event in sorted(local, key=lambda event: event["ts"]):
        if event["dur"] < 1e3 * least:
            continue
        last = event["ts"] + event["dur"]
        under_way = [
            other["name"]
            for other in network
            if min(last, other["ts"] + other["dur"]) - max(event["ts"], other["ts"])
            > 0.5 * event["dur"]
        ]
        hidden = ", ".join(dict.fromkeys(under_way)) if event["tid"] == 1 else ""
        print(
            f"    {(event['ts'] - begin) / 1e3:7.2f}  {event['dur'] / 1e3:7.2f} ms  "
            f"{event['name']:28}{'meanwhile: ' + hidden if hidden else ''}".rstrip()
        )
    print(f"    the step took {whole['dur'] / 1e3:.2f} ms")


def shown_steps(steps: int) -> tuple[int, int]:
    """Two steps in the middle of a run, which no start and no end disturbs."""
    middle = max(steps // 2, 2)
    return middle, min(middle + 1, steps)


def draw(traces: Mapping[str, Mapping[str, Any]], ranks: int, steps: int, path: Path) -> None:
    """The picture: one rank in the serial step and in the overlapped one."""
    window = shown_steps(steps)
    panels = [
        Panel(f"pipeline {kind}, rank 0", traces[kind], [0], window) for kind in ("off", "full")
    ]
    title = "A step without and with overlap"
    subtitle = f"{ranks} ranks on slow links, measured with --trace; the same digest"
    path.write_text(trace_svg(panels, title, subtitle))
    print(f"the picture is in {path}")


def main(
    ranks: int = 4,
    steps: int = 20,
    samples: int = SAMPLES,
    bandwidth: float = 1.5e8,
    *,
    threads: bool = False,
    keep: Path | None = None,
    picture: Path | None = None,
) -> None:
    """Train three times, and compare."""
    digests = set()
    traces: dict[str, Mapping[str, Any]] = {}
    speeds = {}
    with tempfile.TemporaryDirectory() as name:
        folder = keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        config = write_model(folder, steps, samples, bandwidth)
        for kind in KINDS:
            summary = train(config, kind, ranks, threads)
            digests.add(summary["digest"])
            speeds[kind] = summary["samples_per_second"]
            traces[kind] = json.loads((folder / f"{kind}.json").read_text())
            print(f"pipeline {kind}: {speeds[kind]:,.0f} samples/s, a step of rank 0:")
            print_step(traces[kind], shown_steps(steps)[0])
            for line in exchange_lines(summary["exchanges"]):
                print(f"    {line}")
            print(f"    digest {summary['digest']}\n", flush=True)
    for kind in KINDS[1:]:
        print(f"pipeline {kind}: {speeds[kind] / speeds['off']:.2f} x the speed of off")
    if picture:
        draw(traces, ranks, steps, picture)
    if keep:
        print(f"open {keep}/off.json, input.json and full.json in ui.perfetto.dev")
    if len(digests) > 1:
        raise SystemExit("the digests differ: a bit was lost, which is a bug")
    print("Three orders of one step, one digest: overlap decides when, never what.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of all ranks in a step")
    parser.add_argument("--bandwidth", type=float, default=1.5e8, help="bytes a second of a link")
    parser.add_argument("--threads", action="store_true", help="ranks as threads, without MPI")
    parser.add_argument("--keep", type=Path, help="folder for the traces")
    parser.add_argument("--picture", type=Path, help="write the picture of the docs (.svg)")
    options = parser.parse_args()
    main(
        options.ranks,
        options.steps,
        options.samples,
        options.bandwidth,
        threads=options.threads,
        keep=options.keep,
        picture=options.picture,
    )
