"""How is a synthetic click log drawn, so that row r has the same bits in any block, on any machine?

Every number is a function of Philox words of (seed, what, row, draw) and of fp64 operations in a
written order:

    missing    one uniform number per group of fields that go missing together
    integer    a quantile function: straight lines between knots of log(value + shift)
    category   a Zipf-Mandelbrot rank, drawn by the inverse of its distribution function; code = a
               bijection of the rank
    click      P(click) = sigmoid(scale * raw + bias): raw = terms of the integers + one effect per
               code + <v, v'> over all pairs of planted vectors (one for the integers together, one
               per chosen category)

The objects are in `neocpu/ingest/synthetic/law.py`. `step` separates the log (0) from the sample it
is calibrated on (1).
"""

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import kernel
from neocpu.kernels.numbers.elementary import exp, log, log1p, sigmoid
from neocpu.kernels.numbers.philox import philox4x32

_U11 = np.uint64(11)
_U16 = np.uint64(16)
_U13 = np.uint64(13)
_U32 = np.uint64(32)
_MASK = np.uint64(0xFFFFFFFF)
_ABSENT = np.int64(-(2**63))  # an integer field that is empty
_FIXED_POINT = 1073741824.0  # 2^30: losses are summed as whole multiples of 2^-30

Numbers = NDArray[np.float64]


class RowDraws(NamedTuple):
    """Random draws of consecutive rows: key uint64; step i64; row0 i64, the first row."""

    key: np.uint64
    step: int
    row0: int


class Quantiles(NamedTuple):
    """Quantile function of an integer field: for knots[j] <= u < knots[j+1] the value is
    floor(exp(starts[j] + (u - knots[j]) * slopes[j]) - shift + 1/2).

    knots (knots[0] = 0), starts, slopes : f64[K]; shift : f64
    """

    knots: Numbers
    starts: Numbers
    slopes: Numbers
    shift: float


class IntegerTerms(NamedTuple):
    """Planted terms of an integer field x: t = (log1p(max(x, 0)) - center) * scale gives slope * t
    and the vector t * vector; where the field is absent, `missing` instead.

    center, scale, slope, missing : f64; vector : f64[R]
    """

    center: float
    scale: float
    slope: float
    missing: float
    vector: Numbers


class CategoryLaw(NamedTuple):
    """How the codes of a category are drawn, and what effects they have.

    effect_key : uint64. name : uint64, hash of the category's name
    law        : f64[6]: top, q, 1/(1-s), F(1), F(H+1) - F(1), H with F(x) = (x + q)^(1-s)
    cuts       : f64[K], firsts f64[K+1]: classes of ranks instead; [0] and [1] without
    amplitudes : f64[3] of `bags`
    """

    effect_key: np.uint64
    name: np.uint64
    law: Numbers
    cuts: Numbers
    firsts: Numbers
    amplitudes: Numbers


class RowSums(NamedTuple):
    """What the planted model adds up by row: logit f64[n]; vectors f64[n, 4]; squares f64[n], the
    squared norms of the vectors.
    """

    logit: Numbers
    vectors: Numbers
    squares: Numbers


@register_jitable
def _uniform(draws, i, draw):
    """53 random bits of row i as fp64 in [0, 1): draw d uses the words of columns 2d and 2d + 1."""
    row = np.uint64(draws.row0 + i)
    words = philox4x32(draws.key, row, np.uint64(draw >> 1), np.uint64(draws.step))
    low, high = (words[2], words[3]) if draw & 1 else (words[0], words[1])
    # 53 bits: every number is exact in fp64, and 1 is never drawn
    return np.float64((low | (high << _U32)) >> _U11) * (1.0 / 9007199254740992.0)


@register_jitable
def _code_of(rank, name):
    """A 32-bit bijection (MurmurHash3's finaliser) of rank ^ name; never 0: name >= 2^31 > rank."""
    # a bijection, so that distinct ranks are distinct codes and none needs a table
    x = (np.uint64(rank) ^ name) & _MASK
    x ^= x >> _U16
    x = (x * np.uint64(0x85EBCA6B)) & _MASK
    x ^= x >> _U13
    x = (x * np.uint64(0xC2B2AE35)) & _MASK
    return x ^ (x >> _U16)


@kernel
def missing_groups(draws, rates, out):
    """Which groups of fields are missing in rows row0..: out[i, g] = 1 with probability rates[g].

    Shapes: draws `RowDraws`; rates f64[G]; out u8[n, G].
    Source: ours, after the joint missing fields of the Criteo log. Order: none.
    """
    for i in range(out.shape[0]):
        for g in range(out.shape[1]):
            out[i, g] = _uniform(draws, i, g) < rates[g]


@kernel
def integers(draws, absent, quantiles, out):
    """Values of an integer field by its quantile function; -2^63 where it is absent.

    Shapes: draws `RowDraws`; absent u8[n]; quantiles `Quantiles`; out i64[n].
    Source: ours. Order: none.
    """
    knots, starts, slopes, shift = quantiles
    for i in range(out.size):
        if absent[i]:
            out[i] = _ABSENT
            continue
        u = _uniform(draws, i, 0)
        j = 0
        while j + 1 < knots.size and knots[j + 1] <= u:
            j += 1
        x = exp(starts[j] + (u - knots[j]) * slopes[j]) - shift + 0.5
        out[i] = np.int64(np.floor(x))


@kernel
def integer_effects(values, terms, logit, vectors):
    """Add an integer field's terms to the logits and vectors.

    Shapes: values i64[n] (-2^63 absent); terms `IntegerTerms`; logit f64[n]; vectors f64[n, R].
    Source: ours, the planted model. Order: none within a field; fields are added in file order.
    """
    center, scale, slope, missing, vector = terms
    for i in range(values.size):
        if values[i] == _ABSENT:
            logit[i] += missing
            continue
        t = (log1p(np.float64(max(values[i], 0))) - center) * scale
        logit[i] += slope * t
        for r in range(vector.size):
            vectors[i, r] += t * vector[r]


@kernel
def square_norms(vectors, out):
    """out[i] = sum over r of vectors[i, r]^2.

    Shapes: vectors f64[n, R], out f64[n]. Source: ours, half of `add_pairs`. Order: ascending r.
    """
    for i in range(out.size):
        total = 0.0
        for r in range(vectors.shape[1]):
            total += vectors[i, r] * vectors[i, r]
        out[i] = total


@kernel
def bag_lengths(draws, absent, mean, geometric, out):
    """Codes per row: `mean`, or geometric with that mean: 1 + floor(log(1 - u) / log(1 - 1/mean));
    0 where absent.

    Shapes: draws `RowDraws`; absent u8[n]; mean f64 >= 1; geometric bool; out i64[n].
    Source: ours. Order: none.
    """
    # one logarithm for the column; -inf: every bag has one code
    rate = log(1.0 - 1.0 / mean) if mean > 1.0 else -np.inf
    for i in range(out.size):
        if absent[i]:
            out[i] = 0
        elif geometric and mean > 1.0:
            out[i] = 1 + np.int64(log(1.0 - _uniform(draws, i, 0)) / rate)
        else:
            out[i] = np.int64(mean)


@register_jitable
def _effect(key, code, vector_amplitude, vector):
    """Planted effect of a code, nearly normal (sum of four uniforms, variance 1); adds its vector
    to `vector`.
    """
    w0, w1, w2, w3 = philox4x32(key, code, np.uint64(0), np.uint64(0))
    if vector_amplitude != 0.0:
        words = philox4x32(key, code, np.uint64(1), np.uint64(0))
        for r in range(4):
            vector[r] += (
                np.float64(np.int64(words[r]) - 2147483648)
                * (1.0 / 2147483648.0)
                * vector_amplitude
            )
    # a sum of integers, so without an order; exact in fp64
    return np.float64(np.int64(w0 + w1 + w2 + w3) - 8589934592) * (
        1.7320508075688772 / 4294967296.0
    )


@register_jitable
def _rank(u, law):
    """Zipf-Mandelbrot rank of a draw, by the inverse of its distribution function."""
    if u < law[0]:
        return np.int64(1)
    u = (u - law[0]) / (1.0 - law[0])
    x = exp(log(law[3] + u * law[4]) * law[2]) - law[1]
    return np.int64(min(max(np.floor(x), 1.0), law[5]))


@register_jitable
def _reused_rank(u, cuts, firsts, most):
    """Rank of a draw among classes of ranks, each drawn equally often within its class."""
    j = 0
    while j + 1 < cuts.size and u >= cuts[j]:
        j += 1
    low = cuts[j - 1] if j else 0.0
    x = firsts[j] + (u - low) / (cuts[j] - low) * (firsts[j + 1] - firsts[j])
    return np.int64(min(np.floor(x) + 1.0, most))


@kernel
def bags(draws, offsets, absent, category, codes, sums):
    """Draw the codes of one category and add their planted effects.

    A draw u is rank 1 with probability law[0]; else, with u spread over [0, 1) again,
    floor(y^(law[2]) - law[1]) with y = law[3] + u * law[4], within [1, law[5]]: a Zipf-Mandelbrot
    rank. With classes (K > 0) instead: class j has the draws from cuts[j-1] to cuts[j], and spreads
    them evenly over ranks firsts[j] to firsts[j+1]. Frequent codes matter most, by d = 1 / sqrt(1 +
    rank / amplitudes[1]): logit += amplitudes[0] * d * effect; the vectors of a bag, of amplitude
    amplitudes[2] * d, are summed, added to vectors, and their squared norm to squares.

    Shapes: draws `RowDraws`; offsets i64[n+1]; absent u8[n] (its codes are 0, no effect); category
    `CategoryLaw`; codes u32[offsets[n]]; sums `RowSums`.
    Source: ours, the planted model. Order: draws of a bag in order.
    """
    effect_key, name, law, cuts, firsts, amplitudes = category
    logit, vectors, squares = sums
    bag = np.zeros(4)
    for i in range(logit.size):
        bag[:] = 0.0
        for at in range(offsets[i], offsets[i + 1]):
            if absent[i]:
                codes[at] = 0
                continue
            u = _uniform(draws, i, 1 + at - offsets[i])
            rank = _reused_rank(u, cuts, firsts, law[5]) if cuts.size else _rank(u, law)
            code = _code_of(rank, name)
            codes[at] = np.uint32(code)
            damping = 1.0 / np.sqrt(1.0 + np.float64(rank) / amplitudes[1])
            logit[i] += _effect(effect_key, code, amplitudes[2] * damping, bag) * (
                amplitudes[0] * damping
            )
        if amplitudes[2] != 0.0:
            total = 0.0
            for r in range(4):
                vectors[i, r] += bag[r]
                total += bag[r] * bag[r]
            squares[i] += total


@kernel
def add_pairs(vectors, squares, logit):
    """logit += (|sum of the vectors|^2 - sum of the |vector|^2) / 2, that is the sum of <v, v'>
    over all pairs.

    Shapes: vectors f64[n, R] (summed), squares f64[n], logit f64[n]. Source: factorisation machines
    (Rendle 2010), the interaction that DLRM's dot products can express. Order: ascending r.
    """
    for i in range(logit.size):
        total = 0.0
        for r in range(vectors.shape[1]):
            total += vectors[i, r] * vectors[i, r]
        logit[i] += 0.5 * (total - squares[i])


@kernel
def calibrate(raw, sigma, rate):
    """(scale, bias) so that scale * raw has standard deviation sigma and sigmoid(scale * raw +
    bias) the mean rate.

    Shapes: raw f64[n]; sigma, rate f64. Source: ours; bias by 60 bisections of [-30, 30].
    Order: ascending, one fp64 sum.
    """
    total = 0.0
    n = np.float64(raw.size)
    for i in range(raw.size):
        total += raw[i]
    mean = total / n
    total = 0.0
    for i in range(raw.size):
        total += (raw[i] - mean) * (raw[i] - mean)
    # before the bias, which depends on it
    scale = sigma / np.sqrt(total / n)
    low = -30.0
    high = 30.0
    # 60 halvings of an interval of 60: below the last bit of the bias, on every machine alike
    for _ in range(60):
        middle = 0.5 * (low + high)
        total = 0.0
        for i in range(raw.size):
            total += sigmoid(raw[i] * scale + middle)
        if total / n < rate:
            low = middle
        else:
            high = middle
    return scale, 0.5 * (low + high)


@kernel
def clicks(draws, raw, scale, bias, probability, labels):
    """probability = sigmoid(raw * scale + bias); labels = 1 where a uniform number is below it,
    else 0.

    Shapes: draws `RowDraws`; raw, probability f64[n]; scale, bias f64; labels f32[n].
    Source: ours. Order: none.
    """
    for i in range(raw.size):
        probability[i] = sigmoid(raw[i] * scale + bias)
        labels[i] = np.float32(1.0) if _uniform(draws, i, 0) < probability[i] else np.float32(0.0)


@kernel
def tally(probability, labels, histogram):
    """Count rows by probability and label; returns the logloss of all rows, each rounded to a
    multiple of 2^-30.

    Shapes: probability f64[n] in (0, 1); labels f32[n]; histogram i64[2, bins] (added to; bin =
    floor(p * bins)).
    Source: ours. Order: none, integers.
    """
    total = np.int64(0)
    bins = np.float64(histogram.shape[1])
    for i in range(probability.size):
        label = np.int64(labels[i])
        histogram[label, min(np.int64(probability[i] * bins), histogram.shape[1] - 1)] += 1
        loss = -log(probability[i] if label else 1.0 - probability[i])
        # whole numbers add in any order: blocks, threads and ranks give one sum
        total += np.int64(np.floor(loss * _FIXED_POINT + 0.5))
    return total


@register_jitable
def _put_integer(value, out, at):
    """Decimal digits of value at out[at:]; the place after them."""
    if value < 0:
        out[at] = 45
        value = -value
        at = at + 1
    # digits are counted first, since they are written from the last one on
    digits = 1
    rest = value // 10
    while rest:
        digits = digits + 1
        rest = rest // 10
    for k in range(digits):
        out[at + digits - 1 - k] = 48 + value % 10
        value //= 10
    return at + digits


@kernel
def format_rows(labels, values, codes, out):
    """Rows as the Criteo log writes them: label, integers, 8-digit hexadecimal codes, tabs between;
    empty where absent (integer -2^63, code 0). Returns the number of bytes.

    Shapes: labels f32[n]; values i64[Nd, n]; codes u32[F, n]; out u8[>= n * (2 + 21 Nd + 9 F)].
    Source: the Criteo Display Advertising log. Order: rows, then columns.
    """
    at = 0
    for i in range(labels.size):
        out[at] = 49 if labels[i] != np.float32(0.0) else 48
        at += 1
        for j in range(values.shape[0]):
            out[at] = 9
            at += 1
            if values[j, i] != _ABSENT:
                at = _put_integer(values[j, i], out, at)
        for f in range(codes.shape[0]):
            out[at] = 9
            at += 1
            code = np.int64(codes[f, i])
            if code != 0:
                for k in range(8):
                    digit = (code >> (28 - 4 * k)) & 15
                    out[at + k] = digit + 48 if digit < 10 else digit + 87
                at += 8
        out[at] = 10
        at += 1
    return at
