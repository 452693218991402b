"""What must a table-batched lookup return? The operator `lookup`: its interface, canonical bits and exact model."""

import math

import numpy as np

from neocpu.oracle.records import Arrays, Field, Operator, Truth, Value

TABLES = {
    "weights": Field("codes of all tables, one after the other, row-major; dtype by weights_format", ("element",)),
    "rows": Field("rows of each table, int64[T]", ("table",)),
    "dims": Field("columns of each table, int64[T]", ("table",)),
    "feature_table": Field("table of each feature, int64[F]", ("feature",)),
    "indices": Field("row numbers of all bags, feature-major, int64 or int32[n]; -1 is a pruned row", ("lookup",)),
    "offsets": Field("where each bag begins, int64 or int32[F*B+1]", ("bag",)),
    "per_sample_weights": Field("a factor of each lookup, fp32[n]", ("lookup",), optional=True),
}


def _run(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    truths = _truth(inputs, options, frozenset())
    return {name: t.reference.astype(np.float32) for name, t in truths.items()}


def _truth(inputs: Arrays, options: dict[str, Value], switches: frozenset[str]) -> dict[str, Truth]:
    dims, bags = inputs["dims"][inputs["feature_table"]], inputs["offsets"].size - 1
    batch = bags // max(dims.size, 1)
    starts = np.concatenate([[0], np.cumsum(inputs["rows"] * inputs["dims"])])
    columns = np.concatenate([[0], np.cumsum(dims)])
    reference, bound = np.zeros((2, batch, columns[-1]))
    for bag in range(bags):
        f, b = divmod(bag, batch)
        t, d = inputs["feature_table"][f], dims[f]
        lo, hi = inputs["offsets"][bag : bag + 2]
        table = inputs["weights"][starts[t] : starts[t + 1]].reshape(-1, d).astype(np.float64)
        terms = table[inputs["indices"][lo:hi]]
        length = max(hi - lo, 1) if options["pooling"] == "mean" and "mean_not_divided" not in switches else 1
        at = slice(columns[f], columns[f] + d)
        reference[b, at] = [math.fsum(column) / length for column in terms.T]
        bound[b, at] = (hi - lo) * 2.0**-23 * np.abs(terms).sum(0)
    return {"out": Truth(reference, bound)}


LOOKUP = Operator(
    name="lookup",
    about="pooled or sequence embeddings of all features in one call (FBGEMM: SplitTableBatchedEmbeddingBagsCodegen.forward)",
    inputs=TABLES,
    options={"pooling": "sum", "weights_format": "fp32", "output_format": "fp32", "bounds_check": "fatal"},
    outputs={"out": Field("pooled rows, [B, sum of dims] (none: [n, D])", ("sample", "column"))},
    run_=_run,
    truth_=_truth,
)

OPERATORS = (LOOKUP,)
