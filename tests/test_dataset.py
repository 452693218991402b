"""Does a dataset file give back what was written, in any order, over several files, and say what is
wrong with it?
"""

import itertools
import os
import platform
import subprocess
import sys

import h5py
import numpy as np
import pytest

from neocpu.errors import DataError
from neocpu.ingest.dataset import Dataset
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.ingest.writer import DatasetWriter

COLUMNS = (
    FeatureColumn("C1"),
    FeatureColumn("C2", hotness=0, dtype="uint64", weighted=True, kind="text"),
    FeatureColumn("C3", hotness=3),
)


def write(path, rows, seed=0, lengths=None, compress="none", pieces=1):
    """A random file; returns its rows as tuples (label, dense, C1, C2, C2's weights, C3)."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, rows) if lengths is None else np.full(rows, lengths)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    labels = rng.integers(0, 2, rows)
    dense = rng.random((rows, 2)).astype(np.float32)
    one = rng.integers(0, 2**32, rows, np.uint32)
    many = rng.integers(0, 2**64, ends[-1], np.uint64)
    weights = rng.random(ends[-1]).astype(np.float32)
    three = rng.integers(0, 9, (rows, 3))
    with DatasetWriter(
        path, ["a", "b"], COLUMNS, attributes={"note": ["x", 1]}, compress=compress
    ) as writer:
        for lo, hi in zip(*[[k * rows // pieces for k in range(pieces + 1)][i:] for i in (0, 1)]):
            bags = BagColumn(
                many[ends[lo] : ends[hi]],
                lengths[lo:hi].astype(np.int32),
                weights[ends[lo] : ends[hi]],
            )
            features = {"C1": one[lo:hi], "C2": bags, "C3": three[lo:hi]}
            counts = {"missing_dense": [hi - lo, 0], "missing": {"C2": hi - lo}}
            writer.append(labels[lo:hi], dense[lo:hi], features, **counts)
    spans = [slice(a, b) for a, b in itertools.pairwise(ends)]
    return [
        (labels[i], tuple(dense[i]), one[i], tuple(many[s]), tuple(weights[s]), tuple(three[i]))
        for i, s in enumerate(spans)
    ]


def as_tuples(rows):
    n = rows.labels.size
    c2 = rows.features["C2"]
    lengths = np.full(n, c2.codes.size // max(n, 1)) if c2.lengths is None else c2.lengths
    ends = np.concatenate([[0], np.cumsum(lengths)])
    spans = [slice(a, b) for a, b in itertools.pairwise(ends)]
    one = rows.features["C1"].codes
    three = rows.features["C3"].codes.reshape(n, 3)
    return [
        (
            rows.labels[i],
            tuple(rows.dense[i]),
            one[i],
            tuple(c2.codes[s]),
            tuple(c2.weights[s]),
            tuple(three[i]),
        )
        for i, s in enumerate(spans)
    ]


@pytest.mark.parametrize("compress", ["none", "gzip", "zstd"])
def test_rows_come_back_in_any_order_from_several_files(tmp_path, compress):
    if compress == "zstd":
        pytest.importorskip("hdf5plugin")
    written = write(tmp_path / "a.h5", 9001, 1, compress=compress, pieces=7)
    written += write(tmp_path / "b.h5", 5, 2, lengths=2, compress=compress)
    written += write(tmp_path / "c.h5", 0, 3, compress=compress) + write(
        tmp_path / "d.h5", 4096, 4, compress=compress
    )
    data = Dataset([tmp_path / f"{name}.h5" for name in "abcd"])
    assert data.rows == len(written) == 13102 and data.features["C2"].hotness == 0
    rng = np.random.default_rng(5)
    mixed = np.concatenate([rng.permutation(data.rows)[:500], [9000, 9001, 9005, 9006, 0, 0]])
    for rows in (mixed, np.arange(4000, 4200), np.array([9003]), np.empty(0, np.int64)):
        assert as_tuples(data.take(rows)) == [written[i] for i in rows]
    assert list(data.take(np.array([3]), ["C1"]).features) == ["C1"]
    with pytest.raises(DataError, match="no feature 'C9'; its features are C1, C2, C3"):
        data.take(np.array([3]), ["C9"])
    assert data.missing == {"C1": 0, "C2": 13102, "C3": 0} and data.missing_dense.tolist() == [
        13102,
        0,
    ]
    codes = np.concatenate(list(data.code_blocks("C2", 1000)))
    assert codes.tolist() == [code for row in written for code in row[3]]
    lengths = np.concatenate(list(data.length_blocks("C2", 1000)))
    assert (
        lengths.tolist() == [len(row[3]) for row in written] and data.lookups("C2") == lengths.sum()
    )


def test_equal_bags_are_stored_as_fixed_ones(tmp_path):
    written = write(tmp_path / "a.h5", 50, lengths=2)
    data = Dataset(tmp_path / "a.h5")
    assert data.features["C2"] == FeatureColumn("C2", "uint64", 2, True, "text")
    assert as_tuples(data.take(np.arange(50))) == written


def test_a_stranger_reads_the_file_with_h5py(tmp_path):
    written = write(tmp_path / "a.h5", 30)
    with h5py.File(tmp_path / "a.h5") as file:
        assert file.attrs["format"] == "neocpu-dataset" and file.attrs["rows"] == 30
        assert file["labels"].chunks is None and file["dense"].shape == (30, 2)
        assert file["features/C1/codes"][7] == written[7][2]
        start = file["features/C2/lengths"][:7].sum()
        assert file["features/C2/codes"][start : start + len(written[7][3])].tolist() == list(
            written[7][3]
        )
    assert Dataset(tmp_path / "a.h5").attributes["note"] == ["x", 1]


def test_the_same_rows_give_the_same_bytes(tmp_path):
    write(tmp_path / "a.h5", 5000, pieces=1)
    write(tmp_path / "b.h5", 5000, pieces=9)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_a_failed_writer_leaves_nothing(tmp_path):
    with (
        pytest.raises(KeyboardInterrupt),
        DatasetWriter(tmp_path / "a.h5", [], [FeatureColumn("C1")]) as writer,
    ):
        writer.append([0], np.empty((1, 0)), {"C1": [7]})
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_writer_go_and_those_of_a_living_one_stay(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    dead, living = (
        tmp_path / f".a.h5.part-{platform.node()}-{pid}" for pid in (int(done.stdout), os.getppid())
    )
    dead.mkdir()
    living.mkdir()
    with DatasetWriter(tmp_path / "a.h5", [], []):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([living.name, "a.h5"])


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("neocpu.ingest.writer.os.fsync", full)
    message = r"a\.h5: writing failed .*No space left.*MiB are free"
    with (
        pytest.raises(DataError, match=message),
        DatasetWriter(tmp_path / "a.h5", ["x"], []) as writer,
    ):
        writer.append([1], [[1]], {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_no_dense_columns_and_no_labels(tmp_path):
    with DatasetWriter(tmp_path / "a.h5", [], [FeatureColumn("C1")], labelled=False) as writer:
        writer.append(None, np.empty((3, 0)), {"C1": [7, 8, 9]})
    data = Dataset(tmp_path / "a.h5")
    rows = data.take(np.array([2, 0]))
    assert not data.labelled and rows.labels.tolist() == [0, 0] and rows.dense.shape == (2, 0)
    assert rows.features["C1"].codes.tolist() == [9, 7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [[1, 2]], {}), "labels have shape"),
        (([0], [[1]], {}), r"dense has shape \(1, 1\)"),
        (([0], [[1, 2]], {"C1": [1]}), "feature C2 is missing"),
        (([0], [[1, 2]], {"C1": [1, 2]}), "feature C1: 2 codes for 1 rows of 1"),
        (
            ([0], [[1, 2]], {"C1": [1], "C2": BagColumn(np.array([1]), np.array([2]))}),
            "feature C2: lengths and 1 codes",
        ),
        (
            ([0], [[1, 2]], {"C1": [1], "C2": BagColumn(np.array([1]), np.array([1]))}),
            "feature C2: every code needs a weight",
        ),
    ],
)
def test_columns_of_different_length_are_refused(tmp_path, arguments, message):
    with (
        pytest.raises(DataError, match=message),
        DatasetWriter(tmp_path / "a.h5", ["a", "b"], COLUMNS) as writer,
    ):
        writer.append(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_bad_names_and_folders_are_refused(tmp_path):
    for dense, features, message in (
        (["a", "a"], [], "occurs twice"),
        (["a/b"], [], "cannot name a column"),
        ([], [FeatureColumn("C", "int8")], "dtype must be"),
    ):
        with pytest.raises(DataError, match=message):
            DatasetWriter(tmp_path / "x.h5", dense, features)
    with pytest.raises(DataError, match="does not exist; create it first"):
        DatasetWriter(tmp_path / "none" / "x.h5", [], [])
    with pytest.raises(DataError, match="choose one of none, gzip, zstd"):
        DatasetWriter(tmp_path / "x.h5", [], [], compress="lzma")


def test_broken_and_foreign_files_are_named_with_a_remedy(tmp_path):
    write(tmp_path / "good.h5", 5000)
    contents = (tmp_path / "good.h5").read_bytes()
    broken = tmp_path / "broken.h5"
    for keep in (len(contents) - 1, len(contents) // 2, 2000, 100):
        broken.write_bytes(contents[:keep])
        with pytest.raises(DataError, match=r"broken\.h5: truncated or damaged.*convert it again"):
            Dataset(broken)
    broken.write_bytes(b"1\t2\t3\n")
    with pytest.raises(DataError, match=r"not an HDF5 file; a raw log must be converted first"):
        Dataset(broken)
    with pytest.raises(DataError, match="no such file"):
        Dataset(tmp_path / "none.h5")
    with h5py.File(broken, "w") as file:
        file["x"] = 1
    with pytest.raises(DataError, match="but not a neocpu dataset"):
        Dataset(broken)
    for change, message in (
        (lambda file: file.attrs.__setitem__("version", 99), "dataset version 99"),
        (lambda file: file.__delitem__("dense"), "truncated or damaged"),
        (lambda file: file.attrs.__setitem__("rows", 4999), "has shape"),
    ):
        broken.write_bytes(contents)
        with h5py.File(broken, "r+") as file:
            change(file)
        with pytest.raises(DataError, match=message):
            Dataset(broken)
    with pytest.raises(DataError, match="no dataset file was given"):
        Dataset([])


def test_files_with_other_columns_do_not_go_together(tmp_path):
    write(tmp_path / "a.h5", 5)
    with DatasetWriter(tmp_path / "b.h5", ["a"], COLUMNS) as writer:
        writer.vocabularies["C1"] = np.array([3], np.uint32)
    with pytest.raises(DataError, match="dense columns differ"):
        Dataset([tmp_path / "a.h5", tmp_path / "b.h5"])
    for name, codes in (("c", [1, 2]), ("d", [2, 1])):
        with DatasetWriter(tmp_path / f"{name}.h5", ["a", "b"], COLUMNS) as writer:
            writer.vocabularies["C1"] = np.array(codes, np.uint32)
    with pytest.raises(DataError, match="feature C1 has another vocabulary"):
        Dataset([tmp_path / "c.h5", tmp_path / "d.h5"])
