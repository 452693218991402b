"""Do towers on their nodes give the digest of towers at home, and what travels between nodes?"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from composed_runs import digest_after
from tower_runs import DENSE, STEPS, TOML, batch_of, settings, train

from neocpu.cli import cli
from neocpu.core.errors import ConfigError, IndexRangeError, PlanError
from neocpu.core.jagged import KJT
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.before.plans import make_plan, memory_plan
from neocpu.train.before.warmup import MiniBatch
from neocpu.train.config import config
from neocpu.train.config.config import Config
from neocpu.train.step.pipeline import ahead
from neocpu.train.step.world import World, build

APART = "parallel.towers=true"


def world_of(options: Config, comm: Comm) -> World:
    return build(options, comm, make_plan(options, comm, {}), DENSE, huge=False)


def digests(ranks: int, per_node: int, options: Config) -> set[str]:
    """Digest of every rank."""
    if ranks == 1:
        return {train(world_of(options, SingleComm()))}
    return set(
        run_threads(ranks, lambda comm: train(world_of(options, comm)), ranks_per_node=per_node)
    )


@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("model.tower.joint_vectors=2", "model.tower.feature_vectors=0"),
        ("model.towers={}",),  # the data flow alone
        ("model.towers={}", 'model.wide=["u0"]', "tables.u0.dim=1", "tables.u0.pooling=sum"),
        ("wires.forward=fp16", "wires.backward=bf16", "wires.dense=bf16"),
        ("training.pipeline=input",),
        ("training.pipeline=full",),
    ],
    ids=["both", "joint", "none", "wide", "wires", "input", "full"],
)
def test_one_digest_at_home_and_on_nodes(sets: Sequence[str]) -> None:
    expected = digests(1, 1, settings(*sets, "training.pipeline=off"))
    row_split = 'parallel.plan={ "*" = "table_row_wise" }'
    column_split = 'parallel.plan={ "u*" = "table_column_wise", i0 = "table_wise" }'
    for ranks, per_node, plan in (
        (1, 1, "parallel.plan=auto"),
        (2, 1, "parallel.plan=auto"),
        (4, 2, row_split),
        (6, 3, column_split),
    ):
        options = settings(*sets, APART, plan, "parallel.unique_rows=auto")
        assert digests(ranks, per_node, options) == expected, (ranks, plan)


def test_gradients_are_limited_and_rows_come_up_before_their_batch(tmp_path: Path) -> None:
    sets = ("optimizer.sparse.max_gradient=0.001", "optimizer.dense.name=adagrad")
    expected = digests(1, 1, settings(*sets))
    options = settings(*sets, APART, "memory.placement=hbm_over_ddr", "memory.hbm=4000")

    def body(comm: Comm) -> str:
        plan = make_plan(options, comm, {})
        memory = memory_plan(options, plan, {}, tmp_path)
        world = build(options, comm, plan, DENSE, huge=False, memory=memory)
        batches = (batch_of(options, comm, *step) for step in STEPS)
        return digest_after(world, batches, ahead(prefetch=1, known=2))

    assert set(run_threads(4, body, ranks_per_node=2)) == expected


def test_refused_batches_are_errors_of_all_ranks() -> None:
    options = settings(APART)

    def body(comm: Comm) -> str:
        world = world_of(options, comm)
        batch = batch_of(options, comm, 1)
        if comm.rank == 2:
            values = batch.sparse.values.copy()
            values[0] = 10**6
            kjt = KJT(batch.sparse.keys, batch.sparse.lengths, values, batch.sparse.weights)
            batch = MiniBatch(batch.dense, kjt, batch.labels, batch.samples)
        with pytest.raises(IndexRangeError) as error:
            world.step(batch, 1)
        train(world)  # nothing is under way any more
        return str(error.value)

    messages = run_threads(6, body, ranks_per_node=3)
    assert len(set(messages)) == 1 and "row 1000000 is outside [-1, 60)" in messages[0]


# H = 4 nodes of L = 2 ranks, F = 12 features of N = 16 columns, B = 8 samples a rank
EXAMPLE = "[model]\nembedding_dim = 16\nbottom = [16]\ntop = [1]\n[training]\nbatch_size = 64\n"
EXAMPLE += "".join(f"[tables.f{f}]\nrows = 20\n" for f in range(12))
TOWERS = [f'model.towers.t{t}=["f{3 * t}", "f{3 * t + 1}", "f{3 * t + 2}"]' for t in range(4)]
FLAT_PLAN = ["table_wise"] * 12


def between_nodes(sets: Sequence[str]) -> list[list[int]]:
    """[messages, bytes] to other nodes in a step of the example: of vectors, of gradients."""
    options = config.loads(EXAMPLE, "example.toml", sets)

    def body(comm: Comm) -> np.ndarray:
        plan = (
            make_plan(options, comm, {})
            if options.parallel.towers
            else place(options.tables, FLAT_PLAN, 8, 2)
        )
        world = build(options, comm, plan, 2, huge=False)
        rng = np.random.default_rng(comm.rank)
        kjt = KJT(
            tuple(f"f{f}" for f in range(12)),
            np.ones((12, 8), np.int32),
            rng.integers(0, 20, 96),
        )
        counts = []
        lookups = world.embedding.start(kjt, 64)
        lookups.wait()
        counts.append(comm.sent.state()["alltoallv"][1][2])
        E = np.zeros((8, world.model.columns), np.float32)
        vectors = world.embedding.lookup(lookups)
        vectors.send()
        vectors.finish(E)
        counts.append(comm.sent.state()["alltoallv"][1][2])
        update = world.embedding.start_backward(E, 1)
        update.wait()
        counts.append(comm.sent.state()["alltoallv"][1][2])
        return np.diff(counts, axis=0)

    return np.sum(run_threads(8, body, ranks_per_node=2), axis=0).tolist()


def test_messages_and_bytes_between_nodes() -> None:
    """48 messages become 24 with equal bytes; modules with c = 1 divide the bytes by three."""
    assert between_nodes([]) == [[48, 36_864]] * 2
    each_feature = ["model.tower.joint_vectors=0", "model.tower.feature_vectors=1"]
    for sets in (["parallel.alltoall=two_level"], [APART], [*TOWERS, APART, *each_feature]):
        assert between_nodes(sets) == [[24, 36_864]] * 2
    assert between_nodes([*TOWERS, APART]) == [[24, 12_288]] * 2


@pytest.mark.parametrize(
    ("sets", "per_node", "message"),
    [
        (["parallel.plan=row_wise"], 2, "table 'u0' is row_wise, which does not keep it on one"),
        (["parallel.plan=data_parallel"], 2, "'u0' is data_parallel"),
        ([], 3, "4 ranks are no whole nodes of 3 ranks"),
        ([], 1, "2 towers leave some of 4 nodes without any"),
        (['model.towers={ a = ["u0", "i0"], b = ["i1", "u1"] }'], 2, "table 'i0' serves towers"),
        (["model.towers={}"], 1, "3 tables leave some of 4 nodes empty"),
    ],
)
def test_plans_that_do_not_fit_are_refused_in_words(
    sets: list[str], per_node: int, message: str
) -> None:
    options = settings(APART, *sets)

    def body(comm: Comm) -> None:
        with pytest.raises(PlanError) as error:
            make_plan(options, comm, {})
        assert message in str(error.value)

    run_threads(4, body, ranks_per_node=per_node)


@pytest.mark.parametrize(
    "command", [["simulate", "{config}"], ["plan", "{config}", "--machine", "zionex"]]
)
def test_models_of_a_step_say_that_they_do_not_know_it(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "config.toml"
    path.write_text(TOML)
    words = [word.format(config=path) for word in command]
    with pytest.raises(ConfigError, match=r"parallel\.towers: what a step costs"):
        cli([*words, "--set", APART], standalone_mode=False)
