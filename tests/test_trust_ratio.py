"""Is a step of LAMB in the dense half as long as its parameters say, on any ranks?"""

import math
from functools import partial

import numpy as np
import pytest
from test_optimizer_extras import FLAT, alone, digest_of

from neocpu.core.errors import ConfigError
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.dense_optimizer import DenseRule
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.train.step.trust_ratio import TrustRatio

RATIO = "optimizer.trust_ratio=true"


@pytest.mark.parametrize("mode", ["decoupled", "l2", "none"])
def test_steps_are_those_of_lamb(mode: str) -> None:
    """You et al. 2020, in fp64 beside; a parameter of zeros takes Adam's step."""
    sizes = {"a": 12, "zeros": 3, "b": 5}
    ends = np.cumsum([*sizes.values()])
    rng = np.random.default_rng(1)
    trained = rng.standard_normal(20).astype(np.float32)
    trained[12:15] = 0
    decay = 0.0 if mode == "none" else 0.1
    optimizer = SparseOptimizer(
        name="adam",
        learning_rate=0.05,
        weight_decay=decay,
        weight_decay_mode="l2" if mode == "none" else mode,
    )
    weights = np.split(trained.astype(np.float64), ends[:-1])
    moments = [(np.zeros(size), np.zeros(size)) for size in sizes.values()]
    lamb = TrustRatio(sizes, DenseRule(optimizer, trained))
    for step in range(1, 4):
        gradient = rng.standard_normal(20).astype(np.float32)
        # two buckets, as where sums overlap with the backward pass
        lamb.step(gradient[12:], step, slice(12, 20))
        lamb.step(gradient[:12], step, slice(0, 12))
        for w, (m, v), g in zip(weights, moments, np.split(gradient, ends[:-1])):
            g = g + decay * w * (mode == "l2")
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            u = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + optimizer.eps)
            u += decay * w * (mode == "decoupled")
            norm = math.sqrt(w @ w)
            w -= 0.05 * (norm / math.sqrt(u @ u) if norm else 1.0) * u
    assert np.allclose(trained, np.concatenate(weights), rtol=1e-4, atol=1e-6)


def test_one_digest_over_ranks_and_pipelines() -> None:
    adam = 'optimizer.dense={ name="adam", weight_decay=0.01, weight_decay_mode="decoupled" }'
    group = 'optimizer.groups.slow={dense=["top.*"], learning_rate=0.25}'
    sets = (FLAT, RATIO, adam, group, "eval.ema=0.5")
    expected = digest_of(sets, ["table_wise"] * 3, SingleComm())
    assert expected != digest_of(sets[:1] + sets[2:], ["table_wise"] * 3, SingleComm())
    for ranks, pipeline in ((2, "full"), (3, "off")):
        more = (*sets, f"training.pipeline={pipeline}", "training.bucket_bytes=0")
        body = partial(digest_of, more, ["row_wise", "column_wise", "data_parallel"])
        assert run_threads(ranks, body, ranks_per_node=2) == [expected] * ranks


def test_with_directions_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trust_ratio: optimizer\.shampoo and"):
        alone(RATIO, "optimizer.muon.steps=5")
