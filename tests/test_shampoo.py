"""Does Shampoo go where its formulas say, to the bit as its twins, on any ranks?"""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shampoo_golden import CASES, DIM, FILE, RATE, SHAPES, START
from shampoo_golden import EVERY as EVERY_OTHER
from shampoo_golden import gradients as golden_gradients
from test_gemm import assert_same
from test_optimizer_extras import FLAT, alone, digest_of, parameters

from neocpu.core.errors import ConfigError, TrainingError
from neocpu.kernels.dense import shampoo
from neocpu.kernels.numbers import squares
from neocpu.kernels.twins.dense import shampoo as twin
from neocpu.kernels.twins.numbers import squares as squares_twin
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.cost.directions import direction_seconds
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.work import DenseWork
from neocpu.plan.machines.machine import ComputePeak, LinkPeak, Machine
from neocpu.serve.scoring.inspect import TrainedModel
from neocpu.tables.embedding.dense_optimizer import DenseRule
from neocpu.tables.specs.directions import ShampooKeys, blocks_of, factor_bytes, merged, owners
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.run.trainer import Trainer
from neocpu.train.step.shampoo import Shampoo
from neocpu.train.watch.results import RunReport
from tests.small_run import config_of

SETTINGS = settings(deadline=None, derandomize=True, max_examples=30)
SIDES = ("both", "left", "right")
FILLS = ("normal", "one direction", "zero", "huge", "tiny", "wild")
NONE = np.empty((0, 0), np.float32)
EVERY = "optimizer.shampoo.every=2"
SMALL = "optimizer.shampoo.max_preconditioner_dim=5"  # layers of the small models are of several


# ---- the kernels ----


def gradient(rng, shape, fill):
    """Gradients of full rank and of rank 1, without length, and of sizes whose squares overflow or
    vanish.
    """
    g = rng.standard_normal(shape).astype(np.float32)
    if fill == "one direction":
        g = np.outer(g[:, 0], g[0])
    scale = {"zero": 0.0, "huge": 2.0**70, "tiny": 2.0**-100}.get(fill, 1.0)
    if fill == "wild":
        scale = np.exp2(rng.integers(-40, 40, shape))
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(g * scale, np.float32)


def one_step(module, gradients, beta2, epsilon, sides):
    """Factors, roots and direction after these gradients, and whether roots were found."""
    m, n = gradients[0].shape
    left = np.zeros((m, m), np.float32) if sides != "right" else NONE
    right = np.zeros((n, n), np.float32) if sides != "left" else NONE
    for g in gradients:
        module.accumulate(g, beta2, left, right)
    correction = 1.0 if beta2 == 1 else 1.0 / (1.0 - beta2 ** len(gradients))
    roots = [np.zeros_like(left), np.zeros_like(right)]
    order = 4 if sides == "both" else 2
    taken = [
        module.inverse_root(factor, correction, epsilon, order, root)
        for factor, root in zip((left, right), roots)
        if factor.size
    ]
    g = gradients[-1]
    out = np.empty_like(g)
    module.direction(g, *roots, g * np.float32(0.5), out)
    return left, right, *roots, out, taken


@SETTINGS
@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.sampled_from([1, 2, 5, 16, 33]),
    n=st.sampled_from([1, 3, 16, 17]),
    fill=st.sampled_from(FILLS),
    beta2=st.sampled_from([1.0, 0.9]),
    epsilon=st.sampled_from([1e-12, 1e-3, 1e-30]),
    sides=st.sampled_from(SIDES),
    threads=st.integers(1, 2),
)
def test_every_number_is_that_of_the_twin(seed, m, n, fill, beta2, epsilon, sides, threads):
    rng = np.random.default_rng(seed)
    gradients = [gradient(rng, (m, n), fill) for _ in range(3)]
    before = numba.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    try:
        *answer, taken = one_step(shampoo, gradients, beta2, epsilon, sides)
    finally:
        numba.set_num_threads(before)
    *expected, taken_by_twin = one_step(twin, gradients, beta2, epsilon, sides)
    assert taken == taken_by_twin
    for array, other in zip(answer, expected):
        assert_same(array, other)


@SETTINGS
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(0, 70000), fill=st.sampled_from(FILLS))
def test_squares_are_added_in_the_tree_of_the_twin(seed, n, fill):
    x = gradient(np.random.default_rng(seed), (n, 1), fill)[:, 0] if n else np.empty(0, np.float32)
    assert squares.square_sum(x) == squares_twin.square_sum(x)


@pytest.mark.parametrize("root", [2, 4])
@pytest.mark.parametrize(("size", "rank"), [(1, 1), (30, 30), (30, 7), (200, 1)])
def test_roots_are_those_of_the_eigenvalues(size, rank, root):
    """Of full and of deficient rank, where eigenvalues are the ridge alone."""
    g = np.random.default_rng(size).standard_normal((size, rank))
    factor = (g @ g.T).astype(np.float32)
    answer = np.zeros_like(factor)
    assert shampoo.inverse_root(factor, 1.0, 1e-12, root, answer)
    ridge = 2.0**-20 * np.linalg.norm(factor.astype(np.float64))
    values, vectors = np.linalg.eigh(g @ g.T + ridge * np.eye(size))
    exact = (vectors * np.maximum(values, ridge) ** (-1 / root)) @ vectors.T
    # a ridge of 2^-20 leaves an fp32 eigenvalue of its size four bits
    assert np.linalg.norm(answer - exact) < 0.02 * np.linalg.norm(exact)
    assert np.linalg.norm((answer - exact) @ g) < 0.01 * np.linalg.norm(exact @ g)
    assert np.array_equal(answer, answer.T)


def test_a_root_that_the_smallest_ridge_does_not_give_is_found_with_a_larger_one():
    values = np.float32([-1e-3, 0.5, 1.0])
    factor = np.diag(values)
    root = np.zeros_like(factor)
    assert shampoo.inverse_root(factor, 1.0, 1e-12, 2, root)
    ridge = 2.0**-8 * np.linalg.norm(values.astype(np.float64))
    assert np.allclose(np.diag(root), (values + ridge) ** -0.5, rtol=1e-4)
    assert not shampoo.inverse_root(np.diag(np.float32([-1, 1])), 1.0, 1e-12, 2, root)
    assert np.allclose(np.diag(root), (values + ridge) ** -0.5, rtol=1e-4)


def directions(gradients, sides="both"):
    """The direction after these gradients, as long as that of the last."""
    *_, out, taken = one_step(shampoo, gradients, 1.0, 1e-12, sides)
    assert all(taken)
    return 2.0 * out.astype(np.float64)


@pytest.mark.parametrize("sides", SIDES)
def test_one_gradient_loses_its_singular_values(sides):
    """(G Gᵀ)^(-1/4) G (Gᵀ G)^(-1/4) = U Vᵀ for G = U S Vᵀ, and so with one root of 2."""
    rng = np.random.default_rng(2)
    left, _ = np.linalg.qr(rng.standard_normal((12, 5)))
    right, _ = np.linalg.qr(rng.standard_normal((8, 5)))
    g = np.float32((left * [9.0, 4.0, 2.0, 1.0, 0.5]) @ right.T)
    expected = left @ right.T * np.linalg.norm(g) / math.sqrt(5)
    answer = directions([g], sides)
    assert np.linalg.norm(answer - expected) < 2e-3 * np.linalg.norm(expected)


def test_gradients_along_axes_are_those_of_adagrad():
    """A vector with one number of the gradient at a time has a diagonal factor."""
    factor = np.zeros((3, 3), np.float32)
    for column in np.diag(np.float32([3, 2, 5])):
        shampoo.accumulate(column[:, None].copy(), 1.0, factor, NONE)
    assert np.array_equal(factor, np.diag([9, 4, 25]))
    root = np.zeros_like(factor)
    assert shampoo.inverse_root(factor, 1.0, 1e-12, 2, root)
    last = np.ones((3, 1), np.float32)
    out = np.empty_like(last)
    shampoo.direction(last, root, NONE, last, out)
    adagrad = np.float64([[1 / 3], [1 / 2], [1 / 5]])
    assert np.allclose(out, adagrad * math.sqrt(3) / np.linalg.norm(adagrad), rtol=1e-4)


# ---- blocks ----


def test_dimensions_merge_and_blocks_cover_their_parameter():
    assert [merged(shape, 0) for shape in ((7,), (1, 7), (3, 1, 4), ())] == [
        (7, 1),
        (7, 1),
        (3, 4),
        (1, 1),
    ]
    assert merged((4, 5), 20) == (20, 1) and merged((4, 5), 19) == (4, 5)
    assert merged((2, 3, 4), 6) == (6, 4) and merged((5, 2, 3), 6) == (5, 6)
    keys = ShampooKeys(every=1, max_preconditioner_dim=4, sides=1)
    shapes = {"a": (9, 3), "b": (5,)}
    blocks = blocks_of(shapes, keys)
    assert [block.name for block in blocks] == ["a.0.0", "a.1.0", "a.2.0", "b.0.0", "b.1.0"]
    assert [(block.left, block.right, block.root) for block in blocks] == [
        (False, True, 2),
        (False, True, 2),
        (False, True, 2),
        (True, False, 2),
        (True, False, 2),
    ]
    assert [block.size for block in blocks] == [(4, 3), (4, 3), (1, 3), (4, 1), (1, 1)]
    assert factor_bytes(shapes, keys) == 8 * (9 + 9 + 9 + 16 + 1)
    # counted in 64 bytes: 1, 1, 1, 1, 1
    assert sorted(owners(blocks, 2)) == [0, 0, 0, 1, 1] and owners(blocks, 1) == [0] * 5
    large = blocks_of({"w": (64, 64), "v": (64, 32), "u": (64, 32)}, ShampooKeys(every=1))
    assert owners(large, 2) == [0, 1, 1]


# ---- training ----

ALL = (
    EVERY,
    SMALL,
    "optimizer.shampoo.beta2=0.9",
    "optimizer.shampoo.momentum=0.5",
    "optimizer.shampoo.nesterov=true",
    "optimizer.dense.weight_decay=0.01",
    'optimizer.groups.slow={dense=["top.*"], learning_rate=0.25}',
    "optimizer.clip_norm=0.5",
    "eval.ema=0.5",
)
TWO_LEVELS = "parallel.alltoall=two_level"
ADAMW = 'optimizer.dense={ name="adam", weight_decay=0.01, weight_decay_mode="decoupled" }'


@pytest.mark.parametrize(
    ("rule", "mode"),
    [("adam", "decoupled"), ("adagrad", "l2"), ("momentum_sgd", "decoupled"), ("sgd", "l2")],
)
def test_one_digest_over_ranks_and_pipelines(rule: str, mode: str) -> None:
    decay = f"optimizer.dense.weight_decay_mode={mode}"
    spread = f"optimizer.shampoo.spread={int(mode == 'l2')}"
    sets = (FLAT, *ALL, decay, f"optimizer.dense.name={rule}", spread)
    expected = digest_of(sets, ["table_wise"] * 3, SingleComm())
    for ranks, pipeline, group in ((2, "full", 0), (3, "off", 2), (4, "full", 2), (8, "input", 3)):
        more = (*sets, f"training.pipeline={pipeline}", "training.bucket_bytes=0", TWO_LEVELS)
        more = (*more, f"optimizer.shampoo.ranks_per_group={group}")
        body = partial(digest_of, more, ["row_wise", "column_wise", "data_parallel"])
        assert run_threads(ranks, body, ranks_per_node=2) == [expected] * ranks, (ranks, pipeline)


@pytest.mark.parametrize("rule", ["sgd", "momentum_sgd", "adagrad", "adam"])
def test_steps_before_the_first_are_those_of_the_rule(rule: str) -> None:
    plain = parameters(alone(f"optimizer.dense.name={rule}"))
    name = f"optimizer.dense.name={rule}"
    assert np.array_equal(parameters(alone(name, "optimizer.shampoo.every=4")), plain)
    assert not np.array_equal(parameters(alone(name, EVERY)), plain)


def step_of(keys: ShampooKeys, rule: str, g: np.ndarray, steps: int, **more: Any) -> np.ndarray:
    """The parameters after steps of one gradient f32[m, n], from zeros, at a rate of 1."""
    parameters = np.zeros(g.size, np.float32)
    optimizer = SparseOptimizer(name=rule, learning_rate=1.0, **more)
    trained = Shampoo(SingleComm(), {"w": g.shape}, keys, DenseRule(optimizer, parameters))
    for step in range(1, steps + 1):
        trained.step(g.reshape(-1), step)
    return parameters.reshape(g.shape)


@pytest.mark.parametrize(
    ("rule", "options", "length"),
    [
        ("sgd", {}, np.linalg.norm),
        ("adagrad", {"eps": 0.0}, lambda g: math.sqrt(g.size)),
        ("adam", {"eps": 0.0, "beta1": 0.0}, lambda g: math.sqrt(g.size)),
        ("momentum_sgd", {}, np.linalg.norm),
    ],
)
def test_a_step_is_as_long_as_that_of_the_rule(rule, options, length):
    g = np.random.default_rng(4).standard_normal((6, 9)).astype(np.float32)
    moved = step_of(ShampooKeys(every=1), rule, g, 1, **options)
    u, _, v = np.linalg.svd(g.astype(np.float64), full_matrices=False)
    expected = -u @ v * length(g) / math.sqrt(6)
    assert np.allclose(moved, expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize("roots", ["newton", "eigh"])
@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_the_public_reference(name: str, roots: str) -> None:
    case = CASES[name]
    sizes = {key: math.prod(shape) for key, shape in SHAPES.items()}
    parameters = np.ones(sum(sizes.values()), np.float32)
    keys = ShampooKeys(EVERY_OTHER, START, max_preconditioner_dim=DIM, roots=roots, **case.keys)
    optimizer = SparseOptimizer(learning_rate=RATE, **case.rule)
    trained = Shampoo(SingleComm(), SHAPES, keys, DenseRule(optimizer, parameters))
    for number, step in enumerate(golden_gradients(), 1):
        trained.step(np.concatenate([g.reshape(-1) for g in step.values()]), number)
    expected = json.loads(FILE.read_text())["parameters"][name]
    ends = np.split(parameters, np.cumsum([*sizes.values()])[:-1])
    for key, own in zip(SHAPES, ends):
        # steps are of about RATE; the smallest ridges differ, and roots are fp32 there too
        assert np.abs(own - np.array(expected[key])).max() < 2e-3 * RATE, key


def test_momentum_is_of_the_steps_and_nesterov_looks_ahead():
    g = np.random.default_rng(5).standard_normal((4, 3)).astype(np.float32)
    one = step_of(ShampooKeys(every=1), "sgd", g, 1)
    heavy = step_of(ShampooKeys(every=1, momentum=0.5), "sgd", g, 2)
    ahead = step_of(ShampooKeys(every=1, momentum=0.5, nesterov=True), "sgd", g, 2)
    # the same direction twice: 1, then 1 + 0.5; looking ahead 1.5, then 1 + 0.5 * 1.5
    assert np.allclose(heavy, 2.5 * one, rtol=1e-3, atol=1e-4)
    assert np.allclose(ahead, 3.25 * one, rtol=1e-3, atol=1e-4)


def test_spread_roots_are_of_the_factors_so_many_steps_before():
    rng = np.random.default_rng(6)
    shapes = {"w": (9, 6), "v": (5,)}
    keys = ShampooKeys(every=4, spread=3, max_preconditioner_dim=5, beta2=0.9)
    parameters = np.zeros(59, np.float32)
    optimizer = SparseOptimizer(name="sgd", learning_rate=1.0)
    trained = Shampoo(SingleComm(), shapes, keys, DenseRule(optimizer, parameters))
    values = {}
    for step in range(1, 11):
        trained.step(rng.standard_normal(59).astype(np.float32), step)
        values[step] = {name: fields["value"].copy() for name, fields in trained.factors.items()}
        of = {4: 1, 8: 5}.get(step)
        for name, fields in trained.factors.items() if of else ():
            expected = np.zeros_like(fields["root"])
            root = 2 if ".v." in name else 4
            assert shampoo.inverse_root(
                values[of][name], 1 / (1 - 0.9**of), keys.epsilon, root, expected
            )
            np.testing.assert_allclose(fields["root"], expected, rtol=1e-5, atol=1e-6)


def without_a_root(comm: Comm) -> tuple[list[str], dict[str, object], bool]:
    """Two computations of roots, of which the second finds one of two: what all ranks know."""
    keys = ShampooKeys(every=1, max_preconditioner_dim=3)
    optimizer = SparseOptimizer(name="sgd", learning_rate=1.0)
    shapes = {"w": (3, 3), "v": (3, 3)}
    trained = Shampoo(comm, shapes, keys, DenseRule(optimizer, np.zeros(18, np.float32)))
    g = np.random.default_rng(7).standard_normal(18).astype(np.float32)
    trained.step(g, 1)
    bad = trained.factors["shampoo.v.0.0.right"]
    before = bad["root"].copy()
    bad["value"][...] = np.diag(np.float32([-9e9, 9e9, 1]))  # no ridge makes that positive
    trained.step(g, 2)
    lines: list[str] = []
    trained.tell(lines.append)
    assert not trained.news
    return lines, trained.counts(), np.array_equal(bad["root"], before)


def test_a_root_that_is_not_found_stays_and_all_ranks_hear_of_it():
    for lines, counts, kept in run_threads(2, without_a_root):
        assert [line.partition(", whose")[0] for line in lines] == [
            "warning: step 2: no inverse root was found for v.0.0.right of optimizer.shampoo"
        ]
        assert counts == {"roots_kept": 1} and kept


def sent_in_groups(comm: Comm) -> list[int]:
    """To whom a rank sends something in a step, on groups of two."""
    keys = ShampooKeys(every=1, max_preconditioner_dim=3, ranks_per_group=2)
    rule = DenseRule(SparseOptimizer(name="sgd"), np.zeros(18, np.float32))
    trained = Shampoo(comm, {"w": (6, 3)}, keys, rule)
    trained.step(np.ones(18, np.float32), 1)
    return [rank for rank, size in enumerate(comm.sent.received()) if size and rank != comm.rank]


def test_directions_stay_in_their_group():
    assert run_threads(4, sent_in_groups) == [[1], [0], [3], [2]]


def test_squares_that_overflow_end_the_run_and_a_gradient_of_zeros_does_not():
    keys = ShampooKeys(every=1)
    with pytest.raises(TrainingError, match=r"of block w\.0\.0, is not finite; lower optim"):
        step_of(keys, "sgd", np.full((2, 3), 2.0**62, np.float32), 400)

    def overflow(comm: Comm) -> str:
        """Whichever rank has the block, all end alike."""
        rule = DenseRule(SparseOptimizer(name="sgd"), np.zeros(6, np.float32))
        trained = Shampoo(comm, {"w": (2, 3)}, keys, rule)
        with pytest.raises(TrainingError) as met:
            for step in range(1, 400):
                trained.step(np.full(6, 2.0**62, np.float32), step)
        return str(met.value)

    assert len({*run_threads(2, overflow)}) == 1
    assert not step_of(keys, "sgd", np.zeros((2, 3), np.float32), 2).any()


def test_a_run_goes_on_between_two_roots_on_other_ranks(log: Path, tmp_path: Path) -> None:
    # factors of step 4 have their roots at step 6
    keys = ("optimizer.shampoo.every=3", "optimizer.shampoo.spread=2", "training.log_every=2")
    sets = (*ALL, ADAMW, "training.epochs=2", *keys)

    def body(comm: Comm, out: str, steps: int, resume: bool) -> str:
        config = config_of(log, *sets, f"training.steps={steps}")
        return Trainer(config, comm, tmp_path / out, resume=resume).run()["digest"]

    whole = body(SingleComm(), "whole", 0, False)
    # roots at steps 3 and 6, so those of step 3 travel through the file
    run_threads(3, partial(body, out="parts", steps=4, resume=False))
    run_threads(2, partial(body, out="parts", steps=5, resume=True))
    assert body(SingleComm(), "parts", 0, True) == whole
    last = tmp_path / "whole" / "checkpoints" / "step-00000006.h5"
    with CheckpointFile(last) as file:
        root = file.field(file.number("dense/shampoo.bottom.0.weight.0.0.left"), "root")[:]
        assert root.shape == (5, 5) and root.any()
    text = (tmp_path / "whole" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["roots_kept"] for line in lines if line["split"] == "train"] == [0, 0, 0]
    assert set(TrainedModel(last).dense) == {
        f"{mlp}.{layer}.{kind}"
        for mlp in ("bottom", "top")
        for layer in (0, 1)
        for kind in ("weight", "bias")
    }


def test_a_run_that_starts_from_one_without_factors_begins_them_afresh(
    log: Path, tmp_path: Path
) -> None:
    config = config_of(log, "optimizer.dense.name=adam", "training.steps=2")
    Trainer(config, SingleComm(), tmp_path / "plain").run()
    start = f'training.init_from="{tmp_path / "plain"}"'
    config = config_of(log, *ALL, ADAMW, start, "training.steps=2")
    lines: list[str] = []
    report = RunReport(tmp_path / "next", 0, tell=lines.append)
    Trainer(config, SingleComm(), tmp_path / "next", report=report).run()
    assert any("factors of optimizer.shampoo" in line for line in lines)


def test_a_step_is_priced_by_the_rank_with_most_products():
    """A block of 8 x 6 and two of 4 x 4, by operations and bytes."""
    slow = Machine(
        ranks_per_node=4,
        compute=ComputePeak(fp32_flops_per_s=1.0),
        inside_node=LinkPeak(bandwidth_bytes_per_s=1.0),
    )
    shapes = {"w": (8, 6), "v": (4, 4), "u": (4, 4)}

    def seconds(ranks: int, group: int) -> dict[str, float]:
        work = ShampooKeys(every=10, ranks_per_group=group).work(shapes)
        layout = Layout.of_run(ranks, 4, "direct", 1)
        return direction_seconds(slow, slow, DenseWork(directions=work), layout)

    def operations(m: int, n: int) -> float:
        """Half of both factors, both products of the direction, a tenth of 20 rounds of roots."""
        rounds = 20 * 4 / 10
        return m * m * n + n * n * m + 2 * m * n * (m + n) + rounds * (m**3 + n**3)

    large, small = operations(8, 6), operations(4, 4)
    flops = slow.product_flops_per_s(8, 8, 6)
    alone, shared = seconds(1, 0), seconds(2, 0)
    assert alone["directions"] == pytest.approx((large + 2 * small) / flops)
    assert shared["directions"] == pytest.approx(large / flops)
    assert seconds(2, 1) == alone and alone["directions_exchange"] == 0
    assert shared["directions_exchange"] == pytest.approx(4 * 80 / 2)
    assert direction_seconds(slow, slow, DenseWork(), Layout.of_run(2, 4, "direct", 1)) == {}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("momentum=0.5",), "shampoo.momentum: 0.5 has no effect while optimizer.shampoo.every"),
        (("every=2", "beta2=0.0"), "shampoo.beta2: 0.0 must be above 0, and 1 at most"),
        (("every=2", "beta2=1.5"), "shampoo.beta2: 1.5 must be above 0, and 1 at most"),
        (("every=2", "epsilon=0.0"), "shampoo.epsilon: it must be above 0"),
        (("every=2", "momentum=1.0"), "shampoo.momentum: 1.0 must be below 1"),
        (("every=2", "nesterov=true"), "shampoo.nesterov: it has no effect without"),
        (("every=3", "spread=3"), "shampoo.spread: 3 must be below optimizer.shampoo.every, and"),
        (("every=3", "start=1", "spread=1"), "shampoo.spread: 1 must be below"),
        (("ranks_per_group=2",), "shampoo.ranks_per_group: 2 has no effect while"),
        (("every=2", "roots=qr"), "shampoo.roots"),
        (("every=-1",), "shampoo.every"),
        (("every=2", "sides=3"), "shampoo.sides"),
        (("every=2", "max_preconditioner_dim=0"), "shampoo.max_preconditioner_dim"),
    ],
)
def test_keys_that_mean_nothing_are_refused(log: Path, sets: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(log, *(f"optimizer.shampoo.{key}" for key in sets))


def test_where_not_every_rank_has_the_model_it_is_refused(log: Path) -> None:
    with pytest.raises(ConfigError, match=r"with parallel\.towers not every rank"):
        alone(EVERY, "parallel.towers=true")
    with pytest.raises(ConfigError, match=r"parity: with parallel\.towers, a search or"):
        config_of(log, EVERY, "checkpoint.parity=1")
