"""What predicts clicks without neocpu? This file, with torch, safetensors and NumPy: copy it.

    model = TorchModel.load("model.safetensors")                # of `neocpu export`
    model.predict({"I1": [1, None], "C1": ["68fd1e64", ""]})    # columns of a log -> f32[B]
    model(dense, rows, lengths)                                 # numbers f32[B, n], row numbers

`predict` reads values as neocpu reads a log: a category becomes a 64-bit code (hexadecimal number,
integer, FNV-1a of the text, hour or weekday of YYMMDDHH), a code a row (splitmix64 of code and
feature, modulo rows; or its place in the vocabulary). Rows that were never trained are computed
from (seed, table, row) by Philox4x32-10, when they are looked up.

Predictions are those of neocpu but for the order of additions in fp32: its pooling is exact, and
its matrix products have an order of their own. Differences are some 1e-6.
"""

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional

LOW = 0xFFFFFFFF
FORMAT = "neocpu-scorer"
VERSION = 1
TORCH_TYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


# ---- values of a log -> codes -> rows, in NumPy ----


def splitmix64(x: np.ndarray) -> np.ndarray:
    """One step of SplitMix64 on uint64[n], as a mixing function."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fnv1a64(texts: Sequence[str]) -> np.ndarray:
    """FNV-1a, 64 bits, of the UTF-8 bytes of each text: uint64[n]."""
    data = [text.encode() for text in texts]
    sizes = np.array([len(each) for each in data], np.int64)
    inside = np.arange(sizes.max(initial=0)) < sizes[:, None]
    letters = np.zeros((len(data), inside.shape[-1]), np.uint64)
    letters[inside] = np.frombuffer(b"".join(data), np.uint8)
    code = np.full(len(data), 0xCBF29CE484222325, np.uint64)
    for column in range(letters.shape[1]):
        mixed = (code ^ letters[:, column]) * np.uint64(0x100000001B3)
        code = np.where(inside[:, column], mixed, code)
    return code


def is_missing(value: Any) -> bool:
    """Whether a field is empty: None, "" or NaN."""
    return value is None or value == "" or value != value


def integer_code(value: Any) -> int:
    """The 64 bits of an integer."""
    return int(value) % 2**64


def hexadecimal_code(value: Any) -> int:
    """The value of hexadecimal digits; an integer stands for itself."""
    return int(value, 16) if isinstance(value, str) else integer_code(value)


def hour_code(value: Any) -> int:
    """Hour of a time YYMMDDHH, plus 1."""
    return int(value) % 100 + 1


def weekday_code(value: Any) -> int:
    """Weekday of a time YYMMDDHH: Monday 1 to Sunday 7."""
    day = int(value) // 100
    return datetime.date(2000 + day // 10**4, day // 100 % 100, day % 100).isoweekday()


CODES = {
    "hex": hexadecimal_code,
    "int": integer_code,
    "hour": hour_code,
    "weekday": weekday_code,
}


def codes_of(values: Sequence[Any], kind: str) -> np.ndarray:
    """64-bit codes of the values of one feature: uint64[n]; of missing ones 0.

    Raises ValueError for a kind that is unknown here: give codes instead.
    """
    missing = np.array([is_missing(value) for value in values], bool)
    if kind == "text":
        codes = fnv1a64(["" if none else str(v) for v, none in zip(values, missing)])
        return np.where(missing, np.uint64(0), codes)
    if kind not in CODES:
        raise ValueError(f"kind {kind!r} of a feature is unknown here: give integer codes instead")
    make = CODES[kind]
    return np.array([0 if none else make(v) for v, none in zip(values, missing)], np.uint64)


def items_of(value: Any, feature: Mapping[str, Any]) -> list[tuple[Any, float]]:
    """(item, weight) of one value of a feature: a list, or text with its separators."""
    separator = feature["separator"]
    mark = feature["weight_separator"]
    if isinstance(value, str) and separator:
        value = value.split(separator) if value else []
        if mark:
            pairs = [item.rpartition(mark) if mark in item else (item, mark, "") for item in value]
            return [(item, float(weight or 1)) for item, _, weight in pairs]
    if isinstance(value, (list, tuple, np.ndarray)):
        return [item if isinstance(item, tuple) else (item, 1.0) for item in value]
    if separator and is_missing(value):
        return []
    return [(value, 1.0)]


# ---- tables ----


def philox4x32(key: int, row: Tensor, block: Tensor) -> Tensor:
    """Four 32-bit words of Philox4x32-10 for int64 rows [n, 1] and blocks [1, m]: [n, m, 4]."""
    row, block = torch.broadcast_tensors(row, block)
    c0 = row & LOW
    c1 = row >> 32 & LOW
    c2 = block & LOW
    c3 = torch.zeros_like(row)
    k0 = key & LOW
    k1 = key >> 32
    for _ in range(10):
        a = c0 * 0xD2511F53  # wraps: its 64 bits are those of the unsigned product
        b = c2 * 0xCD9E8D57
        c0 = (b >> 32 & LOW) ^ c1 ^ k0
        c1 = b & LOW
        c2 = (a >> 32 & LOW) ^ c3 ^ k1
        c3 = a & LOW
        k0 = k0 + 0x9E3779B9 & LOW
        k1 = k1 + 0xBB67AE85 & LOW
    return torch.stack([c0, c1, c2, c3], -1)


class EmbeddingTable(nn.Module):
    """One embedding table: row numbers to rows, pooled by bag.

    facts : its entry of the card. weight, rows : its tensors; rows None: all are there.
    """

    def __init__(self, facts: Mapping[str, Any], weight: Tensor, rows: Tensor | None) -> None:
        super().__init__()
        self.facts = dict(facts)
        self.register_buffer("weight", weight)
        self.register_buffer("rows", rows)

    def forward(self, rows: Tensor, lengths: Tensor, weights: Tensor | None = None) -> Tensor:
        """Pooled vectors f32[B, dim] of bags: rows i64[n], lengths i64[B], weights f32[n]."""
        vectors = self.lookup(rows)
        if weights is not None:
            vectors = vectors * weights[:, None]
        bag = torch.repeat_interleave(torch.arange(lengths.numel(), device=rows.device), lengths)
        pooled = vectors.new_zeros(lengths.numel(), vectors.shape[1]).index_add_(0, bag, vectors)
        if self.facts["pooling"] == "mean":
            pooled = pooled / lengths.clamp(min=1)[:, None]
        return pooled

    def lookup(self, rows: Tensor) -> Tensor:
        """Rows f32[n, dim] of the table; a row -1 gives zeros.

        Raises IndexError outside the table.
        """
        count = self.facts["rows"]
        if rows.numel() and (int(rows.min()) < -1 or int(rows.max()) >= count):
            raise IndexError(f"table {self.facts['name']} has rows 0 to {count - 1}")
        if self.rows is None:
            place = rows.clamp(min=0)
            known = rows >= 0
        else:
            place = torch.searchsorted(self.rows, rows).clamp(max=max(len(self.rows) - 1, 0))
            known = self.rows[place] == rows if len(self.rows) else rows < -1
        vectors = torch.zeros(rows.numel(), self.facts["dim"], device=rows.device)
        vectors[known] = self.decode(self.weight[place[known]])
        if self.rows is not None and self.facts["unlearnt"] == "initial":
            never = ~known & (rows >= 0)
            vectors[never] = self.initial(rows[never])
        return vectors

    def decode(self, stored: Tensor) -> Tensor:
        """Numbers f32[n, dim] of stored rows."""
        form = self.facts["stored"]
        if form not in ("int8", "int4"):
            return stored.float()
        size = 8 if form == "int8" else 4  # bytes of scale and bias, which end a row
        header = stored[:, -size:].contiguous().view(torch.float32 if size == 8 else torch.float16)
        codes = stored[:, :-size]
        if form == "int4":
            codes = torch.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
        numbers = codes[:, : self.facts["dim"]].double()
        return (numbers * header[:, :1].double() + header[:, 1:].double()).float()

    def initial(self, rows: Tensor) -> Tensor:
        """What rows that were never trained hold: f32[n, dim], uniform in ±1/sqrt(rows)."""
        dim = self.facts["dim"]
        blocks = torch.arange(-(-dim // 4), device=rows.device)[None, :]
        words = philox4x32(int(self.facts["initial_key"]), rows[:, None], blocks)
        words = words.flatten(1)[:, :dim]
        unit = ((words >> 8) - (1 << 23)).float() / (1 << 23)
        numbers = unit * np.float32(1 / math.sqrt(self.facts["rows"]))
        if self.facts["truncated"]:
            return (numbers.view(torch.int32) & -0x10000).view(torch.float32)
        if self.facts["format"] in TORCH_TYPES:
            return numbers.to(TORCH_TYPES[self.facts["format"]]).float()
        return numbers


# ---- the model ----


class TorchModel(nn.Module):
    """A trained model of neocpu: raw columns or row numbers to predictions.

    card : what the file says about itself. tensors : its arrays by name.
    """

    def __init__(self, card: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.card = dict(card)
        self.model = card["model"]
        self.tables = nn.ModuleList(
            EmbeddingTable(facts, tensors[f"tables/{facts['name']}/weight"], tensors.get(rows_name))
            for facts in card["tables"]
            for rows_name in [f"tables/{facts['name']}/rows"]
        )
        names = [name for name in tensors if name.startswith("dense/")]
        self.dense = nn.ParameterDict(
            {_safe(name): nn.Parameter(tensors[name], requires_grad=False) for name in names}
        )
        self.vocabularies = {
            name.removeprefix("vocabularies/"): codes.numpy().view(np.uint64)
            for name, codes in tensors.items()
            if name.startswith("vocabularies/")
        }
        self._sorted = {
            name: np.argsort(codes, kind="stable") for name, codes in self.vocabularies.items()
        }

    @classmethod
    def load(cls, path: Any, device: str = "cpu") -> "TorchModel":
        """Read a file of `neocpu export`. Raises ValueError for any other."""
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except Exception as error:
            raise ValueError(f"{path}: cannot be read as safetensors: {error}") from error
        card = json.loads(metadata.get("neocpu", "{}"))
        if card.get("format") != FORMAT or card["version"] > VERSION:
            raise ValueError(f"{path}: no model of `neocpu export` that this version can read")
        return cls(card, tensors).to(device)

    @torch.no_grad()
    def forward(
        self,
        dense: Tensor,
        rows: Sequence[Tensor],
        lengths: Sequence[Tensor],
        weights: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        """Predictions f32[B] (bce: probabilities, mse: numbers).

        dense f32[B, n], already transformed. rows i64[n], lengths i64[B], weights f32[n] : of each
        feature, in the order of `card["features"]`.
        """
        weights = weights or [None] * len(rows)
        first = self._layers("bottom", dense, last_relu=True)
        features = self.card["features"]
        pooled = [
            self.tables[feature["table"]](*bags)
            for feature, bags in zip(features, zip(rows, lengths, weights))
        ]
        z = self._interaction(first, self._towers(pooled))
        logits = self._layers("top", z, last_relu=False)[:, 0]
        return torch.sigmoid(logits) if self.model["loss"] == "bce" else logits

    def _layers(self, name: str, x: Tensor, last_relu: bool) -> Tensor:
        count = len(self.model[name])
        for layer in range(count):
            weight = self.dense[_safe(f"dense/{name}.{layer}.weight")]
            x = functional.linear(x, weight, self.dense[_safe(f"dense/{name}.{layer}.bias")])
            if last_relu or layer < count - 1:
                x = functional.relu(x)
        return x

    def _towers(self, pooled: list[Tensor]) -> list[Tensor]:
        """Vectors that interact: the pooled ones, or what the towers make of them."""
        if not self.model["towers"]:
            return pooled
        vectors: list[Tensor] = []
        for tower in self.model["towers"]:
            members = [pooled[key] for key in tower["keys"]]
            parts = (("joint", torch.cat(members, 1)[:, None]), ("feature", None))
            for part, x in parts:
                name = f"dense/towers.{tower['name']}.{part}"
                if tower[f"{part}_vectors"]:
                    x = torch.stack(members, 1) if x is None else x
                    weight = self.dense[_safe(f"{name}.weight")]
                    out = functional.linear(x, weight, self.dense[_safe(f"{name}.bias")])
                    vectors += out.reshape(len(out), -1).split(tower["width"], 1)
        return vectors

    def _interaction(self, first: Tensor, vectors: list[Tensor]) -> Tensor:
        if self.model["interaction"] == "cat":
            return torch.cat([first, *vectors], 1)
        stacked = torch.stack([first, *vectors], 1)
        offset = 0 if self.model["diagonal"] else -1
        count = stacked.shape[1]
        i, j = torch.tril_indices(count, count, offset, device=first.device)
        return torch.cat([first, torch.bmm(stacked, stacked.mT)[:, i, j]], 1)

    # ---- raw columns ----

    def predict(self, columns: Mapping[str, Sequence[Any]]) -> np.ndarray:
        """Predictions f32[B] of the columns of a log, B values each.

        Raises KeyError for a column that is missing.
        """
        device = next(self.parameters()).device
        bags = [self.bags_of(feature, columns) for feature in self.card["features"]]
        rows, lengths, weights = zip(*bags)
        dense = self.dense_of(columns, lengths[0].numel()).to(device)
        moved = [[part.to(device) for part in parts] for parts in (rows, lengths, weights)]
        return self(dense, *moved).cpu().numpy()

    def dense_of(self, columns: Mapping[str, Sequence[Any]], samples: int) -> Tensor:
        """The dense inputs f32[B, n] of columns, transformed; what is missing is 0."""
        out = np.empty((samples, len(self.card["dense"])), np.float32)
        for i, column in enumerate(self.card["dense"]):
            raw = columns[column["column"]]
            values = np.array([0 if is_missing(value) else float(value) for value in raw])
            if column["transform"] == "log1p":
                values = np.log1p(np.maximum(values, 0))
            elif column["transform"] != "none":
                raise ValueError(f"transform {column['transform']!r} is unknown here")
            out[:, i] = values
        return torch.from_numpy(out)

    def bags_of(
        self, feature: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(rows i64[n], lengths i64[B], weights f32[n]) of one feature."""
        bags = [items_of(value, feature) for value in columns[feature["column"]]]
        pairs = [pair for bag in bags for pair in bag]
        codes = codes_of([item for item, _ in pairs], feature["kind"])
        table = self.card["tables"][feature["table"]]
        weights = [weight if table["weighted"] else 1.0 for _, weight in pairs]
        return (
            torch.from_numpy(self.rows_of(codes, feature)),
            torch.tensor([len(bag) for bag in bags], dtype=torch.int64),
            torch.tensor(weights, dtype=torch.float32),
        )

    def rows_of(self, codes: np.ndarray, feature: Mapping[str, Any]) -> np.ndarray:
        """Rows i64[n] of codes uint64[n]: hashed, or their places in a vocabulary."""
        name = feature["name"]
        if not feature["vocabulary"]:
            count = np.uint64(self.card["tables"][feature["table"]]["rows"])
            if self.card["rows_by"] == "hash":
                codes = splitmix64(codes ^ np.uint64(int(feature["hash_key"])))
            return (codes % count).astype(np.int64)
        order = self._sorted[name]
        words = self.vocabularies[name]
        if not words.size:
            return np.zeros(codes.size, np.int64)
        place = np.searchsorted(words, codes, sorter=order).clip(max=words.size - 1)
        return np.where(words[order[place]] == codes, order[place] + 1, 0)


def _safe(name: str) -> str:
    """A parameter's name without dots, which torch keeps for modules."""
    return name.removeprefix("dense/").replace(".", "/")
