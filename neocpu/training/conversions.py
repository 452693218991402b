"""How do the raw logs of a run become datasets? Once, by its config, with room for them looked at.

A split whose schema takes numbers from data gets those of the train data.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from neocpu.config import Config
from neocpu.errors import ConfigError, DataError
from neocpu.ingest.convert import ConvertOptions, expected_bytes
from neocpu.ingest.copies import ensure_dataset, missing_copies
from neocpu.training.preflight import check_conversions


def convert_options(config: Config, name: str, labelled: bool) -> ConvertOptions:
    """How the raw files of a split are converted."""
    data = config.data
    trained = name.startswith("train")
    makes_vocabulary = trained and data.rows_by == "vocabulary" and not data.vocabulary
    makes_vocabulary = makes_vocabulary and not data.split  # it is that of the train part
    return ConvertOptions(
        dense_transform=data.dense_transform,
        on_error=data.on_error,
        labelled=labelled,
        header=data.header,
        min_count=data.min_count if makes_vocabulary else 0,
        schema=data.schema_source,
        frequencies=config.memory.warm and trained,
    )


def check_disk(
    config: Config,
    sources: dict[str, tuple[str, ...]],
    out: Path,
    tell: Callable[[str], None],
    labelled: bool,
) -> None:
    """Will the converted copies of all splits fit?"""
    kind = config.data.format
    needs = []
    train = _train_copy(config, sources.get("train", ()), out)
    for name, paths in sources.items():
        options = _with_fitted(convert_options(config, name, labelled), name, train)
        for raw_files, copy in missing_copies(paths, kind, options, out):
            needs.append((copy, expected_bytes(raw_files, kind, options)))
    check_conversions(needs, tell)


def _train_copy(config: Config, paths: tuple[str, ...], out: Path) -> Path | None:
    """The converted copy of the train data; None: there is none yet."""
    if not paths:
        return None
    with suppress(DataError):
        options = convert_options(config, "train", True)
        return ensure_dataset(paths, config.data.format, options, out, make=False)[0]
    return None


def _with_fitted(options: ConvertOptions, name: str, train: Path | None) -> ConvertOptions:
    """Options of a split whose schema has the numbers of the train data."""
    return replace(options, fitted=train) if name != "train" and options.unfitted else options


def ensure(
    config: Config,
    name: str,
    paths: tuple[str, ...],
    out: Path,
    tell: Callable[[str], None],
    labelled: bool,
    train: Path | None = None,
) -> list[Path]:
    """Converted files of a split, made where they are missing.

    train : a train file, which has the numbers that a schema takes from data.
    """
    shown: int | None = None  # bytes done when progress was shown last

    def progress(done: int, total: int, samples: int) -> None:
        nonlocal shown
        if shown is None or done - shown > total / 10:
            tell(f"{name}: converting {', '.join(paths)}, once: {100 * done / max(total, 1):.0f} %")
            shown = done

    options = _with_fitted(convert_options(config, name, labelled), name, train)
    if name != "train" and options.unfitted:
        raise ConfigError(
            f"data.{name}: the schema takes numbers from the train data, and there are none"
        )
    files = ensure_dataset(paths, config.data.format, options, out, progress)
    for path, source in zip(files, paths):
        if str(path) != source:
            tell(f"{name}: {source} is read as {path}")
    return files
