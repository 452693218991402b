"""What must an exported model say, so that it can be used without neocpu? A card, as JSON.

    model      layers, interaction, loss, towers
    tables     rows, columns, pooling; how rows are stored; key of the initial values
    features   in the order of the pooled vectors: the table of each, its column in a log, how a
               value becomes a code (kind), how a code becomes a row (key of the hash, vocabulary)
    dense      numbers in the order of the first layer's inputs, with their transforms

The kinds and names come from the schema of the data, or, where the run read a converted data set,
from that. 64-bit numbers are written as texts: JSON readers may round them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.config import Config
from neocpu.embedding.specs import bags
from neocpu.errors import CheckpointError, ConfigError, DataError
from neocpu.ingest.convert import ConvertOptions, schema_of
from neocpu.ingest.dataset import Dataset
from neocpu.ingest.schema import CategoryField, DenseField, Schema
from neocpu.reference.hashing import feature_key
from neocpu.reference.philox import INIT, tensor_key
from neocpu.training.checkpoint.reading import CheckpointFile
from neocpu.training.identity import describe

FORMAT = "neocpu-scorer"
VERSION = 1


@dataclass(frozen=True)
class DataFacts:
    """What is known of the data of a checkpoint.

    dense, categories : how columns of a log are read, by feature. vocabularies : codes by feature,
    row i + 1 for entry i; {}: rows are hashed. single : features of which every sample has exactly
    one value.
    """

    dense: tuple[DenseField, ...]
    categories: Mapping[str, CategoryField]
    vocabularies: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    single: frozenset[str] = frozenset()


def data_facts(file: CheckpointFile, vocabulary: Path | None = None) -> DataFacts:
    """How the data of a checkpoint become dense numbers and rows.

    vocabulary : a converted data set with the vocabulary of the run, where the one that the run
    used is somewhere else now.

    Raises CheckpointError where a vocabulary cannot be found, or is not that of the run.
    """
    config = file.config()
    features = {key.feature for key in bags(config.tables)}
    inputs = dict(file.tensors[file.number("dense/bottom.0.weight")].fields)["value"][0]
    schema = _schema(config, features, inputs)
    dataset = _dataset(file, config, vocabulary, features)
    vocabularies: Mapping[str, NDArray[Any]] = {}
    if config.data.rows_by == "vocabulary":
        vocabularies = _vocabularies(file, dataset, features)
    if schema is not None:
        fields = {field.name: field for field in schema.categories if field.name in features}
        single = frozenset(name for name, field in fields.items() if not field.separator)
        return DataFacts(schema.dense, fields, vocabularies, single)
    if dataset is None or len(dataset.dense_columns) != inputs:
        dense = tuple(DenseField(f"dense{i}", f"dense{i}", "float", "none") for i in range(inputs))
        return DataFacts(dense, {}, vocabularies)
    transforms = dataset.attributes.get("dense_transform")
    if not isinstance(transforms, list) or len(transforms) != inputs:
        transforms = ["none"] * inputs
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
    return DataFacts(dense, fields, vocabularies, single)


def _schema(config: Config, features: set[str], inputs: int) -> Schema | None:
    """The schema of the run's log; None where it is not known, or the run read other data."""
    data = config.data
    options = ConvertOptions(
        dense_transform=data.dense_transform,
        header=data.header,
        schema=data.schema_source,
    )
    try:
        schema = schema_of(data.format, options)
    except (ConfigError, DataError):
        return None
    names = {category.name for category in schema.categories}
    return schema if features <= names and len(schema.dense) == inputs else None


def _dataset(
    file: CheckpointFile, config: Config, vocabulary: Path | None, features: set[str]
) -> Dataset | None:
    """A data set of the run that is still there: its vocabulary's, else that of a split."""
    if vocabulary is not None:
        return Dataset(vocabulary)
    splits = file.data().get("splits", {})
    candidates = [config.data.vocabulary] if config.data.vocabulary else []
    candidates += [path for split in splits.values() for path in split["files"][:1]]
    for path in candidates:
        try:
            dataset = Dataset(path)
        except DataError:
            continue
        if features <= set(dataset.features):
            return dataset
    return None


def _vocabularies(
    file: CheckpointFile, dataset: Dataset | None, features: set[str]
) -> dict[str, NDArray[Any]]:
    """The vocabularies of the run. Raises CheckpointError where they are not these."""
    advice = "name the data set that has it: --vocabulary train.h5"
    if dataset is None or not dataset.vocabularies:
        raise CheckpointError(f"{file.path}: its vocabulary was not found; {advice}")
    expected = file.data().get("vocabularies", {})
    actual = describe({}, "vocabulary", dataset.vocabularies)["vocabularies"]
    for feature in sorted(features):
        if actual.get(feature) != expected.get(feature, actual.get(feature)):
            raise CheckpointError(
                f"{file.path}: was trained with another vocabulary of feature {feature} than that "
                f"of {dataset.paths[0]}; {advice}"
            )
    return {name: dataset.vocabularies[name] for name in dataset.vocabularies if name in features}


def card_of(file: CheckpointFile, facts: DataFacts) -> dict[str, Any]:
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
            "initial_key": str(int(tensor_key(seed, INIT, spec.name))),
        }
        for spec in config.tables
    ]
    features = []
    for key in bags(config.tables):
        category = facts.categories.get(key.feature, CategoryField(key.feature, key.feature, ""))
        features.append(
            {
                "key": key.key,
                "table": key.table,
                **asdict(category),
                "list": key.feature not in facts.single,
                "vocabulary": key.feature in facts.vocabularies,
                "hash_key": str(int(feature_key(seed, key.feature))),
            }
        )
    return {
        "format": FORMAT,
        "version": VERSION,
        "step": file.step,
        "digest": file.digest,
        "seed": str(seed),
        "rows_by": config.data.rows_by,
        "model": _model(config, len(facts.dense)),
        "tables": tables,
        "features": features,
        "dense": [asdict(column) for column in facts.dense],
    }


def _model(config: Config, inputs: int) -> dict[str, Any]:
    """Layers, interaction, loss and towers."""
    layout = config.model.layout(inputs, config.tables)
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
    return {
        "bottom": list(layout.bottom),
        "top": list(layout.top),
        "interaction": layout.interaction,
        "diagonal": layout.diagonal,
        "loss": layout.loss,
        "towers": towers,
    }


def vocabulary_array(codes: NDArray[Any]) -> NDArray[np.int64]:
    """Codes of a vocabulary as the bits of i64[n], which every library reads."""
    return np.ascontiguousarray(codes, np.uint64).view(np.int64)
