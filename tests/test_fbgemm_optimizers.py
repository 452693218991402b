"""Are FBGEMM's optimizers with a memory of rows, or with narrow states, the oracle's?

Rows that decay while they rest, rows with a shadow, states in fp16 and bf16.
"""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")

from neocpu.core.errors import ConfigError  # noqa: E402
from neocpu.oracle.adapters import codes_of  # noqa: E402
from neocpu.oracle.ops import OPERATORS  # noqa: E402
from neocpu.peers.fbgemm import (  # noqa: E402
    EmbOptimType,
    EnsembleModeDefinition,
    GlobalWeightDecayDefinition,
    SparseType,
    SplitTableBatchedEmbeddingBagsCodegen,
    StepMode,
    WeightDecayMode,
)
from neocpu.peers.fbgemm.modules.averages import average_shadows  # noqa: E402
from neocpu.peers.fbgemm.modules.storage import Storage  # noqa: E402

ROWS = (7, 9)
DIMS = (4, 8)
TRAINING = (1, 1, 0, 1, 1, 1)
GLOBAL = {
    "optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "weight_decay": 0.5,
    "weight_decay_mode": WeightDecayMode.DECOUPLE_GLOBAL,
    "global_weight_decay": GlobalWeightDecayDefinition(start_iter=2, lower_bound=0.9),
}
ENSEMBLE = EnsembleModeDefinition(
    step_ema=2, step_swap=4, step_start=2, step_ema_coef=0.75, step_mode=StepMode.USE_ITER
)


def make_history() -> dict[str, Any]:
    """Inputs of `trajectory`: two tables, few rows of which each step touches."""
    rng = np.random.default_rng(5)
    size = int(np.dot(ROWS, DIMS))
    inputs: dict[str, Any] = {
        "weights": rng.standard_normal(size).astype(np.float32),
        "rows": np.array(ROWS),
        "dims": np.array(DIMS),
        "feature_table": np.array([1, 0]),
        "training": np.array(TRAINING),
        "learning_rates": np.full(len(TRAINING), 0.125),
    }
    for k in range(len(TRAINING)):
        inputs[f"step{k}/indices"] = rng.integers(0, 4 + 3 * (k % 2), 8)
        inputs[f"step{k}/offsets"] = np.array([0, 2, 2, 5, 8])
        inputs[f"step{k}/grad_output"] = rng.standard_normal((2, sum(DIMS))).astype(np.float32)
    return inputs


def make_module(**options: Any) -> Any:
    specs = [(h, d, 3, 0) for h, d in zip(ROWS, DIMS)]
    return SplitTableBatchedEmbeddingBagsCodegen(
        specs, feature_table_map=[1, 0], learning_rate=0.125, stochastic_rounding=False, **options
    )


def assert_same(tensor: Any, expected: Any) -> None:
    words = Storage.words(tensor.detach().contiguous()).reshape(-1)
    np.testing.assert_array_equal(
        words, codes_of(np.asarray(expected)).reshape(-1).view(words.dtype)
    )


def follow(module: Any, inputs: dict[str, Any], options: dict[str, Any]) -> None:
    """Run the history through a module; its rows and states are the oracle's after every step."""
    expected = OPERATORS["trajectory"].run(inputs, options, "reference")
    names = {state.name: prefix for prefix, state in module._prefixes.items()}
    for k, training in enumerate(TRAINING):
        module.train(bool(training))
        indices = torch.from_numpy(inputs[f"step{k}/indices"].copy())
        offsets = torch.from_numpy(inputs[f"step{k}/offsets"].copy())
        out = module(indices, offsets)
        assert_same(out, expected[f"step{k}/out"])
        if training:
            out.backward(torch.from_numpy(inputs[f"step{k}/grad_output"]))
            assert_same(module.weights_host, expected[f"step{k}/weights"])
            for name, prefix in names.items():
                assert_same(getattr(module, f"{prefix}_host"), expected[f"step{k}/{name}"])


@pytest.mark.parametrize("form", ["fp32", "bf16"])
def test_rows_that_rest_decay(form: str) -> None:
    inputs = make_history()
    module = make_module(weights_precision=SparseType(form), **GLOBAL)
    module.weights_host.data.copy_(torch.from_numpy(inputs["weights"]))
    if form == "bf16":
        words = Storage.words(module.weights_host).copy()
        inputs["weights"] = words.view([("bf16", "<u2")])
    options = {
        "optimizer": "exact_rowwise_adagrad",
        "weight_decay": 0.5,
        "weight_decay_mode": "decoupled_global",
        "decay_start": 2,
        "decay_lower_bound": 0.9,
        "weights_format": form,
    }
    follow(module, inputs, options)
    assert list(module.get_optimizer_state()[0]) == ["sum", "prev_iter", "iter"]
    assert "iter" in module.state_dict()


@pytest.mark.parametrize("form", ["fp32", "bf16"])
def test_shadows_follow_rows(form: str) -> None:
    inputs = make_history()
    dtypes = {"momentum2": SparseType(form)}
    module = make_module(
        optimizer=EmbOptimType.ENSEMBLE_ROWWISE_ADAGRAD,
        ensemble_mode=ENSEMBLE,
        optimizer_state_dtypes=dtypes,
    )
    module.weights_host.data.copy_(torch.from_numpy(inputs["weights"]))
    options = {
        "optimizer": "exact_rowwise_adagrad",
        "step_ema": 2,
        "step_swap": 4,
        "step_start": 2,
        "step_ema_coef": 0.75,
        "momentum2_format": form,
    }
    follow(module, inputs, options)
    assert list(module.get_optimizer_state()[0]) == ["sum", "sparse_ema"]


@pytest.mark.parametrize("formats", [("bf16", "fp32"), ("fp16", "bf16")])
def test_moments_may_be_narrow(formats: tuple[str, str]) -> None:
    inputs = make_history()
    dtypes = dict(zip(("momentum1", "momentum2"), map(SparseType, formats)))
    module = make_module(optimizer=EmbOptimType.PARTIAL_ROWWISE_ADAM, optimizer_state_dtypes=dtypes)
    module.weights_host.data.copy_(torch.from_numpy(inputs["weights"]))
    options = {
        "optimizer": "partial_rowwise_adam",
        "momentum1_format": formats[0],
        "momentum2_format": formats[1],
    }
    follow(module, inputs, options)
    assert module.momentum1_host.dtype == SparseType(formats[0]).as_dtype()


def test_fbgemm_takes_the_same_averages() -> None:
    """FBGEMM refuses the optimizer on a CPU, but its method runs on any tensors."""
    training = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    from types import SimpleNamespace

    for mode in (StepMode.NONE, StepMode.USE_ITER):
        tensors = [torch.randn(6, 4), torch.randn(6, 4)]
        fbgemm_tensors = [x.clone() for x in tensors]
        options = {**vars(ENSEMBLE), "step_mode": float(mode)}
        for step in range(1, 9):
            module = SimpleNamespace(
                iter_cpu=torch.tensor([step]),
                embedding_specs=[(6, 4, 0, 0)],
                split_embedding_weights=lambda fbgemm_tensors=fbgemm_tensors: fbgemm_tensors[:1],
                split_optimizer_states=lambda fbgemm_tensors=fbgemm_tensors: [
                    [None, fbgemm_tensors[1]]
                ],
            )
            cls = training.SplitTableBatchedEmbeddingBagsCodegen
            cls.ensemble_and_swap(module, options)
            average_shadows(tensors[:1], tensors[1:], SimpleNamespace(**options), step)
            assert all(torch.equal(a, b) for a, b in zip(tensors, fbgemm_tensors))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({**GLOBAL, "optimizer": EmbOptimType.ADAM}, "use EXACT_ROWWISE_ADAGRAD"),
        ({**GLOBAL, "global_weight_decay": None}, "give global_weight_decay"),
        (
            {
                "optimizer": EmbOptimType.ADAM,
                "optimizer_state_dtypes": {"momentum1": SparseType.BF16},
            },
            "PARTIAL_ROWWISE_ADAM",
        ),
        (
            {
                "optimizer": EmbOptimType.PARTIAL_ROWWISE_ADAM,
                "optimizer_state_dtypes": {"momentum1": SparseType.INT8},
            },
            "momentum1 is int8",
        ),
    ],
)
def test_what_fbgemm_lacks_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_module(**options)
