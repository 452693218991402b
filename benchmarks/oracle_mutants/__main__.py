"""How often does the oracle catch a bug, and name it? `python -m benchmarks.oracle_mutants`."""

import argparse
import fnmatch
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.oracle_mutants.judge import Told, headline
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.memory import Memory
from benchmarks.oracle_mutants.mutants import MUTANTS
from benchmarks.oracle_mutants.questions import Question, read_questions
from benchmarks.oracle_mutants.summary import summary, text
from benchmarks.oracle_mutants.trial import (
    Answered,
    Trial,
    answers_of,
    check,
    judged_suite,
    run_trial,
)
from benchmarks.oracle_mutants.variants import RIGHT
from neocpu.cli import cli
from neocpu.oracle.suite import Suite


def right_failures(
    questions: list[Question], suite: Mapping[str, Any], seeds: range
) -> tuple[int, list[str]]:
    """Verdicts on right variants: how many cases, and those that failed."""
    judged = 0
    failures = []
    for name, variant in RIGHT.items():
        for seed in seeds:
            report = check(suite, answers_of(variant(seed), questions), budget=0)
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
    parser.add_argument("--only", default="*", help="only such names or modules: '*mean*', blocks")
    parser.add_argument("--seed", type=int, default=0, help="of the suite and of what is drawn")
    parser.add_argument("--dim-multiple", type=int, default=4, help="of the suite's columns")
    parser.add_argument("--names", type=int, help="name at most so many, spread evenly; else all")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds of search for each")
    parser.add_argument("--processes", type=int, default=1, help="that share the mutants")
    parser.add_argument("--json", type=Path, help="write the outcome there")
    parser.add_argument("--grade", type=Path, help="grade the outcome written there again")
    parser.add_argument("--right-seeds", type=int, default=3, help="of each right variant")
    parser.add_argument("--answers", type=Path, help="write right answers as npz files, and end")
    return parser.parse_args(arguments)


def exported(folder: str, seed: int, dim_multiple: int) -> Path:
    """A new suite of all cases."""
    path = Path(folder) / "suite.h5"
    choices = ["--seed", str(seed), "--dim-multiple", str(dim_multiple)]
    cli(["oracle", "export", str(path), *choices], standalone_mode=False)
    return path


def spread(names: list[str], most: int | None) -> list[str]:
    """At most so many of the names, spread evenly over all."""
    if most is None or most >= len(names):
        return names
    return [names[place] for place in np.linspace(0, len(names) - 1, most).astype(int)]


class Campaign(NamedTuple):
    """What all trials share."""

    questions: list[Question]
    suite: Mapping[str, Any]
    right: Answered
    seed: int
    budget: float

    def trial(self, name: str, is_named: bool) -> Trial:
        """The trial of one mutant."""
        begin = time.perf_counter()
        budget = self.budget if is_named else 0.0
        trial = run_trial(MUTANTS[name], self.questions, self.suite, self.right, self.seed, budget)
        top = headline(trial.told, len(trial.failed))
        seconds = time.perf_counter() - begin
        print(f"{name}: {trial.grade} {top.title if top else ''} ({seconds:.1f} s)", flush=True)
        return trial


def trials_of(campaign: Campaign, names: list[str], named: set[str], processes: int) -> list[Trial]:
    """Trials of mutants; `named` ones are explained."""
    if named and campaign.budget > 0:
        memory = Memory()
        memory.install()
        memory.fill(judged_suite(campaign.suite, campaign.right).trials)
    tasks = [(name, name in named) for name in names]
    if processes == 1:
        return [campaign.trial(*task) for task in tasks]
    context = multiprocessing.get_context("fork")
    with context.Pool(processes, _join, (campaign,)) as pool:
        return pool.starmap(_trial_of_process, tasks, chunksize=1)


_campaign: list[Campaign] = []  # of this process


def _join(campaign: Campaign) -> None:
    _campaign[:] = [campaign]


def _trial_of_process(name: str, is_named: bool) -> Trial:
    return _campaign[0].trial(name, is_named)


def loaded(path: Path) -> list[Trial]:
    """Trials that were written to a file."""
    trials = []
    for record in json.loads(path.read_text())["trials"]:
        record["told"] = tuple(Told(*explanation) for explanation in record["told"])
        trials.append(Trial(**record))
    return trials


def main(arguments: list[str]) -> int:
    """Run; the exit status is 1 where a right variant failed."""
    options = parsed(arguments)
    if options.grade:
        outcome = json.loads(options.grade.read_text())
        trials = loaded(options.grade)
        print(text(summary(trials, outcome["right_cases"], outcome["right_failures"])))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = options.suite or exported(folder, options.seed, options.dim_multiple)
        questions = read_questions(path)
        if options.answers:
            write_answers(options.answers, questions, options.seed)
            return 0
        with Suite(path) as stored:
            suite = {name: stored[name] for name in stored}
    judged = 0
    failures: list[str] = []
    if options.right_seeds:
        seeds = range(options.seed, options.seed + options.right_seeds)
        judged, failures = right_failures(questions, suite, seeds)
    names = [
        name
        for name, mutant in MUTANTS.items()
        if fnmatch.fnmatch(name, options.only) or mutant.module == options.only
    ]
    names = spread(names, options.limit)
    right = answers_of(Kernel(options.seed), questions)
    campaign = Campaign(questions, suite, right, options.seed, options.budget)
    trials = trials_of(campaign, names, set(spread(names, options.names)), options.processes)
    outcome = summary(trials, judged, failures)
    outcome["left_out"] = [question.name for question in questions if question.name not in right]
    outcome["trials"] = [asdict(trial) for trial in trials]
    print(text(outcome))
    print(f"left out, for operators that the kernel lacks: {len(outcome['left_out'])} cases")
    if options.json:
        options.json.write_text(json.dumps(outcome, indent=1))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
