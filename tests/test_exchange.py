"""Do exchanges move every lookup, word and gradient where it belongs, on any route, and refuse what
must not travel?
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.core.jagged import KJT
from neocpu.parallel.exchange.input_dist import find_refusal
from neocpu.parallel.exchange.routes import ROUTES
from neocpu.parallel.exchange.shipment import GroupLayout, Shipment, ship_further
from neocpu.parallel.sharding.entries import entries_of_ranks
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Started
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.specs.specs import TableSpec, bags

PROFILE = settings(deadline=None, derandomize=True, max_examples=25)


class Journey:
    """Random groups, holders, samples and words for a number of ranks: the same on every rank."""

    def __init__(self, seed: int, ranks: int, ranks_per_node: int, wild: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.ranks = ranks
        self.ranks_per_node = ranks_per_node
        self.widths = tuple(rng.integers(1, 5, int(rng.integers(1, 5))).tolist())
        groups = len(self.widths)
        self.held = tuple(
            tuple(np.flatnonzero(rng.random(groups) < 0.6).tolist()) for _ in range(ranks)
        )
        self.cuts = tuple(np.cumsum([0, *rng.integers(0, 4, ranks)]).tolist())
        gaps = np.cumsum(rng.integers(0, 3, groups))
        self.homes = tuple((np.cumsum([0, *self.widths[:-1]]) + gaps).tolist())
        self.columns = self.homes[-1] + self.widths[-1] + 1
        shapes = [(self.cuts[-1], sum(self.widths[g] for g in held)) for held in self.held]
        self.words = [rng.integers(-(2**50), 2**50, shape) * 1.0 for shape in shapes]
        if wild:
            self.words = [w * 2.0 ** rng.integers(-120, 3, w.shape) for w in self.words]
            for w in self.words:
                w[rng.random(w.shape) < 0.3] = 0
        self.gradient = rng.standard_normal((self.cuts[-1], self.columns)).astype(np.float32)

    def map(self, comm: Comm) -> GroupLayout:
        return GroupLayout(comm, self.ranks_per_node, self.held, self.widths, self.homes, self.cuts)

    def run(self, body: Callable[[Comm], Any]) -> list[Any]:
        return run_threads(self.ranks, body, ranks_per_node=self.ranks_per_node)


def sums_at_home(
    journey: Journey, route: str
) -> Callable[[Comm], dict[tuple[int, int, int], Fraction]]:
    """Body: ship the words; the exact sum of all that arrived, by (group, sample, column)."""

    def body(comm: Comm) -> dict[tuple[int, int, int], Fraction]:
        m = journey.map(comm)
        job = Shipment(m, journey.words[comm.rank].copy(), [], Buffers())
        home, blocks = Started(ROUTES[route].words(job)).wait()
        further = Started(ship_further(job)).wait()
        assert (np.diff(further.key) >= 0).all()
        sums: dict[tuple[int, int, int], Fraction] = {}
        samples = m.samples(comm.rank)
        at = 0

        def add(group: int, sample: int, words: np.ndarray) -> None:
            for c, word in enumerate(words.tolist()):
                sums[group, sample, c] = sums.get((group, sample, c), Fraction(0)) + Fraction(word)

        for groups in blocks:
            for sample in range(samples):
                for g in groups:
                    add(g, sample, home[at : at + m.widths[g]])
                    at += m.widths[g]
        assert at == home.size
        for i, key in enumerate(further.key.tolist()):
            add(*divmod(key, samples), further.words[further.start[i] : further.start[i + 1]])
        return sums

    return body


@PROFILE
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 4), st.sampled_from(sorted(ROUTES)))
def test_every_route_brings_the_exact_sum_home(
    seed: int, ranks: int, ranks_per_node: int, route: str
) -> None:
    journey = Journey(seed, ranks, min(ranks, ranks_per_node))
    expected: list[dict] = [{} for _ in range(ranks)]
    for held, words in zip(journey.held, journey.words):
        for d in range(ranks):
            for sample, row in enumerate(words[journey.cuts[d] : journey.cuts[d + 1]]):
                at = 0
                for g in held:
                    for c in range(journey.widths[g]):
                        key = g, sample, c
                        expected[d][key] = expected[d].get(key, Fraction(0)) + Fraction(
                            float(row[at + c])
                        )
                    at += journey.widths[g]
    assert journey.run(sums_at_home(journey, route)) == expected


@PROFILE
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 4), st.sampled_from(sorted(ROUTES)))
def test_every_route_brings_gradients_back(
    seed: int, ranks: int, ranks_per_node: int, route: str
) -> None:
    journey = Journey(seed, ranks, min(ranks, ranks_per_node))

    def body(comm: Comm) -> np.ndarray:
        rows = np.ascontiguousarray(
            journey.gradient[journey.cuts[comm.rank] : journey.cuts[comm.rank + 1]]
        )
        return Started(ROUTES[route].gradients(journey.map(comm), rows, Buffers())).wait().copy()

    for held, rank_gradient in zip(journey.held, journey.run(body)):
        columns = [journey.homes[g] + c for g in held for c in range(journey.widths[g])]
        assert np.array_equal(rank_gradient, journey.gradient[:, columns])


def sent_bytes(journey: Journey, route: str) -> dict[str, int]:
    """Bytes by link class of words and gradients of one step."""

    def body(comm: Comm) -> dict[str, Any]:
        job = Shipment(journey.map(comm), journey.words[comm.rank].copy(), [], Buffers())
        Started(ROUTES[route].words(job)).wait()
        rows = np.ascontiguousarray(
            journey.gradient[journey.cuts[comm.rank] : journey.cuts[comm.rank + 1]]
        )
        Started(ROUTES[route].gradients(journey.map(comm), rows, Buffers())).wait()
        return comm.traffic()["alltoallv"]

    traffic = journey.run(body)[0]
    return {link: traffic[link]["bytes"] for link in ("same_rank", "same_node", "other_node")}


def full_journey(held: tuple[tuple[int, ...], ...]) -> Journey:
    """4 ranks on 2 nodes, 5 samples each; one group of 8 columns for these holders."""
    journey = Journey(1, 4, 2, wild=False)
    journey.widths = (8,)
    journey.homes = (0,)
    journey.columns = 8
    journey.held = held
    journey.cuts = (0, 5, 10, 15, 20)
    journey.words = [np.zeros((20, 8 * len(h))) for h in held]
    journey.gradient = np.zeros((20, 8), np.float32)
    return journey


def test_routes_load_the_links_differently() -> None:
    """One block is 5 samples x 8 columns x (8 + 4) bytes, words there and gradients back."""
    block = 5 * 8 * 12
    everywhere = full_journey(((0,), (0,), (0,), (0,)))
    assert sent_bytes(everywhere, "direct") == {
        "same_rank": 4 * block,
        "same_node": 4 * block,
        "other_node": 8 * block,
    }
    # the ring crosses each of the two borders once per hop: 3 hops x 2; the rest stays inside a
    # node
    assert sent_bytes(everywhere, "reduce_scatter") == {
        "same_rank": 0,
        "same_node": 6 * block,
        "other_node": 6 * block,
    }
    # inside: each rank keeps its two shares and gives two to its neighbour; across: one message per
    # rank and node
    assert sent_bytes(everywhere, "two_level") == {
        "same_rank": (8 + 4) * block,
        "same_node": 8 * block,
        "other_node": 4 * block,
    }
    one_node = full_journey(((0,), (0,), (), ()))
    assert sent_bytes(one_node, "direct")["other_node"] == 4 * block
    assert sent_bytes(one_node, "two_level")["other_node"] == 2 * block


TABLES = (TableSpec("a", 5, 4, ("x", "y")), TableSpec("b", 3, 8, ("y",), "sum", True))


def batch(values: list[int], lengths: list[list[int]], weights: bool = True) -> KJT:
    keys = tuple(bag.key for bag in bags(TABLES))
    rows = np.array(values, np.int64)
    return KJT(
        keys, np.array(lengths, np.int32), rows, np.ones(rows.size, np.float32) if weights else None
    )


@pytest.mark.parametrize(
    ("kjt", "words"),
    [
        (batch([0, 4, -1, 2], [[1, 0], [1, 1], [0, 1]]), ""),
        (batch([], [[0, 0], [0, 0], [0, 0]]), ""),
        (
            batch([0, 5, 0, 2], [[1, 0], [1, 1], [0, 1]]),
            "feature 'y', table 'a', sample 10 .* row 5 is outside",
        ),
        (
            batch([0, 4, 0, 3], [[1, 0], [1, 1], [0, 1]]),
            "feature 'y', table 'b', sample 11 .* row 3 is outside",
        ),
        (
            batch([-2, 4, 0, 2], [[1, 0], [1, 1], [0, 1]]),
            "feature 'x', table 'a', sample 10 .* row -2 is outside",
        ),
        (
            batch([2**63 - 1], [[0, 1], [0, 0], [0, 0]]),
            "feature 'x', table 'a', sample 11 .* row 9223372036854775807",
        ),
        (batch([-(2**63)], [[0, 1], [0, 0], [0, 0]]), "row -9223372036854775808 is outside"),
        (batch([0], [[1, -1], [1, 0], [0, 0]]), "feature 'x', sample 1: bag length -1"),
        (batch([0, 1], [[1, 0], [0, 0], [0, 0]]), "add up to 1 lookups, but there are 2"),
        (batch([0], [[1], [0], [0]]), "1 samples where this rank owns 2"),
        (batch([0], [[1, 0], [0, 0], [0, 0]], weights=False), r"\['b'\] are weighted"),
        (KJT(("x", "y"), np.zeros((2, 2), np.int32), np.zeros(0, np.int64)), "the batch has keys"),
    ],
)
def test_refusals_name_the_lookup(kjt: KJT, words: str) -> None:
    error = find_refusal(kjt, TABLES, bags(TABLES), samples=2, first_sample=10)
    if not words:
        assert error is None
    else:
        with pytest.raises(type(error), match=words):  # type: ignore[arg-type]
            raise error  # type: ignore[misc]


@PROFILE
@given(st.integers(1, 9), st.integers(1, 4), st.booleans(), st.integers(0, 2**32))
def test_entries_cover_every_key_once(
    ranks: int, ranks_per_node: int, scalars: bool, seed: int
) -> None:
    """For every key, row and column exactly one travelling entry of some rank, or one copy on every
    rank.
    """
    rng = np.random.default_rng(seed)
    tables = (*TABLES, TableSpec("c", 7, 16, ("z", "u")))
    names = [
        "table_wise",
        "row_wise",
        "column_wise",
        "data_parallel",
        "grid_shard",
        "table_row_wise",
    ]
    schemes = [names[i] for i in rng.integers(0, len(names), len(tables))]
    plan = place(tables, schemes, ranks, min(ranks, ranks_per_node))
    all_entries = entries_of_ranks(plan, 2, int(scalars))
    columns = 2 + sum(tables[bag.table].dim for bag in bags(tables))
    count = np.zeros((7, columns), int)
    for rank, entries in enumerate(all_entries):
        travel = entries.travel
        for e in range(len(travel)):
            home = slice(travel.home[e], travel.home[e] + travel.width[e])
            count[travel.lo[e] : travel.hi[e], home] += 1
        for span in entries.spans:
            assert (np.diff(travel.shard[span]) >= 0).all()
        for e in range(len(entries.copies)):
            if rank == 0:
                home = slice(
                    entries.copies.home[e], entries.copies.home[e] + entries.copies.width[e]
                )
                count[: entries.copies.hi[e], home] += 1
    at = 2
    for bag in bags(tables):
        rows = tables[bag.table].rows
        dim = tables[bag.table].dim
        assert (count[:rows, at : at + dim] == 1).all()
        at += dim
