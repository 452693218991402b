"""Which bugs did no other case show? Ends of ranges, of codes, and of columns that a warp covers.

benchmarks/oracle_mutants found each hole: a wrong kernel that passed. Some bugs need widths that
real kernels refuse and show with dim_multiple 1 only: tails of fewer than four columns, spare bits
of the last byte of int4 and int2 rows.
"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.types import Floats
from neocpu.oracle.cases.draw import Draw, Recipe, bags, gradient, tables
from neocpu.oracle.cases.updates import EXACT, OPTIONS_OF_RULE, plain, states
from neocpu.oracle.operator import Arrays, Case, Value
from neocpu.oracle.ops.codecs import QUANTIZE
from neocpu.oracle.truth.formats import FORMATS

COWCLIP = "exact_rowwise_adagrad_with_cowclip"
COUNTER = "exact_rowwise_adagrad_with_counter"
# Rules that take a norm over the columns of a row.
NORMS = ("lars_sgd", "lamb", "partial_rowwise_lamb", COWCLIP)
BYTE = 256  # codes of 8 bits
TOUCHED = 1030  # rows, a few more than a block of threads has


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for make in (_norms, _ends, _tiny_states, _codes, _sums, _touched):
        yield from make(recipe)


def _backward(
    name: str, inputs: Arrays, about: str, rule: str = "exact_sgd", **options: Value
) -> Case:
    hyper = {**EXACT, **OPTIONS_OF_RULE.get(rule, {}), "step": 6}
    return Case(
        f"backward-{name}", "backward", inputs, {"optimizer": rule, **hyper, **options}, about
    )


def _wide(recipe: Recipe, name: str, rule: str) -> Arrays:
    """One table of rows beyond two turns of a warp."""
    draw = Draw(recipe.seed, f"backward-{name}")
    # A warp takes 32 columns at once; a third turn has one vector left.
    inputs = tables(draw, (5,), (recipe.tail(64),))
    inputs |= bags(draw, inputs, [[2, 1, 3]])
    return {**inputs, **states(draw, rule, inputs), "grad_output": gradient(draw, inputs)}


def _norms(recipe: Recipe) -> Iterator[Case]:
    about = "norms over more columns than two turns of a warp cover"
    for rule in NORMS:
        yield _backward(f"{rule}-wide", _wide(recipe, f"{rule}-wide", rule), about, rule)
    inputs = _wide(recipe, "max-norm-wide", "exact_sgd")
    yield _backward("max-norm-wide", inputs, f"max_norm: {about}", max_norm=3.0)


def _ends(recipe: Recipe) -> Iterator[Case]:
    short = plain(recipe, "cowclip-least", COWCLIP)
    short["weights"] = np.ldexp(short["weights"], -8).astype(np.float32)
    yield _backward(
        "cowclip-least",
        short,
        "rows so short that CowClip's limit is its lower bound",
        COWCLIP,
        lower_bound=0.5,
    )
    yield _backward(
        "least-shrinkage",
        plain(recipe, "least-shrinkage", "rowwise_rmsprop"),
        "rows that rested so long that min_shrinkage is what is left of them",
        "rowwise_rmsprop",
        ar_alpha=4.0,
        min_shrinkage=0.5,
    )
    for mode in ("increase", "decrease"):
        name = f"tail-rate-{mode}-at-threshold"
        inputs = plain(recipe, name, COUNTER)
        # Every count from 0 to 5: the update adds 1 before the comparison.
        inputs["row_counter"] = (np.arange(inputs["row_counter"].size) % 6).astype(np.float32)
        yield _backward(
            name,
            inputs,
            "rows whose count is the threshold itself are not above it",
            COUNTER,
            learning_rate_mode=f"tail_id_lr_{mode}",
            counter_halflife=-1,
            max_counter=40.0,
            tail_id_threshold=4.0,
            adjustment_ub=1.3,
        )


def _tiny_states(recipe: Recipe) -> Iterator[Case]:
    for rule in ("adam", "partial_rowwise_adam"):
        name = f"{rule}-subnormal-moments"
        inputs = plain(recipe, name, rule)
        inputs["grad_output"] = np.ldexp(inputs["grad_output"], -136).astype(np.float32)
        for state in states(Draw(recipe.seed, name), rule, inputs):
            inputs[state] = np.ldexp(inputs[state], -136).astype(np.float32)
        yield _backward(name, inputs, f"{rule}: subnormal moments fade, they do not vanish", rule)


def _codes(recipe: Recipe) -> Iterator[Case]:
    for name in ("fp8_e4m3", "fp8_e5m2"):
        width = recipe.width(4)
        rows = -(-BYTE // width)
        codes = np.resize(np.arange(BYTE, dtype=np.uint8), rows * width)
        inputs: Arrays = {
            "weights": codes.view([(name, FORMATS[name].dtype)]),
            "rows": np.array([rows]),
            "dims": np.array([width]),
            "feature_table": np.array([0]),
            "indices": np.arange(rows),
            "offsets": np.arange(rows + 1),
        }
        options: dict[str, Value] = {"weights_format": name}
        yield Case(f"lookup-codes-{name}", "lookup", inputs, options, f"all {name} codes")
    for name in ("fp8_row_forward", "fp8_row_backward"):
        x = Draw(recipe.seed, f"codes-{name}").floats((2, BYTE // 2))
        codes = QUANTIZE.run({"x": x}, {"format": name}, "reference")["codes"]
        # Codes that no quantisation of ordinary numbers would write.
        codes[:, : BYTE // 2] = np.arange(BYTE, dtype=np.uint8).reshape(2, -1)
        options = {"format": name, "columns": BYTE // 2}
        about = f"all codes of {name}, subnormal ones among them"
        yield Case(f"dequantize-{name}-any", "dequantize", {"codes": codes}, options, about)
    for name, bits in (("int4", 4), ("int2", 2)):
        about = (
            "ranges so small that fp16 rounds their scale down by much: codes beyond the largest "
            "are limited to it"
        )
        options = {"format": name}
        yield Case(f"quantize-{name}-tiny", "quantize", {"x": _tiny_rows(bits)}, options, about)


def _tiny_rows(bits: int) -> Floats:
    """Rows from 0 to 1.2, 1.4, 2.3 and 2.45 times the range of codes, in units of fp16's least."""
    share = np.linspace(0.0, 1.0, 16)
    spans = np.array([1.2, 1.4, 2.3, 2.45]) * (2**bits - 1)
    return np.ldexp(spans[:, None] * share, -24).astype(np.float32)


def _sums(recipe: Recipe) -> Iterator[Case]:
    values = np.ldexp(Draw(recipe.seed, "tiny-sums").dyadic((24, 4)), -142).astype(np.float32)
    inputs: Arrays = {"values": values, "offsets": np.array([0, 1, 4, 4, 24])}
    about = "sums of subnormal numbers: exact, and not 0"
    yield Case("segment-sum-subnormals", "segment_sum", inputs, {}, about)


def _touched(recipe: Recipe) -> Iterator[Case]:
    """Which rows are touched: many of one table, and equal numbers where tables meet."""
    draw = Draw(recipe.seed, "beyond-a-block")
    inputs = tables(draw, (TOUCHED, 2), recipe.widths(4, 4), exact=True)
    inputs |= bags(draw, inputs, [[1] * TOUCHED, [2] * TOUCHED])
    inputs["indices"][:TOUCHED] = np.argsort(draw.words(TOUCHED), kind="stable")
    inputs["grad_output"] = gradient(draw, inputs, exact=True)
    about = "more than 1,024 rows of a table are touched, and then those of the next table"
    yield Case("unique-gradient-beyond-a-block", "unique_gradient", inputs, {}, about)
    yield _backward("beyond-a-block", inputs, about)
    draw = Draw(recipe.seed, "meeting-tables")
    inputs = tables(draw, (6, 9, 7), recipe.widths(4, 4, 4))
    inputs |= bags(draw, inputs, [[2, 1], [1, 2], [1, 1]])
    # Sorted by table and row: 1 4 4 | 4 4 6 | 6 6.
    inputs["indices"][:] = [4, 1, 4, 6, 4, 4, 6, 6]
    inputs["grad_output"] = gradient(draw, inputs)
    about = "the last row of a table and the first of the next have one number: two segments"
    yield Case("unique-gradient-meeting-tables", "unique_gradient", inputs, {}, about)
    yield _backward("meeting-tables", inputs, about)
