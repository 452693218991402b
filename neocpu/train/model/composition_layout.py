"""Where do the vectors of physical tables stand, and where do those go that are composed of them?

    E physical   [bottom | pooled vector of physical key 0 | 1 | ...]      as the tables give it
    E            [bottom | vector of key 0 | key 1 | ...]                  as the model sees it

One part for each key of the model. Nothing is compiled to answer that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neocpu.core.errors import ConfigError
from neocpu.tables.specs.compositions import COPY, Composition, Tensors
from neocpu.tables.specs.specs import TableSpecs, bags
from neocpu.train.model.attention_layout import AttentionLayout, ModelKey, attention_layouts
from neocpu.train.model.options import AttentionKeys

# Operations on lookups that look each row up once on every rank, however often it occurs there.
LOOK_UP_ONCE: tuple[str, ...] = ("tensor_train",)


@dataclass(frozen=True)
class PhysicalVectors:
    """Vectors that a part is made of: those of a physical key.

    key : its number among the physical keys of the batch. column : the first of its columns in
    E physical, after those of the bottom MLP. width : of its rows. pooling : of its table.
    """

    key: int
    column: int
    width: int
    pooling: str


@dataclass(frozen=True)
class KeyVectors:
    """One key of the model: columns [column, column + dim) of E after the bottom MLP's.

    attention : how the rows of a key without pooling are weighted (None: they are pooled).
    table : the logical one, which names its parameters. operation, tensors, options : of
    `specs.compositions.Composition`; parameters are called kinds.<table>.<tensor>.
    """

    table: str
    column: int
    dim: int
    pooling: str
    operation: str
    sources: tuple[PhysicalVectors, ...]
    tensors: Tensors = ()
    options: tuple[tuple[str, Any], ...] = ()
    attention: AttentionLayout | None = None

    @property
    def pooled(self) -> bool:
        """Do its tables pool its bags?"""
        return self.sources[0].pooling != "none"

    @property
    def plain(self) -> bool:
        """Is it made of one source, as it is?"""
        return self.operation == COPY and len(self.sources) == 1

    def parameter(self, tensor: str) -> str:
        """Name of one of its parameters."""
        return f"kinds.{self.table}.{tensor}"


@dataclass(frozen=True)
class CompositionLayout:
    """All parts of a model. physical_columns : of E physical, without the bottom MLP's."""

    parts: tuple[KeyVectors, ...]
    physical_columns: int

    @property
    def columns(self) -> int:
        """Columns of E, without the bottom MLP's."""
        return sum(vectors.dim for vectors in self.parts)

    @property
    def unpooled(self) -> tuple[int, ...]:
        """Physical keys whose tables do not pool, ascending."""
        keys = {
            source.key for vectors in self.parts if not vectors.pooled for source in vectors.sources
        }
        return tuple(sorted(keys))

    @property
    def once(self) -> frozenset[int]:
        """Those of them that look each row up once."""
        parts = [vectors for vectors in self.parts if vectors.operation in LOOK_UP_ONCE]
        return frozenset(source.key for vectors in parts for source in vectors.sources)

    def tensors(self) -> Tensors:
        """(name, shape) of the parameters, those of each table once."""
        shapes = {
            vectors.parameter(name): shape
            for vectors in self.parts
            for name, shape in vectors.tensors
        }
        for vectors in self.parts:
            if vectors.attention is not None:
                shapes.update(vectors.attention.tensors())
        return tuple(shapes.items())


def composition_layout(
    logical: TableSpecs,
    physical: TableSpecs,
    compositions: Sequence[Composition],
    attention: Mapping[str, AttentionKeys],
) -> CompositionLayout | None:
    """The parts of a model whose tables are composed; None if there are no compositions.

    attention : to histories, by their keys.

    Raises ConfigError where the vectors of a plain composition have not the dim of their table, and
    as `attention_layouts`.
    """
    # before the return: attention to a plain table is refused too
    histories = attention_layouts(attention, _model_keys(logical))
    if not compositions:
        return None
    sources = _sources(physical)
    # compositions have a term for each feature, in the order of the bags
    names = iter([key.key for key in bags(logical)])
    parts = []
    column = 0
    for spec, composition in zip(logical, compositions, strict=True):
        for terms in composition.terms:
            vectors = KeyVectors(
                table=spec.name,
                column=column,
                dim=spec.dim,
                pooling=spec.pooling,
                operation=composition.operation,
                sources=tuple(sources[term.table, term.place] for term in terms),
                tensors=composition.tensors,
                options=composition.options,
                attention=histories.get(next(names)),
            )
            _check_rows(vectors, physical)
            width = sum(source.width for source in vectors.sources)
            if vectors.operation == COPY and width != spec.dim:
                raise ConfigError(
                    f"tables.{spec.name}.dim: {spec.dim}, but its parts have {width} columns "
                    "together"
                )
            parts.append(vectors)
            column += spec.dim
    return CompositionLayout(tuple(parts), _columns(physical))


def _model_keys(logical: TableSpecs) -> list[ModelKey]:
    """The keys of the model, whose vectors stand side by side."""
    keys = []
    column = 0
    for key in bags(logical):
        spec = logical[key.table]
        keys.append(ModelKey(key.key, column, spec.dim, spec.pooling != "none"))
        column += spec.dim
    return keys


def _check_rows(vectors: KeyVectors, physical: TableSpecs) -> None:
    """Raise ConfigError for sources that cannot be combined lookup by lookup."""
    # a bag's vector and a lookup's row have different numbers of lines
    if len({source.pooling == "none" for source in vectors.sources}) > 1:
        raise ConfigError(
            f"tables.{vectors.table}: some of its parts pool and others do not; give all of them "
            'pooling "none", or none of them'
        )
    keys = bags(physical)
    weighted = sum(physical[keys[source.key].table].weighted for source in vectors.sources)
    if not vectors.pooled and weighted > 1 and vectors.operation == "multiply":
        raise ConfigError(
            f"tables.{vectors.table}: a weight of a lookup would be multiplied into each of its "
            "parts; choose another operation, or a table without weights"
        )


def _columns(physical: TableSpecs) -> int:
    return sum(physical[key.table].pooled_dim for key in bags(physical))


def _sources(physical: TableSpecs) -> Mapping[tuple[str, int], PhysicalVectors]:
    """The source of each (table, place of a feature)."""
    sources = {}
    column = 0
    next_position: dict[int, int] = {}
    for number, key in enumerate(bags(physical)):
        spec = physical[key.table]
        position = next_position.setdefault(key.table, 0)
        sources[spec.name, position] = PhysicalVectors(number, column, spec.dim, spec.pooling)
        next_position[key.table] += 1
        # rows of keys without pooling come by lookup and have no columns
        column += spec.pooled_dim
    return sources
