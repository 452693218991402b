"""How does a raw value become a row? As in training: by the schema a code, by hash or vocabulary a
row.

A checkpoint has the form of its log (`data.format`, `data.schema`). A model that was trained on
converted files of another form, or on made-up ones, knows codes only.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import CheckpointError, DataError
from neocpu.core.records import toml_text
from neocpu.core.types import Elements, JsonObject
from neocpu.ingest.formats.schema import CategoryField, Schema
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config.config import Config

if TYPE_CHECKING:
    from neocpu.ingest.dataset.dataset import Dataset

Codes = Elements
# how a converted copy is called whose log is a text file
COPY_OF_TEXT = re.compile(
    r"\.(csv|tsv|txt|dat|data|psv|tab|log|gz|bz2|xz|zst|zip)\.\w+\.converted\.h5$", re.IGNORECASE
)


class ValueMap:
    """What a model's features are in its log, and which row each of their values has.

    path, config, data : of the checkpoint; data is its description of what it was trained on.
    stored : vocabularies in the checkpoint; those of neocpu 0.1.0 have none.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        data: JsonObject,
        stored: Mapping[str, Codes] | None = None,
    ) -> None:
        self.path = path
        self.config = config
        self._data = data
        self._stored = dict(stored or {})

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Features that the model looks up, each once."""
        tables = self.config.tables
        return tuple(dict.fromkeys(name for table in tables for name in table.features))

    @cached_property
    def schema(self) -> Schema:
        """The columns of the log that the model reads, its label among them.

        Raises DataError where the model's features are not columns of its log.
        """
        from neocpu.ingest.dataset.convert import schema_of
        from neocpu.train.before.conversions import convert_options

        # As a test log: the train log's options could ask for a vocabulary to be counted.
        options = convert_options(self.config, "test")
        schema = schema_of(self.config.data.format, options)
        unknown = set(self.features) - {field.name for field in schema.categories}
        if unknown:
            raise DataError(
                f"{self.path}: its features {', '.join(sorted(unknown))} are no columns of a log "
                f'of data.format "{self.config.data.format}": it was trained on converted files of '
                "another form. It can score .h5 files; to score raw ones, give overrides=["
                "\"data.format='table'\", \"data.schema='SCHEMA.toml'\"]"
            )
        # what no table looks up may be missing from the data
        used = [field for field in schema.categories if field.name in self.features]
        known = {
            field.column: self._stored[field.name]
            for field in used
            if field.kind == "text" and field.name in self._stored
        }
        whole = schema.whole or self._trained_on_texts
        return replace(schema, categories=tuple(used), known=known, whole=whole)

    @property
    def _trained_on_texts(self) -> bool:
        """Whether all of the train data were text files, by their names: none held floats then."""
        splits = self._data.get("splits", {})
        files = [
            file
            for name, split in splits.items()
            if name.startswith("train")
            for file in split.get("files", ())
        ]
        return bool(files) and all(map(COPY_OF_TEXT.search, files))

    def field(self, feature: str) -> CategoryField | None:
        """The column of a feature; None where only codes are known."""
        try:
            schema = self.schema
        except DataError:
            return None
        return next(field for field in schema.categories if field.name == feature)

    def lacks_label(self, paths: Sequence[str]) -> bool:
        """Do raw logs have all columns that the model reads but the label?"""
        from neocpu.serve.scoring.labels import lacks_label

        try:
            schema = self.schema
        except DataError:
            return False  # it reads converted files only, which know themselves
        return lacks_label(paths, schema)

    # ---- vocabularies ----

    @cached_property
    def vocabulary_file(self) -> Path | None:
        """The dataset with the vocabularies that a checkpoint lacks; None: it is not there, or not
        needed.
        """
        if self.config.data.rows_by != "vocabulary" or self._stored:
            return None
        return next((path for path in self._vocabulary_files() if path.is_file()), None)

    def _vocabulary_files(self) -> list[Path]:
        """Where the vocabularies may be: what the config names, else the train data."""
        if self.config.data.vocabulary:
            return [Path(self.config.data.vocabulary)]
        train = self._data.get("splits", {}).get("train", {})
        files = [Path(name) for name in train.get("files", ())]
        run = self.path.parent.parent
        # A run's folder may have been moved together with the copies in it.
        return [*files, *(run / file.name for file in files)]

    @property
    def vocabulary_override(self) -> list[str]:
        """The override of the config that names the file with the model's vocabularies."""
        path = self.vocabulary_file
        return [] if path is None else [f"data.vocabulary={toml_text(str(path.absolute()))}"]

    @cached_property
    def vocabularies(self) -> dict[str, Codes]:
        """Codes of each feature, entry i is row i + 1; empty where rows are by hash.

        Raises CheckpointError where they are not at hand, or others than in training.
        """
        if self.config.data.rows_by != "vocabulary":
            return {}
        if self._stored:
            return self._stored
        path = self.vocabulary_file
        if path is None:
            files = ", ".join(str(file) for file in self._vocabulary_files()) or "none is noted"
            raise CheckpointError(
                f"{self.path}: its rows are by a vocabulary, that of its train data ({files}), "
                "which is not there; give overrides=[\"data.vocabulary='TRAIN.h5'\"]"
            )
        from neocpu.ingest.dataset.dataset import Dataset

        return self._checked(Dataset(path).vocabularies)

    def vocabularies_for(self, dataset: "Dataset") -> dict[str, Codes] | None:
        """The vocabularies with which a dataset is scored: the model's, else its own if equal.

        None: rows are by hash. Raises CheckpointError as `vocabularies`.
        """
        if self.config.data.rows_by != "vocabulary":
            return None
        # Converted files bring their vocabulary along; it counts only if its hash is the model's.
        if not self._stored and self.vocabulary_file is None and dataset.vocabularies:
            return self._checked(dataset.vocabularies)
        return self.vocabularies

    def check_schema(self, dataset: "Dataset") -> None:
        """Raise CheckpointError for a dataset whose values have other codes than in training."""
        from neocpu.train.state.identity import refuse_other_data

        vocabularies = self._data.get("vocabularies", {})
        now = {"splits": {}, "vocabularies": vocabularies, "schema": dataset.schema}
        refuse_other_data(self.path, self._data, now)

    def _checked(self, vocabularies: dict[str, Codes]) -> dict[str, Codes]:
        """Raise CheckpointError unless these are the vocabularies of the training."""
        from neocpu.train.state.identity import hashes_of, refuse_other_data

        now = {"splits": {}, "vocabularies": hashes_of(vocabularies)}
        # Hashes of the codes: a file of the same name may have been converted anew.
        refuse_other_data(self.path, self._data, now)
        return vocabularies

    # ---- rows ----

    def rows(self, table: TableSpec, feature: str, values: Sequence[object]) -> NDArray[np.int64]:
        """Rows i64[n] of raw values of a feature. Raises DataError as `parse_frame` does."""
        field = self.field(feature)
        codes = as_codes(values) if field is None else self._codes(field, values)
        # Features of such a table share the hash key and the vocabulary of the first.
        if table.same_codes:
            feature = table.features[0]
        rows = np.empty(codes.size, np.int64)
        if self.config.data.rows_by == "vocabulary":
            from neocpu.ingest.dataset.vocabulary import Vocabulary

            Vocabulary(self.vocabularies[feature]).rows(codes, rows)
        elif self.config.data.rows_by == "code":
            rows[:] = codes % np.uint64(table.rows)
        else:
            from neocpu.kernels.logs.hashing import hash_rows
            from neocpu.kernels.twins.numbers.philox import feature_key

            key = feature_key(self.config.training.seed, feature)
            hash_rows(codes, key, table.rows, rows)
        return rows

    def _codes(self, field: CategoryField, values: Sequence[object]) -> Codes:
        """Codes of raw values, each a single one even where the log has lists of them."""
        from neocpu.ingest.formats.frames import as_frame
        from neocpu.serve.scoring.frames import parsed

        # of a list, one item
        single = replace(field, separator="", weight_separator="", many=False, weights="")
        schema = replace(self.schema.without_labels(), dense=(), categories=(single,))
        frame = as_frame({field.column: values})
        return parsed(frame, schema).features[field.name].codes

    def names(self, feature: str, rows: Sequence[int]) -> dict[int, str | int]:
        """Raw values of rows, as far as they are known: {row: value}."""
        if self.config.data.rows_by != "vocabulary" or not feature:
            return {}
        codes = self.vocabularies[feature]
        field = self.field(feature)
        # row 0 is that of all values outside the vocabulary
        known = {row: value_of(int(codes[row - 1]), field) for row in rows if 0 < row <= codes.size}
        return {row: value for row, value in known.items() if value is not None}


def open_values(path: Path, overrides: Sequence[str] = ()) -> ValueMap:
    """The value map of a checkpoint.

    overrides : of keys of its config.

    Raises CheckpointError for a file that is missing or broken.
    """
    with CheckpointFile(path) as file:
        return ValueMap(path, file.config(overrides), file.data(), file.vocabularies())


def value_of(code: int, field: CategoryField | None) -> str | int | None:
    """The raw value of a code; None where the code is a hash of it, or stands for none."""
    if field is None or code == field.missing:
        return None
    if field.kind == "hex":
        return f"{code:0{field.digits}x}"
    # Two's complement: codes of negative integers have the highest bit.
    return code - (code >> 63 << 64) if field.kind == "int" else None


def as_codes(values: Sequence[object]) -> NDArray[np.uint64]:
    """Whole numbers as codes u64[n]. Raises DataError for anything else."""
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(0, np.uint64)
    if array.dtype.kind not in "iu" or (array.dtype.kind == "i" and array.min() < 0):
        raise DataError("the model knows codes of categories only: give whole numbers from 0")
    return array.astype(np.uint64)
