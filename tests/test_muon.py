"""Does Muon go where its formulas say, to the bit as its twin, on any ranks?"""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gemm import assert_same
from test_optimizer_extras import FLAT, alone, digest_of, parameters
from test_shampoo import FILLS, gradient

from neocpu.core.errors import ConfigError
from neocpu.kernels.dense import muon
from neocpu.kernels.twins.dense import muon as twin
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.dense_optimizer import DenseRule
from neocpu.tables.specs.directions import MuonKeys, matrices_of
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.train.run.trainer import Trainer
from neocpu.train.step.muon import Muon
from tests.small_run import config_of

STEPS = "optimizer.muon.steps=5"


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.sampled_from([1, 2, 5, 16, 33]),
    n=st.sampled_from([1, 3, 16, 17]),
    fill=st.sampled_from(FILLS),
    steps=st.integers(0, 5),
)
def test_every_number_is_that_of_the_twin(seed, m, n, fill, steps):
    g = gradient(np.random.default_rng(seed), (m, n), fill)
    answer, expected = np.full((2, m, n), np.nan, np.float32)
    muon.orthogonalize(g, steps, answer)
    twin.orthogonalize(g, steps, expected)
    assert_same(answer, expected)


def about_orthogonal(g, steps):
    """What the iteration makes of singular values, which it leaves on their vectors."""
    u, s, v = np.linalg.svd(g, full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ v


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (140, 9)])
def test_singular_values_follow_the_polynomial(shape):
    g = np.random.default_rng(1).standard_normal(shape)
    answer = np.empty(shape, np.float32)
    muon.orthogonalize(np.float32(g), 5, answer)
    assert np.allclose(answer, about_orthogonal(g, 5), atol=1e-4)
    assert (np.abs(np.linalg.svd(answer, compute_uv=False) - 0.95) < 0.3).all()


@pytest.mark.parametrize("scale", ["shape", "rms"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_steps_are_those_of_the_formulas(scale: str, nesterov: bool) -> None:
    """A tall and a wide matrix, a vector and a column, in fp64 beside; the last by AdaGrad."""
    shapes = {"tall": (7, 4), "bias": (7,), "wide": (3, 6), "column": (5, 1)}
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    keys = MuonKeys(5, 0.8, nesterov, 3.0, scale)
    assert [block.name for block in matrices_of(shapes)] == ["tall", "wide"]
    optimizer = SparseOptimizer(
        name="adagrad", learning_rate=0.1, weight_decay=0.5, weight_decay_mode="decoupled"
    )
    trained = np.ones(ends[-1], np.float32)
    by_muon = Muon(SingleComm(), shapes, keys, DenseRule(optimizer, trained))
    weights = np.split(np.ones(ends[-1]), ends[:-1])
    means = [np.zeros_like(weight) for weight in weights]
    rng = np.random.default_rng(2)
    for step in range(1, 5):
        g = rng.standard_normal(ends[-1]).astype(np.float32)
        by_muon.step(g, step)
        for number, (shape, part) in enumerate(zip(shapes.values(), np.split(g, ends[:-1]))):
            weight, mean = weights[number], means[number]
            weight *= 1 - 0.1 * 0.5
            if len(shape) == 1 or 1 in shape:
                mean += part**2
                weight -= 0.1 * part / (np.sqrt(mean) + 1e-8)
                continue
            mean *= 0.8
            mean += 0.2 * part
            ahead = 0.8 * mean + 0.2 * part if nesterov else mean
            longer = max(shape)
            factor = 0.2 * longer**0.5 if scale == "rms" else max(1, shape[0] / shape[1]) ** 0.5
            weight -= 0.3 * factor * about_orthogonal(ahead.reshape(shape), 5).reshape(-1)
    assert np.allclose(trained, np.concatenate(weights), atol=1e-4)


ADAMW = 'optimizer.dense={ name="adam", weight_decay=0.01, weight_decay_mode="decoupled" }'
ALL = (
    STEPS,
    'optimizer.groups.slow={dense=["top.*"], learning_rate=0.25}',
    "optimizer.clip_norm=0.5",
    "eval.ema=0.5",
)


@pytest.mark.parametrize("mode", ["decoupled", "l2"])
def test_one_digest_over_ranks_and_pipelines(mode: str) -> None:
    sets = (FLAT, *ALL[: 2 if mode == "l2" else None], ADAMW.replace("decoupled", mode))
    expected = digest_of(sets, ["table_wise"] * 3, SingleComm())
    for ranks, pipeline, group in ((2, "full", 0), (3, "off", 2), (4, "input", 0)):
        more = (*sets, f"training.pipeline={pipeline}", "training.bucket_bytes=0")
        more = (*more, f"optimizer.muon.ranks_per_group={group}")
        body = partial(digest_of, more, ["row_wise", "column_wise", "data_parallel"])
        assert run_threads(ranks, body, ranks_per_node=2) == [expected] * ranks, (ranks, pipeline)


def test_a_run_goes_on_on_other_ranks(log: Path, tmp_path: Path) -> None:
    def body(comm: Comm, out: str, steps: int, resume: bool) -> str:
        config = config_of(log, *ALL, ADAMW, f"training.steps={steps}")
        return Trainer(config, comm, tmp_path / out, resume=resume).run()["digest"]

    whole = body(SingleComm(), "whole", 3, False)
    run_threads(3, partial(body, out="parts", steps=1, resume=False))
    run_threads(2, partial(body, out="parts", steps=2, resume=True))
    assert body(SingleComm(), "parts", 3, True) == whole
    # momentum is a state of the dense parameters, so another run can start from it
    start = f'training.init_from="{tmp_path / "whole"}"'
    config = config_of(log, *ALL, ADAMW, start, "training.steps=1")
    Trainer(config, SingleComm(), tmp_path / "next").run()


def test_vectors_keep_the_rule_and_matrices_leave_it() -> None:
    assert not np.array_equal(parameters(alone(STEPS)), parameters(alone()))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("momentum=0.5",), "muon.momentum: 0.5 has no effect while optimizer.muon.steps"),
        (("steps=5", "momentum=1.0"), "muon.momentum: 1.0 must be below 1"),
        (("steps=5", "scale=long"), "muon.scale"),
        (("steps=21",), "muon.steps"),
    ],
)
def test_keys_that_mean_nothing_are_refused(log: Path, sets: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(log, *(f"optimizer.muon.{key}" for key in sets))


def test_what_it_does_not_go_with_is_refused(log: Path) -> None:
    with pytest.raises(ConfigError, match=r"with parallel\.towers not every rank"):
        alone(STEPS, "parallel.towers=true")
    with pytest.raises(
        ConfigError, match=r"muon\.steps: optimizer\.shampoo gives steps directions"
    ):
        config_of(log, STEPS, "optimizer.shampoo.every=2")
