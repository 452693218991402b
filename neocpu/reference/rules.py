"""Which optimizers exist, what do they remember, and what is their formula? The registry, and the
twin of `kernels/rules.py`.

A rule here updates one row, or a whole array of elements, in place; phases and arguments as in the
kernels. Every NumPy operation is one IEEE operation per element: the kernels' bits. This file
imports NumPy only, so the config and `--help` can list the rules without Numba. Formulas:
docs/arithmetic.md §5.
"""

from dataclasses import dataclass

import numpy as np

from neocpu.reference.elementary import exp, log

HYPER = (
    "lr",
    "eps",
    "beta1",
    "one_minus_beta1",
    "beta2",
    "one_minus_beta2",
    "correction1",
    "correction2",
    "l2",
    "keep",
    "decay",
    "momentum",
    "eta",
    "max_norm",
    "step",
    "shrink",
    "least_keep",
    "halflife",
    "frequency",
    "adjusting",
    "since",
    "rate_mode",
    "adagradw",
    "most",
    "tail",
    "bound",
    "coefficient",
    "lower",
)


@dataclass(frozen=True)
class Rule:
    """One optimizer: what it remembers, and what it must be told.

    element_state, row_state : names of its state tensors per element and per row, all fp32.
    row_scalars : 1: its update reads the row's sum of g*g, 2: and that of w*w. direct : it has a
    phase before that turns g into the step's direction and reads the sum of g*g too. accumulator :
    the state that starts at `initial_accumulator_value`. options : keys of its own
    (`embedding.optimizers.SparseOptimizer`). updates : it has an update; `none` leaves gradients to
    the caller.
    """

    name: str
    element_state: tuple[str, ...] = ()
    row_state: tuple[str, ...] = ()
    row_scalars: int = 0
    direct: bool = False
    accumulator: str | None = None
    options: tuple[str, ...] = ()
    updates: bool = True


MOMENTS = ("exp_avg", "exp_avg_sq")
COUNTED = ("sum", "prev_iter", "row_counter")
TAIL_OPTIONS = (
    "learning_rate_mode",
    "max_counter",
    "tail_id_threshold",
    "tail_id_threshold_is_ratio",
)
RULES = {
    rule.name: rule
    for rule in (
        Rule("exact_sgd"),
        Rule("momentum_sgd", ("momentum_buffer",), options=("momentum",)),
        Rule("lars_sgd", ("momentum_buffer",), row_scalars=2, options=("momentum", "eta")),
        Rule("exact_adagrad", ("sum",), accumulator="sum"),
        Rule("exact_rowwise_adagrad", (), ("sum",), row_scalars=1, accumulator="sum"),
        Rule(
            "exact_rowwise_adagrad_with_counter",
            (),
            COUNTED,
            row_scalars=1,
            accumulator="sum",
            options=("counter_halflife", "adjustment_iter", "adjustment_ub", *TAIL_OPTIONS),
        ),
        Rule(
            "exact_rowwise_adagrad_with_cowclip",
            (),
            COUNTED,
            row_scalars=2,
            accumulator="sum",
            options=("counter_halflife", "weight_norm_coefficient", "lower_bound"),
        ),
        Rule("adam", MOMENTS),
        Rule("partial_rowwise_adam", MOMENTS[:1], MOMENTS[1:], row_scalars=1),
        Rule("lamb", MOMENTS, row_scalars=2),
        Rule("partial_rowwise_lamb", MOMENTS[:1], MOMENTS[1:], row_scalars=2, direct=True),
        Rule(
            "rowwise_rmsprop",
            (),
            ("square_avg", "prev_iter"),
            row_scalars=1,
            options=("ar_alpha", "min_shrinkage"),
        ),
        Rule("none", updates=False),
    )
}


def _named(hyper) -> dict[str, np.float32]:
    return dict(zip(HYPER, hyper))


def prepare(name):
    """The first phase of a rule."""
    return {"lars_sgd": lars_sgd_prepare, "lamb": lamb_prepare}.get(name, regularise)


def regularise(w, g, e0, e1, hyper):
    """L2 weight decay, before anything else: g = fl(g + fl(wd*w)); without it nothing is added (0*w
    could be NaN).
    """
    l2 = _named(hyper)["l2"]
    if l2:
        g += l2 * w


def _step_down(w, step, keep) -> None:
    """w = fl(fl(keep*w) - step), keep the decoupled weight decay."""
    w[...] = (w if keep == 1 else keep * w) - step


def limit_norm(w, g, e0, e1, r, squares, columns, hyper):
    """w *= max_norm / ||w|| where the norm is larger"""
    most = _named(hyper)["max_norm"]
    norm = np.sqrt(squares[0])
    if norm > most:
        w *= most / norm


def exact_sgd(w, g, e0, e1, r, squares, columns, hyper):
    """w -= lr * g"""
    h = _named(hyper)
    _step_down(w, h["lr"] * g, h["keep"])


def momentum_sgd(w, g, e0, e1, r, squares, columns, hyper):
    """m = momentum * m + g; w -= lr * m"""
    h = _named(hyper)
    e0[...] = h["momentum"] * e0 + g
    _step_down(w, h["lr"] * e0, h["keep"])


def lars_sgd_prepare(w, g, e0, e1, hyper):
    """Nothing: norms are those of the merged gradient and of the row, before weight decay."""


def lars_sgd(w, g, e0, e1, r, squares, columns, hyper):
    """trust = eta * ||w|| / (||g|| + wd * ||w||); m = momentum * m + lr * trust * (g + wd * w); w
    -= m
    """
    h = _named(hyper)
    of_g, of_w = np.sqrt(squares)
    trust = np.float32(1) if of_g == 0 or of_w == 0 else h["eta"] * of_w / (of_g + h["l2"] * of_w)
    regularise(w, g, e0, e1, hyper)
    e0[...] = h["momentum"] * e0 + (h["lr"] * trust) * g
    _step_down(w, e0, h["keep"])


def exact_adagrad(w, g, e0, e1, r, squares, columns, hyper):
    """sum += g^2; w -= lr * g / (sqrt(sum) + eps)"""
    h = _named(hyper)
    e0 += np.square(g)
    _step_down(w, (h["lr"] * g) / (np.sqrt(e0) + h["eps"]), h["keep"])


def exact_rowwise_adagrad(w, g, e0, e1, r, squares, columns, hyper):
    """sum += mean(g^2); w -= lr / (sqrt(sum) + eps) * g"""
    h = _named(hyper)
    r[0] += squares[0] / columns
    _step_down(w, h["lr"] / (np.sqrt(r[0]) + h["eps"]) * g, h["keep"])


def _gap(before, h) -> np.float32:
    """Steps since a row was last updated; 1 at its first update."""
    return h["step"] - before if before > 0 else np.float32(1)


def _count(before, times, h) -> np.float32:
    """How often a row was updated, this time included: each update is worth half after `halflife`
    steps.
    """
    if h["halflife"] > 0:
        exponent = -float(_gap(before, h)) * 0.6931471805599453 / float(h["halflife"])
        return np.float32(1) + np.float32(exp(np.array(exponent))) * times
    return np.float32(1) + (times if h["halflife"] < 0 else np.float32(0))


def _raised(x, y) -> np.float32:
    """x^y of positive fp32 numbers, in fp64, rounded once."""
    return np.float32(exp(np.float64(y) * log(np.array(x, np.float64))))


def _powered(base, n: int) -> np.float32:
    """base^n by binary powering in fp64, rounded once."""
    result = np.float64(1)
    square = np.float64(base)
    for digit in bin(max(n, 0))[:1:-1]:
        result = result * (square if digit == "1" else 1)
        square = square * square
    return np.float32(result)


def _tail_rate(rate, times, h) -> np.float32:
    """Learning rate of a row that was counted `times`, from its plain one."""
    f = np.float32
    mode = h["rate_mode"]
    if mode < 0 or not times > h["tail"]:
        return rate
    if mode == 2:
        return h["lr"] / (np.sqrt(h["bound"] * times) + h["eps"])
    if mode == 0:
        return rate * np.fmax(np.fmin(_raised(h["most"] / (times + f(1)), h["bound"]), f(10)), f(1))
    return rate * np.fmin(np.fmax(_raised((times + f(1)) / h["most"], h["bound"]), f(0.1)), f(1))


def exact_rowwise_adagrad_with_counter(w, g, e0, e1, r, squares, columns, hyper):
    """exact_rowwise_adagrad whose rate and weight decay depend on how often, and how long ago, a
    row was updated
    """
    h = _named(hyper)
    one = np.float32(1)
    gap = _gap(r[1], h)
    times = _count(r[1], r[2], h)
    r[:] = r[0] + squares[0] / columns, h["step"], times
    root = np.sqrt(r[0]) + h["eps"]
    plain = rate = h["lr"] / root
    keep = one
    share = np.float32(0)
    if h["adjusting"]:
        rate = _tail_rate(plain, times, h)
        share = h["frequency"] / times
    if h["adjusting"] and h["adagradw"]:
        if h["halflife"] == -1:
            rate = plain * np.sqrt(times)
        if h["halflife"] == -2:
            rate = np.fmin(h["lr"] * times, h["bound"]) / root
        lazy = _powered(h["keep"], int(min(gap, h["since"])) - 1)
        rate = rate * lazy
        keep = h["keep"] * lazy
    if h["decay"]:
        keep = one - share * h["decay"] * h["lr"]
    if h["l2"]:
        keep = one - h["l2"] * (share * plain - rate)
    w[...] = keep * w - rate * g


def exact_rowwise_adagrad_with_cowclip(w, g, e0, e1, r, squares, columns, hyper):
    """exact_rowwise_adagrad of g * min(1, times * max(coefficient * ||w||, lower) / ||g||)"""
    h = _named(hyper)
    r[:] = r[0] + squares[0] / columns, h["step"], _count(r[1], r[2], h)
    limit = r[2] * np.fmax(h["coefficient"] * np.sqrt(squares[1]), h["lower"])
    clip = np.fmin(limit / np.sqrt(squares[0]), np.float32(1))
    _step_down(w, clip * (h["lr"] / (np.sqrt(r[0]) + h["eps"])) * g, h["keep"])


def rowwise_rmsprop(w, g, e0, e1, r, squares, columns, hyper):
    """v = beta2 * v + (1 - beta2) * mean(g^2); w = max(least, 1 - lr * alpha * elapsed) * w - lr /
    (sqrt(v) + eps) * g
    """
    h = _named(hyper)
    one = np.float32(1)
    keep = np.fmax(one - np.fmin(h["shrink"] * _gap(r[1], h), one), h["least_keep"])
    r[:] = h["beta2"] * r[0] + h["one_minus_beta2"] * (squares[0] / columns), h["step"]
    if h["keep"] != 1:
        w *= h["keep"]
    w[...] = keep * w - h["lr"] / (np.sqrt(r[0]) + h["eps"]) * g


def adam(w, g, e0, e1, r, squares, columns, hyper):
    """Adam with bias correction by the global step"""
    h = _named(hyper)
    _step_down(w, h["lr"] * _direction(g, e0, e1, h), h["keep"])


def _direction(g, e0, e1, h):
    """Adam's step before its rate; moments are updated."""
    e0[...] = h["beta1"] * e0 + h["one_minus_beta1"] * g
    e1[...] = h["beta2"] * e1 + h["one_minus_beta2"] * np.square(g)
    return e0 * h["correction1"] / (np.sqrt(e1 * h["correction2"]) + h["eps"])


def _row_direction(g, e0, r, squares, columns, h):
    """Adam's step before its rate, with one second moment per row."""
    r[0] = h["beta2"] * r[0] + h["one_minus_beta2"] * (squares[0] / columns)
    e0[...] = h["beta1"] * e0 + h["one_minus_beta1"] * g
    return e0 * h["correction1"] / (np.sqrt(r[0] * h["correction2"]) + h["eps"])


def partial_rowwise_adam(w, g, e0, e1, r, squares, columns, hyper):
    """Adam with one second moment per row, from mean(g^2)"""
    h = _named(hyper)
    _step_down(w, h["lr"] * _row_direction(g, e0, r, squares, columns, h), h["keep"])


def lamb_prepare(w, g, e0, e1, hyper):
    """Adam's moments; g becomes Adam's step, with weight decay, before the rate"""
    h = _named(hyper)
    regularise(w, g, e0, e1, hyper)
    g[...] = _direction(g, e0, e1, h)
    if h["decay"]:
        g += h["decay"] * w


def lamb(w, g, e0, e1, r, squares, columns, hyper):
    """w -= lr * ||w|| / ||step|| * step, the ratio 1 where a norm is 0"""
    h = _named(hyper)
    of_g, of_w = np.sqrt(squares)
    w -= h["lr"] * (np.float32(1) if of_g == 0 or of_w == 0 else of_w / of_g) * g


def partial_rowwise_lamb_direct(w, g, e0, e1, r, squares, columns, hyper):
    """Moments as in partial_rowwise_adam; g becomes the step, with weight decay, before the rate"""
    h = _named(hyper)
    g[...] = _row_direction(g, e0, r, squares, columns, h)
    if h["decay"]:
        g += h["decay"] * w


def partial_rowwise_lamb(w, g, e0, e1, r, squares, columns, hyper):
    """LAMB with one second moment per row, from mean(g^2)"""
    lamb(w, g, e0, e1, r, squares, columns, hyper)
