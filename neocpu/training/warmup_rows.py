"""Which kernels does a run need besides, some of whose tables do not pool? What its miniature has.

Lookups, exchanges and updates of such tables use the kernels of pooled ones (`unpooled.py`);
rows are pooled or weighted by attention at home (`model/row_parts.py`).
"""

from dataclasses import replace
from typing import Any

from neocpu.config import Config
from neocpu.embedding.compositions import whole
from neocpu.embedding.specs import TableSpec
from neocpu.model.attention_layout import AttentionKeys

TARGET = "rows"  # the key whose rows are pooled at home


def row_facts(config: Config) -> list[Any]:
    """What decides them; [] where all tables pool."""
    if all(table.pooling != "none" for table in config.tables):
        return []
    return ["rows", _normalisations(config)]


def _normalisations(config: Config) -> list[str]:
    return sorted({keys.normalise for keys in config.model.attention.values()})


def with_rows(mini: Config, config: Config) -> Config:
    """A miniature with tables that do not pool, as many as the config has ways to use them.

    mini : of tables that pool, which are all of one dim. config : of the run.
    """
    like = mini.tables[0]
    names = [TARGET, *(f"history-{name}" for name in _normalisations(config))]
    physical = [TableSpec(name, like.rows, like.dim, (name,), "none") for name in names]
    logical = [replace(physical[0], pooling="mean"), *physical[1:]]
    attention = {
        name: AttentionKeys(TARGET, (4,), way)
        for name, way in zip(names[1:], _normalisations(config))
    }
    tables = (*mini.tables, *physical)
    return replace(
        mini,
        tables=tables,
        logical=(*mini.tables, *logical),
        compositions=tuple(whole(table).composition for table in tables),
        model=replace(mini.model, attention=attention),
    )
