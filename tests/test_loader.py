"""Does the loader deal every sample exactly once, the same way for any ranks, and map every code to
the norm's row?
"""

import threading
from dataclasses import replace

import numpy as np
import pytest

from neocpu.core.errors import DataError
from neocpu.core.trees import rank_samples
from neocpu.ingest import loader as module
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.ingest.epoch_order import EpochOrder
from neocpu.ingest.loader import BatchShare, Loader, Needs, Reading
from neocpu.kernels.twins.numbers.philox import fnv1a64, splitmix64, tensor_key, words_at
from neocpu.tables.specs.specs import TableSpec

TABLES = (
    TableSpec("t0", 1000, 4, ("one", "two")),
    TableSpec("t1", 7, 4, ("one",), weighted=True),
)


def make(path, rows, first=0, weighted=True, vocabulary=None):
    """Row i: label i % 2, dense (i, -i), feature one: i % 3 codes (weights i), feature two: the
    code i.
    """
    columns = [FeatureColumn("one", "uint64", 0, weighted), FeatureColumn("two")]
    with DatasetWriter(path, ["a", "b"], columns) as writer:
        writer.vocabularies |= vocabulary or {}
        ids = np.arange(first, first + rows)
        lengths = (ids % 3).astype(np.int32)
        codes = np.repeat(ids, lengths) + (1 << 40)
        weights = np.repeat(ids, lengths).astype(np.float32) if weighted else None
        dense = np.stack([ids, -ids], axis=1)
        writer.append(ids % 2, dense, {"one": BagColumn(codes, lengths, weights), "two": ids})
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return [
        make(folder / "a.h5", 90_001),
        make(folder / "b.h5", 1, 90_001),
        make(folder / "c.h5", 45_998, 90_002),
    ]


def plain_order(samples, seed, epoch):
    """The order of an epoch as its definition reads."""
    blocks = -(-samples // 4096)
    words = words_at(tensor_key(seed, 3, "samples"), np.arange(blocks), np.zeros(1, int), epoch)[
        :, 0
    ]
    order = np.argsort(words, kind="stable")
    windows = []
    for window in range(0, blocks, 16):
        inside = np.concatenate(
            [
                np.arange(b * 4096, min(samples, b * 4096 + 4096))
                for b in order[window : window + 16]
            ]
        )
        positions = np.arange(inside.size) + sum(len(part) for part in windows)
        words = words_at(tensor_key(seed, 4, "samples"), positions, np.zeros(1, int), epoch)[:, 0]
        windows.append(inside[np.argsort(words, kind="stable")])
    return np.concatenate(windows)


@pytest.mark.parametrize("samples", [1, 4095, 4096, 65_536, 136_000])
def test_order_is_the_defined_permutation(samples):
    order = EpochOrder(samples, 5, 2)
    epoch = order.samples(0, samples)
    assert np.array_equal(epoch, plain_order(samples, 5, 2))
    assert np.array_equal(np.sort(epoch), np.arange(samples))
    for first, last in (
        (0, 0),
        (samples - 1, samples),
        (samples // 3, samples // 2),
        (max(0, samples - 70_000), samples),
    ):
        assert np.array_equal(EpochOrder(samples, 5, 2).samples(first, last), epoch[first:last])
    assert samples < 9 or not np.array_equal(EpochOrder(samples, 5, 3).samples(0, samples), epoch)
    assert np.array_equal(
        EpochOrder(samples, 5, 2, shuffle=False).samples(0, samples), np.arange(samples)
    )


def test_a_window_holds_sixteen_blocks():
    epoch = EpochOrder(40 * 4096, 1, 0).samples(0, 40 * 4096)
    for window in range(3):
        assert (
            np.unique(epoch[window * 65_536 : (window + 1) * 65_536] // 4096).size
            == (16, 16, 8)[window]
        )


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_share_out_the_batches_of_one_rank(files, shuffle):
    data = Dataset(files)
    reading = Reading(seed=3, shuffle=shuffle, depth=0)
    batches = list(Loader(data, TABLES, BatchShare(50_000), reading).batches(1))
    assert [batch.samples for batch in batches] == [50_000, 50_000, 36_000] and [
        b.step for b in batches
    ] == [0, 1, 2]
    seen = np.concatenate([batch.dense[:, 0] for batch in batches]).astype(np.int64)
    assert (
        np.array_equal(np.sort(seen), np.arange(136_000))
        and np.array_equal(seen, np.sort(seen)) != shuffle
    )
    for ranks in (3, 20):
        parts = [
            list(Loader(data, TABLES, share, reading).batches(1, 1))
            for share in (BatchShare(50_000, rank=rank, ranks=ranks) for rank in range(ranks))
        ]
        for step in (1, 2):
            batch = batches[step]
            cuts = np.cumsum([0, *(part[step - 1].labels.size for part in parts)])
            for rank, part in enumerate(parts):
                local = part[step - 1]
                low, high = rank_samples(rank, ranks, batch.samples, 16)
                assert (cuts[rank], cuts[rank + 1]) == (
                    low,
                    high,
                ) and local.first == batch.first + low
                assert np.array_equal(local.dense, batch.dense[low:high]) and np.array_equal(
                    local.labels, batch.labels[low:high]
                )
                assert np.array_equal(local.sparse.lengths, batch.sparse.lengths[:, low:high])
                local.sparse.check()
                for key in range(3):
                    bags = slice(
                        *batch.sparse.offsets[
                            [key * batch.samples + low, key * batch.samples + high]
                        ]
                    )
                    local_bags = slice(
                        *local.sparse.offsets[[key * (high - low), (key + 1) * (high - low)]]
                    )
                    assert np.array_equal(
                        local.sparse.values[local_bags], batch.sparse.values[bags]
                    )
                    assert np.array_equal(
                        local.sparse.weights[local_bags], batch.sparse.weights[bags]
                    )


def test_rows_follow_the_norm_and_weights_their_table(files):
    share = BatchShare(8)
    batch = next(Loader(files[0], TABLES, share, Reading(seed=-9, depth=0)).batches())
    assert batch.sparse.keys == ("one@t0", "two", "one@t1") and batch.dense.dtype == np.float32
    ids = np.arange(8)
    many = np.repeat(ids, ids % 3)

    def row(feature, code, rows):
        return splitmix64(splitmix64((-9) % 2**64 ^ fnv1a64(feature)) ^ code) % rows

    expected = [row("one", int(i) + 2**40, 1000) for i in many] + [
        row("two", int(i), 1000) for i in ids
    ]
    expected += [row("one", int(i) + 2**40, 7) for i in many]
    assert batch.sparse.values.tolist() == expected
    assert batch.sparse.lengths.tolist() == [(ids % 3).tolist(), [1] * 8, (ids % 3).tolist()]
    assert batch.sparse.weights.tolist() == [1] * (many.size + 8) + many.tolist()
    by_code = Loader(files[0], TABLES, share, Reading(rows_by="code", depth=0))
    batch = next(by_code.batches())
    assert batch.sparse.values.tolist() == [
        *((many + 2**40) % 1000).tolist(),
        *ids.tolist(),
        *((many + 2**40) % 7).tolist(),
    ]
    plain = next(Loader(files[0], TABLES[:1], share, Reading(depth=0)).batches())
    assert plain.sparse.weights is None and plain.sparse.keys == ("one", "two")


def test_rows_by_vocabulary(tmp_path):
    one = np.array([2**40 + 5, 2**40 + 1], np.uint64)
    two = np.array([7, 0, 3], np.uint32)
    path = make(tmp_path / "a.h5", 9, vocabulary={"one": one, "two": two})
    tables = (TableSpec("t0", 4, 4, ("one", "two")), TableSpec("t1", 3, 4, ("one",)))
    share = BatchShare(9)
    reading = Reading(rows_by="vocabulary", depth=0)
    batch = next(Loader(path, tables, share, reading).batches())
    known = {5: 1, 1: 2}
    many = [known.get(i, 0) for i in range(9) for _ in range(i % 3)]
    assert batch.sparse.values.tolist() == [*many, 2, 0, 0, 3, 0, 0, 0, 1, 0, *many]
    raw = make(tmp_path / "b.h5", 9)
    vocabularies = Dataset(path).vocabularies
    with_vocabularies = replace(reading, vocabularies=vocabularies)
    batch_of_raw = next(Loader(raw, tables, share, with_vocabularies).batches())
    assert np.array_equal(batch_of_raw.sparse.values, batch.sparse.values)
    with pytest.raises(
        DataError,
        match=r"table t1 has 2 rows, but the vocabulary of feature one needs 3 .*set its rows to 3",
    ):
        Loader(path, (TableSpec("t1", 2, 4, ("one",)),), share, reading)
    with pytest.raises(
        DataError, match="no vocabulary of feature one; convert the train file with --min-count N"
    ):
        Loader(raw, tables, share, reading)


def test_what_the_data_lack_is_named(files, tmp_path):
    share = BatchShare(4)
    for tables, reading, needs, message in (
        (
            (TableSpec("x", 9, 4, ("C1",)),),
            None,
            None,
            r"no feature 'C1' \(table x\); its features are one, two",
        ),
        (
            (TableSpec("x", 9, 4, ("two",), weighted=True),),
            None,
            None,
            "feature two has no weights, but table x is weighted",
        ),
        (TABLES, None, Needs(dense=13), r"2 dense columns \(a, b\), but the model takes 13"),
        (TABLES, Reading(rows_by="magic"), None, "choose one of hash, vocabulary"),
    ):
        with pytest.raises(DataError, match=message):
            Loader(files[0], tables, share, reading, needs)
    with DatasetWriter(tmp_path / "x.h5", [], [FeatureColumn("two")], labelled=False) as writer:
        writer.append(None, np.empty((2, 0)), {"two": [1, 2]})
    tables = (TableSpec("x", 9, 4, ("two",)),)
    with pytest.raises(DataError, match="has no labels; it can be scored"):
        Loader(tmp_path / "x.h5", tables, share)
    batch = next(Loader(tmp_path / "x.h5", tables, share, None, Needs(labelled=False)).batches())
    assert batch.labels.tolist() == [0, 0] and batch.samples == 2
    with DatasetWriter(tmp_path / "y.h5", [], [FeatureColumn("two")]):
        pass
    with pytest.raises(DataError, match="has no rows"):
        Loader(tmp_path / "y.h5", tables, share)


def test_reading_ahead_gives_the_same_and_ends_its_thread(files, monkeypatch):
    def of(depth):
        reading = Reading(seed=1, shuffle=True, depth=depth)
        return Loader(files[0], TABLES, BatchShare(9000), reading)

    for ahead, plain in zip(of(2).batches(), of(0).batches(), strict=True):
        assert np.array_equal(ahead.sparse.values, plain.sparse.values) and np.array_equal(
            ahead.dense, plain.dense
        )
    batches = of(2).batches()
    next(batches)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "neocpu-read-ahead"]
    loader = of(2)
    monkeypatch.setattr(loader.dataset, "take", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(loader.batches())


def test_compressed_files_give_the_same_batches(files, tmp_path):
    data = Dataset(files[0])
    rows = data.take(np.arange(20_000))
    columns = list(data.features.values())
    for name in ("none", "gzip"):
        with DatasetWriter(
            tmp_path / f"{name}.h5", data.dense_columns, columns, compress=name
        ) as writer:
            writer.append(rows.labels, rows.dense, rows.features)
    reading = Reading(seed=1, shuffle=True, depth=1)
    one, two = (
        Loader(tmp_path / f"{name}.h5", TABLES, BatchShare(3000), reading).batches(4)
        for name in ("none", "gzip")
    )
    for a, b in zip(one, two, strict=True):
        assert np.array_equal(a.sparse.values, b.sparse.values) and np.array_equal(a.dense, b.dense)


def test_warm_up_needs_no_data():
    module.warm_up_reading()
