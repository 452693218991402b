"""Do clipping by CowClip, rates by group, clipping by norm and averages work, the same anywhere?"""

from functools import partial

from tower_runs import DENSE, settings, train

from neocpu.config import Config
from neocpu.embedding.optimizers import ADAM_COWCLIP
from neocpu.parallel.comm import Comm, SingleComm
from neocpu.parallel.plan import place
from neocpu.parallel.threads import run_threads
from neocpu.training.plans import make_plan
from neocpu.training.world import World, build

RULE = f"optimizer.sparse.name={ADAM_COWCLIP}"
COWCLIP = (
    RULE,
    "optimizer.sparse.weight_norm_coefficient=0.02",
    "optimizer.sparse.lower_bound=1e-4",
    "optimizer.sparse.weight_decay=0.01",
    "optimizer.sparse.weight_decay_mode=l2",
)
GROUPS = (
    'optimizer.groups.slow={tables=["u*"], dense=["top.*"], learning_rate=0.25, warmup_steps=3}',
    'optimizer.groups.bias={dense=["bottom.*.bias"], weight_decay=0.0}',
)
EXTRAS = (*COWCLIP, *GROUPS, "optimizer.clip_norm=0.05", "eval.ema=0.5", "model.towers={}")


def world_of(options: Config, schemes: list[str], comm: Comm, per_node: int = 2) -> World:
    plan = place(options.tables, schemes, comm.size, per_node if comm.size > 1 else 1)
    return build(options, comm, plan, DENSE)


def digest_of(sets: tuple[str, ...], schemes: list[str], comm: Comm) -> str:
    """Digest of a run of three steps."""
    return train(world_of(settings(*sets), schemes, comm))


def alone(*sets: str) -> str:
    return digest_of(sets, ["table_wise"] * 3, SingleComm())


def test_one_digest_over_ranks_plans_and_pipelines() -> None:
    expected = alone(*EXTRAS)
    for ranks, pipeline, schemes in (
        (2, "full", ["row_wise", "column_wise", "data_parallel"]),
        (3, "input", ["column_wise", "data_parallel", "row_wise"]),
        (3, "off", ["data_parallel", "row_wise", "column_wise"]),
    ):
        sets = (*EXTRAS, f"training.pipeline={pipeline}", "training.bucket_bytes=0")
        body = partial(digest_of, sets, schemes)
        assert run_threads(ranks, body) == [expected] * ranks, (pipeline, schemes)


def test_towers_on_nodes_are_clipped_with_the_others() -> None:
    sets = (*COWCLIP, *GROUPS, "optimizer.clip_norm=0.05", "eval.ema=0.5")
    expected = alone(*sets)
    apart = (*sets, "parallel.towers=true")

    def body(comm: Comm) -> str:
        options = settings(*apart)
        return train(build(options, comm, make_plan(options, comm, {}), DENSE))

    assert run_threads(4, body, ranks_per_node=2) == [expected] * 4
