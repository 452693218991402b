"""How far is a predicted step from a measured one? Random plans of five models, on this machine.

    neocpu calibrate                              # just before, on an idle machine
    python -m benchmarks.prediction               # 200 plans on 1, 2 and 4 ranks
    python -m benchmarks.prediction --measured FILE --machine M.toml     # predict once more

Plans and models (`prediction_models.py`) play no part in what calibrate measures, and nothing is
fitted to their times. One job for each number of ranks runs all its plans (`prediction_job.py`).
For the step and each phase the table gives the median of |predicted / measured - 1|, Spearman's
rank correlation, and the median of predicted / measured.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prediction_models import MODELS, draw_plan
from neocpu.parallel.transport.launch import mpiexec_command
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import StepSeconds, loads_of, step_seconds
from neocpu.plan.cost.work import rectangles_of
from neocpu.plan.machines.machine import Machine
from neocpu.plan.machines.machine_file import load

# Plans of each model, by ranks: 200 in all. On one rank all plans are one but for their names.
PLANS = {1: 2, 2: 19, 4: 19}
# Steps that are timed under a plan.
STEPS = 8


def measure(ranks: int, plans: int, steps: int, passes: int, limit: float) -> list[dict[str, Any]]:
    """Records of one job."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        arguments = ["-m", "benchmarks.prediction_job", str(result)]
        arguments += [str(plans), str(steps), str(passes), str(limit)]
        command = [sys.executable, *arguments]
        environment = None
        if ranks > 1:
            command, environment = mpiexec_command(ranks, arguments)
        subprocess.run(command, env=environment, check=True)
        return json.loads(result.read_text(encoding="utf-8"))


def predict(machine: Machine, record: dict[str, Any]) -> dict[str, float]:
    """Predicted seconds of the step and of each phase of a record's plan."""
    model = next(model for model in MODELS if model.name == record["model"])
    plan = draw_plan(model, record["ranks"], record["seed"])
    cost = StepSeconds(machine, model.tables, model.work, Layout(plan.ranks, plan.ranks))
    loads = loads_of(cost, rectangles_of(plan), plan.ranks)
    return {"step": step_seconds(cost, loads)} | cost.phase_seconds(loads)


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's correlation; ties are rare in times."""
    places = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(places)[0, 1]) if len(a) > 2 else float("nan")


def compare(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Errors of (measured, predicted) pairs."""
    measured = [pair[0] for pair in pairs]
    predicted = [pair[1] for pair in pairs]
    ratio = np.array(predicted) / np.array(measured)
    return {
        "plans": len(pairs),
        "error": float(np.median(np.abs(ratio - 1.0))),
        "correlation": rank_correlation(measured, predicted),
        "ratio": float(np.median(ratio)),
        "seconds": float(np.median(measured)),
    }


def table(machine: Machine, records: Sequence[dict[str, Any]]) -> str:
    """Errors by ranks and phase, in Markdown."""
    lines = [
        "| ranks | what | plans | median ms | median error | rank correlation | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    everything = [(record, predict(machine, record)) for record in records]
    groups = sorted({record["ranks"] for record in records})
    for ranks in [*groups, 0]:
        chosen = [(r, p) for r, p in everything if ranks in (0, r["ranks"])]
        names = list(dict.fromkeys(name for record, _ in chosen for name in record["phases"]))
        for name in ["step", *names]:
            # phases that are over before a clock can tell say nothing
            pairs = [
                (measured, predicted.get(name, 0.0))
                for record, predicted in chosen
                if (measured := record["phases"].get(name, record["step"] if name == "step" else 0))
                > 1e-5
            ]
            if not pairs:
                continue
            e = compare(pairs)
            lines.append(
                f"| {ranks or 'all'} | {name} | {e['plans']} | {e['seconds'] * 1e3:.2f} | "
                f"{e['error']:.0%} | {e['correlation']:.2f} | {e['ratio']:.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", default="this-machine", help="name or file of the machine")
    parser.add_argument("--measured", type=Path, help="records of an earlier run; measure nothing")
    parser.add_argument("--keep", type=Path, help="write the records to this file")
    parser.add_argument("--quick", action="store_true", help="one plan of each model")
    parser.add_argument("--passes", type=int, default=2, help="over all plans; the least counts")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of each job")
    options = parser.parse_args()
    machine = load(options.machine)
    if options.measured:
        records = json.loads(options.measured.read_text(encoding="utf-8"))
    else:
        records = []
        for ranks, plans in PLANS.items():
            plans = 1 if options.quick else plans
            steps = 2 if options.quick else STEPS
            records += measure(ranks, plans, steps, options.passes, options.limit)
            load_average = Path("/proc/loadavg").read_text().split()[0]
            print(f"{time.strftime('%X')} {ranks} rank(s) done, load {load_average}", flush=True)
    if options.keep:
        options.keep.write_text(json.dumps(records), encoding="utf-8")
    print(table(machine, records))


if __name__ == "__main__":
    main()
