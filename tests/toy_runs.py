"""Trains with toys of `toys.py`: `python toy_runs.py LOG FOLDER RECIPE...`, where the package that
has them is imported. Prints what happened as JSON.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import small_run
from toys import FORMAT, KIND, OPTIMIZER, POLICY, SCHEME

from neocpu import load, oracle
from neocpu.core.codecs import LAYOUTS
from neocpu.core.formats import FORMATS, table_format
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.kernels.twins.codecs.small_floats import decode_rows
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.before import companion
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.run.trainer import Trainer

LOG = Path(sys.argv[1])
FOLDER = Path(sys.argv[2])
FORM = FORMAT.name
companion.available = lambda: {0}  # as in conftest.py: nobody compiles beside these runs


def train(name: str, *overrides: str, ranks: int = 1, resume: bool = False) -> str:
    """Digest of a run of two passes, or of as many steps as asked for."""
    config = small_run.config_of(LOG, "training.epochs=2", *overrides)
    summaries = run_threads(
        ranks, lambda comm: Trainer(config, comm, FOLDER / name, resume=resume).run()
    )
    return str(summaries[0]["digest"])


def format_run() -> dict[str, object]:
    """A table in the format: on ranks, a checkpoint, a resumed run."""
    keys = (
        f"tables.one.format={FORM}",
        "tables.one.rounding=stochastic",
        f"tables.many.format={FORM}",
    )
    digest = train("format", *keys)
    # a plan that cuts no table, as others need more kernels (of formats in `test_formats.py`)
    whole = "parallel.plan=table_wise"
    spread = train("format2", *keys, whole, ranks=2)
    train("format3", *keys, whole, "training.steps=2", ranks=2)
    resumed = train("format3", *keys, resume=True)
    (path,) = (FOLDER / "format" / "checkpoints").glob("*.h5")
    with CheckpointFile(path) as file:
        recomputed = file.recomputed_digest()
        weight = file.links[0].file.array("tables/one/weight")
        stored = [weight.dtype.str, weight.attributes["format"]]
    numbers = np.asarray(load(path).tables["one"][:], np.float32)
    all_numbers = np.empty((1, 256), np.float32)
    decode_rows(np.arange(256, dtype=np.uint8)[None], LAYOUTS[FORM], all_numbers)
    return {
        "digests": [digest, spread, resumed, recomputed],
        "stored": stored,
        "all numbers are of the format": bool(np.isin(numbers, all_numbers).all()),
        "numbers": int(np.unique(numbers).size),
        "bytes of a number": table_format(FORM).bits // 8,
    }


def oracle_run() -> dict[str, object]:
    """Rows in the format, looked up and updated: the kernels' answers, right and wrong ones."""
    random = np.random.default_rng(1)
    codes = random.integers(0, 0x70, (5, 4)).astype(np.uint8).reshape(-1)
    bags = {
        "weights": FORMATS[FORM].view(codes),
        "rows": np.array([5]),
        "dims": np.array([4]),
        "feature_table": np.array([0]),
        "indices": np.array([0, 3, 3, 1]),
        "offsets": np.array([0, 2, 4]),
    }
    options = {"weights_format": FORM}
    kernels = oracle.run("lookup", bags, options)["out"]
    twins = oracle.run("lookup", bags, options, backend="reference")["out"]
    rounded = {"x": random.standard_normal((3, 5)).astype(np.float32)}
    codes_of = oracle.run("round", rounded, {"format": FORM})["codes"]
    return {
        "kernels are twins": kernels.tobytes() == twins.tobytes(),
        "right": bool(oracle.check("lookup", bags, kernels, options, bits=True)),
        "wrong": bool(oracle.check("lookup", bags, kernels + np.float32(0.5), options)),
        "rounded": bool(oracle.check("round", rounded, codes_of, {"format": FORM}, bits=True)),
    }


def write_wide_log(path: Path) -> Path:
    """A log of more codes than a cache has lines."""
    random = np.random.default_rng(6)
    codes = {name: random.integers(0, 600, 900).astype(np.uint32) for name in ("one", "many")}
    dense = random.standard_normal((900, 3)).astype(np.float32)
    with DatasetWriter(path, ["a", "b", "c"], [FeatureColumn(name) for name in codes]) as writer:
        writer.append((codes["one"] % 3 == 0).astype(np.float32), dense, codes)
    return path


def cached(policy: str, ranks: int = 1) -> list[object]:
    """(digest, misses) of a run whose rows come and go under a cache policy."""
    memory = ("memory.placement=hbm_over_ddr", "memory.hbm=10_000", f"memory.policy={policy}")
    sizes = ("tables.one.rows=900", "tables.many.rows=700", "parallel.plan=row_wise")
    config = small_run.config_of(wide_log, *sizes, *memory)
    out = FOLDER / f"{policy}{ranks}"
    summary = run_threads(ranks, lambda comm: Trainer(config, comm, out).run())[0]
    return [summary["digest"], sum(level.get("unique_misses", 0) for level in summary["tiers"])]


def optimizer_runs() -> list[str]:
    """Digests: another optimizer, the toy, and the toy on columns of two ranks."""
    toy = f"optimizer.sparse.name={OPTIMIZER.name}"
    return [
        train("sgd", "optimizer.sparse.name=exact_sgd"),
        train("toy", toy),
        train("toy2", toy, "parallel.plan=column_wise", ranks=2),
    ]


def scheme_runs() -> list[str]:
    """Digests without and with the scheme."""
    return [train("plain"), train("scheme", f"parallel.plan={SCHEME.name}", ranks=3)]


def policy_runs() -> list[list[object]]:
    """(digest, misses) of another policy, and of the toy on one and two ranks."""
    return [cached("lru"), cached(POLICY.name), cached(POLICY.name, 2)]


def kind_run() -> dict[str, object]:
    """Tables of the kind on one rank and, cut by rows, on two; and what was trained."""
    keys = (f"tables.one.kind={KIND.name}", f"tables.many.kind={KIND.name}", "tables.many.share=3")
    digests = [train("kind", *keys)]
    digests.append(train("kind2", *keys, "parallel.plan=row_wise", ranks=2))
    model = load(FOLDER / "kind")
    rows = model.tables["one"][:]
    return {
        "digests": digests,
        "physical tables": {name: len(table) for name, table in model.physical_tables.items()},
        "neighbours share": bool((rows[::2] == rows[1::2]).all()),
        "rows that differ": len(np.unique(rows, axis=0)),
    }


wide_log = write_wide_log(FOLDER / "wide.h5")
RUNS: dict[str, Callable[[], object]] = {
    FORMAT.recipe: lambda: format_run() | {"oracle": oracle_run()},
    OPTIMIZER.recipe: optimizer_runs,
    SCHEME.recipe: scheme_runs,
    POLICY.recipe: policy_runs,
    KIND.recipe: kind_run,
}
print(json.dumps(RUNS[sys.argv[3]]()))
