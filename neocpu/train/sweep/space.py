"""Which settings does a sweep try? All points of a grid, or draws, or draws at each point.

    --grid   training.batch_size=128,256,512      a list of values, written as in TOML
    --random optimizer.dense.learning_rate=log(1e-3,1e-1)    evenly by logarithm
    --random model.embedding_dim=int(4,64)        a whole number, both ends included
    --random training.seed=uniform(0,1)           a number, evenly
    --random model.top='[64,1],[256,1]'           one of a list

Draw n depends on the seed, n and the key alone: more trials, or another key, leave it as it is.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.records import apply_override, toml_tree

RANGE = re.compile(r"(log|uniform|int)\(([^,()]+),([^,()]+)\)")
DIGITS = 4  # significant ones of a number that is drawn
Point = dict[str, object]  # key -> value


@dataclass(frozen=True)
class Axis:
    """A key and its values: a list of them, or a range to draw from (kind, low and high end)."""

    key: str
    values: tuple[object, ...] = ()
    kind: str = ""
    low: float = 0.0
    high: float = 0.0

    def draw(self, seed: int, number: int) -> object:
        """The value of draw `number`."""
        # of the key too, so that another axis changes no draw of this one
        words = hashlib.sha256(f"{seed} {number} {self.key}".encode()).digest()
        random = np.random.default_rng(int.from_bytes(words[:8], "little"))
        if not self.kind:
            return self.values[int(random.integers(len(self.values)))]
        if self.kind == "int":
            return int(random.integers(int(self.low), int(self.high), endpoint=True))
        share = float(random.random())
        if self.kind == "uniform":
            return _short(self.low + share * (self.high - self.low))
        # evenly by logarithm: rates differ by factors, not by differences
        return _short(math.exp(math.log(self.low) + share * math.log(self.high / self.low)))


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def grid_axis(option: str) -> Axis:
    """The axis of `--grid key=a,b,c`. Raises ConfigError for one that is written otherwise."""
    key, text = _split("--grid", option)
    return Axis(key, _values("--grid", option, text))


def random_axis(option: str) -> Axis:
    """The axis of `--random key=log(a,b)`. Raises ConfigError for one that is written otherwise."""
    key, text = _split("--random", option)
    match = RANGE.fullmatch(text.replace(" ", ""))
    if match is None:
        return Axis(key, _values("--random", option, text))
    kind = match[1]
    number: Callable[[str], float] = int if kind == "int" else float
    try:
        low = number(match[2])
        high = number(match[3])
    except ValueError as error:
        raise ConfigError(f"--random {option}: {error}") from error
    if not low < high or not math.isfinite(low) or not math.isfinite(high):
        raise ConfigError(f"--random {option}: the first end must be below the second")
    if kind == "log" and low <= 0:
        raise ConfigError(f"--random {option}: a range by logarithm begins above 0")
    return Axis(key, (), kind, low, high)


def _split(flag: str, option: str) -> tuple[str, str]:
    """Key and text of an option, the key checked."""
    key, equals, text = (word.strip() for word in option.partition("="))
    if not equals or not text:
        raise ConfigError(f"{flag} {option}: write it as key=values, for example key=1,2,3")
    return apply_override({}, f"{key}=0"), text


def _values(flag: str, option: str, text: str) -> tuple[object, ...]:
    """The values of a list that is written as in TOML, texts maybe without quotes."""
    try:
        values = toml_tree(f"values = [{text}]")["values"]
    except ValueError:
        if any(character in text for character in "[]{}\"'"):
            raise ConfigError(f"{flag} {option}: its values are no list of TOML values") from None
        values = [_value(word.strip()) for word in text.split(",")]
    if not values:
        raise ConfigError(f"{flag} {option}: it has no values")
    return tuple(values)


def _value(text: str) -> object:
    """A TOML value, or the text itself."""
    try:
        return toml_tree(f"value = {text}")["value"]
    except ValueError:
        return text


def points(grid: Sequence[Axis], random: Sequence[Axis], trials: int, seed: int) -> list[Point]:
    """The settings to try, in order, each once: for each point of the grid `trials` draws.

    Raises ConfigError for a key that is there twice, and where there is nothing to try.
    """
    keys = [axis.key for axis in (*grid, *random)]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise ConfigError(f"{min(twice)} is there twice; give each key one --grid or --random")
    if not keys:
        raise ConfigError("nothing to try; give --grid key=a,b,c or --random key=log(a,b)")
    if random and trials < 1:
        raise ConfigError("how many draws? --random needs --trials N")
    if trials and not random:
        raise ConfigError("--trials is the number of draws of --random; a grid is tried whole")
    chosen: list[Point] = []
    for values in itertools.product(*(axis.values for axis in grid)):
        fixed = {axis.key: value for axis, value in zip(grid, values)}
        for number in range(max(trials, 1)):
            point = fixed | {axis.key: axis.draw(seed, number) for axis in random}
            # a draw may come twice from a short list
            if point not in chosen:
                chosen.append(point)
    return chosen
