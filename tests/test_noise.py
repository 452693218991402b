"""Do steps vary as their law says, and do faults leave as much progress as drawn ones do?"""

import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from neocpu.cli import run as command
from neocpu.core.goodput import best_interval, progress
from neocpu.plan.cost.links import Layout
from neocpu.plan.machines.machine_file import load
from neocpu.plan.simulation import collectives
from neocpu.plan.simulation.engine import Work
from neocpu.plan.simulation.noise import Jitter, NodeFaults, RunningCosts, percentiles


def lived(interval: float, save: float, restart: float, faults: float, segments: int) -> float:
    """The part of the time that is progress, faults drawn one by one."""
    rng = np.random.default_rng(3)
    time = 0.0
    done = 0
    left = rng.exponential(faults)
    needed = interval + save
    while done < segments:
        if left >= needed:
            time += needed
            left -= needed
            done += 1
            needed = interval + save
            continue
        # a fault, also while the run starts again
        time += left
        left = rng.exponential(faults)
        needed = restart + interval + save
    return segments * interval / time


@pytest.mark.parametrize(
    ("interval", "save", "restart", "faults"),
    [(600.0, 30.0, 120.0, 3600.0), (3000.0, 60.0, 600.0, 2000.0), (50.0, 5.0, 0.0, 1e5)],
)
def test_progress_is_that_of_drawn_faults(
    interval: float, save: float, restart: float, faults: float
) -> None:
    drawn = lived(interval, save, restart, faults, 20_000)
    assert progress(interval, save, restart, faults) == pytest.approx(drawn, rel=0.015)


@pytest.mark.parametrize("save", [0.5, 30.0, 600.0])
@pytest.mark.parametrize("faults", [1800.0, 86_400.0])
def test_no_interval_makes_more_progress_than_the_best(save: float, faults: float) -> None:
    best = best_interval(save, faults)
    here = progress(best, save, 120.0, faults)
    others = [progress(best * factor, save, 120.0, faults) for factor in np.geomspace(0.1, 10, 401)]
    assert here >= max(others) * (1 - 1e-3)
    assert others[0] < here and others[-1] < here
    if save < faults / 1000:
        assert best == pytest.approx(math.sqrt(2 * save * faults), rel=0.03)


def test_more_nodes_make_less_progress_and_none_that_lasts_for_ever() -> None:
    faults = NodeFaults(node=3600.0 * 10_000, save=60.0, restart=300.0)
    shares = [faults.progress(nodes) for nodes in (16, 64, 512, 4096)]
    assert shares == sorted(shares, reverse=True) and 0 < shares[-1] < shares[0] < 1
    assert NodeFaults().progress(512) == 1.0
    assert progress(1e9, 1.0, 1.0, 1.0) == 0.0
    assert best_interval(10.0, 4.0) == 4.0
    assert NodeFaults(node=1.0, every=60.0).interval(8) == 60.0


def test_the_slowest_of_many_ranks_follows_its_law() -> None:
    """The largest of R log-normal factors is below x with probability Phi(...)^R."""
    ranks = 64
    jitter = Jitter(variation=0.2)
    rng = np.random.default_rng(1)
    work = Work(np.ones(ranks))
    draws = np.array([jitter.drawn(work, True, rng).seconds for _ in range(8000)])
    assert draws.mean() == pytest.approx(1.0, abs=2e-3)
    assert draws.std() == pytest.approx(0.2, abs=2e-3)
    spread = math.sqrt(math.log1p(0.2**2))
    for share, value in percentiles(draws.max(axis=1)).items():
        normal = NormalDist(-(spread**2) / 2, spread)
        expected = math.exp(normal.inv_cdf((share / 100) ** (1 / ranks)))
        assert value == pytest.approx(expected, rel=0.02)
    together = jitter.drawn(work, False, rng).seconds
    assert (together == together[0]).all() and together[0] != 1.0
    slow = Jitter(slow_ranks=2, slow_by=1.5)
    assert slow.drawn(work, True, rng).seconds.tolist() == [1.5] * 2 + [1.0] * 62
    assert slow.drawn(work, False, rng).seconds.tolist() == [1.0] * 64


def test_the_command_tells_percentiles_and_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neocpu.plan.simulation.sweep.MOST_RANKS", 16)
    faults = ["faults.node_hours=100", "faults.save_s=30", "faults.restart_s=300"]
    line = ["simulate", "tiny", "--ranks", "16"]
    costs = ["cost.node_hour=36", "cost.node_watts=6500"]
    keys = [word for key in (*faults, *costs) for word in ("--set", key)]
    command([*line, *keys, "--scaling", str(tmp_path / "s.svg")])
    shown = capsys.readouterr().out
    # 100 h over 2 nodes; sqrt(2 * 30 s * 50 h) is 54.8 min
    assert "faults one every 50 h; with a checkpoint every 54.4 min" in shown
    assert f"{NodeFaults(node=360_000.0, save=30.0, restart=300.0).progress(2):.1%}" in shown
    assert "imbalance   progress    price/M      kWh/M  mostly" in shown
    # two nodes for an hour take 72, and 13 kWh
    per_million = RunningCosts(36.0, 6500.0).of_million(2, 1e6 / 3600)
    assert per_million == {"price": pytest.approx(72.0), "kWh": pytest.approx(13.0)}
    (line_of_costs,) = [text for text in shown.splitlines() if text.startswith("costs  ")]
    price, energy = (float(word) for word in line_of_costs.split() if word[0].isdigit())
    assert price / energy == pytest.approx(36 / 6.5, rel=0.01)
    assert "steps  " not in shown
    command([*line, *keys, "--set", "checkpoint.every_minutes=10"])
    assert "with a checkpoint every 10 min" in capsys.readouterr().out
    jitter = ["--set", "jitter.variation=0.3", "--steps", "40"]
    command([*line, *jitter])
    shown = capsys.readouterr().out
    assert "(50 %), " in shown and "(99 %) of 40 steps" in shown


@pytest.mark.parametrize("operation", ["alltoall", "allreduce"])
def test_the_best_algorithm_is_the_cheapest_at_each_size(operation: str) -> None:

    network = collectives.Network(load("zionex"), Layout(128, 8))
    chosen = set()
    for size in np.geomspace(1e2, 1e10, 17):
        prices = [network.price(operation, form) for form in collectives.FORMS]
        seconds = [price.latency + size * price.byte_seconds for price in prices]
        best = network.price(operation, collectives.BEST, size)
        assert best.latency + size * best.byte_seconds == min(seconds)
        chosen.add(collectives.FORMS[int(np.argmin(seconds))])
    assert len(chosen) > 1
