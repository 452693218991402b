"""Are vocabularies the frequent codes, most frequent first, whatever the order they came in?"""

import numpy as np
import pytest

from neocpu.core.errors import DataError
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.vocabulary import (
    CodeCounter,
    Vocabulary,
    fit_vocabularies,
    read_vocabularies,
)
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_counts_grow_past_any_size_and_do_not_depend_on_order(dtype):
    rng = np.random.default_rng(1)
    codes = (rng.zipf(1.3, 60_000) % 2**31).astype(dtype)
    expected, counts = np.unique(codes, return_counts=True)
    order = np.lexsort((expected, -counts))
    for stream in (codes, rng.permutation(codes)):
        counter = CodeCounter()
        for block in np.array_split(stream, 7):
            counter.add(block)
        by_count = counter.by_count()
        assert np.array_equal(by_count[0], expected[order]) and np.array_equal(
            by_count[1], counts[order]
        )
    assert np.array_equal(counter.frequent(3), expected[order][counts[order] >= 3])
    assert CodeCounter().frequent(1).size == 0


def test_rows_of_a_vocabulary():
    codes = np.array([9, 0, 2**64 - 1, 4], np.uint64)
    out = np.empty(6, np.int64)
    Vocabulary(codes).rows(np.array([4, 5, 0, 9, 2**64 - 1, 2**63], np.uint64), out)
    assert out.tolist() == [4, 0, 2, 1, 3, 0]
    Vocabulary(codes[:0]).rows(np.arange(6, dtype=np.uint32), out)
    assert out.tolist() == [0] * 6


def test_fit_and_read(tmp_path):
    with DatasetWriter(
        tmp_path / "a.h5", [], [FeatureColumn("x"), FeatureColumn("y", "uint64", 2, kind="text")]
    ) as writer:
        writer.append([0, 1, 1], np.empty((3, 0)), {"x": [5, 5, 6], "y": [[1, 2], [2, 2], [3, 1]]})
        writer.vocabularies["x"] = np.array([5], np.uint32)
    fitted = fit_vocabularies(Dataset(tmp_path / "a.h5"), 2)
    assert fitted["x"].tolist() == [5] and fitted["y"].tolist() == [2, 1]
    assert read_vocabularies(tmp_path / "a.h5", {"x": "hex"})["x"].tolist() == [5]
    with pytest.raises(DataError, match="no vocabulary of feature y; it has x"):
        read_vocabularies(tmp_path / "a.h5", {"y": "text"})
    with pytest.raises(DataError, match="codes of feature x are of kind hex, here they are text"):
        read_vocabularies(tmp_path / "a.h5", {"x": "text"})
