"""What predicts clicks without neocpu? This file and two beside it, with torch and safetensors.

    model = TorchModel.load("model.safetensors")                # of `neocpu export`
    model.predict({"I1": [1, None], "C1": ["68fd1e64", ""]})    # columns of a log -> f32[B]
    model(dense, rows, lengths)                                 # numbers f32[B, n], row numbers

Copy it with `raw_values.py` and `torch_interactions.py`. Rows that were never trained are computed
from (seed, table, row) by Philox4x32-10, when they are looked up.

Predictions are those of neocpu but for the order of additions in fp32: its pooling is exact, and
its matrix products have an order of their own. Differences are some 1e-6.
"""

import json
import math
from collections.abc import Mapping, Sequence
from os import PathLike

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional

try:
    from neocpu.serve.exports.raw_values import Card, Columns, RawValues
    from neocpu.serve.exports.torch_interactions import interact
except ImportError:  # copied beside this file
    from raw_values import Card, Columns, RawValues  # type: ignore[no-redef]
    from torch_interactions import interact  # type: ignore[no-redef]

LOW = 0xFFFFFFFF
FORMAT = "neocpu-scorer"
VERSION = 4
TORCH_TYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


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

    facts : its entry of the card.
    weight, rows : its tensors; rows None: all are there.
    """

    def __init__(self, facts: Card, weight: Tensor, rows: Tensor | None) -> None:
        super().__init__()
        self.facts = dict(facts)
        self.register_buffer("weight", weight)
        self.register_buffer("rows", rows)

    def forward(self, rows: Tensor, lengths: Tensor, weights: Tensor | None = None) -> Tensor:
        """Pooled vectors f32[B, dim] of bags: rows i64[n], lengths i64[B], weights f32[n]."""
        vectors = self.lookup(rows)
        if weights is not None:
            vectors = vectors * weights[:, None]
        # One row for each sample: nothing to pool.
        if bool((lengths == 1).all()):
            return vectors
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
            index = rows.clamp(min=0)
            known = rows >= 0
        else:
            index = torch.searchsorted(self.rows, rows).clamp(max=max(len(self.rows) - 1, 0))
            # A table of which no row was trained is empty; -2 stands for no row at all.
            known = self.rows[index] == rows if len(self.rows) else rows < -1
        # A row -1 is a part that has nothing for this row of the logical table: it adds zeros.
        vectors = torch.zeros(rows.numel(), self.facts["dim"], device=rows.device)
        vectors[known] = self.decode(self.weight[index[known]])
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
        # In fp64 and rounded once, as neocpu decodes: the same bits.
        numbers = codes[:, : self.facts["dim"]].double()
        return (numbers * header[:, :1].double() + header[:, 1:].double()).float()

    def initial(self, rows: Tensor) -> Tensor:
        """What rows that were never trained hold: f32[n, dim], uniform in mean ± bound, by default
        ±1/sqrt(rows).
        """
        dim = self.facts["dim"]
        blocks = torch.arange(-(-dim // 4), device=rows.device)[None, :]
        words = philox4x32(int(self.facts["initial_key"]), rows[:, None], blocks)
        words = words.flatten(1)[:, :dim]
        # 24 bits, so that all of them are exact in fp32
        unit = ((words >> 8) - (1 << 23)).float() / (1 << 23)
        start = self.facts.get("start", {"mean": 0, "bound": 1 / math.sqrt(self.facts["rows"])})
        numbers = unit * np.float32(start["bound"]) + np.float32(start["mean"])
        # bf16_split: lookups read the upper half of fp32, which cuts and does not round.
        if self.facts["truncated"]:
            return (numbers.view(torch.int32) & -0x10000).view(torch.float32)
        if self.facts["format"] in TORCH_TYPES:
            return numbers.to(TORCH_TYPES[self.facts["format"]]).float()
        return numbers


# ---- the model ----


class TorchModel(nn.Module):
    """A trained model of neocpu: raw columns or row numbers to predictions.

    card : what the file says about itself.
    tensors : its arrays by name.
    """

    def __init__(self, card: Card, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.card = dict(card)
        self.model = card["model"]
        self.tables = nn.ModuleList(
            EmbeddingTable(facts, tensors[f"tables/{facts['name']}/weight"], tensors.get(rows_name))
            for facts in card["tables"]
            for rows_name in [f"tables/{facts['name']}/rows"]
        )
        names = [name for name in tensors if name.startswith("dense/")]
        self._names = [name.removeprefix("dense/") for name in names]
        self.dense = nn.ParameterDict(
            {_safe(name): nn.Parameter(tensors[name], requires_grad=False) for name in names}
        )
        vocabularies = {
            # the file has codes as i64, as torch computes little in uint64
            name.removeprefix("vocabularies/"): codes.numpy().view(np.uint64)
            for name, codes in tensors.items()
            if name.startswith("vocabularies/")
        }
        self.values = RawValues(card, vocabularies)

    @classmethod
    def load(cls, path: str | PathLike[str], device: str = "cpu") -> "TorchModel":
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
        pooled = self._composed(
            [
                self.tables[feature["table"]](*bags)
                for feature, bags in zip(features, zip(rows, lengths, weights))
            ]
        )
        wide = self.model.get("wide", [])
        interacting = [vector for key, vector in enumerate(pooled) if key not in wide]
        named = {name: self.dense[_safe(f"dense/{name}")] for name in self._names}
        z, logits = interact(self.model, named, [first, *self._towers(interacting)])
        logits = logits + self._layers("top", z, last_relu=False)[:, 0]
        if "first_order.weight" in named:
            linear = named["first_order.weight"]
            logits = logits + functional.linear(dense, linear, named["first_order.bias"])[:, 0]
            logits = sum((pooled[key][:, 0] for key in wide), logits)
        return torch.sigmoid(logits) if self.model["loss"] == "bce" else logits

    def _composed(self, pooled: list[Tensor]) -> list[Tensor]:
        """The model's vectors: those of its tables, or, for tables of kinds, made of them."""
        if "parts" not in self.model:
            return pooled
        return [
            self._composed_vector(part, [pooled[key] for key in part["keys"]])
            for part in self.model["parts"]
        ]

    def _part(self, part: Card, sources: list[Tensor]) -> Tensor:
        """One vector f32[B, dim]."""
        if part["operation"] == "copy":
            return torch.cat(sources, 1)
        if part["operation"] == "project":
            names = iter(part["tensors"])
            sources = [
                functional.linear(source, self.dense[_safe(next(names))])
                if source.shape[1] < part["dim"]
                else source
                for source in sources
            ]
        vector = sources[0]
        for source in sources[1:]:
            vector = vector * source if part["operation"] == "multiply" else vector + source
        return vector

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
            modules = (("joint", torch.cat(members, 1)[:, None]), ("feature", None))
            for module, x in modules:
                name = f"dense/towers.{tower['name']}.{module}"
                if tower[f"{module}_vectors"]:
                    x = torch.stack(members, 1) if x is None else x
                    weight = self.dense[_safe(f"{name}.weight")]
                    out = functional.linear(x, weight, self.dense[_safe(f"{name}.bias")])
                    vectors += out.reshape(len(out), -1).split(tower["width"], 1)
        return vectors

    def predict(self, columns: Columns) -> np.ndarray:
        """Predictions f32[B] of the columns of a log, B values each.

        Raises KeyError for a column that is missing.
        """
        device = next(self.parameters()).device
        rows = []
        lengths = []
        weights: list[Tensor | None] = []
        for feature in self.card["features"]:
            bags = self.values.bags(feature, columns)
            rows.append(torch.from_numpy(self.values.rows(bags.codes, feature)).to(device))
            lengths.append(torch.from_numpy(bags.lengths).to(device))
            weighted = self.card["tables"][feature["table"]]["weighted"]
            factors = torch.from_numpy(self.values.weights(bags, feature)).to(device)
            weights.append(factors if weighted else None)
        dense = torch.from_numpy(self.values.dense(columns)).to(device)
        return self(dense, rows, lengths, weights).cpu().numpy()


def _safe(name: str) -> str:
    """A parameter's name without dots, which torch keeps for modules."""
    return name.removeprefix("dense/").replace(".", "/")
