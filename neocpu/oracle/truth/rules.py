"""What does one optimizer step do to rows with exactly merged gradients?

Every rule is its formula (docs/arithmetic.md §5), over bounded numbers. A rule takes `RowUpdate`
(weights, gradients, states of U rows) and `Hyper`, and returns the new weights; states are replaced
in `rows.states`. Each known mistake is one bend in the formula where it happens. To add a rule,
write its formula here under the rule's name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from neocpu.oracle.operator import Switches
from neocpu.oracle.truth.bends import padded_width
from neocpu.oracle.truth.counters import clipped, counted, elapsed, rate_and_keep
from neocpu.oracle.truth.formats import stored
from neocpu.oracle.truth.ftrl import proximal
from neocpu.oracle.truth.hyper import ONE, Hyper
from neocpu.oracle.truth.numbers import (
    LARGEST,
    ULP,
    Bounded,
    Real,
    larger,
    mean_square,
    product,
    smaller,
    square_sum,
    unsure,
    where,
)


@dataclass
class RowUpdate:
    """U rows of one table in the middle of an update."""

    w: Bounded  # [U, D]
    g: Bounded  # [U, D]: merged gradients
    states: dict[str, Bounded]  # per element [U, D] or per row [U]
    squares: Bounded | None = None  # [U, D]: g*g summed by lookup, if squared before merging
    bends: frozenset[str] = frozenset()  # switches
    formats: Mapping[str, str] = field(default_factory=dict)  # of states that are not fp32
    lookups: Real | None = None  # [U]: of each row in the batch
    rest: float = 0.0  # sum of squares of the table's other rows, where a switch asks for it


def _regularised(rows: RowUpdate, h: Hyper) -> Bounded:
    """The gradient with L2 weight decay."""
    return rows.g + h["weight_decay"] * rows.w if h.mode == "l2" else rows.g


def _down(rows: RowUpdate, step: Bounded, keep: Bounded) -> Bounded:
    """keep*w - step; keep is exactly 1 where there is no decoupled decay."""
    # Without decay kernels compute w - step alone: no product, no error.
    if keep is ONE:
        return rows.w - step
    # w - lr*wd*w is NaN for an infinite w, and infinite where lr*wd*w is
    lost = np.abs((1 - keep.value) * rows.w.value)
    keep = unsure(keep, np.isinf(rows.w.value) | (lost > LARGEST))
    if "decay_after_step" in rows.bends:
        return keep * (rows.w - step)
    return keep * rows.w - step


def _root(state: Bounded, h: Hyper, correction: Bounded = ONE) -> Bounded:
    """sqrt(state / correction) + eps; kernels divide either the state or its root."""
    corrected = state if correction is ONE else state / correction
    if "eps_inside_root" in h.bends:
        return (corrected + h["eps"]).sqrt()
    if "eps_squared_inside_root" in h.bends:
        return (corrected + h["eps"] * h["eps"]).sqrt()
    if "root_missing" in h.bends:
        root = corrected
    else:
        root = corrected.sqrt()
        if correction is not ONE:
            quotient = state.sqrt() / correction.sqrt()
            root = Bounded(root.value, np.maximum(root.error, quotient.error))
    if "eps_as_floor" in h.bends:
        return larger(root, h["eps"])
    return root if "eps_missing" in h.bends else root + h["eps"]


def _accumulate(rows: RowUpdate, name: str, new: Bounded) -> Bounded:
    """Store the new state; returns what the formula goes on with."""
    old = rows.states[name]
    rows.states[name] = new
    if "narrow_state_read_back" in rows.bends:
        new = stored(new, rows.formats.get(name, "fp32"))
    return old if "update_before_state" in rows.bends else new


def _mean(rows: RowUpdate, g: Bounded) -> Bounded:
    """Mean over the columns of g*g."""
    if "square_sum_not_mean" in rows.bends:
        return square_sum(g)
    if "decay_not_in_state" in rows.bends:
        g = rows.g
    columns = g.value.shape[-1]
    width = Bounded.exactly(float(padded_width(columns, rows.bends)))
    if rows.squares is not None:
        return Bounded(rows.squares.value.sum(-1), rows.squares.error.sum(-1)) / width
    return square_sum(g) / width if width.value != columns else mean_square(g)


def _square(rows: RowUpdate, g: Bounded) -> Bounded:
    """g*g of each element."""
    if rows.squares is not None:
        return rows.squares
    return rows.g * rows.g if "decay_not_in_state" in rows.bends else g * g


def _square_sum(x: Bounded, rows: RowUpdate, rest: float = 0.0) -> Bounded:
    """Square of the norm of each row."""
    return _of_table(square_sum(x), rows.bends, rest)


def _of_table(squares: Bounded, bends: Switches, rest: float) -> Bounded:
    """Squares of the norms of rows; with a switch, of their whole table instead.

    rest : what the other rows of the table add.
    """
    if "norm_over_table" not in bends or not squares.value.size:
        return squares
    shape = squares.value.shape
    count = float(squares.value.size)
    total = squares.value.sum() + rest
    error = squares.error.sum() + total * ULP * count
    return Bounded(np.full(shape, total), np.full(shape, error))


def exact_sgd(rows: RowUpdate, h: Hyper) -> Bounded:
    """w -= lr * g"""
    return _down(rows, h["learning_rate"] * _regularised(rows, h), h.keep())


def momentum_sgd(rows: RowUpdate, h: Hyper) -> Bounded:
    """m = momentum * m + g; w -= lr * m"""
    g = _regularised(rows, h)
    scale = h.complement("momentum") * g if "momentum_dampened" in h.bends else g
    m = _accumulate(rows, "momentum_buffer", h["momentum"] * rows.states["momentum_buffer"] + scale)
    if "nesterov" in h.bends:
        m = g + h["momentum"] * m
    return _down(rows, h["learning_rate"] * m, h.keep())


def lars_sgd(rows: RowUpdate, h: Hyper) -> Bounded:
    """trust = eta * ||w|| / (||g|| + wd * ||w||); m = momentum * m + lr * trust * (g + wd * w)

    and w -= m.
    """
    g_norm = _square_sum(rows.g, rows).sqrt()
    w_norm = _square_sum(rows.w, rows, rows.rest).sqrt()
    decay = Bounded.exactly(np.zeros(w_norm.value.shape))
    if h.mode == "l2":
        decay = h["weight_decay"] * w_norm
    trust = _ratio(h["eta"] * w_norm, g_norm + decay, (g_norm, w_norm), h)
    step = product(h["learning_rate"], trust.column(), _regularised(rows, h))
    momentum = h["momentum"] * rows.states["momentum_buffer"]
    m = _accumulate(rows, "momentum_buffer", momentum + step)
    return _down(rows, m, h.keep())


def _ratio(above: Bounded, below: Bounded, norms: tuple[Bounded, Bounded], h: Hyper) -> Bounded:
    """above / below, or 1 where a norm is 0."""
    if "ratio_missing" in h.bends:
        return Bounded.exactly(np.ones(above.value.shape))
    ratio = below / above if "ratio_inverted" in h.bends else above / below
    if "ratio_unguarded" in h.bends:
        return ratio
    zero = (norms[0].value == 0) | (norms[1].value == 0)
    perhaps_zero = (norms[0].error >= norms[0].value) | (norms[1].error >= norms[1].value)
    surely_zero = np.logical_or.reduce([(norm.value == 0) & (norm.error == 0) for norm in norms])
    guarded = where(zero, Bounded.exactly(np.ones(zero.shape)), ratio)
    return unsure(guarded, perhaps_zero & ~surely_zero)


def exact_adagrad(rows: RowUpdate, h: Hyper) -> Bounded:
    """sum += g^2; w -= lr * g / (sqrt(sum) + eps)"""
    g = _regularised(rows, h)
    s = _accumulate(rows, "sum", rows.states["sum"] + _square(rows, g))
    return _down(rows, product(h["learning_rate"], g, over=(_root(s, h),)), h.keep())


def ftrl(rows: RowUpdate, h: Hyper) -> Bounded:
    """FTRL-Proximal; decoupled weight decay comes before everything else"""
    g = _regularised(rows, h)
    # FTRL's weights follow from z and n alone, so decay must come before sigma*w.
    w = rows.w if h.keep() is ONE else h.keep() * rows.w
    return proximal(rows.states, w, g, _square(rows, g), h)


def exact_rowwise_adagrad(rows: RowUpdate, h: Hyper) -> Bounded:
    """sum += mean(g^2); w -= lr / (sqrt(sum) + eps) * g"""
    g = _regularised(rows, h)
    s = _accumulate(rows, "sum", rows.states["sum"] + _mean(rows, g))
    return _down(rows, product(h["learning_rate"], g, over=(_root(s, h).column(),)), h.keep())


def exact_rowwise_adagrad_with_counter(rows: RowUpdate, h: Hyper) -> Bounded:
    """exact_rowwise_adagrad; rate and decay depend on how often, and when, a row was updated"""
    g = _regularised(rows, h)
    states = rows.states
    # Mode and step as the switches bend them.
    options = {**h.options, "weight_decay_mode": h.mode, "step": h.step}
    gap = elapsed(states["prev_iter"], h.step)
    counter = counted(states, h.step, int(options["counter_halflife"]))
    s = _accumulate(rows, "sum", states["sum"] + _mean(rows, g))
    states["prev_iter"] = Bounded.exactly(np.full(gap.shape, float(h.step)))
    states["row_counter"] = counter
    rate, keep = rate_and_keep(options, h["learning_rate"], _root(s, h), counter, gap, h.bends)
    return keep.column() * rows.w - rate.column() * g


def exact_rowwise_adagrad_with_cowclip(rows: RowUpdate, h: Hyper) -> Bounded:
    """exact_rowwise_adagrad of g * min(1, counter * max(coefficient * ||w||, lower) / ||g||)"""
    g = _regularised(rows, h)
    states = rows.states
    counter = counted(states, h.step, int(h.options["counter_halflife"]))
    s = _accumulate(rows, "sum", states["sum"] + _mean(rows, g))
    states["prev_iter"] = Bounded.exactly(np.full(counter.value.shape, float(h.step)))
    states["row_counter"] = counter
    w_norm = _square_sum(rows.w, rows, rows.rest).sqrt()
    norm_limit = larger(h["weight_norm_coefficient"] * w_norm, h["lower_bound"])
    clip = clipped(counter * norm_limit, _square_sum(g, rows).sqrt())
    if "cowclip_ignored" in h.bends:
        clip = Bounded.exactly(np.ones(clip.value.shape))
    step = product(clip.column(), h["learning_rate"], g, over=(_root(s, h).column(),))
    return _down(rows, step, h.keep())


def rowwise_rmsprop(rows: RowUpdate, h: Hyper) -> Bounded:
    """v = beta2 * v + (1 - beta2) * mean(g^2); w = keep * w - lr / (sqrt(v) + eps) * g

    with keep = max(min_shrinkage, 1 - lr * ar_alpha * elapsed).
    """
    g = _regularised(rows, h)
    states = rows.states
    gap = Bounded.exactly(elapsed(states["prev_iter"], h.step))
    shrink = Bounded.constant(float(h.options["learning_rate"]) * float(h.options["ar_alpha"]))
    keep = larger(ONE - smaller(shrink * gap, ONE), h["min_shrinkage"])
    if "shrinkage_ignored" in h.bends:
        keep = Bounded.exactly(np.ones(keep.value.shape))
    v = _accumulate(rows, "square_avg", _faded(h, "beta2", states["square_avg"], _mean(rows, g)))
    states["prev_iter"] = Bounded.exactly(np.full(gap.value.shape, float(h.step)))
    w = rows.w if h.mode != "decoupled" else h.keep() * rows.w
    return keep.column() * w - product(h["learning_rate"], g, over=(_root(v, h).column(),))


def _faded(
    h: Hyper, name: str, old: Bounded, new: Bounded, share: Bounded | None = None
) -> Bounded:
    """beta*old + (1 - beta)*new, which kernels also take as old + (1 - beta)*(new - old).

    share : (1 - beta)*new, where kernels have several orders for it.
    """
    complement = h.complement(name)
    faded = h[name] * old + (complement * new if share is None else share)
    lerp = old + complement * (new - old)
    # the difference to an infinity is NaN with it
    unknown = np.isinf(old.value)
    return unsure(Bounded(faded.value, np.maximum(faded.error, lerp.error)), unknown)


def _moments(
    rows: RowUpdate, h: Hyper, g: Bounded, rowwise: bool
) -> tuple[Bounded, tuple[Bounded, Bounded]]:
    """Stores Adam's moments; returns the first one, and what its step divides it by."""
    m = _accumulate(rows, "exp_avg", _faded(h, "beta1", rows.states["exp_avg"], g))
    square = _mean(rows, g) if rowwise else _square(rows, g)
    share = None
    # (1 - beta2)*g*g has three orders, which differ below the normal range.
    if not rowwise and rows.squares is None:
        squared = rows.g if "decay_not_in_state" in rows.bends else g
        share = product(h.complement("beta2"), squared, squared)
    new = _faded(h, "beta2", rows.states["exp_avg_sq"], square, share)
    if "second_moment_maximum" in rows.bends:
        new = larger(rows.states["exp_avg_sq"], new)
    v = _accumulate(rows, "exp_avg_sq", new)
    if "sparse_adam_eps" in h.bends:
        root = _root(v, h) / h.correction("beta2").sqrt()
    else:
        root = _root(v, h, h.correction("beta2"))
    return m, (h.correction("beta1"), root.column() if rowwise else root)


def _adam(rows: RowUpdate, h: Hyper, g: Bounded, rowwise: bool) -> Bounded:
    m, divisors = _moments(rows, h, g, rowwise)
    return _down(rows, product(h["learning_rate"], m, over=divisors), h.keep())


def adam(rows: RowUpdate, h: Hyper) -> Bounded:
    """Adam with bias correction by the global step"""
    return _adam(rows, h, _regularised(rows, h), rowwise=False)


def adam_with_cowclip(rows: RowUpdate, h: Hyper) -> Bounded:
    """adam of g * min(1, lookups * max(coefficient * ||w||, lower) / ||g||)"""
    assert rows.lookups is not None
    g = _regularised(rows, h)
    w_norm = _square_sum(rows.w, rows, rows.rest).sqrt()
    norm_limit = larger(h["weight_norm_coefficient"] * w_norm, h["lower_bound"])
    clip = clipped(Bounded.exactly(rows.lookups) * norm_limit, _square_sum(g, rows).sqrt())
    if "cowclip_ignored" in h.bends:
        return _adam(rows, h, g, rowwise=False)
    return _adam(rows, h, clip.column() * g, rowwise=False)


def partial_rowwise_adam(rows: RowUpdate, h: Hyper) -> Bounded:
    """Adam with one second moment per row, from mean(g^2)"""
    return _adam(rows, h, _regularised(rows, h), rowwise=True)


def _lamb(rows: RowUpdate, h: Hyper, rowwise: bool) -> Bounded:
    m, divisors = _moments(rows, h, _regularised(rows, h), rowwise)
    step = product(m, over=divisors)
    if h.mode == "decoupled":
        step = step + h["weight_decay"] * rows.w
    step_norm = _square_sum(step, rows).sqrt()
    w_norm = _square_sum(rows.w, rows, rows.rest).sqrt()
    ratio = _ratio(w_norm, step_norm, (step_norm, w_norm), h)
    return rows.w - product(h["learning_rate"], ratio.column(), step)


def lamb(rows: RowUpdate, h: Hyper) -> Bounded:
    """w -= lr * ||w|| / ||step|| * step, the ratio 1 where a norm is 0"""
    return _lamb(rows, h, rowwise=False)


def partial_rowwise_lamb(rows: RowUpdate, h: Hyper) -> Bounded:
    """LAMB with one second moment per row, from mean(g^2)"""
    return _lamb(rows, h, rowwise=True)


def limited(w: Bounded, h: Hyper, rest: float = 0.0) -> Bounded:
    """Rows scaled down to the norm max_norm where they are longer.

    rest : sum of squares of the table's other rows, which only a switch counts.
    """
    if not h.options.get("max_norm") or "max_norm_ignored" in h.bends:
        return w
    norm = _of_table(square_sum(w), h.bends, rest).sqrt()
    limit = h["max_norm"]
    # Surely short rows are not multiplied at all.
    inside = norm.value + norm.error <= limit.value - limit.error
    factor = smaller(limit / norm, ONE)
    return where(np.broadcast_to(inside[:, None], w.value.shape), w, w * factor.column())


RULES: dict[str, Callable[[RowUpdate, Hyper], Bounded]] = {
    rule.__name__: rule
    for rule in (
        exact_sgd,
        momentum_sgd,
        lars_sgd,
        exact_adagrad,
        ftrl,
        exact_rowwise_adagrad,
        exact_rowwise_adagrad_with_counter,
        exact_rowwise_adagrad_with_cowclip,
        rowwise_rmsprop,
        adam,
        adam_with_cowclip,
        partial_rowwise_adam,
        lamb,
        partial_rowwise_lamb,
    )
}
