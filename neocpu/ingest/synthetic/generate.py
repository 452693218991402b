"""How does a synthetic log become a file? As a dataset, or as a raw TSV (plain or gzip).

`write_dataset` and `write_log` draw and write one block at a time, so memory does not grow with the
log; both return the score of the true probabilities. Converting the raw file gives the same bits as
writing the dataset at once.
"""

import gzip
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO

import numpy as np

from neocpu.core.errors import ConfigError, DataError
from neocpu.core.targets import part_of, remove_parts
from neocpu.core.types import Floats, Ints, Tree
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import BagColumn
from neocpu.ingest.synthetic.law import ABSENT, Block, SyntheticCriteo, Tally, criteo_shape
from neocpu.kernels.logs.synthetic import format_rows
from neocpu.kernels.numbers.elementary import log1p_array

Progress = Callable[[int], None]  # called with the number of samples written so far


def dense_columns(integers: Ints) -> Floats:
    """fl(log1p(max(x, 0))) of integers int64[Nd, n] as float32[n, Nd]; 0 where empty."""
    logs = np.empty(integers.size)
    log1p_array(np.maximum(integers, 0).astype(np.float64).reshape(-1), logs)
    return np.ascontiguousarray(logs.reshape(integers.shape).T.astype(np.float32))


def write_dataset(
    log: SyntheticCriteo,
    path: str | Path,
    first: int,
    samples: int,
    *,
    attributes: Tree | None = None,
    compress: str = "none",
    progress: Progress | None = None,
) -> dict[str, float]:
    """Write samples first .. first + samples - 1 as a dataset; returns the score.

    The attributes of the dataset hold the score too. Raises DataError where the target cannot be
    written or the disk is full.
    """
    file_attributes = {
        "description": (
            "Synthetic log of Criteo's shape with planted clicks; no model can expect "
            "to beat best_logloss."
        ),
        "origin": criteo_shape()["origin"],
        "log": "criteo",
        # as a conversion writes it, so that such files can be used together
        "dense_transform": ["log1p"] * len(log.integer_names),
        "generator": {
            "seed": log.seed,
            "first_row": first,
            "cardinalities": log.cardinalities,
            "hotness": log.hotness,
            **({"reuse": asdict(log.reuse)} if log.reuse else {}),
            **({"sessions": asdict(log.sessions)} if log.sessions else {}),
        },
        **(attributes or {}),
    }
    tally = Tally()
    done = 0
    with DatasetWriter(
        path, log.integer_names, log.features, attributes=file_attributes, compress=compress
    ) as writer:
        for block in log.blocks(first, samples):
            tally.add(block)
            empty_fields = (block.integers == ABSENT).sum(axis=1)
            missing = {name: _missing(bags) for name, bags in block.categories.items()}
            dense = dense_columns(block.integers)
            writer.append(
                block.labels, dense, block.categories, missing_dense=empty_fields, missing=missing
            )
            done += block.labels.size
            if progress is not None:
                progress(done)
        writer.attributes.update(tally.score())
    return tally.score()


def _missing(bags: BagColumn) -> int:
    return int(((bags.codes == 0) if bags.lengths is None else (bags.lengths == 0)).sum())


def write_log(
    log: SyntheticCriteo,
    path: str | Path,
    first: int,
    samples: int,
    *,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Write samples first .. first + samples - 1 as a raw Criteo log; returns the score.

    The log is compressed by gzip where the name ends in .gz. Raises ConfigError for a multi-hot
    log, which that format cannot hold; DataError where the target cannot be written.
    """
    if log.multi_hot:
        raise ConfigError(
            "the raw Criteo format holds one code per category; write a dataset (.h5) for "
            "multi-hot bags"
        )
    path = Path(path)
    remove_parts(path)
    part = part_of(path)
    tally = Tally()
    done = 0
    try:
        with open(part, "wb") as file:
            # No name and no time in the header, so that the same samples give the same file.
            packed = gzip.GzipFile("", "wb", 9, file, mtime=0) if path.suffix == ".gz" else None
            for block in log.blocks(first, samples):
                tally.add(block)
                _write_rows(packed or file, block)
                done += block.labels.size
                if progress is not None:
                    progress(done)
            if packed is not None:
                packed.close()
            file.flush()
            # Before the rename: a name must not appear before its content is on the disk.
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        # After the rename it is gone; after an error nobody wants half a log.
        part.unlink(missing_ok=True)
    return tally.score()


def _write_rows(file: IO[bytes] | gzip.GzipFile, block: Block) -> None:
    codes = np.stack(
        [bags.codes.astype(np.uint32, copy=False) for bags in block.categories.values()]
    )
    samples = block.labels.size
    fields = block.integers.shape[0]
    # The longest that a row can be: label, signed 64-bit integers, 8 hexadecimal digits.
    text = np.empty(samples * (2 + 21 * fields + 9 * codes.shape[0]), np.uint8)
    file.write(text[: format_rows(block.labels, block.integers, codes, text)].data)


def _cannot_write(path: Path, error: OSError) -> DataError:
    if not path.parent.is_dir():
        return DataError(f"{path}: the folder {path.parent} does not exist; create it first")
    free = shutil.disk_usage(path.parent).free
    return DataError(
        f"{path}: cannot be written ({error.strerror or error}); {free >> 20} MiB are free on "
        "that disk"
    )
