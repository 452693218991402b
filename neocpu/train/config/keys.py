"""What are the keys of a config, all of them, defaults included? As a tree, or by dotted names."""

import json
from collections.abc import Mapping
from dataclasses import asdict

from neocpu.core.types import Tree
from neocpu.tables.specs.compositions import LogicalTable
from neocpu.train.config.config import SECTIONS, Config


def resolved(config: Config) -> dict[str, object]:
    """All keys with their values as JSON has them: {"data": {...}, …, "tables": {"C1": {...}}}.

    Where tables are of kinds, these are the tables that the model sees, with their kinds and the
    keys of these; the others stand under "physical_tables".
    """
    tree = {name: asdict(getattr(config, name)) for name in SECTIONS}
    physical = {table.name: asdict(table) for table in config.tables}
    tree["tables"] = physical
    if config.kinds:
        tree["tables"] = {table.spec.name: _of_kind(table) for table in config.kinds}
        tree["physical_tables"] = physical
    # paths as text, tuples as lists: what run.json has is what programs see here
    return json.loads(json.dumps(tree, default=str))


def _of_kind(table: LogicalTable) -> dict[str, object]:
    keys = asdict(table.keys) if table.keys is not None else {}
    return {**asdict(table.spec), "kind": table.kind, **keys}


def config_record(config: Config) -> dict[str, object]:
    """What a run keeps of its config: `loads(toml, source, overrides)` makes it again."""
    return {
        "config": resolved(config),
        "toml": config.text,
        "source": config.source,
        "overrides": list(config.overrides),
    }


def flat(config: Config) -> dict[str, object]:
    """All keys by their dotted names: {"training.batch_size": 2048, …}."""
    return dict(flatten(resolved(config)))


def flatten(tree: Tree, prefix: str = "") -> dict[str, object]:
    """A tree of keys as one mapping of dotted names."""
    keys: dict[str, object] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            keys |= flatten(value, f"{prefix}{name}.")
        else:
            keys[f"{prefix}{name}"] = value
    return keys


def defaults() -> dict[str, object]:
    """The default of every dotted key, those of tables excepted."""
    tree = {name: asdict(kind()) for name, kind in SECTIONS.items()}
    return flatten(json.loads(json.dumps(tree, default=str)))
