"""How long does a start take? `neocpu --help`, and a first training step, cold and warm.

Every time is the wall time of a fresh process, interpreter start included. "First step" trains one
step of a small model and ends: cold compiles every kernel that the plan needs, warm loads them from
the cache. The import of torch is given for comparison.
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

# The model that is trained.
CONFIG = Path(__file__).resolve().parent.parent / "data" / "models" / "tiny.toml"


def spawn(*command: str, cache: str | None = None) -> None:
    """Run a fresh interpreter to its end."""
    environment = os.environ | ({"NEOCPU_CACHE_DIR": cache} if cache else {})
    process = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment
    )
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {process.returncode}:\n{process.stderr[-4000:]}"
        )


def process(name: str, side: str, *command: str) -> Contender:
    """Contender: a whole process."""
    return Contender(name, side, lambda _: spawn(*command))


def help_case(options: argparse.Namespace) -> dict[str, Any]:
    """`neocpu --help` against an empty interpreter and torch's import."""
    contenders = [
        process("neocpu --help", "ours", "-m", "neocpu", "--help"),
        process("python, nothing imported", "limit", "-c", "pass"),
        process("import numba", "note", "-c", "import numba"),
    ]
    if not options.no_rivals and rivals.have("torch"):
        contenders.append(process("import torch", "note", "-c", "import torch"))
    measure(contenders, options.rounds, warmup=1)
    return summarise("startup, --help", {"of": "a fresh process"}, contenders)


def first_step(
    cache: Callable[[], str], folder: Path, numbers: list[dict[str, Any]]
) -> Callable[[int], None]:
    """A function that trains one step with the kernel cache `cache()`.

    It appends the run's run.json to `numbers`.
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
        warm_cache = str(Path(name) / "filled")
        first_step(lambda: warm_cache, folder, [])(0)
        contenders = [
            Contender(
                "warm: kernels from the cache",
                "ours",
                first_step(lambda: warm_cache, folder, warm),
                CORES,
            ),
            Contender(
                "cold: every kernel compiled",
                "note",
                first_step(lambda: tempfile.mkdtemp(dir=folder), folder, cold),
                CORES,
            ),
        ]
        # Without warm-up, which would make the cold start a warm one.
        for contender in contenders:
            for _ in range(1 if options.quick else 3):
                contender.seconds.append(contender.call())
    numbers = [
        f"{k} {max(n['cold_start_seconds'] for n in runs):.1f} s"
        for k, runs in (("cold", cold), ("warm", warm))
    ]
    notes = [f"As the run itself reports it (`cold_start_seconds`): {', '.join(numbers)}."]
    return summarise(
        "startup, train one step and end", {"model": CONFIG.name, "ranks": 1}, contenders
    ) | {"notes": notes}


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Both cases."""
    return [help_case(options)] if options.quick else [help_case(options), step_case(options)]


if __name__ == "__main__":
    main(__doc__, benchmark)
