"""How are exp, log, log1p and tanh computed so that every machine, and NumPy, gives the same bits?

In fp64, by additions, multiplications and divisions in the order written here, without fused
multiply-add and without the C library (`docs/arithmetic.md` §8). The error is below one unit in the
last place of fp64, so one more rounding to fp32 nearly always gives the correctly rounded result.

    exp    x = k ln2 + r, |r| <= 0.35:  2^k * (1 + (r + (r*r*q(r) + c))),
           c the rounding error of r, q the Taylor series up to r^14
    log    x = 2^k (1 + f), 1 + f in [0.7, 1.42):  s = f / (2 + f),
           log(1 + f) = 2 atanh(s) = f - (h - s*(h + R)),
           h = f*f/2, R the rest of the atanh series, up to s^23
    log1p  the same with f = x where no power of two is needed,
           else the logarithm of 1 + x plus a correction for its rounding error
    tanh   -m / (m + 2) with m = e^(-2|x|) - 1, by exp's series without its 1; the sign of x

Other kernels call the scalar functions; `*_array` are kernels over arrays. Every NaN result is
0x7ff8000000000000.
"""

import math

import numpy as np
from numba.extending import register_jitable

from neocpu.kernels.compile.jit import kernel

# 0x3fe62e42fee00000: 32 significant bits, so k * _LN2_HIGH is exact for |k| < 2^11
_LN2_HIGH = 0.6931471803691238
# 0x3dea39ef35793c76: ln 2 - _LN2_HIGH
_LN2_LOW = 1.9082149292705877e-10
_LOG2_E = 1.4426950408889634
# 1.5 * 2^52: adding and subtracting it rounds to the nearest integer, ties to even
_ROUND = 6755399441055744.0
# bits of 1.0
_ONE_BITS = 4607182418800017408
# bits of sqrt(1/2)
_SQRT_HALF_BITS = 4604544271217802189


@register_jitable
def _power_of_two(k):
    """2^k for -1022 <= k <= 1023."""
    return np.int64((np.int64(k) + 1023) << 52).view(np.float64)


@register_jitable
def _exp_tail(x):
    """(k, t) with e^x = 2^k (1 + t), for x that is neither too large nor too small."""
    # no conversion and no `rint`: an addition rounds alike on all machines
    k = (x * _LOG2_E + _ROUND) - _ROUND
    # k * _LN2_HIGH is exact, and so is the difference: only `low` is rounded
    high = x - k * _LN2_HIGH
    low = k * _LN2_LOW
    r = high - low
    c = (high - r) - low
    # 1/14!: the next term is below half a unit in the last place for |r| <= 0.35
    q = 1.0 / 87178291200.0
    q = q * r + 1.0 / 6227020800.0
    q = q * r + 1.0 / 479001600.0
    q = q * r + 1.0 / 39916800.0
    q = q * r + 1.0 / 3628800.0
    q = q * r + 1.0 / 362880.0
    q = q * r + 1.0 / 40320.0
    q = q * r + 1.0 / 5040.0
    q = q * r + 1.0 / 720.0
    q = q * r + 1.0 / 120.0
    q = q * r + 1.0 / 24.0
    q = q * r + 1.0 / 6.0
    q = q * r + 0.5
    return k, r + (r * r * q + c)


@register_jitable
def exp(x):
    """e^x in fp64; inf above 709.78, subnormal below -708.4, +0 below -745.13."""
    if x != x:
        return np.nan
    if x > 709.782712893384:
        return np.inf
    if x < -745.1332191019412:
        return 0.0
    k, tail = _exp_tail(x)
    y = 1.0 + tail
    # 2^k itself may be outside the range of fp64 where the result is not.
    half = np.int64(k) >> 1
    return (y * _power_of_two(half)) * _power_of_two(np.int64(k) - half)


@register_jitable
def _split(x):
    """(k, m) with x = 2^k m exactly and m in [sqrt(1/2), sqrt(2)), for positive finite x."""
    scaled = 0
    if x < 2.2250738585072014e-308:
        # 2^54 makes a subnormal number normal.
        x = x * 18014398509481984.0
        scaled = 54
    bits = np.float64(x).view(np.int64)
    k = ((bits + (_ONE_BITS - _SQRT_HALF_BITS)) >> 52) - 1023
    return k - scaled, np.int64(bits - (k << 52)).view(np.float64)


@register_jitable
def _log_tail(f, k, c):
    """k ln2 + log(1 + f) + c, for |f| <= 0.42 and a tiny correction c."""
    s = f / (2.0 + f)
    half = 0.5 * f * f
    z = s * s
    q = 2.0 / 23.0
    q = q * z + 2.0 / 21.0
    q = q * z + 2.0 / 19.0
    q = q * z + 2.0 / 17.0
    q = q * z + 2.0 / 15.0
    q = q * z + 2.0 / 13.0
    q = q * z + 2.0 / 11.0
    q = q * z + 2.0 / 9.0
    q = q * z + 2.0 / 7.0
    q = q * z + 2.0 / 5.0
    q = q * z + 2.0 / 3.0
    return k * _LN2_HIGH - ((half - (s * (half + q * z) + (k * _LN2_LOW + c))) - f)


@register_jitable
def log(x):
    """Natural logarithm in fp64; log(0) = -inf, NaN for negative x."""
    # `not >=`: NaN too
    if not x >= 0.0:
        return np.nan
    if x == 0.0:
        return -np.inf
    if x == np.inf:
        return np.inf
    k, m = _split(x)
    return _log_tail(m - 1.0, np.float64(k), 0.0)


@register_jitable
def log1p(x):
    """log(1 + x) in fp64, accurate for small x; -inf for -1, NaN below; log1p(-0) = -0."""
    if not x >= -1.0:
        return np.nan
    if x == -1.0:
        return -np.inf
    if x == np.inf:
        return np.inf
    # 2^-54: there x^2 / 2 is below half a unit in the last place of x; -0 stays -0
    if -5.551115123125783e-17 < x < 5.551115123125783e-17:
        return x
    # 1 + x is in [0.7, 1.42): no power of two is needed, and x itself is exact
    if -0.29 < x < 0.41:
        return _log_tail(x, 0.0, 0.0)
    u = 1.0 + x
    # the larger of 1 and x first, as in TwoSum for ordered operands: the difference is exact
    c = (1.0 - (u - x) if x > 1.0 else x - (u - 1.0)) / u
    k, m = _split(u)
    return _log_tail(m - 1.0, np.float64(k), c)


@register_jitable
def sigmoid(x):
    """1 / (1 + e^-x) in fp64 without overflow: (1 or e) / (1 + e) with e = exp(-|x|)."""
    e = exp(-abs(x))
    return (1.0 if x >= 0.0 else e) / (1.0 + e)


@register_jitable
def softplus(x):
    """log(1 + e^x) in fp64 without overflow: max(x, 0) + log1p(exp(-|x|))."""
    if x != x:
        return np.nan
    return (x if x > 0.0 else 0.0) + log1p(exp(-abs(x)))


@register_jitable
def tanh(x):
    """The hyperbolic tangent in fp64; ±1 beyond |x| = 22; tanh(-0) = -0."""
    if x != x:
        return np.nan
    size = abs(x)
    if size > 22.0:
        return math.copysign(1.0, x)
    k, t = _exp_tail(-2.0 * size)
    scale = _power_of_two(np.int64(k))
    m = (scale - 1.0) + scale * t
    return math.copysign(m / (m + 2.0), x)


@kernel
def exp_array(x, out):
    """out = exp(x), f64[n] each; see `exp`. Source: docs/arithmetic.md §8."""
    for i in range(x.size):
        out[i] = exp(x[i])


@kernel
def log_array(x, out):
    """out = log(x), f64[n] each; see `log`. Source: docs/arithmetic.md §8."""
    for i in range(x.size):
        out[i] = log(x[i])


@kernel
def log1p_array(x, out):
    """out = log1p(x), f64[n] each; see `log1p`. Source: docs/arithmetic.md §8."""
    for i in range(x.size):
        out[i] = log1p(x[i])


@kernel
def sigmoid_array(x, out):
    """out = 1 / (1 + exp(-x)), f64[n] each; see `sigmoid`. Source: docs/arithmetic.md §8."""
    for i in range(x.size):
        out[i] = sigmoid(x[i])


@kernel
def softplus_array(x, out):
    """out = log(1 + exp(x)), f64[n] each; see `softplus`. Source: docs/arithmetic.md §8."""
    for i in range(x.size):
        out[i] = softplus(x[i])


@kernel
def tanh_array(x, out):
    """out = tanh(x), f64[n] each; see `tanh`. Source: docs/arithmetic.md §8."""
    for i in range(x.size):
        out[i] = tanh(x[i])
