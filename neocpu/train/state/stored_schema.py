"""Which schema reads the raw logs of a model? The one that its checkpoint holds.

A checkpoint describes the data that it was trained on (`identity.py`); of a table this holds the
whole schema, with all numbers that were fitted. So data are read alike wherever the checkpoint
goes.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from neocpu.core.errors import ConfigError
from neocpu.core.types import JsonObject, Tree
from neocpu.ingest.formats.schema_numbers import fill
from neocpu.train.config.config import Config

KEY = "data.schema"


def with_schema(config: Config, data: JsonObject, overrides: Sequence[str]) -> Config:
    """The config of a checkpoint with the schema that it holds, unless an override names another.

    data : the description of what it was trained on. Checkpoints of neocpu 0.1.0 hold no schema:
    theirs is read where the config says, if it is still there, as neocpu 0.1.0 did.
    """
    from neocpu.ingest.formats.table import read_tree

    keys = [override.partition("=")[0].strip() for override in overrides]
    if config.data.format != "table" or any(
        key.split(".")[:2] == ["data", "schema"] for key in keys
    ):
        return config
    tree = data.get("schema")
    # a description without a schema: written by neocpu 0.1.0
    if tree is None and data and isinstance(config.data.schema, str):
        with suppress(ConfigError):
            tree = {"version": 1, **read_tree(config.data.schema)}
    return config if tree is None else replace(config, data=replace(config.data, schema=tree))


def with_numbers(config: Config, data: JsonObject) -> Config:
    """A config whose schema has the fitted numbers of a checkpoint, where it lacks them.

    data : the description of what the checkpoint was trained on.
    """
    from neocpu.ingest.formats.table import read_tree, table_schema

    source = config.data.schema_source
    stored = data.get("schema")
    if config.data.format != "table" or source is None or not isinstance(stored, Mapping):
        return config
    tree = source if isinstance(source, Mapping) else read_tree(source)
    if not table_schema(tree, config.data.dense_transform).unfitted:
        return config
    return replace(config, data=replace(config.data, schema=fill(tree, stored)))


def other_codes(before: Tree, now: Tree) -> str:
    """The first column whose values have other codes or numbers in two schemas; "": there is none.

    before, now : their trees. Columns that only one of them has do not count.
    """
    from neocpu.ingest.formats.table import table_schema

    old = table_schema(before)
    new = table_schema(now)
    for old_fields, new_fields in ((old.dense, new.dense), (old.categories, new.categories)):
        # by name: columns may stand in another order
        known = {field.name: field.description for field in new_fields}
        for field in old_fields:
            if known.get(field.name, field.description) != field.description:
                return field.name
    return ""
