"""How does a model leave by the names of facebookresearch/dlrm or TorchRec? As their state_dict.

A `.safetensors` file with whole tables in float32, initial values of rows never trained filled in;
`load_state_dict` of their DLRM takes it. What `names.py` reads, the other way round. The
names of TorchRec's tables are t_cat_0, t_cat_1 and so on, behind `model.` as of DLRMTrain.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.types import Elements
from neocpu.serve.exports.arrays import (
    Entry,
    field_parts,
    metadata_of,
    whole_values,
    write_arrays,
)
from neocpu.serve.exports.scorer import StoredTable, stored_tables
from neocpu.serve.state_dicts.names import column_order
from neocpu.tables.specs.specs import bags
from neocpu.train.checkpoint.reading import CheckpointFile

TABLE = {
    "dlrm": "emb_l.{0}.weight",
    "torchrec": "model.sparse_arch.embedding_bag_collection.embedding_bags.t_cat_{0}.weight",
}
# names of the layers of both MLPs, and how many numbers lie between neighbours
LAYERS = {
    "dlrm": ("bot_l.{0}", "top_l.{0}", 2),
    "torchrec": (
        "model.dense_arch.model._mlp.{0}._linear",
        "model.over_arch.model.0._mlp.{0}._linear",
        1,
    ),
}


def export_state_dict(file: CheckpointFile, target: Path, program: str) -> None:
    """Write a model as the state_dict of another program, a key of TABLE.

    Raises ConfigError for a model that the program does not have; else as `write_arrays`.
    """
    config = file.config()
    if config.compositions:
        raise ConfigError(
            f"{file.path}: some of its tables are of another kind than full, or have pooling "
            f'"none", for which {program} has no names; leave --names out'
        )
    interactions = ("dot",) if program == "torchrec" else ("dot", "cat")
    extensions = config.model.towers or config.model.wide or config.model.heads
    if extensions or config.model.interaction not in interactions:
        raise ConfigError(
            f"{file.path}: {program} has no DLRM with towers, a linear term or further heads, or "
            "with this interaction"
        )
    if program == "torchrec" and config.model.diagonal:
        raise ConfigError(f"{file.path}: TorchRec's DLRM has no diagonal of dot products")
    # These programs name a table after its one feature.
    if len(bags(config.tables)) != len(config.tables):
        raise ConfigError(f"{file.path}: tables of several features have no names of {program}")
    arrays = [_dense_entry(file, number, program) for number in _dense_numbers(file)]
    for position, table in enumerate(stored_tables(file, config, narrow=False)):
        shape = (table.spec.rows, table.spec.dim)
        parts = partial(_rows, file, table)
        arrays.append(Entry(TABLE[program].format(position), "<f4", shape, parts))
    advice = "without --names rows never trained are left out"
    write_arrays(file, target, arrays, metadata_of(file), advice)


def _rows(file: CheckpointFile, table: StoredTable) -> Iterator[Elements]:
    """All rows of a table, some at a time."""
    return (table.encode(values) for values in whole_values(file, table.number))


def _dense_numbers(file: CheckpointFile) -> list[int]:
    return [number for number, tensor in enumerate(file.tensors) if tensor.parameter]


def _dense_entry(file: CheckpointFile, number: int, program: str) -> Entry:
    """One parameter by its name there."""
    tensor = file.tensors[number]
    mlp, layer, parameter = tensor.name.removeprefix("dense/").split(".")
    config = file.config()
    bottom, top, step = LAYERS[program]
    name = (bottom if mlp == "bottom" else top).format(step * int(layer))
    if program == "torchrec" and mlp == "top" and int(layer) == len(config.model.top) - 1:
        # TorchRec keeps the last layer, without ReLU, outside its MLP.
        name = "model.over_arch.model.1"
    shape = (tensor.rows, *dict(tensor.fields)["value"])
    parts = field_parts(file, number, file.dense_field)
    if program == "torchrec" and (mlp, layer, parameter) == ("top", "0", "weight"):
        layout = config.layout(file.dense_features)
        # The inverse of the order by which an import rearranges columns.
        order = np.argsort(column_order(layout), kind="stable")
        return Entry(f"{name}.{parameter}", "<f4", shape, lambda: (a[:, order] for a in parts()))
    return Entry(f"{name}.{parameter}", "<f4", shape, parts)
