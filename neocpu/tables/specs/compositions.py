"""How does the vector of a logical table come of those of its physical tables? As records, which
the config checks before anything starts.

A table kind (`neocpu/tables/kinds/`) makes them; `neocpu/train/model/composition.py` does what they
say.
"""

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from neocpu.tables.specs.specs import TableSpec, TableSpecs

COPY = "copy"  # side by side, in the order of the terms; of one term: as it is
Tensors = tuple[tuple[str, tuple[int, ...]], ...]
# by name; pairs, so that records with them can be hashed
Options: TypeAlias = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class LogicalTable:
    """A table as a config names it.

    spec : its shape, features and pooling.
    kind : a name in `kinds.KINDS`.
    keys : the record of the kind's own keys.
    """

    spec: TableSpec
    kind: str
    keys: Any


@dataclass(frozen=True)
class Term:
    """The lookups of one feature in one physical table: `place` in its `features`."""

    table: str
    place: int = 0


@dataclass(frozen=True)
class DynamicMap:
    """Rows that move between the physical tables of a logical one as training goes on.

    Their row maps have the rule "row"; `train/step/dynamic_kinds.py` finds the rows of each batch.

    rule : a name in `train.step.dynamic_kinds.RULES`.
    rows : of the logical table.
    every : steps from one decision to the next.
    bytes : of what it takes to know where rows are.
    options : what else the rule needs to know.
    """

    rule: str
    rows: int
    every: int
    bytes: int
    options: Options = ()


@dataclass(frozen=True)
class Composition:
    """How the vectors of a logical table are made.

    table : the logical table.
    terms : for each of its features, the lookups whose vectors are composed.
    operation : a name in `train.model.operations`.
    tensors : dense parameters that it has, (name, shape), the same for all features.
    options : what else the operation needs to know.
    dynamic : where rows move as training goes on (None: they stay).
    """

    table: str
    terms: tuple[tuple[Term, ...], ...]
    operation: str = COPY
    tensors: Tensors = ()
    options: Options = ()
    dynamic: DynamicMap | None = None

    def header(self) -> dict[str, object]:
        """What decides the bits."""
        header = asdict(self)
        if self.dynamic is None:
            del header["dynamic"]
        return header


@dataclass(frozen=True)
class Expanded:
    """A logical table as physical ones: those that stand in its place, and how to compose them."""

    physical: tuple[TableSpec, ...]
    composition: Composition


def whole(spec: TableSpec) -> Expanded:
    """A table that is kept as it is."""
    return Expanded((spec,), Composition(spec.name, terms_of([spec], len(spec.features))))


def terms_of(parts: TableSpecs, features: int) -> tuple[tuple[Term, ...], ...]:
    """The terms of each feature where it has one lookup in each part, at its own place."""
    return tuple(tuple(Term(part.name, place) for part in parts) for place in range(features))
