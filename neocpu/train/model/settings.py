"""Which keys of a config describe the model? The section `model`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

from neocpu.core.errors import ConfigError
from neocpu.core.formats import TRAINED
from neocpu.core.records import Limits
from neocpu.tables.specs.compositions import Composition
from neocpu.tables.specs.specs import MOST_COLUMNS, ROUNDINGS, TableSpecs, bags
from neocpu.train.model.interactions.chain import INTERACTIONS, WITH_FIRST_ORDER
from neocpu.train.model.layout import ModelLayout
from neocpu.train.model.options import (
    LOSSES,
    AttentionKeys,
    CrossShape,
    DhenShape,
    HeadConfig,
    TowerModule,
)
from neocpu.train.model.precision.keys import FP32, PrecisionKeys

MULTIPLIED = {"project", "tensor_train"}  # operations with matrices of their own

if TYPE_CHECKING:
    from neocpu.train.model.composition_layout import CompositionLayout
    from neocpu.train.model.head_layout import HeadLayout
    from neocpu.train.model.tower_layout import TowerLayout


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the DLRM: widths of its layers without their inputs, and the loss.

    embedding_dim, embedding_format, embedding_rounding : what tables have that do not say their
        own.
    bottom, top : widths of the layers' outputs; the top's last is 1.
    interaction : dot: products of all pairs of vectors; cat: the vectors side by side; dcnv2: cross
        layers; fm: the factorisation machine's term; deepfm, wide_deep: side by side, with what
        these models add to the logit; dhen: layers of ensembles. A list puts several behind one
        another (docs/models.md).
    diagonal : whether a vector's product with itself is one of them.
    loss : bce: binary cross-entropy of logits; mse: squared error.
    attention : feature whose table has pooling "none" -> how its rows are weighted; {}: none.
    towers : name -> features, each in one of them; {}: none. Their modules stand between the
        pooled vectors and the interaction (docs/communication.md).
    tower : shape of these modules: c joint_vectors, p feature_vectors, their width.
    cross : cross layers of the interaction dcnv2: how many, and the rank of their matrices.
    dhen : layers of the interaction dhen: modules, their vectors, how they are added.
    wide : shell patterns of tables of dim 1 whose rows are weights of a linear term, as "*.wide";
        deepfm and wide_deep need some.
    heads : further labels that the model learns, each by a top MLP of its own (docs/models.md).
    precision : in which numbers the products of MLPs and interaction are made (docs/precision.md).
    """

    embedding_dim: Annotated[int, Limits(least=1, most=MOST_COLUMNS)] = 16
    embedding_format: Annotated[str, Limits(TRAINED)] = "fp32"
    embedding_rounding: Annotated[str, Limits(ROUNDINGS)] = "nearest"
    bottom: tuple[int, ...] = (64, 16)
    top: tuple[int, ...] = (64, 1)
    interaction: Annotated[str | tuple[str, ...], Limits(INTERACTIONS)] = "dot"
    diagonal: bool = False
    loss: Annotated[str, Limits(LOSSES)] = "bce"
    attention: Mapping[str, AttentionKeys] = field(default_factory=dict)
    tower: TowerModule = field(default_factory=TowerModule)
    towers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cross: CrossShape = field(default_factory=CrossShape)
    dhen: DhenShape = field(default_factory=DhenShape)
    wide: tuple[str, ...] = ()
    heads: Mapping[str, HeadConfig] = field(default_factory=dict)
    precision: PrecisionKeys = field(default_factory=PrecisionKeys)

    def layout(
        self,
        dense_features: int,
        tables: TableSpecs,
        physical: TableSpecs = (),
        compositions: Sequence[Composition] = (),
    ) -> ModelLayout:
        """The model's tensors for these tables, composed of physical ones where there are
        compositions.

        Raises ConfigError for what does not fit.
        """
        # a table of several features has a vector for each
        keys = bags(tables)
        dims = tuple(tables[key.table].dim for key in keys)
        return ModelLayout(
            dense_features=dense_features,
            dims=dims,
            bottom=self.bottom,
            top=self.top,
            interaction=self.interaction,
            diagonal=self.diagonal,
            loss=self.loss,
            towers=self._tower_layouts([key.key for key in keys], dims),
            composition=self._composition_layout(tables, physical, compositions),
            cross=self.cross,
            dhen=self.dhen,
            wide=self._wide_keys(tables),
            heads=self._head_layouts(),
            precision=self.precision,
        )

    def _tower_layouts(self, keys: Sequence[str], dims: Sequence[int]) -> "tuple[TowerLayout, ...]":
        if not self.towers:
            return ()
        from neocpu.train.model.tower_layout import tower_layouts

        width = self.tower.width or (self.bottom[-1] if self.bottom else 0)
        return tower_layouts(self.towers, replace(self.tower, width=width), keys, dims)

    def _composition_layout(
        self, tables: TableSpecs, physical: TableSpecs, compositions: Sequence[Composition]
    ) -> "CompositionLayout | None":
        pooled = all(table.pooling != "none" for table in tables)
        if pooled and not (compositions or self.attention):
            return None
        from neocpu.train.model.composition_layout import composition_layout

        return composition_layout(tables, physical, compositions, self.attention)

    def _head_layouts(self) -> "tuple[HeadLayout, ...]":
        if not self.heads:
            return ()
        from neocpu.train.model.head_layout import head_layouts

        return head_layouts(self.heads, self.top)

    def _wide_keys(self, tables: TableSpecs) -> tuple[int, ...]:
        """Positions of the keys whose rows are weights of the linear term."""
        names = [table.name for table in tables]
        for pattern in self.wide:
            chosen = [table for table in tables if fnmatchcase(table.name, pattern)]
            if not chosen:
                raise ConfigError(
                    f"model.wide: no table matches {pattern!r}; the tables are {', '.join(names)}"
                )
            if vectors := [table for table in chosen if table.dim != 1]:
                raise ConfigError(
                    f"model.wide: {vectors[0].name} has dim {vectors[0].dim}; a weight of the "
                    "linear term is a row of dim 1"
                )
        return tuple(
            position
            for position, key in enumerate(bags(tables))
            if any(fnmatchcase(names[key.table], pattern) for pattern in self.wide)
        )

    def check_wide(self, tables: TableSpecs) -> None:
        """Raise ConfigError for an interaction whose linear term has no tables."""
        linear = [name for name in self.interactions if name in WITH_FIRST_ORDER]
        if linear and not self.wide and tables:
            feature = tables[0].features[0]
            table = f'"{feature}.wide" = {{ features = ["{feature}"], dim = 1, rows = ... }}'
            raise ConfigError(
                f"model.interaction: {linear[0]} has a weight for each category, a row of a table "
                f'of dim 1; add tables like {table} and name them by model.wide = ["*.wide"]'
            )

    @property
    def interactions(self) -> tuple[str, ...]:
        """Names of the interactions behind one another."""
        names = self.interaction
        return (names,) if isinstance(names, str) else names

    def header(self) -> dict[str, object]:
        """What decides the bits; defaults of tables are not in it, each table notes its own."""
        model = asdict(self)
        for name in ("embedding_dim", "embedding_format", "embedding_rounding"):
            del model[name]
        if not self.attention:
            del model["attention"]
        # their order is that of the parameters; models without towers are what they were
        model["towers"] = [[name, list(features)] for name, features in self.towers.items()]
        if not self.towers:
            del model["tower"], model["towers"]
        if "dcnv2" not in self.interactions:
            del model["cross"]
        if "dhen" not in self.interactions:
            del model["dhen"]
        if not self.wide:
            del model["wide"]
        # their order is that of the parameters
        model["heads"] = [[name, asdict(head)] for name, head in self.heads.items()]
        if not self.heads:
            del model["heads"]
        model["precision"] = self.precision.header()
        if self.precision.format == FP32:
            del model["precision"]
        return model

    def precision_faults(self, compositions: Sequence[Composition]) -> Iterator[tuple[str, str]]:
        """(key below model.precision, what is wrong with it)."""
        yield from self.precision.faults()
        if self.precision.format == FP32:
            return
        others = [name for name in ("attention", "towers") if getattr(self, name)]
        others = [f"model.{name}" for name in others]
        others += ['the interaction "dhen"'] * ("dhen" in self.interactions)
        operations = sorted({part.operation for part in compositions} & MULTIPLIED)
        others += [f"tables composed by {name!r}" for name in operations]
        if others:
            yield (
                "format",
                f"products of {others[0]} are made in fp32 only; leave one of the two out",
            )
