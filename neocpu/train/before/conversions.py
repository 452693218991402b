"""How do the raw logs of a run become datasets? Once, by its config, with room for them looked at.

A split whose schema takes numbers from data gets those of the train data.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from neocpu.core.errors import ConfigError, DataError
from neocpu.core.types import Tell
from neocpu.ingest.copy_cache import cache_folder, is_writable
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.dataset.copies import CopyFolders, ensure_dataset, missing_copies
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset_layout import extreme_lines
from neocpu.parallel.transport.comm import Comm
from neocpu.train.before.preflight import check_conversions
from neocpu.train.config.config import Config


def copy_folders(comm: Comm, out: Path) -> CopyFolders:
    """Where the ranks of a run may find converted copies: in the cache, if all see it. Collective.

    out : the folder of the run.
    """
    marker = cache_folder() / f".seen-{os.getpid()}"

    def mark() -> str:
        if comm.size == 1 or not is_writable(marker.parent):
            return ""
        marker.touch()
        return str(marker)

    # hosts may have homes of their own, and the same path on each
    name = comm.on_first_rank(mark)
    hidden = comm.largest(int(bool(name) and not Path(name).exists()))
    if comm.rank == 0 and name:
        marker.unlink(missing_ok=True)
    return CopyFolders(out, cache=not hidden)


def convert_options(config: Config, name: str) -> ConvertOptions:
    """How the raw files of a split are converted."""
    data = config.data
    trained = name.startswith("train")
    makes_vocabulary = trained and data.rows_by == "vocabulary" and not data.vocabulary
    makes_vocabulary = makes_vocabulary and not data.split  # it is that of the train part
    return ConvertOptions(
        dense_transform=data.dense_transform,
        on_error=data.on_error,
        header=data.header,
        min_count=data.min_count if makes_vocabulary else 0,
        schema=data.schema_source,
        # counted while the log is read anyway
        frequencies=config.memory.warm and trained,
    )


def check_disk(
    config: Config, sources: dict[str, tuple[str, ...]], folders: CopyFolders, tell: Tell
) -> None:
    """Will the converted copies of all splits fit?"""
    kind = config.data.format
    needs = []
    first = first_train(sources)
    # which copies are missing depends on the numbers that they were fitted with
    train = _train_copy(config, first, sources.get(first, ()), folders)
    for name, paths in sources.items():
        options = convert_options(config, name)
        if name != first and options.unfitted:
            options = replace(options, fitted=train)
        for raw_files, copy in missing_copies(paths, kind, options, folders):
            from neocpu.ingest.dataset.convert import expected_dataset

            needs.append((copy, expected_dataset(raw_files, kind, options).bytes))
    check_conversions(needs, tell)


def first_train(sources: Iterable[str]) -> str:
    """The split whose data a schema takes its numbers from; "": there is none.

    An online run has several train splits, one for each file: "train 1", "train 2", ….
    """
    return next((name for name in sources if name.partition(" ")[0] == "train"), "")


def _train_copy(
    config: Config, name: str, paths: tuple[str, ...], folders: CopyFolders
) -> Path | None:
    """The converted copy of the train data; None: there is none yet."""
    if not paths:
        return None
    with suppress(DataError):
        options = convert_options(config, name)
        return ensure_dataset(paths, config.data.format, options, folders, make=False)[0]
    return None


def ensure(
    config: Config,
    name: str,
    paths: tuple[str, ...],
    folders: CopyFolders,
    tell: Tell,
    fitted: Path | None,
) -> list[Path]:
    """Converted files of a split, made where they are missing.

    fitted : the dataset with the numbers that the schema takes from data; None: from the train
        data, which these are.
    """
    shown: int | None = None  # bytes done when progress was shown last

    def progress(done: int, total: int, samples: int) -> None:
        nonlocal shown
        # a line for each tenth, however many files there are
        if shown is None or done - shown > total / 10:
            tell(f"{name}: converting {', '.join(paths)}, once: {100 * done / max(total, 1):.0f} %")
            shown = done

    options = convert_options(config, name)
    if fitted is not None and options.unfitted:
        options = replace(options, fitted=fitted)
    elif not first_train([name]) and options.unfitted:
        raise ConfigError(
            f"data.{name}: the schema takes numbers from the train data, and there are none"
        )
    files = ensure_dataset(paths, config.data.format, options, folders, progress)
    for path, source in zip(files, paths):
        if str(path) != source:
            tell(f"{name}: {source} is read as {path}")
    return files


def tell_of(name: str, data: Dataset, sources: Sequence[str], tell: Tell) -> None:
    """Say what the conversion of a split left out, took as missing, or found extreme."""
    for source, counts in zip(sources, data.invalid):
        for column, count in counts.items():
            if count:
                tell(
                    f"{name}: {count:,} texts of column {column!r} of {source} are no numbers "
                    "and count as missing"
                )
    for line in extreme_lines(sources, data.extreme):
        tell(f"warning: {name}: {line}")
    for path, source, count in zip(data.paths, sources, data.skipped):
        if count:
            tell(
                f"{name}: {count:,} malformed lines of {source} were skipped; the first are "
                f"in {path}.errors.txt"
            )
