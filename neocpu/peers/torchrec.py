"""How does a TorchRec model run on neocpu? With this EmbeddingBagCollection, on the CPU.

    ebc = EmbeddingBagCollection(tables=[...], fused={"optimizer": "adam", "learning_rate": 0.01})
    pooled = ebc(keyed_jagged_tensor)    # KeyedTensor: keys, values [B, sum of dims], to_dict()

Tables are TorchRec's EmbeddingBagConfig or ours. Names in `state_dict` are TorchRec's:
embedding_bags.<table>.weight. Without `fused` every table has a dense gradient for an optimizer of
torch; with it, rows and optimizer states are updated when their gradient arrives, as by TorchRec's
fused kernels. TorchRec itself need not be installed; if it is, results are its KeyedTensor.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from neocpu.core.errors import ConfigError
from neocpu.peers.fbgemm.modules.autograd import DenseLookup, features_with_gradient
from neocpu.peers.fbgemm.modules.dense import DenseTableBatchedEmbeddingBagsCodegen
from neocpu.peers.fbgemm.modules.split import SplitTableBatchedEmbeddingBagsCodegen
from neocpu.peers.fbgemm.names import Option
from neocpu.peers.fbgemm.operators.sparse import permute_2D_sparse_data


@dataclass
class EmbeddingBagConfig:
    """One table, with TorchRec's names of its fields; pooling : SUM or MEAN."""

    num_embeddings: int
    embedding_dim: int
    name: str = ""
    feature_names: list[str] = field(default_factory=list)
    weight_init_max: float | None = None
    weight_init_min: float | None = None
    pooling: Option = "SUM"


@dataclass
class KeyedTensor:
    """Pooled embeddings of all features, side by side: values [B, sum of lengths].

    Stands for TorchRec's class where TorchRec is not installed.
    """

    _keys: list[str]
    _lengths: list[int]
    _values: Tensor

    def keys(self) -> list[str]:
        """Names, in the order of the columns."""
        return self._keys

    def length_per_key(self) -> list[int]:
        """Columns of each name."""
        return self._lengths

    def values(self) -> Tensor:
        """The embeddings of all names: [B, sum of columns]."""
        return self._values

    def to_dict(self) -> dict[str, Tensor]:
        """Name -> [B, its columns]."""
        return dict(zip(self._keys, self._values.split(self._lengths, dim=1)))

    def __getitem__(self, key: str) -> Tensor:
        return self.to_dict()[key]


def _keyed(keys: list[str], lengths: list[int], values: Tensor) -> KeyedTensor:
    try:
        from torchrec.sparse.jagged_tensor import KeyedTensor as TorchRecKeyedTensor
    except ImportError:
        return KeyedTensor(keys, lengths, values)
    return TorchRecKeyedTensor(keys, lengths, values)


class JaggedFeatures(Protocol):
    """What a batch must offer: TorchRec's KeyedJaggedTensor, or a class with these methods."""

    def keys(self) -> Sequence[str]:
        """Names of the features, F of them."""

    def lengths(self) -> Tensor:
        """Lookups of each bag: int[F*B], feature after feature."""

    def values(self) -> Tensor:
        """Rows to look up: int[n]."""

    def weights_or_none(self) -> Tensor | None:
        """A weight per lookup: float[n]; None: there are none."""


class _Bag(nn.Module):
    """One table: `weight` [rows, columns], looked up by one or more features."""

    def __init__(self, config: EmbeddingBagConfig, fused: Mapping[str, Any] | None) -> None:
        super().__init__()
        rows = config.num_embeddings
        columns = config.embedding_dim
        features = len(config.feature_names)
        # TorchRec's PoolingType is an enum whose value is the name; ours is the name.
        pooling = str(getattr(config.pooling, "value", config.pooling)).lower()
        low = config.weight_init_min
        high = config.weight_init_max
        # TorchRec's default: uniform within 1 / sqrt(rows).
        bound = 1 / np.sqrt(rows)
        initial_rows = torch.empty(rows, columns).uniform_(
            -bound if low is None else low, bound if high is None else high
        )
        # Fused rows are updated in the backward itself and have no gradient.
        self.weight = nn.Parameter(initial_rows, requires_grad=fused is None)
        shared: dict[str, Any] = {"feature_table_map": [0] * features, "pooling_mode": pooling}
        if fused is None:
            table: Any = DenseTableBatchedEmbeddingBagsCodegen([(rows, columns)], **shared)
        else:
            options: dict[str, Any] = {
                "bounds_check_mode": "FATAL",
                "table_names": [config.name],
                **fused,
            }
            table = SplitTableBatchedEmbeddingBagsCodegen([(rows, columns)], **shared, **options)
        # Not a submodule: the state_dict has its rows once, as `weight`, which is TorchRec's name.
        object.__setattr__(self, "table", table)
        self.fused = fused is not None

    def forward(self, indices: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
        """[B, features * columns]."""
        table: Any = self.__dict__["table"]
        if self.fused:
            # Loading and copying may have replaced `weight`.
            table.weights_host.data = self.weight.data.view(-1)
            table.train(self.training)
            return table(indices, offsets, weights)
        table.weights.data = self.weight.data.view(-1)
        batch = table.feature_batch(indices, offsets, weights, None)
        trained_features = features_with_gradient(None, batch.table.size)
        # The parameter itself is the input, so that its gradient arrives at `weight`.
        return DenseLookup.apply(self.weight.view(-1), weights, table, batch, trained_features)


class EmbeddingBagCollection(nn.Module):
    """Tables of pooled embeddings, looked up by the features of a KeyedJaggedTensor.

    tables : configs with unique names. is_weighted : features carry per-sample weights. device :
        the CPU, or None.
    fused : options of `SplitTableBatchedEmbeddingBagsCodegen` (optimizer, learning_rate, …), or
        None: dense gradients.

    Raises ConfigError for tables that are named twice or have formats other than fp32,
    IndexRangeError for lookups outside.
    Source: TorchRec's modules/embedding_modules.py. Keys: the feature, or feature@table where it
    has several.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        is_weighted: bool = False,
        device: str | torch.device | None = None,
        fused: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if device is not None and torch.device(device).type != "cpu":
            raise ConfigError(f"device {device}: neocpu computes on the CPU")
        names = Counter(table.name for table in tables)
        uses = Counter(feature for table in tables for feature in table.feature_names)
        # Names of tables are keys of the state_dict.
        if max(names.values(), default=1) > 1:
            raise ConfigError(f"table {names.most_common(1)[0][0]!r} is there twice")
        for table in tables:
            # Our record has no data_type; TorchRec's is an enum that prints as DataType.FP32.
            kind = str(getattr(table, "data_type", "FP32")).rsplit(".", 1)[-1].upper()
            if kind != "FP32":
                raise ConfigError(f"table {table.name!r}: data_type {kind}; only FP32 here")
        self._configs = list(tables)
        self._is_weighted = is_weighted
        self.embedding_bags = nn.ModuleDict({table.name: _Bag(table, fused) for table in tables})
        self._names = [
            feature if uses[feature] == 1 else f"{feature}@{table.name}"
            for table in tables
            for feature in table.feature_names
        ]
        self._lengths = [table.embedding_dim for table in tables for _ in table.feature_names]

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The tables."""
        return self._configs

    def is_weighted(self) -> bool:
        """Whether features carry per-sample weights."""
        return self._is_weighted

    def forward(self, features: JaggedFeatures) -> KeyedTensor:
        """Pooled embeddings of a KeyedJaggedTensor, as a KeyedTensor.

        features : TorchRec's class, or any with keys, lengths, values and weights_or_none.
        """
        keys = list(features.keys())
        values = features.values()
        lengths = features.lengths().view(len(keys), -1)
        weights = features.weights_or_none() if self._is_weighted else None
        pooled = []
        for config in self._configs:
            missing = [name for name in config.feature_names if name not in keys]
            if missing:
                raise ConfigError(
                    f"the batch lacks feature {missing[0]!r} of table {config.name!r}; it has "
                    f"{', '.join(keys)}"
                )
            # A batch may hold features of other tables, too, in any order.
            feature_order = torch.tensor([keys.index(name) for name in config.feature_names])
            table_lengths, indices, table_weights = permute_2D_sparse_data(
                feature_order, lengths, values, weights
            )
            offsets = torch.nn.functional.pad(
                torch.cumsum(table_lengths.reshape(-1).long(), 0), (1, 0)
            )
            pooled.append(self.embedding_bags[config.name](indices.long(), offsets, table_weights))
        return _keyed(
            self._names, self._lengths, torch.cat(pooled, dim=1) if pooled else torch.empty(0, 0)
        )

    def optimizer_states(self) -> dict[str, dict[str, Tensor]]:
        """Optimizer states of every fused table by torch's names, in place."""
        tables = {
            name: bag.__dict__["table"] for name, bag in self.embedding_bags.items() if bag.fused
        }
        # Of a rule without states the list of tables is empty.
        return {name: (table.get_optimizer_state() or [{}])[0] for name, table in tables.items()}

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of all fused tables from now on."""
        for bag in self.embedding_bags.values():
            if bag.fused:
                bag.__dict__["table"].set_learning_rate(learning_rate)
