"""Have tables of mixed dimension the columns of the published rule, and right gradients?"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from composed_runs import DENSE, TRAINING, batch_of, feature_bags, train
from dense_runs import check_gradients, check_halves

from neocpu.core.errors import ConfigError
from neocpu.kernels.compile import choice
from neocpu.kernels.twins.dense import model as twin
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.kinds.md import DimBlock, MdKeys, columns_of
from neocpu.train.advice.kinds import kind_lines
from neocpu.train.before import kernel_markers
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.config.keys import resolved
from neocpu.train.model import composition as compositions
from neocpu.train.model.arrays import NodeGradient
from neocpu.train.model.composition_layout import KeyVectors, PhysicalVectors
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.operations import make_operation
from neocpu.train.state.initial import initial_rows
from neocpu.train.step.world import build

TOML = (
    """
[data]
rows_by = "code"
[model]
embedding_dim = 8
bottom = [6, 8]
top = [5, 1]
[tables]
default = { kind = "md", full_rows = 10 }
small = { rows = 10 }
middle = { rows = 60, own_dim = 4, pooling = "mean" }
twice = { rows = 90, own_dim = 2, features = ["u0", "u1"] }
sorted = { rows = 80, blocks = [10, 30], block_dims = [8, 4, 1], pooling = "mean" }
"""
    + TRAINING
)


def settings(*sets: str) -> Config:
    return configs.loads(TOML, "md.toml", sets)


def numbers_of(config: Config) -> int:
    """Numbers of all rows and projections."""
    tensors = config.layout(1).composition.tensors() if config.compositions else ()
    return sum(t.rows * t.dim for t in config.tables) + sum(n * d for _, (n, d) in tensors)


@pytest.mark.parametrize(
    ("alpha", "factor", "dims"),
    [
        (0.05, 2.0, {8}),
        (0.10, 4.0, {4}),
        (0.15, 7.9, {2}),
        (0.20, 15.7, {1}),
        (0.25, 16.0, {1}),
    ],
)
def test_criteo_kaggle_shrinks_as_published(alpha: float, factor: float, dims: set[int]) -> None:
    full = configs.load("criteo-kaggle")
    config = configs.load(
        "criteo-kaggle", ["tables.default.kind=md", f"tables.default.alpha={alpha}"]
    )
    assert round(numbers_of(full) / numbers_of(config), 1) == factor
    largest = {t.name for t in full.tables if t.rows > 2_000_000}
    assert {t.dim for t in config.tables if t.name in largest} == dims
    assert {t.dim for t in config.tables if t.rows <= 200} == {16}


def solved(n, k, alpha, dim, budget, power):
    """The published rule, of whole arrays."""
    load = np.asarray(n) / np.asarray(k)
    scale = budget / (load ** (1 - alpha)).sum() if budget else dim * load.min() ** alpha
    d = np.round(np.clip(scale * load**-alpha, 1, dim))
    return np.minimum(2.0 ** np.round(np.log2(d)) if power else d, dim).astype(int).tolist()


def test_columns_are_those_of_the_formula() -> None:
    rng = np.random.default_rng(2)
    for power in (True, False):
        for budget in (0, 20_000):
            n = np.sort(rng.integers(3, 10**6, 12))
            k = rng.integers(1, 5, 12)
            rule = MdKeys(alpha=0.3, budget=budget, round_dims=power)
            blocks = [DimBlock(0, int(a), 64, 0, float(b)) for a, b in zip(n, k)]
            assert columns_of(blocks, rule) == solved(n, k, 0.3, 64, budget, power)


def test_the_rule_of_torch_agrees() -> None:
    torch = pytest.importorskip("torch")
    n = torch.tensor([4, 90, 1461, 5684, 12518, 286182, 2202609, 10131228])
    for alpha in (0.1, 0.2, 0.3):
        d = torch.round((32 * n[0].float() ** alpha * n.float() ** -alpha).clamp(min=1))
        powers = 2 ** torch.round(torch.log2(d))
        blocks = [DimBlock(0, rows, 32, 0, 1.0) for rows in n.tolist()]
        assert columns_of(blocks, MdKeys(alpha=alpha, round_dims=False)) == d.int().tolist()
        assert columns_of(blocks, MdKeys(alpha=alpha)) == powers.int().tolist()


def test_the_gradients_of_torch_agree() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    sources = [rng.standard_normal((6, width), dtype=np.float32) for width in (5, 2)]
    weight = rng.standard_normal((5, 2), dtype=np.float32)
    outer = rng.standard_normal((6, 5), dtype=np.float32)
    physical = tuple(PhysicalVectors(key, 0, s.shape[1], "sum") for key, s in enumerate(sources))
    part = KeyVectors("t", 0, 5, "sum", "project", physical, (("p.weight", (5, 2)),))
    operation = make_operation(part, {"kinds.t.p.weight": weight})
    out = np.empty((6, 5), np.float32)
    operation.forward(sources, out)
    gradients = [np.empty_like(source) for source in sources]
    operation.backward(outer, gradients)
    into = {"kinds.t.p.weight": np.empty_like(weight)}
    operation.weight_gradients([NodeGradient(np.array([0, 4, 6]), into)])
    leaves = [torch.tensor(array, requires_grad=True) for array in (*sources, weight)]
    vector = leaves[0] + leaves[1] @ leaves[2].T
    vector.backward(torch.tensor(outer))
    computed = [out, *gradients, *into.values()]
    for ours, theirs in zip(computed, [vector.detach(), *(leaf.grad for leaf in leaves)]):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factor", [3.0, 10.0])
def test_a_compression_is_met_and_hardly_more(factor: float) -> None:
    sets = ["tables.default.kind=md", f"tables.default.compression={factor}"]
    config = configs.load("criteo-kaggle", [*sets, "tables.default.round_dims=false"])
    full = numbers_of(configs.load("criteo-kaggle"))
    assert factor <= full / numbers_of(config) < 1.3 * factor


def test_rows_are_narrow_and_blocks_have_their_own() -> None:
    config = settings()
    assert [(t.name, t.rows, t.dim) for t in config.tables] == [
        ("small", 10, 8),
        ("middle", 60, 4),
        ("twice", 90, 2),
        ("sorted.0", 10, 8),
        ("sorted.1", 20, 4),
        ("sorted.2", 50, 1),
    ]
    assert config.layout(DENSE).composition.tensors() == (
        ("kinds.middle.projection.weight", (8, 4)),
        ("kinds.twice.projection.weight", (8, 2)),
        ("kinds.sorted.projection.1.weight", (8, 4)),
        ("kinds.sorted.projection.2.weight", (8, 1)),
    )


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["tables.middle.alpha=0.5"], "tables of kind md share one rule"),
        (["tables.middle.own_dim=9"], "own_dim: 9 is more than the dim"),
        (["tables.sorted.blocks=[30, 10]"], "must ascend, from 1 to 79"),
        (["tables.sorted.block_dims=[1]"], "1 values for a table of 3 blocks"),
        (["tables.sorted.own_dim=2"], "write block_dims"),
        (["tables.sorted.queries=[1, 0, 1]"], "must be above 0"),
        (["tables.default.alpha=1e308"], "alpha: 1e+308 is out of range; it must be from 0 to 1"),
        (["tables.default.compression=0.5"], "compression: 0.5 should be 1 or more"),
        (
            ["tables.default.compression=100"],
            "reached by tables of kind md; the most is 2.4, one column each",
        ),
        (["tables.default.budget=9", "tables.default.compression=2"], "leave one of them out"),
        (["data.rows_by=hash"], "falling frequency"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings(*sets)
    assert message in str(error.value)


def model_of(config: Config) -> Dlrm:
    return build(config, SingleComm(), place(config.tables, ["table_wise"] * 6, 1, 1), DENSE).model


def composed(parameters, physical: np.ndarray) -> list[np.ndarray]:
    """The vectors of all keys, of physical ones f64[b, 8 + 4 + 2 + 2 + 8 + 4 + 1]."""
    small, middle, u0, u1, *blocks = np.split(physical, np.cumsum([8, 4, 2, 2, 8, 4]), axis=1)
    p = {name: value for name, value in parameters.items() if name.startswith("kinds.")}
    twice = p["kinds.twice.projection.weight"].T
    parts = [p[f"kinds.sorted.projection.{number}.weight"].T for number in (1, 2)]
    return [
        small,
        middle @ p["kinds.middle.projection.weight"].T,
        u0 @ twice,
        u1 @ twice,
        blocks[0] + blocks[1] @ parts[0] + blocks[2] @ parts[1],
    ]


def test_gradients_match_finite_differences() -> None:
    def formula(wide: dict, x: np.ndarray, physical: np.ndarray) -> np.ndarray:
        return twin.logits(wide, x, composed(wide, physical), "dot", False)

    check_gradients(model_of(settings()), 12, DENSE, formula, only="kinds.")


def test_halves_of_a_batch_give_the_bits_of_the_whole() -> None:
    check_halves(model_of(settings()), 24, DENSE)


def test_vectors_are_those_of_the_explicit_table() -> None:
    """Rows e_i P of one dense table, pooled, give what is projected after pooling."""
    config = settings()
    plan = place(config.tables, ["table_wise"] * 6, 1, 1)
    world = build(config, SingleComm(), plan, DENSE)
    batch = batch_of(config, SingleComm(), 1)
    E = np.zeros((22, world.model.columns), np.float32)
    world.embedding.forward(batch.sparse, 22).finish(E)
    vectors = world.model.composition.forward(E)[:, 8:]
    tables = []
    for spec in config.tables:
        rows = np.arange(spec.rows, dtype=np.int64)
        seed = config.training.seed
        tables.append(initial_rows(spec, config.optimizer.sparse, seed, rows)["weight"])
    p = world.model.parameters
    sorted_rows = [tables[3]]
    sorted_rows += [tables[3 + n] @ p[f"kinds.sorted.projection.{n}.weight"].T for n in (1, 2)]
    explicit = {
        "small": tables[0],
        "middle": tables[1] @ p["kinds.middle.projection.weight"].T,
        "u0": tables[2] @ p["kinds.twice.projection.weight"].T,
        "u1": tables[2] @ p["kinds.twice.projection.weight"].T,
        "sorted": np.concatenate(sorted_rows),
    }
    drawn = feature_bags(config, 1, 22)
    for number, (feature, table) in enumerate(explicit.items()):
        mean = feature in ("middle", "sorted")
        pooled = [
            table[rows].sum(axis=0) / (max(len(rows), 1) if mean else 1) for rows in drawn[feature]
        ]
        np.testing.assert_allclose(
            vectors[:, 8 * number : 8 * number + 8], pooled, rtol=1e-5, atol=1e-6, err_msg=feature
        )


def trained(comm: Comm, options: Config, schemes: list[str]) -> str:
    plan = place(options.tables, schemes, comm.size, min(2, comm.size))
    return train(build(options, comm, plan, DENSE, huge=False))


def test_the_rank_that_compiles_runs_the_operations() -> None:
    config = settings()
    plan = place(config.tables, ["table_wise"] * 6, 1, 1)
    plain = replace(config, logical=(), compositions=())
    assert kernel_markers.signature(config, plan) != kernel_markers.signature(plain, plan)
    compositions.warm_up(config.layout(DENSE).composition)


def test_one_digest_on_any_ranks_and_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    options = settings()
    expected = trained(SingleComm(), options, ["table_wise"] * 6)
    for pipeline, ranks, schemes in (
        ("off", 2, ["row_wise", "data_parallel"] * 3),
        ("full", 3, ["table_row_wise", "row_wise", "row_wise", "table_wise"] * 2),
    ):
        other = settings(f"training.pipeline={pipeline}")
        body = partial(trained, options=other, schemes=schemes[:6])
        assert set(run_threads(ranks, body, ranks_per_node=2)) == {expected}
    rounded = settings("wires.dense=bf16")
    other_bits = trained(SingleComm(), rounded, ["table_wise"] * 6)
    body = partial(trained, options=rounded, schemes=["row_wise"] * 6)
    assert set(run_threads(2, body)) == {other_bits} != {expected}
    monkeypatch.setenv(choice.VARIABLE, "plain")
    assert trained(SingleComm(), options, ["table_wise"] * 6) == expected


def test_lines_say_what_kinds_save() -> None:
    config = settings("tables.small.kind=qr", "tables.small.collisions=5")
    line, numbers = kind_lines(config)
    assert line == (
        "kinds: small qr (*.quotient, *.remainder); middle, twice md; sorted md (*.0, *.1, *.2)"
    )
    count = numbers_of(config)
    assert f"{count:,} numbers, 88 of them dense parameters; as full tables 1,920" in numbers
    assert [*kind_lines(replace(config, kinds=()))] == []
    tables = resolved(config)["tables"]
    assert tables["twice"]["own_dim"] == 2 and tables["twice"]["dim"] == 8
