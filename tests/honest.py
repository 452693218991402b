"""Does the oracle accept right kernels? Randomly drawn ones answer randomly drawn nasty questions.

python -m tests.honest --answers 100000 --seed 1      # failures and warnings by operator
python -m tests.honest --question 12345 --seed 1      # one question again, with what failed

Every failure is either a mistake in the kernels of this folder (`honest_kernels.py`,
`honest_rules.py`) or a bound that is too narrow. Warnings (beyond the statistical bound) are
counted by element; docs/semantics.md §1 states their rate.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np

from neocpu.oracle.operator import Truth
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.verdicts.compare import judge, numbers
from neocpu.oracle.verdicts.typical import unlikely, with_typical
from tests import honest_kernels, honest_questions, honest_rules
from tests.honest_arithmetic import Arithmetic, Array
from tests.honest_kernels import Arrays, Options
from tests.honest_questions import Question, Shapes

ANSWERS_PER_QUESTION = 6
Kernel = Callable[[Arithmetic, Arrays, Options], Arrays]
ASKED: tuple[tuple[Callable[[np.random.Generator], Question], Kernel, float], ...] = (
    (honest_questions.ask_lookup, honest_kernels.lookup, 3),
    (honest_questions.ask_weight_gradient, honest_kernels.weight_gradient, 1.5),
    (honest_questions.ask_unique_gradient, honest_kernels.unique_gradient, 2),
    (honest_questions.ask_segment_sum, honest_kernels.segment_sum, 0.5),
    (honest_questions.ask_backward, honest_rules.backward, 5),
    (honest_questions.ask_trajectory, honest_rules.trajectory, 1),
    (honest_questions.ask_dequantize, honest_kernels.dequantize, 0.5),
)
ASKED_SHARES = np.array([share for _, _, share in ASKED]) / sum(share for _, _, share in ASKED)


class Tally:
    """Answers, elements, failures and warnings by class."""

    def __init__(self) -> None:
        self.count: Counter[tuple[str, str]] = Counter()
        self.failed: list[str] = []
        self.warned: list[str] = []

    def add(self, name: str, seed: str, output: str, truth: Truth, answer: Array) -> None:
        """Judge one output of one answer."""
        x = numbers(truth, answer)
        right, _ = judge(truth, x)
        self.count[name, "elements"] += x.size
        if truth.exact:
            unknown = 0
        else:
            unknown = int(np.isinf(truth.bound).sum())
        self.count[name, "unknown"] += unknown
        if truth.typical is not None:
            beyond, factor = unlikely(truth, x, right)
            self.count[name, "long"] += int(np.isfinite(truth.typical).sum())
            self.count[name, "warned"] += int(beyond.sum())
            if beyond.any():
                worst = float(factor.max())
                self.warned.append(f"question {seed}, {name}/{output}: {worst:.3g} times typical")
        if not right.all():
            where = tuple(int(i[0]) for i in np.nonzero(~right))
            self.count[name, "failed"] += 1
            self.failed.append(
                f"question {seed}, {name}/{output}{list(where)}: {x[where]!r}, expected "
                f"{truth.reference[where]!r} ± {truth.bound[where]!r}"
            )

    def table(self) -> str:
        """One line per class."""
        kinds = ("answers", "elements", "unknown", "long", "warned", "failed")
        names = sorted({name for name, _ in self.count})
        lines = [f"{'':58s}" + "".join(f"{kind:>12s}" for kind in kinds)]
        rows = [(name, [self.count[name, kind] for kind in kinds]) for name in names]
        rows.append(("all", [sum(row[k] for _, row in rows) for k in range(len(kinds))]))
        lines += [f"{name:58s}" + "".join(f"{n:12,d}" for n in row) for name, row in rows]
        return "\n".join(lines)


def answer_one(seed: int, number: int, tally: Tally, answers: int = ANSWERS_PER_QUESTION) -> None:
    """Ask question `number` of a seed, and have it answered by some right kernels."""
    rng = np.random.default_rng((seed, number))
    ask, kernel, _ = ASKED[int(rng.choice(len(ASKED), p=ASKED_SHARES))]
    question = ask(rng)
    op = OPERATORS[question.op]
    options = op.complete(question.options)
    name = " ".join(
        [question.op, str(options.get("optimizer", "")), str(options.get("pooling", ""))]
    )
    with np.errstate(all="ignore"):
        truths = op.truth(question.inputs, options)
        truths = with_typical(op, question.inputs, options, truths)
        for _ in range(answers):
            outputs = kernel(Arithmetic(rng), question.inputs, options)
            tally.count[name, "answers"] += 1
            for output, answer in outputs.items():
                tally.add(name, str(number), output, truths[output], answer)


def main(arguments: list[str]) -> int:
    """Run a campaign; the status is 1 if anything failed."""
    parser = argparse.ArgumentParser(description="Right kernels, drawn at random, face the oracle.")
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--long-bags", type=float, default=0.02, help="share of questions")
    parser.add_argument("--question", type=int, help="this one alone")
    given = parser.parse_args(arguments)
    Shapes.long_bags = given.long_bags
    tally = Tally()
    if given.question is not None:
        answer_one(given.seed, given.question, tally, 200)
    else:
        for number in range(-(-given.answers // ANSWERS_PER_QUESTION)):
            before = len(tally.failed)
            answer_one(given.seed, number, tally)
            if len(tally.failed) > before:
                print(tally.failed[-1], file=sys.stderr)
    print(tally.table())
    print("\n".join(tally.failed[:40] + tally.warned[:40]))
    return int(bool(tally.failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
