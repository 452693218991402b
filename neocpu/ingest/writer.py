"""How is a dataset written without holding it in memory? Through a part file for each column.

Contiguous HDF5 datasets need their size before the first byte, and a stream does not know its
length. So every column is appended to its own part file in a hidden folder beside the destination;
`close` copies the parts one by one into the HDF5 file (deleting each at once, so that the disk
holds the data little more than once) and renames it into place. A killed conversion leaves no half
file under the final name. The layout is in `neocpu.ingest.dataset_layout`.
"""

import glob
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from neocpu import __version__
from neocpu.errors import DataError
from neocpu.ingest.dataset_layout import (
    BLOCK,
    COMPRESSIONS,
    FORMAT,
    VERSION,
    BagColumn,
    FeatureColumn,
)

COPY = 1 << 20  # elements copied at a time from a part file


def compression_options(compress: str) -> dict[str, Any]:
    """h5py's keyword arguments for `--compress`. Raises DataError where zstd lacks its plugin."""
    if compress == "gzip":
        return {"compression": "gzip", "compression_opts": 4, "shuffle": True}
    if compress == "zstd":
        try:
            import hdf5plugin
        except ImportError as error:
            raise DataError(
                'zstd inside HDF5 needs a plugin: pip install "neocpu[zstd]", or use gzip'
            ) from error
        return {**hdf5plugin.Zstd(clevel=5), "shuffle": True}
    if compress == "none":
        return {}
    raise DataError(f"unknown compression {compress!r}; choose one of {', '.join(COMPRESSIONS)}")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


class _Part:
    """A column on its way: an append-only file of one dtype."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.size = 0
        # `delete` closes it
        self._file: BinaryIO = open(path, "wb", buffering=1 << 16)  # noqa: SIM115

    def append(self, values: ArrayLike) -> None:
        array = np.ascontiguousarray(values, self.dtype).reshape(-1)
        self._file.write(array.data if array.size else b"")
        self.size += array.size

    def blocks(self, length: int) -> Iterator[NDArray[Any]]:
        """All elements of the column, `length` at a time."""
        self._file.close()
        with open(self.path, "rb") as file:
            while (block := np.fromfile(file, self.dtype, length)).size:
                yield block

    def delete(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


class DatasetWriter:
    """Writes one dataset file, any number of samples in bounded memory.

    A context manager: an exception leaves no file.

    path: the final name; the folder must exist. dense: names of the dense columns. features: the
    categorical columns. attributes: what the file should say about itself (`source`, `options`,
    `description`, …): text, numbers, or what JSON can hold; may be changed until `close`. labelled:
    whether samples have labels. Its attribute `rows` is the number of samples so far.

        features = [FeatureColumn("C1"), FeatureColumn("C2", hotness=0)]
        with DatasetWriter("log.h5", ["I1"], features) as writer:
            writer.append(labels, dense, {"C1": codes, "C2": BagColumn(codes, lengths)})

    Raises DataError if the folder is missing or not writable, or the disk is full.
    """

    def __init__(
        self,
        path: str | Path,
        dense: Sequence[str],
        features: Sequence[FeatureColumn],
        *,
        attributes: Mapping[str, Any] | None = None,
        compress: str = "none",
        labelled: bool = True,
    ) -> None:
        self.path = Path(path)
        self.dense = tuple(dense)
        self.features = tuple(features)
        self.attributes: dict[str, Any] = dict(attributes or {})
        self.rows = 0
        self.missing_dense = np.zeros(len(self.dense), np.int64)
        self.missing: dict[str, int] = {feature.name: 0 for feature in self.features}
        self.vocabularies: dict[str, NDArray[Any]] = {}
        # by feature: codes, their counts, and by how much these are too small at most
        self.frequencies: dict[str, tuple[NDArray[Any], NDArray[np.int64], int]] = {}
        self._labelled = labelled
        self._compress = compress
        self._check_columns()
        compression_options(compress)
        if not self.path.parent.is_dir():
            raise DataError(
                f"{self.path}: the folder {self.path.parent} does not exist; create it first"
            )
        self._folder = self.path.with_name(
            f".{self.path.name}.part-{platform.node()}-{os.getpid()}"
        )
        self._remove_leftovers()
        self._finished = False
        try:
            self._folder.mkdir()
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot write into {self.path.parent}: {error.strerror}"
            ) from error
        self._parts: dict[str, _Part] = {"dense": self._part("dense", "float32")}
        if labelled:
            self._parts["labels"] = self._part("labels", "float32")
        for index, feature in enumerate(self.features):
            self._parts[f"codes/{feature.name}"] = self._part(f"codes-{index}", feature.dtype)
            if feature.hotness == 0:
                self._parts[f"lengths/{feature.name}"] = self._part(f"lengths-{index}", "int32")
            if feature.weighted:
                self._parts[f"weights/{feature.name}"] = self._part(f"weights-{index}", "float32")

    def _remove_leftovers(self) -> None:
        """Delete the part files of writers of this path that were killed on this host."""
        start = f".{self.path.name}.part-{platform.node()}-"
        for folder in self.path.parent.glob(f"{glob.escape(start)}*"):
            number = folder.name[len(start) :]
            if number.isdigit() and not _is_running(int(number)):
                shutil.rmtree(folder, ignore_errors=True)

    def _check_columns(self) -> None:
        names = [feature.name for feature in self.features]
        for name in [*names, *self.dense]:
            if not name or "/" in name or name == ".":
                raise DataError(
                    f"{self.path}: {name!r} cannot name a column: names are not empty and have no "
                    "'/'"
                )
        if len({*names}) != len(names) or len({*self.dense}) != len(self.dense):
            raise DataError(
                f"{self.path}: a column name occurs twice among {', '.join([*self.dense, *names])}"
            )
        for feature in self.features:
            if feature.dtype not in ("uint32", "uint64") or feature.hotness < 0:
                raise DataError(
                    f"{self.path}: {feature}: dtype must be uint32 or uint64 and hotness at least 0"
                )

    def _part(self, name: str, dtype: str) -> _Part:
        return _Part(self._folder / name, dtype)

    def append(
        self,
        labels: ArrayLike | None,
        dense: ArrayLike,
        features: Mapping[str, ArrayLike | BagColumn],
        *,
        missing_dense: ArrayLike | None = None,
        missing: Mapping[str, int] | None = None,
    ) -> None:
        """Add n samples: labels [n], dense [n, Nd], features: codes [n] or [n, L], or `BagColumn`.

        missing_dense [Nd] and missing: how many fields of these samples were empty; only counted,
        for the card. Raises DataError if the columns have different numbers of samples.
        """
        values = np.ascontiguousarray(dense, np.float32)
        samples = values.shape[0]
        if values.ndim != 2 or values.shape[1] != len(self.dense):
            raise DataError(
                f"{self.path}: dense has shape {values.shape}, expected (rows, {len(self.dense)})"
            )
        if self._labelled:
            label_values = np.ascontiguousarray(labels, np.float32)
            if label_values.shape != (samples,):
                raise DataError(
                    f"{self.path}: labels have shape {label_values.shape}, expected ({samples},)"
                )
            self._write("labels", label_values)
        self._write("dense", values)
        for feature in self.features:
            if feature.name not in features:
                raise DataError(f"{self.path}: feature {feature.name} is missing from these rows")
            self._append_feature(feature, features[feature.name], samples)
            self.missing[feature.name] += int((missing or {}).get(feature.name, 0))
        if missing_dense is not None:
            self.missing_dense += np.asarray(missing_dense, np.int64)
        self.rows += samples

    def _append_feature(
        self, feature: FeatureColumn, values: ArrayLike | BagColumn, samples: int
    ) -> None:
        bags = values if isinstance(values, BagColumn) else BagColumn(np.asarray(values))
        name = feature.name
        codes = np.asarray(bags.codes)
        if feature.hotness == 0:
            lengths = (
                np.ones(samples, np.int32)
                if bags.lengths is None
                else np.asarray(bags.lengths, np.int32)
            )
            if (
                lengths.shape != (samples,)
                or int(lengths.sum()) != codes.size
                or (samples and int(lengths.min()) < 0)
            ):
                raise DataError(
                    f"{self.path}: feature {name}: lengths and {codes.size} codes do not fit "
                    f"{samples} rows"
                )
            self._write(f"lengths/{name}", lengths)
        elif codes.size != samples * feature.hotness:
            raise DataError(
                f"{self.path}: feature {name}: {codes.size} codes for {samples} rows of "
                f"{feature.hotness}"
            )
        self._write(f"codes/{name}", codes)
        if feature.weighted:
            if bags.weights is None or np.size(bags.weights) != codes.size:
                raise DataError(f"{self.path}: feature {name}: every code needs a weight")
            self._write(f"weights/{name}", bags.weights)

    def _write(self, part: str, values: ArrayLike) -> None:
        try:
            self._parts[part].append(values)
        except OSError as error:
            raise self._disk(error) from error

    def _disk(self, error: Exception) -> DataError:
        free = shutil.disk_usage(self.path.parent).free
        return DataError(
            f"{self.path}: writing failed ({error}); {free >> 20} MiB are free on that disk"
        )

    def close(self) -> None:
        """Lay out the HDF5 file and rename it into place."""
        if self._finished:
            return
        target = self._folder / "dataset.h5"
        try:
            with h5py.File(target, "w", libver="v110", track_order=True) as file:
                self._fill(file)
            with open(target, "rb+") as handle:
                os.fsync(handle.fileno())
            os.replace(target, self.path)
        except (OSError, RuntimeError) as error:  # h5py reports a full disk as either
            raise self._disk(error) from error
        finally:
            self.abort()

    def _fill(self, file: h5py.File) -> None:
        base = {"format": FORMAT, "version": VERSION, "rows": self.rows, "neocpu": __version__}
        for key, value in {**base, **self.attributes}.items():
            file.attrs[key] = value if isinstance(value, str | int | float) else json.dumps(value)
        if self._labelled:
            self._copy(file, "labels", "labels", (self.rows,))
        dense = self._copy(file, "dense", "dense", (self.rows, len(self.dense)))
        dense.attrs["columns"] = json.dumps(self.dense)
        dense.attrs["missing"] = self.missing_dense
        for feature in self.features:
            group = file.create_group(f"features/{feature.name}", track_order=True)
            self._fill_feature(group, feature)

    def _fill_feature(self, group: h5py.Group, feature: FeatureColumn) -> None:
        codes = self._parts[f"codes/{feature.name}"]
        hotness = feature.hotness
        if hotness == 0 and self.rows and codes.size % self.rows == 0 and codes.size:
            lengths = self._parts[f"lengths/{feature.name}"]
            hotness = codes.size // self.rows
            if any(not (block == hotness).all() for block in lengths.blocks(COPY)):
                hotness = 0
        shape = {0: (codes.size,), 1: (self.rows,)}.get(hotness, (self.rows, hotness))
        if hotness == 0:
            self._ragged(group, feature.name)
        self._copy(group, "codes", f"codes/{feature.name}", shape)
        if feature.weighted:
            self._copy(group, "weights", f"weights/{feature.name}", shape)
        group.attrs.update(
            {"hotness": hotness, "kind": feature.kind, "missing": self.missing[feature.name]}
        )
        if feature.name in self.vocabularies:
            group.create_dataset(
                "vocabulary", data=self.vocabularies[feature.name].astype(codes.dtype)
            )
        if feature.name in self.frequencies:
            frequent, counts, short = self.frequencies[feature.name]
            group.create_dataset("frequent", data=frequent.astype(codes.dtype))
            group.create_dataset("frequent_counts", data=counts).attrs["short"] = short

    def _ragged(self, group: h5py.Group, name: str) -> None:
        """Write offsets of every 4,096th sample: at most 4,095 lengths lead from one to any bag."""
        lengths = self._parts[f"lengths/{name}"]
        sums = (
            [np.sum(block, dtype=np.int64) for block in lengths.blocks(BLOCK)]
            if lengths.size
            else []
        )
        group.create_dataset("block_offsets", data=np.cumsum(np.array([0, *sums], np.int64)))
        self._copy(group, "lengths", f"lengths/{name}", (self.rows,))

    def _copy(
        self, group: h5py.Group, name: str, part: str, shape: tuple[int, ...]
    ) -> h5py.Dataset:
        column = self._parts[part]
        options = compression_options(self._compress) if column.size else {}
        if options:
            options["chunks"] = (min(BLOCK, shape[0]), *shape[1:])
        dataset = group.create_dataset(name, shape, column.dtype, **options)
        width = int(np.prod(shape[1:]))
        first = 0
        for block in (
            column.blocks(max(1, COPY // BLOCK // width) * BLOCK * width) if column.size else ()
        ):
            dataset[first : first + block.size // width] = block.reshape(-1, *shape[1:])
            first += block.size // width
        column.delete()
        return dataset

    def abort(self) -> None:
        """Give up: remove everything written so far."""
        for part in self._parts.values():
            part.delete()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._finished = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
