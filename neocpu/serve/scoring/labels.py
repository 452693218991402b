"""Does a raw log have its label column? Told from its columns, before anything is converted.

Published test files lack it: a Criteo log has then 39 columns in place of 40, and a header does not
name it.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

from neocpu.ingest.formats.files.folders import all_files, folder_keys
from neocpu.ingest.formats.files.kinds import kind_of
from neocpu.ingest.formats.readers import comments, first_block
from neocpu.ingest.formats.schema import Schema, as_called, plain_names
from neocpu.ingest.formats.sources import frames_of


def lacks_label(paths: Sequence[str | Path], schema: Schema) -> bool:
    """Is the label the only column that the raw files among these lack?

    schema : of the log with its label. Converted files know themselves. Raises DataError for a file
    that cannot be read.
    """
    if schema.label is None:
        return False
    raw = [path for path in all_files(paths) if kind_of(path) != "hdf5"]
    return bool(raw) and all(_lacks(path, schema, schema.label.column) for path in raw)


def _lacks(path: Path, schema: Schema, label: str) -> bool:
    keys = folder_keys(path)
    file = frames_of(path, schema.without_labels())
    if file is not None:
        return _names_lack([*file.types, *keys], schema, label)
    line = _first_line(path, schema)
    if not line:
        return False
    try:
        fields = schema.split_line(line)
    except (csv.Error, TypeError, ValueError):
        return False  # whoever converts it says what is wrong
    if schema.header and not schema.columns:
        return _names_lack([*fields, *plain_names(fields), *keys], schema, label)
    # Without a header only the number of columns can tell, and only if the label is one of them.
    expected = len(schema.without_labels().columns)
    return label in schema.columns and len(fields) == expected < len(schema.columns)


def _names_lack(names: Sequence[str], schema: Schema, label: str) -> bool:
    """Do named columns have all that the schema uses but the label?

    Parquet files may have the schema's columns under other names, by position.
    """
    names = as_called(names, schema.used)
    if label in names:
        return False
    unlabelled = schema.without_labels()
    complete = set(unlabelled.used) <= set(names)
    return complete or 0 < len(names) == len(unlabelled.columns) < len(schema.columns)


def _first_line(path: Path, schema: Schema) -> str:
    """The first line of a text file behind its comments; "" where there is none."""
    start = first_block(path, 1 << 16, schema.encoding)
    if start is None:
        return ""
    first, _ = comments(start.text, schema.comment)
    # a file from Windows has \r before the \n
    return start.text[first:].tobytes().partition(b"\n")[0].decode("utf-8", "replace").rstrip("\r")
