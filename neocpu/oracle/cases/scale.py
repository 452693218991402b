"""Which shapes break offsets of 32 bits? Cases of `lookup_at_scale` and `backward_at_scale`.

Each says how much memory a kernel needs that answers it; the oracle needs none. Widths are powers
of two, so that an offset that wraps around lands at the beginning of another row.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from neocpu.core.formats import FORMATS
from neocpu.core.types import Ints
from neocpu.oracle.cases.draw import Draw
from neocpu.oracle.operator import Arrays, Case, Value

WRAPS = (1 << 30, 1 << 31, 1 << 32)  # 2^30 elements of fp32 are 2^32 bytes


class ScaleShape(NamedTuple):
    """Tables and a batch beyond some limit of 32 bits."""

    name: str
    rows: tuple[int, ...]
    dims: tuple[int, ...]
    features: tuple[int, ...]  # table of each
    batch: int
    weights_format: str
    about: str

    @property
    def width(self) -> int:
        """Columns of the output."""
        return sum(self.dims[table] for table in self.features)

    @property
    def memory(self) -> str:
        """What tables and output take."""
        elements = sum(rows * dim for rows, dim in zip(self.rows, self.dims))
        table_bytes = elements * np.dtype(FORMATS[self.weights_format].dtype).itemsize
        return f"{(table_bytes + 4 * self.batch * self.width) / 2**30:.1f} GiB"


SHAPES = (
    ScaleShape(
        "bytes",
        ((1 << 23) + 100,),
        (128,),
        (0, 0),
        64,
        "fp32",
        "a table of more than 2^32 bytes: byte offsets do not fit in 32 bits",
    ),
    ScaleShape(
        "elements",
        ((1 << 24) + 1000,),
        (128,),
        (0,),
        64,
        "fp32",
        "a table of more than 2^31 elements: row * D does not fit in an int",
    ),
    ScaleShape(
        "unsigned",
        ((1 << 25) + 1000,),
        (128,),
        (0,),
        64,
        "fp16",
        "a table of more than 2^32 elements: row * D does not fit in an unsigned int either",
    ),
    ScaleShape(
        "rows",
        ((1 << 31) + 1000,),
        (4,),
        (0,),
        64,
        "fp16",
        "a table of more than 2^31 rows: row numbers do not fit in an int",
    ),
    ScaleShape(
        "tables",
        ((1 << 22) + 8,) * 9,
        (128,) * 9,
        (8, 0, 7, 5),
        32,
        "fp16",
        "nine tables, none of them large: where the last begins does not fit in 32 bits",
    ),
    ScaleShape(
        "output",
        (1000, 500),
        (128, 128),
        (0, 1) * 8,
        (1 << 20) + 300,
        "fp32",
        "pooled rows, or their gradients, of more than 2^31 elements: sample * width does not fit",
    ),
)


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; all widths are multiples of 4."""
    for shape in SHAPES:
        yield _lookup(seed, shape)
        yield _backward(seed, shape, "exact_sgd")
    for shape in SHAPES[:2]:
        yield _backward(seed, shape, "exact_rowwise_adagrad")


def _telling_numbers(draw: Draw, count: int, unit: int) -> Ints:
    """Numbers below `count`: the ends, those around each wrap of number * unit, and some others."""
    numbers = {0, 1, count - 2, count - 1}
    for wrap in WRAPS:
        numbers |= {wrap // unit + shift for shift in (-1, 0, 1, 7)}
    random_numbers = [
        int(n) for n in draw.words(12).astype(np.uint64) * np.uint64(count) >> np.uint64(32)
    ]
    return np.array(sorted(n for n in {*numbers, *random_numbers} if 0 <= n < count), np.int64)


def _batch(draw: Draw, shape: ScaleShape) -> tuple[Arrays, Ints]:
    """Lookups of a few samples, and these samples."""
    samples = _telling_numbers(draw, shape.batch, shape.width)
    bags = []
    indices = []
    for f, table in enumerate(shape.features):
        rows = _telling_numbers(draw, shape.rows[table], shape.dims[table])
        lengths = draw.whole(samples.size, 1, 5)
        bags.append(np.repeat(f * shape.batch + samples, lengths))
        # every telling row at least once, where there are lookups enough
        order = np.arange(int(lengths.sum()))
        indices.append(rows[(order + int(draw.whole(1, 0, rows.size)[0])) % rows.size])
    inputs: Arrays = {
        "rows": np.array(shape.rows, np.int64),
        "dims": np.array(shape.dims, np.int64),
        "feature_table": np.array(shape.features, np.int64),
        "bags": np.concatenate(bags),
        "indices": np.concatenate(indices),
    }
    return inputs, samples


def _lookup(seed: int, shape: ScaleShape) -> Case:
    draw = Draw(seed, f"lookup-at-scale-{shape.name}")
    inputs, samples = _batch(draw, shape)
    # samples without a lookup stay 0, those onto which a wrapped offset would fall among them
    aliases = [samples * shape.width % wrap // shape.width for wrap in WRAPS]
    check = np.unique(np.concatenate([samples, *aliases]))
    inputs["check_samples"] = check[check < shape.batch]
    options: dict[str, Value] = {"weights_format": shape.weights_format, "batch": shape.batch}
    about = f"{shape.about} ({shape.memory} with the output)"
    return Case(f"lookup-at-scale-{shape.name}", "lookup_at_scale", inputs, options, about)


def _backward(seed: int, shape: ScaleShape, optimizer: str) -> Case:
    kind = "" if optimizer == "exact_sgd" else f"-{optimizer}"
    name = f"backward-at-scale-{shape.name}{kind}"
    draw = Draw(seed, name)
    inputs, _ = _batch(draw, shape)
    first_row = np.append(0, np.cumsum(inputs["rows"]))
    feature = inputs["bags"] // shape.batch
    table = inputs["feature_table"][feature]
    dim = inputs["dims"][table]
    touched = inputs["indices"]
    # neighbours, and rows onto which wrapped offsets would fall
    near = [touched, touched - 1, touched + 1]
    near += [touched * dim % wrap // dim for wrap in WRAPS]
    rows = [
        first_row[table] + candidate
        for candidate in near
        if ((candidate >= 0) & (candidate < inputs["rows"][table])).all()
    ]
    # The ends of all tables, where wrapped offsets often land.
    rows += [first_row[:-1], first_row[1:] - 1]
    inputs["check_rows"] = np.unique(np.concatenate(rows))
    options: dict[str, Value] = {
        "weights_format": shape.weights_format,
        "batch": shape.batch,
        "optimizer": optimizer,
        "learning_rate": 0.0625,
        "eps": 2.0**-20,
    }
    about = f"{shape.about}, {optimizer} ({shape.memory} with the gradient)"
    return Case(name, "backward_at_scale", inputs, options, about)
