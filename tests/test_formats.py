"""Do tables of narrow formats train like plain arrays that are rounded after every update, whoever
holds their rows?
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from spmd_exchange import NARROW, PLANS, Case, digest, train, unsharded
from test_tbe import COLUMNS, KEYS, SEED, TABLES, WHOLE, Plain, batch, record

from neocpu import load
from neocpu.core.codecs import LAYOUTS, NEAREST, STOCHASTIC
from neocpu.core.errors import CheckpointError, TrainingError
from neocpu.kernels.compile.threads import thread_count, use_threads
from neocpu.kernels.twins.codecs import small_floats as codecs
from neocpu.kernels.twins.numbers.philox import STOCHASTIC_ROUNDING, tensor_key
from neocpu.kernels.twins.rows import narrow
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.cost.cost import shard_cost
from neocpu.plan.cost.work import Workload
from neocpu.tables.embedding.rounded import rounded
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.before.preflight import table_needs
from neocpu.train.checkpoint.number_codes import Code
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.run.trainer import Trainer
from tests.cases import FILLS, assert_same, floats
from tests.small_run import config_of

MIXES = {  # formats of three tables, the second of which has one column
    "sixteen": (("fp16", "nearest"), ("bf16", "stochastic"), ("bf16_split", "nearest")),
    "eight": (("fp8_e4m3", "stochastic"), ("fp32", "nearest"), ("fp8_e4m3", "nearest")),
}
RULE = "exact_rowwise_adagrad"  # one rule for all of it: each compiles for seconds


def tables_of(mix):
    return tuple(
        replace(t, format=form, rounding=how) for t, (form, how) in zip(TABLES, MIXES[mix])
    )


class Rounded(Plain):
    """Plain arrays of numbers that their formats have."""

    def __init__(self, optimizer, tables):
        super().__init__(optimizer)
        self.tables = tables
        self.weights = [rounded(w, t.format, narrow) for w, t in zip(self.weights, tables)]

    def forward(self, lookups, out):
        kept = self.weights
        self.weights = [
            (w.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
            if t.format == "bf16_split"
            else w
            for w, t in zip(kept, self.tables)
        ]
        super().forward(lookups, out)
        self.weights = kept

    def backward(self, lookups, grad, step):
        super().backward(lookups, grad, step)
        for w, table in zip(self.weights, self.tables):
            if table.row_format.exact:
                continue
            layout = LAYOUTS[table.format]
            rows = np.arange(table.rows)
            codes = np.empty(w.shape, np.uint16 if layout[0] == 16 else np.uint8)
            # numbers of the format never move: rows that were not updated stay
            if table.rounding == "stochastic":
                key = tensor_key(SEED, STOCHASTIC_ROUNDING, table.name)
                codecs.encode_rows_randomly(w, layout, STOCHASTIC, key, rows, 0, step, codes)
            else:
                codecs.encode_rows(w, layout, NEAREST, codes)
            codecs.decode_rows(codes, layout, w)


@pytest.mark.parametrize("mix", MIXES)
def test_training_equals_plain_arrays(mix):
    rng = np.random.default_rng(len(mix))
    tables = tables_of(mix)
    optimizer = record(RULE, "l2", initial_accumulator_value=0.25)
    tbe = TableBatchedEmbedding(tables, WHOLE, optimizer, SEED)
    plain = Rounded(optimizer, tables)
    for step in range(1, 6):
        lookups, grad = batch(rng, int(rng.integers(0, 5)), weighted=step % 2 == 0)
        answer, expected = (np.full((lookups.samples, COLUMNS), 7, np.float32) for _ in "ab")
        tbe.forward(KEYS, lookups, answer)
        plain.forward(lookups, expected)
        assert_same(answer, expected)
        tbe.backward(KEYS, lookups, grad, step)
        plain.backward(lookups, grad, step)
        plain.check(tbe)
    assert not tbe.touched(2).all()


@pytest.mark.parametrize("mix", MIXES)
def test_threads_change_no_bit(mix):
    optimizer = record(RULE, "l2")
    results = []
    before = thread_count()
    for threads in (1, 2):
        use_threads(threads)  # as many as there are
        rng = np.random.default_rng(3)
        tbe = TableBatchedEmbedding(tables_of(mix), WHOLE, optimizer, SEED)
        out = [np.zeros((300, COLUMNS), np.float32) for _ in range(3)]
        for step in (1, 2, 3):
            lookups, grad = batch(rng, 300, weighted=step == 2)
            tbe.forward(KEYS, lookups, out[step - 1])
            tbe.backward(KEYS, lookups, grad, step)
        results.append([*out, *(values for i in range(3) for values in tbe.state(i).values())])
    use_threads(before)
    for one, two in zip(*results, strict=True):
        assert_same(one, two)


def test_split_weights_are_those_of_fp32_given_the_same_gradients():
    rng = np.random.default_rng(2)
    optimizer = record(RULE, "decoupled")
    split = tuple(replace(t, format="bf16_split") for t in TABLES)
    halves, whole = (
        TableBatchedEmbedding(tables, WHOLE, optimizer, SEED) for tables in (split, TABLES)
    )
    for step in range(1, 6):
        lookups, grad = batch(rng, 4, weighted=True)
        seen = [np.zeros((4, COLUMNS), np.float32) for _ in "ab"]
        for tbe, out in zip((halves, whole), seen):
            tbe.forward(KEYS, lookups, out)
            tbe.backward(KEYS, lookups, grad, step)
        assert (seen[0] != seen[1]).any()  # lookups see the upper halves
    for i in range(3):
        there = np.flatnonzero(whole.touched(i))
        for name, values in whole.state(i).items():
            assert_same(halves.state(i)[name][there], values[there])


def test_a_number_that_the_format_does_not_have_is_refused():
    tbe = TableBatchedEmbedding(tables_of("sixteen"), WHOLE, record(RULE), SEED)
    values = np.ones((2, 20), np.float32)
    tbe.load_rows(0, np.array([1, 8]), {"weight": values})
    assert_same(tbe.state(0)["weight"][np.array([8, 1])], values)
    values[1, 7] = 0.1
    with pytest.raises(TrainingError, match=r"table a, row 8, column 7: 0\.1 is no fp16 number"):
        tbe.load_rows(0, np.array([1, 8]), {"weight": values})
    # split halves have every number
    tbe.load_rows(2, np.array([3]), {"weight": np.full((1, 130), 0.1, np.float32)})


@pytest.mark.parametrize("plan", PLANS)
def test_any_plan_and_ranks_give_the_bits_of_one(plan):
    for special in (False, True):
        case = Case(
            plan=plan,
            tables=NARROW,
            steps=3,
            special=special,
            optimizer=RULE,
            weight_decay_mode="l2",
        )
        for ranks in (1, 2, 3):
            with np.errstate(all="ignore"):
                digests = run_threads(
                    ranks, lambda comm, case=case: digest(comm, case, *train(comm, case))
                )
                assert set(digests) == {unsharded(case)}, (ranks, special)


FORMATS = (
    "tables.one.format=bf16",
    "tables.one.rounding=stochastic",
    "tables.many.format=bf16_split",
)


def run(log, out, *overrides, ranks=1, resume=False, plan="table_wise"):
    """Summary of a run on threads."""
    config = config_of(
        log,
        *FORMATS,
        "training.epochs=40",
        "model.embedding_dim=8",
        "model.bottom=[6, 8]",
        *overrides,
        f"parallel.plan={plan}",
    )
    return run_threads(ranks, lambda comm: Trainer(config, comm, out, resume=resume).run())[0]


def test_a_run_learns_and_comes_back_under_another_plan(log, tmp_path):
    whole = run(log, tmp_path / "whole", "training.steps=60")
    first = run(log, tmp_path / "short", "training.steps=3")["metrics"]["test"]["logloss"]
    assert whole["metrics"]["test"]["logloss"] < first - 0.1
    run(log, tmp_path / "cut", "training.steps=30", ranks=2, plan="column_wise")
    assert (
        run(log, tmp_path / "cut", "training.steps=60", ranks=3, plan="row_wise", resume=True)[
            "digest"
        ]
        == whole["digest"]
    )
    with pytest.raises(
        CheckpointError, match=r'tables\.one\.rounding was "stochastic", now "nearest"'
    ):
        run(log, tmp_path / "cut", "tables.one.rounding=nearest", resume=True)
    (path,) = (tmp_path / "whole" / "checkpoints").glob("*.h5")
    with CheckpointFile(path) as file:
        assert file.recomputed_digest() == whole["digest"] and file.attributes["version"] == 2
        kinds = {
            name: file.links[0].file.array(f"tables/{name}/weight").dtype.str
            for name in ("one", "many")
        }
        assert (
            kinds == {"one": "<u2", "many": "<f4"}
            and file.links[0].file.array("tables/one/weight").attributes["format"] == "bf16"
        )
    table = load(path).tables["one"]
    assert not (table[:].view(np.uint32) & 0xFFFF).any() and table.learnt.size
    assert (
        json.loads((tmp_path / "whole" / "run.json").read_text())["plan"]["tables"][0]["format"]
        == "bf16"
    )


STORED = {"fp16": "<f2", "bf16": "<u2", "fp8_e4m3": "|u1", "fp8_e5m2": "|u1"}


@pytest.mark.parametrize("form", [*STORED, "fp32", "bf16_split"])
@pytest.mark.parametrize("fill", FILLS)
def test_checkpoints_hold_the_same_numbers(form, fill):
    with np.errstate(all="ignore"):
        numbers = rounded(floats(np.random.default_rng(1), (7, 9), fill), form, narrow)
    numbers[np.isnan(numbers)] = np.nan
    code = Code(form, (9,))
    stored = code.encode(numbers)
    assert stored.dtype.str == code.dtype == STORED.get(form, "<f4")
    assert_same(code.decode(stored), numbers)


def test_memory_is_counted_in_the_width_of_the_format():
    tables = [
        TableSpec("x", 1000, 16, ("x",), format=form)
        for form in ("fp32", "bf16", "fp8_e4m3", "bf16_split")
    ]
    plans = [place([table], ["row_wise"], 2, 2) for table in tables]
    assert [plan.rank_bytes((0, 1))[0] for plan in plans] == [
        500 * (4 + 16 * width) for width in (4, 2, 1, 4)
    ]
    needs = [table_needs(plan, 0, (0, 1), {"x": 10**9})[0].bytes for plan in plans]
    # and a byte and a bit of each row, and a byte for a page of them
    marks = 500 + 63 + 1
    assert [n - marks for n in needs] == [plan.rank_bytes((0, 1))[0] for plan in plans]
    costs = [
        shard_cost(t, p.of_table(0)[0], 2, False, Workload()).compute for t, p in zip(tables, plans)
    ]
    assert costs[0] > costs[3] > costs[1] > costs[2]
