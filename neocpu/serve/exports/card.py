"""What must an exported model say, so that it can be used without neocpu? A card, as JSON.

    model      layers, interaction, loss, towers
    tables     rows, columns, pooling; how rows are stored; key of the initial values
    features   in the order of the pooled vectors: the table of each, its column in a log, how a
               value becomes a code (kind), how a code becomes a row (key of the hash, vocabulary),
               and where the table is part of another one, how that one's row becomes its (map)
    parts      of the model, where tables are of kinds: of which features' vectors each of the
               model's is composed, how, and with which parameters
    dense      numbers in the order of the first layer's inputs, with their transforms

The kinds and names come from the schema of the data, or, where the run read a converted data set,
from that. 64-bit numbers are written as texts: JSON readers may round them.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from neocpu.core.errors import CheckpointError, ConfigError, DataError, NeocpuError
from neocpu.core.records import toml_text
from neocpu.core.types import Elements, Ints
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.formats.schema import TRANSFORMS, CategoryField, DenseField, Schema
from neocpu.ingest.formats.table import table_schema
from neocpu.kernels.twins.numbers.philox import INIT, feature_key, tensor_key
from neocpu.serve.scoring.values import ValueMap, open_values
from neocpu.tables.specs.specs import RowMap, TableSpecs, bags
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config.config import Config

Facts: TypeAlias = dict[str, Any]  # what becomes JSON
FORMAT = "neocpu-scorer"
VERSION = 1
INTERACTIONS_VERSION = 2  # where interactions are others than those of version 1
KINDS_VERSION = 3  # where vectors are composed
CLIP_VERSION = 4  # where numbers are moved into a range
EXPORTED = ("copy", "add", "multiply", "project")  # operations that exported models have


@dataclass(frozen=True)
class DataFacts:
    """What is known of the data of a checkpoint.

    dense, categories : how columns of a log are read, by feature.
    missing : texts that stand for an empty field.
    vocabularies : codes by feature, row i + 1 for entry i; {}: there are none.
    single : features of which every sample has exactly one value.
    whole : as of a schema.
    """

    dense: tuple[DenseField, ...]
    categories: Mapping[str, CategoryField]
    missing: tuple[str, ...] = ()
    vocabularies: Mapping[str, Elements] = field(default_factory=dict)
    single: frozenset[str] = frozenset()
    whole: bool = False


def refuse_unknown_operations(file: CheckpointFile) -> None:
    """Raise ConfigError for a model whose vectors are made of those of its tables in a way that
    exports do not have.
    """
    config = file.config()
    refused = {
        part.table
        for part in config.compositions
        if part.dynamic is not None or part.operation not in EXPORTED
    }
    refused |= {
        table.name for table in config.tables if table.pooling == "none" or table.same_codes
    }
    if refused:
        raise ConfigError(
            f"{file.path}: tables {', '.join(sorted(refused))}: they are of a kind, or have "
            'pooling "none" or same_codes, which files for other programs do not have; `neocpu '
            "checkpoint arrays` writes its arrays"
        )


def data_facts(file: CheckpointFile, vocabulary: Path | None = None) -> DataFacts:
    """How the data of a checkpoint become dense numbers and rows.

    vocabulary : a converted data set with the vocabulary of the run, where the one that the run
    used is somewhere else now.

    Raises CheckpointError where a vocabulary, or the numbers of a transform that was fitted, cannot
    be found; ConfigError as `refuse_unknown_operations`.
    """
    refuse_unknown_operations(file)
    overrides = [] if vocabulary is None else [f"data.vocabulary={toml_text(str(vocabulary))}"]
    values = open_values(file.path, overrides)
    features = set(values.features)
    inputs = file.dense_features
    dataset = _dataset(file, vocabulary, features)
    vocabularies = {name: codes for name, codes in values.vocabularies.items() if name in features}
    trees = [file.data().get("schema"), dataset.schema if dataset is not None else None]
    schema = _schema(values, trees, inputs)
    if schema is not None:
        fields = {each.name: each for each in schema.categories if each.name in features}
        single = frozenset(name for name, each in fields.items() if not each.is_list)
        return DataFacts(schema.dense, fields, schema.missing, vocabularies, single, schema.whole)
    if dataset is None or len(dataset.dense_columns) != inputs:
        dense = tuple(DenseField(f"dense{i}", f"dense{i}", "float", "none") for i in range(inputs))
        return DataFacts(dense, {}, (), vocabularies)
    transforms = dataset.attributes.get("dense_transform")
    if not isinstance(transforms, list) or not set(transforms) <= set(TRANSFORMS):
        transforms = ["none"] * inputs  # the numbers are given as the model takes them
    dense = tuple(
        DenseField(name, name, "float", transform)
        for name, transform in zip(dataset.dense_columns, transforms)
    )
    fields = {
        name: CategoryField(name, name, column.kind)
        for name, column in dataset.features.items()
        if name in features
    }
    single = frozenset(name for name in fields if dataset.features[name].hotness == 1)
    return DataFacts(dense, fields, (), vocabularies, single)


def _schema(
    values: ValueMap, trees: Sequence[Mapping[str, object] | None], inputs: int
) -> Schema | None:
    """The schema of the run's log; None where it is not known, or the run read other data.

    trees : schemas as the checkpoint and a converted data set hold them.
    """
    schemas = [table_schema(tree) for tree in trees if tree]
    with contextlib.suppress(NeocpuError):
        # The config's own comes last: its file may have changed since the training.
        schemas.append(values.schema)
    fitting = [
        schema
        for schema in schemas
        if set(values.features) <= {each.name for each in schema.categories}
        and len(schema.dense) == inputs
    ]
    # Guessing these numbers would give predictions that are wrong without a word.
    if fitting and all(schema.unfitted for schema in fitting):
        raise CheckpointError(
            f"{values.path}: means, deviations and edges of its data were fitted, and the converted"
            " train data that hold them were not found; name them: --vocabulary train.h5"
        )
    return next((schema for schema in fitting if not schema.unfitted), None)


def _dataset(file: CheckpointFile, vocabulary: Path | None, features: set[str]) -> Dataset | None:
    """A data set of the run that is still there, or the one that was named."""
    if vocabulary is not None:
        return Dataset(vocabulary)
    splits = file.data().get("splits", {})
    # One file of each split is enough: those of a split have the same columns.
    for path in (path for split in splits.values() for path in split["files"][:1]):
        with contextlib.suppress(DataError):
            dataset = Dataset(path)
            if features <= set(dataset.features):
                return dataset
    return None


def card_of(file: CheckpointFile, facts: DataFacts) -> Facts:
    """The card of a checkpoint; `stored` and `unlearnt` of tables are set by what writes them."""
    config = file.config()
    seed = config.training.seed
    tables = [
        {
            "name": spec.name,
            "rows": spec.rows,
            "dim": spec.dim,
            "pooling": spec.pooling,
            "weighted": spec.weighted,
            "format": spec.format,
            # Text: JSON readers take numbers for fp64, which has 53 bits of the 64.
            "initial_key": str(int(tensor_key(seed, INIT, spec.name))),
            **({"start": asdict(spec.start)} if spec.start else {}),
        }
        for spec in config.tables
    ]
    model = _model(config, len(facts.dense))
    return {
        "format": FORMAT,
        "version": _version(model, facts.dense),
        "step": file.step,
        "digest": file.digest,
        "seed": str(seed),
        "rows_by": config.data.rows_by,
        "model": model,
        "tables": tables,
        "features": feature_cards(config.tables, facts, seed),
        "dense": [_dense_card(column) for column in facts.dense],
        "missing": list(facts.missing),
        **({"whole": True} if facts.whole else {}),
    }


def _dense_card(column: DenseField) -> Facts:
    """A dense column; how it takes texts stands there only where it does.

    Each number of a vector is a column of its own there, of the name of its input.
    """
    one = replace(column, column=column.name) if column.width else column
    card = asdict(one)
    # files that were exported before these keys existed stay what they are
    unused = ["invalid"] * (column.invalid == "error") + ["clip"] * (column.clip is None)
    for key in ("width", "item", "separator", *unused):
        del card[key]
    return card


def _version(model: Mapping[str, object], dense: Sequence[DenseField]) -> int:
    """The first version of a reader that knows all of a model and its dense columns."""
    if any(column.clip for column in dense):
        return CLIP_VERSION
    if "parts" in model:
        return KINDS_VERSION
    return INTERACTIONS_VERSION if "first_order" in model else VERSION


def feature_cards(tables: TableSpecs, facts: DataFacts, seed: int) -> list[Facts]:
    """What the card says of each key of the batch, in their order."""
    features: list[Facts] = []
    for key in bags(tables):
        category = facts.categories.get(key.feature, CategoryField(key.feature, key.feature, ""))
        features.append(
            {
                "key": key.key,
                "table": key.table,
                **asdict(category),
                "list": key.feature not in facts.single,
                "vocabulary": key.feature in facts.vocabularies,
                "hash_key": str(int(feature_key(seed, key.feature))),
                **({"map": _map_card(key.row_map)} if key.row_map else {}),
            }
        )
    return features


def _map_card(row_map: RowMap) -> Facts:
    """What the card says of the way from rows of a logical table to those of a physical one."""
    return {**asdict(row_map), "key": str(row_map.key)}


def _model(config: Config, inputs: int) -> Facts:
    """Layers, interaction, loss and towers."""
    layout = config.layout(inputs)
    towers = [
        {
            "name": tower.name,
            "keys": list(tower.keys),
            "joint_vectors": tower.module.joint_vectors,
            "feature_vectors": tower.module.feature_vectors,
            "width": tower.module.width,
        }
        for tower in layout.towers
    ]
    model: Facts = {
        "bottom": list(layout.bottom),
        "top": list(layout.top),
        "interaction": layout.interaction,
        "diagonal": layout.diagonal,
        "loss": layout.loss,
        "towers": towers,
    }
    # Left out where version 1 knows the model, so that older readers take the file.
    if layout.interaction not in ("dot", "cat") or layout.wide:
        model |= {"dhen": asdict(layout.dhen), "wide": list(layout.wide)}
        model["first_order"] = layout.has_first_order
    if layout.composition is not None:
        model["parts"] = [
            {
                "operation": part.operation,
                "keys": [source.key for source in part.sources],
                "dim": part.dim,
                "tensors": [part.parameter(name) for name, _ in part.tensors],
            }
            for part in layout.composition.parts
        ]
    return model


def vocabulary_array(codes: Elements) -> Ints:
    """Codes of a vocabulary as the bits of i64[n], which every library reads."""
    return np.ascontiguousarray(codes, np.uint64).view(np.int64)
