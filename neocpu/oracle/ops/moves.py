"""What must permuted, regrouped and selected embeddings be, and their gradients?

Forward operators copy, so they have one right answer. Each has a backward one, `NAME_backward`,
that adds up the gradients of what was copied more than once.
"""

import numpy as np

from neocpu.kernels.compile.choice import backend_module
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truths
from neocpu.oracle.ops.layout import as_truth
from neocpu.oracle.truth import moves
from neocpu.oracle.truth.formats import in_format
from neocpu.oracle.truth.moves import CopyMapOf, scattered
from neocpu.tables.embedding.row_sums import by_target, summed

PERMUTE = {
    "dims": Field("columns of each feature, int64[F]", ("feature",)),
    "permute": Field(
        "number of the feature that comes here, int64[P]; some may repeat, some may lack",
        ("feature",),
    ),
}
REGROUP = {
    "widths": Field("columns of each tensor, int64[K]", ("tensor",)),
    "out_widths": Field("columns of each tensor of the result, int64[G]", ("tensor",)),
    "samples": Field("rows of every tensor, int64[1]"),
    "permutes": Field(
        "int32[P, 6]: from tensor, to tensor, from column, to column, columns, and FBGEMM's link "
        "to the next duplicate",
        ("block", "number"),
    ),
}
GROUPS = {
    "rows": Field("rows of each matrix, int64[G]", ("matrix",)),
    "dims": Field("columns of each matrix, int64[G]", ("matrix",)),
    "select": Field("numbers of rows, matrix by matrix, int64[sum of counts]", ("row",)),
    "counts": Field("rows selected of each matrix, int64[G]", ("matrix",)),
}
KEYED = {
    "lengths": Field("elements of each bag, int64[F, B]", ("key", "sample")),
    "select": Field("numbers of samples, int64[S]", ("sample",)),
}
TENSORS = "flat: tensor after tensor, row-major, fp32"


def _pair(
    name: str,
    about: str,
    values: str,
    geometry: dict[str, Field],
    fields: tuple[Field, Field],
    options: Options | None = None,
) -> tuple[Operator, Operator]:
    """The operator `name`, which copies its input `values`, and its backward.

    fields : of the input (and its gradient), of the output (and its gradient).
    """
    move_of: CopyMapOf = getattr(moves, name)
    gradient = f"{values}_grad"

    def copy(arrays: Arrays, settings: Options, switches: Switches) -> Arrays:
        source = move_of(arrays, settings, switches).source
        # Source -1 takes the +0 at the end.
        flat = np.append(np.asarray(arrays[values], np.float32).reshape(-1), np.float32(0))
        return {"out": flat[source]}

    def truth(arrays: Arrays, settings: Options, switches: Switches) -> Truths:
        return {"out": as_truth(copy(arrays, settings, switches)["out"])}

    def run(arrays: Arrays, settings: Options, backend: str) -> Arrays:
        return copy(arrays, settings, frozenset())

    def backward_truth(arrays: Arrays, settings: Options, switches: Switches) -> Truths:
        move = move_of(arrays, settings, switches)
        return {gradient: in_format(scattered(move, arrays, switches), "fp32")}

    def backward(arrays: Arrays, settings: Options, backend: str) -> Arrays:
        move = move_of(arrays, settings, frozenset())
        terms = np.asarray(arrays["grad_output"], np.float32).reshape(-1, 1)
        sums = by_target(terms, move.source.reshape(-1), int(np.prod(move.shape)))
        return {gradient: summed(sums, backend_module("rows.lookup", backend)).reshape(move.shape)}

    settings = options or {}
    inputs = {values: fields[0], **geometry}
    grads = {"grad_output": fields[1], **geometry}
    return (
        Operator(name, about, inputs, settings, {"out": fields[1]}, run, truth),
        Operator(
            f"{name}_backward",
            f"Gradient of `{name}`: of an element copied twice, the sum.",
            grads,
            settings,
            {gradient: fields[0]},
            backward,
            backward_truth,
        ),
    )


OPERATORS = (
    *_pair(
        "permute_pooled",
        "Pooled columns of features in another order (FBGEMM: permute_pooled_embs, "
        "permute_duplicate_pooled_embs).",
        "pooled",
        PERMUTE,
        (
            Field("fp32[B, sum of dims]", ("sample", "column")),
            Field("fp32[B, sum of dims[permute]]", ("sample", "column")),
        ),
    ),
    *_pair(
        "permute_multi_embedding",
        "Columns of several tensors into other tensors (FBGEMM: permute_multi_embedding; TorchRec: "
        "KeyedTensor.regroup).",
        "values",
        REGROUP,
        (Field(TENSORS, ("element",)), Field(TENSORS, ("element",))),
    ),
    *_pair(
        "group_index_select",
        "Rows by number out of several matrices (FBGEMM: group_index_select_dim0, "
        "batch_index_select_dim0). interleaved: first of all matrices, then second of all, ….",
        "values",
        GROUPS,
        (
            Field("flat: matrix after matrix, row-major, fp32", ("element",)),
            Field("flat: row after row, fp32", ("element",)),
        ),
        {"interleaved": False},
    ),
    *_pair(
        "keyed_jagged_index_select",
        "The bags of some samples, of every key (FBGEMM: keyed_jagged_index_select_dim1). Lengths "
        "are selected by index_select.",
        "values",
        KEYED,
        (Field("fp32[n]", ("element",)), Field("fp32[elements of the bags]", ("element",))),
    ),
)
