"""What does a right fp32 kernel make of rows in one optimizer step?

Every rule, in an arithmetic that is drawn.
"""

import math
from typing import Any

import numpy as np

from neocpu.oracle.cases.draw import coded
from neocpu.oracle.ops.trajectory import batches
from neocpu.oracle.truth.bags import tables_of
from neocpu.oracle.truth.formats import decode
from neocpu.oracle.truth.states import layout_of
from tests.honest_arithmetic import Arithmetic, Array, F
from tests.honest_kernels import Arrays, Options, bags, lookup, merged, narrow


class Update:
    """One step of some rows: weights [U, D], gradients, states, hyper-parameters."""

    def __init__(
        self,
        a: Arithmetic,
        w: Array,
        g: Array,
        states: Arrays,
        options: Options,
        lookups: Array,
    ) -> None:
        self.a = a
        self.lookups = a.real(lookups)
        self.options = options
        self.w = a.real(w)
        self.g = a.real(g)
        self.states = {name: a.real(state) for name, state in states.items()}
        self.step = int(options["step"])
        self.mode = str(options["weight_decay_mode"]) if options["weight_decay"] else "none"
        self.lr = a.number(options["learning_rate"])
        self.eps = a.number(options["eps"])
        if self.mode == "l2" and options["optimizer"] != "lars_sgd":
            self.regularise()

    def hyper(self, name: str) -> Any:
        return self.a.number(float(self.options[name]))

    def regularise(self) -> None:
        """Adds L2 weight decay to the gradient."""
        self.g = self.a.multiply_add(self.hyper("weight_decay"), self.w, self.g)

    def complement(self, name: str) -> Any:
        """1 - beta, in fp64 or from the rounded beta."""
        beta = float(self.options[name])
        one = self.a.real(1)
        return self.a.choose(self.a.number(1 - beta), one - self.hyper(name))

    def correction(self, name: str) -> Any:
        """1 - beta^t, in fp64 or with an fp32 power."""
        beta = float(self.options[name])
        in_fp32 = self.a.real(1) - np.power(self.hyper(name), self.a.real(self.step))
        return self.a.choose(self.a.number(1 - beta**self.step), in_fp32)

    def moment(self, name: str, beta: str, new: Array) -> Array:
        """beta*state + new, stored."""
        self.states[name] = self.a.multiply_add(self.hyper(beta), self.states[name], new)
        return self.states[name]

    def faded(self, name: str, beta: str, new: Array) -> Array:
        """beta*state + (1 - beta)*new, or state + (1 - beta)*(new - state); stored."""
        share = self.complement(beta)
        old = self.states[name]
        if self.a.choose(True, False):
            return self.moment(name, beta, share * new)
        self.states[name] = self.a.multiply_add(share, new - old, old)
        return self.states[name]

    def mean_square(self) -> Array:
        """Mean over the columns of g*g."""
        return self.a.divide(self.a.square_sum(self.g), self.a.real(self.g.shape[1]))

    def denominator(self, state: Array) -> Array:
        """sqrt(state) + eps."""
        return self.a.root(state) + self.eps

    def down(self, step: Array) -> Array:
        """w - step, with decoupled decay if there is any."""
        if self.mode != "decoupled":
            return self.w - step
        rate = float(self.options["learning_rate"]) * float(self.options["weight_decay"])
        way = self.a.choose("factor", "fp32 factor", "subtract")
        if way == "factor":
            return self.a.down(self.w, self.a.number(1 - rate), step)
        wd = self.lr * self.hyper("weight_decay")
        if way == "fp32 factor":
            return self.a.down(self.w, self.a.real(1) - wd, step)
        return self.w - wd * self.w - step


def exact_sgd(u: Update) -> Array:
    if u.mode == "none":
        return u.a.multiply_add(-u.lr, u.g, u.w)
    return u.down(u.lr * u.g)


def momentum_sgd(u: Update) -> Array:
    m = u.moment("momentum_buffer", "momentum", u.g)
    return u.down(u.lr * m)


def lars_sgd(u: Update) -> Array:
    g_norm = u.a.root(u.a.square_sum(u.g))
    w_norm = u.a.root(u.a.square_sum(u.w))
    below = g_norm
    if u.mode == "l2":
        below = u.a.multiply_add(u.hyper("weight_decay"), w_norm, g_norm)
    trust = u.a.product(u.hyper("eta"), w_norm, over=(below,))
    trust = np.where((g_norm == 0) | (w_norm == 0), u.a.real(1), trust)[:, None]
    if u.mode == "l2":
        u.regularise()
    m = u.moment("momentum_buffer", "momentum", u.a.product(u.lr, trust, u.g))
    return u.down(m)


def exact_adagrad(u: Update) -> Array:
    u.states["sum"] = u.a.multiply_add(u.g, u.g, u.states["sum"])
    return u.down(u.a.product(u.lr, u.g, over=(u.denominator(u.states["sum"]),)))


def exact_rowwise_adagrad(u: Update) -> Array:
    u.states["sum"] = u.states["sum"] + u.mean_square()
    return u.down(u.a.product(u.lr, u.g, over=(u.denominator(u.states["sum"])[:, None],)))


def elapsed(u: Update) -> Array:
    """Steps since the last update of each row."""
    before = u.states["prev_iter"]
    gap = np.where(before > 0, u.a.real(u.step) - before, u.a.real(1))
    u.states["prev_iter"] = np.full(before.shape, u.step, gap.dtype)
    return gap


def counted(u: Update, gap: Array) -> Array:
    """The row counter, this update included."""
    halflife = int(u.options["counter_halflife"])
    counter = u.states["row_counter"]
    if halflife < 0:
        counter = counter + 1
    elif halflife == 0:
        counter = np.ones(counter.shape, counter.dtype)
    else:
        decay = np.exp(-gap.astype(np.float64) * math.log(2) / halflife)
        counter = u.a.multiply_add(u.a.real(decay), counter, u.a.real(1))
    u.states["row_counter"] = counter
    return counter


def exact_rowwise_adagrad_with_cowclip(u: Update) -> Array:
    counter = counted(u, elapsed(u))
    u.states["sum"] = u.states["sum"] + u.mean_square()
    w_norm = u.a.root(u.a.square_sum(u.w))
    g_norm = u.a.root(u.a.square_sum(u.g))
    most = np.fmax(u.hyper("weight_norm_coefficient") * w_norm, u.hyper("lower_bound"))
    clip = np.fmin(u.a.divide(counter * most, g_norm), u.a.real(1))
    root = u.denominator(u.states["sum"])
    return u.down(u.a.product(clip[:, None], u.lr, u.g, over=(root[:, None],)))


def exact_rowwise_adagrad_with_counter(u: Update) -> Array:
    gap = elapsed(u)
    counter = counted(u, gap)
    u.states["sum"] = u.states["sum"] + u.mean_square()
    root = u.denominator(u.states["sum"])
    plain = u.a.divide(np.broadcast_to(u.lr, root.shape), root)
    rate = plain
    keep = np.ones(root.shape, root.dtype)
    share = np.zeros(root.shape, root.dtype)
    first = int(u.options["adjustment_iter"])
    if first <= 0 or u.step > first:
        share = u.a.divide(u.a.real(abs(int(u.options["counter_halflife"]))), counter)
        rate = adjusted(u, counter, root, plain)
    decay = u.hyper("weight_decay")
    if u.mode == "decoupled":
        keep = u.a.real(1) - u.a.product(share, decay, u.lr)
    if u.mode == "l2":
        keep = u.a.real(1) - decay * (share * plain - rate)
    return u.a.down(u.w, keep[:, None], rate[:, None] * u.g)


def adjusted(u: Update, counter: Array, root: Array, plain: Array) -> Array:
    """Rates of rows counted more often than the threshold."""
    mode = str(u.options["learning_rate_mode"])
    bound = float(u.options["adjustment_ub"])
    if mode == "equal":
        return plain
    most = u.hyper("max_counter")
    if mode == "counter_sgd":
        below = u.a.root(u.hyper("adjustment_ub") * counter) + u.eps
        rate = u.a.divide(np.broadcast_to(u.lr, below.shape), below)
    elif mode == "tail_id_lr_increase":
        ratio = u.a.divide(np.broadcast_to(most, counter.shape), counter + 1)
        more = u.a.real(np.power(ratio.astype(np.float64), bound))
        rate = plain * np.maximum(np.minimum(more, u.a.real(10)), u.a.real(1))
    else:
        ratio = u.a.divide(counter + 1, np.broadcast_to(most, counter.shape))
        less = u.a.real(np.power(ratio.astype(np.float64), bound))
        rate = plain * np.minimum(np.maximum(less, u.a.number(0.1)), u.a.real(1))
    threshold = float(u.options["tail_id_threshold"])
    if u.options["tail_id_threshold_is_ratio"]:
        threshold = math.floor(threshold * float(u.options["max_counter"]))
    return np.where(counter > threshold, rate, plain)


def rowwise_rmsprop(u: Update) -> Array:
    gap = elapsed(u)
    v = u.faded("square_avg", "beta2", u.mean_square())
    shrink = float(u.options["learning_rate"]) * float(u.options["ar_alpha"])
    one = u.a.real(1)
    keep = one - np.minimum(u.a.number(shrink) * gap, one)
    keep = np.maximum(keep, u.hyper("min_shrinkage"))
    if u.mode == "decoupled":
        rate = float(u.options["learning_rate"]) * float(u.options["weight_decay"])
        u.w = u.a.number(1 - rate) * u.w
    step = u.a.product(u.lr, u.g, over=(u.denominator(v)[:, None],))
    return u.a.down(u.w, keep[:, None], step)


def moments(u: Update, rowwise: bool) -> tuple[Array, tuple[Array, Array]]:
    """Adam's first moment, and what the step divides it by."""
    m = u.faded("exp_avg", "beta1", u.g)
    if rowwise:
        v = u.faded("exp_avg_sq", "beta2", u.mean_square())
    elif u.a.choose(True, False):
        v = u.faded("exp_avg_sq", "beta2", u.g * u.g)
    else:
        v = u.moment("exp_avg_sq", "beta2", u.a.product(u.complement("beta2"), u.g, u.g))
    correction = u.correction("beta2")
    if u.a.choose(True, False):
        root = u.a.root(u.a.divide(v, correction))
    else:
        root = u.a.divide(u.a.root(v), u.a.root(correction))
    root = root + u.eps
    return m, (u.correction("beta1"), root[:, None] if rowwise else root)


def adam(u: Update, rowwise: bool = False) -> Array:
    m, below = moments(u, rowwise)
    return u.down(u.a.product(u.lr, m, over=below))


def adam_with_cowclip(u: Update) -> Array:
    w_norm = u.a.root(u.a.square_sum(u.w))
    g_norm = u.a.root(u.a.square_sum(u.g))
    most = np.fmax(u.hyper("weight_norm_coefficient") * w_norm, u.hyper("lower_bound"))
    clip = np.fmin(u.a.divide(u.lookups * most, g_norm), u.a.real(1))
    u.g = clip[:, None] * u.g
    return adam(u)


def partial_rowwise_adam(u: Update) -> Array:
    return adam(u, rowwise=True)


def lamb(u: Update, rowwise: bool = False) -> Array:
    m, below = moments(u, rowwise)
    step = u.a.product(m, over=below)
    if u.mode == "decoupled":
        step = u.a.multiply_add(u.hyper("weight_decay"), u.w, step)
    step_norm = u.a.root(u.a.square_sum(step))
    w_norm = u.a.root(u.a.square_sum(u.w))
    ratio = u.a.divide(w_norm, step_norm)
    ratio = np.where((step_norm == 0) | (w_norm == 0), u.a.real(1), ratio)
    return u.w - u.a.product(u.lr, ratio[:, None], step)


def partial_rowwise_lamb(u: Update) -> Array:
    return lamb(u, rowwise=True)


def ftrl(u: Update) -> Array:
    old = u.states["accumulator"]
    n = u.a.multiply_add(u.g, u.g, old)
    old_root = u.a.root(old)
    root = np.where(n == old, old_root, u.a.root(n))
    pull = u.a.product(root - old_root, u.w, over=(u.lr,))
    linear = u.states["linear"]
    z = u.a.choose(linear + u.g - pull, linear + (u.g - pull))
    u.states |= {"accumulator": n, "linear": z}
    most = u.hyper("lambda1")
    outside = np.where(np.abs(z) <= most, u.a.real(0), z - np.copysign(most, z))
    slope = u.a.divide(u.hyper("beta") + root, np.broadcast_to(u.lr, root.shape))
    return -u.a.divide(outside, slope + u.hyper("lambda2"))


def limited(u: Update, w: Array) -> Array:
    """Rows longer than max_norm, scaled down."""
    if not u.options["max_norm"]:
        return w
    norm = u.a.root(u.a.square_sum(w))
    most = u.hyper("max_norm")
    factor = u.a.divide(np.broadcast_to(most, norm.shape), norm)
    return np.where((norm > most)[:, None], w * factor[:, None], w)


RULES = {
    rule.__name__: rule
    for rule in (
        exact_sgd,
        momentum_sgd,
        lars_sgd,
        exact_adagrad,
        exact_rowwise_adagrad,
        exact_rowwise_adagrad_with_counter,
        exact_rowwise_adagrad_with_cowclip,
        rowwise_rmsprop,
        adam,
        adam_with_cowclip,
        partial_rowwise_adam,
        lamb,
        partial_rowwise_lamb,
        ftrl,
    )
}


def lookup_counts(inputs: Arrays) -> list[Array]:
    """Lookups of every row, by table."""
    counts = [np.zeros(int(rows), F) for rows in inputs["rows"]]
    for _, table, _, _, lookups in bags(inputs):
        rows = inputs["indices"][lookups]
        np.add.at(counts[table], rows[rows >= 0], 1)
    return counts


def trajectory(a: Arithmetic, inputs: Arrays, options: Options) -> Arrays:
    """Lookups and updates in turn, from what the step before has stored."""
    name = str(options["weights_format"])
    layout = layout_of(options)
    state: Arrays = {"weights": inputs["weights"]}
    state |= {key: inputs[key] for key in layout.formats if key in inputs}
    forward = {**options, "output_format": "fp32", "row_alignment": 1}
    outputs: Arrays = {}
    count = 0
    for k, batch in enumerate(batches(inputs)):
        step_inputs = {**batch, **state}
        outputs[f"step{k}/out"] = lookup(a, step_inputs, forward)["out"]
        if not inputs["training"][k]:
            continue
        count += 1
        rate = float(inputs["learning_rates"][k])
        new = backward(a, step_inputs, {**options, "learning_rate": rate, "step": count})
        outputs |= {f"step{k}/{key}": array for key, array in new.items()}
        formats = {"weights": name, **layout.formats}
        state = {key: coded(array.astype(F), formats[key]) for key, array in new.items()}
    return outputs


def backward(a: Arithmetic, inputs: Arrays, options: Options) -> Arrays:
    """Weights and states after one step."""
    tables = tables_of(inputs)
    name = str(options["weights_format"])
    weights = decode(inputs["weights"].reshape(-1), name).astype(F)
    layout = layout_of(options)
    sizes = {state: int(tables.first_element[-1]) for state in layout.element}
    sizes |= {state: int(tables.first_row[-1]) for state in layout.row}
    states = {state: np.zeros(size, F) for state, size in sizes.items()}
    for state in states.keys() & inputs.keys():
        states[state] = decode(inputs[state], layout.formats[state]).astype(F)
    counts = lookup_counts(inputs)
    for table, (rows, g) in merged(a, inputs, options).items():
        columns = np.arange(int(tables.dims[table]))
        elements = int(tables.first_element[table]) + rows[:, None] * columns.size + columns
        places = {
            state: tables.first_row[table] + rows if state in layout.row else elements
            for state in states
        }
        old = {state: states[state][place] for state, place in places.items()}
        update = Update(a, weights[elements], g, old, options, counts[table][rows])
        w = RULES[str(options["optimizer"])](update)
        weights[elements] = narrow(limited(update, w).astype(F), name)
        for state, place in places.items():
            new = update.states[state].astype(F)
            states[state][place] = narrow(new, layout.formats[state])
    return {"weights": weights, **states}
