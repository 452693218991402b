"""What are exp, log, log1p, sigmoid, softplus and tanh, to the bit? The twin of
`kernels/numbers/elementary.py`.

Every line is one fp64 operation per element in the order of `docs/arithmetic.md` §8; scaling by
powers of two is exact and uses `np.frexp` and `np.ldexp`. NumPy's own transcendental functions
differ between machines and are not used.
"""

import math

import numpy as np

_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")


def _horner(x: np.ndarray, coefficients: list[float]) -> np.ndarray:
    """c[0] + c[1] x + ..., from the highest power down."""
    y = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        y = y * x + c
    return y


def _exp_tail(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(k, t) with e^x = 2^k (1 + t)."""
    k = np.rint(x * 1.4426950408889634)
    high = x - k * _LN2_HIGH
    low = k * _LN2_LOW
    r = high - low
    c = (high - r) - low
    q = _horner(r, [1.0 / math.factorial(n) for n in range(2, 15)])
    return k, r + (r * r * q + c)


def exp(x: np.ndarray) -> np.ndarray:
    """e^x of an f64 array."""
    x = np.asarray(x, np.float64)
    inside = np.where((x <= 709.782712893384) & (x >= -745.1332191019412), x, 0.0)
    k, t = _exp_tail(inside)
    with np.errstate(under="ignore"):
        y = np.ldexp(1.0 + t, k.astype(np.int64))
    y = np.where(x > 709.782712893384, np.inf, np.where(x < -745.1332191019412, 0.0, y))
    return np.where(np.isnan(x), np.nan, y)


def _log_tail(f: np.ndarray, k: np.ndarray, c: np.ndarray) -> np.ndarray:
    """k ln2 + log(1 + f) + c."""
    s = f / (2.0 + f)
    half = 0.5 * f * f
    z = s * s
    series = _horner(z, [2.0 / n for n in range(3, 24, 2)]) * z
    return k * _LN2_HIGH - ((half - (s * (half + series) + (k * _LN2_LOW + c))) - f)


def _split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x = 2^k m with m in [sqrt(1/2), sqrt(2))."""
    # frexp has m in [1/2, 1); below sqrt(1/2) one factor 2 moves over
    m, k = np.frexp(x)
    low = m < math.sqrt(0.5)
    return np.where(low, k - 1, k).astype(np.float64), np.where(low, 2.0 * m, m)


def log(x: np.ndarray) -> np.ndarray:
    """Natural logarithm of an f64 array."""
    x = np.asarray(x, np.float64)
    k, m = _split(np.where((x > 0.0) & (x < np.inf), x, 1.0))
    y = _log_tail(m - 1.0, k, np.zeros_like(k))
    y = np.where(x == 0.0, -np.inf, np.where(x == np.inf, np.inf, y))
    return np.where(x >= 0.0, y, np.nan)


def log1p(x: np.ndarray) -> np.ndarray:
    """log(1 + x) of an f64 array."""
    x = np.asarray(x, np.float64)
    inside = np.where((x > -1.0) & (x < np.inf), x, 0.0)
    near = (inside > -0.29) & (inside < 0.41)
    far = np.where(near, 1.0, inside)
    u = 1.0 + far
    c = np.where(far > 1.0, 1.0 - (u - far), far - (u - 1.0)) / u
    k, m = _split(u)
    y = _log_tail(np.where(near, inside, m - 1.0), np.where(near, 0.0, k), np.where(near, 0.0, c))
    y = np.where(np.abs(inside) < 2.0**-54, inside, y)
    y = np.where(x == -1.0, -np.inf, np.where(x == np.inf, np.inf, y))
    return np.where(x >= -1.0, y, np.nan)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x) of an f64 array."""
    e = exp(-np.abs(x))
    return np.where(x >= 0.0, 1.0, e) / (1.0 + e)


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + e^x) of an f64 array."""
    y = np.where(x > 0.0, x, 0.0) + log1p(exp(-np.abs(x)))
    return np.where(np.isnan(x), np.nan, y)


def tanh(x: np.ndarray) -> np.ndarray:
    """The hyperbolic tangent of an f64 array."""
    x = np.asarray(x, np.float64)
    size = np.abs(x)
    k, t = _exp_tail(-2.0 * np.where(size <= 22.0, size, 0.0))
    scale = np.ldexp(1.0, k.astype(np.int64))
    m = (scale - 1.0) + scale * t
    y = np.copysign(np.where(size > 22.0, 1.0, m / (m + 2.0)), x)
    return np.where(np.isnan(x), np.nan, y)


def exp_array(x, out):
    """out = exp(x); see `kernels.numbers.elementary.exp_array`."""
    out[:] = exp(x)


def log_array(x, out):
    """out = log(x); see `kernels.numbers.elementary.log_array`."""
    out[:] = log(x)


def log1p_array(x, out):
    """out = log1p(x); see `kernels.numbers.elementary.log1p_array`."""
    out[:] = log1p(x)


def sigmoid_array(x, out):
    """out = sigmoid(x); see `kernels.numbers.elementary.sigmoid_array`."""
    out[:] = sigmoid(x)


def softplus_array(x, out):
    """out = softplus(x); see `kernels.numbers.elementary.softplus_array`."""
    out[:] = softplus(x)


def tanh_array(x, out):
    """out = tanh(x); see `kernels.numbers.elementary.tanh_array`."""
    out[:] = tanh(x)
