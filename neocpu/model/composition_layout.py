"""Where do the vectors of physical tables stand, and where do those go that are composed of them?

    E physical   [bottom | pooled vector of physical key 0 | 1 | ...]      as the tables give it
    E            [bottom | vector of key 0 | key 1 | ...]                  as the model sees it

One part for each key of the model. Nothing is compiled to answer that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neocpu.embedding.compositions import COPY, Composition, Tensors
from neocpu.embedding.specs import TableSpec, bags
from neocpu.errors import ConfigError


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

    table : the logical one, which names its parameters. operation, tensors, options : of
    `embedding.compositions.Composition`; parameters are called kinds.<table>.<tensor>.
    """

    table: str
    column: int
    dim: int
    pooling: str
    operation: str
    sources: tuple[PhysicalVectors, ...]
    tensors: Tensors = ()
    options: tuple[tuple[str, Any], ...] = ()

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
        return sum(part.dim for part in self.parts)

    def tensors(self) -> Tensors:
        """(name, shape) of the parameters, those of each table once."""
        shapes = {
            part.parameter(name): shape for part in self.parts for name, shape in part.tensors
        }
        return tuple(shapes.items())


def composition_layout(
    logical: Sequence[TableSpec],
    physical: Sequence[TableSpec],
    compositions: Sequence[Composition],
) -> CompositionLayout | None:
    """The parts of a model whose tables are composed; None if there are no compositions.

    Raises ConfigError where the vectors of a plain composition have not the dim of their table.
    """
    if not compositions:
        return None
    sources = _sources(physical)
    parts = []
    column = 0
    for spec, composition in zip(logical, compositions, strict=True):
        for terms in composition.terms:
            part = KeyVectors(
                table=spec.name,
                column=column,
                dim=spec.dim,
                pooling=spec.pooling,
                operation=composition.operation,
                sources=tuple(sources[term.table, term.place] for term in terms),
                tensors=composition.tensors,
                options=composition.options,
            )
            width = sum(source.width for source in part.sources)
            if part.operation == COPY and width != spec.dim:
                raise ConfigError(
                    f"tables.{spec.name}.dim: {spec.dim}, but its parts have {width} columns "
                    "together"
                )
            parts.append(part)
            column += spec.dim
    return CompositionLayout(tuple(parts), _columns(physical))


def _columns(physical: Sequence[TableSpec]) -> int:
    return sum(physical[key.table].pooled_dim for key in bags(physical))


def _sources(physical: Sequence[TableSpec]) -> Mapping[tuple[str, int], PhysicalVectors]:
    """The source of each (table, place of a feature)."""
    sources = {}
    column = 0
    place: dict[int, int] = {}
    for number, key in enumerate(bags(physical)):
        spec = physical[key.table]
        at = place.setdefault(key.table, 0)
        sources[spec.name, at] = PhysicalVectors(number, column, spec.dim, spec.pooling)
        place[key.table] += 1
        column += spec.pooled_dim
    return sources
