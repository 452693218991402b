"""Which dataset files stand for raw logs? Converted copies, made once and found again by name.

A copy lies in the cache (`copy_cache.py`), or in the output folder of the run where the cache lacks
room or cannot be written. Its name holds a hash of the sources' paths, sizes and times and of the
options, so that a changed log or option makes a new copy. Copies beside their logs, where older
versions put them, are used too.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from neocpu.core.errors import DataError
from neocpu.ingest.copy_cache import (
    FOLDER,
    SIZE,
    cache_folder,
    has_room,
    is_writable,
    making,
    use,
)
from neocpu.ingest.dataset.convert_options import ConvertOptions, Progress
from neocpu.ingest.formats.files.folders import folder_keys, log_files
from neocpu.ingest.formats.files.kinds import kind_of


class CopyFolders(NamedTuple):
    """Where new copies may lie.

    out : the folder of the run; None: there is none. cache : whether the cache is one, as it is not
    where some rank does not see it.
    """

    out: Path | None = None
    cache: bool = True


class _Group(NamedTuple):
    """Files that become one dataset together; name : of its copy."""

    files: list[Path]
    raw: bool
    name: str


def copy_name(
    paths: Sequence[Path], kind: str, options: ConvertOptions, name: str = "", *, placed: bool
) -> str:
    """File name of the converted copy of these sources.

    It changes with their names, sizes and times, and with the options; placed : with the folders
    that they lie in, too. name : what it begins with; "": the name of the first source.
    """
    stats: list[object] = []
    for path in paths:
        status = path.stat()
        keys = [folder_keys(path)] if folder_keys(path) else []
        where = [str(path.resolve().parent)] if placed else []
        stats.append((path.name, status.st_size, status.st_mtime_ns, *keys, *where))
    key = hashlib.sha256(json.dumps([kind, stats, options.key()]).encode()).hexdigest()[:12]
    return f"{name or paths[0].name}.{key}.converted.h5"


def ensure_dataset(
    paths: Sequence[str | Path],
    kind: str,
    options: ConvertOptions | None = None,
    folders: CopyFolders | None = None,
    progress: Progress | None = None,
    *,
    make: bool = True,
) -> list[Path]:
    """Dataset files for paths that may be raw logs: a raw one is converted once.

    Files of a folder, or of a pattern, become one copy; so do all raw files with `min_count` and
    with a schema that takes numbers from its data, so that they share these. Processes may call
    this at the same time: one makes the copy. Raises DataError as `convert` does, if no folder has
    room, and if there is no copy yet and none shall be made (`make` false).
    """
    options = options or ConvertOptions()
    folders = folders or CopyFolders()
    datasets = []
    for group in _groups(paths, options):
        if not group.raw:
            datasets += group.files
            continue
        copy = _copy(group, kind, options, folders)
        if copy is None and not make:
            raise DataError(f"{group.files[0]}: not converted yet")
        datasets.append(copy or _make(group, kind, options, folders, progress))
    return datasets


def _make(
    group: _Group,
    kind: str,
    options: ConvertOptions,
    folders: CopyFolders,
    progress: Progress | None,
) -> Path:
    """A new copy of these logs, unless another process has made it meanwhile."""
    # most runs find a copy, and need none of the parsers
    from neocpu.ingest.dataset.convert import convert

    copy = _new_copy(group, kind, options, folders)
    with making(copy):
        if not use(copy):
            convert(group.files, copy, kind, options, progress)
            use(copy)
    return copy


def missing_copies(
    paths: Sequence[str | Path],
    kind: str,
    options: ConvertOptions,
    folders: CopyFolders | None = None,
) -> list[tuple[list[Path], Path]]:
    """(raw logs, the copy) of each conversion that `ensure_dataset` would have to make."""
    folders = folders or CopyFolders()
    return [
        (group.files, _new_copy(group, kind, options, folders))
        for group in _groups(paths, options)
        if group.raw and _copy(group, kind, options, folders) is None
    ]


def _groups(paths: Sequence[str | Path], options: ConvertOptions) -> list[_Group]:
    """Groups of files that become one dataset together, and whether they are raw."""
    groups = []
    for path in paths:
        files = log_files(path)
        raw = [kind_of(file) != "hdf5" for file in files]
        if any(raw) and not all(raw):
            raise DataError(f"{path}: some of its files are raw and some are converted")
        if all(raw):
            groups.append(_Group(files, True, Path(path).name.strip("*?[]") or "log"))
        else:
            groups += [_Group([file], False, file.name) for file in files]
    raw_groups = [group for group in groups if group.raw]
    if len(raw_groups) > 1 and (options.min_count or options.unfitted):
        if len(raw_groups) < len(groups):
            reason = "min_count needs" if options.min_count else "fitted numbers need"
            raise DataError(
                f"{reason} all train files raw or all converted; convert them together first"
            )
        return [_Group([file for group in groups for file in group.files], True, groups[0].name)]
    return groups


def _copy(group: _Group, kind: str, options: ConvertOptions, folders: CopyFolders) -> Path | None:
    """The converted copy of these logs, if there is one; it is held then."""
    plain = copy_name(group.files, kind, options, group.name, placed=False)
    copies = [group.files[0].parent / plain]
    if folders.cache:
        copies.append(_cached(group, kind, options))
    if folders.out is not None:
        copies.append(folders.out / plain)
    return next((copy for copy in copies if use(copy)), None)


def _cached(group: _Group, kind: str, options: ConvertOptions) -> Path:
    """Where the copy of these logs is, if it is in the cache."""
    return cache_folder() / copy_name(group.files, kind, options, group.name, placed=True)


def _new_copy(group: _Group, kind: str, options: ConvertOptions, folders: CopyFolders) -> Path:
    """Where the converted copy of these logs will be."""
    from neocpu.ingest.dataset.convert import expected_dataset

    size = expected_dataset(group.files, kind, options).bytes
    if folders.cache and has_room(size):
        return _cached(group, kind, options)
    if folders.out is not None and is_writable(folders.out):
        return folders.out / copy_name(group.files, kind, options, group.name, placed=False)
    raise DataError(
        f"{group.files[0]}: its converted copy, about {size / 2**30:.1f} GiB, has no room in "
        f"{cache_folder()}; give --out DIR, or another folder in {FOLDER}, or a larger size in "
        f"{SIZE}"
    )
