"""Which tables of a config are of which kind, and what do they save? Two plain lines."""

import math
from collections.abc import Iterator

from neocpu.config import Config
from neocpu.kinds import FULL


def kind_lines(config: Config) -> Iterator[str]:
    """Lines about the tables that are not full; none where all are."""
    if not config.kinds:
        return
    members: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for table, parts in zip(config.kinds, _parts(config)):
        if table.kind != FULL:
            members.setdefault((table.kind, parts), []).append(table.spec.name)
    texts = [
        f"{', '.join(names)} {kind} ({', '.join(parts)})"
        for (kind, parts), names in members.items()
    ]
    yield f"kinds: {'; '.join(texts)}"
    full = sum(table.rows * table.dim for table in config.model_tables)
    numbers = sum(table.rows * table.dim for table in config.tables)
    composition = config.layout(1).composition
    dense = 0 if composition is None else sum(math.prod(s) for _, s in composition.tensors())
    yield (
        f"  {numbers + dense:,} numbers, {dense:,} of them dense parameters; as full tables "
        f"{full:,}, {full / (numbers + dense):,.1f} times as many"
    )


def _parts(config: Config) -> list[tuple[str, ...]]:
    """Names of the physical tables of each table, each once."""
    if not config.compositions:
        return [(table.name,) for table in config.tables]
    return [
        tuple(dict.fromkeys(term.table for terms in part.terms for term in terms))
        for part in config.compositions
    ]
