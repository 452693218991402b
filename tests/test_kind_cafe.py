"""Does a table of kind cafe find its hot ids, and do they get rows of their own, on any plan?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu import config as configs
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.ingest.writer import DatasetWriter
from neocpu.kernels import sketch as kernels
from neocpu.parallel.threads import run_threads
from neocpu.reference import sketch as reference
from neocpu.training.trainer import Trainer

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
    gradient = random.standard_normal((5, 3)).astype(np.float32)
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
        module.map_hot_rows(numbers, 38, sketch, 7, np.uint64(seed), *mapped)
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
epochs = 3
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


@pytest.mark.parametrize("way", WAYS)
def test_ranks_plans_and_pipelines_give_one_digest(log, whole, tmp_path, way):
    ranks, *overrides = WAYS[way]
    summary, _ = train(log, tmp_path, *overrides, ranks=ranks)
    assert summary["digest"] == whole[0]["digest"]
    assert summary["metrics"]["test"] == whole[0]["metrics"]["test"]
