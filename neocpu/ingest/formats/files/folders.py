"""Which files are one log? A file, all files of a folder, or those that a pattern names.

    logs/                     every file in it and below, by name
    logs/part-0000*.csv       those that the pattern fits
    logs/day=2014-10-21/part-0.parquet    has a column "day" too, "2014-10-21" in all rows
    s3://logs/day=*/                      a store's, by fsspec (`remote.py`)
    @train.txt                            those that the lines of this file name

What is no log stays out: hidden files, `_SUCCESS` and the like, checksums, configs, files that are
being written, and converted copies of older versions.
"""

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote

from neocpu.core.errors import DataError, told_as
from neocpu.core.paths import is_address

# endings of what is no log; Hadoop marks folders of S3 by files, NVTabular writes a .pbtxt
OTHERS = (".crc", ".toml", ".md", ".converted.h5", ".errors.txt", "_$folder$", ".pbtxt")
UNFINISHED = (".tmp", ".inprogress", "._COPYING_", "~", "#")  # of others, or of editors
NOTES = ("dataset_info.json", "state.json")  # beside what `datasets` of Hugging Face saved
# what makes a folder a table of which some files do not count, or no longer
TABLES = {
    "_delta_log": "Delta Lake table",
    ".hoodie": "Hudi table",
    "_spark_metadata": "sink of Spark's streams",
}
NULL_KEY = "__HIVE_DEFAULT_PARTITION__"


def log_files(path: str | Path, lists: tuple[Path, ...] = ()) -> list[Path]:
    """The files of a log, in the order of their names: the path itself where it is no folder.

    lists : those that led here. Raises DataError for a folder without any, a pattern that fits
    none, a list that leads to itself, and as `is_log` and `fetched` do.
    """
    if is_address(path):
        # most logs are files, which need no libraries of stores
        from neocpu.ingest.formats.files.remote import fetched

        return fetched(path, lambda name: is_log(name, path))
    path = Path(path)
    # os.path: for a name that is too long or has a NUL, whoever opens it says why
    if path.name.startswith("@") and not os.path.exists(path):
        listed = path.with_name(path.name[1:]).resolve()
        if listed in lists:
            raise DataError(f"{path}: a list that names itself; name logs in it")
        return all_files(_listed(path.with_name(path.name[1:])), (*lists, listed))
    pattern = glob.has_magic(str(path)) and not os.path.exists(path)
    if not pattern and not os.path.isdir(path):
        return [path]
    tops = sorted(map(Path, glob.glob(str(path), recursive=True))) if pattern else [path]
    if pattern:  # that may also be meant for what is no log elsewhere
        tops = [top for top in tops if is_log(Path(top.name), path)] or tops
    files = [file for top in tops for file in _below(top)]
    if not files:
        raise DataError(f"{path}: {'no file fits it' if pattern else 'a folder without any log'}")
    return list(dict.fromkeys(files))


def all_files(paths: Iterable[str | Path], lists: tuple[Path, ...] = ()) -> list[Path]:
    """The files of several logs, in the order given; lists : as of `log_files`."""
    return [file for path in paths for file in log_files(path, lists)]


def _below(top: Path) -> list[Path]:
    """The log files in a folder and below, or a file itself."""
    if not top.is_dir():
        return [top]
    return sorted(path for path in _found(top) if is_log(path.relative_to(top), top))


def _found(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """The files in a folder and below, also behind links; a link without a file is named too, so
    that whoever opens it says that a part of the log is missing.

    above : the folders that it is in, where a link that leads back to one ends. Raises DataError.
    """
    real = os.path.realpath(folder)
    if real in above:
        return
    with told_as(DataError, folder, "cannot be read"):
        entries = list(folder.iterdir())
    for path in entries:
        if path.is_dir():
            yield from _found(path, (*above, real))
        elif path.is_file() or not path.exists():
            yield path


def is_log(path: Path, top: str | Path = "") -> bool:
    """Is a file a log, by its name relative to the folder `top`, which is one?

    Raises DataError for a folder of which only a table's own log says which files count.
    """
    for part in path.parts:
        if part in TABLES:
            raise DataError(
                f"{top}: a {TABLES[part]} ({part}), where rows that were replaced or removed may "
                "still have their files; write the rows that count to Parquet, or name each file "
                "that counts in a list (@FILES.txt)"
            )
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    other = path.name in NOTES or path.name.endswith((*OTHERS, *UNFINISHED))
    return not hidden and not other


def _listed(path: Path) -> list[str]:
    """The logs that the lines of a list name, relative to it; comments begin with #."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the list of logs cannot be read ({error})") from error
    names = [name for line in lines if (name := line.strip()) and not name.startswith("#")]
    if not names:
        raise DataError(f"{path}: the list names no log")
    return [name if is_address(name) else os.path.join(path.parent, name) for name in names]


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
