"""Which columns has a frame of lists and structs? Those that the same rows have as JSON.

`user {"id": 7, "at": {"city": "Bern"}}` also has the columns user.id and user.at.city,
`items [{"id": 1, "n": 2}, …]` items.id and items.n, which are lists.
"""

import contextlib
from typing import Any, TypeVar

import polars as pl

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


def leaf_of(dtype: pl.DataType) -> Any:
    """The type of the items of a list, or the type itself."""
    return dtype.inner if isinstance(dtype, pl.List | pl.Array) else dtype


def with_fields(frame: Frame) -> Frame:
    """A frame that also has the fields of its structs and, as lists, of its lists of structs."""
    types = frame.collect_schema()
    fields = [
        _field(name, dtype, inner.name).alias(f"{name}.{inner.name}")
        for name, dtype in types.items()
        if isinstance(leaf_of(dtype), pl.Struct)
        for inner in leaf_of(dtype).fields
        if f"{name}.{inner.name}" not in types
    ]
    return with_fields(frame.with_columns(fields)) if fields else frame


def _field(name: str, dtype: pl.DataType, inner: str) -> pl.Expr:
    """A field of a column of structs, or of lists of them."""
    column = pl.col(name)
    if isinstance(dtype, pl.Struct):
        return column.struct.field(inner)
    lists = column.arr.to_list() if isinstance(dtype, pl.Array) else column
    return lists.list.eval(pl.element().struct.field(inner))


def with_texts(frame: pl.DataFrame) -> pl.DataFrame:
    """A frame with texts for bytes that are some, as Impala and Hive write them into Parquet."""
    texts = []
    for name, dtype in frame.schema.items():
        if leaf_of(dtype) == pl.Binary:
            flat = dtype == pl.Binary
            with contextlib.suppress(pl.exceptions.ComputeError):  # bytes of something else
                series = frame[name].cast(pl.String if flat else pl.List(pl.String))
                items = series if flat else series.explode()
                if not items.str.contains("\0", literal=True).any():
                    texts.append(series)
    return frame.with_columns(texts)
