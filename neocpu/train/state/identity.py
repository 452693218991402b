"""Are these the data that a checkpoint was trained on? A short description travels with it.

The config may name other paths on resume (a raw log, its converted copy, a copy elsewhere), but not
other samples: a position in the data would then mean something else. A vocabulary is part of the
model: with another one, a category would look up another row. Of a table the description holds the
whole schema, with all numbers that were fitted: data are read alike wherever the checkpoint goes.
"""

import hashlib
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.core.errors import CheckpointError, ConfigError, DataError
from neocpu.core.types import Elements, JsonObject, Tree
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.formats.schema_numbers import fill
from neocpu.parallel.transport.comm import Comm
from neocpu.train.config.config import Config

HISTORY = "online"  # the files of a run that trains on file after file (`online.py`)
NEW_DATA = (
    "; to go on with new data choose another --out and name the checkpoint in training.init_from"
)
LOOKED_AT = 4096  # samples of the beginning and of the end that enter the fingerprint


def describe(
    datasets: Mapping[str, Dataset], rows_by: str, vocabularies: Mapping[str, Elements] | None
) -> dict[str, Any]:
    """A JSON object with these keys.

    splits : of each split "rows" (its number of samples), "fingerprint" and "files".
    vocabularies : SHA-256 of each feature's, where `rows_by` is "vocabulary".
    dense : names of the dense columns.
    schema : the tree of the schema by which a table was read; absent for other data.
    """
    splits = {}
    for name, data in datasets.items():
        splits[name] = {
            "rows": data.rows,
            "fingerprint": fingerprint(data),
            "files": [str(path) for path in data.paths],
        }
    hashes = {}
    if rows_by == "vocabulary" and vocabularies:
        hashes = hashes_of(vocabularies)
    first = next(iter(datasets.values()), None)
    dense = [] if first is None else list(first.dense_columns)
    description = {"splits": splits, "vocabularies": hashes, "dense": dense}
    if first is not None and first.schema is not None:
        description["schema"] = first.schema
    return description


def hashes_of(vocabularies: Mapping[str, Elements]) -> dict[str, str]:
    """SHA-256 of each feature's vocabulary."""
    return {feature: _sha(codes) for feature, codes in vocabularies.items()}


def fingerprint(data: Dataset) -> str:
    """SHA-256 of labels and dense columns of the first and last samples."""
    if data.fingerprint:
        return data.fingerprint
    ends = (
        np.arange(min(LOOKED_AT, data.rows), dtype=np.int64),
        np.arange(max(data.rows - LOOKED_AT, 0), data.rows, dtype=np.int64),
    )
    arrays = []
    for samples in ends:
        edge = data.take(samples, ())
        arrays += [edge.labels, edge.dense]
    return _sha(*arrays)


def refuse_different(comm: Comm, datasets: Mapping[str, Dataset]) -> None:
    """Raise DataError on all ranks where one reads other samples than rank 0. Collective."""
    if comm.size == 1:
        return
    own = {name: [data.rows, fingerprint(data), data.contents] for name, data in datasets.items()}
    facts = comm.allgather([socket.gethostname(), own])
    first_host, first = facts[0]
    different = [
        f"{name}: {datasets[name].paths[0]} on {host} has other samples than on {first_host}; copy "
        "it from there, or remove it, and the run sends a copy"
        for host, known in facts
        for name in known
        if _are_other(known[name], first[name])
    ]
    if different:
        raise DataError(different[0])


def _are_other(known: Sequence[Any], first: Sequence[Any]) -> bool:
    """Are samples known to be other ones? Files that are cut elsewhere have other checksums."""
    cuts = [[samples for samples, _ in contents] for *_, contents in (known, first)]
    return known[:2] != first[:2] or (cuts[0] == cuts[1] and known[2] != first[2])


def _sha(*arrays: Elements) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def _refuse_other_schema(
    path: Path, before: JsonObject | None, now: JsonObject | None, resumed: bool
) -> None:
    """Raise CheckpointError if a table's values have other codes than before."""
    if before and now and (name := other_codes(before, now)):
        raise CheckpointError(
            f"{path}: was trained on data in which {name} was read in another way; convert the "
            "data by the same schema (--fitted takes its numbers from the train data)"
        )
    if resumed and now and not before and now.get("version", 1) > 1:
        raise CheckpointError(
            f"{path}: was trained on a table as neocpu 0.1.0 read it; write version = 1 into its "
            "schema to go on"
        )


def refuse_other_data(
    path: Path, before: JsonObject, now: JsonObject, split: str | None = None
) -> None:
    """Raise CheckpointError if vocabularies, or the samples of `split`, are not those of before.

    path : of the checkpoint. before, now : descriptions of the data that it was trained on, and of
    those at hand; a checkpoint without a description ({}) goes with any data.
    """
    if not before:
        return
    # a step of one is at another place in the data of the other
    if split is not None and (HISTORY in before) != (HISTORY in now):
        raise CheckpointError(
            f"{path}: is of a run that trains on file after file; go on with `neocpu online`"
            if HISTORY in before
            else f"{path}: is of `neocpu train`; name it in training.init_from, and choose another "
            "--out"
        )
    for feature in {**before["vocabularies"], **now["vocabularies"]}:
        if before["vocabularies"].get(feature) != now["vocabularies"].get(feature):
            raise CheckpointError(
                f"{path}: was trained with another vocabulary of feature {feature}; "
                "set data.vocabulary to the dataset that it was trained on"
                f"{NEW_DATA if split is not None else ''}"
            )
    _refuse_other_schema(path, before.get("schema"), now.get("schema"), split is not None)
    if split is None:
        return
    old = before["splits"].get(split)
    new = now["splits"].get(split)
    if old is None or new is None:
        return
    if (old["rows"], old["fingerprint"]) != (new["rows"], new["fingerprint"]):
        raise CheckpointError(
            f"{path}: data.{split} are other data now: {new['rows']} rows in "
            f"{', '.join(new['files'])}; it was trained on {old['rows']} rows in "
            f"{', '.join(old['files'])}. Restore them{NEW_DATA}"
        )


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
