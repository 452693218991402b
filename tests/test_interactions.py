"""Do all interactions have the formula's values and gradients, and one digest however they run?"""

import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from cases import assert_same
from composed_runs import DENSE as RUN_DENSE
from composed_runs import STEPS, digest_after
from dense_runs import check_gradients, check_halves, cuts_of, example, run
from tower_runs import batch_of

from neocpu.core.errors import ConfigError
from neocpu.core.jagged import KJT
from neocpu.kernels.compile import choice
from neocpu.kernels.dense import layer_norm, self_attention
from neocpu.kernels.twins.dense import interactions as formula
from neocpu.kernels.twins.dense import layer_norm as layer_norm_twin
from neocpu.kernels.twins.dense import model as twin
from neocpu.kernels.twins.dense import self_attention as self_attention_twin
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.specs.specs import bags
from neocpu.train.before.scenario import dense_work
from neocpu.train.before.warmup import MiniBatch
from neocpu.train.config import config
from neocpu.train.config.config import Config
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.interactions.dhen import DhenLayout
from neocpu.train.model.interactions.dot import DotLayout
from neocpu.train.model.layout import ModelLayout
from neocpu.train.model.options import CrossShape, DhenShape
from neocpu.train.state.dense_inputs import top_inputs
from neocpu.train.step.world import build

B = 24
DENSE = 3
SHAPES = {
    "dcnv2": {"interaction": "dcnv2", "dims": (4, 2, 3), "cross": CrossShape(2)},
    "low-rank": {"interaction": "dcnv2", "dims": (4, 4), "cross": CrossShape(2, 3)},
    "dcnv2-dot": {"interaction": ("dcnv2", "dot"), "dims": (4, 4, 4), "cross": CrossShape(1)},
    "fm": {"interaction": "fm", "dims": (4, 4, 4)},
    "deepfm": {"interaction": "deepfm", "dims": (4, 1, 4, 1), "wide": (1, 3)},
    "deepfm-twice": {"interaction": ("deepfm", "dcnv2", "deepfm"), "dims": (4, 4)},
    "wide_deep": {"interaction": "wide_deep", "dims": (1, 3, 1, 2), "wide": (0, 2)},
    "dhen": {
        "interaction": "dhen",
        "dims": (4, 4),
        "dhen": DhenShape(2, ("dot", "cross", "attention", "linear"), rank=2),
    },
    "dhen-concat": {
        "interaction": ("dhen", "dot"),
        "dims": (4, 4),
        "dhen": DhenShape(2, ("attention", "dot"), 1, "concat"),
    },
}


def model_of(shape: str, seed: int = 3) -> Dlrm:
    return Dlrm(ModelLayout(DENSE, bottom=(5, 4), top=(4, 1), **SHAPES[shape]), seed)


def formula_of(model: Dlrm, wide: dict, x: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Logits f64[b] as the formula has them."""
    layout = model.layout
    bottom = twin.mlp(wide, "bottom", x, True)
    keys = np.split(pooled, np.cumsum(layout.dims)[:-1], axis=1)
    vectors = [bottom, *(keys[key] for key in range(len(keys)) if key not in layout.wide)]
    z, logit = formula.chain(
        wide,
        layout.interaction_names,
        vectors,
        layout.diagonal,
        layout.dhen.modules,
        layout.dhen.ensemble == "concat",
    )
    if layout.has_first_order:
        logit = logit + x @ wide["first_order.weight"][0] + wide["first_order.bias"]
    for key in layout.wide:
        logit = logit + keys[key][:, 0]
    return twin.mlp(wide, "top", z, False)[:, 0] + logit


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_match_finite_differences(shape: str) -> None:
    model = model_of(shape)
    check_gradients(model, B, DENSE, partial(formula_of, model), tolerance=5e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_halves_of_a_batch_give_the_bits_of_the_whole(shape: str) -> None:
    check_halves(model_of(shape), B, DENSE)


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_has_the_same_logits_and_gradients(shape: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
    from neocpu.serve.exports.torch_interactions import interact

    model = model_of(shape)
    layout = model.layout
    x, pooled, labels = example(model, B, DENSE)
    logits, dE, gradient = run(model, x, pooled, labels, cuts_of(B), B)
    tensors = {
        name: torch.tensor(value, requires_grad=True) for name, value in model.parameters.items()
    }

    def mlp(name: str, y: Any, last_relu: bool) -> Any:
        count = len(layout.sizes(name)) - 1
        for layer in range(count):
            weight = tensors[f"{name}.{layer}.weight"]
            y = torch.nn.functional.linear(y, weight, tensors[f"{name}.{layer}.bias"])
            y = torch.relu(y) if last_relu or layer < count - 1 else y
        return y

    pooled_tensor = torch.tensor(pooled, requires_grad=True)
    keys = pooled_tensor.split(list(layout.dims), 1)
    vectors = [key for position, key in enumerate(keys) if position not in layout.wide]
    card = {
        "interaction": layout.interaction,
        "diagonal": layout.diagonal,
        "dhen": asdict(layout.dhen),
    }
    z, answer = interact(card, tensors, [mlp("bottom", torch.tensor(x), True), *vectors])
    answer = answer + mlp("top", z, False)[:, 0]
    if layout.has_first_order:
        answer = answer + torch.tensor(x) @ tensors["first_order.weight"][0]
        answer = answer + tensors["first_order.bias"] + sum(keys[key][:, 0] for key in layout.wide)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(answer, torch.tensor(labels))
    loss.backward()
    np.testing.assert_allclose(logits, answer.detach().numpy(), rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(
        dE[:, model.first_column :], pooled_tensor.grad.numpy(), rtol=1e-3, atol=2e-6
    )
    for name, computed in layout.views(gradient).items():
        expected = tensors[name].grad.numpy()
        np.testing.assert_allclose(computed, expected, rtol=1e-3, atol=1e-5, err_msg=name)


def test_one_layer_of_dhen_with_dots_is_the_interaction_of_dlrm() -> None:
    """A projection that is the identity, no residual, no norm: the bits of "dot", then zeros."""
    vectors = (4,) * 5
    dot = DotLayout(vectors)
    shape = DhenShape(1, ("dot",), 4, residual=False, norm=False)
    layout = DhenLayout(vectors, shape, "x")
    weight = np.eye(16, dot.widths[0], dtype=np.float32)
    parameters = {"x.dhen.0.dot.out.weight": weight, "x.dhen.0.dot.out.bias": np.zeros(16, "f4")}
    assert {name: tensor.shape for name, tensor in parameters.items()} == dict(layout.tensors())
    rng = np.random.default_rng(1)
    x = rng.standard_normal((B, 20), dtype=np.float32)
    dy = rng.standard_normal((B, 16), dtype=np.float32)
    dlogit = np.zeros(B, np.float32)
    dlrm = dot.build({})
    dhen = layout.build(parameters)
    width = dot.widths[0]
    assert dhen.forward(x)[:, :width].tobytes() == dlrm.forward(x).tobytes()
    assert not dhen.forward(x)[:, width:].any()
    expected = dlrm.backward(np.ascontiguousarray(dy[:, :width]), dlogit)
    assert dhen.backward(dy, dlogit).tobytes() == expected.tobytes()


@pytest.mark.parametrize("fill", ["plain", "special"])
@pytest.mark.parametrize(("samples", "count", "dim"), [(0, 3, 4), (5, 1, 1), (7, 6, 9)])
def test_attention_and_norm_have_the_bits_of_their_twins(
    samples: int, count: int, dim: int, fill: str
) -> None:
    rng = np.random.default_rng(samples)
    q, k, v, g = (
        rng.standard_normal((samples, count * dim), dtype=np.float32) * size
        for size in (3, 2, 1, 1)
    )
    if fill == "special" and samples:
        q[0] = np.inf
        k[1, 0] = np.nan
        q[2] *= np.float32(1e30)
    scale = np.float32(1 / np.sqrt(dim))

    def attention(module: Any) -> list[np.ndarray]:
        weights = np.empty((samples, count * count), np.float32)
        results = [np.empty_like(q) for _ in range(4)]
        module.attention_forward((q, k, v), count, scale, weights, results[0])
        module.attention_backward((q, k, v), weights, g, count, scale, tuple(results[1:]))
        return [weights, *results]

    def norm(module: Any) -> list[np.ndarray]:
        y, dx = np.empty_like(q), np.empty_like(q)
        inverse = np.empty(samples)
        module.norm_forward(q, 1e-5, y, inverse)
        module.norm_backward(y, inverse, g, dx)
        return [y, inverse, dx]

    for ours, twins in (
        (attention(self_attention), attention(self_attention_twin)),
        (norm(layer_norm), norm(layer_norm_twin)),
    ):
        for answer, expected in zip(ours, twins, strict=True):
            assert_same(answer, expected)


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
WIDE = ['tables."u0.wide"={features=["u0"], rows=60, dim=1}', 'model.wide=["*.wide"]']
RUNS = {
    "dcnv2": ["model.interaction=dcnv2", "model.cross.layers=2"],
    "dcnv2-dot": ['model.interaction=["dcnv2", "dot"]', "model.cross.rank=4", "wires.dense=bf16"],
    "fm": ["model.interaction=fm"],
    "deepfm": ["model.interaction=deepfm", *WIDE],
    "wide_deep": ["model.interaction=wide_deep", *WIDE],
    "dhen": [
        "model.interaction=dhen",
        'model.dhen.modules=["dot", "cross", "attention", "linear"]',
        "model.dhen.tokens=2",
    ],
}


def with_wide(batch: MiniBatch, options: Config) -> MiniBatch:
    """The batch, with the bags of u0 for its table of weights too, where there is one."""
    keys = tuple(key.key for key in bags(options.tables))
    kjt = batch.sparse
    if len(keys) == len(kjt.keys):
        return batch
    first = int(kjt.lengths[0].sum())
    lengths = np.concatenate([kjt.lengths, kjt.lengths[:1]])
    values = np.concatenate([kjt.values, kjt.values[:first]])
    weights = np.concatenate([kjt.weights, kjt.weights[:first]])
    return replace(batch, sparse=KJT(keys, lengths, values, weights))


@pytest.mark.parametrize("name", RUNS)
def test_one_digest_on_any_ranks_pipeline_and_kernels(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(comm: Comm, pipeline: str = "off", schemes: tuple[str, ...] = ()) -> str:
        options = config.loads(TOML, "x", [*RUNS[name], f"training.pipeline={pipeline}"])
        cut = [*schemes, *["table_wise"] * (len(options.tables) - len(schemes))]
        plan = place(options.tables, cut, comm.size, min(2, comm.size))
        world = build(options, comm, plan, RUN_DENSE, huge=False)
        batches = (with_wide(batch_of(options, comm, *step), options) for step in STEPS)
        return digest_after(world, batches)

    expected = trained(SingleComm())
    two = ("row_wise", "data_parallel", "table_wise")
    three = ("table_row_wise", "column_wise", "row_wise")
    assert set(run_threads(2, lambda comm: trained(comm, "full", two))) == {expected}
    assert set(run_threads(3, lambda comm: trained(comm, "input", three), ranks_per_node=2)) == {
        expected
    }
    monkeypatch.setenv(choice.VARIABLE, "plain")
    assert trained(SingleComm()) == expected


@pytest.mark.parametrize("name", RUNS)
def test_plans_and_next_days_know_the_sizes(name: str) -> None:
    options = config.loads(TOML, "x", RUNS[name])
    layout = options.layout(3)
    assert len(top_inputs(options)) == len(set(top_inputs(options))) == layout.interaction_width
    counted = dense_work(options, 3, "fp32").parameters
    if not options.model.cross.rank and name != "dhen":  # which have matrices without a bias
        assert counted == layout.parameters


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
        (["model.interaction=deepfm"], 'add tables like "u0.wide" = { features = ["u0"], dim = 1'),
        (["model.wide=u*"], "model.wide: u0 has dim 8; a weight of the linear term is a row of"),
        (['model.wide=["x*"]'], "model.wide: no table matches 'x*'; the tables are u0, i0, u1"),
        ([*WIDE, 'model.towers.a=["u0@u0"]'], "model.towers"),
        (
            ["model.interaction=dhen", 'model.dhen.modules=["dot", "cnn"]'],
            "model.dhen.modules[1]: 'cnn' is not allowed",
        ),
        (["model.interaction=dhen", "model.dhen.modules=[]"], "must be some of dot, cross"),
        (
            ["model.interaction=dhen", 'model.dhen.modules=["dot", "dot"]'],
            "names one module twice",
        ),
        (["model.cross.layers=1000000000"], "1000000000 is too large; allowed: 1 to 1024"),
        (["model.dhen.tokens=1000000000"], "1000000000 is too large; allowed: 0 to 65536"),
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
