"""Which values does a row have before training? The same on every rank.

A row belongs to the training state once its bytes differ from these (`docs/arithmetic.md` §9 and
§11).
"""

from collections.abc import Callable

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.kernels.compile.choice import backend_module
from neocpu.kernels.twins.numbers.philox import INIT, tensor_key
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec


def initial_rows(
    spec: TableSpec,
    optimizer: SparseOptimizer,
    seed: int,
    rows: Ints,
    uniform_rows: Callable[..., None] | None = None,
) -> dict[str, Floats]:
    """Whole rows i64[n] of a table before training, field by field.

    These are "weight" f32[n, dim], the optimizer's state f32[n, dim] or f32[n], and scale and bias
    f32[n] of each row where the format has them. Weights are the nearest numbers of the table's
    format.

    uniform_rows : the kernel (None) or its NumPy twin, which gives the same bits and saves
        importing Numba for a few rows.
    """
    backend = "kernels" if uniform_rows is None else "reference"
    if uniform_rows is None:
        # only here: readers of checkpoints do without Numba
        from neocpu.kernels.numbers.philox import uniform_rows
    assert uniform_rows is not None
    weight = np.empty((rows.size, spec.dim), np.float32)
    scale = np.float32(spec.initial.bound)
    uniform_rows(tensor_key(seed, INIT, spec.name), np.ascontiguousarray(rows), 0, scale, weight)
    if spec.initial.mean:
        # + 0 would turn -0 into +0, which is another row
        weight += np.float32(spec.initial.mean)
    numbers = in_format(spec, weight, backend)
    values = {"weight": numbers.pop("weight")}
    for name, shape in state_shapes(optimizer, spec.dim):
        # only sums of squares may begin above 0; means and counters do not
        start = optimizer.initial_accumulator_value if name == optimizer.rule.accumulator else 0.0
        values[name] = np.full((rows.size, *shape), start, np.float32)
    return values | numbers


def in_format(spec: TableSpec, weight: Floats, backend: str = "kernels") -> dict[str, Floats]:
    """Rows f32[n, dim] as the nearest numbers of a table's format: "weight" f32[n, dim], and scale
    and bias f32[n] of each row where the format has them.

    backend : "kernels", or "reference" for their NumPy twins.
    """
    if spec.row_format.row_scaled:
        from neocpu.tables.storage.row_codecs import RowCodec

        codec = RowCodec(spec.format, spec.dim, backend=backend)
        data = codec.encode(weight)
        return {"weight": codec.decode(data), **codec.scales(data)}
    if not spec.row_format.exact:
        from neocpu.tables.embedding.rounded import rounded

        weight = rounded(weight, spec.format, backend_module("rows.narrow", backend))
    return {"weight": weight}


def fields_of(spec: TableSpec, optimizer: SparseOptimizer) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape of a row) of all that a row has beside its weights, in order."""
    scales = ("weight_scale", "weight_bias") if spec.row_format.row_scaled else ()
    return [*state_shapes(optimizer, spec.dim), *((name, ()) for name in scales)]


def state_shapes(optimizer: SparseOptimizer, dim: int) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape of a row) of the optimizer's state: per element, then per row."""
    rule = optimizer.rule
    per_element = [(name, (dim,)) for name in rule.element_state]
    per_row: list[tuple[str, tuple[int, ...]]] = [(name, ()) for name in rule.row_state]
    return [*per_element, *per_row]
