"""Does the digest of a run depend on where rows live? Three models, up to 12 trillion parameters.

    python examples/beyond_memory.py

Takes under two minutes on two cores, once kernels are compiled, and 300 MB of disk. The logs, of a
few thousand samples, are generated in a temporary folder. docs/memory.md explains the tiers.
"""

import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import _needs  # noqa: F401, what to install

from neocpu.cli.plan import human, model_lines
from neocpu.cli.train import tier_lines
from neocpu.core.errors import TrainingError
from neocpu.ingest.synthetic.generate import write_dataset
from neocpu.ingest.synthetic.law import SyntheticCriteo, parse_hotness
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.cost.capacity import model_bytes
from neocpu.train.config import config
from neocpu.train.config.config import Config
from neocpu.train.run.trainer import Trainer

# Folder of the preset models.
MODELS = Path(__file__).resolve().parent.parent / "data" / "models"


def train(settings: Config, out: Path, ranks: int = 1) -> dict[str, Any]:
    """Summary of a run; its ranks are threads of this process."""
    folder = out / f"run-{len(list(out.iterdir()))}"
    return run_threads(ranks, lambda comm: Trainer(settings, comm, folder).run())[0]


def show(text: str = "") -> None:
    """Print a line at once."""
    print(text, flush=True)


def compare_digests(expected: dict[str, Any], summary: dict[str, Any]) -> None:
    """Print a run's digest; stop if it is not the expected run's."""
    show(f"    digest {summary['digest']}")
    if expected["digest"] != summary["digest"]:
        raise SystemExit(f"expected {expected['digest']}: a bit was lost, which is a bug")


def run_within_memory(folder: Path, steps: int) -> tuple[list[str], dict[str, Any]]:
    """Train a model that fits into memory. Returns its settings and its summary."""
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
    show(
        f"1. It fits: data/models/tiny.toml, {len(settings.tables)} tables of {human(size)} with "
        "optimizer state, all in memory"
    )
    summary = train(settings, folder)
    compare_digests(summary, summary)
    return keys, summary


def run_beyond_memory(folder: Path, keys: list[str], expected: dict[str, Any]) -> None:
    """Train the same model under budgets that are too small for it."""
    budgets = ["memory.hbm=120_000", "memory.ddr=400_000"]
    show(
        "\n2. It does not fit: a rank may use 120,000 bytes of HBM and 400,000 of DDR. Left in "
        "HBM, it is refused:"
    )
    try:
        train(config.load(MODELS / "tiny.toml", [*keys, *budgets]), folder)
    except TrainingError as error:
        show(f"    {error}")
    show(
        '    With memory.placement = "auto", what is asked for most per byte lies fastest, the '
        "rest is cached over an SSD file:"
    )
    for ranks in (1, 2):
        summary = train(
            config.load(MODELS / "tiny.toml", [*keys, *budgets, "memory.placement=auto"]),
            folder,
            ranks,
        )
        if ranks == 1:
            tables_by_placement: dict[str, list[str]] = {}
            for entry in summary["placements"]:
                tables_by_placement.setdefault(entry["placement"], []).append(entry["table"])
            for name, tables in tables_by_placement.items():
                show(f"    {name:23}{' '.join(tables)}")
            for line in tier_lines(summary)[:8]:
                show(f"    {line}".rstrip())
            show("    …")
        show(f"    on {ranks} rank(s), where the two budgets are each rank's")
        compare_digests(expected, summary)


def run_twelve_trillion(folder: Path, steps: int, batch: int, counts: tuple[int, ...]) -> None:
    """Train a model as large as the paper's largest; a few steps touch a few rows."""
    log = folder / "bags.h5"
    write_dataset(SyntheticCriteo(1, hotness=parse_hotness("geometric:20")), log, 0, steps * batch)
    keys = [
        f'data.train="{log}"',
        f"training.steps={steps}",
        f"training.batch_size={batch}",
        "memory.ddr=200_000_000",
    ]
    settings = config.load(MODELS / "neo-f.toml", keys)
    show(
        "\n3. Twelve trillion: data/models/neo-f.toml, rows of 256 columns in an SSD file, 200 MB "
        "of DDR in front of it"
    )
    for line in model_lines(settings):
        show(f"    {line}".rstrip())
    first = None
    for ranks in counts:
        summary = train(settings, folder, ranks)
        ssd = [tier for tier in summary["tiers"] if tier["tier"] == "ssd"]
        rows = sum(tier["rows"] for tier in ssd)
        size = sum(tier["bytes"] for tier in ssd)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
        show(
            f"    on {ranks} rank(s): {steps} steps of {batch} samples changed {rows:,} rows, "
            f"{human(size)} on the SSD; this"
        )
        show(f"    process has used {human(peak)} of memory at most")
        first = first or summary
        compare_digests(first, summary)


def main(
    steps: int = 40, large_steps: int = 4, large_batch: int = 256, counts: tuple[int, ...] = (1, 2)
) -> None:
    """Train all three in a temporary folder, the last one on each of `counts` ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys, summary = run_within_memory(folder, steps)
        run_beyond_memory(folder, keys, summary)
        run_twelve_trillion(folder, large_steps, large_batch, counts)
    show("\nNo bit depends on where a row lives.")


if __name__ == "__main__":
    main()
