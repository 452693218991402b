"""Do policies named after published systems keep what these systems promise?

BagPipe: no row is missing when its batch's turn comes, the cache holds the rows of the window and
no others, and a row is fetched only if no batch of the window before used it. ScratchPipe: rows of
the next batches are there, whatever leaves meanwhile. CachedEmbedding: the rows that are there are
the batch's and the most frequent ones. All of them: the bits of a run without a cache.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError
from neocpu.core.policies import SYSTEMS
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.config.config import load
from neocpu.train.run.trainer import Trainer
from tests.cache_model import murmur
from tests.small_run import config_of
from tests.test_tiers import ROWS, WIDTH, stack, visit

SEEDS = st.integers(0, 2**32)


def log_of(seed: int, zipf: bool, steps: int, most: int) -> list[np.ndarray]:
    """Rows of each batch, ascending, drawn evenly or by Zipf's law."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, steps)
    draw = (lambda n: rng.zipf(1.2, n) % ROWS) if zipf else (lambda n: rng.integers(0, ROWS, n))
    return [np.unique(draw(size)) for size in sizes]


class Training:
    """Steps that add their number to each row of their batch, through a tier and without one."""

    def __init__(self, policy: str, prefetch: int, known: int, lines: int) -> None:
        self.tier, self.numbers, _ = stack(
            "hbm_over_ddr", None, policy, ahead=prefetch > 0, cached=lines
        )
        self.prefetch = prefetch
        self.known = known
        self.plain = np.repeat(np.arange(ROWS, dtype=np.float32), WIDTH).reshape(ROWS, WIDTH)

    def run(self, log: list[np.ndarray]):
        """Yield the step and its visits after each step."""
        visits = [visit(rows) for rows in log]
        for step, batch in enumerate(visits):
            for later in visits[step : step + self.known + 1]:
                if later not in self.tier._known and not later.planned:
                    self.tier.know(later)
            for later in visits[step : step + self.prefetch + 1] if self.prefetch else ():
                if not later.planned:
                    assert self.tier.plan(later)
            slots = self.tier.begin(batch)
            self.tier.slots_of(batch.rows)
            assert (self.numbers[slots] == self.plain[batch.rows]).all()
            self.numbers[slots] += step
            self.plain[batch.rows] += step
            self.tier.settle()
            yield step, visits
        self.tier.flush()
        rows = self.tier.level.rows()
        records = self.tier.level.peek(rows)[:, : 4 * WIDTH].copy().view(np.float32)
        assert np.array_equal(records, self.plain[rows])
        never = np.setdiff1d(np.arange(ROWS), rows)
        assert not np.intersect1d(never, np.concatenate(log)).size

    def late(self) -> int:
        return self.tier.stats()[0]["late"]


def windows(log: list[np.ndarray], known: int) -> list[int]:
    """Different rows in each batch and those known after it."""
    return [
        np.unique(np.concatenate(log[step : step + known + 1])).size for step in range(len(log))
    ]


LINES = 32 * 32


@settings(max_examples=20)
@given(seed=SEEDS, zipf=st.booleans(), known=st.integers(1, 6), prefetch=st.integers(1, 6))
def test_bagpipe_misses_nothing_and_holds_the_rows_of_its_window(seed, zipf, known, prefetch):
    # all rows of a set fit into it, so that the window decides and nothing else
    sets = np.bincount([murmur(row) % (LINES // 32) for row in range(ROWS)])
    assert sets.max() <= 32
    prefetch = min(prefetch, known)
    log = log_of(seed, zipf, 14, 60)
    training = Training("bagpipe", prefetch, known, LINES)
    cache = training.tier.level.cache
    for step, _ in training.run(log):
        held = set(cache.rows()[1].tolist())
        coming = [set(rows.tolist()) for rows in log[step + 1 : step + known + 1]]
        assert held <= set().union(*coming)  # who has no known use has left
        assert held >= set().union(*coming[:prefetch])
    assert training.late() == 0 and not cache.rows()[0].size and cache.held == 0
    most = max(windows(log, known))
    assert cache.peak == most if prefetch == known else cache.peak <= most
    before = [set().union(*log[max(step - known, 0) : step]) for step in range(len(log))]
    fetched = sum(len(set(rows) - used) for rows, used in zip(log, before))
    assert cache.stats()["unique_misses"] == fetched


@settings(max_examples=20)
@given(seed=SEEDS, zipf=st.booleans(), prefetch=st.integers(1, 3))
def test_scratchpipe_always_hits(seed, zipf, prefetch):
    # the batch at work and those on their way fit into one set, and nothing else does
    log = log_of(seed, zipf, 16, 32 // (prefetch + 1))
    training = Training("scratchpipe", prefetch, 0, 32)
    cache = training.tier.level.cache
    for step, visits in training.run(log):
        for later in visits[step + 1 : step + prefetch + 1]:
            if later.planned:
                assert (cache.locate(later.rows) == later.lines).all() and (later.lines >= 0).all()
    assert training.late() == 0 and cache.stats()["conflict_unique_misses"] == 0
    blind = Training("scratchpipe", 0, 0, 32)
    list(blind.run(log))
    # the counter counts: without the pipeline every row that is fetched comes too late
    assert blind.late() == blind.tier.level.cache.stats()["unique_misses"] > 0


@settings(max_examples=20)
@given(seed=SEEDS, zipf=st.booleans(), share=st.sampled_from([0.3, 0.7, 1.0]))
def test_cachedembedding_keeps_the_most_frequent_rows(seed, zipf, share):
    log = log_of(seed, zipf, 16, 30)
    training = Training("cachedembedding", 0, 0, 32)
    training.tier.level.warm(np.arange(ROWS), share)
    held = set(range(int(32 * share)))
    cache = training.tier.level.cache
    assert set(cache.rows()[1].tolist()) == held
    for step, _ in training.run(log):
        batch = set(log[step].tolist())
        room = 32 - len(batch)
        held = batch | set(sorted(held - batch)[:room])
        assert set(cache.rows()[1].tolist()) == held


def test_their_names_give_the_keys_that_belong_to_them():
    memory = load("tiny", ["memory.policy=bagpipe", "memory.lookahead=5"]).memory
    assert (memory.placement, memory.prefetch, memory.lookahead) == ("hbm_over_ddr", 1, 5)
    config = load("tiny", ["memory.policy=scratchpipe"])
    assert config.memory.prefetch == 2 and config.chosen["memory.prefetch"] == 2
    ordered = ["memory.policy=cachedembedding", "data.rows_by=code"]
    memory = load("tiny", ordered).memory
    assert memory.warm and memory.warm_share == 0.7
    for keys, fault in (
        (["memory.policy=bagpipe", "memory.lookahead=0"], r"memory\.lookahead.*set 1 or more"),
        (["memory.policy=scratchpipe", "memory.prefetch=0"], "'scratchpipe' is nothing without"),
        ([*ordered, "memory.warm=false"], "memory.warm.*set true"),
        (["memory.policy=bagpipe", "memory.placement=hbm"], "no table has any"),
        (["memory.policy=cachedembedding"], r"memory\.policy.*hashed rows are in no order"),
        (["memory.warm_share=0"], "above 0"),
    ):
        with pytest.raises(ConfigError, match=fault):
            load("tiny", keys)


def test_their_runs_end_with_the_bits_of_a_run_in_memory(tmp_path):
    rng = np.random.default_rng(2)
    codes = [(rng.zipf(1.3, 600) % rows).astype(np.uint32) for rows in (400, 300)]
    columns = [FeatureColumn("one"), FeatureColumn("many")]
    with DatasetWriter(tmp_path / "log.h5", ["a"], columns) as writer:
        dense = rng.standard_normal((600, 1)).astype(np.float32)
        labels = (codes[0] % 3 == 0).astype(np.float32)
        writer.append(labels, dense, dict(zip(("one", "many"), codes)))
    keep = "data.rows_by=code", "tables.one.rows=400", "tables.many.rows=300"

    def run(out, *keys, ranks=1):
        steps = "training.epochs=3", "training.steps=24", "eval.every_steps=10"
        config = config_of(tmp_path / "log.h5", *keep, *steps, *keys)
        return run_threads(ranks, lambda comm: Trainer(config, comm, tmp_path / out).run())[0]

    plain = run("whole")
    sharded = run("sharded", "parallel.plan=row_wise", ranks=3)
    for policy, ranks in itertools.product(SYSTEMS, (1, 3)):
        # room for the window above DDR, or too little of it over SSD
        place = "memory.hbm=100000", "memory.lookahead=2"
        if ranks > 1:
            place = "memory.placement=ddr_over_ssd", "parallel.plan=row_wise"
        summary = run(f"{policy}-{ranks}", f"memory.policy={policy}", *place, ranks=ranks)
        assert summary["digest"] == plain["digest"], (policy, ranks)
        # a row has one owner: whatever its cache does, no rank sends a byte for it
        assert summary["traffic"] == sharded["traffic"] or ranks == 1
        nearest = [level for level in summary["tiers"] if "late" in level]
        assert len(nearest) == 2 and all(level["unique_misses"] for level in nearest)
        assert sum(level["late"] for level in nearest) == 0
