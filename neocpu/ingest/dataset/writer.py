"""How is a dataset written without holding it in memory? Through a part file for each column.

Contiguous HDF5 datasets need their size before the first byte, and a stream does not know its
length. So every column is appended to its own part file in a hidden folder beside the destination;
`close` copies the parts one by one into the HDF5 file (`neocpu.ingest.dataset.assembly`; deleting
each at once, so that the disk holds the data little more than once) and renames it into place. A
killed conversion leaves no half file under the final name. The layout is in
`neocpu.ingest.dataset_layout`.
"""

import errno
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from neocpu import __version__
from neocpu.core.errors import REMEDIES, DataError
from neocpu.core.types import Elements, Ints, Tree
from neocpu.ingest.dataset.assembly import COPY, Assembly, PartFile, PartFolder, compression_options
from neocpu.ingest.dataset_layout import BLOCK, FORMAT, VERSION, BagColumn, FeatureColumn


class DatasetWriter:
    """Writes one dataset file, any number of samples in bounded memory.

    A context manager: an exception leaves no file.

    path : the final name; the folder must exist.
    dense : names of the dense columns.
    features : the categorical columns.
    attributes : what the file should say about itself (`source`, `options`, `description`, …):
        text, numbers, or what JSON can hold.
    compress : none, gzip or zstd.
    labelled : whether samples have labels.
    labels : names of the labels, where they have some; the first are `labels`.

    Until `close`, `attributes`, `vocabularies`, `frequencies` and `schema` (the tree of the schema
    that samples were read by) may be changed; `rows` is the number of samples so far.

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
        attributes: Mapping[str, object] | None = None,
        compress: str = "none",
        labelled: bool = True,
        labels: Sequence[str] = (),
    ) -> None:
        self.path = Path(path)
        self.dense = tuple(dense)
        self.features = tuple(features)
        self.attributes: dict[str, object] = dict(attributes or {})
        self.rows = 0
        self.missing_dense = np.zeros(len(self.dense), np.int64)
        self.missing: dict[str, int] = {feature.name: 0 for feature in self.features}
        self.vocabularies: dict[str, Elements] = {}
        # by feature: codes, their counts, and by how much these are too small at most
        self.frequencies: dict[str, tuple[Elements, Ints, int]] = {}
        self._labelled = labelled
        self._labels = tuple(labels) if labelled else ()
        self._least = [float("inf")] * len(self._labels)
        self._most = [float("-inf")] * len(self._labels)
        self.schema: Tree | None = None
        self._compress = compress
        self._check_columns()
        compression_options(compress)
        if not self.path.parent.is_dir():
            raise DataError(
                f"{self.path}: the folder {self.path.parent} does not exist; create it first"
            )
        self._finished = False
        try:
            self._folder = PartFolder(self.path)
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot write into {self.path.parent}: {error.strerror}"
            ) from error
        except ValueError as error:  # a NUL in the path
            raise DataError(f"{str(self.path)!r}: cannot be written: {error}") from error
        try:
            self._parts = self._make_parts()
        except OSError as error:
            self._folder.delete()
            raise self._disk(error) from error

    def _make_parts(self) -> dict[str, PartFile]:
        """An empty part file of each column. Raises OSError."""
        parts = {"dense": self._folder.part("dense", "float32")}
        if self._labelled:
            parts["labels"] = self._folder.part("labels", "float32")
        for index, name in enumerate(self._labels[1:]):
            parts[f"more_labels/{name}"] = self._folder.part(f"more-labels-{index}", "float32")
        for index, feature in enumerate(self.features):
            name = feature.name
            parts[f"codes/{name}"] = self._folder.part(f"codes-{index}", feature.dtype)
            if feature.hotness == 0:
                parts[f"lengths/{name}"] = self._folder.part(f"lengths-{index}", "int32")
            if feature.weighted:
                parts[f"weights/{name}"] = self._folder.part(f"weights-{index}", "float32")
        return parts

    def _check_columns(self) -> None:
        names = [feature.name for feature in self.features]
        for name in [*names, *self.dense, *self._labels]:
            if not name or name == "." or "/" in name or "\0" in name or not _is_text(name):
                raise DataError(
                    f"{self.path}: {name!r} cannot name a column: names are text, not empty, and "
                    "have no '/'"
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

    def append(
        self,
        labels: ArrayLike | None,
        dense: ArrayLike,
        features: Mapping[str, ArrayLike | BagColumn],
        *,
        missing_dense: ArrayLike | None = None,
        missing: Mapping[str, int] | None = None,
        more_labels: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Add n samples: labels [n], dense [n, Nd], features: codes [n] or [n, L], or `BagColumn`.

        more_labels : [n] by name, of all labels but the first.
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
            self._append_labels(labels, more_labels or {}, samples)
        self._write("dense", values)
        for feature in self.features:
            if feature.name not in features:
                raise DataError(f"{self.path}: feature {feature.name} is missing from these rows")
            self._append_feature(feature, features[feature.name], samples)
            self.missing[feature.name] += int((missing or {}).get(feature.name, 0))
        if missing_dense is not None:
            self.missing_dense += np.asarray(missing_dense, np.int64)
        self.rows += samples

    def _append_labels(
        self, labels: ArrayLike | None, more_labels: Mapping[str, ArrayLike], samples: int
    ) -> None:
        if missing := [name for name in self._labels[1:] if name not in more_labels]:
            raise DataError(f"{self.path}: label {missing[0]} is missing from these rows")
        columns = {"labels": labels}
        columns |= {f"more_labels/{name}": more_labels[name] for name in self._labels[1:]}
        for index, (part, column) in enumerate(columns.items()):
            values = np.ascontiguousarray(column, np.float32)
            if values.shape != (samples,):
                raise DataError(
                    f"{self.path}: {part} have shape {values.shape}, expected ({samples},)"
                )
            self._write(part, values)
            if self._labels and samples:
                self._least[index] = min(self._least[index], float(values.min()))
                self._most[index] = max(self._most[index], float(values.max()))

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
        number = getattr(error, "errno", None)
        try:
            free = f"{shutil.disk_usage(self.path.parent).free >> 20} MiB are free on that disk"
        except OSError:
            free = f"the folder {self.path.parent} is gone"
        if number == errno.EFBIG:  # whatever is free
            free = REMEDIES[number]
        return DataError(f"{self.path}: writing failed ({error}); {free}")

    def close(self) -> None:
        """Lay out the HDF5 file and rename it into place."""
        if self._finished:
            return
        target = self._folder.path / "dataset.h5"
        try:
            with Assembly(target, self._compress) as file:
                self._fill(file)
                file.finish()
            os.replace(target, self.path)
        except (OSError, RuntimeError) as error:  # h5py reports a full disk as either
            raise self._disk(error) from error
        finally:
            self.abort()

    def _fill(self, file: Assembly) -> None:
        base = {"format": FORMAT, "version": VERSION, "rows": self.rows, "neocpu": __version__}
        for key, value in {**base, **self.attributes}.items():
            plain = isinstance(value, str | int | float)
            file.set("", {key: value if plain else json.dumps(value)})
        if self._labelled:
            file.column("labels", self._parts["labels"], (self.rows,))
        if self._labels:
            ranges = zip(self._labels, self._least, self._most)
            file.set("", {"labels": json.dumps([list(each) for each in ranges])})
        if self._labels[1:]:
            file.group("more_labels")
        for name in self._labels[1:]:
            file.column(f"more_labels/{name}", self._parts[f"more_labels/{name}"], (self.rows,))
        if self.schema is not None:
            text = json.dumps(self.schema, default=str).encode()
            file.put("schema", np.frombuffer(text, np.uint8))
        file.column("dense", self._parts["dense"], (self.rows, len(self.dense)))
        file.set("dense", {"columns": json.dumps(self.dense), "missing": self.missing_dense})
        if self.features:
            file.group("features")
        for feature in self.features:
            self._fill_feature(file, feature)

    def _fill_feature(self, file: Assembly, feature: FeatureColumn) -> None:
        name = feature.name
        group = f"features/{name}"
        codes = self._parts[f"codes/{name}"]
        hotness = feature.hotness or self._common_length(name, codes.size)
        shape = {0: (codes.size,), 1: (self.rows,)}.get(hotness, (self.rows, hotness))
        file.group(group)
        if hotness == 0:
            lengths = self._parts[f"lengths/{name}"]
            file.put(f"{group}/block_offsets", _block_offsets(lengths))
            file.column(f"{group}/lengths", lengths, (self.rows,))
        file.column(f"{group}/codes", codes, shape)
        if feature.weighted:
            file.column(f"{group}/weights", self._parts[f"weights/{name}"], shape)
        file.set(group, {"hotness": hotness, "kind": feature.kind, "missing": self.missing[name]})
        if name in self.vocabularies:
            file.put(f"{group}/vocabulary", self.vocabularies[name].astype(codes.dtype))
        if name in self.frequencies:
            frequent, counts, short = self.frequencies[name]
            file.put(f"{group}/frequent", frequent.astype(codes.dtype))
            file.put(f"{group}/frequent_counts", counts)
            file.set(f"{group}/frequent_counts", {"short": short})

    def _common_length(self, name: str, codes: int) -> int:
        """The length of all bags of a ragged feature; 0 if they differ, or are all empty."""
        if not self.rows or not codes or codes % self.rows:
            return 0
        common = codes // self.rows
        blocks = self._parts[f"lengths/{name}"].blocks(COPY)
        return common if all((block == common).all() for block in blocks) else 0

    def abort(self) -> None:
        """Give up: remove everything written so far."""
        self._folder.delete()
        self._finished = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _block_offsets(lengths: PartFile) -> Ints:
    """Codes before every 4,096th sample: at most 4,095 lengths lead from one to any bag."""
    blocks = lengths.blocks(BLOCK) if lengths.size else ()
    sums = [np.sum(block, dtype=np.int64) for block in blocks]
    return np.cumsum(np.array([0, *sums], np.int64))


def _is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
