"""Are the rows of a data frame the rows of a file? The same codes, numbers and faults."""

import numpy as np
import pytest

from neocpu.core.errors import DataError
from neocpu.ingest.formats.frames import as_frame, parse_frame
from neocpu.ingest.formats.schema import CategoryField, DenseField, LabelField, Schema
from neocpu.kernels.twins.numbers.philox import fnv1a64

polars = pytest.importorskip("polars")

SCHEMA = Schema(
    "table",
    LabelField("y"),
    (DenseField("price", "price", "float", "none"),),
    (
        CategoryField("site", "site"),
        CategoryField("id", "id", "int"),
        CategoryField("tags", "tags", separator="|"),
    ),
)
DATA = {
    "y": [1, 0, 1],
    "price": [1.5, None, 2.0],
    "site": ["a\nb", None, 'c,"\x1f'],
    "id": [3, None, 5],
    "tags": [["a", "b"], None, ["c", None]],
}


def frames():
    """The same rows in every form that is read."""
    frame = polars.DataFrame(DATA)
    yield frame
    yield frame.lazy()
    yield DATA
    yield {name: np.array([*values, None], object)[:-1] for name, values in DATA.items()}
    pandas = pytest.importorskip("pandas")
    yield pandas.DataFrame(DATA)
    pytest.importorskip("pyarrow")
    yield frame.to_arrow()
    yield frame.with_columns(polars.col("site").cast(polars.Categorical))


def test_every_form_has_the_same_codes():
    for data in frames():
        parsed = parse_frame(as_frame(data), SCHEMA)
        assert parsed.labels is not None and parsed.labels.tolist() == [1, 0, 1]
        assert parsed.dense[:, 0].tolist() == [1.5, 0, 2] and parsed.missing_dense.tolist() == [1]
        codes = parsed.features["site"].codes.tolist()
        assert codes == [fnv1a64("a\nb"), 0, fnv1a64('c,"\x1f')]
        assert parsed.features["id"].codes[[0, 2]].tolist() == [3, 5]
        tags = parsed.features["tags"]
        assert tags.codes.tolist() == [fnv1a64("a"), fnv1a64("b"), fnv1a64("c"), 0]
        assert tags.lengths is not None and tags.lengths.tolist() == [2, 0, 2]
        assert parsed.lines == 3 and not parsed.faults
        assert parsed.missing == {"site": 1, "id": 1, "tags": 1}


def test_labels_are_optional_and_faults_have_rows(monkeypatch):
    monkeypatch.setattr("neocpu.ingest.formats.frames.ROWS", 2)
    frame = as_frame(DATA).with_columns(id=polars.Series(["1", "2", "x"]))
    parsed = parse_frame(frame.drop("y"), SCHEMA)
    assert parsed.labels is None and parsed.dense.shape == (2, 1)
    assert [fault[:3] for fault in parsed.faults] == [(2, "id", "x")]
    assert parse_frame(frame.head(0), SCHEMA).lines == 0


def test_all_faults_of_columns_are_said_at_once():
    frame = as_frame(DATA).drop("price").with_columns(site=polars.struct(a=1, b=2))
    frame = frame.with_columns(id=[[1], [2], [3]])
    with pytest.raises(DataError) as caught:
        parse_frame(frame, SCHEMA)
    for part in ("'price' is missing", "'site' is a struct (a, b)", "'id' holds lists"):
        assert part in str(caught.value)
    with pytest.raises(DataError, match="int is no table"):
        as_frame(3)
    with pytest.raises(DataError, match="no table"):
        as_frame({"a": [1], "b": [1, 2]})
