"""How do the samples of a session resemble each other? Each feature keeps its value from one to the
next, with some probability.

Samples of a synthetic log are cut into sessions of S neighbours (RecD's model). The bag of a
feature in sample r is the one that was drawn for the last sample of the session at which the
feature changed: the first sample of a session, and then each with probability 1 - d. So a feature
has S (1 - (S-1)/S d) distinct bags in S samples, on average. Features named together change at the
same samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.types import Ints
from neocpu.kernels.twins.numbers.philox import GENERATOR, random_words, tensor_key


@dataclass(frozen=True)
class Sessions:
    """Sessions of a log.

    length : S, samples of each. keep : d by feature name, "" for all others. together : features
    that change at the same samples, with the probability of the first.

    Raises ConfigError for numbers out of range, or a feature in two groups.
    """

    length: int
    keep: Mapping[str, float] = field(default_factory=dict)
    together: Sequence[Sequence[str]] = ()

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(f"sessions of {self.length} samples: at least 1")
        for name, probability in self.keep.items():
            if not 0.0 <= probability <= 1.0:
                raise ConfigError(f"keep {name or 'of all'} {probability:g}: from 0 to 1")
        names = [name for group in self.together for name in group]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"feature {min(repeated)!r} is in two groups that change together")

    def check(self, features: Sequence[str]) -> None:
        """Raise ConfigError for a feature that is not among these."""
        named = [*filter(None, self.keep), *(name for group in self.together for name in group)]
        if unknown := [name for name in named if name not in features]:
            raise ConfigError(
                f"sessions name feature {unknown[0]!r}: the categories are {features[0]} to "
                f"{features[-1]}"
            )

    def start(self, first: int) -> int:
        """The first sample of the session of sample `first`."""
        return first - first % self.length

    def sources(self, seed: int, name: str, step: int, first: int, samples: int) -> Ints:
        """For samples first .. first + samples - 1 of a log, `first` the first of a session: the
        sample, counted from `first`, whose draws of the feature they have. i64[samples]
        """
        # Features that change together draw the words of the first of them.
        leader = next((group[0] for group in self.together if name in group), name)
        probability = self.keep.get(leader, self.keep.get("", 0.0))
        words = np.empty((samples, 1), np.uint32)
        random_words(tensor_key(seed, GENERATOR, f"{leader}.session"), first, 0, step, words)
        here = np.arange(samples, dtype=np.int64)
        # The first sample of a session has nothing to keep.
        kept = (words[:, 0] < probability * 2.0**32) & ((first + here) % self.length > 0)
        # The last sample that did not keep: the greatest number so far.
        return np.maximum.accumulate(np.where(kept, 0, here))


def parse_keep(text: str) -> dict[str, float]:
    """Probabilities by feature name from text such as `0.9` or `0.9,C1=1,C20=0`; the key "" is that
    of all other features. Raises ConfigError for anything else.
    """
    keep = {"": 0.0}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = item.rpartition("=")
        try:
            keep[name.strip()] = float(number)
        except ValueError as error:
            raise ConfigError(f"keep {item!r}: write 0.9, or 0.9,C1=1,C20=0") from error
    return keep
