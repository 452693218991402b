"""Which rows are scored? All of the data, in order; one that cannot be read has no score.

Raw logs are parsed block by block, as they are scored, and nothing is written: a row keeps its
number, whatever stands in the rows before it.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import ConfigError, DataError
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.formats.fields import Parsed
from neocpu.ingest.formats.files.folders import all_files
from neocpu.ingest.formats.files.kinds import kind_of
from neocpu.ingest.formats.schema import Schema
from neocpu.ingest.formats.sources import open_source
from neocpu.serve.scoring.frames import described, fault_text
from neocpu.serve.scoring.samples import ParsedDataset
from neocpu.serve.scoring.values import ValueMap

BLOCK = 1 << 16  # rows of a converted file that are scored at a time
SUMMED_UP = 3  # faults in a summary


class ScoredBlock(NamedTuple):
    """Neighbouring rows of the data.

    dataset : the samples of those without a fault. rows : how many there are, faulty ones too.
    faults : what is wrong, by row from 0, ascending.
    """

    dataset: Dataset
    rows: int
    faults: dict[int, str]

    def scores(self, predictions: NDArray[np.float32]) -> NDArray[np.float32]:
        """Predictions of the samples as those of the rows, f32[rows]: NaN for a faulty one."""
        if not self.faults:
            return predictions
        scores = np.full(self.rows, np.nan, np.float32)
        good = np.ones(self.rows, bool)
        good[list(self.faults)] = False
        scores[good] = predictions
        return scores


def schema_without_labels(path: Path, values: ValueMap, unlabelled: bool = False) -> Schema:
    """How the rows of a raw log are read to be scored, whatever its labels are.

    unlabelled : it has no label column, which is told from its columns otherwise.

    Raises ConfigError where the schema lacks its fitted numbers.
    """
    schema = values.schema
    if schema.unfitted:
        raise ConfigError(
            f"{values.path}: the schema takes numbers from the train data; name one that holds them"
        )
    if unlabelled or values.lacks_label([str(path)]):
        return schema.without_labels()
    # the label keeps its place among columns that no header names
    return replace(schema, label=None, more_labels=())


def file_rows(
    paths: Sequence[str | Path], values: ValueMap, unlabelled: bool = False
) -> Iterator[ScoredBlock]:
    """The rows of raw logs and converted files, one after the other.

    unlabelled : as of `schema_without_labels`.

    A file that says which columns it has may have no rows, as a table in memory may.

    Raises DataError for a file that cannot be read or has neither, and for a faulty row unless the
    model's config has data.on_error = "skip".
    """
    for path in all_files(paths):
        if kind_of(path) == "hdf5":
            yield from _converted(path, values)
        else:
            yield from _raw(path, values, unlabelled)


def _converted(path: Path, values: ValueMap) -> Iterator[ScoredBlock]:
    """The samples of a converted file; faulty lines were left out when it was made."""
    dataset = Dataset(path)
    values.check_schema(dataset)
    for first in range(0, dataset.rows, BLOCK):
        last = min(first + BLOCK, dataset.rows)
        yield ScoredBlock(dataset.part(first, last), last - first, {})


def _raw(path: Path, values: ValueMap, unlabelled: bool) -> Iterator[ScoredBlock]:
    schema = schema_without_labels(path, values, unlabelled)
    source = open_source(path, schema)
    line = source.lines_before
    for block in source.blocks:
        for fields in block.parts:
            parsed = source.parser.parse_fields(fields)
            where = f"{path}, {source.unit}"
            faults = {
                fault.line: fault.described(f"{where} {line + fault.line + 1}")
                for fault in parsed.faults
            }
            yield _block(parsed, schema, faults, values)
            line += parsed.lines
    if line == source.lines_before and not source.says_columns:
        raise DataError(f"{path}: has no rows")


def parsed_rows(parsed: Parsed, schema: Schema, values: ValueMap) -> ScoredBlock:
    """The rows of a parsed table, faulty ones too. Raises DataError as `file_rows`."""
    return _block(parsed, schema, described(parsed.faults), values)


def _block(parsed: Parsed, schema: Schema, faults: dict[int, str], values: ValueMap) -> ScoredBlock:
    if faults and values.config.data.on_error != "skip":
        raise DataError(
            f"{fault_text(faults)} (with data.on_error=skip such rows have no score; all others "
            "have)"
        )
    return ScoredBlock(ParsedDataset(parsed, schema), parsed.lines, faults)


class FaultCount:
    """How many rows are faulty, and what is wrong with the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []

    def add(self, faults: Mapping[int, str]) -> None:
        """Count faults of rows."""
        self.count += len(faults)
        self._first += itertools.islice(faults.values(), SUMMED_UP - len(self._first))

    def __str__(self) -> str:
        """What is said of them; "" where there are none."""
        if not self.count:
            return ""
        rows = "1 row has" if self.count == 1 else f"{self.count:,} rows have"
        more = "; …" * (self.count > SUMMED_UP)
        return f"{rows} no score: {'; '.join(self._first)}{more}"
