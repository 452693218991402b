"""How do values of a log become what a model takes? With NumPy alone.

    value ──kind──► code, 64 bits ──hash or vocabulary──► row of a table      categories
    value ──transform──► float32                                              numbers

`torch_model.py` needs this file beside it. A `RawValues` does it by the card of an exported model
(its JSON, under "neocpu" in the metadata of a .safetensors or .onnx file), value for value as
neocpu reads a log. `onnx_inputs` makes the inputs of a whole ONNX model.
"""

import datetime
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
# what a log's parser takes for numbers, where Python takes more
INTEGER = re.compile(r"[+-]?[0-9]+")
DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
WORDS = {"true": "1", "True": "1", "TRUE": "1", "false": "0", "False": "0", "FALSE": "0"}
LEAST = 100  # unknown values of a feature, from which they are told where they are most
LARGEST = float(np.finfo(np.float32).max)
TIME_KINDS = ("hour", "weekday", "day", "month", "date")
Value = Any  # of a column of a log: a text, a number, a moment, None or a list of these
Card = Mapping[str, Any]  # JSON: what an exported model says of itself or of a part
Columns = Mapping[str, Sequence[Value]]
Feature = Card


class FeatureBags(NamedTuple):
    """The bags of one feature: codes uint64[n], lengths int64[B], weights float32[n]."""

    codes: np.ndarray
    lengths: np.ndarray
    weights: np.ndarray


def splitmix64(x: np.ndarray) -> np.ndarray:
    """One step of SplitMix64 on uint64[n], as a mixing function."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fnv1a64(texts: Sequence[str]) -> np.ndarray:
    """FNV-1a, 64 bits, of the UTF-8 bytes of each text: uint64[n]."""
    data = [text.encode() for text in texts]
    sizes = np.array([len(encoded) for encoded in data], np.int64)
    inside = np.arange(sizes.max(initial=0)) < sizes[:, None]
    letters = np.zeros((len(data), inside.shape[-1]), np.uint64)
    letters[inside] = np.frombuffer(b"".join(data), np.uint8)
    code = np.full(len(data), 0xCBF29CE484222325, np.uint64)
    # letter by letter for all texts: there are far more texts than letters in one
    for column in range(letters.shape[1]):
        mixed = (code ^ letters[:, column]) * np.uint64(0x100000001B3)
        code = np.where(inside[:, column], mixed, code)
    return code


# ---- row of a table -> row of a part of it ----


def part_rows(rows: np.ndarray, row_map: Card) -> np.ndarray:
    """Rows int64[n] of a table as those of one of its parts; -1 where that has nothing for it."""
    rule = row_map["rule"]
    if rule == "digit":
        digits: np.ndarray = rows // row_map["divisor"] % row_map["modulus"]
        return row_map["first"] + digits
    if rule == "salted":
        words = splitmix64(rows.astype(np.uint64) ^ np.uint64(int(row_map["key"])))
        return row_map["first"] + (words % np.uint64(row_map["modulus"])).astype(np.int64)
    if rule == "range":
        inside = rows - row_map["first"]
        return np.where((inside >= 0) & (inside < row_map["modulus"]), inside, -1)
    raise ValueError(f"rows by the rule {rule!r} are unknown here")


def part_weights(rows: np.ndarray, weights: np.ndarray, row_map: Card) -> np.ndarray:
    """Weights float32[n] of lookups of a part, from those of the log and rows int64[n]."""
    if not row_map["log_weights"]:
        weights = np.ones_like(weights)
    if not row_map["signed"]:
        return weights
    # The complement of the key: signs must not depend on the bits that chose the row.
    words = splitmix64(rows.astype(np.uint64) ^ ~np.uint64(int(row_map["key"])))
    return np.where(words & np.uint64(1), -weights, weights)


def weighted_features(card: Card) -> set[str]:
    """Features whose weights of the log count."""
    return {
        feature["name"]
        for feature in card["features"]
        if card["tables"][feature["table"]]["weighted"]
        and feature.get("map", {}).get("log_weights", True)
    }


# ---- one value -> its code ----


def moment_of(value: Value, form: str) -> datetime.datetime:
    """The time that a value says in a form: YYMMDDHH, unix, unix_ms, iso or one of strptime."""
    if form in ("unix", "unix_ms"):
        seconds = float(value) / (1000 if form == "unix_ms" else 1)
        return EPOCH + datetime.timedelta(seconds=seconds)
    if isinstance(value, datetime.datetime):
        moment = value
    elif form == "iso":
        moment = datetime.datetime.fromisoformat(str(value))
    elif form == "YYMMDDHH":
        # a number has lost the leading 0 of years before 2010
        moment = _parsed(f"20{int(value):08}", "%Y%m%d%H")
    else:
        moment = _parsed(str(value), form)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _parsed(text: str, form: str) -> datetime.datetime:
    """A time in a form of strptime; without an offset it is taken as it is written."""
    if "%z" in form:
        return datetime.datetime.strptime(text, form).astimezone(UTC)
    return datetime.datetime.strptime(text, form).replace(tzinfo=UTC)


def time_code(value: object, kind: str, form: str) -> int:
    """Hour plus 1, weekday (Monday 1), day, month, or date as the number 20141021."""
    moment = moment_of(value, form)
    if kind == "hour":
        return moment.hour + 1
    if kind == "weekday":
        return moment.isoweekday()
    if kind == "date":
        return int(moment.strftime("%Y%m%d"))
    return moment.day if kind == "day" else moment.month


def code_of(value: Value, feature: Feature) -> int:
    """Code of a value that is there, of any kind but text.

    Raises ValueError for a kind that is unknown here.
    """
    kind = feature["kind"]
    if kind in TIME_KINDS:
        return time_code(value, kind, feature["time"])
    if kind == "bucket":
        return 1 + int(np.searchsorted(np.array(feature["edges"]), float(value), "right"))
    if kind == "hex" and isinstance(value, str):
        return int(value, 16)
    if kind in ("hex", "int"):
        # Two's complement, as a log's negative integers are stored.
        return int(WORDS.get(value, value) if isinstance(value, str) else value) % 2**64
    raise ValueError(f"feature {feature['name']}: kind {kind!r} is unknown here; give rows instead")


def number_of(value: Value, column: Card) -> float:
    """A number of a dense column; NaN for one that it cannot hold, where that means missing."""
    if column.get("invalid", "error") == "error":
        return float(value)
    text = WORDS.get(str(value), str(value))
    if column["kind"] == "int":
        # a whole number stored as a float is written without a point
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else text
        held = INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63
    else:
        held = DECIMAL.fullmatch(text) and abs(float(text)) <= LARGEST
    return float(text) if held else float("nan")


class RawValues:
    """Columns of a log to the inputs of a model.

    card : of the exported model.
    vocabularies : codes uint64[V] by feature, entry i is row i + 1.
    """

    def __init__(self, card: Card, vocabularies: Mapping[str, np.ndarray] | None = None) -> None:
        self.card = card
        self.empty = {"", *card["missing"]}
        self.vocabularies = dict(vocabularies or {})
        self._order = {
            # Vocabularies are by count; a search needs them by code.
            name: np.argsort(codes, kind="stable")
            for name, codes in self.vocabularies.items()
        }

    def is_missing(self, value: object) -> bool:
        """Whether a field is empty: None, NaN, or a text that stands for it."""
        if isinstance(value, str):
            return value in self.empty
        if value is None or type(value).__name__ == "NAType":  # of pandas, which is not imported
            return True
        # Only NaN differs from itself, whichever library's NaN it is.
        return bool(value != value)

    def text_of(self, value: Value, case: Callable[[str], str] = str.lower) -> str:
        """The text of a value that is there, as it stands in a log; case : of true and false."""
        if isinstance(value, (bool, np.bool_)):
            return case(str(value))
        # a whole number has no point, whatever type holds it
        if self.card.get("whole") and isinstance(value, (float, np.floating)):
            number = float(value)
            whole = abs(number) < 2**63 and number.is_integer()
            return str(int(number)) if whole else str(value)
        return value.decode() if isinstance(value, bytes) else str(value)

    # ---- numbers ----

    def numbers(self, columns: Columns) -> np.ndarray:
        """Dense columns as they stand in the log, float64[B, n]; NaN where they are missing."""
        raw = [columns[column["column"]] for column in self.card["dense"]]
        samples = len(raw[0]) if raw else len(next(iter(columns.values())))
        out = np.empty((samples, len(raw)))
        for i, values in enumerate(raw):
            column = self.card["dense"][i]
            out[:, i] = [
                np.nan if self.is_missing(value) else number_of(value, column) for value in values
            ]
        return out

    def dense(self, columns: Columns) -> np.ndarray:
        """Dense inputs of the model, float32[B, n]: transformed; 0 where they are missing."""
        numbers = self.numbers(columns)
        for i, column in enumerate(self.card["dense"]):
            if column.get("clip"):
                numbers[:, i] = np.clip(numbers[:, i], *column["clip"])
            if column["fitted"]:
                mean, deviation = column["fitted"]
                numbers[:, i] = (numbers[:, i] - mean) / deviation
            elif column["transform"] == "log1p":
                numbers[:, i] = np.log1p(np.maximum(numbers[:, i], 0))
            elif column["transform"] != "none":
                raise ValueError(f"transform {column['transform']!r} is unknown here")
        # After the transform, so that a missing number is the mean of a standardised column.
        return np.nan_to_num(numbers, nan=0.0).astype(np.float32)

    # ---- categories ----

    def bags(self, feature: Feature, columns: Columns) -> FeatureBags:
        """The bags of a feature. Raises KeyError for a column that is missing."""
        values = columns[feature["column"]]
        weights = columns.get(feature["weights"])
        bags = [
            self._items(value, None if weights is None else weights[i], feature)
            for i, value in enumerate(values)
        ]
        items = [item for bag in bags for item, _ in bag]
        return FeatureBags(
            self.codes(items, feature),
            np.array([len(bag) for bag in bags], np.int64),
            np.array([weight for bag in bags for _, weight in bag], np.float32),
        )

    def _items(self, value: Value, weights: Value, feature: Feature) -> list[tuple[Value, float]]:
        """(item, weight) of one field: a list, text with its separators, or one value."""
        separator = feature["separator"]
        mark = feature["weight_separator"]
        listed = isinstance(value, (list, tuple, np.ndarray))
        if not listed and not separator:
            # a single value that is missing has a row of its own, an empty list none
            return [] if feature["many"] and self.is_missing(value) else [(value, 1.0)]
        if not listed:
            value = [] if self.is_missing(value) else str(value).split(separator)
        if isinstance(weights, str):
            weights = weights.split(separator) if weights else []
        if mark and not listed:
            parts = [item.rpartition(mark) for item in value]
            value = [item if marked else text for item, marked, text in parts]
            weights = [text if marked else "" for _, marked, text in parts]
        factors = [1.0] * len(value) if weights is None else weights
        return [(item, 1.0 if self.is_missing(w) else float(w)) for item, w in zip(value, factors)]

    def codes(self, values: Sequence[object], feature: Feature) -> np.ndarray:
        """64-bit codes uint64[n] of values of a feature, each looked at once."""
        missing = np.array([self.is_missing(value) for value in values], bool)
        if feature["kind"] == "text":
            truths = any(isinstance(value, (bool, np.bool_)) for value in values)
            case = self._case_of(feature) if truths else str.lower
            texts = ["" if none else self.text_of(v, case) for v, none in zip(values, missing)]
            return np.where(missing, np.uint64(feature["missing"]), fnv1a64(texts))
        codes = [
            feature["missing"] if none else code_of(value, feature)
            for value, none in zip(values, missing)
        ]
        return np.array(codes, np.uint64)

    def _case_of(self, feature: Feature) -> Callable[[str], str]:
        """How true and false are written: as the vocabulary knows them, True maybe."""
        if feature.get("name") in self.vocabularies:
            for case in (str.lower, str.title, str.upper):
                if self.model_rows(fnv1a64([case("true"), case("false")]), feature).any():
                    return case
        return str.lower

    def rows(self, codes: np.ndarray, feature: Feature) -> np.ndarray:
        """Rows int64[n] of a feature's table: where that is a part of another one, by its map."""
        rows = self.model_rows(codes, feature)
        return part_rows(rows, feature["map"]) if "map" in feature else rows

    def weights(self, bags: FeatureBags, feature: Feature) -> np.ndarray:
        """Weights float32[n] of the lookups of bags."""
        if "map" not in feature:
            return bags.weights
        return part_weights(self.model_rows(bags.codes, feature), bags.weights, feature["map"])

    def model_rows(self, codes: np.ndarray, feature: Feature) -> np.ndarray:
        """Rows int64[n] of codes: hashed, codes modulo rows, or places in a vocabulary."""
        name = feature["name"]
        if not feature["vocabulary"]:
            whole = feature.get("map", self.card["tables"][feature["table"]])
            count = np.uint64(whole["rows"])
            if self.card["rows_by"] == "hash":
                codes = splitmix64(codes ^ np.uint64(int(feature["hash_key"])))
            return (codes % count).astype(np.int64)
        order = self._order[name]
        words = self.vocabularies[name]
        if not words.size:
            return np.zeros(codes.size, np.int64)
        position = np.searchsorted(words, codes, sorter=order).clip(max=words.size - 1)
        rows = np.where(words[order[position]] == codes, order[position] + 1, 0)
        there = codes != np.uint64(feature.get("missing", 0))
        unseen = int(np.count_nonzero(there & (rows == 0)))
        share = unseen / max(int(np.count_nonzero(there)), 1)
        if unseen >= LEAST and share > 0.5:
            # the words of `neocpu eval` and `predict`
            warnings.warn(
                f"most values of {name} ({share:.0%}) are unknown to the model; are they written "
                "as in its train data?",
                stacklevel=2,
            )
        return rows

    # ---- ONNX ----

    def onnx_inputs(self, columns: Columns) -> dict[str, np.ndarray]:
        """Inputs of a whole ONNX model that takes codes, by name."""
        inputs = {"dense": self.numbers(columns).astype(np.float32)}
        weighted = weighted_features(self.card)
        for feature in self.card["features"]:
            name = feature["name"]
            if name in inputs:
                continue
            bags = self.bags(feature, columns)
            if not feature["list"]:
                inputs[name] = bags.codes.view(np.int64)
                continue
            inside = np.arange(bags.lengths.max(initial=1)) < bags.lengths[:, None]
            for key, values in (
                (name, bags.codes.view(np.int64)),
                (f"{name}.weights", bags.weights),
            ):
                # Padding is of code 0 and weight 0; the graph leaves out what is beyond `count`.
                inputs[key] = np.zeros(inside.shape, values.dtype)
                inputs[key][inside] = values
            inputs[f"{name}.count"] = bags.lengths
            if name not in weighted:
                del inputs[f"{name}.weights"]
        return inputs
