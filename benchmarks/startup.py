"""How long until something happens? `neocpu --help`, and the first training step with a cold and a
warm kernel cache.

Every time is the wall time of a fresh process, interpreter start included. "First step" trains one
step of a small model and ends: cold compiles every kernel that the plan needs, warm loads them from
the cache. For scale: what importing torch (and FBGEMM) takes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import rivals
from benchmarks.harness import CORES, Contender, main, measure, summarise

CONFIG = Path(__file__).resolve().parent.parent / "data" / "models" / "tiny.toml"


def spawn(*command: str, cache: str | None = None) -> None:
    """Run a fresh interpreter to its end."""
    environment = os.environ | ({"NEOCPU_CACHE_DIR": cache} if cache else {})
    ended = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment
    )
    if ended.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr[-4000:]}"
        )


def process(name: str, side: str, *command: str) -> Contender:
    """Contender: a whole process."""
    return Contender(name, side, lambda _: spawn(*command))


def help_case(options: argparse.Namespace) -> dict[str, Any]:
    """`neocpu --help` against an empty interpreter and torch's import."""
    found = [
        process("neocpu --help", "ours", "-m", "neocpu", "--help"),
        process("python, nothing imported", "limit", "-c", "pass"),
        process("import numba", "note", "-c", "import numba"),
    ]
    if not options.no_rivals and rivals.have("torch"):
        found.append(process("import torch", "note", "-c", "import torch"))
    measure(found, options.rounds, warmup=1)
    return summarise("startup, --help", {"of": "a fresh process"}, found)


def first_step(
    cache: Callable[[], str], folder: Path, numbers: list[dict[str, Any]]
) -> Callable[[int], None]:
    """Run that trains one step with the kernel cache that `cache` names and keeps its run.json in
    `numbers`.
    """

    def run(_: int) -> None:
        out = tempfile.mkdtemp(dir=folder)
        settings = ["--set", "training.steps=1", "--set", f"training.threads={CORES}"]
        spawn("-m", "neocpu", "train", str(CONFIG), "--out", out, *settings, cache=cache())
        numbers.append(json.loads((Path(out) / "run.json").read_text()))

    return run


def step_case(options: argparse.Namespace) -> dict[str, Any]:
    """Cold and warm first steps of the README's model."""
    cold: list[dict[str, Any]] = []
    warm: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        filled = str(Path(name) / "filled")
        first_step(lambda: filled, folder, [])(0)
        found = [
            Contender(
                "warm: kernels from the cache",
                "ours",
                first_step(lambda: filled, folder, warm),
                CORES,
            ),
            Contender(
                "cold: every kernel compiled",
                "note",
                first_step(lambda: tempfile.mkdtemp(dir=folder), folder, cold),
                CORES,
            ),
        ]
        for contender in found:  # no warm-up: a cold start is what it says
            for _ in range(1 if options.quick else 3):
                contender.seconds.append(contender.call())
    numbers = [
        f"{k} {max(n['cold_start_seconds'] for n in runs):.1f} s"
        for k, runs in (("cold", cold), ("warm", warm))
    ]
    notes = [f"As the run itself reports it (`cold_start_seconds`): {', '.join(numbers)}."]
    return summarise(
        "startup, train one step and end", {"model": CONFIG.name, "ranks": 1}, found
    ) | {"notes": notes}


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Both cases."""
    return [help_case(options)] if options.quick else [help_case(options), step_case(options)]


if __name__ == "__main__":
    main(__doc__, benchmark)
