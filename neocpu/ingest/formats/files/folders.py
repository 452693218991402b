"""Which files are one log? A file, all files of a folder, or those that a pattern names.

    logs/                     every file in it and below, by name
    logs/part-0000*.csv       those that the pattern fits
    logs/day=2014-10-21/part-0.parquet    has a column "day" too, "2014-10-21" in all rows

What is no log stays out: hidden files, `_SUCCESS` and the like, checksums, configs, and converted
copies of older versions.
"""

import glob
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from neocpu.core.errors import DataError

OTHERS = (".crc", ".toml", ".md", ".converted.h5", ".errors.txt")  # endings of what is no log
NULL_KEY = "__HIVE_DEFAULT_PARTITION__"


def log_files(path: str | Path) -> list[Path]:
    """The files of a log, in the order of their names: the path itself where it is no folder.

    Raises DataError for a folder without any, and a pattern that fits none.
    """
    path = Path(path)
    # os.path: for a name that is too long or has a NUL, whoever opens it says why
    pattern = glob.has_magic(str(path)) and not os.path.exists(path)
    if not pattern and not os.path.isdir(path):
        return [path]
    tops = sorted(map(Path, glob.glob(str(path), recursive=True))) if pattern else [path]
    files = [file for top in tops for file in _below(top)]
    if not files:
        raise DataError(f"{path}: {'no file fits it' if pattern else 'a folder without any log'}")
    return list(dict.fromkeys(files))


def all_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files of several logs, in the order given."""
    return [file for path in paths for file in log_files(path)]


def _below(top: Path) -> list[Path]:
    """The log files in a folder and below, or a file itself."""
    if not top.is_dir():
        return [top]
    return sorted(
        path
        for path in top.rglob("*")
        if path.is_file()
        and not path.name.endswith(OTHERS)
        and not any(part.startswith((".", "_")) for part in path.relative_to(top).parts)
    )


def folder_keys(path: Path) -> dict[str, str]:
    """Columns that the folders of a file name, as Hive and Spark write them: name -> value.

    "" : the value is missing.
    """
    keys = {}
    for part in path.parts[:-1]:
        name, equals, value = part.partition("=")
        if name and equals:
            keys[unquote(name)] = "" if value == NULL_KEY else unquote(value)
    return keys
