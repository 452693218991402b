"""Does the software cache decide as a dictionary would, on any trace, whatever is locked, flushed
or forgotten in between?
"""

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from neocpu.core.policies import NEVER, POLICIES
from neocpu.kernels.compile.threads import thread_count, use_threads
from neocpu.kernels.logs import hashing
from neocpu.kernels.operands import BatchRows, CacheState, Evicted, Misses, RowsFound
from neocpu.kernels.tiers import cache as kernels
from neocpu.kernels.tiers import next_uses, policies
from neocpu.kernels.twins.logs import hashing as hashing_twin
from neocpu.kernels.twins.tiers import cache as twin
from neocpu.kernels.twins.tiers import next_uses as next_uses_twin
from neocpu.kernels.twins.tiers import policies as twin_policies
from neocpu.tables.tiers.cache import (
    LINE,
    STATISTICS,
    WAYS,
    Cache,
    batches_ahead,
    line_of,
    sets_for,
)
from tests.cache_model import Model, batch_of, murmur

NAMES = sorted(POLICIES)
BOTH = (kernels, next_uses), (twin, next_uses_twin)
EMPTY = np.empty(0, np.int64)
SEEDS = st.integers(0, 2**32)


def same_set(count: int, sets: int) -> np.ndarray:
    """`count` rows of set 0."""
    return np.array([n for n in range(40 * sets * count) if murmur(n) % sets == 0][:count])


TRACES = {  # rows a batch draws from: (sets, rows)
    "few rows": (2, np.arange(40)),
    "twice the cache": (2, np.arange(128)),
    "one set": (4, same_set(100, 4)),
    "huge numbers": (3, 2**62 + np.arange(150) * 12345678901),
}


def arrays(ids, counts=None):
    ids = np.array(sorted(ids), np.int64)
    return ids, np.array(
        [counts[i] for i in ids.tolist()] if counts else np.ones(ids.size), np.int64
    )


def test_sets_are_fbgemms():
    ids = np.array([0, 1, 2, 3, 10, 12345, 10**9])
    out = np.empty(7, np.int64)
    for module in (kernels, twin):
        for sets, expected in (
            (1024, [0, 812, 999, 206, 781, 761, 602]),
            (1000, [0, 604, 447, 222, 437, 753, 538]),
        ):
            module.set_of(ids, sets, out)
            assert out.tolist() == expected == [murmur(i) % sets for i in ids.tolist()]


def test_geometry_is_fbgemms():
    assert [sets_for(rows) for rows in (1, 160, 161, 10**6)] == [1, 1, 2, 6250]
    assert sets_for(2**62, 1.0) == 2**57
    cache = Cache(3, "lfu")
    assert cache.lines == 96


def test_every_policy_has_both_functions_and_their_twins():
    for name in {policy.functions for policy in POLICIES.values()}:
        for what in ("touch", "victim"):
            assert (
                getattr(policies, f"{name}_{what}").__doc__
                and getattr(twin_policies, f"{name}_{what}").__doc__
            )
    functions = {
        name.rsplit("_", 1)[0] for name in vars(policies) if name.endswith(("_touch", "_victim"))
    }
    assert functions == {policy.functions for policy in POLICIES.values()}


class Pair:
    """The state of a cache, twice: for a module of kernels and for the dictionaries."""

    def __init__(self, modules, policy, sets):
        module, self.next_uses = modules
        self.prints = np.zeros(32 * sets, np.uint8)
        state = np.zeros(32 * sets, line_of(POLICIES[policy]))
        self.tags, self.stamp, self.locks, self.dirty = (state[name] for name in LINE.names)
        self.next_use = state["next_use"] if POLICIES[policy].next_use else EMPTY
        self.hand = np.full(sets if POLICIES[policy].hand else 0, -1)
        self.module = module
        self.find = module.finder(POLICIES[policy].functions)
        self.populate = module.populator(POLICIES[policy].functions)

        self.state = CacheState(
            prints=self.prints,
            tags=self.tags,
            locks=self.locks,
            dirty=self.dirty,
            stamp=self.stamp,
            next_use=self.next_use,
            hand=self.hand,
        )

    def step(self, now, ids, counts, use, order):
        """All kernels of one batch; what they return."""
        lines = np.full(ids.size, -7)
        missed = np.full(ids.size, -7)
        misses = np.full(-(-ids.size // kernels.CHUNK), -7)
        state = self.state
        lookups = np.full_like(misses, -7)
        rows = BatchRows(ids, counts, use)
        self.find(rows, now, state, RowsFound(lines, missed, misses, lookups))
        result = [lines.copy(), misses, lookups]
        sets = np.full(ids.size, -7)
        m = self.module.gather(misses, missed, lines, sets)
        result += [lines.copy(), missed[:m], sets[:m]]
        evicted = Evicted(np.full(m, -7), np.full(m, -7), np.full(m, -7), np.full(m, 7, np.uint8))
        newcomers = Misses(missed[:m], sets[:m], counts[missed[:m]], order[:m])
        work = np.empty((m, 5), np.int64)
        self.populate(rows, newcomers, work, now, state, lines, evicted)
        moves = np.full((4, m), -7)
        changed = np.zeros(m, np.bool_)
        numbers = self.module.settle(rows, missed[:m], lines, evicted, moves, changed)
        where = np.full(ids.size, -7)
        self.module.locate(ids[::-1].copy(), self.prints, self.tags, where)
        return [*result, lines, *evicted, moves, changed, numbers, where, *state]


@pytest.mark.parametrize("policy", NAMES)
@hypothesis.settings(max_examples=12)
@given(
    seed=SEEDS,
    trace=st.sampled_from(sorted(TRACES)),
    batches=st.integers(1, 8),
    flight=st.integers(0, 3),
)
def test_kernels_are_their_twins(policy, seed, trace, batches, flight):
    rng = np.random.default_rng(seed)
    sets, rows = TRACES[trace]
    pairs = [Pair(modules, policy, sets) for modules in BOTH]
    held = []
    for now in range(1, batches + 1):
        ids, counts = arrays(batch := batch_of(rng, rows, int(rng.integers(0, 120))), batch)
        use = now + rng.integers(1, 4, ids.size) if POLICIES[policy].next_use else EMPTY
        use = np.where(rng.random(use.size) < 0.3, NEVER, use)
        missing = ids.size - np.isin(ids, pairs[0].tags[pairs[0].prints > 0]).sum()
        order = rng.permutation(missing) if rng.random() < 0.5 else EMPTY
        results = [pair.step(now, ids, counts, use, order) for pair in pairs]
        for answer, expected in zip(*results):
            np.testing.assert_array_equal(answer, expected)
        held.append(results[0][6])
        if len(held) > flight:
            lines = held.pop(0)
            changed = bool(rng.random() < 0.7)
            for pair in pairs:
                wrong = np.full(-(-lines.size // kernels.CHUNK), -7)
                pair.module.release(lines, changed, pair.locks, pair.dirty, wrong)
                assert not wrong.any()
        if POLICIES[policy].next_use:
            later = rng.permutation(32 * sets + 1)[:20] - 1
            gone = [np.full((3, later.size), -7) for _ in pairs]
            for pair, out in zip(pairs, gone):
                pair.next_uses.expect(later, now + 2, now, pair.next_use)
                if POLICIES[policy].expires:
                    pair.next_uses.expire(later[::-1].copy(), now, pair.state, *out)
            np.testing.assert_array_equal(*gone)


def test_lines_that_are_not_locked_are_counted_and_kept():
    for module in (kernels, twin):
        state = np.zeros(3, LINE)
        wrong = np.full(1, -7)
        state["locks"] = 1, 0, 2
        module.release(np.array([0, 1, -1, 2]), True, state["locks"], state["dirty"], wrong)
        assert (
            state["locks"].tolist() == [0, 0, 1]
            and state["dirty"].tolist() == [1, 0, 1]
            and wrong == 1
        )


@given(seed=SEEDS, window=st.integers(0, 5))
def test_batches_ahead(seed, window):
    rng = np.random.default_rng(seed)
    ids, *later = (np.unique(rng.integers(0, 30, rng.integers(0, 20))) for _ in range(window + 1))
    expected = [next((b + 1 for b, batch in enumerate(later) if i in batch), 0) for i in ids]
    np.testing.assert_array_equal(batches_ahead(ids, later), expected)
    starts = np.cumsum([0, *(batch.size for batch in later)])
    out = np.empty_like(ids)
    next_uses_twin.batches_ahead(ids, np.concatenate([*later, EMPTY]), starts, out)
    np.testing.assert_array_equal(out, expected)


@given(seed=SEEDS)
def test_counts_in_a_hash_map(seed):
    results = []
    for module in (hashing, hashing_twin):
        again = np.random.default_rng(seed)
        keys = np.zeros(64, np.uint64)
        slots = np.zeros(64, np.int64)
        outs = []
        for _ in range(3):
            codes = again.permutation(20)[: again.integers(0, 20)].astype(np.uint64)
            out = np.empty(codes.size, np.int64)
            outs += [
                module.add_counts(codes, again.integers(1, 9, codes.size), keys, slots, out),
                out,
            ]
        results.append([keys, slots, *outs])
    for answer, expected in zip(*results):
        np.testing.assert_array_equal(answer, expected)


def check(cache, model, batch, ahead):
    """One batch through both; its lines."""
    ids, counts = arrays(batch, batch)
    moves = cache.prefetch(ids, counts, np.array([ahead.get(i, 0) for i in ids.tolist()], np.int64))
    lines, evictions, fills = model.prefetch(batch, ahead)
    assert dict(zip(ids.tolist(), moves.lines.tolist())) == lines
    gone = zip(moves.evicted_rows.tolist(), moves.evicted_dirty.tolist())
    assert dict(zip(moves.evicted_lines.tolist(), gone)) == evictions
    assert dict(zip(moves.filled_rows.tolist(), moves.filled_lines.tolist())) == fills
    # all may be written before any row is read
    assert not {*moves.evicted_rows.tolist()} & {*ids.tolist()}
    assert {*moves.evicted_lines.tolist()} <= {*moves.filled_lines.tolist()}
    assert moves.filled_rows.tolist() == sorted(moves.filled_rows.tolist())
    assert cache.stats() == dict(zip(STATISTICS, model.stats))
    return moves.lines


class Machine(RuleBasedStateMachine):
    """A `Cache` and a `Model` side by side."""

    @initialize(policy=st.sampled_from(NAMES), trace=st.sampled_from(sorted(TRACES)))
    def start(self, policy, trace):
        sets, self.numbers = TRACES[trace]
        self.cache = Cache(sets, policy)
        self.model = Model(sets, policy)
        self.flying = []
        self.last = {}

    @rule(seed=SEEDS, lookups=st.integers(0, 150), repeat=st.booleans(), foresight=st.booleans())
    def prefetch(self, seed, lookups, repeat, foresight):
        rng = np.random.default_rng(seed)
        self.last = self.last if repeat else batch_of(rng, self.numbers, lookups)
        ahead = {number: int(rng.integers(0, 4)) for number in self.last if foresight}
        self.flying.append(check(self.cache, self.model, self.last, ahead))

    @precondition(lambda self: self.flying)
    @rule(which=st.integers(0, 3), changed=st.booleans())
    def release(self, which, changed):
        lines = self.flying.pop(which % len(self.flying))
        self.cache.release(lines, changed)
        self.model.release(lines.tolist(), changed)

    @rule(seed=SEEDS, ahead=st.integers(1, 4))
    def expect(self, seed, ahead):
        rows = np.random.default_rng(seed).choice(self.numbers, 20)
        if self.cache.policy.next_use:
            self.cache.expect(rows, ahead)
        self.model.expect(rows.tolist(), ahead)

    @precondition(lambda self: self.cache.policy.expires)
    @rule(seed=SEEDS)
    def expire(self, seed):
        lines = np.random.default_rng(seed).permutation(self.cache.lines + 1)[:40] - 1
        gone, rows, dirty = self.cache.expire(lines)
        expired = self.model.expire(lines.tolist())
        assert list(zip(gone.tolist(), rows.tolist(), dirty.tolist())) == expired
        assert self.cache.held == len(self.model.rows())

    @rule()
    def flush(self):
        lines, ids = self.cache.flush()
        assert list(zip(lines.tolist(), ids.tolist())) == list(self.model.flush().items())

    @precondition(lambda self: self.model.rows())
    @rule()
    def mark(self):
        line, row = min(self.model.rows().items())
        self.cache.mark(np.array([line]))
        row.dirty = True

    @rule()
    def invalidate(self):
        if self.flying and any((lines >= 0).any() for lines in self.flying):
            with pytest.raises(ValueError, match="in flight"):
                self.cache.invalidate()
        else:
            self.cache.invalidate()
            self.model.invalidate()

    @rule()
    def look(self):
        lines, ids = self.cache.rows()
        rows = {line: row.number for line, row in self.model.rows().items()}
        assert dict(zip(lines.tolist(), ids.tolist())) == rows
        where = {number: line for line, number in rows.items()}
        assert self.cache.locate(self.numbers).tolist() == [
            where.get(n, -1) for n in self.numbers.tolist()
        ]


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis.settings(
    max_examples=40, stateful_step_count=30, deadline=None, derandomize=True
)


@pytest.mark.parametrize("policy", NAMES)
def test_long_trace(policy):
    """Zipf-distributed batches, two of them in flight, the next three known; all rows are forgotten
    once.
    """
    rng = np.random.default_rng(5)
    cache = Cache(3, policy)
    model = Model(3, policy)
    batches = [batch_of(rng, rng.zipf(1.2, 400) % 500, 150) for _ in range(40)]
    flying = []
    for b, batch in enumerate(batches):
        later = [arrays(other)[0] for other in batches[b + 1 : b + 4]]
        ids = arrays(batch)[0]
        flying.append(
            check(cache, model, batch, dict(zip(ids.tolist(), batches_ahead(ids, later).tolist())))
        )
        if cache.policy.next_use and len(later) == 3:
            cache.expect(later[2], 3)
            model.expect(later[2].tolist(), 3)
        while len(flying) == 2 or (b == 20 and flying):
            lines = flying.pop(0)
            cache.release(lines)
            model.release(lines.tolist(), True)
        if b == 20:
            cache.invalidate()
            model.invalidate()
    assert (
        0
        < cache.stats()["conflict_unique_misses"]
        < cache.stats()["unique_misses"]
        < cache.stats()["unique"]
    )


@pytest.mark.parametrize("policy", NAMES)
def test_more_rows_than_ways(policy):
    cache = Cache(4, policy)
    rows = same_set(100, 4)
    moves = cache.prefetch(rows, np.ones_like(rows))
    assert sorted(moves.lines.tolist()) == [-1] * 68 + list(range(32))
    assert moves.lines[:32].tolist() == list(range(32))  # ascending rows, lowest ways first
    assert cache.stats()["conflict_unique_misses"] == 68
    again = cache.prefetch(rows, np.ones_like(rows))  # locked still: nobody leaves
    assert again.lines.tolist() == moves.lines.tolist() and not again.evicted_rows.size
    cache.release(moves.lines)
    cache.release(again.lines)
    with pytest.raises(ValueError, match="more often"):
        cache.release(again.lines)


def test_decisions_do_not_depend_on_threads():
    rng = np.random.default_rng(2)
    before = thread_count()
    seen = []
    ids = np.sort(rng.choice(10**6, 30_000, replace=False))
    try:
        for threads in (1, 2):
            use_threads(threads)
            cache = Cache(500, "lru")
            seen.append([])
            for part in (ids, ids[::2], ids[::3]):
                moves = cache.prefetch(part.copy(), np.ones(part.size, np.int64))
                cache.release(moves.lines)
                seen[-1] += moves
    finally:
        use_threads(before)
    for one, two in zip(*seen):
        np.testing.assert_array_equal(one, two)


class Store:
    """Rows of one number each: home, lines, and a scratch for what is outside, as docs/memory.md
    says.
    """

    def __init__(self, rows, sets, policy):
        self.cache = Cache(sets, policy)
        self.home = np.arange(rows)
        self.fast = np.zeros(32 * sets, np.int64)
        self.flying = []

    def prefetch(self, batch, ahead):
        ids, counts = arrays(batch, batch)
        moves = self.cache.prefetch(ids, counts, ahead)
        dirty = moves.evicted_dirty
        self.home[moves.evicted_rows[dirty]] = self.fast[moves.evicted_lines[dirty]]
        self.fast[moves.filled_lines] = self.home[moves.filled_rows]
        scratch = {number: self.home[number] for number in ids[moves.lines < 0].tolist()}
        self.flying.append((ids, counts, moves.lines, scratch))

    def train(self):
        ids, counts, lines, scratch = self.flying.pop(0)
        held = lines >= 0
        self.fast[lines[held]] = (3 * self.fast[lines[held]] + counts[held]) % 10**9
        self.cache.release(lines)
        for number, count in zip(ids[~held].tolist(), counts[~held].tolist()):
            value = (3 * scratch[number] + count) % 10**9
            # a batch prefetched since may have given it a line
            line = int(self.cache.locate(np.array([number]))[0])
            if line >= 0:
                self.fast[line] = value
                self.cache.mark(np.array([line]))
            else:
                self.home[number] = value
            for *_, other in self.flying:
                other.update({number: value} if number in other else {})

    def flush(self):
        lines, ids = self.cache.flush()
        self.home[ids] = self.fast[lines]


@pytest.mark.parametrize("policy", NAMES)
@hypothesis.settings(max_examples=10)
@given(seed=SEEDS, window=st.integers(0, 3), sets=st.integers(1, 3), lookups=st.integers(1, 120))
def test_no_update_is_lost(policy, seed, window, sets, lookups):
    """Rows that are prefetched, evicted, staged and flushed end as they would without a cache."""
    rng = np.random.default_rng(seed)
    batches = [batch_of(rng, rng.zipf(1.2, 300) % 200, lookups) for _ in range(12)]
    store = Store(200, sets, policy)
    plain = np.arange(200)
    for b, batch in enumerate(batches):
        later = [arrays(other)[0] for other in batches[b + 1 : b + 4]]
        store.prefetch(batch, batches_ahead(arrays(batch)[0], later))
        if len(store.flying) > window:
            store.train()
        if rng.random() < 0.2:
            store.flush()
        for number, count in batch.items():
            plain[number] = (3 * plain[number] + count) % 10**9
    while store.flying:
        store.train()
    store.flush()
    np.testing.assert_array_equal(store.home, plain)
    assert not store.cache.flush()[0].size


def test_lfu_keeps_a_hotter_row_and_remembers_what_left():
    cache = Cache(1, "lfu")
    rows = np.arange(33)
    cache.release(cache.prefetch(rows[:32], np.full(32, 5)).lines)
    cold = cache.prefetch(rows[32:], np.array([4]))
    assert cold.lines.tolist() == [-1] and WAYS == 32  # 4 < 5 lookups: it stays outside
    tie = cache.prefetch(rows[32:], np.array([1]))
    assert tie.lines.tolist() == [0] and tie.evicted_rows.tolist() == [0]  # 5 = 5: it is admitted
    cache.release(tie.lines)
    back = cache.prefetch(rows[:1], np.array([1]))
    assert back.evicted_rows.tolist() == [32]  # 5 + 1 lookups: the row that left was not forgotten


def test_lookahead_meets_belady_where_it_knows_all():
    """One set, a row a batch, all of the future known: as few misses as the best choice in
    hindsight.
    """
    rng = np.random.default_rng(1)
    trace = (rng.zipf(1.2, 600) % 80).tolist()
    cache = Cache(1, "lookahead")
    for b, number in enumerate(trace):
        later = trace[b + 1 :]
        ahead = later.index(number) + 1 if number in later else 0
        cache.release(cache.prefetch(np.array([number]), np.array([1]), np.array([ahead])).lines)
    held = set()
    misses = 0
    for b, number in enumerate(trace):
        misses += number not in held
        held.add(number)
        later = trace[b + 1 :]
        if len(held) > 32:
            held.remove(max(held, key=lambda n: later.index(n) if n in later else 10**6))
    assert cache.stats()["unique_misses"] == misses


def test_large_batches_are_their_twins():
    """Several chunks; most rows missing, then most of them there, then few rows that are all
    missing: sets by fours.
    """
    rng = np.random.default_rng(3)
    pairs = [Pair(modules, "lru", 100) for modules in BOTH]
    rows = rng.choice(10**6, 3300, replace=False)
    for now, size in enumerate((3000, 3000, 3000, 60, 40), start=1):
        ids, counts = arrays(
            rng.choice(rows if size > 60 else 10**6 + np.arange(2000), size, replace=False)
        )
        missing = ids.size - np.isin(ids, pairs[0].tags[pairs[0].prints > 0]).sum()
        order = EMPTY if now == 1 else rng.permutation(missing)
        for answer, expected in zip(*(pair.step(now, ids, counts, EMPTY, order) for pair in pairs)):
            np.testing.assert_array_equal(answer, expected)
        for pair in pairs:
            pair.locks[:] = 0
