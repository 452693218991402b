"""What does a product of small floats give, that adds in fp32 in any order?

Operands are rounded once, to nearest even. A product of two of them is exact in fp32, so only
additions round. Matrix units may cut off the bits that an addition shifts out, which costs up to
two roundings: `ADDITIONS`.
"""

import math

import numpy as np

from neocpu.core.types import Ints
from neocpu.oracle.operator import Options, Switches
from neocpu.oracle.truth.formats import FORMATS, TF32, Format, away, nearest, stored, toward_zero
from neocpu.oracle.truth.numbers import TINY, Bounded, Real
from neocpu.oracle.truth.sums import Roundings, sums_of, unit

ADDITIONS = 2  # of an fp32 addition that truncates
STEP = 16  # products that a matrix unit adds at a time
NORMAL = 2.0**-126


def operand(x: np.ndarray, options: Options, switches: Switches) -> Real:
    """The numbers f64 that enter the products, of numbers x f32."""
    form = FORMATS[str(options["format"])]
    number = np.asarray(x, np.float64)
    if "operands_not_rounded" in switches:
        return number
    if "operands_in_tf32" in switches:
        return nearest(number, TF32)
    if "operands_truncated" in switches:
        return toward_zero(number, form)
    if "operands_rounded_twice" in switches:
        number = nearest(number, TF32)
    if "operands_half_up" in switches:
        return _half_up(x, form)
    rounded = nearest(number, form)
    if "subnormals_flushed" in switches:
        return np.where(np.abs(rounded) < math.ldexp(1.0, form.smallest), 0.0, rounded)
    return rounded


def _half_up(x: np.ndarray, form: Format) -> Real:
    """Half an ulp is added to the bits, whatever they mean, and the lower ones go."""
    if form.name != "bf16":
        return away(np.asarray(x, np.float64), form)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32) + np.uint32(0x8000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def products(a: Bounded, b: Real, options: Options, switches: Switches) -> Bounded:
    """Sums over k of a[m, k] b[n, k]: [M, N], of operands that are numbers of the format.

    a : those of another product may be another number of the format, by its error.
    """
    steps = b.shape[1]
    if "last_steps_dropped" in switches:
        steps -= steps % STEP
    left = Bounded(a.value[:, :steps, None], a.error[:, :steps, None])
    right = b.T[None, :steps]
    with np.errstate(invalid="ignore", over="ignore"):
        value = left.value * right
        error = np.where(left.error == 0, 0.0, left.error * np.abs(right))
        magnitude = (np.abs(left.value) + left.error) * np.abs(right)
    if "accumulated_in_operand_format" in switches:
        return _chained(value, FORMATS[str(options["format"])])
    shape = (len(a.value) * steps, len(b))
    starts: Ints = np.arange(len(a.value) + 1, dtype=np.int64) * steps
    terms = Bounded(value.reshape(shape), error.reshape(shape))
    # a kernel that multiplies in fp32 loses what is below its least subnormal number
    lost = np.where(unit(terms.value) < TINY, TINY / 2, 0.0)
    by = Roundings(additions=ADDITIONS, underflow=lost)
    total = sums_of(terms, magnitude.reshape(shape), starts, by)
    if "subnormals_flushed" in switches:
        small = np.abs(total.value) < NORMAL
        return Bounded(np.where(small, 0.0, total.value), np.where(small, 0.0, total.error))
    return total


def _chained(terms: Real, form: Format) -> Bounded:
    """Sums over the second axis of [M, K, N], each partial sum rounded to a format."""
    total = np.zeros((terms.shape[0], terms.shape[2]))
    with np.errstate(invalid="ignore", over="ignore"):
        for step in range(terms.shape[1]):
            total = nearest(total + terms[:, step], form)
    return Bounded.exactly(total)


def layer(
    a: Bounded, w: np.ndarray, bias: np.ndarray, options: Options, switches: Switches
) -> Bounded:
    """A layer without ReLU: a [M, K], w f32[N, K], bias f32[N] or none of them."""
    total = products(a, operand(w, options, switches), options, switches)
    if "sum_rounded_before_bias" in switches:
        total = stored(total, str(options["format"]))
    if bias.size == 0 or "bias_missing" in switches:
        return total
    added = np.asarray(bias, np.float64)
    if "bias_rounded" in switches:
        added = nearest(added, FORMATS[str(options["format"])])
    return total + Bounded.exactly(np.broadcast_to(added, total.value.shape))


def relu(x: Bounded) -> Bounded:
    """x where it is above 0; a NaN stays."""
    with np.errstate(invalid="ignore"):
        surely = x.value + x.error <= 0
        value = np.where(x.value <= 0, 0.0, x.value)
    return Bounded(value, np.where(surely, 0.0, x.error))


def pairs(e: Real, diagonal: bool, options: Options, switches: Switches) -> Bounded:
    """Dot products of the pairs of vectors e [B, F, D]: the lower triangle, row by row."""
    count = e.shape[1]
    rows, columns = np.tril_indices(count, 0 if diagonal else -1)
    if "pairs_of_upper_triangle" in switches:
        rows, columns = np.triu_indices(count, 0 if diagonal else 1)
    results = [products(Bounded.exactly(x), x, options, switches) for x in e]
    value = np.array([result.value[rows, columns] for result in results])
    error = np.array([result.error[rows, columns] for result in results])
    return Bounded(value.reshape(len(e), rows.size), error.reshape(len(e), rows.size))
