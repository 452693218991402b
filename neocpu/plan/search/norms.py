"""How good is a draft, so that nearly slowest ranks count too? A norm of its loads."""

from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats
from neocpu.plan.search.drafts import PlanDraft

# Loads count as at most so many times the slowest rank's, or their powers would overflow.
HIGHEST = 100.0
# Work of a call, whatever it looks at.
CALL = 400.0


@dataclass
class Budget:
    """Work that is left: pairs of rectangles, and candidates times ranks, yet to be looked at."""

    left: float

    def spend(self, work: float) -> None:
        """Some of it is done."""
        self.left -= work


class Norm:
    """The soft sum of a draft's loads, and what changes would make of it."""

    def __init__(self, draft: PlanDraft, doublings: int) -> None:
        self.draft = draft
        self.doublings = doublings
        # in parts of the slowest rank's, or the powers of seconds so small would vanish
        self.scale = np.maximum(draft.seconds.max(axis=0), 1e-300)
        self.refresh()

    def refresh(self) -> None:
        """Compute the powers of all loads anew."""
        self.powers = self.power(self.draft.seconds)
        self.sums = self.powers.sum(axis=0)

    def power(self, seconds: Floats) -> Floats:
        """(seconds / scale)^q, any shape [..., phases]."""
        # the exponent is a power of two, so squaring does for it, and square roots for its root
        powers = np.clip(seconds / self.scale, 0.0, HIGHEST)
        for _ in range(self.doublings):
            powers = powers * powers
        return powers

    def value(self, sums: Floats) -> Floats:
        """The norm from sums of powers f64[..., phases]."""
        # differences of sums may fall below 0 by rounding
        roots = np.maximum(sums, 0.0)
        for _ in range(self.doublings):
            roots = np.sqrt(roots)
        return roots @ self.scale

    @property
    def now(self) -> float:
        """The norm of the draft as it is."""
        return float(self.value(self.sums))

    def heat(self) -> Floats:
        """How much each rank's load adds to the norm, f64[ranks]."""
        sums = np.maximum(self.sums, 1e-300)
        roots = sums
        for _ in range(self.doublings):
            roots = np.sqrt(roots)
        return self.powers @ (self.scale * roots / sums)

    def touch(self, ranks: Ints) -> None:
        """Some ranks have other loads now."""
        self.powers[ranks] = self.power(self.draft.seconds[ranks])
        # summed anew, since adding differences would gather rounding errors over thousands of
        # changes
        self.sums = self.powers.sum(axis=0)
