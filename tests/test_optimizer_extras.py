"""Do CowClip, rates by group and batch, clipping by norm and averages work, the same anywhere?"""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tower_runs import DENSE, STEPS, batch_of, settings, train

from neocpu.cli import run as command
from neocpu.core.errors import ConfigError
from neocpu.kernels.numbers.squares import PIECE, square_sum
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.dense_optimizer import AVERAGE
from neocpu.tables.specs.optimizer_groups import dense_runs
from neocpu.tables.specs.optimizers import ADAM_COWCLIP, SparseOptimizer
from neocpu.train.before.dry_run import dry_run
from neocpu.train.before.plans import make_plan
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config.config import Config
from neocpu.train.run.trainer import Trainer
from neocpu.train.step.gradient_norm import DenseGradient, GradientClip
from neocpu.train.step.world import World, build
from neocpu.train.watch.results import RunReport
from tests.small_run import ROWS, config_of

FLAT = "model.towers={}"
COWCLIP = (
    f"optimizer.sparse.name={ADAM_COWCLIP}",
    "optimizer.sparse.weight_norm_coefficient=0.02",
    "optimizer.sparse.lower_bound=1e-4",
    "optimizer.sparse.weight_decay=0.01",
    "optimizer.sparse.weight_decay_mode=l2",
)
GROUPS = (
    'optimizer.groups.slow={tables=["u*"], dense=["top.*"], learning_rate=0.25, warmup_steps=3}',
    'optimizer.groups.bias={dense=["bottom.*.bias"], weight_decay=0.0}',
)
EXTRAS = (*COWCLIP, *GROUPS, "optimizer.clip_norm=0.05", "eval.ema=0.5")


def world_of(sets: tuple[str, ...], schemes: list[str], comm: Comm) -> World:
    options = settings(*sets)
    plan = place(options.tables, schemes, comm.size, 2 if comm.size > 1 else 1)
    return build(options, comm, plan, DENSE)


def digest_of(sets: tuple[str, ...], schemes: list[str], comm: Comm) -> str:
    """Digest of a run of three steps."""
    return train(world_of(sets, schemes, comm))


def alone(*sets: str) -> World:
    """A world of one rank, before its first step."""
    return world_of((*sets, FLAT), ["table_wise"] * 3, SingleComm())


def rows_of(world: World) -> list[np.ndarray]:
    """The weights of all tables."""
    tbe = world.embedding.tbe
    tables = range(len(world.plan.tables))
    every = [np.arange(spec.rows) for spec in world.plan.tables]
    weights = []
    for table in tables:
        weight = tbe.initial(table, every[table])["weight"].copy()
        exist = tbe.touched(table).astype(bool)
        weight[exist] = tbe.state(table)["weight"][exist]
        weights.append(weight)
    return weights


def parameters(world: World) -> np.ndarray:
    """All numbers that are learnt, after three steps."""
    train(world)
    return np.concatenate([world.model.flat, *(rows.reshape(-1) for rows in rows_of(world))])


# ---- everything at once ----


def test_one_digest_over_ranks_plans_and_pipelines() -> None:
    sets = (*EXTRAS, FLAT)
    expected = train(alone(*EXTRAS))
    for ranks, pipeline, schemes in (
        (2, "full", ["row_wise", "column_wise", "data_parallel"]),
        (3, "input", ["column_wise", "data_parallel", "row_wise"]),
        (3, "off", ["data_parallel", "row_wise", "column_wise"]),
    ):
        more = (*sets, f"training.pipeline={pipeline}", "training.bucket_bytes=0")
        body = partial(digest_of, more, schemes)
        assert run_threads(ranks, body) == [expected] * ranks, (pipeline, schemes)


def test_towers_on_nodes_are_clipped_and_averaged_with_the_others() -> None:
    expected = digest_of(EXTRAS, ["table_wise"] * 3, SingleComm())

    def body(comm: Comm) -> str:
        options = settings(*EXTRAS, "parallel.towers=true")
        return train(build(options, comm, make_plan(options, comm, {}), DENSE))

    assert run_threads(4, body, ranks_per_node=2) == [expected] * 4


def test_a_run_goes_on_with_the_same_bits_in_any_memory(log: Path, tmp_path: Path) -> None:
    sets = (
        *COWCLIP,
        'optimizer.groups.slow={tables=["many"], dense=["top.*"], learning_rate=0.5}',
        "optimizer.clip_norm=0.1",
        "eval.ema=0.9",
        "training.epochs=2",
        "optimizer.scaling.rule=cowclip",
        "optimizer.scaling.base_batch_size=16",
    )

    def run(out: str, *more: str, resume: bool = False) -> dict[str, Any]:
        config = config_of(log, *sets, *more)
        return Trainer(config, SingleComm(), tmp_path / out, resume=resume).run()

    whole = run("whole")
    run("parts", "training.steps=2")
    resumed = run("parts", resume=True)
    assert resumed["digest"] == whole["digest"]
    assert resumed["metrics"]["test"] == whole["metrics"]["test"]
    tiers = ('memory.placement={"many" = "ddr_over_ssd"}', "memory.ddr=4096")
    assert run("tiers", *tiers)["digest"] == whole["digest"]
    with CheckpointFile(tmp_path / "whole" / "checkpoints" / "step-00000006.h5") as file:
        number = file.number("dense/top.0.weight")
        value = file.field(number, "value")[:]
        average = file.field(number, AVERAGE)[:]
        assert file.dense_field == AVERAGE and not np.array_equal(value, average)
        assert file.config().optimizer.scaling.rule == "none"
    # what learns on from it starts its average there, and not at that of the older run
    later = run("later", f'training.init_from="{tmp_path / "whole"}"', "training.steps=1")
    with CheckpointFile(tmp_path / "later" / "checkpoints" / "step-00000001.h5") as file:
        begun = file.field(number, AVERAGE)[:]
        moved = np.float32(0.9) * value + np.float32(1 - 0.9) * file.field(number, "value")[:]
        assert np.array_equal(begun, moved) and later["digest"] != whole["digest"]


# ---- CowClip ----


def test_a_clip_that_never_acts_is_adam_to_the_bit() -> None:
    adam = parameters(alone("optimizer.sparse.name=adam"))
    wide = ("optimizer.sparse.weight_norm_coefficient=0.0", "optimizer.sparse.lower_bound=1e30")
    for schemes in (["table_wise"] * 3, ["column_wise", "data_parallel", "row_wise"]):
        clipped = world_of((COWCLIP[0], *wide, FLAT), schemes, SingleComm())
        assert np.array_equal(parameters(clipped), adam)
    assert not np.array_equal(parameters(alone(*COWCLIP[:3])), adam)


def test_clipped_gradients_are_as_long_as_the_bound_and_counts_are_of_lookups() -> None:
    world = alone(*COWCLIP[:3], "optimizer.sparse.beta1=0.0")
    options = world.config
    before = rows_of(world)
    batch = batch_of(options, world.comm, 1)
    world.step(batch, 1)
    offsets = np.append(0, np.cumsum(batch.sparse.lengths.reshape(-1)))
    samples = batch.samples
    clipped = 0
    for table, keys in enumerate(((0,), (1, 2), (3,))):
        rows = np.concatenate(
            [batch.sparse.values[offsets[k * samples] : offsets[(k + 1) * samples]] for k in keys]
        )
        count = np.bincount(rows, minlength=len(before[table]))
        norm = np.linalg.norm(before[table].astype(np.float64), axis=1)
        bound = count * np.maximum(0.02 * norm, 1e-4)
        # with beta1 = 0 the first moment is the clipped gradient
        gradient = world.embedding.tbe.state(table)["exp_avg"].astype(np.float64)
        length = np.linalg.norm(gradient[count > 0], axis=1)
        assert (length <= bound[count > 0] * (1 + 1e-6)).all()
        clipped += np.isclose(length, bound[count > 0], rtol=1e-6).sum()
    assert clipped > 20


# ---- groups ----


def test_groups_scale_and_warm_up_the_rates_of_tables_and_dense_parameters() -> None:
    sgd = ("optimizer.sparse.name=exact_sgd", "optimizer.dense.name=sgd", *GROUPS)
    halved = 'optimizer.groups.half={tables=["i0", "u1"], dense=["top.*"], learning_rate=0.5}'
    warm = 'optimizer.groups.warm={tables=["i0", "u1"], dense=["top.*"], warmup_steps=2}'

    def steps(*sets: str) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        world = alone(*sgd[:2], *sets)
        before = [*rows_of(world), *(x.copy() for x in world.model.parameters.values())]
        world.step(batch_of(world.config, world.comm, 1), 1)
        after = [*rows_of(world), *world.model.parameters.values()]
        moved = [new - old for old, new in zip(before, after)]
        return moved[:3], dict(zip(world.model.parameters, moved[3:]))

    tables, dense = steps()
    for group in (halved, warm):
        group_tables, group_dense = steps(group)
        for name, change, moved in zip(("u0", "i0", "u1"), tables, group_tables):
            scale = 1.0 if name == "u0" else 0.5
            assert np.allclose(moved, scale * change, rtol=1e-4, atol=1e-8)
            assert change.any()
        for name, change in dense.items():
            scale = 0.5 if name.startswith("top.") else 1.0
            assert np.allclose(group_dense[name], scale * change, rtol=1e-4, atol=1e-7)


def test_runs_of_dense_parameters_have_the_numbers_of_their_group() -> None:
    groups = settings(*GROUPS).optimizer.groups
    section = SparseOptimizer("adam", 0.1, weight_decay=0.2, weight_decay_mode="l2")
    sizes = {"bottom.0.weight": 6, "bottom.0.bias": 2, "top.0.weight": 4, "top.0.bias": 1}
    runs = dense_runs(sizes, section, groups)
    assert [(run.first, run.end) for run in runs] == [(0, 6), (6, 8), (8, 13)]
    assert [run.optimizer.weight_decay for run in runs] == [0.2, 0.0, 0.2]
    assert [run.optimizer.learning_rate for run in runs] == [0.1, 0.1, 0.025]
    assert runs[2].optimizer.schedule.warmup_steps == 3 and runs[0].optimizer == section


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (['optimizer.groups.a={tables=["C*"]}'], "groups.a.tables: nothing matches 'C*' of u0,"),
        (['optimizer.groups.a={dense=["u0"]}'], "groups.a.dense: nothing matches 'u0' of bottom"),
        (
            ['optimizer.groups.a={tables=["u*"]}', 'optimizer.groups.b={tables=["u1"]}'],
            "groups.b.tables: u1 is in group a already",
        ),
        (["optimizer.groups.a={learning_rate=2}"], "groups.a: name its tables, or dense"),
        (['optimizer.groups.a={tabels=["u*"]}'], "did you mean optimizer.groups.a.tables"),
        (['optimizer.groups.a={tables=["u*"], warmup_steps=-2}'], "allowed: -1 to"),
        (["optimizer.scaling.rule=linear"], "is not allowed; choose one of none, cowclip"),
        (["optimizer.scaling.rule=cowclip"], "scaling.base_batch_size: the rule cowclip needs"),
        (
            ["optimizer.scaling={rule='cowclip', base_batch_size=9, warmup_epochs=1e308}"],
            "scaling.warmup_epochs: 1e+308 is too large",
        ),
        (["optimizer.scaling.base_batch_size=9"], "scaling.rule: it is not set"),
        (
            [
                "optimizer.scaling={rule='cowclip', base_batch_size=9}",
                "optimizer.dense.schedule.warmup_steps=5",
            ],
            "scaling.warmup_epochs: optimizer.dense.schedule.warmup_steps is set too",
        ),
        (["eval.ema=1.0"], "eval.ema: 1.0 must be below 1"),
    ],
)
def test_keys_that_do_not_fit_are_refused(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings(*sets)
    assert message in str(error.value)


def test_a_table_of_another_kind_is_named_as_the_model_sees_it() -> None:
    sets = ("tables.i0.kind=qr", 'optimizer.groups.a={tables=["i0"], learning_rate=0.5}', FLAT)
    options = settings(*sets)
    rates = {name: rule.learning_rate for name, rule in options.table_optimizers().items()}
    assert len(rates) == 4 and sorted(rates.values()) == [0.05, 0.05, 0.1, 0.1]


# ---- rates of larger batches ----


def scaled(samples: int = 1000, *sets: str) -> Config:
    return settings(
        *COWCLIP,
        "optimizer.scaling={rule='cowclip', base_batch_size=4}",
        "training.batch_size=64",
        *sets,
    ).for_samples(samples)


def test_rates_follow_from_the_batch_and_enter_the_header() -> None:
    options = scaled()
    assert options.optimizer.sparse.learning_rate == 0.1
    assert options.optimizer.sparse.weight_decay == 0.01 * 16
    assert options.optimizer.dense.learning_rate == 0.01 * 4
    assert options.optimizer.dense.schedule.warmup_steps == 16
    header = options.header()["optimizer"]
    assert header["dense"]["learning_rate"] == 0.04 and "scaling" not in header
    assert options.for_samples(1000).header() == options.header()
    without = scaled(1000, "optimizer.scaling.warmup_epochs=0")
    assert without.optimizer.dense.schedule.warmup_steps == 0
    falling = ("optimizer.dense.schedule.decay_steps=9", "optimizer.dense.schedule.decay_start=2")
    end = scaled(1000, *falling, "optimizer.dense.schedule.end_learning_rate=0.001")
    assert end.optimizer.dense.schedule.end_learning_rate == 0.001 * 4
    assert "scaling" in settings("optimizer.scaling.warmup_epochs=2").header()["optimizer"]


def test_people_are_told_the_rates_of_their_batch(log: Path, tmp_path: Path) -> None:
    sets = ("optimizer.scaling.rule=cowclip", "optimizer.scaling.base_batch_size=16")
    config = config_of(log, *sets, "training.steps=1")
    expected = (
        "rates for batches of 64: optimizer.dense.learning_rate = 0.2, "
        "optimizer.dense.schedule.warmup_steps = 3, optimizer.sparse.weight_decay = 0"
    )
    assert expected in list(dry_run(config, 1, tmp_path))
    lines: list[str] = []
    report = RunReport(tmp_path / "out", 0, tell=lines.append)
    Trainer(config, SingleComm(), tmp_path / "out", report=report).run()
    assert expected in lines and math.ceil(ROWS / 64) == 3


# ---- the norm of the dense gradient ----


@pytest.mark.parametrize("size", [0, 1, 3, PIECE, PIECE + 1, 5 * PIECE + 77])
def test_sums_of_squares_are_trees_of_exact_products(size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    whole = 1 << max(size - 1, 0).bit_length()
    level = np.zeros(whole)
    level[:size] = x.astype(np.float64) ** 2
    while level.size > 1:
        level = level[::2] + level[1::2]
    assert square_sum(x) == level[0]
    assert math.isclose(square_sum(x), math.fsum(x.astype(np.float64) ** 2), rel_tol=1e-12)


def test_gradients_are_scaled_together_wherever_they_are_known() -> None:
    sizes = [6, 2, 40, 1]
    gradient = np.random.default_rng(3).standard_normal(49).astype(np.float32)
    norm = math.sqrt(sum(square_sum(part) for part in np.split(gradient, np.cumsum(sizes)[:-1])))
    expected = np.float32(0.5 / norm) * gradient
    clip = GradientClip(sizes, 0.5)
    for cuts in ([], [8], [6, 8, 48]):
        parts = [
            DenseGradient(first, part) for first, part in zip([0, *cuts], np.split(gradient, cuts))
        ]
        answer = np.concatenate([part.gradient for part in clip.scaled(parts)])
        assert np.array_equal(answer, expected)
    (whole,) = GradientClip(sizes, 100.0).scaled([DenseGradient(0, gradient)])
    assert whole.gradient is gradient  # short enough
    broken = gradient.copy()
    broken[7] = np.inf
    (kept,) = clip.scaled([DenseGradient(0, broken)])
    assert kept.gradient is broken
    torch = pytest.importorskip("torch")
    leaf = torch.zeros(49, requires_grad=True)
    leaf.grad = torch.from_numpy(gradient.copy())
    torch.nn.utils.clip_grad_norm_([leaf], 0.5)
    assert np.allclose(leaf.grad.numpy(), expected, rtol=1e-5)


def test_the_factor_is_divided_in_fp64_and_rounded_once() -> None:
    """In fp32, limit and norm would be rounded before the division: other bits for many limits."""
    gradient = np.full(3, 1.0, np.float32)
    differ = 0
    for limit in (0.1, 0.3, 0.7, 1.1, 1.3, 1.7):
        (clipped,) = GradientClip([3], limit).scaled([DenseGradient(0, gradient)])
        expected = np.float32(limit / math.sqrt(3.0))
        assert clipped.gradient.tolist() == [expected] * 3
        differ += expected != np.float32(limit) / np.float32(math.sqrt(3.0))
    assert differ


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    plain = parameters(alone())
    assert np.array_equal(parameters(alone("optimizer.clip_norm=1000.0")), plain)
    assert not np.array_equal(parameters(alone("optimizer.clip_norm=0.01")), plain)


# ---- the moving average ----


def test_the_average_is_what_is_looked_at_and_training_does_not_see_it() -> None:
    world = alone("eval.ema=0.75")
    average = world.model.flat.copy()
    for step, samples in STEPS:
        world.step(batch_of(world.config, world.comm, step, samples), step)
        average = np.float32(0.75) * average + np.float32(0.25) * world.model.flat
    assert np.array_equal(world.dense.state[AVERAGE], average)
    trained = world.model.flat.copy()
    with world.looked_at():
        assert np.array_equal(world.model.flat, average)
    assert np.array_equal(world.model.flat, trained)
    plain = alone()
    assert np.array_equal(parameters(plain)[: trained.size], trained)
    with plain.looked_at():
        assert np.array_equal(plain.model.flat, trained)
    off = replace(world.config.eval, averaged=False)
    assert world.config.eval.uses_average and not off.uses_average
    assert off.header() == world.config.eval.header() == {"ema": 0.75}


def test_an_export_has_the_average_unless_it_is_left_out(log: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    name = "dense/top.0.weight"
    for averaged, field in (("true", AVERAGE), ("false", "value")):
        sets = ("training.steps=1", "eval.ema=0.5", f"eval.averaged={averaged}")
        out = tmp_path / averaged
        Trainer(config_of(log, *sets), SingleComm(), out).run()
        target = tmp_path / f"{averaged}.safetensors"
        assert command(["export", str(out), str(target)]) == 0
        with CheckpointFile(out / "checkpoints" / "step-00000001.h5") as file:
            expected = file.field(file.number(name), field)[:]
        assert np.array_equal(safetensors.load_file(target)[name], expected)
