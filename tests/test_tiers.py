"""Do rows that travel between memories come back as they went, and do tables beyond their memory
train like those within?
"""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spmd_exchange import PLANS, TALL, Case, digest, train, unsharded

from neocpu.cli.train import tier_lines
from neocpu.core.errors import ConfigError, StorageError, TrainingError
from neocpu.parallel.sharding.schemes import Shard
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.lookups import EntryLayout, Lookups
from neocpu.tables.embedding.tiered import MemoryPlan, TieredEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec
from neocpu.tables.storage.extents import undo_of
from neocpu.tables.storage.row_file import RowFile, RowTable
from neocpu.tables.tiers.homes import Border, FileRecords, Memory, RecordHome
from neocpu.tables.tiers.levels import Level, Slots
from neocpu.tables.tiers.mover import Mover
from neocpu.tables.tiers.placement import (
    PLACEMENTS,
    PlacedShard,
    Room,
    choose_placements,
    make_room,
)
from neocpu.tables.tiers.tier import Tier, Visit
from neocpu.train.run.trainer import Trainer
from tests.small_run import config_of

ROWS = 300
WIDTH = 3
CACHED = [name for name, place in PLACEMENTS.items() if place.caches]


def stack(kind, folder, policy="lru", scratch=64, ahead=False, cached=32):
    """A tier of ROWS rows f32[WIDTH] with a state u16 under `cached` lines, and its arrays; a row
    starts as its number and 7.
    """
    place = PLACEMENTS[kind]
    lines = cached * len(place.caches) + scratch
    home_rows = ROWS if place.whole else 0
    numbers = np.zeros((lines + home_rows) * WIDTH, np.float32)
    states = np.zeros(lines + home_rows, np.uint16)
    slots = Slots([numbers, states], lines + home_rows)

    def create(rows, to):
        numbers.reshape(-1, WIDTH)[to] = rows[:, None]
        states[to] = 7

    if place.ssd:
        file = RowFile.create(folder / "rows.h5", [RowTable("t", ROWS, slots.record)])
        home = RecordHome(FileRecords(file, 0), Border(slots), create)
    else:
        home = Memory("ddr", slots, lines, ROWS, create)
    first = [0, cached + scratch]
    for i in reversed(range(len(place.caches))):
        home = Level(place.caches[i], slots, first[i], cached, policy, home)
    return (
        Tier("t", home, slots, (cached, scratch), Mover(ahead)),
        numbers.reshape(-1, WIDTH),
        states,
    )


def visit(rows):
    """A batch that looks up each of these rows once."""
    return Visit(rows, np.ones_like(rows))


BATCHES = st.lists(
    st.tuples(
        st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=90, unique=True),
        st.sampled_from("rwfx"),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("kind", CACHED)
@pytest.mark.parametrize("policy", ["lru", "lfu", "bagpipe"])
@pytest.mark.parametrize("known", [0, 1, 3])
@settings(max_examples=15)
@given(batches=BATCHES, scratch=st.sampled_from([58, 64, 300]))
def test_rows_come_back_as_they_went(kind, policy, known, batches, scratch, tmp_path_factory):
    """Batches read (r), write (w), or are followed by a flush (f) or by a batch that nobody knew of
    (x), which writes; the next `known` ones are planned before their turn.
    """
    tier, numbers, states = stack(
        kind, tmp_path_factory.mktemp("rows"), policy, scratch, ahead=known > 0
    )
    model = {}
    visits = [visit(np.sort(np.array(rows))) for rows, _ in batches]

    def check(batch, slots, step=0):
        assert np.unique(slots).size == batch.rows.size
        for row, slot in zip(batch.rows.tolist(), slots.tolist()):
            assert (numbers[slot].tolist(), states[slot]) == model.get(row, ([row] * WIDTH, 7)), (
                step,
                row,
            )
            if step:
                numbers[slot] = [step, row, 0.5]
                states[slot] = step
                model[row] = ([step, row, 0.5], step)

    for step, (batch, (_, what)) in enumerate(zip(visits, batches), 1):
        for later in visits[step - 1 : step + known]:
            if later not in tier._known and not later.planned:
                tier.know(later)
                tier.plan(later)
        slots = tier.begin(batch)
        if what == "w":
            assert (tier.slots_of(batch.rows[::-1]) == slots[::-1]).all()
        check(batch, slots, step * (what == "w"))
        if step % 2:
            tier.settle()  # else the next one does it
        if what == "f":
            tier.flush()
        if what == "x":
            batch = visit(np.arange(step % 7, ROWS, 5))
            slots = tier.begin(batch)
            tier.slots_of(batch.rows)
            check(batch, slots, step)
    tier.flush()
    home = tier.level.rows()
    assert set(model) <= set(home.tolist())
    records = tier.level.peek(home)
    for row, record in zip(home.tolist(), records):
        values = record[: 4 * WIDTH].view(np.float32).tolist()
        state = record[4 * WIDTH :].view(np.uint16)[0]
        assert (values, state) == model.get(row, ([row] * WIDTH, 7))
    tier.empty()
    tier.level.load(np.array([5, 6]), np.zeros((2, 4 * WIDTH + 2), np.uint8))
    (slot,) = tier.begin(visit(np.array([6])))
    assert not numbers[slot].any() and states[slot] == 0


def test_a_batch_beyond_cache_and_scratch_is_refused(tmp_path):
    tier, *_ = stack("ddr_over_ssd", tmp_path, scratch=8)
    with pytest.raises(
        TrainingError,
        match=r"looks up 100 rows of table t .* 32 lines in sets of 32, and a row belongs to one "
        r"set: 68 of these rows find theirs full, and only 8 such rows .*memory\.ddr",
    ):
        tier.begin(visit(np.arange(100)))
    assert tier.begin(visit(np.arange(32))).size == 32  # and no line stayed locked


def test_only_rows_that_changed_reach_the_file(tmp_path):
    tier, *_ = stack("ddr_over_ssd", tmp_path)
    for at in range(0, ROWS, 30):
        tier.begin(visit(np.arange(at, at + 30)))
    tier.flush()
    assert tier.level.rows().size == 0 and tier.stats()[1] == {
        "tier": "ssd",
        "rows": 0,
        "bytes": 0,
        "index_bytes": 512,
        "read": 0,
        "written": 0,
    }


def test_budgets_are_kept_and_shared_by_bytes():
    shards = [
        PlacedShard("big", 10**6, 100, "ddr_over_ssd"),
        PlacedShard("small", 10**5, 100, "ddr_over_ssd"),
        PlacedShard("w", 50, 8, "ddr"),
    ]
    rooms = make_room(shards, ddr=2_000_000)
    assert (
        sum(room.slots * (size + 34) for room, size in zip(rooms[:2], (100, 100))) + 400
        <= 2_000_000
    )
    assert 0 <= rooms[0].lines[0] - rooms[1].lines[0] <= 32 and rooms[2] == Room((), 0, 50)
    assert sum(room.slots * 134 for room in rooms[:2]) > 1_980_000  # all but a set of each is used
    few = make_room(
        [
            PlacedShard("big", 10**6, 100, "ddr_over_ssd"),
            PlacedShard("few", 70, 100, "ddr_over_ssd"),
        ],
        ddr=2_000_000,
    )
    assert few[1].lines == (96,) and few[0].lines[0] > 11_000
    assert all(room.lines[0] % 32 == 0 and room.scratch == room.lines[0] // 4 for room in rooms[:2])
    # FBGEMM's fifth, in whole sets
    assert make_room([PlacedShard("t", 1000, 8, "hbm_over_ddr")]) == [Room((224,), 0, 1000)]
    assert make_room([PlacedShard("t", 40, 8, "hbm_over_ddr_over_ssd")], hbm=10**6, ddr=10**6)[
        0
    ].lines == (64, 64)
    with pytest.raises(
        TrainingError,
        match=r"tables in hbm take 400 bytes .* 300 more than memory\.hbm .* hbm_over_ddr",
    ):
        make_room([PlacedShard("t", 50, 8, "hbm")], hbm=100)
    with pytest.raises(
        TrainingError, match=r"memory\.ddr is 100 bytes .* at least 1,680 .* raise it by 1,580"
    ):
        make_room([PlacedShard("t", 50, 8, "ddr_over_ssd")], ddr=100)


def test_placements_by_pattern():
    assert choose_placements(["a", "b1", "b2"], {"b*": "ddr", "b2": "ddr_over_ssd"}) == (
        "hbm",
        "ddr",
        "ddr_over_ssd",
    )
    with pytest.raises(ConfigError, match=r"'ssd' is no placement.*choose from hbm, ddr, "):
        choose_placements(["a"], "ssd")
    with pytest.raises(ConfigError, match="no table matches 'x'; the tables are a"):
        choose_placements(["a"], {"x": "hbm"})


@pytest.mark.parametrize("plan", ["mixed", "column_wise", "data_parallel"])
def test_any_placement_gives_the_bits_of_memory(plan):
    assert plan in PLANS
    for ranks, policy, prefetch in ((1, "lfu", 0), (3, "sieve", 1), (2, "lookahead", 2)):
        case = Case(tables=TALL, plan=plan, placements=(*CACHED, "hbm"), batch=40, steps=4)
        case = replace(case, policy=policy, prefetch=prefetch)
        if policy != "lfu":  # repeated bags travel once, and bring their rows up once
            case = replace(case, groups=(("z", "u", "v"), ("x", "y")), repeats=0.6)
        with np.errstate(all="ignore"):
            digests = run_threads(
                ranks, lambda comm, case=case: digest(comm, case, *train(comm, case))
            )
            assert set(digests) == {unsharded(case)}, ranks


def test_a_table_of_ten_billion_rows_costs_what_is_touched(tmp_path):
    rows = 10**10
    table = TableSpec("huge", rows, 4, ("f",))
    memory = MemoryPlan(placements=("ddr_over_ssd",), ddr=100_000, folder=tmp_path)
    tbe = TieredEmbedding([table], [Shard(0, (0, rows), (0, 4), 0)], SparseOptimizer(), 1, memory)
    layout = EntryLayout(np.zeros(1, np.int64), np.zeros(1, np.int64))
    rng = np.random.default_rng(0)
    seen = {}
    for step in range(1, 30):
        rows_looked_up = np.append(rng.integers(0, rows, 300), [0, rows - 1])
        lookups = Lookups(np.arange(303), rows_looked_up, np.empty(0, np.float32), 302)
        out = np.empty((302, 4), np.float32)
        grad = rng.standard_normal((302, 4)).astype(np.float32)
        tbe.forward(layout, lookups, out)
        for row, value in zip(rows_looked_up.tolist(), out):
            assert row not in seen or not (value == seen[row]).all(), "the update was lost"
            seen[row] = value
        tbe.backward(layout, lookups, grad, step)
    tbe.flush()
    assert tbe.existing(0, 0, rows).size == len(seen) and tbe.existing(
        0, rows - 1, rows
    ).tolist() == [rows - 1]
    assert (tmp_path / "rank-0.h5").exists() and tbe.slots[0] < 3000
    tbe.close()
    assert not (tmp_path / "rank-0.h5").exists()
    memory = MemoryPlan(placements=("ddr_over_ssd",), folder=tmp_path / "file" / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(
        StorageError, match=r"folder/rank-0\.h5: cannot be made: .* choose another memory\.folder"
    ):
        TieredEmbedding([table], [Shard(0, (0, rows), (0, 4), 0)], SparseOptimizer(), 1, memory)


def test_the_ssd_file_of_a_rank_stays_within_its_budget(log, tmp_path):
    with pytest.raises(
        StorageError,
        match=r"rank-0\.h5: would have .* bytes, but may have 20,000; raise .*memory\.ssd",
    ):
        run(log, tmp_path, "ddr_over_ssd", "memory.ssd=20000")


def test_files_of_others_are_left_alone(log, tmp_path):
    folder = f"memory.folder={tmp_path / 'rows'}"
    existing = tmp_path / "rows" / "rank-0.h5"
    existing.parent.mkdir()
    existing.write_bytes(b"a letter")
    with pytest.raises(
        StorageError, match=r"rank-0\.h5: is no file of rows; remove it, or choose another folder"
    ):
        run(log, tmp_path / "a", "ddr_over_ssd", "training.steps=3", folder)
    assert existing.read_bytes() == b"a letter"
    existing.unlink()
    with (
        RowFile.create(existing, [RowTable("t", 10, 8)]),
        pytest.raises(StorageError, match="in use by another process"),
    ):
        run(log, tmp_path / "b", "ddr_over_ssd", "training.steps=3", folder)
    undo_of(existing).write_bytes(
        b"half of what was"
    )  # of a run that was killed while its file grew
    run(log, tmp_path / "c", "ddr_over_ssd", "training.steps=3", folder)
    assert not list(existing.parent.iterdir())


def test_files_that_killed_runs_on_more_ranks_left_are_removed(log, tmp_path):
    left = tmp_path / "out" / "rows" / "rank-7.h5"
    left.parent.mkdir(parents=True)
    RowFile.create(left, [RowTable("t", 10, 8)]).close()
    run(log, tmp_path / "out", "hbm", "training.steps=2")
    assert not left.exists()
    left.write_bytes(b"a letter")
    with pytest.raises(StorageError, match=r"rank-7\.h5: is no file of rows"):
        run(log, tmp_path / "out", "hbm", "training.steps=2", resume=True)


def run(log, out, placement, *overrides, ranks=1, resume=False):
    """Summary of a run on threads."""
    config = config_of(
        log, "training.epochs=40", "training.steps=60", f"memory.placement={placement}", *overrides
    )
    return run_threads(ranks, lambda comm: Trainer(config, comm, out, resume=resume).run())[0]


def test_a_run_beyond_its_memory_ends_with_the_same_digest(log, tmp_path):
    coded = "tables.one.format=fp16", "tables.one.rounding=stochastic"
    uninterrupted = run(log, tmp_path / "whole", "hbm", *coded)
    assert uninterrupted["tiers"] == []
    run(log, tmp_path / "cut", "ddr_over_ssd", "training.steps=25", *coded, ranks=2)
    cache_options = "policy=lookahead", "prefetch=3", "lookahead=5", "hbm=5000"
    once = 'data.deduplicate=["*"]', "parallel.unique_rows=auto"
    options = tuple(f"memory.{option}" for option in cache_options)
    overrides = *options, "eval.every_steps=7", *coded, *once
    resumed = run(log, tmp_path / "cut", "hbm_over_ddr_over_ssd", *overrides, ranks=3, resume=True)
    assert resumed["digest"] == uninterrupted["digest"]
    assert not list((tmp_path / "cut" / "rows").glob("*"))
    assert {level["tier"] for level in resumed["tiers"]} == {"hbm", "ddr", "ssd"}
    index, wait, checkpoints = tier_lines(resumed)[-3:]
    assert re.fullmatch(r"index of SSD files in memory: .* MiB, \d+\.\d bytes a row", index)
    assert re.fullmatch(r"steps waited \d+\.\d\d s for rows \(.* % of the steps' time\)", wait)
    assert (
        "the last checkpoint has step 60; between checkpoints it cost up to 35 steps" in checkpoints
    )
    tiers = json.loads((tmp_path / "cut" / "run.json").read_text())["tiers"]
    assert all(level["rows"] >= 0 for level in tiers)
