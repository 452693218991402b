"""How often does the oracle catch a bug, and name it? `python -m benchmarks.oracle_mutants`."""

import argparse
import fnmatch
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants import MUTANTS
from benchmarks.oracle_mutants.questions import Question, read_questions
from benchmarks.oracle_mutants.summary import summary, text
from benchmarks.oracle_mutants.trial import Trial, answers_of, check, run_trial
from benchmarks.oracle_mutants.variants import RIGHT
from neocpu.cli import cli
from neocpu.oracle.suite import Suite

SEEDS = 3  # of drawn orders and random words, of every right variant


def right_failures(
    questions: list[Question], suite: Mapping[str, Any], seeds: range
) -> tuple[int, list[str]]:
    """Verdicts on right variants: how many cases, and those that failed."""
    judged = 0
    failures = []
    for name, variant in RIGHT.items():
        for seed in seeds:
            report = check(suite, answers_of(variant(seed), questions), explain=False, budget=0)
            judged += len(report.cases)
            failures += [f"{name} {seed}: {outcome.case.name}" for outcome in report.failures]
    return judged, failures


def write_answers(folder: Path, questions: list[Question], seed: int) -> None:
    """Answers of the right variants, one npz file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, variant in RIGHT.items():
        answered = answers_of(variant(seed), questions)
        arrays = {
            f"{case}/{output}": array
            for case, answers in answered.items()
            for output, array in answers.items()
        }
        np.savez(folder / f"{name}.npz", **arrays)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("benchmarks.oracle_mutants", description=__doc__)
    parser.add_argument("--suite", type=Path, help="take this suite; else one is exported")
    parser.add_argument("--limit", type=int, help="try at most so many mutants, spread evenly")
    parser.add_argument("--only", default="*", help="only mutants of that name, e.g. '*mean*'")
    parser.add_argument("--seed", type=int, default=0, help="of the suite and of what is drawn")
    parser.add_argument("--dim-multiple", type=int, default=4, help="of the suite's columns")
    parser.add_argument("--explained", type=int, default=6, help="failed cases explained of each")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of search for each")
    parser.add_argument("--json", type=Path, help="write the outcome there")
    parser.add_argument("--answers", type=Path, help="write right answers as npz files, and end")
    return parser.parse_args(arguments)


def exported(folder: str, seed: int, dim_multiple: int) -> Path:
    """A new suite of all cases."""
    path = Path(folder) / "suite.h5"
    choices = ["--seed", str(seed), "--dim-multiple", str(dim_multiple)]
    cli(["oracle", "export", str(path), *choices], standalone_mode=False)
    return path


def main(arguments: list[str]) -> int:
    """Run; the exit status is 1 where a right variant failed."""
    options = parsed(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = options.suite or exported(folder, options.seed, options.dim_multiple)
        questions = read_questions(path)
        if options.answers:
            write_answers(options.answers, questions, options.seed)
            return 0
        with Suite(path) as stored:
            suite = {name: stored[name] for name in stored}
    seeds = range(options.seed, options.seed + SEEDS)
    judged, failures = right_failures(questions, suite, seeds)
    names = [name for name in MUTANTS if fnmatch.fnmatch(name, options.only)]
    if options.limit is not None and options.limit < len(names):
        places = np.unique(np.linspace(0, len(names) - 1, options.limit).astype(int))
        names = [names[place] for place in places]
    right = answers_of(Kernel(options.seed), questions)
    trials: list[Trial] = []
    for number, name in enumerate(names, 1):
        begin = time.perf_counter()
        trial = run_trial(
            MUTANTS[name],
            questions,
            suite,
            right,
            options.seed,
            options.explained,
            options.budget,
        )
        trials.append(trial)
        seconds = time.perf_counter() - begin
        title = trial.top.title if trial.top else ""
        print(f"{number}/{len(names)} {name}: {trial.grade} {title} ({seconds:.1f} s)", flush=True)
    outcome = summary(trials, judged, failures)
    outcome["left_out"] = [question.name for question in questions if question.name not in right]
    print(text(outcome))
    print(f"left out, for operators that the kernel lacks: {len(outcome['left_out'])} cases")
    if options.json:
        options.json.write_text(json.dumps(outcome, indent=1))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
