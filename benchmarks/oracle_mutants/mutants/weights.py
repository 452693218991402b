"""Bugs in per-sample weights, and in their gradient."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.numbers import bf16, fp16, tf32
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import BACKWARD, FORWARD, GEOMETRY, bend, named_mistake

# Weights.


def weights(change):
    """Other weights: change(all weights, part, batch) -> those of the part."""

    def lookup_weights(k: Kernel, batch: Batch, feature: int, part: Lookups) -> Array | None:
        return None if batch.weights is None else change(batch.weights, part, batch)

    return lookup_weights


def place_in_feature(w: Array, part: Lookups, batch: Batch) -> Array:
    """Weights by the place among a feature's lookups."""
    return w[part.position - part.position.min(initial=len(w))]


def of_first_lookup(w: Array, part: Lookups, batch: Batch) -> Array:
    """The weight of the bag's first lookup, for all."""
    return w[part.position - part.place]


named_mistake("weights_ignored", GEOMETRY, lookup_weights=lambda k, *geometry: None)
bend(
    "weights_by_place_in_bag",
    GEOMETRY,
    "weights_restart",
    lookup_weights=weights(lambda w, part, b: w[part.place]),
)
bend("weights_by_place_in_feature", GEOMETRY, lookup_weights=weights(place_in_feature))
bend(
    "weights_of_next_lookup",
    GEOMETRY,
    lookup_weights=weights(lambda w, part, b: np.roll(w, -1)[part.position]),
)
bend("weights_of_first_lookup", GEOMETRY, lookup_weights=weights(of_first_lookup))
bend(
    "weights_of_bag_number",
    GEOMETRY,
    lookup_weights=weights(lambda w, part, b: w[part.sample % len(w)]),
)
bend(
    "weights_squared",
    GEOMETRY,
    "weights_twice",
    lookup_weights=weights(lambda w, part, b: (w**2)[part.position]),
)
bend(
    "weights_magnitudes",
    GEOMETRY,
    lookup_weights=weights(lambda w, part, b: np.abs(w)[part.position]),
)
bend(
    "weights_fp16",
    FORWARD,
    lookup_weights=weights(lambda w, part, b: fp16(w)[part.position]),
)
bend(
    "weights_bf16",
    FORWARD,
    lookup_weights=weights(lambda w, part, b: bf16(w)[part.position]),
)
bend("sequence_weights_ignored", FORWARD, "weights_ignored", sequence_weights=lambda k, *g: None)
bend(
    "weight_of_zero_skips_row",
    FORWARD,
    weighted=lambda k, x, w: np.where(w[:, None] == 0, 0, x * w[:, None]).astype(F32),
)
bend("products_tf32", FORWARD, weighted=lambda k, x, w: (tf32(x) * tf32(w)[:, None]).astype(F32))

# The gradient of weights.

named_mistake(
    "weight_gradient_times_weight",
    "weight_gradient",
    dot=lambda k, x, gradient, batch, part: (
        Kernel.dot(k, x, gradient, batch, part) * batch.weights[part.position]
    ),
)
bend(
    "weight_gradient_without_gradient",
    "weight_gradient",
    "gradient_without_grad_output",
    dot=lambda k, x, gradient, batch, part: x.sum(axis=1, dtype=F32),
)
bend(
    "weight_gradient_without_row",
    "weight_gradient",
    dot=lambda k, x, gradient, batch, part: gradient.sum(axis=1, dtype=F32),
)
bend(
    "weight_gradient_first_32_columns",
    "weight_gradient",
    dot=lambda k, x, gradient, b, part: k.column_sum((x * gradient)[:, :32].astype(F32)),
)
bend(
    "weight_gradient_first_1024_columns",
    "weight_gradient",
    dot=lambda k, x, gradient, b, part: k.column_sum((x * gradient)[:, :1024].astype(F32)),
)
bend(
    "weight_gradient_bf16_products",
    "weight_gradient",
    dot=lambda k, x, gradient, b, part: k.column_sum(bf16(x) * bf16(gradient)),
)
bend(
    "weight_gradient_over_D",
    "weight_gradient",
    dot=lambda k, x, gradient, b, part: k.column_sum((x * gradient).astype(F32)) / F32(x.shape[1]),
)
bend(
    "weight_gradient_of_bag",
    "weight_gradient",
    dot=lambda k, x, gradient, b, part: np.bincount(
        part.sample, k.column_sum((x * gradient).astype(F32)).astype(np.float64)
    )[part.sample].astype(F32),
)
bend(
    "weight_gradient_mean_not_divided",
    "weight_gradient",
    "mean_not_divided weighted_mean_backward_not_divided",
    mean_gradient=lambda k, gradient, *geometry: gradient,
)
bend(
    "backward_mean_not_divided",
    BACKWARD,
    "mean_not_divided",
    mean_gradient=lambda k, gradient, *geometry: gradient,
)
bend(
    "backward_weighted_mean_not_divided",
    BACKWARD,
    "weighted_mean_backward_not_divided",
    mean_gradient=lambda k, gradient, batch, f, part: (
        gradient if batch.weights is not None else Kernel.mean_gradient(k, gradient, batch, f, part)
    ),
)
