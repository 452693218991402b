"""How can hundreds of mutants share the time that bent truths take? They are remembered by case.

The truth of a case under a switch does not depend on the answers. Only the time of a search changes
by this, not what it finds: its budget counts work, whether a truth is remembered or not.
"""

from collections.abc import Iterable

import numpy as np

from neocpu.oracle.diagnosis.evidence import AskedSwitches, CaseTrial, Truths, differ
from neocpu.oracle.semantics import switches_for

LARGEST = 1 << 13  # elements of a case's outputs, beyond which its truths are not kept

Key = tuple[str, frozenset[str]]


class Memory:
    """Truths of small cases under at most one switch, of one suite."""

    def __init__(self) -> None:
        self._truths: dict[Key, Truths | None] = {}
        self._plain = CaseTrial.truth_under
        self._asked = CaseTrial.asked
        self._asked_by_case: dict[str, frozenset[str]] = {}

    def install(self) -> None:
        """Let the oracle's search ask this memory, for the rest of the process."""
        memory = self

        def truth_under(trial: CaseTrial, switches: frozenset[str]) -> Truths | None:
            return memory.truth(trial, switches)

        def asked(trial: CaseTrial) -> frozenset[str]:
            return memory.asked(trial)

        CaseTrial.truth_under = truth_under  # type: ignore[method-assign]
        CaseTrial.asked = asked  # type: ignore[method-assign]

    def fill(self, trials: Iterable[CaseTrial]) -> None:
        """Remember the truths of small cases under every single switch that they ask for."""
        for trial in trials:
            asked = self.asked(trial)
            for switch in switches_for(trial.op.name):
                if switch.name in asked and self._fits(trial):
                    self.truth(trial, frozenset([switch.name]))

    def _fits(self, trial: CaseTrial) -> bool:
        """Is the case small enough?"""
        elements = sum(int(np.size(truth.reference)) for truth in trial.truths.values())
        return elements <= LARGEST

    def truth(self, trial: CaseTrial, switches: frozenset[str]) -> Truths | None:
        """As CaseTrial.truth_under."""
        is_asked = isinstance(switches, AskedSwitches)
        if is_asked or len(switches) > 1 or not self._fits(trial):
            return self._plain(trial, switches)
        key = (trial.case.name, frozenset(switches))
        if key not in self._truths:
            truths = self._plain(trial, switches)
            same = truths is not None and not differ(trial.truths, truths)
            self._truths[key] = trial.truths if same else truths
        return self._truths[key]

    def asked(self, trial: CaseTrial) -> frozenset[str]:
        """As CaseTrial.asked."""
        name = trial.case.name
        if name not in self._asked_by_case:
            self._asked_by_case[name] = self._asked(trial)
        return self._asked_by_case[name]
