"""What exactly does a synthetic log hold? The twin of `kernels/logs/synthetic.py`, whole columns at
a time.
"""

import numpy as np

from neocpu.kernels.twins.numbers.elementary import exp, log, log1p, sigmoid
from neocpu.kernels.twins.numbers.philox import random_words

ABSENT = -(2**63)  # an integer field that is empty
VECTOR = 4  # length of the planted vectors


def _draws(draws, rows, count):
    """Uniform fp64[rows, count] in [0, 1)."""
    words = np.empty((rows, 2 * count), np.uint32)
    random_words(draws.key, draws.row0, 0, draws.step, words)
    pairs = words[:, 0::2].astype(np.uint64) + words[:, 1::2].astype(np.uint64) * np.uint64(2**32)
    return (pairs // np.uint64(2**11)).astype(np.float64) / 2.0**53


def code_of(rank, name):
    """Codes u32[n] of ranks i64[n] of the category whose 32-bit name hash is `name`."""
    x = rank.astype(np.uint32) ^ np.uint32(int(name) & 0xFFFFFFFF)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def missing_groups(draws, rates, out):
    """Which groups of fields are missing; see `kernels.logs.synthetic.missing_groups`."""
    out[:] = _draws(draws, out.shape[0], out.shape[1]) < rates


def integers(draws, absent, quantiles, out):
    """Values of an integer field; see `kernels.logs.synthetic.integers`."""
    u = _draws(draws, out.size, 1)[:, 0]
    knots, starts, slopes, shift = quantiles
    j = np.searchsorted(knots[1:], u, side="right")
    x = exp(starts[j] + (u - knots[j]) * slopes[j]) - shift + 0.5
    out[:] = np.where(absent != 0, ABSENT, np.floor(x).astype(np.int64))


def integer_effects(values, terms, logit, vectors):
    """Terms of an integer field; see `kernels.logs.synthetic.integer_effects`."""
    center, scale, slope, missing, vector = terms
    absent = values == ABSENT
    t = (log1p(np.maximum(values, 0).astype(np.float64)) - center) * scale
    logit += np.where(absent, missing, slope * t)
    vectors[~absent] += (t[:, None] * vector)[~absent]


def square_norms(vectors, out):
    """Squared norms, summed from the left; see `kernels.logs.synthetic.square_norms`."""
    out[:] = np.add.accumulate(vectors * vectors, axis=1)[:, -1]


def bag_lengths(draws, absent, mean, geometric, out):
    """Codes per row; see `kernels.logs.synthetic.bag_lengths`."""
    out[:] = int(mean)
    if geometric and mean > 1.0:
        u = _draws(draws, out.size, 1)[:, 0]
        out[:] = 1 + (log(1.0 - u) / log(np.array([1.0 - 1.0 / mean]))).astype(np.int64)
    out[absent != 0] = 0


def _reused_ranks(u, cuts, firsts, most):
    """Ranks among classes of ranks, each drawn equally often within its class."""
    j = np.minimum(np.searchsorted(cuts, u, side="right"), cuts.size - 1)
    low = np.concatenate([[0.0], cuts])[j]
    x = firsts[j] + (u - low) / (cuts[j] - low) * (firsts[j + 1] - firsts[j])
    return np.minimum(np.floor(x) + 1.0, most)


def bags(draws, offsets, absent, category, codes, sums):
    """Codes of one category and their effects; see `kernels.logs.synthetic.bags`."""
    effect_key, name, law, cuts, firsts, amplitudes = category
    logit, vectors, squares = sums
    top, q, power, first, span, ranks = law.tolist()
    lengths = np.diff(offsets)
    row = np.repeat(np.arange(logit.size), lengths)
    place = np.arange(row.size) - offsets[row]
    width = int(lengths.max(initial=0))
    u = _draws(draws, logit.size, width + 1)[row, place + 1]
    if cuts.size:
        rank = _reused_ranks(u, cuts, firsts, ranks).astype(np.int64)
    else:
        x = exp(log(first + ((u - top) / (1.0 - top)) * span) * power) - q
        rank = np.where(u < top, 1.0, np.clip(np.floor(x), 1.0, ranks)).astype(np.int64)
    codes[:] = np.where(absent[row] != 0, 0, code_of(rank, name))
    words = np.empty((row.size, 8), np.uint32)
    for j, code in enumerate(codes):
        random_words(effect_key, int(code), 0, 0, words[j : j + 1])
    damping = 1.0 / np.sqrt(1.0 + rank.astype(np.float64) / amplitudes[1])
    words = words.astype(np.int64)
    effect = (words[:, :4].sum(axis=1) - 2**33).astype(np.float64) * (1.7320508075688772 / 2.0**32)
    effect = effect * (amplitudes[0] * damping)
    vector = (
        (words[:, 4:] - 2**31).astype(np.float64) / 2.0**31 * (amplitudes[2] * damping)[:, None]
    )
    bag = np.zeros((logit.size, VECTOR))
    present = absent[row] == 0
    np.add.at(logit, row[present], effect[present])
    np.add.at(bag, row[present], vector[present])
    if amplitudes[2] != 0.0:
        vectors += bag
        squares += np.add.accumulate(bag * bag, axis=1)[:, -1]


def add_pairs(vectors, squares, logit):
    """The pair interactions; see `kernels.logs.synthetic.add_pairs`."""
    logit += 0.5 * (np.add.accumulate(vectors * vectors, axis=1)[:, -1] - squares)


def calibrate(raw, sigma, rate):
    """(scale, bias); see `kernels.logs.synthetic.calibrate`."""

    def mean(x):
        return np.add.accumulate(np.concatenate([[0.0], x]))[-1] / np.float64(x.size)

    deviation = raw - mean(raw)
    scale = np.float64(sigma) / np.sqrt(mean(deviation * deviation))
    low = -30.0
    high = 30.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if mean(sigmoid(raw * scale + middle)) < rate:
            low = middle
        else:
            high = middle
    return scale, 0.5 * (low + high)


def clicks(draws, raw, scale, bias, probability, labels):
    """Probabilities and labels; see `kernels.logs.synthetic.clicks`."""
    probability[:] = sigmoid(raw * scale + bias)
    labels[:] = _draws(draws, raw.size, 1)[:, 0] < probability


def tally(probability, labels, histogram):
    """Rows by probability and label, summed logloss in units of 2^-30; see
    `kernels.logs.synthetic.tally`.
    """
    bins = histogram.shape[1]
    label = labels.astype(np.int64)
    place = np.minimum((probability * np.float64(bins)).astype(np.int64), bins - 1)
    np.add.at(histogram, (label, place), 1)
    loss = -log(np.where(label == 1, probability, 1.0 - probability))
    return int(np.floor(loss * 2.0**30 + 0.5).astype(np.int64).sum())


def format_rows(labels, values, codes, out):
    """Rows of a Criteo log as bytes; see `kernels.logs.synthetic.format_rows`."""
    lines = []
    for i in range(labels.size):
        fields = ["1" if labels[i] else "0"]
        fields += ["" if x == ABSENT else str(x) for x in values[:, i].tolist()]
        fields += [f"{code:08x}" if code else "" for code in codes[:, i].tolist()]
        lines.append("\t".join(fields) + "\n")
    text = "".join(lines).encode()
    out[: len(text)] = np.frombuffer(text, np.uint8)
    return len(text)
