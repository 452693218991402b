"""Is stochastic rounding fair, from one answer? Likelihoods of mistakes, without approximation.

A right kernel rounds each element up with its exact probability p, independently. Every mistake of
stochastic_mistakes.py has a score: log(P(answer | mistake) / max P(answer | right kernel)). If the
kernel is right, the mean of that ratio is at most 1, whatever the size of the answer. So a score
passes log(TESTS / FALSE_ALARM) with at most the chance FALSE_ALARM / TESTS (Markov's inequality),
and any of at most TESTS scores with FALSE_ALARM. Nothing is taken to be normally distributed.

A kernel may be RESOLUTION off in each probability, as one with 13 random bits is, beside what the
error bound of the number itself allows.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Bools, Doubles, Ints
from neocpu.oracle.operator import Case, Truth
from neocpu.oracle.semantics import Mistake
from neocpu.oracle.verdicts.stochastic_mistakes import (
    GROUPS,
    NEVER,
    Draws,
    Real,
    chances,
    sequences,
    shared_score,
    sharings,
    sharings_of_runs,
)

REPORT_FALSE_ALARM = 1e-9  # chance that a right kernel fails any of these tests in a report
OUTPUTS = 1000  # with stochastic rounding in a report, at most
FALSE_ALARM = REPORT_FALSE_ALARM / OUTPUTS  # chance for one output
TESTS = 1000  # scores of one output, at most
RESOLUTION = 2.0**-13  # what a right kernel's probability may be off
LEVELS = 1 << 13  # different probabilities; if there are more, they are grouped
MOST_OUTSIDE = 0.01  # of the elements, so that the others are still judged
SURELY = 1.5  # an effect counts as visible where its mean score is so many times the limit
BIASES = (0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 0.8)


@dataclass(frozen=True)
class Finding:
    """A mistake, and its score: the log of its likelihood ratio over so many elements."""

    mistake: Mistake
    score: float
    elements: int


@dataclass(frozen=True)
class _Levels:
    """Observations by probability and sign: how many went up, how many down; arrays [levels]."""

    chance: Real
    slack: Real
    negative: Bools
    up: Real
    down: Real

    @property
    def count(self) -> int:
        """Observations in all."""
        return int(self.up.sum() + self.down.sum())

    def score(self, q: Real) -> float:
        """Score of the mistake that goes up with probability q, for what was observed."""
        return self._score(q, self.up, self.down)

    def mean_score(self, q: Real) -> float:
        """Its mean, if the kernel makes that mistake."""
        count = self.up + self.down
        return self._score(q, count * q, count * (1 - q))

    def gains(self, q: Real) -> tuple[Real, Real]:
        """Log likelihood ratios of one element that goes up, and of one that goes down."""
        q = np.clip(q, NEVER, 1 - NEVER)
        # The best that a right kernel may claim for what was seen, so that scores err on its side.
        right_up = np.minimum(self.chance + self.slack, 1.0)
        right_down = np.minimum(1.0 - self.chance + self.slack, 1.0)
        return np.log(q / right_up), np.log((1 - q) / right_down)

    def _score(self, q: Real, up: Real, down: Real) -> float:
        gain_up, gain_down = self.gains(q)
        return float((up * gain_up + down * gain_down).sum())


def draws_of(case: Case, truth: Truth, x: Doubles) -> Draws | None:
    """The roundings that an answer shows; x may have one more leading axis, of seeds.

    None where the truth has no probabilities. Elements that are neither neighbour are left out;
    None, too, where they are many, since what is left was not chosen by chance.
    """
    if truth.probability is None or truth.lower is None or truth.upper is None:
        return None
    shape = truth.reference.shape
    chance, low, high, bound, ref = (
        np.asarray(part, np.float64).reshape(-1)
        for part in (truth.probability, truth.lower, truth.upper, truth.bound, truth.reference)
    )
    runs = x.reshape(-1, chance.size)
    with np.errstate(invalid="ignore"):
        # Where the chance is 0 or 1 there is nothing to draw.
        between = np.isfinite(chance) & (chance > 0) & (chance < 1)
        neighbours = ((runs == low) | (runs == high)).all(0)
    if (between & ~neighbours).sum() > MOST_OUTSIDE * between.sum():
        return None
    tested = np.flatnonzero(between & neighbours)
    step = high[tested] - low[tested]
    # the bound is one step beside the error of the number that is rounded
    slack = np.maximum(bound[tested] - step, 0.0) / step + RESOLUTION
    table, row, column = _places(case, shape, chance.size)
    return Draws(
        up=runs[:, tested] == high[tested],
        chance=chance[tested],
        slack=slack,
        negative=ref[tested] < 0,
        element=tested,
        table=table[tested],
        row=row[tested],
        column=column[tested],
    )


def _places(case: Case, shape: tuple[int, ...], size: int) -> tuple[Ints, Ints, Ints]:
    """Table, row and column of each element: of the tables, or of an array with rows."""
    rows = case.inputs.get("rows")
    dims = case.inputs.get("dims")
    element = np.arange(size)
    if rows is not None and dims is not None and int((rows * dims).sum()) == size:
        table = np.repeat(np.arange(rows.size), rows * dims)
        first = np.append(0, np.cumsum(rows * dims))
        in_table = element - first[table]
        return table, in_table // dims[table], in_table % dims[table]
    width = shape[-1] if len(shape) > 1 and shape[-1] else max(size, 1)
    return np.zeros(size, np.int64), element // width, element % width


def _levels(draws: Draws) -> _Levels:
    """Observations by probability; probabilities that are near each other together, if many."""
    chance = draws.chance
    slack = draws.slack
    if np.unique(chance).size > LEVELS:
        middle = (np.floor(chance * LEVELS) + 0.5) / LEVELS
        slack = slack + np.abs(chance - middle)
        chance = middle
    signed = np.where(draws.negative, -chance, chance)
    # By sign, too: a kernel that rounds magnitudes treats them differently.
    level, inverse = np.unique(signed, return_inverse=True)
    widest = np.zeros(level.size)
    # Of a group the widest slack, again on the kernel's side.
    np.maximum.at(widest, inverse, slack)
    ups: Real = np.bincount(inverse, draws.up.sum(0), level.size).astype(np.float64)
    downs: Real = np.bincount(inverse, (~draws.up).sum(0), level.size).astype(np.float64)
    return _Levels(np.abs(level), widest, level < 0, ups, downs)


def _by_group(levels: _Levels) -> Finding:
    """The mistake without a model: in each tenth of the probabilities its own shift."""
    group = np.minimum((levels.chance * GROUPS).astype(np.int64), GROUPS - 1)
    group = group + GROUPS * levels.negative
    shifts = [sign * size for size in (0.02, 0.05, 0.1, 0.2, 0.4) for sign in (1, -1)]
    ratios = []
    for shift in [0.0, *shifts]:
        gain_up, gain_down = levels.gains(levels.chance + shift)
        ratio = levels.up * gain_up + levels.down * gain_down
        ratios.append(np.bincount(group, ratio, 2 * GROUPS))
    # A mean of likelihood ratios is one, so that Markov's inequality holds for it, too.
    mixed = np.logaddexp.reduce(np.array(ratios), axis=0) - math.log(len(ratios))
    worst = int(np.argmax(mixed))
    in_group = group == worst
    up = levels.up[in_group].sum()
    count = (levels.up + levels.down)[in_group].sum()
    expected = ((levels.up + levels.down) * levels.chance)[in_group].sum()
    about = (
        f"goes up with another probability than it should: {up / max(count, 1):.1%} instead of "
        f"{expected / max(count, 1):.1%} of {count:.0f} elements"
    )
    fix = "compare a uniform random number with the exact fraction"
    return Finding(Mistake("other_probability", about, fix), float(mixed.sum()), levels.count)


def _sequence_score(draws: Draws, null: Real, q: Real) -> float:
    """Score of probabilities q [runs, n] of going up, against `draws.null()`."""
    q = np.clip(q, NEVER, 1 - NEVER)
    return float((np.log(np.where(draws.up, q, 1 - q)) - null).sum())


def scores(draws: Draws) -> Iterator[Finding]:
    """The score of every mistake."""
    levels = _levels(draws)
    for mistake, q in chances():
        score = levels.score(q(levels.chance, levels.negative))
        yield Finding(mistake, score, levels.count)
    yield _by_group(levels)
    sample = draws.sample()
    for directed in (sample, sample.by_magnitude()):
        for mistake, groups in sharings(directed):
            yield Finding(mistake, shared_score(directed, groups), directed.count)
        null = directed.null()
        for mistake, likely in sequences(directed):
            yield Finding(mistake, _sequence_score(directed, null, likely), directed.count)


def limit(false_alarm: float = FALSE_ALARM) -> float:
    """The score beyond which one of TESTS scores is a mistake."""
    return math.log(TESTS / false_alarm)


def mistake_of(draws: Draws | None, false_alarm: float = FALSE_ALARM) -> Finding | None:
    """The mistake that explains an answer best, of those whose score is beyond the limit.

    Independence is tested on a sample, so the best one has the largest score per element.
    """
    if draws is None or not draws.count:
        return None
    lowest = limit(false_alarm)
    findings = [finding for finding in scores(draws) if finding.score > lowest]
    return max(findings, key=lambda finding: finding.score / finding.elements, default=None)


def untested(draws: Draws | None) -> str:
    """What the answer is too small to show, in a sentence ("" if nothing)."""
    if draws is None:
        return ""
    if not draws.count:
        return (
            "stochastic rounding: no element is known to lie between two numbers of the format, "
            "so only bounds were judged"
        )
    enough = SURELY * limit()
    hidden = [name for name, score in _visible(draws) if score < enough]
    bias = _smallest_bias(_levels(draws), enough)
    parts = []
    if bias > BIASES[0]:
        smallest = "no bias"
        if bias < math.inf:
            smallest = f"a bias of {bias * 100:.0f} % or more, not 5 %"
        parts.append(f"{draws.count:,} elements can show {smallest}")
    if hidden:
        parts.append(
            f"{'they' if parts else f'{draws.count:,} elements'} cannot show {', '.join(hidden)}"
        )
    return f"stochastic rounding: {'; '.join(parts)}" if parts else ""


def _smallest_bias(levels: _Levels, enough: float) -> float:
    """The smallest bias that is visible, up and down; infinite if none is."""
    for size in BIASES:
        means = (levels.mean_score(np.clip(levels.chance * (1 + s), 0, 1)) for s in (size, -size))
        if min(means) >= enough:
            return size
    return math.inf


def _visible(draws: Draws) -> Iterator[tuple[str, float]]:
    """Effects that were looked for, and the score that a kernel with each of them gets."""
    levels = _levels(draws)
    p = levels.chance
    effects = (
        ("rounding to nearest", np.where(p == 0.5, 0.5, (p > 0.5).astype(float))),
        ("that probabilities are inverted", 1 - p),
        ("4 random bits", np.floor(p * 16) / 16),
    )
    for effect, q in effects:
        yield effect, levels.mean_score(q)
    sample = draws.sample()
    # A fixed seed: a report must not change from run to run.
    generator = np.random.default_rng(0)
    groups = {mistake.name: group for mistake, group in sharings(sample)}
    for name, effect in (
        ("one_number", "one random number for all elements"),
        ("one_number_per_row", "one per row"),
        ("one_number_per_column", "one per column"),
    ):
        number = generator.random(int(groups[name].max()) + 1)
        shared = Draws(**{**vars(sample), "up": number[groups[name]] < sample.chance})
        yield effect, shared_score(shared, groups[name])


class Judgement(NamedTuple):
    """What an answer's stochastic rounding shows."""

    message: str = ""  # what is wrong, if anything
    mistake: Mistake | None = None
    untested: tuple[str, ...] = ()  # what the answer is too small to show
    sample: Draws | None = None  # roundings to compare with those of other seeds


def judged(case: Case, truth: Truth, x: Doubles) -> Judgement:
    """Is the stochastic rounding of an output fair?

    x : its numbers, with one more leading axis where there is an answer per seed.
    """
    draws = draws_of(case, truth, x)
    if draws is None:
        return Judgement()
    finding = mistake_of(draws)
    if finding is not None:
        return Judgement(message(draws, finding), finding.mistake)
    hidden = untested(draws)
    return Judgement(untested=(hidden,) if hidden else (), sample=draws.sample())


def shared_by_seeds(draws: Draws) -> Mistake | None:
    """The mistake by which two runs share random numbers; None if they do not."""
    findings = [
        Finding(mistake, shared_score(directed, groups), directed.count)
        for directed in (draws, draws.by_magnitude())
        for mistake, groups in sharings_of_runs(directed)
    ]
    best = max(findings, key=lambda finding: finding.score)
    return best.mistake if best.score > limit() else None


def message(draws: Draws, finding: Finding) -> str:
    """What is wrong with stochastic rounding, in a sentence."""
    expected = float(draws.chance.sum()) * len(draws.up)
    return (
        f"stochastic rounding {finding.mistake.about} ({int(draws.up.sum()):,} of "
        f"{draws.count:,} elements went up, {expected:,.1f} expected; e^{finding.score:.0f} times "
        f"as likely as from a right kernel, which fails with a chance of at most "
        f"{FALSE_ALARM:.0e})"
    )
