"""How does a bad plan look, and what does a good one change? In the picture, and in the clock.

    python examples/balance_a_plan.py --out FOLDER

Takes two minutes on two cores, once kernels are compiled; most of them measure this machine, unless
`neocpu calibrate` has done so before. What is done here in Python can be typed as well:

    neocpu plan run.toml --ranks 2 --machine this-machine --svg before.svg
    neocpu plan run.toml --ranks 2 --machine this-machine --planner search --out after.json
    mpiexec -n 2 neocpu train run.toml --set parallel.plan=after.json

1. A model has four tables that are looked up forty times as often as the others. A plan puts all
   four on rank 0: `before.json`.
2. `neocpu plan` says what a step would take with it, and which rank everybody waits for. Look at
   `before.svg`: one bar is long.
3. The planner makes another plan: `after.json`, `after.svg`.
4. Both train. Their digests are equal, and the step is shorter by about what was predicted.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import _needs  # noqa: F401, what to install

from neocpu.ingest.synthetic.generate import write_dataset
from neocpu.ingest.synthetic.law import SyntheticCriteo, parse_hotness
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import Shard
from neocpu.parallel.transport.launch import mpiexec_command
from neocpu.plan.files import plan_file
from neocpu.plan.machines.machine_file import this_machine_path
from neocpu.train.config import config as configs

BUSY = ("C1", "C4", "C7", "C10")
BATCH = 1024
CONFIG = """
[data]
train = "{log}"
[model]
embedding_dim = 32
bottom = [64, 32]
top = [64, 1]
[optimizer.sparse]
name = "exact_rowwise_adagrad"
learning_rate = 0.02
[training]
batch_size = {batch}
steps = {steps}
threads = 1
[tables]
"""


@dataclass(frozen=True)
class Timing:
    """What one plan came to: seconds of a step, foretold and taken, and the digest of its run."""

    predicted: float
    measured: float
    digest: str


def neocpu(folder: Path, *arguments: str, ranks: int = 0) -> str:
    """Run `neocpu ARGUMENTS` in a folder, under mpiexec if `ranks`; what it printed."""
    command = [sys.executable, "-m", "neocpu", *arguments]
    environment = None
    if ranks:
        command, environment = mpiexec_command(ranks, ["-m", "neocpu", *arguments])
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def write_model(folder: Path, steps: int, hotness: int) -> Path:
    """A synthetic log whose BUSY features have `hotness` lookups a sample, and a config for it."""
    log = folder / "log.h5"
    lookups = parse_hotness(",".join(f"{name}={hotness}" for name in BUSY))
    write_dataset(SyntheticCriteo(1, max_rows=50_000, hotness=lookups), log, 0, BATCH * steps)
    tables = "".join(f"C{number}.rows = 50_000\n" for number in range(1, 27))
    path = folder / "run.toml"
    path.write_text(CONFIG.format(log="log.h5", batch=BATCH, steps=steps) + tables)
    return path


def write_bad_plan(config: Path, ranks: int) -> Path:
    """A plan with all busy tables on rank 0 and the others dealt out like cards."""
    tables = configs.load(config).tables
    shards = tuple(
        Shard(number, (0, table.rows), (0, table.dim), 0 if table.name in BUSY else number % ranks)
        for number, table in enumerate(tables)
    )
    plan = Plan(tables, ("table_wise",) * len(tables), shards, ranks, ranks).check()
    path = config.parent / "before.json"
    path.write_text(plan_file.text(plan))
    return path


def machine_of(folder: Path) -> str:
    """The machine file of this host, or one that is measured now."""
    if this_machine_path().exists():
        return "this-machine"
    print("measuring this machine, less than a minute (neocpu calibrate --quick) ...", flush=True)
    neocpu(folder, "calibrate", "--quick", "--out", "machine.toml")
    return str(folder / "machine.toml")


def predicted_seconds(folder: Path, name: str, machine: str, ranks: int, *options: str) -> float:
    """Seconds of a step under a plan, from the plan that `neocpu plan` writes.

    Prints what it says of the ranks; what it says of each table is left out here.
    """
    written = f"{name}-priced.json"
    arguments = ["plan", "run.toml", "--ranks", str(ranks), "--machine", machine, *options]
    explained = neocpu(folder, *arguments, "--out", written, "--svg", f"{name}.svg", "--force")
    print(explained.partition("\n\ntable ")[0] + "\n")
    file = plan_file.loads((folder / written).read_text(), written)
    return file.made_for.step_seconds


def measured(folder: Path, plan: str, ranks: int) -> tuple[float, str]:
    """Seconds of a step of a run under a plan, and its digest."""
    out = folder / f"trained-{Path(plan).stem}"
    setting = f"parallel.plan={plan}"
    neocpu(folder, "train", "run.toml", "--set", setting, "--out", str(out), ranks=ranks)
    summary = json.loads((out / "run.json").read_text())
    # the first step maps pages and is not timed
    return summary["seconds"] / (summary["steps"] - 1), summary["digest"]


def compare(
    folder: Path, ranks: int = 2, steps: int = 30, hotness: int = 40, machine: str = ""
) -> list[Timing]:
    """Both plans, foretold and trained; plans, pictures and runs are in `folder`.

    machine : to predict for; "": this one.
    """
    config = write_model(folder, steps, hotness)
    write_bad_plan(config, ranks)
    machine = machine or machine_of(folder)
    print(f"1. All busy tables on rank 0: {', '.join(BUSY)}\n")
    plan = ("--set", "parallel.plan=before.json")
    before = predicted_seconds(folder, "before", machine, ranks, *plan)
    print("2. As the planner would have it\n")
    after = predicted_seconds(folder, "after", machine, ranks, "--planner", "search")
    timings = [
        Timing(before, *measured(folder, "before.json", ranks)),
        Timing(after, *measured(folder, "after-priced.json", ranks)),
    ]
    print(f"3. Trained on {ranks} ranks\n\n{'plan':8}{'predicted':>14}{'measured':>14}")
    for name, timing in zip(("before", "after"), timings):
        print(f"{name:8}{1e3 * timing.predicted:>11.2f} ms{1e3 * timing.measured:>11.2f} ms")
    print(
        f"{'ratio':8}{before / after:>13.2f}x{timings[0].measured / timings[1].measured:>13.2f}x\n"
    )
    if timings[0].digest != timings[1].digest:
        raise SystemExit("the digests differ, which is a bug: a plan must not change a bit")
    print(f"one digest, {timings[0].digest}\npictures: {folder}/before.svg, {folder}/after.svg")
    return timings


def main() -> None:
    """Read the options and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder for all files")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    compare(options.out.resolve(), options.ranks, options.steps)


if __name__ == "__main__":
    main()
