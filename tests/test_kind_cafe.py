"""Does a table of kind cafe find its hot ids, and do they get rows of their own, on any plan?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu import load
from neocpu.core.errors import CheckpointError, ConfigError
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.kernels.rows import sketch as kernels
from neocpu.kernels.twins.rows import sketch as reference
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.hot_sketch import HotSketch, SketchSizes
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config import config as configs
from neocpu.train.run.trainer import Trainer
from neocpu.train.step.dynamic_kinds import HotRows
from tests.workers import covered

SLOTS = 4


def views(buckets: int) -> kernels.SketchViews:
    """An empty sketch."""
    memory = np.zeros((buckets, 2 * SLOTS), np.int64)
    memory[:, :SLOTS] = -1
    scores = memory.view(np.float32)
    hot_rows = memory.view(np.int32)
    hot_rows[:, 3 * SLOTS :] = -1
    return kernels.SketchViews(memory, scores, hot_rows)


@given(
    rows=st.lists(st.integers(-1, 40), max_size=60),
    buckets=st.integers(1, 9),
    parts=st.integers(1, 3),
    hot=st.lists(st.integers(0, 40), unique=True, max_size=5),
    seed=st.integers(0, 2**32),
)
def test_kernels_of_the_sketch_are_their_twins(rows, buckets, parts, hot, seed):
    random = np.random.default_rng(seed)
    numbers = np.array(rows, np.int64)
    weights = random.standard_normal(numbers.size).astype(np.float32)
    offsets = np.sort(random.integers(0, numbers.size + 1, 6))
    offsets[0] = 0
    offsets[-1] = numbers.size
    width = int(random.integers(1, 20))
    values = random.standard_normal((5, width + 3)).astype(np.float32)
    gradient = kernels.PooledGradient(values, 2, width)
    middle = numbers.size // 2
    starts = np.array([[0, middle], [middle, middle], [middle, numbers.size]], np.int64)
    batches = np.array([0, 1, 3], np.int64)
    answers = []
    for module in (kernels, reference):
        importance = np.empty(numbers.size, np.float32)
        module.importances(numbers, offsets, weights, gradient, True, importance)
        seen = kernels.Observations(numbers, importance, starts, batches)
        means = np.empty(2)
        module.batch_means(seen, means)
        sketch = views(buckets)
        for _ in range(2):
            module.observe(seen, means, parts, sketch)
            for place, row in enumerate(hot):
                entries = sketch.ids[row % buckets, :SLOTS] == row
                sketch.hot_rows[row % buckets, 3 * SLOTS :][entries] = place
        mapped = [np.empty_like(numbers) for _ in range(2)]
        module.map_hot_rows(numbers, 38, sketch, 7, *mapped)
        answers.append([importance, means, sketch.ids, *mapped])
    for kernel, twin in zip(*answers):
        assert kernel.tobytes() == twin.tobytes()


CONFIG = """
[model]
embedding_dim = 4
bottom = [6, 4]
top = [5, 1]
[tables]
default = { kind = "cafe", compression = 2.0, threshold = 2.0, decay = 0.7, every = 3 }
one = { rows = 300 }
many = { rows = 900, pooling = "mean", features = ["many", "one"] }
single = { rows = 1, features = ["one"], every = 2 }
[optimizer.sparse]
name = "exact_rowwise_adagrad"
learning_rate = 0.05
[training]
batch_size = 32
epochs = 2
"""


def config_of(log, *overrides):
    return configs.loads(
        CONFIG, overrides=[f'data.train="{log}"', f'data.test="{log}"', *overrides]
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Samples whose codes follow Zipf's law; bags of "many" may be empty."""
    random = np.random.default_rng(3)
    samples = 230
    lengths = random.integers(0, 4, samples).astype(np.int32)
    codes = {
        "one": np.minimum(random.zipf(1.3, samples), 250).astype(np.uint32),
        "many": BagColumn(
            np.minimum(random.zipf(1.3, lengths.sum()), 800).astype(np.uint32), lengths
        ),
    }
    labels = (codes["one"] % 3 == 0).astype(np.float32)
    path = tmp_path_factory.mktemp("log") / "log.h5"
    columns = [FeatureColumn("one"), FeatureColumn("many", hotness=0)]
    with DatasetWriter(path, ["a", "b", "c"], columns) as writer:
        writer.append(labels, random.standard_normal((samples, 3)).astype(np.float32), codes)
    return path


def train(log, out, *overrides, ranks=1, resume=False):
    """Summary of a run, and its sketches."""
    config = config_of(log, *overrides)

    def body(comm):
        trainer = Trainer(config, comm, out, resume=resume)
        summary = trainer.run()
        rows = [member.rows for member in trainer.world.dynamic._members]
        return summary, [member.sketch for member in rows]

    return run_threads(ranks, body)[0]


@pytest.fixture(scope="module")
def whole(log, tmp_path_factory):
    """The run that all others must equal."""
    return train(log, tmp_path_factory.mktemp("whole"), "training.pipeline=off")


WAYS = {
    "full": (1, "training.pipeline=full"),
    "two ranks": (2, "parallel.plan=row_wise", "training.pipeline=full"),
    "three ranks": (3, "parallel.plan=column_wise", "training.pipeline=input"),
    "grid": (4, "parallel.plan=grid_shard", "data.deduplicate=[['one', 'many']]"),
    "copies": (2, "parallel.plan=data_parallel"),
    "tiers": (2, "memory.placement=hbm_over_ddr", "memory.hbm=20_000", "memory.prefetch=2"),
}


@pytest.mark.parametrize("way", covered(WAYS, always=("full", "three ranks", "tiers")))
def test_ranks_plans_and_pipelines_give_one_digest(log, whole, tmp_path, way):
    ranks, *overrides = WAYS[way]
    summary, _ = train(log, tmp_path, *overrides, ranks=ranks)
    assert summary["digest"] == whole[0]["digest"]
    assert summary["metrics"]["test"] == whole[0]["metrics"]["test"]


def test_a_resumed_run_in_the_middle_of_a_segment_equals_one_that_went_on(log, whole, tmp_path):
    train(log, tmp_path, "training.steps=5", ranks=2)  # decisions are due after 4 and 6
    summary, sketches = train(log, tmp_path, ranks=3, resume=True)
    assert summary["digest"] == whole[0]["digest"]
    for sketch, other in zip(sketches, whole[1]):
        assert sketch.numbers().tobytes() == other.numbers().tobytes()
    path = tmp_path / "checkpoints" / "step-00000016.h5"
    with CheckpointFile(path) as file:
        assert file.recomputed_digest() == summary["digest"]
    metrics = load(path).evaluate(str(log))
    assert metrics["logloss"] == summary["metrics"]["test"]["logloss"]
    start = config_of(log, f'training.init_from="{path}"')
    with pytest.raises(CheckpointError, match="the rows of table one moved"):
        Trainer(start, SingleComm(), tmp_path / "next").run()


def test_increments_hold_rows_that_were_copied(log, tmp_path):
    every = ("checkpoint.every_steps=3", "checkpoint.full_every=100", "checkpoint.keep=100")
    # rows move after steps 9 and 18, with a checkpoint after each
    segments = ("tables.default.every=9", "tables.single.every=9", "training.batch_size=4")
    train(log, tmp_path, "training.steps=19", *every, *segments, ranks=2)
    links = {}
    for path in (tmp_path / "checkpoints").glob("*.h5"):
        with CheckpointFile(path) as file:
            assert file.recomputed_digest() == file.digest
            links[file.step] = len(file.links)
    assert links[9] > 1 or links[18] > 1


FORMATS = {
    "adam on columns": (2, "parallel.plan=column_wise", "optimizer.sparse.name=adam"),
    "bf16_split": (2, "parallel.plan=grid_shard", "model.embedding_format=bf16_split"),
    "fp16 in tiers": (
        2,
        "parallel.plan=row_wise",
        "model.embedding_format=fp16",
        "memory.placement=hbm_over_ddr",
        "memory.hbm=20_000",
    ),
}


@pytest.mark.parametrize("name", covered(FORMATS, always=("adam on columns",)))
def test_a_promotion_copies_the_row_and_its_state_bit_by_bit(log, tmp_path, name, monkeypatch):
    ranks, *overrides = FORMATS[name]
    decide = HotSketch.decide
    copied = []

    def spy(self, rows):
        promoted = []
        sketch = self.sketch
        sketch.decide = lambda: promoted.append(decide(sketch)) or promoted[0]
        HotRows.decide.original(self, rows)
        rows.begin()
        shared_rows, place = np.unique(promoted[0].shared_rows, return_inverse=True)
        sources = rows.read(self._shared, shared_rows)
        targets = rows.read(self._hot, promoted[0].hot_rows)
        for field, value in targets.items():
            assert value.tobytes() == sources[field][place].tobytes()
        copied.append(promoted[0].logical_rows.size)

    spy.original = HotRows.decide
    monkeypatch.setattr(HotRows, "decide", spy)
    train(log, tmp_path, "training.steps=6", *overrides, ranks=ranks)
    assert sum(copied) > 20


def test_decisions_after_every_step_and_tables_of_one_row(log, tmp_path):
    overrides = ("tables.default.every=1", "tables.single.every=1", "training.steps=4")
    summary, sketches = train(log, tmp_path / "1", *overrides)
    again, _ = train(log, tmp_path / "2", *overrides, ranks=2)
    assert again["digest"] == summary["digest"]
    assert sketches[-1].logical_rows.tolist() == [[0, -1, -1, -1]]
    assert sketches[-1].hot_rows[0, 0] == 0


def test_a_sketch_finds_the_ids_of_zipf_that_are_seen_most():
    random = np.random.default_rng(1)
    rows = 100_000
    ids = random.zipf(1.1, 400_000) - 1
    ids = ids[ids < rows][:200_000].astype(np.int64)
    ids = random.permutation(rows)[ids]
    sketch = HotSketch(SketchSizes(rows, 500, 4, 100, 100.0, 0.9))
    for part in np.array_split(ids, 10):
        sketch.observe(observations(part))
    top = np.argsort(-np.bincount(ids, minlength=rows), kind="stable")[:200]
    assert np.isin(top, sketch.logical_rows).mean() > 0.95
    scores = dict(zip(sketch.logical_rows.reshape(-1).tolist(), sketch.scores.reshape(-1).tolist()))
    counts = np.bincount(ids, minlength=rows)
    # a score is never less than the lookups of its id since it entered
    assert all(scores[row] >= counts[row] for row in top[:50].tolist())


def observations(rows: np.ndarray) -> kernels.Observations:
    """Lookups of one batch, all of one importance."""
    starts = np.array([[0, rows.size]])
    importance = np.full(rows.size, 0.25, np.float32)
    return kernels.Observations(rows, importance, starts, np.array([0, 1]))


@given(seed=st.integers(0, 2**32), buckets=st.integers(1, 6))
def test_hot_rows_are_conserved_and_state_travels(seed, buckets):
    random = np.random.default_rng(seed)
    sizes = SketchSizes(2**40, buckets, SLOTS, 3, 3.0, 0.5)
    sketch = HotSketch(sizes)
    seen = 0
    for _ in range(4):
        rows = random.integers(0, 12, 40) * (2**36 + 1)
        sketch.observe(observations(rows))
        seen += rows.size
        before = {*sketch.hot_rows[sketch.hot_rows >= 0].tolist()}
        promoted = sketch.decide()
        hot = sketch.hot_rows[sketch.hot_rows >= 0]
        assert np.unique(hot).size == hot.size <= buckets
        assert {*promoted.hot_rows.tolist()} <= {*hot.tolist()} <= {*range(buckets)}
        assert (np.diff(sketch.scores, axis=1) <= 0).all()
        assert ((sketch.scores >= 3.0) | (sketch.hot_rows < 0)).all()
        limit = 10 * buckets * 3
        assert sketch.lookups == seen % limit
        freed = before - {*hot.tolist()}
        assert len(freed) == 0 or (sketch.scores < 3.0).any()
        other = HotSketch(sizes)
        other.load(sketch.numbers())
        assert other.numbers().tobytes() == sketch.numbers().tobytes()
        assert other.lookups == sketch.lookups


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("compression", "0.5", "at least 1"),
        ("hash_share", "1.0", "between 0 and 1"),
        ("every", "0", "at least 1"),
        ("pooling", '"none"', "choose sum or mean"),
    ],
)
def test_keys_that_make_no_sense_are_refused(key, value, message):
    with pytest.raises(ConfigError, match=message):
        configs.loads(f'[tables]\nC1 = {{ rows = 9, kind = "cafe", {key} = {value} }}')


def test_memory_is_split_as_the_keys_say():
    config = configs.loads(
        "[model]\nembedding_dim = 16\n[tables]\n"
        'C1 = { rows = 1000000, kind = "cafe", compression = 100, hash_share = 0.25 }'
    )
    hot, shared = config.tables
    dynamic = config.compositions[0].dynamic
    assert shared.rows == 2500
    assert hot.rows == 3750  # each with 64 bytes of its own and 64 of the sketch
    assert dynamic.bytes == 64 * hot.rows
    kept = 64 * (hot.rows + shared.rows) + dynamic.bytes
    assert kept == 1000000 * 64 // 100
