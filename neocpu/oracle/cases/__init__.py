"""Which inputs break embedding kernels? The cases of every operator.

They are chosen to break kernels, and never change for one seed.
"""

from collections.abc import Iterable, Iterator

from neocpu.core.errors import OracleError
from neocpu.oracle.cases import (
    backward,
    codecs,
    counters,
    fp8_rows,
    holes,
    jagged,
    key_value,
    large,
    layout,
    long,
    lookup,
    maximum,
    moves,
    nvfp4,
    optimizers,
    scale,
    sequence,
    stochastic,
    trajectory,
    weight_gradient,
)
from neocpu.oracle.cases.covers import lookup as lookup_cover
from neocpu.oracle.cases.covers import rules as rule_cover
from neocpu.oracle.cases.covers import update as update_cover
from neocpu.oracle.cases.dense import products
from neocpu.oracle.operator import Case

__all__ = ["DIM_MULTIPLE", "Case", "all_cases"]

MODULES = (
    lookup,
    weight_gradient,
    lookup_cover,
    backward,
    counters,
    update_cover,
    trajectory,
    large,
    layout,
    codecs,
    jagged,
    key_value,
    moves,
    nvfp4,
    optimizers,
    scale,
    stochastic,
    maximum,
    fp8_rows,
    long,
    sequence,
    holes,
    rule_cover,
    products,
)

# The operators of modules that take long to draw; whoever wants others need not wait for them.
OPERATORS_OF = {
    lookup: {"lookup"},
    lookup_cover: {"lookup", "weight_gradient", "unique_gradient"},
    backward: {"backward", "unique_gradient"},
    counters: {"backward"},
    update_cover: {"backward"},
    trajectory: {"trajectory"},
    rule_cover: {"backward"},
    products: {"narrow_gemm", "narrow_mlp", "narrow_interaction"},
    key_value: {"kv_trajectory", "row_cache"},
    optimizers: {"backward", "trajectory"},
    stochastic: {"round", "backward"},
    long: {"lookup", "weight_gradient", "backward", "unique_gradient"},
    sequence: {"lookup", "backward", "unique_gradient", "trajectory"},
}

# Columns of a row in suites come in multiples of this, as FBGEMM's kernels want them.
DIM_MULTIPLE = 4
LARGEST_MULTIPLE = 256  # the widest rows have 2,048 columns, and suites of wider ones are large


def all_cases(
    ops: Iterable[str] | None = None, seed: int = 0, dim_multiple: int = DIM_MULTIPLE
) -> Iterator[Case]:
    """All cases of some operators (None: of all), in a fixed order.

    Another seed draws other numbers of the same shapes.
    dim_multiple : rows have such a multiple of columns; 1 asks for odd widths, too.
    Raises OracleError for a multiple that is not from 1 to LARGEST_MULTIPLE.
    """
    if not 1 <= dim_multiple <= LARGEST_MULTIPLE:
        raise OracleError(
            f"rows cannot have a multiple of {dim_multiple} columns; choose 1 to {LARGEST_MULTIPLE}"
        )
    names = None if ops is None else set(ops)
    for module in MODULES:
        if names is not None and names.isdisjoint(OPERATORS_OF.get(module, names)):
            continue
        for case in module.cases(seed, dim_multiple):
            if names is None or case.op in names:
                yield case
