"""Do all interactions have the formula's values and gradients, and one digest however they run?"""

import json

import numpy as np
import pytest
from tower_runs import DENSE as RUN_DENSE
from tower_runs import batch_of

from neocpu import config
from neocpu.errors import ConfigError
from neocpu.kernels import choice
from neocpu.model.dlrm import Dlrm
from neocpu.model.interactions.cross import CrossShape
from neocpu.parallel.comm import Comm, SingleComm
from neocpu.parallel.plan import place
from neocpu.parallel.threads import run_threads
from neocpu.reference import interactions as formula
from neocpu.reference import model as twin
from neocpu.training.state import digest
from neocpu.training.world import build
from neocpu.trees import leaf_cuts

B = 24
DENSE = 3
SHAPES = {
    "dcnv2": {"interaction": "dcnv2", "dims": [4, 2, 3], "cross": CrossShape(2)},
    "low-rank": {"interaction": "dcnv2", "dims": [4, 4], "cross": CrossShape(2, 3)},
    "dcnv2-dot": {"interaction": ("dcnv2", "dot"), "dims": [4, 4, 4], "cross": CrossShape(1)},
}


def model_of(shape: str, seed: int = 3) -> Dlrm:
    return Dlrm(DENSE, bottom=[5, 4], top=[4, 1], seed=seed, **SHAPES[shape])


def example(model: Dlrm) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((B, DENSE), dtype=np.float32)
    pooled = rng.standard_normal((B, sum(model.layout.dims)), dtype=np.float32)
    return x, pooled, rng.integers(0, 2, B).astype(np.float32)


def run(
    model: Dlrm, x: np.ndarray, pooled: np.ndarray, labels: np.ndarray, cuts: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Logits, dE and the gradient of all parameters, of a loss that is a mean over B samples."""
    E = np.empty((len(x), model.columns), np.float32)
    model.forward_bottom(x, E)
    E[:, model.first_column :] = pooled
    logits = model.forward_top(E).copy()
    model.loss_gradient(labels, B)
    dE = model.backward().copy()
    return logits, dE, model.weight_gradient_node(cuts, np.empty_like(model.flat))


def formula_of(model: Dlrm, wide: dict, x: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Logits f64[b] as the formula has them."""
    layout = model.layout
    bottom = twin.mlp(wide, "bottom", x, True)
    vectors = [bottom, *np.split(pooled, np.cumsum(layout.dims)[:-1], axis=1)]
    z, logit = formula.chain(wide, layout.interaction_names, vectors, layout.diagonal)
    return twin.mlp(wide, "top", z, False)[:, 0] + logit


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_match_finite_differences(shape: str) -> None:
    model = model_of(shape)
    x, pooled, labels = example(model)
    logits, dE, gradient = run(model, x, pooled, labels, np.array(leaf_cuts(B, 16), np.int64))
    wide = {name: value.astype(np.float64) for name, value in model.parameters.items()}
    pooled64 = pooled.astype(np.float64)

    def logits64() -> np.ndarray:
        return formula_of(model, wide, x.astype(np.float64), pooled64)

    def slopes(array: np.ndarray, h: float = 1e-6) -> np.ndarray:
        slope = np.empty_like(array)
        for index in np.ndindex(array.shape):
            kept = array[index]
            losses = []
            for shift in (h, -h):
                array[index] = kept + shift
                losses.append(twin.mean_loss(logits64(), labels.astype(np.float64), "bce"))
            array[index] = kept
            slope[index] = (losses[0] - losses[1]) / (2 * h)
        return slope

    np.testing.assert_allclose(logits, logits64(), rtol=1e-4, atol=1e-5)
    for name, computed in model.layout.views(gradient).items():
        np.testing.assert_allclose(computed, slopes(wide[name]), rtol=5e-4, atol=4e-6, err_msg=name)
    np.testing.assert_allclose(dE[:, model.first_column :], slopes(pooled64), rtol=5e-4, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_halves_of_a_batch_give_the_bits_of_the_whole(shape: str) -> None:
    model = model_of(shape)
    x, pooled, labels = example(model)
    cuts = np.array(leaf_cuts(B, 16), np.int64)
    logits, dE, gradient = run(model, x, pooled, labels, cuts)
    nodes = []
    for half in (0, 1):
        node = cuts[8 * half : 8 * half + 9]
        part = slice(node[0], node[-1])
        half_run = run(model, x[part], pooled[part], labels[part], node - node[0])
        assert half_run[0].tobytes() == logits[part].tobytes()
        assert half_run[1].tobytes() == dE[part].tobytes()
        nodes.append(half_run[2])
    assert (nodes[0] + nodes[1]).tobytes() == gradient.tobytes()
    assert not run(model, x[:0], pooled[:0], labels[:0], cuts * 0)[2].any()


TOML = """
[model]
embedding_dim = 8
bottom = [6, 8]
top = [5, 1]
[tables.u0]
rows = 60
pooling = "mean"
[tables.i0]
rows = 40
features = ["i0", "i1"]
[tables.u1]
rows = 90
weighted = true
[training]
batch_size = 22
[optimizer.dense]
name = "adam"
learning_rate = 0.01
"""
STEPS = ((1, 22), (2, 22), (3, 13))  # number and samples of each batch
RUNS = {
    "dcnv2": ["model.interaction=dcnv2", "model.cross.layers=2"],
    "dcnv2-dot": ['model.interaction=["dcnv2", "dot"]', "model.cross.rank=4"],
}


@pytest.mark.parametrize("name", RUNS)
def test_one_digest_on_any_ranks_pipeline_and_kernels(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(comm: Comm, pipeline: str = "off", schemes: tuple[str, ...] = ()) -> str:
        options = config.loads(TOML, "x", [*RUNS[name], f"training.pipeline={pipeline}"])
        plan = place(options.tables, schemes or ["table_wise"] * 3, comm.size, min(2, comm.size))
        world = build(options, comm, plan, RUN_DENSE, huge=False)
        steps = world.step.over((batch_of(options, comm, *step) for step in STEPS), 1)
        for _ in STEPS:
            steps.next()
        steps.close()
        return digest(world, len(STEPS))

    expected = trained(SingleComm())
    two = ("row_wise", "data_parallel", "table_wise")
    three = ("table_row_wise", "column_wise", "row_wise")
    assert set(run_threads(2, lambda comm: trained(comm, "full", two))) == {expected}
    assert set(run_threads(3, lambda comm: trained(comm, "input", three), ranks_per_node=2)) == {
        expected
    }
    monkeypatch.setenv(choice.VARIABLE, "plain")
    assert trained(SingleComm()) == expected


def test_config_names_interactions_in_the_digest_only_where_they_are() -> None:
    plain = config.loads(TOML)
    assert plain.header()["model"]["interaction"] == "dot"
    assert "cross" not in plain.header()["model"]
    assert config.loads(TOML, "x", ['model.interaction=["dot"]']).header() == plain.header()
    chained = config.loads(TOML, "x", ['model.interaction=["dcnv2", "dot"]']).header()["model"]
    assert chained["interaction"] == ["dcnv2", "dot"]
    assert chained["cross"] == {"layers": 3, "rank": 0}
    assert json.dumps(chained)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["model.interaction=dotty"], "model.interaction: 'dotty' is not allowed; did you mean"),
        (['model.interaction=["dot", "x"]'], "model.interaction[1]: 'x' is not allowed"),
        (["model.interaction=[]"], "model.interaction: an empty list"),
        (["model.interaction=3"], "model.interaction: expected a list, got 3"),
        (["model.cross.layers=0"], "model.cross.layers: 0 is too small"),
        (
            ['model.interaction=["dcnv2", "dot"]', "tables.u0.dim=4"],
            "dot needs vectors of one width",
        ),
    ],
)
def test_interactions_that_do_not_fit_are_refused_in_words(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.loads(TOML, "x", sets)
    assert message in str(error.value)
