"""What does target attention compute, to the bit? The plain twin of `kernels/dense/attention.py`.

Lookups are taken by their place in their bag: place 0 of all samples, then place 1, ... so that
every sum goes in the order of the lookups.
"""

from collections.abc import Iterator

import numpy as np

from neocpu.kernels.twins.numbers.elementary import exp
from neocpu.kernels.twins.numbers.fma import fma


def _samples(offsets) -> np.ndarray:
    """The sample of each lookup."""
    return np.repeat(np.arange(offsets.size - 1), np.diff(offsets))


def _places(offsets) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(samples, lookups) of each place in a bag, for the samples that have one there."""
    lengths = np.diff(offsets)
    for place in range(int(lengths.max(initial=0))):
        samples = np.flatnonzero(lengths > place)
        yield samples, offsets[samples] + place


def attention_inputs(histories, out):
    """out f32[n, 4*D] = [h, a, h - a, h * a]; see `kernels.dense.attention.attention_inputs`."""
    rows, offsets, target = histories
    a = target[_samples(offsets)]
    with np.errstate(all="ignore"):
        out[:] = np.concatenate([rows, a, rows - a, rows * a], axis=1)


def softmax_bags(scores, offsets, out):
    """Softmax of each bag's scores, f32[n]; see `kernels.dense.attention.softmax_bags`."""
    samples = _samples(offsets)
    most = np.full(offsets.size - 1, -np.inf)
    # a NaN is the greatest, as in the kernel: the bag's weights are NaN then
    np.maximum.at(most, samples, scores.astype(np.float64))
    total = np.zeros(offsets.size - 1)
    with np.errstate(all="ignore"):
        powers = exp(scores.astype(np.float64) - most[samples])
        for chosen, lookups in _places(offsets):
            total[chosen] += powers[lookups]
        out[:] = powers / total[samples]


def weighted_rows(rows, weights, offsets, out):
    """out f32[b, D], sums of weighted rows; see `kernels.dense.attention.weighted_rows`."""
    out[:] = 0
    for chosen, lookups in _places(offsets):
        out[chosen] = fma(weights[lookups, None], rows[lookups], out[chosen])


def weights_gradient(gradient, rows, offsets, out):
    """out f32[n], products of gradients and rows.

    See `kernels.dense.attention.weights_gradient`.
    """
    samples = _samples(offsets)
    out[:] = 0
    for c in range(rows.shape[1]):
        out[:] = fma(gradient[samples, c], rows[:, c], out)


def softmax_gradient(weights, gradient, offsets, out):
    """out f32[n], the gradient of scores; see `kernels.dense.attention.softmax_gradient`."""
    w = weights.astype(np.float64)
    g = gradient.astype(np.float64)
    total = np.zeros(offsets.size - 1)
    with np.errstate(all="ignore"):
        for chosen, lookups in _places(offsets):
            total[chosen] += w[lookups] * g[lookups]
        out[:] = w * (g - total[_samples(offsets)])


def attention_gradients(histories, inner, weights, gradient, out, target_out):
    """out f32[n, D] and target_out f32[b, D]; see `kernels.dense.attention.attention_gradients`."""
    rows, offsets, target = histories
    samples = _samples(offsets)
    by_row, by_target, difference, product = np.split(inner, 4, axis=1)
    with np.errstate(all="ignore"):
        by_row = fma(product, target[samples], by_row + difference)
        out[:] = fma(weights[:, None], gradient[samples], by_row)
        by_target = fma(product, rows, by_target - difference)
        target_out[:] = 0
        for chosen, lookups in _places(offsets):
            target_out[chosen] = target_out[chosen] + by_target[lookups]
