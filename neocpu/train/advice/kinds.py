"""Which tables of a config are of which kind, and what do they save? A few plain lines."""

import math
from collections.abc import Iterator

from neocpu.tables.kinds import FULL
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.config.config import Config

REACHED = 0.9  # of a compression, beside what whole numbers of rows take from it


def kind_lines(config: Config) -> Iterator[str]:
    """Lines about the tables that are not full; none where all are."""
    if not config.kinds:
        return
    yield f"kinds: {kinds_text(config)}"
    full = sum(table.rows * table.dim for table in config.model_tables)
    numbers = sum(table.rows * table.dim for table in config.tables)
    composition = config.layout(1).composition
    tensors = composition.tensors() if composition is not None else ()
    dense = sum(math.prod(shape) for name, shape in tensors if name.startswith("kinds."))
    yield (
        f"  {numbers + dense:,} numbers, {dense:,} of them dense parameters; as full tables "
        f"{full:,}, {full / (numbers + dense):,.1f} times as many"
    )
    yield from _unreached(config)
    sketches = sum(each.dynamic.bytes for each in config.compositions if each.dynamic is not None)
    if sketches:
        yield f"  beside them {sketches:,} bytes on every rank that say where rows are"


def _unreached(config: Config) -> Iterator[str]:
    """Lines about kinds whose tables together stay below the compression that their keys name."""
    physical = {table.name: table.rows * table.dim for table in config.tables}
    members: dict[tuple[str, float], list[tuple[TableSpec, tuple[str, ...]]]] = {}
    for table, parts in zip(config.kinds, _parts(config)):
        factor = getattr(table.keys, "compression", 0.0)
        if factor:
            members.setdefault((table.kind, factor), []).append((table.spec, parts))
    for (kind, factor), tables in members.items():
        full = sum(spec.rows * spec.dim for spec, _ in tables)
        numbers = sum(physical[name] for name in {name for _, parts in tables for name in parts})
        if full < REACHED * factor * numbers:
            names = tables[0][0].name
            if len(tables) > 1:
                names = f"{len(tables)} tables, {names} ... {tables[-1][0].name}, together"
            yield (
                f"  note: kind {kind} has reached its least numbers: compression = {factor:g}, but "
                f"{names}: {full / numbers:,.1f}"
            )


def kinds_text(config: Config) -> str:
    """The tables that are not full, each with its kind and its physical tables, where these have
    other names; * : the table's name.
    """
    members: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for table, parts in zip(config.kinds, _parts(config)):
        name = table.spec.name
        if table.kind != FULL:
            shown = tuple(other.replace(f"{name}.", "*.", 1) for other in parts if other != name)
            members.setdefault((table.kind, shown), []).append(name)
    texts = []
    for (kind, shown), names in members.items():
        text = f"{', '.join(names)} {kind}"
        texts.append(f"{text} ({', '.join(shown)})" if shown else text)
    return "; ".join(texts)


def _parts(config: Config) -> list[tuple[str, ...]]:
    """Names of the physical tables of each table, each once."""
    if not config.compositions:
        return [(table.name,) for table in config.tables]
    return [
        tuple(dict.fromkeys(term.table for terms in composition.terms for term in terms))
        for composition in config.compositions
    ]
