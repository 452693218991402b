"""Are tables of tensor trains the products of their cores, of the published sizes, on any plan?"""

import importlib.util
import math
from dataclasses import replace

import numpy as np
import pytest

from neocpu.core.errors import ConfigError
from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.kernels.rows.row_maps import map_rows
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.lookups import KeyLookups, RowTerms
from neocpu.tables.kinds.tt import TrainShape, _compressed, cube_factors, even_factors, start_bound
from neocpu.tables.specs.specs import bags
from neocpu.train.before.plans import memory_plan
from neocpu.train.before.warmup import MiniBatch
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.model.composition_layout import KeyVectors
from neocpu.train.model.operations.tensor_train import TensorTrain
from neocpu.train.state.state import digest
from neocpu.train.step.world import World, build

LARGEST = (10131227, 8351593, 7046547, 5461306, 2202608, 286181, 142572)
KAGGLE = 33_762_577  # rows of all 26 tables

TOML = """
data.rows_by = "code"
[model]
embedding_dim = 8
bottom = [8]
top = [5, 1]
[tables]
one = { rows = 60, kind = "tt", rank = 5, features = ["left", "right"] }
bags = { rows = 27, kind = "tt", rank = 16, cache_rows = 4, pooling = "mean", weighted = true }
full = { rows = 9 }
[training]
batch_size = 22
leaves = 8
[optimizer.sparse]
name = "exact_rowwise_adagrad"
learning_rate = 0.1
"""


def settings(*sets: str) -> Config:
    return configs.loads(TOML, "tt.toml", sets)


@pytest.mark.parametrize(
    ("rank", "numbers", "factor"), [(16, None, 187.7), (32, 4_567_728, 118.3), (64, None, 48.6)]
)
def test_parameters_on_criteo_kaggle(rank: int, numbers: int | None, factor: float) -> None:
    """The seven largest tables as trains, the others full, dim 16 = 2 * 2 * 4."""
    trains = [TrainShape(cube_factors(rows), even_factors(16), rank) for rows in LARGEST]
    total = sum(train.parameters for train in trains) + 16 * (KAGGLE - sum(LARGEST))
    assert numbers in (None, total)
    assert round(16 * KAGGLE / total, 1) == factor
    tables = "\n".join(
        f"C{n} = {{ rows = {rows}, kind = 'tt', rank = {rank} }}" for n, rows in enumerate(LARGEST)
    )
    config = configs.loads(f"[tables]\n{tables}", "tt.toml")
    cores = sum(table.rows * table.dim for table in config.tables)
    assert cores == sum(train.parameters for train in trains)


def test_factors() -> None:
    for rows in (1, 2, 3, 26, 27, 28, 1000, 10**12 + 1):
        factors = cube_factors(rows)
        assert math.prod(factors) >= rows
        assert (factors[2] - 1) * factors[0] * factors[1] < rows
    assert [even_factors(dim) for dim in (1, 4, 16, 32, 64, 7)] == [
        (1, 1, 1),
        (2, 1, 2),
        (2, 2, 4),
        (4, 2, 4),
        (4, 4, 4),
        (1, 1, 7),
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("row_factors = [4, 5, 4]", "is 80, but the table has 100 rows"),
        ("row_factors = [10, 10]", "not three whole numbers"),
        ("dim_factors = [2, 2, 2]", "is 8, but the table has 16 columns"),
        ("rank = 0", "it is 1 at least"),
        ("cache_rows = 101", "is not in 0 ... 100"),
        ("rank = 100000", "a row of a core has"),
        ("dim = 2147483647, row_factors = [1]", "not three whole numbers"),
        ("compression = 1e-300", "compression: 1e-300 should be 1 or more"),
        ("compression = 100.0", "but with rank 1 they have"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configs.loads(f"[tables]\nC1 = {{ rows = 100, kind = 'tt', {keys} }}", "tt.toml")


@pytest.mark.parametrize("rank", [1, 2, 3, 7, 8])
def test_a_budget_is_used_up(rank: int) -> None:
    shape = TrainShape((10, 9, 8), (2, 2, 4), rank)
    budget = shape.parameters
    assert _compressed("key", shape, budget).rank == rank
    assert _compressed("key", shape, budget + 1).rank == rank
    if rank > 1:
        assert _compressed("key", shape, budget - 1).rank == rank - 1


def test_compression_chooses_the_largest_rank() -> None:
    config = configs.loads(
        "[tables]\nC1 = { rows = 100000, kind = 'tt', compression = 50.0 }", "tt.toml"
    )
    rank = dict(config.compositions[0].options)["rank"]
    shape = TrainShape(cube_factors(100000), even_factors(16), rank)
    assert shape.parameters <= 32000 < TrainShape(shape.rows, shape.dims, rank + 1).parameters


def operation(rank: int) -> TensorTrain:
    options = (("rows", (4, 3, 5)), ("dims", (2, 3, 2)), ("rank", rank))
    return TensorTrain(KeyVectors("t", 0, 12, "sum", "tensor_train", (), options=options), {})


def lookups_of(ids: np.ndarray, cores: list[np.ndarray], leaves: list[int]) -> list[KeyLookups]:
    """Each lookup of ids (-1: none) as a sample, core by core; each core row once."""
    sources = []
    for core, divisor, modulus in zip(cores, (15, 5, 1), (4, 3, 5)):
        rows = np.where(ids < 0, -1, ids // divisor % modulus)
        distinct, lines = np.unique(rows, return_inverse=True)
        values = np.where(distinct[:, None] < 0, np.float32(0), core[distinct])
        offsets = np.arange(ids.size + 1)
        sources.append(KeyLookups(offsets, rows, values, lines, None, np.array(leaves)))
    return sources


def full_matrix(cores: list[np.ndarray], rank: int) -> np.ndarray:
    """All rows of the table, in fp64."""
    first = cores[0].reshape(4, 2, rank).astype(np.float64)
    second = cores[1].reshape(3, rank, 3, rank)
    third = cores[2].reshape(5, 2, rank)
    return np.einsum("iar,jrbs,kcs->ijkabc", first, second, third).reshape(60, 12)


def summed(terms: RowTerms, rows: int) -> np.ndarray:
    """Gradients of all rows of a core."""
    assert terms.rows is not None
    sums = np.zeros((rows, terms.gradient.shape[1]))
    np.add.at(sums, terms.rows, terms.gradient.astype(np.float64))
    return sums


def batch_of(rank: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Cores, ids with duplicates, none and the last row, and a gradient."""
    rng = np.random.default_rng(rank)
    shapes = ((4, 2 * rank), (3, rank * 3 * rank), (5, 2 * rank))
    cores = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    ids = np.concatenate([rng.integers(-1, 60, 40), [59, 59, 7, 7, 7, -1]])
    return cores, ids, rng.standard_normal((ids.size, 12)).astype(np.float32)


@pytest.mark.parametrize("rank", [3, 16])
def test_rows_and_gradients_are_those_of_the_full_matrix(rank: int) -> None:
    cores, ids, gradient = batch_of(rank)
    train = operation(rank)
    out = np.full((ids.size, 12), np.nan, np.float32)
    train.forward(lookups_of(ids, cores, [0, 5, 5, 46]), out)
    full = full_matrix(cores, rank)
    expected = np.where(ids[:, None] < 0, 0, full[ids])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    terms = train.backward(gradient)
    by_row = np.zeros((60, 12))
    np.add.at(by_row, ids[ids >= 0], gradient[ids >= 0].astype(np.float64))
    for core, term in enumerate(terms):
        # the product is linear in each core, so a difference of any width is a derivative
        numeric = np.zeros(cores[core].shape)
        for cell in np.ndindex(numeric.shape):
            moved = [values.copy() for values in cores]
            moved[core][:] = 0
            moved[core][cell] = 1
            numeric[cell] = (full_matrix(moved, rank) * by_row).sum()
        answer = summed(term, len(cores[core]))
        np.testing.assert_allclose(answer, numeric, rtol=1e-3, atol=1e-3)
        leaf_and_row = term.gradient.shape[0]
        assert leaf_and_row <= 2 * len(cores[core])  # one term for each leaf and row


def test_rows_that_are_kept_pass_the_cores_by() -> None:
    """Lookups of the first 8 rows read and train a table of their own."""
    cores, ids, gradient = batch_of(3)
    kept = np.flatnonzero((ids >= 0) & (ids < 8))
    cache = np.random.default_rng(1).standard_normal((8, 12)).astype(np.float32)
    sources = lookups_of(ids, cores, [0, 5, 46])
    rows = np.where(ids < 8, ids, -1)
    values = np.where(rows[:, None] < 0, np.float32(0), cache[rows])
    source = replace(sources[0], rows=rows, values=values, lines=None)
    train = operation(3)
    out = np.empty((ids.size, 12), np.float32)
    train.forward([*sources, source], out)
    np.testing.assert_array_equal(out[kept], cache[ids[kept]])
    terms = train.backward(gradient)
    np.testing.assert_array_equal(terms[3].gradient, gradient[kept])
    assert terms[3].rows is not None and terms[3].rows.tolist() == ids[kept].tolist()
    others = np.where(rows < 0, ids, -1)
    alone = operation(3)
    expected = np.empty_like(out)
    alone.forward(lookups_of(others, cores, [0, 5, 46]), expected)
    np.testing.assert_array_equal(np.delete(out, kept, 0), np.delete(expected, kept, 0))
    for term, same in zip(terms, alone.backward(gradient)):
        np.testing.assert_array_equal(term.gradient, same.gradient)
        np.testing.assert_array_equal(term.rows, same.rows)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_gradients_are_those_of_torch() -> None:
    import torch

    rank = 16
    cores, ids, gradient = batch_of(rank)
    train = operation(rank)
    train.forward(lookups_of(ids, cores, [0, 46]), np.empty((ids.size, 12), np.float32))
    terms = train.backward(gradient)
    variables = [torch.tensor(core, requires_grad=True) for core in cores]
    used = torch.tensor(ids[ids >= 0])
    left = variables[0][used // 15].reshape(-1, 2, rank)
    middle = variables[1][used // 5 % 3].reshape(-1, rank, 3 * rank)
    right = variables[2][used % 5].reshape(-1, 2, rank)
    rows = torch.bmm(torch.bmm(left, middle).reshape(-1, 6, rank), right.transpose(1, 2))
    (rows.reshape(-1, 12) * torch.tensor(gradient[ids >= 0])).sum().backward()
    for core, (term, variable) in enumerate(zip(terms, variables)):
        assert variable.grad is not None
        answer = summed(term, len(cores[core]))
        np.testing.assert_allclose(answer, variable.grad.numpy(), rtol=1e-3, atol=1e-3)


def test_rows_start_with_the_variance_of_a_full_table() -> None:
    rows = 4096
    rank = 8
    shape = TrainShape(cube_factors(rows), even_factors(8), rank)
    bound = start_bound(rows, rank)
    rng = np.random.default_rng(1)
    cores = [rng.uniform(-bound, bound, size) for size in zip(shape.rows, shape.widths)]
    first = cores[0].reshape(16, 2, rank)
    second = cores[1].reshape(16, rank, 2, rank)
    third = cores[2].reshape(16, 2, rank)
    full = np.einsum("iar,jrbs,kcs->ijkabc", first, second, third)
    assert full.var() == pytest.approx(1 / (3 * rows), rel=0.1)


# ---- runs ----


def batch(options: Config, comm: Comm, number: int, samples: int) -> MiniBatch:
    """This rank's part of a batch: rows of the logical tables, mapped as a loader does."""
    rng = np.random.default_rng(number)
    lo, hi = rank_samples(comm.rank, comm.size, samples, options.training.leaves)
    features: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    lengths = []
    values = []
    weights = []
    for key in bags(options.tables):
        row_map = key.row_map
        height = row_map.rows if row_map else options.tables[key.table].rows
        if key.feature not in features:
            sizes = rng.integers(0, 4, samples).astype(np.int32)
            rows = rng.integers(-1, height, sizes.sum())
            rows[rng.random(rows.size) < 0.3] = height - 1
            rows[rng.random(rows.size) < 0.3] = 2
            features[key.feature] = (sizes, rows, rng.uniform(0.5, 2, rows.size))
        sizes, rows, factors = features[key.feature]
        if row_map:
            mapped = np.empty_like(rows)
            rule = (row_map.number, row_map.divisor, row_map.modulus, row_map.first)
            map_rows(rows, *rule, np.uint64(0), mapped)
            rows = mapped
        ends = np.append(0, np.cumsum(sizes))
        lengths.append(sizes[lo:hi])
        values.append(rows[ends[lo] : ends[hi]])
        weights.append(factors[ends[lo] : ends[hi]])
    kjt = KJT(
        keys=tuple(key.key for key in bags(options.tables)),
        lengths=np.array(lengths),
        values=np.concatenate(values),
        weights=np.concatenate(weights).astype(np.float32),
    )
    dense = rng.standard_normal((samples, 3), dtype=np.float32)
    labels = rng.integers(0, 2, samples).astype(np.float32)
    return MiniBatch(dense[lo:hi], kjt, labels[lo:hi], samples)


def train(options: Config, comm: Comm, plan: str, folder=None) -> str:
    """Digest after three steps, the last of a partial batch."""
    schemes = plan.split(",")
    tables = options.tables
    made = place(tables, [schemes[n % len(schemes)] for n in range(len(tables))], comm.size, 1)
    memory = None if folder is None else memory_plan(options, made, {}, folder)
    world: World = build(options, comm, made, 3, memory=memory)
    steps = world.step.over((batch(options, comm, n, m) for n, m in ((1, 22), (2, 22), (3, 9))), 1)
    for _ in range(3):
        steps.next()
    steps.close()
    result = digest(world, 3)
    world.embedding.tbe.close()
    return result


def test_one_digest_for_every_plan_pipeline_and_memory(tmp_path) -> None:
    options = settings()
    answer = train(options, SingleComm(), "table_wise")
    for ranks, plan in (
        (2, "data_parallel"),
        (3, "row_wise"),
        (3, "data_parallel,table_wise,column_wise"),
        (10, "table_wise"),  # more ranks than leaves
    ):
        digests = run_threads(ranks, lambda comm, plan=plan: train(options, comm, plan))
        assert set(digests) == {answer}
    for pipeline in ("off", "input"):
        other = settings(f"training.pipeline={pipeline}")
        digests = run_threads(2, lambda comm, other=other: train(other, comm, "row_wise"))
        assert set(digests) == {answer}
    tiers = settings("memory.placement=hbm_over_ddr_over_ssd", f"memory.folder={tmp_path}")
    assert train(tiers, SingleComm(), "table_wise", tmp_path) == answer


def test_every_core_row_is_fetched_once() -> None:
    world = build(settings(), SingleComm(), place(settings().tables, ["table_wise"] * 8, 1, 1), 3)
    made = batch(settings(), SingleComm(), 1, 22)
    lookup = world.embedding.lookup(world.embedding.start(made.sparse, 22))
    lookup.send()
    E = np.zeros((22, world.embedding.columns), np.float32)
    for lookups in lookup.finish(E):
        assert len(lookups.values) == len(np.unique(lookups.rows))
