"""From a model that fits, over one that does not, to twelve trillion parameters: one digest each,
wherever rows live.

    python examples/beyond_memory.py

It takes two minutes on two cores, once kernels are compiled, and 300 MB of disk.
Everything is made here: two logs of a few thousand samples in a temporary folder. docs/memory.md
says how it works.
"""

import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from neocpu import config
from neocpu.cli.plan import human, model_lines
from neocpu.cli.train import tier_lines
from neocpu.config import Config
from neocpu.errors import TrainingError
from neocpu.ingest.generate import write_dataset
from neocpu.ingest.synthetic import SyntheticCriteo, parse_hotness
from neocpu.parallel.threads import run_threads
from neocpu.planner.capacity import model_bytes
from neocpu.training.trainer import Trainer

MODELS = Path(__file__).resolve().parent.parent / "data" / "models"


def train(settings: Config, out: Path, ranks: int = 1) -> dict[str, Any]:
    """Summary of a run on so many ranks, threads of this process."""
    folder = out / f"run-{len(list(out.iterdir()))}"
    return run_threads(ranks, lambda comm: Trainer(settings, comm, folder).run())[0]


def say(text: str = "") -> None:
    """A line, or several."""
    print(text, flush=True)


def the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Compare two runs' digests, for everybody to see."""
    say(f"    digest {other['digest']}")
    if one["digest"] != other["digest"]:
        raise SystemExit(f"expected {one['digest']}: a bit was lost, which is a bug")


def fits(folder: Path, steps: int) -> tuple[list[str], dict[str, Any]]:
    """A model within memory. Returns its keys and its run."""
    log = folder / "small.h5"
    write_dataset(SyntheticCriteo(1, max_rows=2000), log, 0, 128 * steps)
    keys = [
        f'data.train="{log}"',
        "data.test=[]",
        f"training.steps={steps}",
        "training.batch_size=128",
    ]
    settings = config.load(MODELS / "tiny.toml", keys)
    size = model_bytes(settings.tables, settings.optimizer.sparse.state_floats).total
    say(
        f"1. It fits: data/models/tiny.toml, {len(settings.tables)} tables of {human(size)} with "
        "optimizer state, all in memory"
    )
    found = train(settings, folder)
    the_same(found, found)
    return keys, found


def does_not_fit(folder: Path, keys: list[str], whole: dict[str, Any]) -> None:
    """The same model under budgets that are too small for it."""
    small = ["memory.hbm=120_000", "memory.ddr=400_000"]
    say(
        "\n2. It does not fit: a rank may use 120,000 bytes of HBM and 400,000 of DDR. Left in "
        "HBM, it is refused:"
    )
    try:
        train(config.load(MODELS / "tiny.toml", [*keys, *small]), folder)
    except TrainingError as error:
        say(f"    {error}")
    say(
        '    With memory.placement = "auto", what is asked for most per byte lies fastest, the '
        "rest is cached over an SSD file:"
    )
    for ranks in (1, 2):
        found = train(
            config.load(MODELS / "tiny.toml", [*keys, *small, "memory.placement=auto"]),
            folder,
            ranks,
        )
        if ranks == 1:
            kinds: dict[str, list[str]] = {}
            for entry in found["placements"]:
                kinds.setdefault(entry["placement"], []).append(entry["table"])
            for name, tables in kinds.items():
                say(f"    {name:23}{' '.join(tables)}")
            for line in tier_lines(found)[:8]:
                say(f"    {line}".rstrip())
            say("    …")
        say(f"    on {ranks} rank(s), where the two budgets are each rank's")
        the_same(whole, found)


def twelve_trillion(folder: Path, steps: int, batch: int, counts: tuple[int, ...]) -> None:
    """The size of the paper's largest model, of which a few steps touch a few rows."""
    log = folder / "bags.h5"
    write_dataset(SyntheticCriteo(1, hotness=parse_hotness("geometric:20")), log, 0, steps * batch)
    keys = [
        f'data.train="{log}"',
        f"training.steps={steps}",
        f"training.batch_size={batch}",
        "memory.ddr=200_000_000",
    ]
    settings = config.load(MODELS / "neo-f.toml", keys)
    say(
        "\n3. Twelve trillion: data/models/neo-f.toml, rows of 256 columns in an SSD file, 200 MB "
        "of DDR in front of it"
    )
    for line in model_lines(settings):
        say(f"    {line}".rstrip())
    first = None
    for ranks in counts:
        found = train(settings, folder, ranks)
        ssd = [tier for tier in found["tiers"] if tier["tier"] == "ssd"]
        rows = sum(tier["rows"] for tier in ssd)
        size = sum(tier["bytes"] for tier in ssd)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
        say(
            f"    on {ranks} rank(s): {steps} steps of {batch} samples changed {rows:,} rows, "
            f"{human(size)} on the SSD; this"
        )
        say(f"    process has used {human(peak)} of memory at most")
        first = first or found
        the_same(first, found)


def main(
    steps: int = 40, large_steps: int = 4, large_batch: int = 256, counts: tuple[int, ...] = (1, 2)
) -> None:
    """All three, the last on so many ranks, in a folder that goes away."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys, whole = fits(folder, steps)
        does_not_fit(folder, keys, whole)
        twelve_trillion(folder, large_steps, large_batch, counts)
    say("\nNo bit depends on where a row lives.")


if __name__ == "__main__":
    main()
