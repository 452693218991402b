"""Which options of lookups break each other? Pairwise covers.

Of `lookup`, `weight_gradient` and `unique_gradient`.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from neocpu.core.formats import INFERENCE
from neocpu.core.types import Elements
from neocpu.oracle.cases.covers.pairwise import Row, pairwise
from neocpu.oracle.cases.draw import (
    Draw,
    Lengths,
    Recipe,
    bags,
    coded,
    gradient,
    scaled_rows,
    tables,
)
from neocpu.oracle.operator import Arrays, Case, Value
from neocpu.oracle.truth.bags import SCALED

LOOKUP: dict[str, Sequence[Value]] = {
    "weights_format": (
        "fp32",
        "fp16",
        "bf16",
        "fp8_e4m3",
        "fp8_e5m2",
        "int8",
        "int4",
        "int2",
        "nbit8",
        "nbit4",
        "nbit2",
    ),
    "width": ("tails", "powers", "wide", "widest"),
    "output_format": ("fp32", "fp16", "bf16"),
    "pooling": ("sum", "mean", "none"),
    "indices": ("in range", "pruned", "out of range"),
    "weighted": (False, True),
    "batches": ("fixed", "variable"),
    "index_type": ("int64", "int32"),
}
WEIGHT_GRADIENT: dict[str, Sequence[Value]] = {
    "weights_format": ("fp32", "fp16", "bf16", "fp8_e4m3", "int8", "int4"),
    "width": ("tails", "wide", "widest"),
    "pooling": ("sum", "mean"),
    "indices": ("in range", "pruned", "out of range"),
    "batches": ("fixed", "variable"),
    "index_type": ("int64", "int32"),
}
UNIQUE_GRADIENT: dict[str, Sequence[Value]] = {
    "width": ("tails", "wide", "widest"),
    "pooling": ("sum", "mean", "none"),
    "indices": ("in range", "pruned", "out of range"),
    "weighted": (False, True),
    "batches": ("fixed", "variable"),
    "index_type": ("int64", "int32"),
}
ROWS = 3  # of each table
ALIGNMENT = 16  # bytes of rows of inference tables
# Values that a case does not mention, and how it says others.
USUAL: dict[str, Value] = {
    "indices": "in range",
    "weighted": False,
    "batches": "fixed",
    "index_type": "int64",
    "decay": "none",
    "states": "fp32",
    "limit": "no limit",
    "rounding": "nearest",
    "hyper": "decimal",
}
WORDS = {
    "weights_format": "{} rows",
    "output_format": "to {}",
    "indices": "rows {}",
    "weighted": "weighted",
    "batches": "{} batches",
    "decay": "{} decay",
    "states": "{} states",
    "step": "step {}",
    "hyper": "{} numbers",
}
# Lengths of bags by feature, by sample; VARIABLE: as many samples as each feature likes;
# SEQUENCES: few, as every lookup has a line of its own in the output.
LENGTHS: Lengths = ((3, 0, 1, 5), (1, 2, 0, 9), (2, 1, 3, 4))
VARIABLE: Lengths = ((3, 0, 1, 5, 2), (1, 7), (2, 0, 4))
SEQUENCES: Lengths = ((2, 0, 1), (0, 3, 1))


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for k, row in enumerate(pairwise(LOOKUP, fits)):
        name = f"lookup-pair-{k:02}"
        options = options_of(row)
        options["output_format"] = row["output_format"]
        if row["weights_format"] in INFERENCE:
            options["row_alignment"] = ALIGNMENT
        yield Case(name, "lookup", inputs_of(recipe, name, row), options, about(row))
    for k, row in enumerate(pairwise(WEIGHT_GRADIENT, fits)):
        name = f"weight-gradient-pair-{k:02}"
        # Only weights have a gradient here.
        inputs = inputs_of(recipe, name, {**row, "weighted": True})
        inputs["grad_output"] = gradient(Draw(recipe.seed, f"{name}-gradient"), inputs)
        yield Case(name, "weight_gradient", inputs, options_of(row), about(row))
    for k, row in enumerate(pairwise(UNIQUE_GRADIENT, fits)):
        name = f"unique-gradient-pair-{k:02}"
        fp32_row = {"weights_format": "fp32", **row}
        inputs = inputs_of(recipe, name, fp32_row)
        inputs["grad_output"] = gradient(
            Draw(recipe.seed, f"{name}-gradient"), inputs, row["pooling"]
        )
        yield Case(name, "unique_gradient", inputs, options_of(fp32_row), about(row))


def fits(row: Row) -> bool:
    """Do these values go together?

    Sequences have neither weights nor batches of several sizes: FBGEMM and torch take neither.
    """
    sequence = row.get("pooling") == "none"
    return not (sequence and (row.get("batches") == "variable" or row.get("weighted")))


def _dims(recipe: Recipe, row: Row) -> tuple[int, ...]:
    """Columns of the tables that a row of a cover asks for; all the same without pooling."""
    dims = {
        "tails": tuple(width for width in recipe.tails() if width < 512),
        "powers": recipe.widths(64, 128, 256, 1024),
        "wide": (recipe.tail(1024), recipe.width(12)),
        "widest": recipe.widths(2048, 4),
    }[row["width"]]
    return (max(dims),) * 2 if row["pooling"] == "none" else dims


def inputs_of(recipe: Recipe, name: str, row: Row) -> Arrays:
    """Tables and bags as a row of a cover says: a feature for each table, in reverse order."""
    draw = Draw(recipe.seed, name)
    dims = _dims(recipe, row)
    inputs = tables(draw, (ROWS,) * len(dims), dims, range(len(dims))[::-1])
    lengths = VARIABLE if row["batches"] == "variable" else LENGTHS
    if row["pooling"] == "none":
        lengths = SEQUENCES
    features = [lengths[f % len(lengths)] for f in range(len(dims))]
    inputs |= bags(draw, inputs, features, weighted=row["weighted"])
    return {**with_indices(inputs, row), "weights": in_format(draw, inputs, row["weights_format"])}


def with_indices(inputs: Arrays, row: Row) -> Arrays:
    """The inputs with indices pruned or out of range, and of the type that a row says."""
    indices = inputs["indices"].copy()
    if row["indices"] == "pruned":
        indices[::3] = -1
    if row["indices"] == "out of range":
        # Beyond every table, whichever the lookup is of.
        tallest = int(inputs["rows"].max())
        indices[::3] = np.resize([tallest, -2, 1 << 30, -(1 << 31)], indices[::3].size)
    kind = np.dtype(row["index_type"])
    offsets = inputs["offsets"].astype(kind)
    return {**inputs, "indices": indices.astype(kind), "offsets": offsets}


def in_format(draw: Draw, inputs: Arrays, name: str) -> Elements:
    """The rows of all tables as codes of a format."""
    if name not in SCALED:
        return coded(inputs["weights"], name)
    alignment = ALIGNMENT if name in INFERENCE else 1
    return scaled_rows(draw, name, inputs["rows"].tolist(), inputs["dims"].tolist(), alignment)


def options_of(row: Row) -> dict[str, Value]:
    """Options that a row of a cover says, and that lookups and updates have."""
    options: dict[str, Value] = {
        "pooling": row["pooling"],
        "weights_format": row["weights_format"],
    }
    if row["indices"] == "out of range":
        # The default, fatal, has no answer for such rows.
        options["bounds_check"] = "ignore"
    return options


def about(row: Row) -> str:
    """What a case of a cover combines, in words: all that is not the usual."""
    values = [
        WORDS.get(factor, "{}").format(value)
        for factor, value in row.items()
        if value != USUAL.get(factor)
    ]
    return "options in pairs: " + ", ".join(values)
