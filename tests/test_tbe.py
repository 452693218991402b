"""Does the table-batched embedding train like plain arrays do, however its rows, columns and
lookups are cut?
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from test_update import CORE_RULES, FUSED, PHASES

from neocpu.core.errors import ConfigError, TrainingError
from neocpu.core.formats import SCALED
from neocpu.core.trees import climb
from neocpu.kernels.numbers import rounding
from neocpu.kernels.rows import update
from neocpu.kernels.twins.numbers.exact import exact_sum
from neocpu.kernels.twins.numbers.philox import INIT, tensor_key, uniform_rows
from neocpu.kernels.twins.rows import rules
from neocpu.kernels.twins.rows.update import square_tree
from neocpu.tables.embedding.lookups import EntryLayout, Lookups
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.optimizers import Schedule, SparseOptimizer
from neocpu.tables.specs.specs import TableSpec, bags
from tests.cases import FILLS, assert_same, bag_offsets, floats
from tests.workers import covered

SEED = 5
NONE = np.empty(0, np.float32)
TABLES = (
    TableSpec("a", 9, 20, ("f", "g")),
    TableSpec("b", 3, 1, ("h",)),
    TableSpec("c", 40, 130, ("k",)),
)


@dataclass(frozen=True)
class Rectangle:
    """A shard."""

    table: int
    rows: tuple[int, int]
    cols: tuple[int, int]


WHOLE = [Rectangle(i, (0, t.rows), (0, t.dim)) for i, t in enumerate(TABLES)]
KEYS = EntryLayout(np.array([0, 0, 1, 2]), np.array([1, 21, 41, 42]))
COLUMNS = 42 + 130 + 1


class Plain:
    """The tables as whole arrays, every row there from the start, updated by the twins of the
    rules.
    """

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.rule = optimizer.rule
        self.weights = []
        self.states = []
        for table in TABLES:
            w = np.empty((table.rows, table.dim), np.float32)
            scale = np.float32(1 / np.sqrt(np.float64(table.rows)))
            uniform_rows(tensor_key(SEED, INIT, table.name), np.arange(table.rows), 0, scale, w)
            self.weights.append(w)
            start = {
                n: np.float32(optimizer.initial_accumulator_value * (n == self.rule.accumulator))
                for n in self.names
            }
            self.states.append(
                {
                    n: np.full((table.rows, 1 if n in self.rule.row_state else table.dim), start[n])
                    for n in self.names
                }
            )

    @property
    def names(self):
        return (*self.rule.element_state, *self.rule.row_state)

    def terms(self, lookups, layout=KEYS):
        """(entry, sample, rows, weights) of every bag."""
        for bag, (lo, hi) in enumerate(zip(lookups.offsets[:-1], lookups.offsets[1:])):
            rows = lookups.rows[lo:hi]
            weights = lookups.weights[lo:hi] if lookups.weights.size else None
            kept = rows >= 0
            yield (
                *divmod(bag, lookups.samples),
                rows[kept],
                None if weights is None else weights[kept],
            )

    def forward(self, lookups, out):
        for k, s, rows, weights in self.terms(lookups):
            vectors = self.weights[KEYS.shard[k]][rows]
            vectors = vectors if weights is None else vectors * weights[:, None]
            out[s, KEYS.column[k] : KEYS.column[k] + vectors.shape[1]] = [
                exact_sum(t) for t in vectors.T
            ]

    def backward(self, lookups, grad, step):
        collected = {}
        for k, s, rows, weights in self.terms(lookups):
            table = int(KEYS.shard[k])
            g = grad[s, KEYS.column[k] : KEYS.column[k] + TABLES[table].dim]
            if self.optimizer.max_gradient:
                g = np.clip(
                    g, *np.float32([-self.optimizer.max_gradient, self.optimizer.max_gradient])
                )
            for i, row in enumerate(rows.tolist()):
                collected.setdefault((table, row), []).append(
                    g if weights is None else g * weights[i]
                )
        hyper = self.optimizer.hyper(step)
        for (table, row), terms in collected.items():
            g = np.float32([exact_sum(t) for t in np.array(terms).T])
            w = self.weights[table][row]
            dim = TABLES[table].dim
            states = {n: s[row] for n, s in self.states[table].items()}
            element = self.rule.element_record(*(states[n] for n in self.rule.element_state))
            row_states = self.rule.row_record(*(states[n] for n in self.rule.row_state))
            rules.prepare(self.rule.name)(w, g, element, hyper)
            for phase, of, counts in self.optimizer.rounds:
                squares = [
                    square_tree({"g": g, "w": w}[x], 1 << (dim - 1).bit_length()) for x in of
                ]
                squares += [np.float32(len(terms))] * counts
                step_row = getattr(rules, phase)
                step_row(w, g, element, row_states, squares, np.float32(dim), hyper)

    def check(self, tbe):
        """Rows that exist in the TBE are equal; the others still have their initial values."""
        for i, shard in enumerate(tbe.shards):
            rows = slice(*shard.rows)
            cols = slice(*shard.cols)
            there = tbe.touched(i).astype(bool)
            assert set(tbe.state(i)) == {"weight", *self.names}
            assert_same(tbe.state(i)["weight"][there], self.weights[shard.table][rows, cols][there])
            for name, state in self.states[shard.table].items():
                expected = state[rows, cols] if name in self.rule.element_state else state[rows, 0]
                assert_same(tbe.state(i)[name][there], np.ascontiguousarray(expected)[there])
            missing = np.flatnonzero(~there)
            assert_same(
                tbe.initial(i, missing)["weight"], self.weights[shard.table][rows, cols][missing]
            )


def batch(rng, samples, weighted, fill="normal"):
    """Lookups of all keys, local to whole tables; the first batches leave most rows of table c
    alone.
    """
    offsets = bag_offsets(rng, 4 * samples, 5)
    heights = np.array([9, 9, 3, 40])[
        np.repeat(np.arange(4 * samples) // samples, np.diff(offsets))
    ]
    rows = (rng.random(heights.size) ** 3 * heights).astype(np.int64)
    rows[rng.random(rows.size) < 0.1] = -1
    weights = floats(rng, rows.size, "normal") if weighted else NONE
    return Lookups(offsets, rows, weights, samples), floats(rng, (samples, COLUMNS), fill)


def record(name, mode="none", **more):
    """Settings that let every part of a rule have an effect."""
    return SparseOptimizer(
        name,
        0.1,
        weight_decay=0.01,
        weight_decay_mode=mode,
        schedule=Schedule(3, 4, 2),
        counter_halflife=2,
        ar_alpha=0.5,
        weight_norm_coefficient=0.1,
        lower_bound=0.01,
        learning_rate_mode="tail_id_lr_increase",
        max_counter=5.0,
        **more,
    )


@pytest.mark.parametrize("name", covered(FUSED, CORE_RULES))
@pytest.mark.parametrize("mode", ["none", "l2", "decoupled"])
def test_training_equals_plain_arrays(name, mode):
    limits = {"max_norm": 0.5} if name == "partial_rowwise_lamb" else {}
    rng = np.random.default_rng(len(name))
    optimizer = record(
        name, mode, initial_accumulator_value=0.25, max_gradient=0.7 * (mode == "l2"), **limits
    )
    tbe = TableBatchedEmbedding(TABLES, WHOLE, optimizer, SEED)
    plain = Plain(optimizer)
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


@pytest.mark.parametrize("fill", FILLS)
def test_wild_gradients(fill):
    rng = np.random.default_rng(3)
    optimizer = record("exact_rowwise_adagrad")
    tbe = TableBatchedEmbedding(TABLES, WHOLE, optimizer, SEED)
    plain = Plain(optimizer)
    with np.errstate(all="ignore"):
        for step in (1, 2):
            lookups, grad = batch(rng, 4, True, fill)
            answer, expected = (np.full((4, COLUMNS), 7, np.float32) for _ in "ab")
            tbe.forward(KEYS, lookups, answer)
            plain.forward(lookups, expected)
            assert_same(answer, expected)
            tbe.backward(KEYS, lookups, grad, step)
            plain.backward(lookups, grad, step)
            plain.check(tbe)


def cut(lookups, shards, table, keys):
    """Layout and lookups of some shards of one table, from those of the whole tables."""
    samples = lookups.samples
    offsets = [0]
    rows = [np.empty(0, np.int64)]
    weights = [NONE]
    for shard in shards:
        for k in keys:
            for s in range(samples):
                lo, hi = lookups.offsets[k * samples + s : k * samples + s + 2]
                here = (lookups.rows[lo:hi] >= shard.rows[0]) & (
                    lookups.rows[lo:hi] < shard.rows[1]
                )
                rows.append(lookups.rows[lo:hi][here] - shard.rows[0])
                weights.append(lookups.weights[lo:hi][here] if lookups.weights.size else NONE)
                offsets.append(offsets[-1] + int(here.sum()))
    return Lookups(np.array(offsets), np.concatenate(rows), np.concatenate(weights), samples)


def split(table, rows=(), cols=()):
    spec = TABLES[table]
    row_cuts = [0, *rows, spec.rows]
    col_cuts = [0, *cols, spec.dim]
    return [
        Rectangle(table, r, c)
        for r in pairwise(row_cuts)
        for c in pairwise(col_cuts)
        if r[0] < r[1]
    ]


@pytest.mark.parametrize("fill", ["normal", "wild", "cancel", "special"])
def test_words_of_row_shards_add_up(fill):
    rng = np.random.default_rng(4)
    optimizer = record("exact_sgd")
    shards = split(0, rows=(2, 6))
    parts, whole = (TableBatchedEmbedding(TABLES, s, optimizer, SEED) for s in (shards, WHOLE))
    values = {"weight": floats(rng, (9, 20), fill)}
    whole.load_rows(0, np.arange(9), values)
    for i, shard in enumerate(shards):
        parts.load_rows(
            i,
            np.arange(shard.rows[1] - shard.rows[0]),
            {"weight": values["weight"][slice(*shard.rows)]},
        )
    with np.errstate(all="ignore"):
        for samples in (0, 1, 6):
            lookups, _ = batch(rng, samples, samples == 6)
            expected = np.full((samples, COLUMNS), 7, np.float32)
            answer = np.full((samples, 40), 7, np.float32)
            whole.forward(KEYS, lookups, expected)
            words = np.full((samples, 3 * 40), np.nan)
            layout = EntryLayout(np.repeat(np.arange(3), 2), np.arange(6) * 20)
            extras = parts.forward_words(layout, cut(lookups, shards, 0, (0, 1)), words)
            # group = feature
            key = extras.bag // max(1, samples) % 2 * samples + extras.bag % max(1, samples)
            order = np.argsort(key, kind="stable")
            pieces = [extras.words[extras.start[i] : extras.start[i + 1]] for i in order]
            first_words = rounding.WordParts(
                words=words.reshape(-1),
                first=np.array([0, 3, 6]),
                source=np.array([0, 40, 80, 20, 60, 100]),
                stride=np.full(6, 120),
                width=np.array([20, 20]),
                column=np.array([0, 20]),
            )
            further = rounding.FurtherWords(
                key=key[order],
                start=np.arange(order.size + 1) * 20,
                words=np.concatenate([*pieces, np.empty(0)]),
            )
            rounding.combine_words(first_words, further, answer)
            assert_same(answer, np.ascontiguousarray(expected[:, 1:41]))


@pytest.mark.parametrize("name", covered(PHASES, CORE_RULES))
@pytest.mark.parametrize("mode", ["l2", "decoupled"])
def test_column_shards_share_their_scalars(name, mode):
    rng = np.random.default_rng(6)
    optimizer = record(name, mode, max_norm=0.5 * (mode == "decoupled"))
    shards = split(2, cols=(4, 36, 100))
    parts = TableBatchedEmbedding(TABLES, shards, optimizer, SEED)
    plain = Plain(optimizer)
    layout = EntryLayout(np.arange(4), np.array([s.cols[0] for s in shards]))
    for step in (1, 2):
        lookups, grad = batch(rng, 5, True)
        shard_lookups = cut(lookups, shards, 2, (3,))
        gradient = np.ascontiguousarray(grad[:, 42:172])
        parts.forward(layout, shard_lookups, np.empty((5, 130), np.float32))
        merged = parts.merge(layout, shard_lookups, gradient, step)
        for number, phase in enumerate(parts.rounds):
            terms = {}
            for i in range(4):
                terms |= parts.row_terms(merged, i, phase.of)
            for i in range(4):
                parts.apply(merged, i, number, climb(terms, 0, 256), step)
        plain.backward(lookups, grad, step)
        plain.check(parts)


@pytest.mark.parametrize("fill", ["normal", "wild"])
@pytest.mark.parametrize("name", ["exact_rowwise_adagrad", "adam_with_cowclip"])
def test_replicas_apply_summed_words(name, fill):
    rng = np.random.default_rng(7)
    optimizer = record(name, "l2")
    tbe = TableBatchedEmbedding(TABLES, WHOLE, optimizer, SEED)
    plain = Plain(optimizer)
    with np.errstate(all="ignore"):
        for step in (1, 2):
            lookups, grad = batch(rng, 5, step == 2, fill)
            for i, (rows, words) in enumerate(tbe.merge_words(KEYS, lookups, grad)):
                unique, starts = np.unique(rows, return_index=True)
                merged = np.empty((unique.size, words.shape[1]), np.float32)
                rounding.sum_words(
                    words, np.arange(rows.size), np.append(starts, rows.size), merged
                )
                layout = EntryLayout(np.array([i]), np.zeros(1, np.int64))
                tbe.apply_tables(layout, [(unique, merged)], step)
            plain.backward(lookups, grad, step)
            plain.check(tbe)


@pytest.mark.parametrize("fill", ["normal", "special", "cancel"])
def test_unique_gradients(fill):
    rng = np.random.default_rng(8)
    optimizer = SparseOptimizer("none", max_gradient=0.5)
    tbe = TableBatchedEmbedding(TABLES, WHOLE, optimizer, SEED)
    with np.errstate(all="ignore"):
        for samples in (5, 0):
            lookups, grad = batch(rng, samples, weighted=True, fill=fill)
            expected = {}
            for k, s, rows, weights in Plain(optimizer).terms(lookups):
                h = int(KEYS.shard[k])
                g = np.clip(
                    grad[s, KEYS.column[k] : KEYS.column[k] + TABLES[h].dim],
                    np.float32(-0.5),
                    np.float32(0.5),
                )
                for row, weight in zip(rows.tolist(), weights):
                    expected.setdefault(h, {}).setdefault(row, []).append(g * weight)
            gradients = tbe.unique_gradient(KEYS, lookups, grad)
            assert list(gradients) == [0, 1, 2] and all(
                v.shape == (r.size, TABLES[h].dim) for h, (r, v) in gradients.items()
            )
            for h, rows in expected.items():
                assert gradients[h][0].tolist() == sorted(rows)
                assert_same(
                    gradients[h][1],
                    np.float32([[exact_sum(t) for t in np.array(rows[i]).T] for i in sorted(rows)]),
                )
    assert not any(tbe.touched(i).any() for i in range(3))  # nothing is read or written
    with pytest.raises(TrainingError, match="unique_gradient"):
        tbe.backward(KEYS, lookups, grad, 1)


def test_rows_can_be_loaded_and_are_not_made_again():
    tbe = TableBatchedEmbedding(TABLES, WHOLE, record("adam"), SEED)
    values = {"weight": np.full((2, 20), 3, np.float32), "exp_avg": np.ones((2, 20), np.float32)}
    tbe.load_rows(0, np.array([1, 8]), values)
    assert tbe.touched(0).tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 1]
    out = np.empty((1, COLUMNS), np.float32)
    tbe.forward(KEYS, Lookups(np.array([0, 2, 2, 2, 2]), np.array([1, 8]), NONE, 1), out)
    assert out[0, 1:21].tolist() == [6] * 20 and not out[0, 21:172].any()


def test_a_large_shard_of_which_many_rows_exist_is_made_whole():
    tables = [TableSpec("big", 5000, 4, ("f",)), TableSpec("small", 30, 4, ("g",))]
    shards = [Rectangle(0, (0, 5000), (0, 4)), Rectangle(1, (0, 30), (0, 4))]
    tbe = TableBatchedEmbedding(tables, shards, SparseOptimizer("exact_rowwise_adagrad"), SEED)
    layout = EntryLayout(np.array([0, 1]), np.array([0, 4]))
    out = np.empty((1, 8), np.float32)
    for seen, exist in ((1000, 1000), (1260, 5000)):
        rows = np.append(np.arange(seen), np.arange(20))
        tbe.forward(layout, Lookups(np.array([0, seen, seen + 20]), rows, NONE, 1), out)
        assert (int(tbe.touched(0).sum()), int(tbe.touched(1).sum())) == (exist, 20)
    for name, values in tbe.initial(0, np.arange(5000)).items():
        assert_same(tbe.state(0)[name], values)
    tbe.backward(
        layout,
        Lookups(np.array([0, 1, 1]), np.array([4999]), NONE, 1),
        np.ones((1, 8), np.float32),
        1,
    )
    # trained rows stay as they are
    tbe.forward(layout, Lookups(np.array([0, 1, 1]), np.array([4999]), NONE, 1), out)
    assert (out[0, :4] != tbe.initial(0, np.array([4999]))["weight"][0]).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_lines_of_gradients_that_lie_a_power_of_two_apart_are_packed(weighted, monkeypatch):
    packed = []
    monkeypatch.setattr(
        update, "pack", lambda *arguments, pack=update.pack: packed.append(pack(*arguments))
    )
    rng = np.random.default_rng(9)
    tbes = [TableBatchedEmbedding(TABLES, WHOLE, record("adam"), SEED) for _ in "ab"]
    offsets = np.arange(4 * 3 + 1) * 6
    rows = np.concatenate([rng.integers(-1, TABLES[t].rows, 18) for t in (0, 0, 1, 2)])
    weights = floats(rng, rows.size, "normal") if weighted else NONE
    grad = floats(rng, 3 * 513, "wild").reshape(3, 513)
    for tbe, columns in zip(tbes, (512, 513)):
        lookups = Lookups(offsets, rows, weights, 3)
        tbe.forward(KEYS, lookups, np.empty((3, COLUMNS), np.float32))
        tbe.backward(KEYS, lookups, np.ascontiguousarray(grad[:, :columns]), 1)
    assert len(packed) == 1
    for table in range(len(TABLES)):
        for name, values in tbes[0].state(table).items():
            assert_same(values, tbes[1].state(table)[name])


def test_tables_must_fit_their_budget():
    with pytest.raises(TrainingError, match="memory budget is 1000"):
        TableBatchedEmbedding(TABLES, WHOLE, record("adam"), SEED, budget=1000)


@pytest.mark.parametrize("form", SCALED)
def test_rows_with_scales_need_a_cache(form):
    tables = [TableSpec("a", 10, 4, ("f",), format=form)]
    with pytest.raises(ConfigError, match=f"table 'a': {form} rows train below a cache"):
        TableBatchedEmbedding(tables, WHOLE[:1], record("adam"), SEED)


def test_keys_of_a_feature_that_looks_up_two_tables():
    tables = (TableSpec("a", 2, 4, ("f", "g")), TableSpec("b", 2, 4, ("f",)))
    assert [bag.key for bag in bags(tables)] == ["f@a", "g", "f@b"] and [
        bag.table for bag in bags(tables)
    ] == [0, 0, 1]
