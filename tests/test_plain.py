"""Do the plain siblings give the bits of the tuned kernels and of the twins, alone and in runs?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.rules import RULES
from neocpu.kernels.compile import choice
from neocpu.kernels.compile.jit import kernel
from neocpu.kernels.dense import gemm, interaction
from neocpu.kernels.operands import Lines
from neocpu.kernels.plain.dense import gemm as plain_gemm
from neocpu.kernels.plain.dense import interaction as plain_interaction
from neocpu.kernels.plain.numbers import exact
from neocpu.kernels.plain.rows import lookup as plain_lookup
from neocpu.kernels.plain.rows import update as plain_update
from neocpu.kernels.rows import lookup, update
from neocpu.kernels.twins.dense import gemm as gemm_twin
from neocpu.kernels.twins.dense import interaction as interaction_twin
from neocpu.kernels.twins.numbers.exact import exact_sum
from neocpu.kernels.twins.rows import lookup as lookup_twin
from neocpu.tables.tiers.cache import Cache
from neocpu.train.run.trainer import Trainer
from tests import test_lookup, test_update
from tests.cases import FILLS, assert_same, floats
from tests.small_run import config_of
from tests.workers import covered

SEEDS = st.integers(0, 2**32)


@pytest.fixture
def plain(monkeypatch):
    """Chooses the plain kernels."""
    monkeypatch.setenv(choice.VARIABLE, "plain")


@kernel
def sum_in_limbs(values):
    limbs = np.zeros(exact.LIMBS, np.int64)
    words = values.view(np.uint32)
    for i in range(values.size):
        exact.add_term(limbs, words[i])
    return exact.round_limbs(limbs)


@given(seed=SEEDS, fill=st.sampled_from([f for f in FILLS if f != "special"]))
def test_sums_in_limbs_are_exact_and_rounded_once(seed, fill):
    rng = np.random.default_rng(seed)
    values = floats(rng, int(rng.integers(0, 200)), fill)
    total = np.float32(sum_in_limbs(values))
    with np.errstate(over="ignore"):
        assert_same(np.array([total]), np.array([np.float32(exact_sum(values.tolist()))]))


@given(seed=SEEDS, fill=st.sampled_from(FILLS), mean=st.booleans(), weighted=st.booleans())
@pytest.mark.parametrize("form", ["fp32", "nbit4"])
def test_lookups(form, seed, fill, mean, weighted):
    table, entries, bags, counts = test_lookup.case(seed, form, fill, weighted)
    sizes = counts * entries.width
    lines = Lines(np.cumsum(sizes) - sizes, entries.width)
    results = []
    for module in (lookup_twin, plain_lookup, lookup):
        out = np.full(int(sizes.sum()), 7, np.float32)
        with np.errstate(all="ignore"):
            module.pooled_rows(table, entries, bags, mean, lines, out)
        results.append(out)
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


@given(seed=SEEDS, fill=st.sampled_from(FILLS), leaves=st.sampled_from([1, 2, 8]))
def test_products(seed, fill, leaves):
    rng = np.random.default_rng(seed)
    b, k, n = rng.integers(0, 40, 3)
    x, w, bias, g = (floats(rng, shape, fill) for shape in ((b, k), (n, k), int(n), (b, n)))
    gate = np.where(rng.random((b, k)) < 0.5, x, np.float32(-1))
    cuts = np.arange(leaves + 1) * b // leaves
    calls = {
        "layer": ((x, w, bias, bool(seed % 2)), [(b, n)]),
        "input_gradient": ((g, w, gate), [(b, k)]),
        "weight_gradient": ((g, x, cuts), [(n, k), (n,)]),
    }
    for name, (arguments, shapes) in calls.items():
        results = []
        for module in (gemm_twin, plain_gemm, gemm):
            out = [np.full(shape, 7, np.float32) for shape in shapes]
            with np.errstate(all="ignore"):
                getattr(module, name)(*arguments, *out)
            results.append(out)
        for result in results[1:]:
            for answer, expected in zip(result, results[0]):
                assert_same(answer, expected)


@given(seed=SEEDS, diagonal=st.booleans())
def test_interactions(seed, diagonal):
    rng = np.random.default_rng(seed)
    b, count, dim = rng.integers(1, 20, 3)
    e = floats(rng, (b, count * dim), "normal")
    width = dim + (count * (count + 1) if diagonal else count * (count - 1)) // 2
    g = floats(rng, (b, width), "normal")
    results = []
    for module in (interaction_twin, plain_interaction, interaction):
        z = np.full((b, width), 7, np.float32)
        de = np.full_like(e, 7)
        module.dot_forward(e, int(dim), diagonal, z)
        module.dot_backward(e, g, int(dim), diagonal, de)
        results.append((z, de))
    for z, de in results[1:]:
        assert_same(z, results[0][0])
        assert_same(de, results[0][1])


@pytest.mark.parametrize(
    ("name", "limited"),
    [
        ("exact_rowwise_adagrad", False),
        ("partial_rowwise_lamb", True),
        ("adam", False),
        ("adam_with_cowclip", False),
    ],
)
@given(seed=SEEDS, fill=st.sampled_from(FILLS), weighted=st.booleans())
def test_updates(name, limited, seed, fill, weighted):
    rng = np.random.default_rng(seed)
    rule = RULES[name]
    heights = rng.integers(1, 9, 2)
    width = rng.choice(test_update.WIDTHS, 2)
    segments, gradient = test_update.segments_of(rng, heights, width, 5, weighted, fill)
    store, row_state, places = test_update.tables_of(rng, rule, heights, width, "normal")
    hyper = test_update.hyper_of(name, "l2", limited)
    results = []
    for module in (update, plain_update):
        rows = test_update.copy_of(store)
        states = row_state.copy()
        fused = module.fused(rule, limited)
        fused(rows.table, rows.states, states, places, segments, gradient, hyper)
        results.append((rows, states))
    test_update.assert_same_rows(results[1][0], results[0][0])
    assert_same(results[1][1], results[0][1])


@pytest.mark.parametrize("policy", covered(("lru", "lfu"), always=("lru",)))
def test_caches_decide_alike(policy, monkeypatch):
    rng = np.random.default_rng(7)
    batches = [np.unique(rng.zipf(1.3, 300) % 500) for _ in range(12)]
    decisions = []
    for family in choice.FAMILIES:
        monkeypatch.setenv(choice.VARIABLE, family)
        cache = Cache(4, policy)
        moves = []
        for ids in batches:
            step = cache.prefetch(ids, np.ones(ids.size, np.int64))
            moves.append([step.lines, step.evicted_rows, step.filled_rows, cache.locate(ids)])
            cache.release(step.lines)
        decisions.append((moves, cache.stats()))
    for tuned_step, plain_step in zip(decisions[0][0], decisions[1][0], strict=True):
        for tuned_array, plain_array in zip(tuned_step, plain_step):
            np.testing.assert_array_equal(tuned_array, plain_array)
    assert decisions[0][1] == decisions[1][1]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ('tables.one.format="fp16"', 'tables.one.rounding="stochastic"'),
        ('memory.placement="hbm_over_ddr"', "memory.hbm=4096"),
    ],
    ids=["fp32", "fp16", "cached"],
)
def test_a_run_ends_with_the_same_digest(overrides, log, tmp_path, monkeypatch):
    digests = set()
    for family in choice.FAMILIES:
        monkeypatch.setenv(choice.VARIABLE, family)
        run = Trainer(config_of(log, *overrides), None, tmp_path / family).run()
        digests.add(run["digest"])
    assert len(digests) == 1


def test_only_kernels_with_a_sibling_are_exchanged(plain):
    assert choice.chosen("dense.gemm", "layer") is plain_gemm.layer
    assert choice.chosen("rows.update", "merged") is update.merged
    for module, names in choice.PLAIN.items():
        for name in names:
            assert choice.chosen(module, name).__module__ == f"neocpu.kernels.plain.{module}"


def test_an_unknown_family_is_named(monkeypatch):
    monkeypatch.setenv(choice.VARIABLE, "fancy")
    with pytest.raises(ValueError, match="NEOCPU_KERNELS=fancy: choose one of tuned, plain"):
        choice.family()
