"""Do the learned planners learn, place within memory, and price what they say?

Networks here are small and trained for fractions of a second on a preset's rates.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from neocpu.cli.calibrate import calibrate
from neocpu.core.errors import ConfigError, PlanError
from neocpu.parallel.sharding.plan import PlanSpec
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import StepSeconds
from neocpu.plan.learned import episodes, greedy_grid, neuroshard, plans, reuse, store
from neocpu.plan.learned.cost_nets import CommNet, ComputeNet
from neocpu.plan.learned.costs import LearnedCosts, TablePart
from neocpu.plan.learned.features import FEATURES, Scaling
from neocpu.plan.learned.greedy_grid import Cutting
from neocpu.plan.learned.learn import Training, learn, simulated
from neocpu.plan.learned.nets import Array
from neocpu.plan.learned.samples import (
    Pool,
    Ranges,
    draw_pool,
)
from neocpu.plan.machines.machine_file import load
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.pricing import answer_of_plan
from neocpu.plan.search.search import plan_tables
from neocpu.plan.tiers.placements import Capacity
from tests import recorded

MACHINE = load("zionex")
BATCH = 8192
RANGES = Ranges(rows=(10.0, 1e6), dims=(16, 32, 64))


@pytest.fixture(scope="module")
def networks() -> store.Networks:
    measured = simulated(MACHINE, BATCH, ranks=(2, 3), sets=1500)
    return learn(MACHINE, measured, Training(80, episodes.Lesson(updates=20)))


def task(networks: store.Networks, tables: int, ranks: int, seed: int = 0) -> LearnedCosts:
    pool: Pool = draw_pool(tables, BATCH, np.random.default_rng(seed), RANGES)
    layout = Layout(ranks, ranks)
    model = StepSeconds(MACHINE, pool.tables, pool.work, layout)
    return LearnedCosts(networks, pool.tables, pool.work, layout, model)


def slope_errors(loss, parameters: list[Array], slopes: list[Array]) -> Iterator[float]:
    """Relative errors of gradients against differences, at a few places of each parameter."""
    rng = np.random.default_rng(1)
    for parameter, slope in zip(parameters, slopes, strict=True):
        for place in rng.integers(0, parameter.size, 4).tolist():
            flat = parameter.reshape(-1)
            value = flat[place]
            sides = []
            for step in (1e-6, -1e-6):
                flat[place] = value + step
                sides.append(loss())
            flat[place] = value
            difference = (sides[0] - sides[1]) / 2e-6
            yield abs(difference - slope.reshape(-1)[place]) / (abs(difference) + 1e-3)


def test_gradients_are_those_of_the_losses() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((9, FEATURES))
    starts = np.array([0, 2, 3])
    targets = np.array([1.0, 2.0, 3.0])
    scaling = Scaling(np.zeros(FEATURES), np.ones(FEATURES))
    compute = ComputeNet(rng, scaling, 1.0)
    _, slopes = compute.loss(inputs, starts, targets)
    errors = slope_errors(
        lambda: compute.loss(inputs, starts, targets)[0], compute.parameters, slopes
    )
    assert max(errors) < 1e-4
    comm = CommNet(3, True, rng, 1.0)
    sums = rng.standard_normal((5, 6))
    seconds = rng.random((5, 3))
    _, slopes = comm.loss(sums, seconds)
    errors = slope_errors(lambda: comm.loss(sums, seconds)[0], comm.parameters, slopes)
    assert max(errors) < 1e-4


def test_gradients_of_the_policy_are_those_of_its_loss(networks: store.Networks) -> None:
    game = episodes.Game(task(networks, 6, 3), np.inf)
    policy = episodes.PlacementPolicy(np.random.default_rng(0))
    played = game.play(policy, 2, np.random.default_rng(1))
    played.legal[0, 2, 0] = played.ranks[0, 2] == 0
    advantage = np.array([0.7, -0.4])
    _, slopes = episodes.surrogate(policy, game, played, advantage)
    errors = slope_errors(
        lambda: episodes.surrogate(policy, game, played, advantage)[0], policy.parameters, slopes
    )
    assert max(errors) < 1e-4


def test_a_set_costs_the_same_in_any_order(networks: store.Networks) -> None:
    net = networks.compute
    features = task(networks, 9, 2).features
    one = net.seconds(features, np.zeros(9, np.int64), 2)
    shuffled = net.seconds(features[::-1], np.zeros(9, np.int64), 2)
    np.testing.assert_allclose(one, shuffled, rtol=1e-5)
    assert one[1] == 0.0
    doubled = copy.copy(net)
    doubled.unit = 2 * net.unit
    np.testing.assert_array_equal(doubled.seconds(features, np.zeros(9, np.int64), 2), 2 * one)


def test_reuse_by_law_is_that_of_uniform_lookups() -> None:
    rows = np.random.default_rng(0).integers(0, 3000, 12_000)
    distinct = np.array([float(np.unique(rows).size)])
    by_law = reuse.histograms(np.array([12_000.0]), distinct)[0]
    np.testing.assert_allclose(by_law, reuse.histogram(rows), atol=0.02)
    assert by_law.sum() == pytest.approx(1)
    often = reuse.histograms(np.array([1e9]), np.array([10.0]))[0]
    assert often[-1] == 1


def test_the_beam_that_keeps_all_is_exhaustive(networks: store.Networks) -> None:
    costs = task(networks, 3, 2)
    wide = neuroshard.Beam(width=10**6, steps=3, candidates=99, effort=1e12)
    cuttings = {Cutting((0, 1, 2))}
    newest = cuttings
    for _ in range(wide.steps):
        newest = {near for each in newest for near in neuroshard.neighbours(costs, each, wide)}
        cuttings |= newest
    best = min(placed.seconds for placed in greedy_grid.grid(costs, sorted_by(cuttings), np.inf))
    assert neuroshard.search(costs, np.inf, wide).seconds == pytest.approx(best)
    assert len(cuttings) > 30


def sorted_by(cuttings: set[Cutting]) -> list[Cutting]:
    return sorted(cuttings, key=lambda cutting: (cutting.free, cutting.everywhere))


@pytest.mark.parametrize(("tables", "ranks", "seed"), [(8, 2, 0), (6, 3, 1), (8, 3, 2)])
def test_plans_are_close_to_the_best_of_all(
    networks: store.Networks, tables: int, ranks: int, seed: int
) -> None:
    """Within 5 % of the cheapest of all placements of whole tables, under the same costs."""
    costs = task(networks, tables, ranks, seed)
    places = np.array(list(itertools.product(range(ranks), repeat=tables)))
    onto = (places[:, :, None] == np.arange(ranks)).astype(np.float64)
    hidden = np.einsum("ptr,th->prh", onto, costs.hidden[:tables].astype(np.float64))
    facts = np.einsum("ptr,tf->fpr", onto, costs.facts[:tables])
    every = costs.seconds(greedy_grid.Loads(hidden.astype(np.float32), *facts))
    whole = neuroshard.Beam(everywhere=False)
    found = neuroshard.improved(costs, neuroshard.search(costs, np.inf, whole), np.inf)
    assert found.seconds <= 1.05 * every.min()
    played = episodes.place(networks.policy, costs, np.inf)
    tried = episodes.place(networks.policy, costs, np.inf, tries=64)
    taught = neuroshard.improved(costs, tried, np.inf)
    assert taught.seconds <= 1.05 * every.min()
    replayed = costs.seconds(costs.loads(played.cutting.free, played.ranks))
    assert played.seconds == pytest.approx(float(replayed), rel=1e-4)


def test_no_rank_gets_more_than_it_holds(networks: store.Networks) -> None:
    costs = task(networks, 30, 3, seed=5)
    sizes = costs.facts[:30, 0]
    capacity = max(1.1 * sizes.sum() / 3, 1.05 * sizes.max())
    for placed in (
        neuroshard.search(costs, capacity),
        neuroshard.improved(costs, neuroshard.search(costs, capacity), capacity),
        episodes.place(networks.policy, costs, capacity),
    ):
        assert np.isfinite(placed.seconds)
        loads = costs.loads(placed.cutting.free, placed.ranks, placed.cutting.everywhere)
        assert loads.size.max() <= capacity
    none = neuroshard.Beam(everywhere=False, steps=0)
    assert neuroshard.search(costs, sizes.max() / 2, none).seconds == np.inf


@pytest.mark.parametrize("planner", [plans.neuroshard_plan, plans.autoshard_plan])
@pytest.mark.parametrize("spec", ["auto", {"t0": "row_wise", "t1": "data_parallel"}])
def test_a_planner_is_never_worse_than_the_search_or_its_own_plan(
    networks: store.Networks, planner: Callable[..., Answer], spec: PlanSpec
) -> None:
    costs = task(networks, 24, 3, seed=6)
    arguments = costs.tables, spec, costs.layout, costs.model, costs.work
    sizes = costs.facts[:24, 0]
    capacity = Capacity(hbm=int(max(1.2 * sizes.sum() / 3, 1.6 * sizes.max())))
    answer = planner(*arguments, capacity, networks=networks)
    assert answer.plan == planner(*arguments, capacity, networks=networks).plan
    assert (answer.memory[:, 0] <= capacity.hbm).all()
    priced = answer_of_plan(answer.plan, *arguments[2:], capacity)
    assert priced.seconds == pytest.approx(answer.seconds)
    assert answer.seconds <= plan_tables(*arguments, capacity).seconds * (1 + 1e-12)
    given = plans.task_of("x", *arguments, capacity, networks)
    own = plans.PROPOSALS["neuroshard"](given)
    alone = answer_of_plan(plans.plan_of(given.costs, own), *arguments[2:], capacity)
    if planner is plans.neuroshard_plan:
        assert answer.seconds <= alone.seconds * (1 + 1e-12)
    if spec != "auto":
        assert answer.plan.schemes[:2] == ("row_wise", "data_parallel")
    with pytest.raises(PlanError, match="grid_shard"):
        planner(costs.tables, "grid_shard", *arguments[2:], capacity, networks=networks)


def test_networks_learn_what_was_recorded() -> None:
    """Few steps: the rounding of one processor is not yet another weight."""
    measured = simulated(MACHINE, BATCH, ranks=(2,), sets=300)
    brief = learn(MACHINE, measured, Training(8, episodes.Lesson(updates=2)))
    samples = [measured.compute.features, measured.compute.seconds]
    for exchanges in measured.comm[2]:
        samples += [exchanges.inputs, exchanges.seconds]
    assert brief.policy is not None
    trained = (brief.compute, *brief.comm[2], brief.policy)
    # of biases some have no slope but rounding's
    weights = [array for net in trained for array in net.parameters if array.ndim == 2]
    costs = task(brief, 12, 2)
    prices = [costs.features, costs.hidden, costs.facts, costs.single]
    searched = neuroshard.search(costs, np.inf)
    for placed in (searched, neuroshard.improved(costs, searched, np.inf)):
        prices.append(np.array([placed.seconds]))
    entries = [(str(array.shape), recorded.summary(array)) for array in samples + weights + prices]
    recorded.check("learned networks", entries)


def test_column_blocks_on_one_rank_become_one(networks: store.Networks) -> None:
    costs = task(networks, 2, 3)
    width = costs.tables[0].dim // 4
    quarter = costs.numbers([TablePart(0, "table_wise", width)])[0]
    cutting = Cutting((quarter, quarter, quarter, quarter, 1))
    plan = plans.plan_of(costs, greedy_grid.PlacedParts(cutting, np.array([2, 0, 2, 0, 1]), 1.0))
    assert [(shard.cols, shard.rank) for shard in plan.of_table(0)] == [
        ((0, 2 * width), 0),
        ((2 * width, 4 * width), 2),
    ]
    assert plan.schemes == ("column_wise", "table_wise")


def test_stored_networks_answer_alike(networks: store.Networks, tmp_path: Path) -> None:
    path = tmp_path / "nets.npz"
    path.write_bytes(store.pack(networks))
    stored = store.load(path)
    first = neuroshard.search(task(networks, 12, 3), np.inf)
    second = neuroshard.search(task(stored, 12, 3), np.inf)
    assert first.seconds == second.seconds
    assert first.ranks.tolist() == second.ranks.tolist()
    assert stored.facts["origin"] == networks.facts["origin"]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="not a file of learned networks"):
        store.load(path)
    with pytest.raises(ConfigError, match="calibrate --learned --machine zionex"):
        store.load(tmp_path / "none.npz", "zionex")


def test_the_command_trains_for_a_machine_that_is_only_described(tmp_path: Path) -> None:
    path = tmp_path / "nets.npz"
    command = ["--learned", "--machine", "zionex", "--quick", "--out", str(path)]
    result = CliRunner().invoke(calibrate, command)
    assert result.exit_code == 0, result.output
    assert "nothing was measured" in result.output
    networks = store.load(path)
    assert networks.machine == "zionex"
    assert set(networks.comm) == {2, 4, 8}
    assert networks.facts["policy"]["cost_by_random"] < 1
    assert CliRunner().invoke(calibrate, command).exit_code == 2
    assert CliRunner().invoke(calibrate, ["--machine", "zionex"]).exit_code == 2
