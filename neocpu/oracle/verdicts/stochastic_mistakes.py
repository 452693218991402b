"""How do kernels round stochastically in a wrong way? Models of mistakes, each with its likelihood.

A right kernel draws u, uniform in [0, 1), for every element, and takes the upper of its two
neighbours where u < p. A mistake is a model that gives what was observed another probability. Its
score is log(probability under the mistake / largest probability under any right kernel).

chances    models of one element: goes up with probability q(p) instead of p
sharings   models in which elements of a group share one u
sequences  models in which an element depends on those before it
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Bools, Ints
from neocpu.oracle.semantics import Mistake

Real = NDArray[np.float64]

NEVER = 1e-7  # probability of what a mistake excludes, so that one element does not acquit it
UNSHARED = 0.02  # share of groups that may draw independently where a mistake shares numbers
SAMPLE = 1 << 15  # elements whose independence is tested
SIZES = (0.02, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 0.8)  # of a bias, relative
SHIFTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35)  # of a probability
BITS = range(1, 10)
WIDTHS = (0.25, 0.5, 0.75, 0.9, 1.1, 1.5, 2.0)  # of random numbers, in distances of neighbours
BLOCKS = (2, 4, 8, 16, 32, 64)
PERIODS = tuple(1 << k for k in range(5, 14))
LAGS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)
STRENGTHS = (-0.8, -0.3, -0.1, 0.1, 0.3, 0.8)
GROUPS = 10  # of probabilities, where no model fits


@dataclass(frozen=True)
class Draws:
    """Elements that were rounded up or down; up is bool[runs, n], all others are [n].

    chance is the exact probability of the upper neighbour, slack how far that of a right kernel may
    be from it. element is the place in the flat output.
    """

    up: Bools
    chance: Real
    slack: Real
    negative: Bools
    element: Ints
    table: Ints
    row: Ints
    column: Ints

    @property
    def count(self) -> int:
        """Roundings that were observed, in all runs."""
        return int(self.up.size)

    def null(self) -> Real:
        """Log of the largest probability of each observation under a right kernel, [runs, n]."""
        # The largest chance that a right kernel may give what was seen: the score errs on its side.
        up = np.log(np.minimum(self.chance + self.slack, 1.0))
        down = np.log(np.minimum(1.0 - self.chance + self.slack, 1.0))
        return np.where(self.up, up, down)

    def sample(self, most: int = SAMPLE) -> "Draws":
        """Elements of every run, about `most` in all: the first, and as many from the middle on.

        In the middle another table may begin.
        """
        half = max(most // len(self.up), 256) // 2
        size = self.chance.size
        if size <= 2 * half:
            return self
        sample = np.r_[0:half, size // 2 : size // 2 + half]
        return Draws(**{name: array[..., sample] for name, array in vars(self).items()})

    def by_magnitude(self) -> "Draws":
        """The same, where "up" means away from zero."""
        return Draws(
            **{
                **vars(self),
                "up": self.up ^ self.negative,
                "chance": np.where(self.negative, 1.0 - self.chance, self.chance),
            }
        )


Chance = Callable[[Real], Real]  # of going up, from the right one
SignedChance = Callable[[Real, Bools], Real]  # the same, with the signs of the numbers


def _nearest(p: Real) -> Real:
    return np.where(p == 0.5, 0.5, np.where(p > 0.5, 1.0, 0.0))


def _inverted(p: Real) -> Real:
    return 1.0 - p


def _partly_nearest(share: float, p: Real) -> Real:
    return (1.0 - share) * p + share * _nearest(p)


def _scaled(factor: float, p: Real) -> Real:
    return p * factor


def _complement_scaled(factor: float, p: Real) -> Real:
    return 1.0 - (1.0 - p) * factor


def _shifted(shift: float, p: Real) -> Real:
    return p + shift


def _multiple(step: np.ufunc, bits: int, p: Real) -> Real:
    return np.asarray(step(p * 2.0**bits) / 2.0**bits, np.float64)


def _spread(width: float, p: Real) -> Real:
    return (p - 0.5) / width + 0.5


def _triangle(p: Real) -> Real:
    return np.where(p < 0.5, 2.0 * p * p, 1.0 - 2.0 * (1.0 - p) ** 2)


def _power(exponent: float, p: Real) -> Real:
    return np.asarray(p**exponent, np.float64)


def _always(p: Real) -> Real:
    return np.ones_like(p)


def _never(p: Real) -> Real:
    return np.zeros_like(p)


def _biases() -> Iterator[tuple[Mistake, Chance]]:
    fix = "compare the random number with the exact fraction: up if word / 2^32 + fraction >= 1"
    up = "biased_up"
    down = "biased_down"
    for size in SIZES:
        too_often = f"about {size * 100:.0f} % more often than it should"
        too_seldom = f"about {size * 100:.0f} % less often than it should"
        yield Mistake(up, f"goes up {too_often}", fix), partial(_scaled, 1 + size)
        yield Mistake(down, f"goes up {too_seldom}", fix), partial(_scaled, 1 - size)
        yield Mistake(down, f"goes down {too_often}", fix), partial(_complement_scaled, 1 + size)
        yield Mistake(up, f"goes down {too_seldom}", fix), partial(_complement_scaled, 1 - size)
    for shift in SHIFTS:
        about = f"the probability of going up is about {shift} too "
        yield Mistake(up, about + "high", fix), partial(_shifted, shift)
        yield Mistake(down, about + "low", fix), partial(_shifted, -shift)


def _generators() -> Iterator[tuple[Mistake, Chance]]:
    """Random numbers that are not uniform in [0, 1)."""
    fix = "add as many random bits as the rounding drops"
    for bits in BITS:
        words = "1 random bit" if bits == 1 else f"{bits} random bits"
        about = f"uses {words} only: probabilities are multiples of 1/{1 << bits}"
        for step in (np.floor, np.ceil, np.rint):
            yield Mistake("few_random_bits", about, fix), partial(_multiple, step, bits)
    fix = "draw uniform random numbers over the whole distance of two neighbours"
    for width in WIDTHS:
        about = f"random numbers spread over about {width} of the distance of two neighbours"
        yield Mistake("noise_width", about, fix), partial(_spread, width)
    shapes: tuple[tuple[str, Chance], ...] = (
        ("densest in the middle", _triangle),
        ("densest near 0", partial(_power, 0.5)),
        ("densest near 1", partial(_power, 2.0)),
    )
    for shape, q in shapes:
        yield Mistake("noise_not_uniform", f"random numbers are not uniform, but {shape}", fix), q


def _directed() -> Iterator[tuple[Mistake, Chance]]:
    """Models that know which way is up; each is also one of magnitudes."""
    fix = "round up if the random number is below the fraction, else down"
    yield Mistake("always_up", "always goes up", fix), _always
    yield Mistake("always_down", "always goes down", fix), _never
    yield from _biases()
    yield from _generators()


def _symmetric() -> Iterator[tuple[Mistake, Chance]]:
    """Models that are the same for numbers and for magnitudes."""
    fix = "draw a random number for every element, and round up if it is below the fraction"
    yield Mistake("stochastic_rounding_ignored", "rounds to nearest", fix), _nearest
    about = "goes up with probability 1 - p instead of p"
    opposite = "round up if the random number is below the fraction, not above"
    yield Mistake("inverted_probability", about, opposite), _inverted
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        about = f"rounds about {share * 100:.0f} % of the elements to nearest"
        yield Mistake("partly_nearest", about, fix), partial(_partly_nearest, share)


def _unsigned(q: Chance, p: Real, negative: Bools) -> Real:
    return q(p)


def _of_magnitude(q: Chance, p: Real, negative: Bools) -> Real:
    return np.where(negative, 1.0 - q(1.0 - p), q(p))


# What a mistake is called where it goes by magnitudes.
TOWARD = {"always_up": "away_from_zero", "always_down": "toward_zero"}


def chances() -> Iterator[tuple[Mistake, SignedChance]]:
    """Mistakes in the probability of an element."""
    for mistake, q in _symmetric():
        yield mistake, partial(_unsigned, q)
    for mistake, q in _directed():
        yield mistake, partial(_unsigned, q)
        about = mistake.about.replace("going up", "going away from zero")
        about = about.replace("goes up", "goes away from zero")
        about = about.replace("goes down", "goes toward zero")
        name = TOWARD.get(mistake.name, mistake.name)
        yield Mistake(name, about, mistake.fix), partial(_of_magnitude, q)


def sharings(draws: Draws) -> Iterator[tuple[Mistake, Ints]]:
    """Mistakes in which elements share random numbers, with the group [runs, n] of each element."""
    runs = np.arange(len(draws.up))[:, None]
    count = int(draws.element.max(initial=0)) + 1
    width = int(draws.column.max(initial=0)) + 1
    own_counter = "the counter of the generator must hold table, row and column of the element"

    def within_run(groups: Ints) -> Ints:
        # Beyond all numbers of groups of a run, so that runs share none.
        return groups + runs * (2 * count + 2 * width)

    def sharing(name: str, about: str, fix: str = own_counter) -> Mistake:
        return Mistake(name, about, fix)

    rows = np.unique(draws.table * count + draws.row, return_inverse=True)[1]
    same_column = draws.table * width + draws.column
    yield sharing("one_number", "one random number serves all elements"), within_run(0 * rows)
    yield sharing("one_number_per_row", "one random number serves a whole row"), within_run(rows)
    about = "every row uses the same random numbers"
    yield sharing("one_number_per_column", about), within_run(draws.column)
    # Tables may have a generator each.
    yield sharing("one_number_per_column", about), within_run(same_column)
    about = "all tables use the same random numbers"
    yield sharing("same_numbers_in_tables", about), within_run(draws.row * width + draws.column)
    about = "elements on a diagonal share random numbers: row plus column counts them"
    yield sharing("numbers_on_diagonals", about), within_run(draws.row + draws.column)
    # Kernels may count rows through all tables.
    through_tables = draws.element // width
    yield sharing("numbers_on_diagonals", about), within_run(through_tables + draws.column)
    values = np.unique(np.where(draws.negative, -draws.chance, draws.chance), return_inverse=True)[
        1
    ]
    about = "equal fractions get equal random numbers, as from a hash of the value"
    yield sharing("number_of_value", about), within_run(values)
    for size in BLOCKS:
        about = f"{size} neighbouring elements share a random number"
        yield sharing("shared_by_neighbours", about), within_run(draws.element // size)
    for period in PERIODS:
        about = f"the random numbers repeat after {period} elements"
        yield sharing("numbers_repeat", about), within_run(draws.element % period)
    if len(draws.up) > 1:
        yield from sharings_of_runs(draws)


def sharings_of_runs(draws: Draws) -> Iterator[tuple[Mistake, Ints]]:
    """Mistakes in which runs of several seeds, or steps, share random numbers."""
    runs = np.arange(len(draws.up))[:, None]
    about = "every seed or step gives the same random numbers"
    fix = "the seed and the step must enter the generator's key or counter"
    alike = Mistake("same_numbers_for_seeds", about, fix)
    yield alike, np.broadcast_to(draws.element, draws.up.shape)
    about = "a seed or step has the random numbers of the next, one element further"
    overlapping = Mistake("seeds_overlap", about, fix)
    yield overlapping, draws.element + runs
    # Forwards or backwards; the sum keeps groups from being negative.
    yield overlapping, draws.element - runs + len(runs)


def shared_score(draws: Draws, groups: Ints) -> float:
    """Score of one random number per group: log(length of the u that fit), group by group."""
    flat = groups.reshape(-1)
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    size = np.diff(np.append(starts, flat.size))
    # Nothing is shared: no evidence.
    if size.max() < 2:
        return 0.0
    chance = np.broadcast_to(draws.chance, draws.up.shape)
    below = np.minimum.reduceat(np.where(draws.up, chance, 1.0).reshape(-1)[order], starts)
    above = np.maximum.reduceat(np.where(draws.up, 0.0, chance).reshape(-1)[order], starts)
    null = np.add.reduceat(draws.null().reshape(-1)[order], starts)
    with np.errstate(divide="ignore"):
        # One u fits all of a group where it is below every p that went up, and not below the
        # others.
        shared = np.log(np.maximum(below - above, 0.0)) - null
    # A few groups may be unshared, so that one odd element does not acquit the mistake.
    score = np.logaddexp(np.log1p(-UNSHARED) + shared, np.log(UNSHARED))
    return float(score[size > 1].sum())


def sequences(draws: Draws) -> Iterator[tuple[Mistake, Real]]:
    """Mistakes in which elements follow each other, with the probability of up, [runs, n].

    The probability depends on earlier elements alone, so that it is one for each outcome.
    """
    residual = draws.up - draws.chance
    room = draws.chance * (1.0 - draws.chance)
    fix = "neighbouring elements need words of the generator that are independent of each other"
    width = int(draws.column.max(initial=0)) + 1
    for lag in sorted({*LAGS, width}):
        if lag >= draws.chance.size:
            break
        before = np.zeros_like(residual)
        before[:, lag:] = residual[:, :-lag]
        where = "neighbours" if lag == 1 else f"elements {lag} apart"
        for strength in STRENGTHS:
            way = "the same way" if strength > 0 else "opposite ways"
            mistake = Mistake("correlated_numbers", f"{where} tend to go {way}", fix)
            yield mistake, draws.chance + 4.0 * strength * before * room
    total = np.cumsum(residual, axis=1) - residual
    fix = "use a random generator, not a dither pattern or error diffusion"
    for strength in (0.3, 0.8):
        about = "the sum of all errors stays too near 0: a pattern, not random numbers"
        yield (
            Mistake("pattern_not_random", about, fix),
            draws.chance - 4.0 * strength * np.tanh(total) * room,
        )
