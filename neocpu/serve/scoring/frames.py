"""How does a table in memory become samples? By the schema of the log, as a file's rows would."""

from collections.abc import Mapping, Sequence

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.fields import Fault, Parsed
from neocpu.ingest.formats.frames import parse_frame
from neocpu.ingest.formats.schema import Schema

SHOWN = 10  # faults in a message


def parsed(frame: pl.DataFrame, schema: Schema) -> Parsed:
    """The samples of a polars frame. Raises DataError with all that is wrong with its columns."""
    samples = parse_frame(frame, schema)
    if samples.faults:
        raise DataError(fault_text(described(samples.faults)))
    return samples


def described(faults: Sequence[Fault]) -> dict[int, str]:
    """What is wrong with rows of a table in memory, by their numbers from 0."""
    return {fault.line: fault.described(f"row {fault.line}") for fault in faults}


def fault_text(faults: Mapping[int, str]) -> str:
    """What is said of faults of rows."""
    lines = list(faults.values())[:SHOWN]
    if len(faults) > SHOWN:
        lines.append(f"and {len(faults) - SHOWN} more rows")
    return f"the data have values that cannot be used: {'; '.join(lines)}"
