"""How does one get any amount of Criteo-shaped data, with the best possible score known?

By planting the clicks. `SyntheticCriteo` is an endless log. Sample r is a function of (seed, r)
alone: blocks of any size give the same bits, and train, valid and test files are ranges of one log.
Its shape (cardinalities, skew, growth, joint missing fields) is fitted to the Criteo log
(`criteo_shape.json` says how); its clicks follow a planted model, so the logloss and the AUC of the
*true* probabilities on the written samples (`Tally`) are what no model can beat but by luck.

    SyntheticCriteo(seed).block(first, samples) -> Block
    Block -> write_dataset (HDF5) | write_log (the raw TSV)

The arithmetic is in `neocpu/kernels/logs/synthetic.py`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.types import Bytes, Doubles, Floats, Ints
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn, take_bags
from neocpu.ingest.synthetic.sessions import Sessions
from neocpu.kernels.logs import synthetic as kernels
from neocpu.kernels.twins.logs.synthetic import ABSENT, VECTOR
from neocpu.kernels.twins.numbers.elementary import exp, log
from neocpu.kernels.twins.numbers.philox import GENERATOR, fnv1a64, random_words, tensor_key

Parameters: TypeAlias = dict[str, Any]  # JSON that comes with neocpu
SAMPLES = 16384  # drawn at once; as many others calibrate the planted model
LOG = 0  # Philox step of the samples of the log
CALIBRATION = 1  # Philox step of the samples that calibrate the planted model
BINS = 1 << 20  # probabilities that agree to 20 bits count as ties in the best AUC
SHIFT = 3.0  # quantiles of integers (>= -2) are straight lines of log(value + 3)


@dataclass(frozen=True)
class Hotness:
    """Codes per sample of a category: always `mean`, or geometric with that mean (at least one)."""

    mean: float = 1.0
    geometric: bool = False

    def __post_init__(self) -> None:
        if not 1.0 <= self.mean <= 10_000.0 or (not self.geometric and self.mean != int(self.mean)):
            raise ConfigError(
                f"hotness {self.mean:g}: a whole number from 1 to 10000, or geometric:MEAN with "
                "MEAN >= 1"
            )


def parse_hotness(text: str) -> dict[str, Hotness]:
    """Hotness by feature name from text; the key "" is the default of all features.

    text : `4`, `geometric:4`, or with single features `2,C1=8,C3=geometric:20`. Raises ConfigError
    for anything else.
    """
    hotness = {"": Hotness()}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.rpartition("=")
        kind, _, number = value.rpartition(":")
        try:
            mean = float(number)
        except ValueError:
            mean = math.nan
        if kind not in ("", "fixed", "geometric") or math.isnan(mean):
            raise ConfigError(
                f"hotness {item!r}: write 4, geometric:4, or C1=8,C3=geometric:20 for single "
                "features"
            )
        hotness[name.strip()] = Hotness(mean, kind == "geometric")
    return hotness


def criteo_shape() -> Parameters:
    """The fitted parameters, their origin, and the sizes of the planted effects."""
    return _resource("criteo_shape.json")


def published_reuse() -> Parameters:
    """Reuse of table rows in Meta's embedding traces, by year: published shares, fitted classes."""
    return _resource("reuse.json")


def _resource(name: str) -> Parameters:
    return json.loads(files("neocpu.ingest.synthetic").joinpath(name).read_text("utf-8"))


@dataclass(frozen=True)
class Reuse:
    """Codes are reused as in the published traces of a year.

    In `rows` samples of the log, codes with any given number of uses have the published share of
    lookups. Raises ConfigError for a year without a trace.
    """

    year: str
    rows: int

    def __post_init__(self) -> None:
        if self.year not in (years := published_reuse()["years"]):
            raise ConfigError(f"reuse {self.year!r}: published are {', '.join(years)}")

    def classes(self, mean: float) -> tuple[Doubles, Doubles]:
        """(end of its draws in [0, 1], first code) of each class of codes, most used first.

        mean : codes of a sample.
        """
        entry = published_reuse()["years"][self.year]
        classes = sorted(zip(entry["reuse"], entry["share"]), reverse=True)
        total = sum(share for _, share in classes)
        cuts = [*accumulate(share / total for _, share in classes)]
        firsts = [
            0.0,
            *accumulate(share / total * mean * self.rows / reuse for reuse, share in classes),
        ]
        return np.array([*cuts[:-1], 1.0]), np.array(firsts)


@dataclass(frozen=True)
class Block:
    """Some samples of a log.

    labels float32[n]; integers int64[13, n] (`ABSENT` where empty); categories : name ->
    `BagColumn` (lengths None: one code per sample, 0 where missing); probability float64[n]: of a
    click, which the log does not contain.
    """

    labels: Floats
    integers: Ints
    categories: dict[str, BagColumn]
    probability: Doubles


class _Category:
    """Distribution and planted effects of one category; cardinality : its codes."""

    def __init__(
        self,
        seed: int,
        entry: Parameters,
        cardinality: int,
        hotness: Hotness,
        planted: Parameters,
        reuse: Reuse | None,
    ) -> None:
        self.cuts, self.firsts = np.empty((2, 0))
        if reuse is not None:
            self.cuts, self.firsts = reuse.classes(hotness.mean)
            cardinality = math.ceil(self.firsts[-1])
        name = entry["name"]
        exponent = 1.0 - entry["exponent"]
        offset = entry["offset"]
        self.name = name
        self.cardinality = cardinality
        self.hotness = hotness
        powers = exp(exponent * log(np.array([1.0 + offset, cardinality + 1.0 + offset])))
        law = [entry["top"], offset, 1.0 / exponent, powers[0], powers[1] - powers[0], cardinality]
        self.law = np.array(law, np.float64)
        # One scale per feature, not per bag, so that a model with sum pooling can express it.
        share = 1.0 / math.sqrt(hotness.mean)
        vector = planted["vector"] * share if name in planted["vectors"] else 0.0
        self.amplitudes = np.array([planted["effect"] * share, planted["damping_rank"], vector])
        self.key = tensor_key(seed, GENERATOR, name)
        self.effect_key = tensor_key(seed, GENERATOR, f"{name}.effect")
        self.code_key = np.uint64(fnv1a64(name) & 0x7FFFFFFF | 0x80000000)

    @property
    def multi_hot(self) -> bool:
        return self.hotness != Hotness()


class _Integer:
    """Quantile function and planted effects of one integer field."""

    def __init__(
        self, seed: int, entry: Parameters, probabilities: list[float], planted: Parameters
    ) -> None:
        self.name = entry["name"]
        self.key = tensor_key(seed, GENERATOR, self.name)
        knots = np.array(probabilities)
        # Our own logarithm: a log must have the same bytes on every machine.
        heights = log(np.array(entry["quantiles"], np.float64) + SHIFT)
        self.knots = knots[:-1].copy()
        self.starts = heights[:-1].copy()
        self.slopes = (heights[1:] - heights[:-1]) / (knots[1:] - knots[:-1])
        self.center = float(entry["center"])
        self.scale = 1.0 / float(entry["spread"])
        words = np.empty((1, 8), np.uint32)
        random_words(tensor_key(seed, GENERATOR, f"{self.name}.effect"), 0, 0, 0, words)
        size, sign, missing, _, *vector = ((words[0].astype(np.float64) + 0.5) / 2.0**32).tolist()
        self.slope = planted["slope"] * (0.5 + size) * (1.0 if sign < 0.5 else -1.0)
        self.missing = planted["missing"] * (2.0 * missing - 1.0)
        self.vector = (2.0 * np.array(vector) - 1.0) * planted["integer_vector"]


class SyntheticCriteo:
    """An endless log of Criteo's shape.

    cardinality_scale shrinks every category (to no less than 3 values), max_rows caps them;
    hotness : `parse_hotness`; reuse : codes of all categories are used as often as those of a
    published trace, which decides their number; sessions : samples whose categories are those of
    the sample before, more or less often. integer_names, categories, cardinalities (values that can
    occur, a missing one not counted): in file order. Raises ConfigError for options out of range or
    unknown features.
    """

    def __init__(
        self,
        seed: int,
        *,
        cardinality_scale: float = 1.0,
        max_rows: int | None = None,
        hotness: Mapping[str, Hotness] | None = None,
        reuse: Reuse | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        shape = criteo_shape()
        hotness_by_name = dict(hotness or {})
        if not 0.0 < cardinality_scale <= 1.0:
            raise ConfigError(f"cardinality scale {cardinality_scale:g}: above 0 and at most 1")
        if max_rows is not None and max_rows < 1:
            raise ConfigError(f"max rows {max_rows}: at least 1")
        if reuse is not None and (cardinality_scale < 1.0 or max_rows is not None):
            raise ConfigError(
                "reuse says how many codes there are: leave cardinality scale and max rows away"
            )
        names = [entry["name"] for entry in shape["categories"]]
        if unknown := [name for name in hotness_by_name if name and name not in names]:
            raise ConfigError(
                f"hotness of {unknown[0]!r}: the categories are {names[0]} to {names[-1]}"
            )
        if sessions is not None:
            sessions.check(names)
        self.seed = seed
        self.reuse = reuse
        self.sessions = sessions
        planted = shape["planted"]
        self._integers = [
            _Integer(seed, entry, shape["probabilities"], planted) for entry in shape["integers"]
        ]
        groups = shape["missing"]
        self._group = {field: g for g, group in enumerate(groups) for field in group["fields"]}
        self._rates = np.array([group["rate"] for group in groups])
        self._categories = []
        for entry in shape["categories"]:
            # Published rows count the missing value where a category has one.
            cardinality = entry["rows"] - (entry["name"] in self._group)
            cardinality = max(math.ceil(cardinality * cardinality_scale), min(cardinality, 3))
            cardinality = min(cardinality, max_rows or cardinality)
            category_hotness = hotness_by_name.get(
                entry["name"], hotness_by_name.get("", Hotness())
            )
            self._categories.append(
                _Category(seed, entry, cardinality, category_hotness, planted, reuse)
            )
        self.integer_names = tuple(field.name for field in self._integers)
        self.cardinalities = {category.name: category.cardinality for category in self._categories}
        self._missing_key = tensor_key(seed, GENERATOR, "missing")
        self._click_key = tensor_key(seed, GENERATOR, "click")
        # Of samples that no log contains, so that every part of a log is scaled alike.
        logits = self._draw(CALIBRATION, 0, SAMPLES)[2]
        self._scale, self._bias = kernels.calibrate(
            logits, planted["deviation"], planted["click_rate"]
        )

    @property
    def multi_hot(self) -> bool:
        """Whether any category has more than one code per sample."""
        return any(category.multi_hot for category in self._categories)

    @property
    def hotness(self) -> dict[str, str]:
        """Codes per sample of the multi-hot categories, as `parse_hotness` reads them."""
        texts = {}
        for category in self._categories:
            if category.multi_hot:
                kind = "geometric:" if category.hotness.geometric else ""
                texts[category.name] = f"{kind}{category.hotness.mean:g}"
        return texts

    @property
    def features(self) -> list[FeatureColumn]:
        """Columns of the dataset; multi-hot ones are ragged, as a missing field is an empty bag."""
        return [
            FeatureColumn(c.name, "uint32", 0 if c.multi_hot else 1, kind="hex")
            for c in self._categories
        ]

    def block(self, first: int, samples: int) -> Block:
        """Samples first .. first + samples - 1."""
        integers, categories, logits = self._draw(LOG, first, samples, self.sessions)
        probability = np.empty(samples, np.float64)
        labels = np.empty(samples, np.float32)
        draws = kernels.RowDraws(self._click_key, LOG, first)
        kernels.clicks(draws, logits, self._scale, self._bias, probability, labels)
        return Block(labels, integers, categories, probability)

    def blocks(self, first: int, samples: int, size: int = SAMPLES) -> Iterator[Block]:
        """The same samples, `size` at a time."""
        for start in range(first, first + samples, size):
            yield self.block(start, min(size, first + samples - start))

    def _draw(
        self, step: int, first: int, samples: int, sessions: Sessions | None = None
    ) -> tuple[Ints, dict[str, BagColumn], Doubles]:
        """Integers, bags and raw logits of some samples."""
        missing = np.empty((samples, self._rates.size), np.uint8)
        draws = kernels.RowDraws(self._missing_key, step, first)
        kernels.missing_groups(draws, self._rates, missing)
        columns = np.ascontiguousarray(missing.T)
        none = np.zeros(samples, np.uint8)

        def absent(name: str) -> Bytes:
            return columns[self._group[name]] if name in self._group else none

        sums = kernels.RowSums(np.zeros(samples), np.zeros((samples, VECTOR)), np.zeros(samples))
        logits, vectors, squares = sums
        values = np.empty((len(self._integers), samples), np.int64)
        for line, field in zip(values, self._integers):
            draws = kernels.RowDraws(field.key, step, first)
            quantiles = kernels.Quantiles(field.knots, field.starts, field.slopes, SHIFT)
            kernels.integers(draws, absent(field.name), quantiles, line)
            terms = kernels.IntegerTerms(
                center=field.center,
                scale=field.scale,
                slope=field.slope,
                missing=field.missing,
                vector=field.vector,
            )
            kernels.integer_effects(line, terms, logits, vectors)
        kernels.square_norms(vectors, squares)
        categories = {}
        if sessions is not None:
            categories = self._session_bags(sessions, step, first, sums)
        for category in self._categories if sessions is None else ():
            categories[category.name] = self._bags(
                category, step, first, absent(category.name), sums
            )
        kernels.add_pairs(vectors, squares, logits)
        return values, categories, logits

    def _session_bags(
        self, sessions: Sessions, step: int, first: int, sums: kernels.RowSums
    ) -> dict[str, BagColumn]:
        """Bags of samples that keep those of the samples before, their effects added to the sums.

        Drawn from the beginning of the first sample's session on.
        """
        # A sample may keep the codes of any earlier one of its session, so these are drawn too.
        start = sessions.start(first)
        samples = first - start + sums.logit.size
        missing = np.zeros((samples, self._rates.size), np.uint8)
        kernels.missing_groups(
            kernels.RowDraws(self._missing_key, step, start), self._rates, missing
        )
        none = np.zeros(samples, np.uint8)
        categories = {}
        for category in self._categories:
            group = self._group.get(category.name)
            absent = none if group is None else np.ascontiguousarray(missing[:, group])
            # The effects of the codes that a sample draws; it may keep another sample's in their
            # place.
            own = kernels.RowSums(np.zeros(samples), np.zeros((samples, VECTOR)), np.zeros(samples))
            drawn = self._bags(category, step, start, absent, own)
            source = sessions.sources(self.seed, category.name, step, start, samples)
            source = source[first - start :]
            for total, part in zip(sums, own):
                total += part[source]
            categories[category.name] = take_bags(drawn, source)
        return categories

    @staticmethod
    def _bags(
        category: _Category, step: int, first: int, absent: Bytes, sums: kernels.RowSums
    ) -> BagColumn:
        draws = kernels.RowDraws(category.key, step, first)
        offsets = np.arange(absent.size + 1)
        lengths = None
        if category.multi_hot:
            counts = np.empty(absent.size, np.int64)
            hotness = category.hotness
            kernels.bag_lengths(draws, absent, hotness.mean, hotness.geometric, counts)
            offsets[1:] = np.cumsum(counts)
            lengths = counts.astype(np.int32)
        codes = np.empty(offsets[-1], np.uint32)
        law = kernels.CategoryLaw(
            effect_key=category.effect_key,
            name=category.code_key,
            law=category.law,
            cuts=category.cuts,
            firsts=category.firsts,
            amplitudes=category.amplitudes,
        )
        kernels.bags(draws, offsets, absent, law, codes, sums)
        return BagColumn(codes, lengths)


class Tally:
    """What the true probabilities score on some samples.

    It sums whole numbers, so the order of blocks does not matter.
    """

    def __init__(self) -> None:
        self._histogram = np.zeros((2, BINS), np.int64)
        self._loss = 0

    def add(self, block: Block) -> None:
        """Count the samples of a block."""
        self._loss += int(kernels.tally(block.probability, block.labels, self._histogram))

    def score(self) -> dict[str, float]:
        """The scores by name: click_rate, constant_logloss, best_logloss, best_auc.

        constant_logloss: of predicting the click rate. best_auc: NaN without both labels.
        """
        clicks = int(self._histogram[1].sum())
        samples = int(self._histogram.sum())
        rate = clicks / samples
        outcomes = [
            (share, float(log(np.array([share]))[0])) for share in (rate, 1.0 - rate) if share > 0.0
        ]
        pairs = 0
        below = 0
        # Most of the 2^20 bins are empty.
        occupied = np.flatnonzero(self._histogram.sum(axis=0))
        for zeros, ones in zip(*self._histogram[:, occupied].tolist()):
            pairs += ones * (2 * below + zeros)
            below += zeros
        return {
            "click_rate": rate,
            "constant_logloss": -sum(share * logarithm for share, logarithm in outcomes),
            # Losses are summed in units of 2^-30, as whole numbers.
            "best_logloss": self._loss / 2.0**30 / samples,
            "best_auc": pairs / (2 * clicks * below) if clicks and below else math.nan,
        }


Progress = Callable[[int], None]
__all__ = [
    "ABSENT",
    "Block",
    "Hotness",
    "Progress",
    "Reuse",
    "SyntheticCriteo",
    "Tally",
    "criteo_shape",
    "parse_hotness",
]
