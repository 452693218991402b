"""Do partitioners place every item, keep within memory, and balance as their papers say?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.plan.search.partition import PARTITIONERS, Packing, fits, loads


def packing(
    weights: list[float], ranks: int, sizes: list[float] | None = None, limit: float = np.inf
) -> Packing:
    """Items of one phase and one memory on empty ranks."""
    return Packing(
        seconds=np.array(weights, float).reshape(-1, 1),
        bytes=np.array(sizes or [1.0] * len(weights), float).reshape(-1, 1),
        rank_seconds=np.zeros((ranks, 1)),
        rank_bytes=np.zeros((ranks, 1)),
        limits=np.full((ranks, 1), limit),
        slowness=np.ones(ranks),
    )


def totals(name: str, items: Packing) -> list[float]:
    """Loads of the ranks, least first."""
    ranks = PARTITIONERS[name](items)
    assert ranks is not None
    return sorted(loads(items, ranks)[0][:, 0].tolist())


@pytest.mark.parametrize("name", PARTITIONERS)
@given(data=st.data())
def test_every_item_is_placed_and_fits(name: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 12))
    ranks = data.draw(st.integers(1, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    items = Packing(
        seconds=rng.exponential(size=(count, 3)),
        bytes=rng.exponential(size=(count, 2)),
        rank_seconds=rng.exponential(size=(ranks, 3)),
        rank_bytes=rng.exponential(size=(ranks, 2)),
        # ranks are unequal, and some have no room at all
        limits=rng.choice([0.5, 3.0, 5.0, 20.0, np.inf], (ranks, 2)),
        slowness=rng.choice([1.0, 2.0], ranks),
    )
    placed = PARTITIONERS[name](items)
    if placed is None:
        return
    assert placed.shape == (count,)
    assert ((placed >= 0) & (placed < ranks)).all()
    if fits(items.rank_bytes, items.limits):
        assert fits(loads(items, placed)[1], items.limits)
    again = PARTITIONERS[name](items)
    assert again is not None
    assert (again == placed).all()


def test_largest_differencing_on_the_example_of_the_literature() -> None:
    """Korf 1998: 8, 7, 6, 5, 4 in two parts; differencing leaves 2, greedy 4, the best is 0."""
    items = packing([8, 7, 6, 5, 4], 2)
    assert totals("karmarkar_karp", items) == [14, 16]
    assert totals("greedy", items) == [13, 17]


def test_largest_differencing_beats_greedy_on_most_instances() -> None:
    rng = np.random.default_rng(5)
    spreads = {"greedy": [], "karmarkar_karp": []}
    for _ in range(60):
        items = packing(rng.uniform(size=24).tolist(), 4)
        least = max(items.seconds.sum() / 4, items.seconds.max())
        for name, values in spreads.items():
            sums = totals(name, items)
            assert sums[-1] >= least * (1 - 1e-12)
            values.append(sums[-1] - sums[0])
    better = np.array(spreads["karmarkar_karp"]) <= np.array(spreads["greedy"])
    assert better.mean() > 0.8


def test_a_rank_too_full_for_one_item_takes_the_next_that_it_has_room_for() -> None:
    items = packing([8, 5, 2, 1], 2, [3, 3, 3, 1], limit=6)._replace(
        rank_seconds=np.array([[0.0], [20.0]]), rank_bytes=np.array([[2.0], [0.0]])
    )
    placed = PARTITIONERS["greedy"](items)
    assert placed is not None
    assert placed.tolist() == [0, 1, 1, 0]


def test_linear_keeps_the_order() -> None:
    placed = PARTITIONERS["linear"](packing([1, 2, 3, 2, 1, 3], 3))
    assert placed is not None
    assert placed.tolist() == sorted(placed.tolist())


def test_phases_are_balanced_each_for_itself() -> None:
    """Two kinds of items, each dear in another phase: sums cannot tell them apart."""
    items = packing([1] * 8, 2)._replace(
        seconds=np.array([[2.0, 0.0], [0.0, 2.0]] * 4), rank_seconds=np.zeros((2, 2))
    )
    placed = PARTITIONERS["greedy_phases"](items)
    assert placed is not None
    assert loads(items, placed)[0].tolist() == [[4, 4], [4, 4]]


def test_memory_balanced_takes_less_memory_for_a_little_more_time() -> None:
    rng = np.random.default_rng(3)
    items = packing(rng.uniform(1, 2, 40).tolist(), 4, rng.exponential(size=40).tolist())
    peaks = {}
    times = {}
    for name in ("greedy", "memory_balanced"):
        placed = PARTITIONERS[name](items)
        assert placed is not None
        seconds, size = loads(items, placed)
        peaks[name] = size.max()
        times[name] = seconds.max()
    assert peaks["memory_balanced"] < peaks["greedy"]
    assert times["memory_balanced"] <= 1.1 * times["greedy"]


def test_what_differencing_puts_on_a_full_rank_moves() -> None:
    items = packing([5, 4, 3, 3, 3], 2, [4, 1, 1, 1, 4], limit=6)
    placed = PARTITIONERS["karmarkar_karp"](items)
    assert placed is not None
    assert fits(loads(items, placed)[1], items.limits)
    assert PARTITIONERS["karmarkar_karp"](items._replace(limits=np.full((2, 1), 4.5))) is None
