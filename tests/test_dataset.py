"""Does a dataset file give back what was written, in any order, over several files, and say what is
wrong with it?
"""

import contextlib
import errno
import itertools
import os
import platform
import shutil
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from sealed_files import edit

from neocpu.core.errors import DataError
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.ingest.formats.files.kinds import kind_of
from tests.jobs import ran

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
        assert file.attrs["format"].decode() == "neocpu-dataset" and file.attrs["rows"] == 30
        assert file["labels"].chunks is None and file["dense"].shape == (30, 2)
        assert file["features/C1/codes"][7] == written[7][2]
        start = file["features/C2/lengths"][:7].sum()
        assert file["features/C2/codes"][start : start + len(written[7][3])].tolist() == list(
            written[7][3]
        )
    data = Dataset(tmp_path / "a.h5")
    assert data.attributes["note"] == ["x", 1]
    assert list(data.attributes) == ["format", "version", "rows", "neocpu", "note"]


def test_columns_are_aligned(tmp_path):
    write(tmp_path / "a.h5", 5000)
    with h5py.File(tmp_path / "a.h5") as file:
        for name in ("labels", "dense", "features/C1/codes", "features/C2/weights"):
            assert file[name].id.get_offset() % 64 == 0


def test_a_nul_in_a_path_is_told(tmp_path):
    for action in (
        lambda: Dataset("a\0b"),
        lambda: kind_of(Path("a\0b")),
        lambda: DatasetWriter(tmp_path / "a\0b", [], []),
    ):
        with pytest.raises(DataError, match=r"a\\x00b': cannot be"):
            action()


def test_the_same_rows_give_the_same_bytes(tmp_path):
    write(tmp_path / "a.h5", 5000, pieces=1)
    time.sleep(1.1)  # HDF5's times are in seconds
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
    done = ran([sys.executable, "-c", "import os; print(os.getpid())"])
    beyond = 1 << 80  # a number that no process has, and of which nothing is known
    dead, living, unknown = (
        tmp_path / f".a.h5.part-{platform.node()}-{pid}"
        for pid in (int(done.stdout), os.getppid(), beyond)
    )
    for part in (dead, living, unknown):
        part.mkdir()
    with DatasetWriter(tmp_path / "a.h5", [], []):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {living.name, unknown.name, "a.h5"}


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "No space left.*MiB are free"), (errno.EFBIG, "ulimit -f")],
)
def test_a_full_disk_is_told(number, remedy, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("neocpu.ingest.dataset.writer.os.fsync", full)
    with (
        pytest.raises(DataError, match=rf"a\.h5: writing failed .*{remedy}"),
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
        edit(broken, change)
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


# ---- damage ----


def taken(path):
    data = Dataset(path)
    return as_tuples(data.take(np.arange(data.rows)))


@pytest.mark.parametrize("compress", ["none", "gzip"])
@pytest.mark.parametrize("name", ["labels", "dense", "C1/codes", "C2/lengths", "C2/weights"])
def test_a_flipped_bit_of_a_column_is_told_with_its_block(tmp_path, compress, name):
    path = tmp_path / "a.h5"
    write(path, 9000, compress=compress)
    name = f"features/{name}" if "/" in name else name
    with h5py.File(path) as file:
        column = file[name]
        if compress == "none":
            place = column.id.get_offset() + 5000 * column.dtype.itemsize * column[:1].size
        else:
            chunk = column.id.get_chunk_info(1)
            place = chunk.byte_offset + chunk.size // 2
    contents = bytearray(path.read_bytes())
    contents[place] ^= 4
    path.write_bytes(contents)
    data = Dataset(path)
    assert data.take(np.array([0, 4095]), ["C1"]).labels.size == 2
    reason = "block 1 of" if compress == "none" else "(block 1 of|nflate|filter)"
    with pytest.raises(
        DataError, match=rf"a\.h5: truncated or damaged.*{reason}.*convert it again"
    ):
        data.take(np.array([0, 4096]))


def test_every_byte_of_a_file_is_covered(tmp_path):
    path = tmp_path / "a.h5"
    written = write(path, 60)
    contents = path.read_bytes()
    assert taken(path) == written
    rng = np.random.default_rng(3)
    for place in rng.choice(len(contents), 300, replace=False):
        changed = bytearray(contents)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with contextlib.suppress(DataError):  # gaps between arrays have no meaning
            assert taken(path) == written


def unsealed(path):
    """The file as neocpu 0.1.0 wrote it: no checksums, no seal, text of variable length."""

    def change(file):
        del file.attrs["sealed"]
        names = [""]
        file.visit(names.append)
        for name in names:
            if name.endswith("_crc32"):
                del file[name]
                continue
            attributes = file[name or "/"].attrs
            for key, value in attributes.items():
                if isinstance(value, bytes):
                    attributes[key] = value.decode()

    edit(path, change, reseal=False)


@pytest.mark.parametrize("compress", ["none", "gzip"])
def test_files_of_older_versions_stay_readable(tmp_path, compress):
    written = write(tmp_path / "a.h5", 9000, compress=compress)
    unsealed(tmp_path / "a.h5")
    assert taken(tmp_path / "a.h5") == written
    assert Dataset(tmp_path / "a.h5").attributes["note"] == ["x", 1]


@pytest.mark.parametrize("lengths", [(3, 2), (3, 3 + (1 << 29)), (3, -1)])
def test_lengths_of_old_files_are_compared_with_their_offsets(tmp_path, lengths):
    path = tmp_path / "a.h5"
    with DatasetWriter(path, [], [FeatureColumn("C", hotness=0)]) as writer:
        bags = BagColumn(np.arange(10), np.array([3, 4, 3], np.int32))
        writer.append([0, 1, 0], np.empty((3, 0)), {"C": bags})
    unsealed(path)
    assert Dataset(path).take(np.array([1])).features["C"].codes.tolist() == [3, 4, 5, 6]

    def change(file):
        file["features/C/lengths"][0] = lengths[1]

    edit(path, change)
    with pytest.raises(DataError, match=r"block 0 of /features/C/lengths.*block_offsets says 10"):
        Dataset(path).take(np.array([1]))


def as_external_link(file):
    del file["labels"]
    file["labels"] = h5py.ExternalLink("other.h5", "/labels")


def retyped(name, dtype):
    def change(file):
        values = file[name][()]
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = values.astype(dtype)
        file[name].attrs.update(attributes)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (as_external_link, "/labels is a link to another place or file"),
        (retyped("features/C1/codes", "float64"), "C1/codes has elements float64, expected uint32"),
        (retyped("labels", "float64"), "/labels has elements float64, expected float32"),
        (retyped("features/C2/lengths", "int64"), "expected int32"),
        (retyped("features/C2/block_offsets", "int32"), "expected int64"),
        (lambda f: f["features/C2/block_offsets"].__setitem__(0, 1), "does not ascend from 0"),
        (lambda f: f["features/C1"].attrs.__setitem__("hotness", -1), "hotness of .*C1 is -1"),
        (lambda f: f["features/C1"].attrs.__setitem__("hotness", 2**40), "hotness of"),
        (lambda f: f["features/C1"].attrs.__delitem__("kind"), "lacks its attribute kind"),
        (lambda f: f.attrs.__setitem__("rows", "many"), "attribute rows of / is str"),
        (lambda f: f["dense"].attrs.__setitem__("columns", "[" * 10**5), "no list of names"),
        (lambda f: f["dense"].attrs.__setitem__("missing", 3), "attribute missing"),
        (lambda f: f.__delitem__("features/C2/lengths"), "it lacks /features/C2/lengths"),
    ],
)
@pytest.mark.parametrize("sealed", [True, False])
def test_other_schemas_are_refused(tmp_path, change, message, sealed):
    path = tmp_path / "a.h5"
    write(path, 60)
    if not sealed:
        unsealed(path)
    edit(path, change)
    with pytest.raises(DataError, match=rf"a\.h5: truncated or damaged.*{message}.*copy it again"):
        Dataset(path)


def test_names_that_are_not_text_are_told(tmp_path):
    path = tmp_path / "a.h5"
    write(path, 60)
    edit(path, lambda file: h5py.h5g.create(file["features"].id, b"\xff"))
    with pytest.raises(DataError, match="/features has an object whose name is not text in UTF-8"):
        Dataset(path)


def test_a_sealed_column_has_checksums(tmp_path):
    path = tmp_path / "a.h5"
    write(path, 60)
    edit(path, lambda file: file.__delitem__("labels_crc32"))
    with pytest.raises(DataError, match="/labels lacks its checksums"):
        Dataset(path)


def test_a_file_that_is_cut_while_it_is_in_use_is_an_error(tmp_path):
    path = tmp_path / "a.h5"
    write(path, 9000)
    data = Dataset(path)
    data.take(np.array([1]))
    os.truncate(path, 1000)
    with pytest.raises(DataError, match=r"it was cut from .* to 1,000 bytes while it was in use"):
        data.take(np.array([8999]))


def test_many_files_need_few_descriptors(tmp_path):
    write(tmp_path / "a.h5", 10)
    program = (
        "import resource, sys, numpy\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))\n"
        "from neocpu.ingest.dataset.dataset import Dataset\n"
        "print(Dataset([sys.argv[1]] * 50).take(numpy.arange(500)).labels.size)\n"
    )
    done = ran([sys.executable, "-c", program, tmp_path / "a.h5"])
    assert done.stdout == "500\n", done.stderr


def test_descriptors_are_given_back(tmp_path):
    write(tmp_path / "a.h5", 10)
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for _ in range(5):
        Dataset(tmp_path / "a.h5")
    after = len(os.listdir("/proc/self/fd")) if before else 0
    assert after <= before + 1


# ---- full disks ----

LIMITED = """
import pathlib, resource, sys
import numpy as np
from neocpu.core.errors import DataError
from neocpu.ingest.dataset.writer import DatasetWriter, FeatureColumn
codes = np.random.default_rng(0).integers(0, 2**32, 9000, np.uint32)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
for limit in map(int, sys.argv[2:]):
    for compress in ("none", "gzip"):
        path = pathlib.Path(sys.argv[1]) / f"{limit}-{compress}.h5"
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
        features = [FeatureColumn("A"), FeatureColumn("B")]
        try:
            with DatasetWriter(path, [], features, compress=compress) as writer:
                writer.append(np.zeros(9000), np.zeros((9000, 0)), {"A": codes, "B": codes})
            print("written")
        except DataError as error:
            print(error)
"""


def test_no_write_of_hdf5_meets_the_end_of_the_disk(tmp_path):
    limits = ["4096", "40000", "60000", "110000", "5000000"]
    command = [sys.executable, "-c", LIMITED, str(tmp_path), *limits]
    done = ran(command)
    assert done.returncode == 0 and not done.stderr, done.stderr
    *lines, plain, compressed = done.stdout.splitlines()
    assert plain == compressed == "written"
    full = [line for line in lines if ".h5: writing failed ([Errno 27] File too large)" in line]
    assert len(full) == len(lines) == 8
    assert {path.name for path in tmp_path.iterdir()} == {"5000000-none.h5", "5000000-gzip.h5"}


def test_a_folder_that_is_gone_is_told(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with (
        pytest.raises(DataError, match=r"a\.h5: writing failed .*the folder .*folder is gone"),
        DatasetWriter(folder / "a.h5", [], [FeatureColumn("C1")]) as writer,
    ):
        writer.append([0], np.empty((1, 0)), {"C1": [7]})
        shutil.rmtree(folder)


# ---- file systems without locks ----


@pytest.mark.parametrize("compress", ["none", "gzip"])
def test_locks_are_neither_needed_nor_taken(tmp_path, monkeypatch, compress):
    fcntl = pytest.importorskip("fcntl")
    opened = []

    class Recorded(h5py.File):
        def __init__(self, name, *arguments, **options):
            opened.append((name, options.get("locking")))
            super().__init__(name, *arguments, **options)

    monkeypatch.setattr(h5py, "File", Recorded)
    path = tmp_path / "a.h5"
    written = write(path, 50, compress=compress)
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert taken(path) == written
    assert opened
    assert all(locking is False for name, locking in opened if isinstance(name, str | os.PathLike))
