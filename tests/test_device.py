"""Is a slower device exactly as slow as it was set, without a core kept busy? On a clock of our
own: no time passes.
"""

import dataclasses

import numpy as np
import pytest
from test_tiers import ROWS, stack, visit

from neocpu.tables.storage.device import TICK, Device


class Clock:
    """Time that passes when somebody sleeps, always a little too long."""

    def __init__(self, over: float) -> None:
        self.now = 100.0
        self.over = over
        self.sleeps = 0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= TICK  # or it would be a busy wait in disguise
        self.now += seconds + self.over
        self.sleeps += 1


@pytest.mark.parametrize("over", [0.0, 0.00006, 0.02])
@pytest.mark.parametrize("limits", [(1000.0, 0.0), (0.0, 50.0), (1000.0, 50.0)])
def test_many_requests_take_what_the_device_would_take(
    over: float, limits: tuple[float, float]
) -> None:
    clock = Clock(over)
    rng = np.random.default_rng(7)
    device = Device(*limits, clock, clock.sleep)
    total = 0.0
    for size in rng.integers(1, 40, 3000).tolist():
        begun = device.begin()
        clock.now += 1e-5  # what the real memory took
        device.pay(begun, 1, size)
        total += max(size / limits[0] if limits[0] else 0, 1 / limits[1] if limits[1] else 0)
    assert abs(clock.now - 100 - total) <= TICK + over + 1e-5 and clock.sleeps > 1000
    assert device.waited == pytest.approx(total, rel=0.01)


def test_an_idle_device_saves_nothing_up_and_a_free_one_asks_no_clock() -> None:
    clock = Clock(0.0)
    device = Device(100.0, 0.0, clock, clock.sleep)
    for _ in range(3):
        clock.now += 50
        begun = clock.now
        device.pay(device.begin(), 1, 200)
        assert clock.now - begun == pytest.approx(2)
    begun = device.begin()
    clock.now += 5  # it took longer than the device would have
    device.pay(begun, 1, 200)
    assert clock.now - begun == pytest.approx(5)
    free = Device(clock=lambda: 1 / 0)
    free.pay(free.begin(), 1, 10**9)


@pytest.mark.parametrize("kind", ["hbm_over_ddr", "hbm_over_ddr_over_ssd"])
def test_rows_between_hbm_and_ddr_are_paid_for(kind: str, tmp_path, monkeypatch) -> None:
    tier, *_ = stack(kind, tmp_path)
    paid = []
    monkeypatch.setattr(tier.level.home, "_device", dataclasses.replace(Device(), bandwidth=1.0))
    monkeypatch.setattr(
        Device,
        "pay",
        lambda self, begun, rows, size: paid.append((bool(self.bandwidth), rows, size)),
    )
    record = tier.level._slots.record
    for at in range(0, ROWS, 30):
        tier.begin(visit(np.arange(at, at + 30)))
        tier.slots_of(np.arange(at, at + 30))
    moved = sum(size for slow, _, size in paid if slow)
    stats = tier.stats()[0]
    assert (
        moved
        == (stats["unique_misses"] - stats["conflict_unique_misses"]) * record
        + (ROWS - 32) * record
    )


def test_rows_to_records_and_back_are_paid_for(tmp_path, monkeypatch) -> None:
    tier, *_ = stack("ddr_over_ssd", tmp_path)
    home = tier.level.home
    monkeypatch.setattr(home, "_device", dataclasses.replace(Device(), bandwidth=1.0))
    paid = []
    monkeypatch.setattr(
        Device,
        "pay",  # of the file too, which is on a device of its own
        lambda self, begun, rows, size: self.bandwidth and paid.append((rows, size)),
    )
    home.write(np.arange(5), np.arange(5))
    home.read(np.arange(3, 9), np.arange(6))
    record = tier.level._slots.record
    assert paid == [(5, 5 * record), (6, 6 * record)]
