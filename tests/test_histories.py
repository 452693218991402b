"""Do models with histories train the same anywhere, and are wrong ones refused before they start?

Rows of several tables combined lookup by lookup, then pooled; operations that name the rows of
their gradients; memories, wires, checkpoints.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import small_run
from history_runs import TOML, settings, train

import neocpu
from neocpu.core.errors import ConfigError
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.lookups import RowTerms
from neocpu.tables.specs.compositions import Composition, Term
from neocpu.train.before.plans import make_plan
from neocpu.train.config.config import Config, loads
from neocpu.train.model import composition_layout, operations
from neocpu.train.model.operations.rows import BagSums
from neocpu.train.run.trainer import Trainer
from tests.workers import covered


def test_tiers_and_wires_change_no_digest(tmp_path: Path) -> None:
    for plan, sets in (
        ("row_wise,table_wise", ("memory.prefetch=2",)),
        ("column_wise,data_parallel", ('wires.dense="bf16"', 'wires.forward="fp16"')),
    ):
        options = settings(*sets)
        tiers = settings(*sets, 'memory.placement="hbm_over_ddr_over_ssd"')
        folder = tmp_path / plan
        digests = run_threads(3, partial(train, tiers, plan=plan, folder=folder))
        assert set(digests) == {train(options, SingleComm())}, plan


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.attention", "{}", "'history' has pooling \"none\", but nothing makes a vector"),
        ("model.attention.user", '{ target = "item" }', "rows of 'user' are pooled by its table"),
        ("model.attention.history.target", '"nobody"', "no table looks up 'nobody'"),
        ("model.attention.history.target", '"likes"', "'likes' is a history itself"),
        ("model.attention.nobody", '{ target = "item" }', "no table looks up 'nobody'"),
        ("model.attention.history.normalise", '"sum"', "choose one of none, softmax"),
        ("model.attention.history.hidden", "[0]", "too small"),
        ("model.attention.history.hiden", "[3]", "no such key"),
        ("tables.kinds.dim", "4", "'kind' has 4 columns and 'likes' has 8"),
        ("parallel.towers", "true", "parallel.towers"),
        ("data.deduplicate", '[["*"]]', 'lookups of tables with pooling "none" do not travel'),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(key, value, message) -> None:
    with pytest.raises(ConfigError, match=message):
        settings("model.interaction='cat'", f"{key}={value}")


def test_replica_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 groups of ranks, but rows of table 'items', which"):
        make_plan(settings("parallel.replica_groups=2"), SingleComm(), {}, 4)


def test_other_configs_say_nothing_of_attention() -> None:
    header = loads("[tables]\nC1.rows = 10").header()
    assert "attention" not in header["model"]
    assert "kinds" not in header


# ---- rows of several tables, combined lookup by lookup ----


def with_operation(options: Config, operation: str, pooling: str = "sum", name="likes") -> Config:
    """The config with the rows of a table made of those of two tables without pooling."""
    physical: list = []
    logical = []
    compositions = []
    for spec, composition in zip(options.tables, options.compositions, strict=True):
        if spec.name != name:
            physical.append(spec)
            logical.append(spec)
            compositions.append(composition)
            continue
        dim = spec.dim // 2 if operation == "copy" else spec.dim
        names = [f"{name}.{part}" for part in ("a", "b")]
        physical += [replace(spec, name=part, dim=dim) for part in names]
        logical.append(replace(spec, pooling=pooling))
        terms = tuple(Term(part) for part in names)
        compositions.append(Composition(name, (terms,), operation))
    return replace(
        options,
        tables=tuple(physical),
        logical=tuple(logical),
        compositions=tuple(compositions),
    )


def without_likes(*sets: str) -> Config:
    """A config that pools `likes` where it is not attended to."""
    text = TOML.replace('likes = { target = "kind", hidden = [4, 3], normalise = "softmax" }', "")
    return settings(*sets, 'tables.likes.pooling="sum"', text=text)


@pytest.mark.parametrize("operation", ["add", "multiply", "copy"])
@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
def test_combined_rows_have_one_digest(operation: str, pooling: str) -> None:
    options = settings() if pooling == "none" else without_likes()
    options = with_operation(options, operation, pooling)
    options = replace(
        options,
        tables=tuple(
            replace(t, pooling="none") if t.name.startswith("likes") else t for t in options.tables
        ),
    )
    digests = run_threads(3, partial(train, options, plan="row_wise,column_wise,data_parallel"))
    assert set(digests) == {train(options, SingleComm())}


@pytest.mark.parametrize(
    "kind",
    covered(
        ('kind="qr", collisions=5', 'kind="tt", rank=2', 'kind="hash", hash_rows=9'),
        always=('kind="qr", collisions=5',),
    ),
)
def test_histories_of_other_kinds(kind: str) -> None:
    text = TOML.replace("[tables.likes]", f"[tables.likes]\n{kind}".replace(", ", "\n"))
    options = settings(text=text)
    assert len(options.tables) > 4 or kind.startswith('kind="hash"')
    digests = run_threads(3, partial(train, options, plan="row_wise,table_wise,data_parallel"))
    assert set(digests) == {train(options, SingleComm())}


def test_bags_of_rows_side_by_side_are_those_of_each_table() -> None:
    """With "copy", combining and then pooling gives the bits of pooling and then combining."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 6)).astype(np.float32) * np.float32(2) ** rng.integers(-30, 30)
    offsets = np.array([0, 0, 7, 8, 8, 40])
    for pooling in ("sum", "mean"):
        out = np.empty((5, 6), np.float32)
        BagSums(pooling, 6).forward(rows, offsets, out)
        halves = [np.empty((5, 3), np.float32) for _ in range(2)]
        for half, columns in zip(halves, (slice(0, 3), slice(3, 6))):
            own = np.ascontiguousarray(rows[:, columns])
            BagSums(pooling, 3).forward(own, offsets, half)
        assert np.array_equal(out, np.concatenate(halves, axis=1))
        exact = [rows[lo:hi].astype(np.float64).sum(axis=0) for lo, hi in pairwise(offsets)]
        lengths = np.maximum(np.diff(offsets), 1)[:, None] if pooling == "mean" else 1
        np.testing.assert_allclose(out, np.stack(exact) / lengths, rtol=1e-6)


class Once:
    """An operation as the kind "tt" has one: each row is looked up once per rank, and gradients
    come by leaf and row.
    """

    def __init__(self, part, parameters) -> None:
        self.lookups = None

    def forward(self, sources, out) -> None:
        """Rows of the lookups, from those of distinct rows."""
        (self.lookups,) = sources
        out[:] = self.lookups.values[self.lookups.lines]

    def backward(self, gradient):
        """A term for each row of each leaf, added in the order of the lookups."""
        lookups = self.lookups
        rows, terms = [], []
        bounds = lookups.offsets[lookups.leaves]
        for lo, hi in pairwise(bounds):
            distinct, inverse = np.unique(lookups.rows[lo:hi], return_inverse=True)
            total = np.zeros((distinct.size, gradient.shape[1]), np.float32)
            np.add.at(total, inverse, gradient[lo:hi])
            rows.append(distinct)
            terms.append(total)
        return [RowTerms(np.concatenate(terms), np.concatenate(rows))]

    def weight_gradients(self, nodes) -> None:
        """It has no parameters."""


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an operation that looks rows up once."""
    monkeypatch.setitem(operations.ROW_OPERATIONS, "once", Once)
    monkeypatch.setattr(composition_layout, "LOOK_UP_ONCE", ("once",))
    return "once"


@pytest.mark.parametrize("plan", ["table_wise", "row_wise,column_wise,data_parallel"])
def test_gradients_that_name_their_rows(once: str, plan: str) -> None:
    options = settings()
    compositions = [
        replace(part, operation=once) if part.table == "likes" else part
        for part in options.compositions
    ]
    alone = train(replace(options, compositions=tuple(compositions)), SingleComm())
    for pipeline in ("off", "full"):
        piped = settings(f'training.pipeline="{pipeline}"')
        case = replace(piped, compositions=tuple(compositions))
        assert set(run_threads(3, partial(train, case, plan=plan))) == {alone}, pipeline


# ---- a whole run ----

RUN = """
[model]
embedding_dim = 4
bottom = [6, 4]
top = [5, 1]
[model.attention]
many = { target = "one", hidden = [4] }
[tables.codes]
rows = 50
features = ["one", "many"]
pooling = "none"
[training]
batch_size = 64
epochs = 2
[optimizer.sparse]
learning_rate = 0.05
"""


def test_runs_resume_on_other_ranks_and_predict(tmp_path: Path) -> None:
    log = small_run.write_log(tmp_path / "log.h5")

    def run(name: str, ranks: int, *sets: str, resume: bool = False) -> str:
        config = loads(RUN, overrides=[f'data.train="{log}"', f'data.test="{log}"', *sets])
        summaries = run_threads(
            ranks, lambda comm: Trainer(config, comm, tmp_path / name, resume=resume).run()
        )
        return str(summaries[0]["digest"])

    whole = run("whole", 1)
    run("cut", 2, "training.steps=4", "parallel.plan=row_wise")
    assert run("cut", 3, "parallel.plan=data_parallel", resume=True) == whole
    model = neocpu.load(tmp_path / "whole")
    predictions = model.predict(log)
    assert predictions.size == small_run.ROWS and np.isfinite(predictions).all()
    assert "attention.many.1.bias" in model.dense


def test_features_of_a_table_may_have_the_same_codes(tmp_path: Path) -> None:
    log = small_run.write_log(tmp_path / "log.h5")
    rows = {}
    for same in ("true", "false"):
        sets = (f'data.train="{log}"', f"tables.codes.same_codes={same}", "training.steps=1")
        Trainer(loads(RUN, overrides=sets), SingleComm(), tmp_path / same).run()
        table = neocpu.load(tmp_path / same).tables["codes"]
        values = [3, 7, 11, 19]
        rows[same] = [table.rows_of(values, name).tolist() for name in ("one", "many")]
    assert rows["true"][0] == rows["true"][1] == rows["false"][0] != rows["false"][1]


def test_tables_that_are_shared_have_no_same_codes() -> None:
    text = '[tables.a]\nrows = 50\nfeatures = ["x", "y"]\nsame_codes = true\n'
    assert all(t.same_codes for t in loads(text + 'kind = "qr"').tables)
    other = '[tables.b]\nrows = 50\nkind = "unified"\nshared_rows = 10\n'
    for tables in (
        text + other.partition("50")[2] + other,
        other + text + other.partition("50")[2],
    ):
        with pytest.raises(ConfigError, match="same_codes"):
            loads(tables)
