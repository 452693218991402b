"""Is the exact model right? Do its bounds admit every correct kernel, and no wrong one?"""

from fractions import Fraction
from itertools import pairwise as steps

import numpy as np
import pytest

from neocpu.core.codecs import LAYOUTS, ROUNDINGS
from neocpu.kernels.twins.codecs.small_floats import decode_rows, encode_rows, encode_rows_randomly
from neocpu.oracle.ops.backward import BACKWARD, UNIQUE_GRADIENT
from neocpu.oracle.ops.lookup import LOOKUP, WEIGHT_GRADIENT
from neocpu.oracle.truth.chance import usual_error_of_additions
from neocpu.oracle.truth.formats import (
    FORMATS,
    above,
    away,
    below,
    decode,
    in_format,
    nearest,
    toward_zero,
)
from neocpu.oracle.truth.hyper import Hyper
from neocpu.oracle.truth.numbers import TINY, Bounded, U, gamma, product, settled, square_sum
from neocpu.oracle.truth.sums import segment_sums
from tests import recorded

F = np.float32
RNG = np.random.default_rng(3)
OFFSETS = np.array([0, 1, 1, 3, 40, 300])


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test draws the same numbers, whichever tests ran before it."""
    RNG.bit_generator.state = np.random.default_rng(3).bit_generator.state


def one_by_one(terms: np.ndarray) -> np.float32:
    """fp32 sum in the given order."""
    total = F(0)
    for x in terms:
        total = total + x
    return total


def pairwise(terms: np.ndarray) -> np.float32:
    if terms.size == 1:
        return terms[0]
    half = terms.size // 2
    return pairwise(terms[:half]) + pairwise(terms[half:])


def lanes(terms: np.ndarray) -> np.float32:
    """Eight partial sums, then their sum, as a vector kernel has it."""
    return one_by_one(np.array([one_by_one(terms[k::8]) for k in range(8)], F))


ORDERS = {
    "forward": one_by_one,
    "backward": lambda t: one_by_one(t[::-1]),
    "pairwise": pairwise,
    "lanes": lanes,
    "by size": lambda t: one_by_one(t[np.argsort(np.abs(t), kind="stable")]),
}


def columns(kind: str) -> np.ndarray:
    """Terms f32[300, 6], ordinary or hard to add."""
    x = RNG.standard_normal((300, 6)).astype(F)
    if kind == "cancelling":
        x[1::2] = -x[::2] * F(1 + 2.0**-20)
    if kind == "wild":
        x = np.ldexp(x, RNG.integers(-40, 40, x.shape)).astype(F)
    if kind == "subnormal":
        x = np.ldexp(x, -140).astype(F)
    return x


def sums(x: np.ndarray, offsets: np.ndarray = OFFSETS) -> Bounded:
    terms = Bounded.exactly(x)
    return segment_sums(terms, np.abs(terms.value), offsets, 0, np.zeros(1, np.int64))


@pytest.mark.parametrize("kind", ["ordinary", "cancelling", "wild", "subnormal"])
def test_sums_are_exact_and_every_order_is_inside(kind: str) -> None:
    x = columns(kind)
    bounded = sums(x)
    for s, (lo, hi) in enumerate(steps(OFFSETS)):
        for c in range(x.shape[1]):
            exact = sum((Fraction(float(v)) for v in x[lo:hi, c]), Fraction(0))
            assert bounded.value[s, c] == float(exact)
            for name, add in ORDERS.items():
                computed = add(x[lo:hi, c]) if hi > lo else F(0)
                assert abs(Fraction(float(computed)) - exact) <= Fraction(bounded.error[s, c]), (
                    kind,
                    name,
                    s,
                    c,
                )
    assert (bounded.error[:2] == 0).all(), "no rounding, no error: bags of none and of one"


def test_a_lost_term_is_outside() -> None:
    x = columns("ordinary")
    total = sums(x)
    for s in (2, 3, 4):
        without_first = total.value[s] - x[OFFSETS[s]]
        assert (np.abs(without_first - total.value[s]) > total.error[s]).mean() > 0.9


def test_small_dyadic_numbers_leave_no_error_in_any_order() -> None:
    x = (RNG.integers(1, 64, (5000, 2)) * RNG.choice([-1, 1], (5000, 2)) / 16).astype(F)
    bounded = sums(x, np.array([0, 5000]))
    assert (bounded.error == 0).all() and (bounded.value[0] == x.astype(np.float64).sum(0)).all()
    assert (sums(x * F(1 / 3), np.array([0, 5000])).error > 0).all()


def test_sums_that_may_overflow_are_unknown_and_those_that_must_are_infinite() -> None:
    big = F(3e38)
    bounded = sums(np.array([[big, big], [big, -big], [F(1), big]], F), np.array([0, 3]))
    assert bounded.value[0, 0] == np.inf and bounded.error[0, 0] == 0
    assert np.isinf(bounded.error[0, 1])


def test_special_numbers_have_classes_not_bounds() -> None:
    bounded = sums(
        np.array([[np.inf, np.nan, -0.0], [-np.inf, 1, -0.0]], F), np.array([0, 1, 2, 2])
    )
    np.testing.assert_array_equal(bounded.value, [[np.inf, np.nan, 0], [-np.inf, 1, 0], [0, 0, 0]])
    assert not bounded.error.any()


def test_gamma_is_the_textbook_one() -> None:
    assert gamma(0) == 0 and gamma(1) == U / (1 - U) and np.isinf(gamma(1 << 24))
    assert gamma(100) > 100 * U


CHAINS = {
    "a*b + c": lambda a, b, c: a * b + c,
    "a - b*c": lambda a, b, c: a - b * c,
    "(a + b) / c": lambda a, b, c: (a + b) / c,
    "a / (b*b + c*c)": lambda a, b, c: a / (b * b + c * c),
    "a*b*c - a": lambda a, b, c: a * b * c - a,
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("scale", [1.0, 2.0**-60, 2.0**50])
def test_bounded_arithmetic_contains_fp32_arithmetic(name: str, scale: float) -> None:
    a, b, c = (RNG.standard_normal((3, 4000)) * scale).astype(F)
    chain = CHAINS[name]
    with np.errstate(all="ignore"):
        computed = chain(a, b, c).astype(np.float64)
    bounded = settled(chain(*map(Bounded.exactly, (a, b, c))))
    with np.errstate(invalid="ignore"):
        inside = (
            (np.abs(computed - bounded.value) <= bounded.error)
            | np.isinf(bounded.error)
            | (computed == bounded.value)
        )
    assert (inside | (np.isnan(computed) & np.isnan(bounded.value))).all()


def test_bounded_roots_contain_fp32_roots_of_perturbed_numbers() -> None:
    x = np.abs(RNG.standard_normal(1000)).astype(F)
    error = np.abs(RNG.standard_normal(1000)) * 0.1
    bounded = Bounded(x.astype(np.float64), error).sqrt()
    for sign in (-1, 1):
        computed = np.sqrt(np.maximum(x + F(0.99) * sign * error.astype(F), 0))
        assert (np.abs(computed - bounded.value) <= bounded.error).all()
    assert Bounded.exactly(0.0).sqrt().error == 0


def test_products_that_cannot_underflow_leave_exact_sums_exact() -> None:
    rows = np.array([[1.0, 2.0], [3.0, 5.0]])
    tiny = np.full((2, 1), TINY)
    for terms, products in ((rows, 1), (rows, 0), (tiny, 0)):
        starts = np.array([0, len(terms)])
        bounded = segment_sums(Bounded.exactly(terms), terms, starts, products, np.zeros(1, int))
        assert (bounded.value == terms.sum(0)).all() and not bounded.error.any()
    halved = Bounded.exactly(tiny / 2)
    assert segment_sums(halved, tiny / 2, np.array([0, 2]), 1, np.zeros(1, int)).error.all()


def test_the_square_of_one_number_is_rounded_once() -> None:
    x = RNG.normal(size=(1000, 1)).astype(F)
    bounded = square_sum(Bounded.exactly(x))
    away = np.abs((x * x)[:, 0] - bounded.value)
    assert (away <= bounded.error).all() and (bounded.error <= 4 * U * bounded.value).all()


def test_square_sums_contain_every_order() -> None:
    x = RNG.standard_normal((50, 129)).astype(F)
    bounded = square_sum(Bounded.exactly(x))
    for add in ORDERS.values():
        computed = np.array([add(row * row) for row in x])
        assert (np.abs(computed - bounded.value) <= bounded.error).all()


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "fp32"])
def test_formats_agree_with_the_codecs_on_every_code_and_on_hard_numbers(name: str) -> None:
    form = FORMATS[name]
    codes = np.arange(1 << (8 * np.dtype(FORMATS[name].dtype).itemsize)).astype(FORMATS[name].dtype)
    out = np.empty((1, codes.size), F)
    decode_rows(codes[None], LAYOUTS[name], out)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(decode(codes, name), out[0].astype(np.float64))
    finite = np.sort(out[0][np.isfinite(out[0])])
    np.testing.assert_array_equal(nearest(finite.astype(np.float64), form), finite)
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(F)
    x = np.concatenate(
        [
            middle,
            np.nextafter(middle, F(np.inf)),
            RNG.standard_normal(999).astype(F),
            [F(3e38), F(np.inf)],
        ]
    )
    encoded = np.empty((1, x.size), form.dtype)
    for rounding, model in (("nearest", nearest), ("truncate", toward_zero)):
        encode_rows(x[None], LAYOUTS[name], ROUNDINGS[rounding], encoded)
        np.testing.assert_array_equal(decode(encoded[0], name), model(x.astype(np.float64), form))
    low = below(x.astype(np.float64), form)
    high = above(x.astype(np.float64), form)
    assert ((low <= x) & (x <= high) | (np.abs(x) > form.largest)).all()
    assert (away(middle.astype(np.float64), form) != nearest(middle.astype(np.float64), form)).any()


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"])
def test_stochastic_rounding_stays_in_the_set_with_the_stated_probability(name: str) -> None:
    x = np.concatenate([RNG.standard_normal(6), [2.0**-16, 3e-8]]).astype(F)
    truth = in_format(Bounded.exactly(x), name, "stochastic")
    many = np.broadcast_to(x, (20000, x.size)).copy()
    codes = np.empty(many.shape, FORMATS[name].dtype)
    encode_rows_randomly(
        many, LAYOUTS[name], ROUNDINGS["stochastic"], 5, np.arange(20000), 0, 1, codes
    )
    computed = decode(codes, name)
    assert truth.lower is not None and truth.upper is not None and truth.probability is not None
    assert ((computed == truth.lower) | (computed == truth.upper)).all()
    up = (computed == truth.upper).mean(0)
    known = np.isfinite(truth.probability)
    assert known.any() and (np.abs(up - truth.probability)[known] < 0.02).all()


def test_narrow_results_know_which_numbers_may_stand_there() -> None:
    x = Bounded(np.array([1 + 2.0**-11, 1.0, 70000.0]), np.array([0.0, 2.0**-12, 0.0]))
    truth = in_format(x, "fp16")
    assert truth.lower is not None and truth.upper is not None
    assert truth.lower[0] == truth.upper[0] == 1.0, "a tie goes to even, and nowhere else"
    assert truth.lower[1] == truth.upper[1] == 1.0
    assert truth.reference[2] == np.inf and truth.bound[2] == 0


def table(rows: list[list[float]], bags: list[list[int]], **more: object) -> dict[str, np.ndarray]:
    """One table and bags of its rows."""
    inputs = {
        "weights": np.array(rows, F).reshape(-1),
        "rows": np.array([len(rows)]),
        "dims": np.array([len(rows[0])]),
        "feature_table": np.array([0]),
        "indices": np.array([i for bag in bags for i in bag], np.int64),
        "offsets": np.append(0, np.cumsum([len(bag) for bag in bags])),
    }
    return {**inputs, **{name: np.asarray(array) for name, array in more.items()}}


def test_lookup_means_what_it_says() -> None:
    inputs = table(
        [[1, 2], [3, 5]],
        [[0, 1], [], [1, -1, 1]],
        per_sample_weights=np.array([2, 1, 1, 9, 0.5], F),
    )
    sums_ = LOOKUP.truth(inputs)["out"]
    np.testing.assert_array_equal(sums_.reference, [[5, 9], [0, 0], [4.5, 7.5]])
    assert not sums_.bound.any()
    means = LOOKUP.truth(inputs, {"pooling": "mean"})["out"].reference
    np.testing.assert_allclose(means, [[2.5, 4.5], [0, 0], [1.5, 2.5]], rtol=1e-15)
    inputs["grad_output"] = np.array([[1, 10], [7, 7], [2, 0]], F)
    grads = WEIGHT_GRADIENT.truth(inputs)["per_sample_weights_grad"].reference
    np.testing.assert_array_equal(grads, [21, 53, 6, 0, 6])
    merged = UNIQUE_GRADIENT.truth(inputs)
    np.testing.assert_array_equal(merged["rows"].reference, [0, 1])
    np.testing.assert_array_equal(merged["values"].reference, [2, 20, 1 + 3, 10])


def test_rows_one_by_one_keep_the_sign_of_their_zeros() -> None:
    inputs = table([[-0.0, 2], [0.0, -3]], [[1, 0], [0]])
    rows = LOOKUP.truth(inputs, {"pooling": "none"})["out"].reference
    np.testing.assert_array_equal(rows, [[0, -3], [0, 2], [0, 2]])
    assert np.signbit(rows[:, 0]).tolist() == [False, True, True]


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.999), (0.5, 0.99999), (0.0, 0.1)])
def test_corrections_of_fp32_kernels_are_inside(beta1: float, beta2: float) -> None:
    for step in (1, 2, 7, 1000, 10**6):
        hyper = Hyper({"optimizer": "adam", "beta1": beta1, "beta2": beta2, "step": step})
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            bounded = hyper.correction(name)
            power = float(F(beta)) ** step
            computed = float(F(1) - F(power))
            assert abs(computed - bounded.value) <= bounded.error
            assert bounded.error >= U * abs(1 - power)
            # the error of the power, and that of the subtraction
            assert bounded.error <= 2 * U * (step + 2) * max(beta, power) + 2 * U


def test_a_row_number_out_of_range_is_named() -> None:
    with pytest.raises(ValueError, match="lookup 1 asks for row 7 of a table with 2 rows"):
        LOOKUP.truth(table([[1], [2]], [[0, 7]]))


def naive_lookup(inputs: dict[str, np.ndarray], order: str, mean: str) -> np.ndarray:
    """fp32 pooling of one table in some order; MEAN divides, by a reciprocal, or term by term."""
    w = inputs["weights"].reshape(int(inputs["rows"][0]), -1)
    out = np.zeros((inputs["offsets"].size - 1, w.shape[1]), F)
    for b, (lo, hi) in enumerate(steps(inputs["offsets"])):
        if hi == lo:
            continue
        terms = w[inputs["indices"][lo:hi]] * inputs["per_sample_weights"][lo:hi, None]
        share = F(1) / F(hi - lo)
        if mean == "terms":
            terms = terms * share
        out[b] = [ORDERS[order](column) for column in terms.T]
        if mean == "divide":
            out[b] = out[b] / F(hi - lo)
        elif mean == "reciprocal":
            out[b] = out[b] * share
    return out


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mean", ["", "divide", "reciprocal", "terms"])
def test_naive_lookups_are_inside(order: str, mean: str) -> None:
    rows = RNG.standard_normal((20, 5)).tolist()
    bags = [RNG.integers(0, 20, n).tolist() for n in (0, 1, 2, 3, 7, 33, 70)]
    weights = RNG.standard_normal(sum(map(len, bags))).astype(F)
    inputs = table(rows, bags, per_sample_weights=weights)
    truth = LOOKUP.truth(inputs, {"pooling": "mean" if mean else "sum"})["out"]
    computed = naive_lookup(inputs, order, mean)
    assert (np.abs(computed - truth.reference) <= truth.bound).all()
    scale = np.abs(truth.reference).max()
    assert truth.bound.max() < 1e-4 * scale, "a bound that excuses everything is none"


def naive_update(
    rule: str, w: np.ndarray, g: np.ndarray, lr: np.float32, eps: np.float32, t: int
) -> np.ndarray:
    """fp32 formulas from fresh states, in another order than ours."""
    if rule == "exact_sgd":
        return w - g * lr
    if rule == "exact_adagrad":
        return w - lr * (g / (np.sqrt(g * g) + eps))
    if rule == "exact_rowwise_adagrad":
        mean = (g * g).sum(1, keepdims=True) * F(1 / g.shape[1])
        return w - g * (lr / (np.sqrt(mean) + eps))
    m = F(0.125) * g
    v = F(2.0**-10) * g * g
    step = (m / F(1 - 0.875**t)) / (np.sqrt(v) / F(np.sqrt(1 - (1 - 2.0**-10) ** t)) + eps)
    if rule == "adam":
        return w - lr * step
    w_norm = np.sqrt((w * w).sum(1, keepdims=True))
    step_norm = np.sqrt((step * step).sum(1, keepdims=True))
    return w - lr * w_norm / step_norm * step


@pytest.mark.parametrize(
    "rule", ["exact_sgd", "exact_adagrad", "exact_rowwise_adagrad", "adam", "lamb"]
)
@pytest.mark.parametrize("t", [1, 9])
def test_naive_updates_are_inside_and_wrong_ones_outside(rule: str, t: int) -> None:
    w, g = RNG.standard_normal((2, 30, 9)).astype(F)
    inputs = table(w.tolist(), [[i] for i in range(30)], grad_output=g)
    options = {
        "optimizer": rule,
        "learning_rate": 0.0625,
        "eps": 2.0**-20,
        "beta1": 0.875,
        "beta2": 1 - 2.0**-10,
        "step": t,
    }
    truth = BACKWARD.truth(inputs, options)["weights"]
    computed = naive_update(rule, w, g, F(0.0625), F(2.0**-20), t).reshape(-1)
    assert (np.abs(computed - truth.reference) <= truth.bound).all()
    wrong = computed + (computed - w.reshape(-1)) * F(0.01)  # one per cent more of a step
    assert (np.abs(wrong - truth.reference) > truth.bound).mean() > 0.9


def test_untouched_rows_have_no_room() -> None:
    inputs = table([[1, np.nan], [3, 5], [-0.0, 1e-45]], [[1, 1]], grad_output=np.ones((1, 2), F))
    truth = BACKWARD.truth(inputs, {"optimizer": "exact_sgd"})["weights"]
    assert not truth.bound[[0, 1, 4, 5]].any() and np.isnan(truth.reference[1])
    assert truth.reference[5] == TINY


def test_duplicates_merge_before_the_rule() -> None:
    inputs = table([[0.0]], [[0], [0], [0]], grad_output=np.ones((3, 1), F))
    states = BACKWARD.truth(inputs, {"optimizer": "exact_adagrad"})
    assert states["sum"].reference == 9, "three gradients of 1 make a square of 9, not 3"


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a*b + c with one rounding, nearly: fp64 in between."""
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(F)


def reciprocal(x: np.ndarray) -> np.ndarray:
    """1/x as fast GPU code has it: the last bit may be wrong."""
    return np.nextafter(F(1) / x, F(np.inf))


def sloppy_adam(
    w: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, t: int
) -> tuple[np.ndarray, ...]:
    """Adam as fast GPU code has it.

    fp32 powers, reciprocals for divisions, contracted products, 1 - beta taken from a rounded beta.
    """
    b1 = F(0.9)
    b2 = F(0.999)
    lr = F(0.01)
    eps = F(1e-8)
    m = fma(b1, m, (F(1) - b1) * g)
    v = fma((F(1) - b2) * g, g, b2 * v)
    c1 = F(1) - np.power(b1, F(t))
    c2 = F(1) - np.power(b2, F(t))
    step = (m * reciprocal(c1)) * reciprocal(np.sqrt(v * reciprocal(c2)) + eps)
    return fma(-lr, step, w), m, v


@pytest.mark.parametrize("t", [1, 2, 10, 1000])
def test_fast_gpu_arithmetic_is_inside(t: int) -> None:
    w, g, m, v = RNG.standard_normal((4, 200, 5)).astype(F)
    v = np.abs(v)
    if t == 1:
        m = 0 * m
        v = 0 * v
    inputs = table(
        w.tolist(),
        [[i] for i in range(200)],
        grad_output=g,
        exp_avg=m.reshape(-1),
        exp_avg_sq=v.reshape(-1),
    )
    truth = BACKWARD.truth(inputs, {"optimizer": "adam", "step": t})
    for name, computed in zip(("weights", "exp_avg", "exp_avg_sq"), sloppy_adam(w, g, m, v, t)):
        assert (np.abs(computed.reshape(-1) - truth[name].reference) <= truth[name].bound).all(), (
            name
        )
    late = sloppy_adam(w, g, m, v, t + 1)[0].reshape(-1)
    if t < 1000:
        assert (np.abs(late - truth["weights"].reference) > truth["weights"].bound).mean() > 0.9


@pytest.mark.parametrize(
    ("bend", "optimizer", "name", "value"),
    [
        ("", "adam", "eps", 1e-8),
        ("adagrad_eps_1e10", "exact_adagrad", "eps", 1e-10),
        ("adagrad_eps_1e10", "adam", "eps", 1e-8),
        ("adagrad_eps_1e10", "exact_adagrad", "beta1", 0.9),
        ("betas_swapped", "adam", "beta1", 0.99),
        ("betas_swapped", "adam", "beta2", 0.9),
        ("betas_swapped", "adam", "eps", 1e-8),
        ("rate_twice", "adam", "learning_rate", 0.25),
        ("rate_twice", "adam", "beta1", 0.9),
        ("rate_missing", "adam", "learning_rate", 1.0),
        ("rate_missing", "adam", "eps", 1e-8),
        ("decay_sign_flipped", "adam", "weight_decay", -0.2),
        ("decay_sign_flipped", "adam", "learning_rate", 0.5),
        ("hyper_in_fp16", "adam", "weight_decay", float(np.float16(0.2))),
    ],
)
def test_a_mistake_reads_another_number(bend, optimizer, name, value):
    options = {"optimizer": optimizer, "eps": 1e-8, "learning_rate": 0.5, "weight_decay": 0.2}
    options |= {"beta1": 0.9, "beta2": 0.99}
    assert Hyper(options, frozenset({bend}))[name].value == value


@pytest.mark.parametrize(
    ("bend", "step", "counted"),
    [
        ("", 3, 3),
        ("step_always_1", 3, 1),
        ("step_always_1", 1, 1),
        ("step_counted_late", 3, 2),
        ("step_counted_early", 3, 4),
    ],
)
def test_a_mistake_counts_steps_otherwise(bend, step, counted):
    assert Hyper({"step": step}, frozenset({bend})).step == counted


@pytest.mark.parametrize(
    ("bend", "mode", "decay", "taken"),
    [
        ("", "l2", 0.1, "l2"),
        ("", "l2", 0.0, "none"),
        ("weight_decay_ignored", "l2", 0.1, "none"),
        ("weight_decay_swapped", "l2", 0.1, "decoupled"),
        ("weight_decay_swapped", "decoupled", 0.1, "l2"),
        ("weight_decay_swapped", "decoupled_global", 0.1, "decoupled_global"),
    ],
)
def test_a_mistake_decays_otherwise(bend, mode, decay, taken):
    hyper = Hyper(
        {"weight_decay_mode": mode, "weight_decay": decay, "learning_rate": 0.5}, frozenset({bend})
    )
    assert hyper.mode == taken
    kept = 1 - 0.5 * decay if taken.startswith("decoupled") else 1
    assert hyper.keep().value == kept


def test_products_in_any_order_are_within_their_bound() -> None:
    """Also where what is multiplied first is subnormal, or is divided by little."""
    rng = np.random.default_rng(5)
    a, b, c = np.exp2(rng.uniform(-80, 60, (3, 5000))).astype(np.float32)
    truth = product(Bounded.exactly(a), Bounded.exactly(b), over=(Bounded.exactly(c),))
    with np.errstate(over="ignore", under="ignore"):
        orders = np.array([a * b / c, a / c * b, a * (b / c)], np.float64)
    exact = a.astype(np.float64) * b / c
    assert (np.abs(truth.value - exact) <= 1e-15 * exact).all()
    bound = np.where(np.isfinite(orders), truth.error, np.inf)
    assert (np.abs(orders - exact) <= bound).all()
    ordinary = np.abs(np.log2([a, b, c])).max(axis=0) < 30
    assert ordinary.any() and (truth.error[ordinary] < 3e-7 * exact[ordinary]).all()


def test_usual_errors_of_sums_are_those_that_were_recorded() -> None:
    """Segments of 20, 10 and 370 terms; columns of any numbers, of like ones, of large ones, one
    with NaN.
    """
    rng = np.random.default_rng(5)
    terms = rng.standard_normal((400, 5))
    terms[:, 1] = rng.integers(-2, 3, 400) / 4
    terms[:, 2] *= 2.0 ** rng.integers(-20, 20, 400)
    terms[100, 3] = np.nan
    terms[:, 4] = np.abs(terms[:, 4])
    starts = np.array([0, 20, 30, 400])
    errors = [
        (str(n), recorded.summary(usual_error_of_additions(terms, starts, n))) for n in (1, 3)
    ]
    recorded.check("usual errors of sums", errors)
