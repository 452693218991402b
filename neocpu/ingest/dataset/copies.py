"""Which dataset files stand for raw logs? Converted copies, made once and found again by name.

A copy lies beside its log, or in the output folder of the run if that folder cannot be written or
is that of the installed package. Its
name holds a hash of the sources' names, sizes and times and of the options, so that a changed log
or option makes a new copy.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from neocpu.core.errors import DataError
from neocpu.core.presets import keeps_no_copies
from neocpu.ingest.dataset.convert_options import ConvertOptions, Progress
from neocpu.ingest.formats.files.kinds import kind_of


def copy_name(paths: Sequence[Path], kind: str, options: ConvertOptions) -> str:
    """File name of the converted copy of these sources.

    It changes with their names, sizes and times, and with the options.
    """
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = hashlib.sha256(json.dumps([kind, stats, options.key()]).encode()).hexdigest()[:12]
    return f"{paths[0].name}.{key}.converted.h5"


def ensure_dataset(
    paths: Sequence[str | Path],
    kind: str,
    options: ConvertOptions | None = None,
    out_dir: str | Path | None = None,
    progress: Progress | None = None,
    *,
    make: bool = True,
) -> list[Path]:
    """Dataset files for paths that may be raw logs: a raw one is converted once.

    The copy goes beside the log, or under `out_dir` if that folder cannot be written or is that of
    the installed package. Copies are found again by the source's name, size and time and by the
    options. With `min_count`, and with a schema that takes numbers from its data, several raw files
    become one copy, so that they share these. Only one process may call this at a
    time for the same paths (rank 0). Raises DataError as `convert` does, if neither folder can be
    written, and if there is no copy yet and none shall be made (`make` false).
    """
    options = options or ConvertOptions()
    datasets = []
    for sources, raw in _groups(paths, options):
        if raw:
            copy = _copy(sources, kind, options, out_dir)
            if copy is None and not make:
                raise DataError(f"{sources[0]}: not converted yet")
            if copy is None:
                # most runs find a copy, and need none of the parsers
                from neocpu.ingest.dataset.convert import convert

                copy = _new_copy(sources, kind, options, out_dir)
                convert(sources, copy, kind, options, progress)
            datasets.append(copy)
        else:
            datasets += sources
    return datasets


def missing_copies(
    paths: Sequence[str | Path],
    kind: str,
    options: ConvertOptions,
    out_dir: str | Path | None = None,
) -> list[tuple[list[Path], Path]]:
    """(raw logs, the copy) of each conversion that `ensure_dataset` would have to make."""
    return [
        (sources, _new_copy(sources, kind, options, out_dir))
        for sources, raw in _groups(paths, options)
        if raw and _copy(sources, kind, options, out_dir) is None
    ]


def _groups(paths: Sequence[str | Path], options: ConvertOptions) -> list[tuple[list[Path], bool]]:
    """Groups of files that become one dataset together, and whether they are raw."""
    sources = [Path(path) for path in paths]
    raw = [kind_of(path) != "hdf5" for path in sources]
    if sum(raw) > 1 and (options.min_count or options.unfitted):
        if not all(raw):
            reason = "min_count needs" if options.min_count else "fitted numbers need"
            raise DataError(
                f"{reason} all train files raw or all converted; convert them together first"
            )
        return [(sources, True)]
    return [([path], is_raw) for path, is_raw in zip(sources, raw)]


def _folders(raw: list[Path], out_dir: str | Path | None) -> list[Path]:
    beside = [] if keeps_no_copies(raw[0].parent) else [raw[0].parent]
    return [*beside, *([] if out_dir is None else [Path(out_dir)])]


def _copy(
    raw: list[Path], kind: str, options: ConvertOptions, out_dir: str | Path | None
) -> Path | None:
    """The converted copy of these logs, if there is one."""
    name = copy_name(raw, kind, options)
    return next(
        (folder / name for folder in _folders(raw, out_dir) if (folder / name).exists()), None
    )


def _new_copy(
    raw: list[Path], kind: str, options: ConvertOptions, out_dir: str | Path | None
) -> Path:
    """Where the converted copy of these logs will be."""
    for folder in _folders(raw, out_dir):
        if _writable(folder):
            return folder / copy_name(raw, kind, options)
    raise DataError(
        f"{raw[0]}: its folder cannot be written, so its converted copy needs another; give --out "
        "DIR"
    )


def _writable(folder: Path) -> bool:
    probe = folder / f".neocpu-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True
