"""What must a table-batched lookup return, and its gradient by the weights?

Operators `lookup` and `weight_gradient`, and what other operators share with them: the fields of
tables and bags, the options of pooling, and how results are rounded.
"""

import numpy as np

from neocpu.oracle.canonical import lookup_bits, weight_gradient_bits
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truths, Value
from neocpu.oracle.options import OneOf, Whole
from neocpu.oracle.truth.bags import SCALED, DecodedRows, JaggedBatch, bags_of, rows_of
from neocpu.oracle.truth.formats import FORMATS, in_format
from neocpu.oracle.truth.lookups import pooled, sequence, weight_gradients
from neocpu.oracle.truth.numbers import Bounded

TABLES = {
    "weights": Field(
        "codes of all tables, one after the other, row-major; dtype by weights_format", ("element",)
    ),
    "rows": Field("rows of each table, int64[T]", ("table",)),
    "dims": Field("columns of each table, int64[T]", ("table",)),
}
BAGS = {
    "feature_table": Field("table of each feature, int64[F]", ("feature",)),
    "indices": Field(
        "row numbers of all bags, feature-major, int64 or int32[n]; -1 is a pruned row", ("lookup",)
    ),
    "offsets": Field(
        "where each bag begins, and the end of the last, int64 or int32[F*B+1]", ("bag",)
    ),
    "per_sample_weights": Field("a factor of each lookup, fp32[n]", ("lookup",), optional=True),
    "batch_sizes": Field(
        "samples of each feature, int64[F], where they differ; pooled arrays are then flat, "
        "feature-major",
        ("feature",),
        optional=True,
    ),
}
FLOATS = tuple(FORMATS)
BOUNDS_CHECKS = ("fatal", "warning", "ignore")
# of formats, the row-scaled ones of SCALED are of lookups: int8, int4, int2 (fused), and FBGEMM's
# inference tables nbit8, nbit4, nbit2, whose rows are padded to a multiple of row_alignment bytes
POOLING: dict[str, Value] = {
    "pooling": OneOf("sum", ("sum", "mean", "none")),
    "weights_format": OneOf("fp32", (*FLOATS, *SCALED)),
    "bounds_check": OneOf("fatal", BOUNDS_CHECKS),
}


def joined(bags: JaggedBatch, features: list[Bounded], variable: bool) -> Bounded:
    """Pooled features side by side [B, ΣD]; or flat one after the other, where batches vary."""
    if variable:
        # `concatenate` wants at least one array.
        none = np.empty(0)
        return Bounded(
            np.concatenate([none, *(pooled_rows.value.reshape(-1) for pooled_rows in features)]),
            np.concatenate([none, *(pooled_rows.error.reshape(-1) for pooled_rows in features)]),
        )
    batch = int(bags.batch_sizes[0]) if bags.batch_sizes.size else 0
    out = Bounded(np.zeros((batch, bags.width)), np.zeros((batch, bags.width)))
    for f, pooled_rows in enumerate(features):
        columns = slice(bags.column[f], bags.column[f] + bags.dims[f])
        out.value[:, columns] = pooled_rows.value
        out.error[:, columns] = pooled_rows.error
    return out


def looked_up(inputs: Arrays, rows: DecodedRows, options: Options, switches: Switches) -> Bounded:
    """What a lookup returns, before it is rounded to the output's format."""
    bags = bags_of(inputs, options, switches)
    if options["pooling"] == "none":
        return sequence(bags, rows, inputs["indices"].size)
    return joined(bags, pooled(bags, rows, options, switches), "batch_sizes" in inputs)


ROUNDING_OF_SWITCH = {"half_up": "away", "truncated": "toward_zero"}


def rounding_of(options: Options, switches: Switches) -> str:
    """How results become elements of a narrow format: as the option `rounding` or a switch says."""
    for switch, name in ROUNDING_OF_SWITCH.items():
        if switch in switches:
            return name
    rounding = str(options.get("rounding", "nearest"))
    if rounding == "fbgemm":  # its way to round to fp16 gives one of two neighbours, too
        rounding = "stochastic"
    if rounding == "stochastic" and "stochastic_rounding_ignored" in switches:
        return "nearest"
    return rounding


def _lookup_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    out = looked_up(inputs, rows_of(inputs, options, switches), options, switches)
    form = str(options["output_format"])
    rounding = rounding_of({}, switches)
    if form == "bf16" and "bf16_output_half_up" in switches:
        rounding = "away"
    return {"out": in_format(out, form, rounding)}


def _weight_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    bags = bags_of(inputs, options, switches)
    rows = rows_of(inputs, options, switches)
    gradient = weight_gradients(bags, inputs, rows, options, switches)
    return {"per_sample_weights_grad": in_format(gradient, "fp32")}


def locate(inputs: Arrays, options: Options, output: str, index: tuple[int, ...]) -> dict[str, int]:
    """Sample, feature, table and column of an element of the output.

    Of a sequence, or of the gradient of weights: lookup, feature, table, sample and row.
    """
    if options["pooling"] == "none" or output == "per_sample_weights_grad":
        return _locate_lookup(inputs, index)
    features = inputs["feature_table"].tolist()
    widths = inputs["dims"][inputs["feature_table"]]
    if len(index) == 1:  # variable batches: flat, feature-major
        sizes = inputs["batch_sizes"] * widths
        ends = np.cumsum(sizes)
        f = int(np.searchsorted(ends, index[0], side="right"))
        sample, column = divmod(index[0] - int(ends[f] - sizes[f]), int(widths[f]))
    else:
        f = int(np.searchsorted(np.cumsum(widths), index[1], side="right"))
        sample = index[0]
        column = index[1] - int(widths[:f].sum())
    return {"sample": sample, "feature": f, "table": features[f], "column": column}


def _locate_lookup(inputs: Arrays, index: tuple[int, ...]) -> dict[str, int]:
    """Where an element of an array by lookup belongs: index is (lookup,) or (lookup, column)."""
    features = inputs["feature_table"].tolist()
    bags = inputs["offsets"].size - 1
    batch_sizes = inputs.get("batch_sizes")
    if batch_sizes is None:
        batch_sizes = np.full(len(features), max(1, bags // max(len(features), 1)))
    bag = int(np.searchsorted(inputs["offsets"], index[0], side="right")) - 1
    f = int(np.searchsorted(np.cumsum(batch_sizes), bag, side="right"))
    place = {
        "lookup": index[0],
        "feature": f,
        "table": features[f],
        "sample": bag - int(batch_sizes[:f].sum()),
        "row": int(inputs["indices"][index[0]]),
    }
    if len(index) > 1:
        place["column"] = index[1]
    return place


LOOKUP = Operator(
    name="lookup",
    about="Embeddings of all features in one call: pooled by SUM or MEAN, or one per lookup "
    "(none). FBGEMM: SplitTableBatchedEmbeddingBagsCodegen.forward.",
    inputs={**TABLES, **BAGS},
    options={
        **POOLING,
        "output_format": OneOf("fp32", FLOATS),
        "row_alignment": Whole(1, 1),
    },
    outputs={
        "out": Field(
            "pooled rows [B, sum of dims]; none: [n, D]; variable batches: flat",
            ("sample", "column"),
        )
    },
    run_=lookup_bits,
    truth_=_lookup_truth,
    locate_=locate,
)
WEIGHT_GRADIENT = Operator(
    name="weight_gradient",
    about="Gradient of the per-sample weights: for each lookup, its row times the gradient of its "
    "bag. FBGEMM: indice_weights_grad.",
    inputs={
        **TABLES,
        **BAGS,
        "grad_output": Field(
            "gradient of the pooled rows, fp32[B, sum of dims]", ("sample", "column")
        ),
    },
    options=POOLING,
    outputs={"per_sample_weights_grad": Field("fp32[n]; +0 for pruned lookups", ("lookup",))},
    run_=weight_gradient_bits,
    truth_=_weight_truth,
    locate_=locate,
)

OPERATORS = (LOOKUP, WEIGHT_GRADIENT)
