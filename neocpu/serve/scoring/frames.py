"""How does a table in memory become samples? By the schema of the log, as a file's rows would."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeGuard

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.frames import parse_frame
from neocpu.ingest.formats.parsed import Parsed
from neocpu.ingest.formats.schema import Schema

SHOWN = 10  # problems in a message


def parsed(frame: pl.DataFrame, schema: Schema) -> Parsed:
    """The samples of a polars frame. Raises DataError with all that is wrong with its columns."""
    samples = parse_frame(frame, schema)
    if samples.faults:
        lines = [
            f"row {fault.line}, column {fault.column}: {fault.text!r} {fault.reason}"
            for fault in samples.faults[:SHOWN]
        ]
        if len(samples.faults) > SHOWN:
            lines.append(f"and {len(samples.faults) - SHOWN} more rows")
        raise DataError(f"the table has values that cannot be used: {'; '.join(lines)}")
    return samples


def is_paths(data: object) -> TypeGuard[str | Path | Sequence[str | Path]]:
    """Are data given as files: a path, or a list of paths?"""
    if isinstance(data, str | Path):
        return True
    if not isinstance(data, list | tuple) or not data:
        return False
    return all(isinstance(path, str | Path) for path in data)
