"""What must a table-batched lookup return, and its gradient by the weights? Operators `lookup` and
`weight_gradient`.
"""

from collections.abc import Mapping

import numpy as np

from neocpu.oracle.canonical import lookup_bits, weight_gradient_bits
from neocpu.oracle.operator import Arrays, Field, Operator, Truth, Value
from neocpu.oracle.truth.bags import CaseBags, bags_of, rows_of
from neocpu.oracle.truth.formats import in_format
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
        (
            "samples of each feature, int64[F], where they differ; pooled arrays are then flat, "
            "feature-major"
        ),
        ("feature",),
        True,
    ),
}
# weights_format: fp32, fp16, bf16, fp8_e4m3, fp8_e5m2; row-scaled ones, of lookups only: int8,
# int4, int2 (fused), and FBGEMM's inference tables nbit8, nbit4, nbit2, whose rows are padded to a
# multiple of row_alignment bytes
POOLING: dict[str, Value] = {"pooling": "sum", "weights_format": "fp32", "bounds_check": "fatal"}


def joined(bags: CaseBags, found: list[Bounded], variable: bool) -> Bounded:
    """Pooled features side by side [B, ΣD]; or flat one after the other, where batches vary."""
    if variable:
        parts = [(x.value.reshape(-1), x.error.reshape(-1)) for x in found] or [
            (np.empty(0), np.empty(0))
        ]
        return Bounded(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
    batch = int(bags.batch[0]) if bags.batch.size else 0
    out = Bounded(np.zeros((batch, bags.width)), np.zeros((batch, bags.width)))
    for f, x in enumerate(found):
        columns = slice(bags.column[f], bags.column[f] + bags.dims[f])
        out.value[:, columns] = x.value
        out.error[:, columns] = x.error
    return out


def out_of(inputs: Arrays, options: Mapping[str, Value], switches: frozenset[str]) -> Bounded:
    """What a lookup returns, before it is rounded to the output's format."""
    options = dict(options)
    bags = bags_of(inputs, options, switches)
    rows = rows_of(inputs, options)
    if options["pooling"] == "none":
        return sequence(bags, rows, inputs["indices"].size)
    return joined(bags, pooled(bags, rows, options, switches), "batch_sizes" in inputs)


ROUNDING = {"half_up": "away", "truncated": "toward_zero"}


def rounding_of(options: Mapping[str, Value], switches: frozenset[str]) -> str:
    """How results become elements of a narrow format: the option `rounding`, unless a switch says
    otherwise.
    """
    for switch, name in ROUNDING.items():
        if switch in switches:
            return name
    rounding = str(options.get("rounding", "nearest"))
    if rounding == "fbgemm":  # FBGEMM's fp16 trick: one of two neighbours, too
        rounding = "stochastic"
    return "nearest" if "stochastic_rounding_ignored" in switches else rounding


def _lookup_truth(
    inputs: Arrays, options: dict[str, Value], switches: frozenset[str]
) -> dict[str, Truth]:
    out = out_of(inputs, options, switches)
    form = str(options["output_format"])
    rounding = rounding_of({}, switches)
    if form == "bf16" and "bf16_output_half_up" in switches:
        rounding = "away"
    return {"out": in_format(out, form, rounding)}


def _weight_truth(
    inputs: Arrays, options: dict[str, Value], switches: frozenset[str]
) -> dict[str, Truth]:
    bags = bags_of(inputs, options, switches)
    rows = rows_of(inputs, options)
    return {
        "per_sample_weights_grad": in_format(
            weight_gradients(bags, inputs, rows, options, switches), "fp32"
        )
    }


def locate(
    inputs: Arrays, options: dict[str, Value], output: str, index: tuple[int, ...]
) -> dict[str, int]:
    """Sample, feature, table and column of an element of the output; lookup and feature of one of a
    sequence.
    """
    features = inputs["feature_table"].tolist()
    dims = inputs["dims"].tolist()
    if options["pooling"] == "none" or output == "per_sample_weights_grad":
        batch = max(1, (inputs["offsets"].size - 1) // max(len(features), 1))
        sizes = inputs["batch_sizes"] if "batch_sizes" in inputs else np.full(len(features), batch)
        bag = int(np.searchsorted(inputs["offsets"], index[0], side="right")) - 1
        f = int(np.searchsorted(np.cumsum(sizes), bag, side="right"))
        last = {
            "row": int(inputs["indices"][index[0]]),
            **({"column": index[1]} if len(index) > 1 else {}),
        }
        return {
            "lookup": index[0],
            "feature": f,
            "table": features[f],
            "sample": bag - int(sizes[:f].sum()),
            **last,
        }
    widths = np.array([dims[t] for t in features])
    if len(index) == 1:
        ends = np.cumsum(inputs["batch_sizes"] * widths)
        f = int(np.searchsorted(ends, index[0], side="right"))
        sample, column = divmod(
            index[0] - int(ends[f] - inputs["batch_sizes"][f] * widths[f]), int(widths[f])
        )
    else:
        f = int(np.searchsorted(np.cumsum(widths), index[1], side="right"))
        sample = index[0]
        column = index[1] - int(widths[:f].sum())
    return {"sample": sample, "feature": f, "table": features[f], "column": column}


LOOKUP = Operator(
    name="lookup",
    about="Embeddings of all features in one call: pooled by SUM or MEAN, or one per lookup "
    "(none). "
    "FBGEMM: SplitTableBatchedEmbeddingBagsCodegen.forward.",
    inputs={**TABLES, **BAGS},
    options={**POOLING, "output_format": "fp32", "row_alignment": 1},
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
    "bag. "
    "FBGEMM: indice_weights_grad.",
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
