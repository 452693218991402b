"""Which tables of a config are of which kind, and what do they save? A few plain lines."""

import math
from collections.abc import Iterator

from neocpu.config import Config
from neocpu.kinds import FULL


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
    sketches = sum(each.dynamic.bytes for each in config.compositions if each.dynamic is not None)
    if sketches:
        yield f"  beside them {sketches:,} bytes on every rank that say where rows are"


def kinds_text(config: Config) -> str:
    """The tables that are not full, each with its kind and its physical tables, where these have
    other names; * : the table's name.
    """
    members: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for table, parts in zip(config.kinds, _parts(config)):
        name = table.spec.name
        if table.kind != FULL:
            shown = tuple(part.replace(f"{name}.", "*.", 1) for part in parts if part != name)
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
        tuple(dict.fromkeys(term.table for terms in part.terms for term in terms))
        for part in config.compositions
    ]
