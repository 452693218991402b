"""Do features of one shared table look up rows of their own hashes, chunk by chunk?"""

from functools import partial

import numpy as np
import pytest
from composed_runs import DENSE, TRAINING, batch_of, feature_bags, train

from neocpu.core.errors import ConfigError
from neocpu.kernels.compile import choice
from neocpu.kernels.twins.numbers.philox import fnv1a64, splitmix64
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.specs.specs import bags
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.state.initial import initial_rows
from neocpu.train.step.world import build

TOML = (
    """
[model]
embedding_dim = 8
bottom = [6, 8]
top = [5, 1]
[tables]
default = { kind = "unified", shared_rows = 70, chunks = 2, pooling = "mean" }
a = { rows = 90 }
b = { rows = 50, features = ["b0", "b1"] }
c = { rows = 300 }
e = { rows = 40, kind = "full" }
"""
    + TRAINING
)


def settings(*sets: str) -> Config:
    return configs.loads(TOML, "unified.toml", sets)


def hashed(salt: str, row: int, rows: int) -> int:
    """The row of the formula of docs/arithmetic.md §14."""
    return splitmix64(splitmix64(fnv1a64(salt)) ^ row) % rows


def test_one_physical_table_stands_for_all() -> None:
    config = settings()
    shared, full = config.tables
    assert (shared.name, shared.rows, shared.dim) == ("shared", 70, 4)
    assert full.name == "e"
    assert shared.features == ("a", "a", "b0", "b1", "b0", "b1", "c", "c")
    assert [m.salt for m in shared.maps] == ["a:0", "a:1", "b:0", "b:0", "b:1", "b:1", "c:0", "c:1"]
    assert [m.rows for m in shared.maps] == [90, 90, 50, 50, 50, 50, 300, 300]
    assert [key.key for key in bags(config.tables)][:3] == [
        "a@shared:0",
        "a@shared:1",
        "b0@shared:2",
    ]
    assert [key.key for key in bags(config.model_tables)] == ["a", "b0", "b1", "c", "e"]


def test_lookups_go_round_several_tables() -> None:
    narrow = ("model.interaction=cat", "tables.a.chunks=1", "tables.a.dim=4")
    config = settings("tables.default.shared_tables=2", *narrow)
    assert [(t.name, t.features) for t in config.tables] == [
        ("shared.0", ("a", "b0", "b1", "c")),
        ("shared.1", ("b0", "b1", "c")),
        ("e", ("e",)),
    ]
    apart = settings('tables.c.table="other"', "tables.c.shared_rows=20")
    assert [(t.name, t.rows) for t in apart.tables] == [("shared", 70), ("other", 20), ("e", 40)]


def test_compression_counts_all_that_live_there() -> None:
    config = settings("tables.default.shared_rows=0", "tables.default.compression=4")
    full = (90 + 50 + 300) * 8
    assert config.tables[0].rows == full // 4 // 4
    assert config.tables[0].rows * config.tables[0].dim * 4 == full
    assert config.tables[0].initial.bound == (90 + 50 + 300) ** -0.5


def test_salts_set_features_and_chunks_apart() -> None:
    rows = 1 << 20
    sets = [f"tables.default.shared_rows={rows}"]
    maps = [m for m in settings(*sets).tables[0].maps if m.salt != "b:1"]
    salts = {m.salt: [hashed(m.salt, row, rows) for row in range(40)] for m in maps}
    assert len(salts) == 5
    together = [row for values in salts.values() for row in values]
    assert len(set(together)) == len(together)


def test_vectors_are_chunks_of_hashed_rows() -> None:
    config = settings()
    plan = place(config.tables, ["table_wise"] * 2, 1, 1)
    world = build(config, SingleComm(), plan, DENSE)
    batch = batch_of(config, SingleComm(), 1)
    E = np.zeros((22, world.model.columns), np.float32)
    world.embedding.forward(batch.sparse, 22).finish(E)
    vectors = world.model.composition.forward(E)[:, 8:]
    rows = np.arange(70, dtype=np.int64)
    seed = config.training.seed
    shared = initial_rows(config.tables[0], config.optimizer.sparse, seed, rows)["weight"]
    drawn = feature_bags(config, 1, 22)
    for number, key in enumerate(bags(config.model_tables)[:4]):
        table = config.model_tables[key.table].name
        pooled = []
        for bag in drawn[key.feature]:
            chunks = [[shared[hashed(f"{table}:{j}", int(i), 70)] for i in bag] for j in (0, 1)]
            empty = np.zeros(8)
            pooled.append(np.concatenate(np.mean(chunks, axis=1)) if bag.size else empty)
        np.testing.assert_allclose(
            vectors[:, 8 * number : 8 * number + 8], pooled, rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["tables.default.shared_rows=0"], "say how many rows the shared table 'shared' has"),
        (["tables.default.compression=3"], "not both"),
        (["tables.default.chunks=3"], "3 chunks of one width do not make 8 columns"),
        (["tables.default.chunks=0"], "0 chunks of one width"),
        (["tables.default.shared_tables=0"], "there must be a shared table"),
        (["tables.default.shared_tables=9223372036854775807"], "is more than the"),
        (
            ["tables.default.shared_rows=0", "tables.default.compression=0.5"],
            "compression: 0.5 should be 1 or more",
        ),
        (["tables.b.pooling=sum"], "tables.b.pooling: sum, but that of table 'a' is mean"),
        (["tables.c.chunks=4"], "dim / chunks = 2, but that of table 'a' is dim / chunks = 4"),
        (["tables.c.shared_rows=9"], "tables.c.shared_rows: 9, but that of table 'a' is 70"),
        (['tables.default.table="e"'], "a part of another table would have this name too"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings(*sets)
    assert message in str(error.value)


def trained(comm: Comm, options: Config, schemes: list[str]) -> str:
    plan = place(options.tables, schemes, comm.size, min(2, comm.size))
    return train(build(options, comm, plan, DENSE, huge=False))


def test_one_digest_on_any_ranks_and_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    options = settings()
    expected = trained(SingleComm(), options, ["table_wise"] * 2)
    for pipeline, ranks, schemes in (
        ("off", 2, ["row_wise", "data_parallel"]),
        ("full", 3, ["table_row_wise", "row_wise"]),
    ):
        other = settings(f"training.pipeline={pipeline}")
        body = partial(trained, options=other, schemes=schemes)
        assert set(run_threads(ranks, body, ranks_per_node=2)) == {expected}
    monkeypatch.setenv(choice.VARIABLE, "plain")
    assert trained(SingleComm(), options, ["table_wise"] * 2) == expected
