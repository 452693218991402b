"""Does a table of kind cafe find its hot ids, and do they get rows of their own, on any plan?"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neocpu.kernels import sketch as kernels
from neocpu.reference import sketch as reference

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
