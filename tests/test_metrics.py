"""Are metrics right, exact, and the same for any spread over ranks?"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.watch.metrics import Metrics, Window, compute, count_auc, exact_sum
from neocpu.train.watch.reliability import deciles, doubts, reliability


def sample(seed: int, n: int, grid: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores f32[n] (on a grid of `grid` values: many ties) and labels f32[n]."""
    random = np.random.default_rng(seed)
    p = random.random(n)
    if grid:
        p = np.round(p * grid) / grid
    return p.astype(np.float32), (random.random(n) < p).astype(np.float32)


def brute_auc(p: np.ndarray, y: np.ndarray) -> float | None:
    """All pairs, one by one."""
    clicks = p[y == 1]
    non_clicks = p[y == 0]
    if not clicks.size or not non_clicks.size:
        return None
    wins = (clicks[:, None] > non_clicks[None, :]).sum() + 0.5 * (
        clicks[:, None] == non_clicks[None, :]
    ).sum()
    return wins / (clicks.size * non_clicks.size)


@given(seed=st.integers(0, 10**6), n=st.integers(0, 200), grid=st.sampled_from([0, 1, 3, 50]))
def test_auc_counts_every_pair(seed: int, n: int, grid: int) -> None:
    p, y = sample(seed, n, grid)
    assert count_auc(p, y == 1, SingleComm()) == brute_auc(p, y)


def test_auc_of_negative_scores_and_zeros() -> None:
    p = np.array([-3.0, -0.0, 0.0, 1e-30, -1e-30], np.float32)
    y = np.array([0, 1, 0, 1, 0], np.float32)
    assert count_auc(p, y == 1, SingleComm()) == brute_auc(p, y)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_metrics_are_equal_for_any_spread(ranks: int) -> None:
    p, y = sample(5, 777, 40)
    alone = compute(p, y, "bce", SingleComm())
    owner = np.random.default_rng(1).integers(0, ranks - 1, p.size)  # the last rank has nothing

    def body(comm: Comm) -> Metrics:
        local = np.random.default_rng(comm.rank).permutation(np.flatnonzero(owner == comm.rank))
        return compute(p[local], y[local], "bce", comm)

    assert run_threads(ranks, body) == [alone] * ranks


def test_logloss_ne_calibration_accuracy_by_formula() -> None:
    p, y = sample(3, 500)
    metrics = compute(p, y, "bce", SingleComm())
    q = p.astype(float)
    logloss = float(np.mean(-np.where(y == 1, np.log(q), np.log1p(-q))))
    rate = float(y.astype(float).mean())
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert metrics.samples == 500
    assert metrics.logloss == pytest.approx(logloss, rel=1e-12)
    assert metrics.ne == pytest.approx(logloss / entropy, rel=1e-12)
    assert metrics.calibration == pytest.approx(q.mean() / rate, rel=1e-12)
    assert metrics.accuracy == np.mean((p >= 0.5) == (y == 1))
    assert "mse" not in metrics.to_dict()


def test_ne_of_the_base_rate_is_one() -> None:
    y = np.array([1, 0, 0, 0], np.float32)
    metrics = compute(np.full(4, 0.25, np.float32), y, "bce", SingleComm())
    assert metrics.ne == pytest.approx(1, abs=1e-15)
    assert metrics.auc == 0.5
    assert metrics.calibration == 1


def test_certain_predictions_have_finite_loss() -> None:
    p = np.array([1, 0, 1, 0], np.float32)
    wrong = compute(p, 1 - p, "bce", SingleComm())
    assert wrong.logloss is not None and math.isfinite(wrong.logloss) and wrong.logloss > 17
    assert compute(p, p, "bce", SingleComm()).logloss == 0


def test_a_prediction_of_one_half_is_a_click() -> None:
    p = np.array([0.5, 0.5, np.nextafter(np.float32(0.5), np.float32(0)), 0.75], np.float32)
    y = np.array([1, 1, 0, 0], np.float32)
    assert compute(p, y, "bce", SingleComm()).accuracy == 3 / 4


def test_one_class_no_samples_and_nan() -> None:
    p = np.array([0.1, 0.9], np.float32)
    single = compute(p, np.ones(2, np.float32), "bce", SingleComm())
    assert single.auc is None and single.ne is None and single.logloss is not None
    assert compute(p, np.zeros(2, np.float32), "bce", SingleComm()).calibration is None
    assert compute(p[:0], p[:0], "bce", SingleComm()) == Metrics(0)
    broken = compute(
        np.array([0.1, np.nan], np.float32), np.array([0, 1], np.float32), "bce", SingleComm()
    )
    assert broken == Metrics(2)


def test_mse() -> None:
    z = np.array([1, 3], np.float32)
    y = np.array([2, 0], np.float32)
    metrics = compute(z, y, "mse", SingleComm())
    assert metrics.mse == 5 and metrics.calibration == 2
    assert set(metrics.to_dict()) == {"samples", "mse", "calibration"}


@given(seed=st.integers(0, 10**6), n=st.integers(0, 60))
def test_exact_sum_loses_nothing(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    x = random.standard_normal(n) * 2.0 ** random.integers(-1070, 900, n)
    assert exact_sum(x) == sum(map(Fraction, x.tolist()), Fraction(0))
    assert exact_sum(np.append(x, np.inf)) is None


def test_window_forgets_the_oldest_batch() -> None:
    p, y = sample(1, 30)
    losses = np.linspace(0, 9, 30, dtype=np.float32)
    for loss, mean in (("bce", "logloss"), ("mse", "mse")):
        window = Window(2)
        for lo in (0, 10, 20):
            batch = slice(lo, lo + 10)
            window.add(p[batch], y[batch], losses[batch])
        measured = window.metrics(loss, SingleComm())
        assert measured == compute(p[10:], y[10:], loss, SingleComm(), losses[10:])
        # the loss that was minimised, not that of the predictions
        assert getattr(measured, mean) == losses[10:].mean(dtype=np.float64)
        assert measured.calibration == compute(p[10:], y[10:], loss, SingleComm()).calibration


@given(seed=st.integers(0, 10**6), n=st.integers(1, 300), grid=st.sampled_from([0, 2, 30]))
def test_deciles_are_tenths_of_the_sorted_predictions(seed: int, n: int, grid: int) -> None:
    p, y = sample(seed, n, grid)
    bins = deciles(p, y, "bce", SingleComm())
    bounds = [np.sort(p)[i * n // 10] for i in range(1, 10)]
    of_sample = (p[:, None] >= np.float32(bounds)).sum(axis=1)
    members = [of_sample == number for number in np.unique(of_sample)]
    assert [each["samples"] for each in bins] == [members_of.sum() for members_of in members]
    for each, chosen in zip(bins, members):
        assert each["predicted"] == pytest.approx(p[chosen].mean(dtype=np.float64), abs=1e-6)
        assert each["label"] == pytest.approx(y[chosen].mean())


def test_bins_of_the_reliability_are_half_a_unit_of_log_odds() -> None:
    odds = np.array([-20, -8.1, -7.9, -0.4, -0.1, 0.1, 0.4, 0.6, 7.9, 8.1, 20])
    p = (1 / (1 + np.exp(-odds))).astype(np.float32)
    bins = reliability(p, np.ones_like(p), "bce", SingleComm())
    assert [each["samples"] for each in bins] == [2, 1, 2, 2, 1, 1, 2]


def test_deciles_are_equal_for_any_spread() -> None:
    p, y = sample(6, 501, 60)
    alone = deciles(p, y, "bce", SingleComm())

    def body(comm: Comm) -> list[dict[str, object]]:
        local = slice(comm.rank * 100, 501 if comm.rank == 2 else comm.rank * 100 + 100)
        return deciles(p[local], y[local], "bce", comm)

    assert run_threads(3, body) == [alone] * 3


def test_a_model_below_the_average_or_off_the_click_rate_is_told() -> None:
    y = (np.arange(20_000) % 5 == 0).astype(np.float32)
    right = np.where(y == 1, 0.6, 0.1).astype(np.float32)

    def told(p: np.ndarray, y: np.ndarray = y) -> str:
        return " ".join(doubts(compute(p.astype(np.float32), y, "bce", SingleComm())))

    assert not told(right)
    assert "worse than predicting the average" in told(0.9 - 0.8 * y)
    assert told(right * 1.08).startswith("predicts 8 % too many clicks")
    assert told(right * 0.9).startswith("predicts 10 % too few clicks")
    # 4 % are not told, and neither are 8 % of 20 clicks, which chance may make
    assert not told(right * 1.04)
    assert not told(right[:100] * 1.08, y[:100])
