"""Are the rows that exist those that were made, without a look at all that could be?"""

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neocpu.parallel.sharding.plan import Shard
from neocpu.tables.embedding.changes import PAGE, marked, pages_of
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec

HUGE = 9 * 10**11


@given(data=st.data(), rows=st.integers(1, 6 * PAGE))
def test_marked_rows_are_those_of_a_look_at_all(data: st.DataObject, rows: int) -> None:
    marks = np.zeros(pages_of(rows) * PAGE, np.uint8)
    marks[data.draw(st.lists(st.integers(0, rows - 1)))] = data.draw(st.sampled_from([1, 3]))
    pages = np.flatnonzero(marks.reshape(-1, PAGE).any(axis=1))
    first, end = sorted(data.draw(st.tuples(st.integers(0, rows), st.integers(0, rows))))
    expected = np.flatnonzero(marks[first:end]) + first
    np.testing.assert_array_equal(marked(marks, pages, first, end), expected)


def test_rows_of_a_table_of_900_billion_are_listed_at_once() -> None:
    tables = [TableSpec("small", 10, 4, ("a",)), TableSpec("huge", HUGE, 4, ("b",))]
    shards = [Shard(0, (0, 10), (0, 4), 0), Shard(1, (0, HUGE), (0, 4), 0)]
    tbe = TableBatchedEmbedding(tables, shards, SparseOptimizer(), 1, huge=False)
    rows = np.array([0, 5, PAGE - 11, PAGE, HUGE // 2, HUGE - 1])
    tbe.load_rows(1, rows, tbe.initial(1, rows))
    tbe.load_rows(0, np.array([9]), {})
    tbe.changes.track()
    tbe.changes.note_rows(1, rows[2:4])
    begun = time.process_time()
    np.testing.assert_array_equal(tbe.existing(1, 0, HUGE), rows)
    np.testing.assert_array_equal(tbe.existing(1, 1, HUGE - 1), rows[1:-1])
    np.testing.assert_array_equal(tbe.existing(0, 0, 10), [9])
    np.testing.assert_array_equal(tbe.changes.rows(1, tbe.existing), rows[2:4])
    tbe.changes.clear(tbe.existing)
    assert not tbe.changes.rows(1, tbe.existing).size
    assert time.process_time() - begun < 5  # a look at all takes minutes
