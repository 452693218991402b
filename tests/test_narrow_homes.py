"""Are rows that are narrow at home encoded when they leave a cache, exactly once, and does
everything else stay as it is?
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.core.errors import CheckpointError, ConfigError, PlanError, TrainingError
from neocpu.core.formats import CACHES, SCALED
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.sharding.schemes import Shard
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.cost.capacity import rank_bytes
from neocpu.plan.search import auto
from neocpu.tables.embedding.lookups import EntryLayout, Lookups
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.embedding.tiered import MemoryPlan, TieredEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec
from neocpu.tables.storage.row_codecs import RowCodec, same_bits, streams_of
from neocpu.train import checkpoint
from neocpu.train.checkpoint.links import base_of
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.run.trainer import Trainer
from tests.cases import FILLS, assert_same, floats
from tests.small_run import config_of

ROWS = 300
DIM = 7
FORMS = CACHES["fp32"]


@pytest.mark.parametrize("form", FORMS)
@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    columns=st.sampled_from([1, 7, 16, 40]),
    rounding=st.sampled_from(["nearest", "stochastic"]),
)
@settings(max_examples=20)
def test_codecs_are_their_twins_and_give_back_what_they_took(form, seed, fill, columns, rounding):
    rng = np.random.default_rng(seed)
    x = floats(rng, (9, columns), fill)
    streams = rng.integers(0, 2**62, 9)
    codec = RowCodec(form, columns, rounding, int(rng.integers(2**62)), 4)
    twin = replace(codec, backend="reference")
    data = codec.encode(x, streams)
    assert data.shape == (9, codec.bytes) and (data == twin.encode(x, streams)).all()
    numbers = codec.decode(data)
    assert_same(numbers, twin.decode(data))
    restored = codec.restore(numbers, codec.scales(data))
    assert same_bits(codec.decode(restored), numbers).all()
    if form not in SCALED and np.isfinite(numbers).all():
        # of the format already: nothing moves
        assert (codec.encode(numbers, streams) == data).all()


def test_what_a_row_holds_decides_how_it_is_rounded():
    rng = np.random.default_rng(1)
    rows = np.arange(2000)
    held = rng.integers(0, 256, (2000, 36)).astype(np.uint8)
    streams = streams_of(rows, held)
    assert (streams >= 0).all() and np.unique(streams).size == 2000
    assert (streams_of(rows[::-1].copy(), held[::-1].copy()) == streams[::-1]).all()
    other = held.copy()
    other[:, 35] ^= 1
    assert (streams_of(rows, other) != streams).all()
    # 0.25 of the way from code 0 to code 1
    line = np.tile(np.float32([0, 0.25 / 255, 1]), (2000, 1))
    up = RowCodec("int8", 3, "stochastic").encode(line, streams)[:, 1].mean()
    assert abs(up - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 2000)


def tiered(folder, form, placement, cache="fp32", rounding="nearest", **memory):
    table = TableSpec("t", ROWS, DIM, ("f",), format=form, rounding=rounding, cache_format=cache)
    plan = MemoryPlan(placements=(placement,), folder=folder, **memory)
    return TieredEmbedding(
        [table], [Shard(0, (0, ROWS), (0, DIM), 0)], SparseOptimizer("adam"), 1, plan
    )


def steps(tbe, seed, count, first=1, most=60):
    """Lookups and updates; what was looked up, and of which rows."""
    layout = EntryLayout(np.zeros(1, np.int64), np.zeros(1, np.int64))
    rng = np.random.default_rng(seed)
    outputs = []
    every = []
    for step in range(first, first + count):
        rows = rng.integers(0, ROWS, most)
        lookups = Lookups(np.arange(most + 1), rows, np.empty(0, np.float32), most)
        out = np.empty((most, DIM), np.float32)
        grad = rng.standard_normal((most, DIM)).astype(np.float32)
        tbe.forward(layout, lookups, out)
        tbe.backward(layout, lookups, grad, step)
        outputs.append(out)
        every.append(rows)
    return np.concatenate(outputs), np.unique(np.concatenate(every))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("placement", ["hbm_over_ddr", "hbm_over_ddr_over_ssd"])
def test_a_cache_of_all_rows_trains_them_in_fp32_and_rounds_once(form, placement, tmp_path):
    tiers = tiered(tmp_path, form, placement, hbm=10**6, ddr=10**6)
    every = np.arange(ROWS)
    plain = TableBatchedEmbedding(
        [TableSpec("t", ROWS, DIM, ("f",))], tiers.shards, SparseOptimizer("adam"), 1
    )
    start = tiers.initial(0, every)
    codec = RowCodec(form, DIM)
    assert_same(start["weight"], codec.decode(codec.encode(plain.initial(0, every)["weight"])))
    plain.load_rows(
        0, every, {name: value for name, value in start.items() if "weight_" not in name}
    )
    for first, seed in ((1, 5), (9, 6)):
        out, changed = steps(tiers, seed, 8, first)
        other, _ = steps(plain, seed, 8, first)
        assert_same(out, other)
        tiers.flush()
        contents = tiers.values(0, changed)
        wide = plain.values(0, changed)
        assert_same(contents["weight"], codec.decode(codec.encode(wide["weight"])))
        assert_same(contents["exp_avg"], wide["exp_avg"])
        # from here on both have what is at home
        plain.load_rows(0, changed, {"weight": contents["weight"]})
    rows = tiers.existing(0, 0, ROWS)
    contents = tiers.values(0, rows)
    assert 200 < rows.size < ROWS
    again = tiered(tmp_path / "again", form, placement, hbm=10**6, ddr=10**6)
    again.load_rows(0, rows, contents)
    for name, value in again.values(0, rows).items():
        assert_same(value, contents[name])
    assert_same(steps(again, 7, 4, 17)[0], steps(tiers, 7, 4, 17)[0])
    for tbe in (tiers, again):
        tbe.close()


@pytest.mark.parametrize(
    ("form", "cache"), [("int8", "fp32"), ("int4", "fp16"), ("bf16", "fp32"), ("fp8_e4m3", "fp16")]
)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_rows_that_find_no_line_are_staged_and_narrowed(form, cache, rounding, tmp_path):
    results = []
    for number, placement in enumerate(("ddr_over_ssd", "hbm_over_ddr", "hbm_over_ddr")):
        folder = tmp_path / str(number)
        memory = {placement[:3]: 9000 if number else 5700}
        tbe = tiered(folder, form, placement, cache, rounding, **memory)
        out, _ = steps(tbe, 3, 12, most=40)
        tbe.flush()
        rows = tbe.existing(0, 0, ROWS)
        values = tbe.values(0, rows)
        assert np.isfinite(values["weight"]).all() and np.isfinite(out).all()
        results.append((rows, *values.values(), out))
        (levels,) = tbe.tiers().values()
        assert levels[0]["rows"] > 20 and levels[1]["bytes"] == rows.size * (
            RowCodec(form, DIM).bytes + 2 * 4 * DIM
        )
        assert bool(levels[1].get("index_bytes")) == (number == 0)  # of the SSD file
        if number == 0:
            assert levels[0]["conflict_unique_misses"] > 20
        again = tiered(folder / "again", form, placement, cache, rounding, **memory)
        again.load_rows(0, rows, values)
        assert_same(steps(again, 4, 6, 13, 40)[0], steps(tbe, 4, 6, 13, 40)[0])
        tbe.close(), again.close()
    for a, b in zip(results[1], results[2]):
        assert a.tobytes() == b.tobytes()  # the same cache: the same bits
    # rows leave another cache at other times
    assert results[0][1].tobytes() != results[1][1].tobytes()


def test_numbers_that_are_none_of_the_format_are_refused(tmp_path):
    tbe = tiered(tmp_path, "int8", "hbm_over_ddr")
    values = tbe.initial(0, np.arange(3))
    values["weight"][1, 2] += np.float32(0.4) * values["weight_scale"][1]
    with pytest.raises(TrainingError, match=r"table t, row 1, column 2: .* is no int8 number"):
        tbe.load_rows(0, np.arange(3), values)
    with pytest.raises(TrainingError, match="has a cache_format, but no cache"):
        tiered(tmp_path, "int8", "hbm")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A log of more categories than a small cache has lines."""
    random = np.random.default_rng(6)
    path = tmp_path_factory.mktemp("log") / "many.h5"
    codes = {
        name: random.integers(0, 2**20, 600).astype(np.uint32) % 400 for name in ("one", "many")
    }
    with DatasetWriter(
        path, ["a", "b", "c"], [FeatureColumn("one"), FeatureColumn("many")]
    ) as writer:
        labels = (codes["one"] % 3 == 0).astype(np.float32)
        writer.append(labels, random.standard_normal((600, 3)).astype(np.float32), codes)
    return path


def run(log, out, *overrides, ranks=1, resume=False):
    """Summary of a run on threads, whose tables are narrow below caches of 64 lines."""
    config = config_of(
        log,
        "training.epochs=4",
        "training.steps=30",
        "checkpoint.every_steps=15",
        "tables.one.format=int8",
        "tables.one.rows=900",
        "tables.many.rows=700",
        "model.embedding_format=fp16",
        "model.embedding_rounding=stochastic",
        "memory.cache_format=fp32",
        "memory.placement=hbm_over_ddr",
        "memory.hbm=10_000",
        "memory.policy=lookahead",
        "memory.warm=true",
        *overrides,
    )
    return run_threads(ranks, lambda comm: Trainer(config, comm, out, resume=resume).run())[0]


def test_a_run_of_narrow_rows_goes_on_as_if_nothing_had_happened(many, tmp_path):
    whole = run(many, tmp_path / "whole")
    assert run(many, tmp_path / "threads", "training.threads=1")["digest"] == whole["digest"]
    assert any(level.get("conflict_unique_misses") for level in whole["tiers"])
    last, first = checkpoint.checkpoints(tmp_path / "whole")[::-1]
    shutil.copytree(tmp_path / "whole", tmp_path / "cut", ignore=shutil.ignore_patterns(last.name))
    assert checkpoint.checkpoints(tmp_path / "cut")[-1].name == first.name == "step-00000015.h5"
    with pytest.raises(CheckpointError, match=r"memory\.hbm was 10000, now 12000"):
        run(many, tmp_path / "cut", "memory.hbm=12_000", resume=True)
    assert run(many, tmp_path / "cut", resume=True)["digest"] == whole["digest"]
    with CheckpointFile(checkpoint.checkpoints(tmp_path / "cut")[-1]) as file:
        assert file.recomputed_digest() == whole["digest"]
        assert [name for name, _ in file.tensors[file.number("tables/one")].fields][-2:] == [
            "weight_scale",
            "weight_bias",
        ]
    ranks = [
        run(many, tmp_path / f"ranks{i}", "memory.policy=lfu", ranks=2)["digest"] for i in range(2)
    ]
    assert ranks[0] == ranks[1] != whole["digest"]


def states(out):
    """What the checkpoints of a run hold, by their names, and which of them hold changes."""
    files = checkpoint.checkpoints(out)
    digests = {}
    for path in files:
        with CheckpointFile(path) as file:
            digests[path.name] = file.recomputed_digest()
    return digests, [path.name for path in files if base_of(path)]


@pytest.mark.parametrize(
    ("ranks", "placement", "policy", "kept"),
    [(1, "hbm_over_ddr_over_ssd", "lookahead", 2), (2, "ddr_over_ssd", "lfu", 3)],
)
def test_checkpoints_of_changes_hold_what_whole_ones_hold(
    many, tmp_path, ranks, placement, policy, kept
):
    memory = f"memory.placement={placement}", f"memory.policy={policy}", "memory.ddr=10_000"
    sets = *memory, "checkpoint.every_steps=5", "checkpoint.keep=99"
    whole = run(many, tmp_path / "whole", *sets, "checkpoint.full_every=1", ranks=ranks)
    expected, based = states(tmp_path / "whole")
    assert (
        len(expected) == 6 and not based and {"ssd"} < {level["tier"] for level in whole["tiers"]}
    )
    assert all(level["index_bytes"] for level in whole["tiers"] if level["tier"] == "ssd")
    out = tmp_path / "changes"
    for resume in (False, True):
        summary = run(many, out, *sets, "checkpoint.full_every=3", ranks=ranks, resume=resume)
        assert (
            summary["digest"] == whole["digest"]
            and states(out)[0] == expected
            and len(states(out)[1]) == 4
        )
        for path in checkpoint.checkpoints(out)[kept:]:  # what is left last is a file of changes
            path.unlink()
        assert base_of(checkpoint.checkpoints(out)[-1])


def test_what_cannot_be_is_refused_with_a_way_out(log):
    with pytest.raises(
        ConfigError,
        match=r"tables\.one\.format: int8 rows train below .*memory\.cache_format .*now hbm",
    ):
        config_of(log, "tables.one.format=int8")
    with pytest.raises(
        ConfigError, match=r"fp16 cannot hold every number of table 'one', which is bf16; take fp32"
    ):
        config_of(
            log,
            "tables.one.format=bf16",
            "memory.placement=ddr_over_ssd",
            "memory.cache_format=fp16",
        )
    with pytest.raises(
        ConfigError, match=r"memory\.cache_format: 'int8' is no format of caches .*fp32, fp16"
    ):
        config_of(log, "memory.placement=ddr_over_ssd", "memory.cache_format=int8")
    same = config_of(log, "memory.placement=hbm_over_ddr", "memory.cache_format=fp32")
    assert same.header() == config_of(log).header()  # fp32 caches of fp32 rows
    spec = TableSpec("t", 100, 8, ("f",), format="int8", cache_format="fp32")
    for scheme, why in (
        ("column_wise", "cannot be cut"),
        ("data_parallel", "copies of its int8 rows would differ"),
    ):
        with pytest.raises(PlanError, match=f"table 't': .*{why}.*parallel.plan"):
            place([spec], [scheme], 4)
        assert place([spec], [scheme], 1).shards
    assert auto.make_plan([spec] * 2, "auto", 4).schemes


def test_budgets_count_narrow_rows():
    table = TableSpec("t", 10_000, 16, ("f",), format="int8", cache_format="fp32")
    plan = MemoryPlan(placements=("hbm_over_ddr",), hbm=10**5)
    shard = Shard(0, (0, 10_000), (0, 16), 0)
    (room,) = plan.rooms([table], [shard], (0, 1))
    assert (room.whole, room.narrow, room.scratch) == (0, 10_000 * (16 + 8 + 4), 10_000)
    assert 90_000 < room.lines[0] * (4 * 16 + 4 + 34) <= 10**5
    size = rank_bytes(place([table], ["table_wise"], 1), 0, plan.placements, [room], (0, 1))
    assert size == {
        "hbm": room.lines[0] * 68,
        "ddr": 280_000 + 680_000,
        "ssd": 0,
    }  # rows without a line are staged in DDR
    assert replace(plan, ddr=600_000).rooms([table], [shard], (0, 1))[0].scratch == 4096
    with pytest.raises(TrainingError, match="tables in ddr take 558,528 bytes"):
        replace(plan, ddr=200_000).rooms([table], [shard], (0, 1))
