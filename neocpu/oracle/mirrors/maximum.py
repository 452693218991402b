"""Which bits does torch give for MAX pooling on a CPU? F.embedding_bag with mode="max".

A running maximum by comparison, so that a NaN stays only where it comes first; gradients are added
bag by bag, rounding each time, and features of one table from the last to the first.
"""

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.oracle.mirrors.order import Feature, NoMirror, by_table, features, tables
from neocpu.oracle.operator import Arrays, Options


def _winning_lookups(feature: Feature) -> Ints:
    """The lookup whose number is the maximum: i64[B, D]; -1 for empty bags."""
    x = feature.rows[feature.indices]
    columns = np.arange(feature.rows.shape[1])
    winner = np.full((feature.lengths.size, columns.size), -1, np.int64)
    for bag, (start, length) in enumerate(zip(feature.offsets.tolist(), feature.lengths.tolist())):
        if not length:
            continue
        winner[bag] = start
        for lookup in range(start + 1, start + length):
            # Not >=: of equal numbers torch keeps the first.
            larger = x[lookup] > x[winner[bag], columns]
            winner[bag, larger] = lookup
    return winner


def _fp32_tables(inputs: Arrays, options: Options) -> list[Floats]:
    if options["weights_format"] != "fp32":
        raise NoMirror("only fp32 tables are mirrored with MAX pooling")
    return tables(inputs, "fp32")


def lookup_max(inputs: Arrays, options: Options) -> Arrays:
    """Bits of `lookup_max`."""
    outputs = []
    for feature in features(inputs, _fp32_tables(inputs, options)):
        winner = _winning_lookups(feature)
        columns = np.arange(feature.rows.shape[1])
        rows = feature.rows[feature.indices[np.maximum(winner, 0)]] if winner.max() >= 0 else None
        out = np.zeros(winner.shape, np.float32)
        if rows is not None:
            number = np.take_along_axis(rows, columns[None, :, None], 2)[..., 0]
            out = np.where(winner >= 0, number, np.float32(0))
        outputs.append(out)
    return {"out": np.concatenate(outputs, 1)}


def lookup_max_backward(inputs: Arrays, options: Options) -> Arrays:
    """Bits of `lookup_max_backward`: the dense gradients of all tables."""
    matrices = _fp32_tables(inputs, options)
    gradients = [np.zeros(matrix.shape, np.float32) for matrix in matrices]
    for table, sharing in by_table(inputs, matrices).items():
        total: Floats | None = None
        # torch walks its graph backwards, so the last use of a table comes first.
        for feature in reversed(sharing):
            gradient = _feature_gradient(feature, inputs)
            total = gradient if total is None else total + gradient
        if total is not None:
            gradients[table] = total
    return {"weights_grad": np.concatenate([gradient.reshape(-1) for gradient in gradients])}


def _feature_gradient(feature: Feature, inputs: Arrays) -> Floats:
    """The dense gradient of a table by one feature, f32[R, D], added bag by bag."""
    out = np.zeros(feature.rows.shape, np.float32)
    columns = np.arange(feature.rows.shape[1])
    output_columns = slice(feature.column, feature.column + columns.size)
    grad_output = np.asarray(inputs["grad_output"], np.float32)[:, output_columns]
    for winner, gradient in zip(_winning_lookups(feature), grad_output):
        if (winner >= 0).all():
            out[feature.indices[winner], columns] += gradient
    return out
