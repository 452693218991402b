"""Does a search choose among the models that it says, learn right gradients, and end anywhere with
the same bits and a config that trains?
"""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neocpu.core.errors import ConfigError
from neocpu.core.trees import leaf_cuts
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.kernels.twins.dense import model as twin
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.model.arrays import NodeGradient
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.run.scoring import restore
from neocpu.train.run.trainer import Trainer
from neocpu.train.search.cost import (
    CostInputs,
    ModelCost,
    cost_of,
    flops,
    hard,
    parameters,
    seconds,
)
from neocpu.train.search.draws import gumbel, sample, theta_gradient
from neocpu.train.search.results import HISTORY, keep_history, write_lines
from neocpu.train.search.space import MOST_TEMPERATURE, Space, plain_config, space_of
from neocpu.train.search.supernet import Supernet
from neocpu.train.search.trainer import SearchTrainer
from tests.jobs import invoke
from tests.small_run import CONFIG, write_log

SEARCH = """
[search]
bottom = [[3, 6], [2, 4]]
top = [[2, 3, 5]]
dims = { "*" = [2, 4] }
rows = { one = [10, 50] }
every = 1
warmup_steps = 2
decay_steps = 4
"""
DOT = """
[search]
bottom = [[3, 6], [4]]
top = [[2, 3, 5]]
dims = { many = [2, 4] }
rows = { one = [10, 50] }
"""
DENSE = 3
B = 24
F64 = np.float64


def config_of(search: str = SEARCH, *overrides: str) -> Config:
    kind = "dot" if search is DOT else "cat"
    return configs.loads(CONFIG + search, overrides=[f"model.interaction={kind}", *overrides])


def supernet(config: Config, seed: int = 3) -> tuple[Space, Supernet]:
    space = space_of(config)
    layout = plain_config(config, space, space.largest).layout(DENSE)
    return space, Supernet(space, layout, seed)


def example(net: Supernet) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    x = random.standard_normal((B, DENSE), dtype=np.float32)
    pooled = random.standard_normal((B, net.columns - net.first_column), dtype=np.float32)
    return x, pooled, random.integers(0, 2, B).astype(np.float32)


def logits(net: Dlrm, x: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    E = np.empty((len(x), net.columns), np.float32)
    net.forward_bottom(x, E)
    E[:, net.first_column :] = pooled
    return net.forward_top(E).copy()


def all_choices(space: Space) -> list[dict[str, int]]:
    names = [decision.name for decision in space.decisions]
    products = itertools.product(*(decision.choices for decision in space.decisions))
    return [dict(zip(names, numbers)) for numbers in products]


# ---- the supernet and its models ----


def small_net(space: Space, net: Supernet, config: Config, choice: dict[str, int]) -> Dlrm:
    """A model of its own with the weights that a choice leaves of the supernet."""
    small = plain_config(config, space, choice)
    dims = [table.dim for table in small.tables]
    model = small.model
    dlrm = Dlrm(small.layout(DENSE))
    for name, weight in dlrm.parameters.items():
        if name.startswith("kinds."):  # narrow vectors stand beside zeros
            weight[:] = np.eye(*weight.shape)
    kept = np.arange(DENSE)
    for name, widths in (("bottom", model.bottom), ("top", model.top)):
        if name == "top":
            kept = top_inputs(space, net, model.bottom[-1], dims)
        for layer, width in enumerate(widths):
            part = f"{name}.{layer}"
            weight = net.parameters[f"{part}.weight"]
            dlrm.parameters[f"{part}.weight"][:] = weight[:width, kept]
            dlrm.parameters[f"{part}.bias"][:] = net.parameters[f"{part}.bias"][:width]
            kept = np.arange(width)
    return dlrm


def top_inputs(space: Space, net: Supernet, bottom: int, dims: list[int]) -> np.ndarray:
    """Columns of the supernet's interaction that a small model has."""
    if net.layout.interaction == "dot":
        return np.arange(net.layout.interaction_width)
    kept = [np.arange(bottom)]
    column = net.first_column
    for table, dim in zip(space.tables, dims):
        kept.append(np.arange(column, column + dim))
        column += table.dim.largest
    return np.concatenate(kept)


def small_pooled(space: Space, pooled: np.ndarray, choice: dict[str, int]) -> np.ndarray:
    """The pooled vectors that a small model sees of those of all tables."""
    parts = []
    column = 0
    for table in space.tables:
        rows = choice.get(table.rows.name, table.rows.largest)
        dim = choice.get(table.dim.name, table.dim.largest)
        for number in table.rows.choices:
            if number == rows:
                parts.append(pooled[:, column : column + dim])
            column += table.dim.largest
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("search", [SEARCH, DOT])
def test_a_hard_mask_is_the_small_model_to_the_bit(search: str) -> None:
    config = config_of(search)
    space, net = supernet(config)
    x, pooled, _ = example(net)
    assert len(all_choices(space)) == space.models
    for choice in all_choices(space):
        net.choose(hard(choice, space))
        masked = logits(net, x, pooled)
        dlrm = small_net(space, net, config, choice)
        alone = logits(dlrm, x, small_pooled(space, pooled, choice))
        assert masked.tobytes() == alone.tobytes(), choice


def test_a_cold_sample_is_one_model() -> None:
    space, net = supernet(config_of())
    x, pooled, _ = example(net)
    random = np.random.default_rng(4)
    for theta in net.theta.values():
        theta[:] = random.standard_normal(theta.size)
    for draw in range(3):
        noise = {name: gumbel(7, name, t.size, draw) for name, t in net.theta.items()}
        cold = {name: sample(t, noise[name], 1e-4) for name, t in net.theta.items()}
        choice = {
            decision.name: decision.choices[
                int((net.theta[decision.name] + noise[decision.name]).argmax())
            ]
            for decision in space.decisions
        }
        net.choose(cold)
        sampled = logits(net, x, pooled)
        net.choose(hard(choice, space))
        assert sampled.tobytes() == logits(net, x, pooled).tobytes()


# ---- gradients ----


def wide_logits(
    net: Supernet, m: dict[str, np.ndarray], x: np.ndarray, pooled: np.ndarray
) -> np.ndarray:
    """The formula of the supernet in fp64, from the definitions of masks and mixtures."""
    weights = {name: value.astype(F64) for name, value in net.parameters.items()}
    mask = {
        decision.name: sum(
            share * (np.arange(decision.largest) < width)
            for share, width in zip(m[decision.name], decision.choices)
        )
        for decision in net.space.decisions
        if not decision.name.endswith(".rows")
    }

    def mlp(name: str, y: np.ndarray, layers: int, last_relu: bool) -> np.ndarray:
        for layer in range(layers):
            y = y @ weights[f"{name}.{layer}.weight"].T + weights[f"{name}.{layer}.bias"]
            if last_relu or layer < layers - 1:
                y = np.maximum(y, 0)
            y = y * mask.get(f"{name}.{layer}", 1.0)
        return y

    vectors = [mlp("bottom", x.astype(F64), len(net.layout.bottom), True)]
    column = 0
    for table in net.space.tables:
        dim = table.dim.largest
        shares = m.get(table.rows.name, np.ones(1))
        mixed = np.zeros((len(x), dim))
        for share in shares:
            mixed += share * pooled[:, column : column + dim].astype(F64)
            column += dim
        vectors.append(mixed * mask.get(table.dim.name, 1.0))
    z = np.concatenate(vectors, axis=1)
    if net.layout.interaction == "dot":
        pairs = [
            (vectors[i] * vectors[j]).sum(axis=1) for i in range(len(vectors)) for j in range(i)
        ]
        z = np.concatenate([vectors[0], np.stack(pairs, axis=1)], axis=1)
    return mlp("top", z, len(net.layout.top), False).reshape(-1)


@pytest.mark.parametrize("search", [SEARCH, DOT])
def test_gradients_of_theta_match_finite_differences(search: str) -> None:
    config = config_of(search)
    space, net = supernet(config)
    x, pooled, labels = example(net)
    cost = parameters(space, CostInputs(config, DENSE))
    temperature = 0.7
    theta = {name: np.linspace(-1, 1, t.size).astype(np.float32) for name, t in net.theta.items()}
    noise = {name: gumbel(5, name, t.size, 1) for name, t in theta.items()}
    scale = 1e-3

    def mixtures(theta: dict[str, Any]) -> dict[str, np.ndarray]:
        return {name: sample(t, noise[name], temperature) for name, t in theta.items()}

    def loss(theta: dict[str, Any]) -> float:
        m = mixtures(theta)
        entropy = twin.mean_loss(wide_logits(net, m, x, pooled), labels.astype(F64), "bce")
        return float(entropy) + scale * cost.expected(m)

    m = mixtures(theta)
    net.choose(m, learn=True)
    np.testing.assert_allclose(
        logits(net, x, pooled), wide_logits(net, m, x, pooled), rtol=1e-4, atol=1e-5
    )
    net.loss_gradient(labels, B)
    net.backward()
    sums = np.empty(net.sums, np.float32)
    net.write_sums(NodeGradient(np.array(leaf_cuts(B, 16)), net.sums_layout(sums)))
    of_cost = cost.gradients(m)
    for name, gradient in net.gradients(sums).items():
        computed = theta_gradient(m[name], gradient + scale * of_cost[name], temperature)
        for k in range(theta[name].size):
            slopes = []
            for shift in (1e-5, -1e-5):
                moved = {**theta, name: theta[name].astype(F64)}
                moved[name][k] += shift
                slopes.append(loss(moved))
            slope = (slopes[0] - slopes[1]) / 2e-5
            assert computed[k] == pytest.approx(slope, rel=2e-3, abs=2e-6), (name, k)


# ---- cost ----


@pytest.mark.parametrize("search", [SEARCH, DOT])
def test_the_expected_cost_is_that_of_all_models(search: str) -> None:
    config = config_of(search)
    space = space_of(config)
    inputs = CostInputs(config, DENSE, {"one": 1.0, "many": 1.5})
    random = np.random.default_rng(2)
    shares = {d.name: random.dirichlet(np.ones(len(d.choices))) for d in space.decisions}

    def weight(choice: dict[str, int]) -> float:
        return float(
            np.prod([shares[d.name][d.choices.index(choice[d.name])] for d in space.decisions])
        )

    def ask(choice: Any) -> float:
        return 1.0 + 0.1 * sum(choice.values())

    costs: list[ModelCost] = [parameters(space, inputs), flops(space, inputs), seconds(space, ask)]
    for cost in costs:
        mean = sum(weight(choice) * cost.of(choice, space) for choice in all_choices(space))
        assert cost.expected(shares) == pytest.approx(mean, rel=1e-12)
        for name, gradient in cost.gradients(shares).items():
            # the cost is linear in each mixture
            assert cost.expected(shares) - cost.expected(
                {**shares, name: 0 * shares[name]}
            ) == pytest.approx(float(gradient @ shares[name]), rel=1e-9)
    for choice in all_choices(space):
        small = plain_config(config, space, choice)
        rows = sum(table.rows * table.dim for table in small.tables)
        layout = small.layout(DENSE)
        assert costs[0].of(choice, space) == layout.parameters + rows
    planned = cost_of("seconds", space, inputs, SingleComm())
    largest = planned.of(space.largest, space)
    smallest = planned.of({d.name: d.choices[0] for d in space.decisions}, space)
    assert 0 < smallest < largest


# ---- runs ----


def run_config(log: Path, *overrides: str) -> Config:
    sets = (f'data.train="{log}"', f'data.test="{log}"', "training.batch_size=32")
    return config_of(SEARCH, *sets, "training.epochs=3", *overrides)


def search(config: Config, out: Path, ranks: int = 1, resume: bool = False) -> dict[str, Any]:
    return run_threads(ranks, lambda comm: SearchTrainer(config, comm, out, resume=resume).run())[0]


def test_a_search_has_one_digest_and_goes_on(log: Path, tmp_path: Path) -> None:
    cost = "search.cost=seconds"  # the planner is asked about other ranks than those of the run
    whole = search(run_config(log, cost), tmp_path / "whole")
    sets = ("parallel.plan=row_wise", "training.pipeline=off", "parallel.unique_rows=on")
    assert search(run_config(log, cost, *sets), tmp_path / "3", 3)["digest"] == whole["digest"]
    # a kill after step 5, and on other ranks from there
    parts = run_config(log, cost, "checkpoint.every_steps=5", "parallel.plan=column_wise")
    killed = KilledSearch(parts, SingleComm(), tmp_path / "killed")
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    resumed = search(parts, tmp_path / "killed", ranks=2, resume=True)
    assert resumed["digest"] == whole["digest"] and resumed["search"] == whole["search"]
    histories = [(tmp_path / name / HISTORY).read_text() for name in ("whole", "killed")]
    ends = [json.loads(history.splitlines()[-1]) for history in histories]
    assert ends[0]["probabilities"] == ends[1]["probabilities"]
    with pytest.raises(ConfigError, match=r"train its found\.toml"):
        restore(max((tmp_path / "whole" / "checkpoints").glob("*.h5")), SingleComm(), [str(log)])


def test_readers_read_for_a_search(log: Path, tmp_path: Path) -> None:
    direct = search(run_config(log), tmp_path / "direct")
    read = search(run_config(log, "readers.count=1"), tmp_path / "read", ranks=2)
    assert read["digest"] == direct["digest"] and read["search"] == direct["search"]
    assert read["readers"]["by_reader"][0]["samples"]


def test_a_search_rolls_back(log: Path, tmp_path: Path) -> None:
    spoilt = write_log(tmp_path / "log.h5", spoil=7)
    sets = ("checkpoint.every_steps=3", "training.roll_back_rate=1")
    ends = []
    for policy in ("skip", "roll_back"):
        config = run_config(spoilt, *sets, f"training.on_nonfinite={policy}")
        ends.append(search(config, tmp_path / policy))
    assert ends[1]["roll_backs"] > 0
    assert ends[0]["digest"] == ends[1]["digest"] and ends[0]["search"] == ends[1]["search"]


class KilledSearch(SearchTrainer):
    """A search that is killed at its eighth step."""

    def _before_step(self, world: Any, recovery: Any) -> None:
        if self.steps_taken == 7:
            recovery.finish(self.steps_taken)
            raise KeyboardInterrupt
        super()._before_step(world, recovery)


@pytest.mark.parametrize("search", [SEARCH, DOT])
def test_a_found_config_is_plain_and_trains(log: Path, tmp_path: Path, search: str) -> None:
    (tmp_path / "c.toml").write_text(f'{CONFIG}{search}[data]\ntrain = "log.h5"\n')
    kind = f"model.interaction={'dot' if search is DOT else 'cat'}"
    (tmp_path / "log.h5").symlink_to(log)
    line = ["search", str(tmp_path / "c.toml"), "--out", str(tmp_path / "out")]
    line += ["--set", kind, "--set", "training.batch_size=32", "--set", "search.cost_weight=0.5"]
    done = invoke(*line)
    assert "train the found model from scratch: neocpu train" in done.output
    record = json.loads((tmp_path / "out" / "decisions.json").read_text())
    found = configs.load(tmp_path / "out" / "found.toml")
    taken = {name: decision["taken"] for name, decision in record["decisions"].items()}
    base = configs.load(tmp_path / "c.toml", [kind])
    space = space_of(base)
    assert found.tables == plain_config(base, space, taken).tables
    assert found.model.top == (taken["top.0"], 1)
    assert found.model.bottom == (taken["bottom.0"], taken.get("bottom.1", 4))
    assert found.search == Config.__dataclass_fields__["search"].default_factory()
    assert Path(found.data.train[0]).samefile(log)
    layout = found.layout(DENSE)
    rows = sum(table.rows * table.dim for table in found.tables)
    assert record["cost"]["found"] == layout.parameters + rows
    assert Trainer(found, SingleComm(), tmp_path / "run").run()["digest"]


# Clicks follow one feature; of the other one, and of the other columns, nothing is to be learnt.
TASTE = """
[model]
embedding_dim = 8
bottom = [8]
top = [16, 1]
interaction = "cat"
[tables]
taste.rows = 64
noise.rows = 64
[optimizer.sparse]
learning_rate = 0.1
[optimizer.dense]
learning_rate = 0.03
[training]
batch_size = 64
epochs = 2
[search]
dims = { noise = [1, 8] }
rows = { "*" = [4, 64] }
split = 0.7
every = 1
learning_rate = 0.3
cost_weight = 0.1
"""


def write_taste_log(path: Path, samples: int, seed: int) -> Path:
    random = np.random.default_rng(seed)
    dense = random.standard_normal((samples, DENSE)).astype(np.float32)
    codes = {name: random.integers(0, 40, samples).astype(np.uint32) for name in ("taste", "noise")}
    tastes = 2 * np.random.default_rng(9).standard_normal(40)
    chance = 1 / (1 + np.exp(-(tastes[codes["taste"]] + 0.5 * dense[:, 0])))
    labels = (random.random(samples) < chance).astype(np.float32)
    with DatasetWriter(path, ["a", "b", "c"], [FeatureColumn(name) for name in codes]) as writer:
        writer.append(labels, dense, codes)
    return path


def test_the_pick_is_among_the_best_of_all_models(tmp_path: Path) -> None:
    """All 8 models trained one by one; `python -m benchmarks.search` does it for 32 and 5 seeds."""
    sets = [
        f'data.{name}="{write_taste_log(tmp_path / f"{name}.h5", samples, seed)}"'
        for name, samples, seed in (("train", 1500, 5), ("test", 1000, 6))
    ]
    config = configs.loads(TASTE, overrides=sets)
    space = space_of(config)
    cost = parameters(space, CostInputs(config, DENSE))
    largest = cost.of(space.largest, space)
    losses = {}
    for number, choice in enumerate(all_choices(space)):
        model = plain_config(config, space, choice)
        metrics = Trainer(model, SingleComm(), tmp_path / f"{number}").run()["metrics"]
        priced = metrics["test"]["logloss"] + 0.1 * cost.of(choice, space) / largest
        losses[tuple(choice.values())] = priced
    found = search(config, tmp_path / "search")["search"]["decisions"]
    pick = tuple(decision["taken"] for decision in found.values())
    assert sorted(losses, key=losses.__getitem__).index(pick) < len(losses) // 4


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["search.top=[[2, 3], [4]]"], "2 lists of widths, but model.top has 1 layers before"),
        (["search.top=[[2, 2]]"], "must be different numbers"),
        (['search.dims={"x*" = [2]}'], "no table matches 'x"),
        (["model.interaction=dot"], "interactions dot need vectors of one width"),
        (["search.split=1.0"], "must be between 0 and 1"),
        (["search.split=0.0"], "must be between 0 and 1"),
        (["search.cost=watts"], "not allowed"),
        (["search.every=0"], "too small"),
        (["search.decay=0.0"], "must be above 0"),
        (["search.decay=1.5"], "search.decay: 1.5 must be at most 1"),
        (["search.temperature=1e308"], "search.temperature: 1e.308 is too large"),
        (["optimizer.clip_norm=1.0"], "optimizer.clip_norm: a search does not know it"),
        (["optimizer.muon.steps=5"], "optimizer.muon.steps: a search does not know it"),
        (["optimizer.shampoo.every=5"], "optimizer.shampoo.every: a search does not know it"),
        (["model.precision.format=bf16"], "model.precision.format: a search does not know it"),
        (["training.init_from=x"], "training.init_from: a search starts with initial values"),
        (["training.sync=off"], "training.sync: a search takes its steps on all ranks"),
    ],
)
def test_what_cannot_be_searched(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        space_of(config_of(SEARCH, *overrides))


def test_the_largest_decay_and_temperature_are_allowed() -> None:
    space_of(config_of(SEARCH, "search.decay=1.0", f"search.temperature={MOST_TEMPERATURE}"))


def test_a_config_without_choices_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to choose"):
        space_of(configs.loads(CONFIG))
    plain = configs.loads(CONFIG, overrides=["search.top=[[2, 5]]"])
    assert plain.header() == configs.loads(CONFIG).header()  # a run of training does not read it
    assert replace(plain, search=configs.loads(CONFIG).search).header() == plain.header()


def test_steps_that_are_taken_again_are_not_in_the_history_twice(tmp_path: Path) -> None:
    keep_history(tmp_path, 3)
    assert not (tmp_path / HISTORY).exists()
    steps = [{"step": step} for step in (1, 3, 5)]
    write_lines(tmp_path / HISTORY, steps[:2])
    write_lines(tmp_path / HISTORY, steps[2:])
    keep_history(tmp_path, 3)
    lines = (tmp_path / HISTORY).read_text().splitlines()
    assert [json.loads(line) for line in lines] == steps[:2]
