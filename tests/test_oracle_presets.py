"""Do the presets describe the peers themselves? FBGEMM's CPU module and torch's optimizers.

Each check has two halves: the peer's answer lies within the bounds of its preset, and, where a
quirk shows, outside those of the exact model. Skipped where the peers are not installed.
"""

from typing import Any

import numpy as np
import pytest

from neocpu.oracle.operator import Arrays, Truth, Value
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.semantics import PRESETS

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
pytestmark = pytest.mark.filterwarnings("ignore")  # the peers' own
F = np.float32
D = 8


def inside(truth: Truth, answer: np.ndarray) -> bool:
    """Whether every element lies within its bound."""
    return bool(
        (np.abs(answer.reshape(truth.reference.shape) - truth.reference) <= truth.bound).all()
    )


def batch(weighted: bool = False, rows: int = 10) -> Arrays:
    """One table of one feature, ragged bags with duplicates."""
    rng = np.random.default_rng(5)
    lengths = np.array([3, 0, 1, 5, 2])
    inputs: Arrays = {
        "weights": rng.standard_normal(rows * D).astype(F),
        "rows": np.array([rows]),
        "dims": np.array([D]),
        "feature_table": np.array([0]),
        "indices": rng.integers(0, rows // 2, lengths.sum()),
        "offsets": np.append(0, np.cumsum(lengths)),
        "grad_output": rng.standard_normal((lengths.size, D)).astype(F),
    }
    if weighted:
        inputs["per_sample_weights"] = rng.standard_normal(lengths.sum()).astype(F)
    return inputs


def fbgemm(
    inputs: Arrays, pooling: str = "SUM", optimizer: str = "EXACT_SGD", **more: Any
) -> tuple[np.ndarray, np.ndarray]:
    """(output, weights after one step) of FBGEMM's CPU module."""
    pytest.importorskip("fbgemm_gpu", reason="fbgemm-gpu-cpu is not installed (extra `peers`)")
    import fbgemm_gpu.split_table_batched_embeddings_ops_training as training
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

    module = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(int(inputs["rows"][0]), D, EmbeddingLocation.HOST, training.ComputeDevice.CPU)],
        optimizer=getattr(EmbOptimType, optimizer),
        pooling_mode=getattr(training.PoolingMode, pooling),
        learning_rate=0.125,
        **more,
    )
    weights = module.split_embedding_weights()[0]
    weights.data.copy_(torch.from_numpy(inputs["weights"].reshape(-1, D)))
    scale = inputs.get("per_sample_weights")
    out = module(
        torch.from_numpy(inputs["indices"].copy()),
        torch.from_numpy(inputs["offsets"]),
        None if scale is None else torch.from_numpy(scale),
    )
    out.backward(torch.from_numpy(inputs["grad_output"]))
    return out.detach().numpy(), module.split_embedding_weights()[0].detach().numpy()


def both(
    op: str, inputs: Arrays, options: dict[str, Value], preset: str, output: str
) -> tuple[Truth, Truth]:
    """(exact, bent) truths."""
    truths = [
        OPERATORS[op].truth(inputs, options, s)[output] for s in (frozenset[str](), PRESETS[preset])
    ]
    return truths[0], truths[1]


SGD: dict[str, Value] = {"optimizer": "exact_sgd", "learning_rate": 0.125}


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("rows", ["fp32", "fp16"])
def test_fbgemm_cpu_gives_gradients_of_weights_as_its_preset_says(pooling: str, rows: str) -> None:
    pytest.importorskip("fbgemm_gpu", reason="fbgemm-gpu-cpu is not installed (extra `peers`)")
    from tests.peer_answers import fbgemm_backward

    inputs = batch(True)
    options = {"pooling": pooling, "weights_format": rows}
    if rows == "fp16":
        inputs["weights"] = inputs["weights"].astype(np.float16).view(np.uint16)
    gradient = fbgemm_backward(inputs, {**OPERATORS["backward"].options, **SGD, **options})[
        "per_sample_weights_grad"
    ]
    exact, bent = both("weight_gradient", inputs, options, "fbgemm_cpu", "per_sample_weights_grad")
    assert inside(bent, gradient) and inside(exact, gradient) == (pooling == "sum"), (
        "a weighted MEAN is not divided"
    )


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_fbgemm_cpu_pools_and_merges_as_its_preset_says(pooling: str, weighted: bool) -> None:
    inputs = batch(weighted)
    out, weights = fbgemm(inputs, pooling.upper())
    lookup = {k: v for k, v in inputs.items() if k != "grad_output"}
    assert inside(both("lookup", lookup, {"pooling": pooling}, "fbgemm_cpu", "out")[1], out)
    exact, bent = both("backward", inputs, {**SGD, "pooling": pooling}, "fbgemm_cpu", "weights")
    assert inside(bent, weights)
    assert inside(exact, weights) == (not (weighted and pooling == "mean")), (
        "a weighted MEAN is not divided in backward"
    )


def test_fbgemm_cpu_ignores_weight_decay_and_max_norm() -> None:
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode

    inputs = batch()
    decay = {"weight_decay": 0.25, "weight_decay_mode": WeightDecayMode.L2, "eps": 2.0**-20}
    options: dict[str, Value] = {**SGD, "optimizer": "exact_rowwise_adagrad", "eps": 2.0**-20}
    _, weights = fbgemm(inputs, optimizer="EXACT_ROWWISE_ADAGRAD", **decay)
    more: dict[str, Value] = {**options, "weight_decay": 0.25, "weight_decay_mode": "l2"}
    exact, bent = both("backward", inputs, more, "fbgemm_cpu", "weights")
    assert inside(bent, weights) and not inside(exact, weights)
    _, weights = fbgemm(inputs, optimizer="EXACT_ROWWISE_ADAGRAD", max_norm=0.5, eps=2.0**-20)
    exact, bent = both("backward", inputs, {**options, "max_norm": 0.5}, "fbgemm_cpu", "weights")
    assert inside(bent, weights) and not inside(exact, weights)


def test_fbgemm_cpu_trains_row_0_for_rows_out_of_range() -> None:
    inputs = batch()
    inputs["indices"][::4] = 99
    # bounds_check_mode WARNING is the default: it writes row 0 into the caller's tensor
    _, weights = fbgemm(inputs)
    exact, bent = both(
        "backward", inputs, {**SGD, "bounds_check": "ignore"}, "fbgemm_cpu", "weights"
    )
    assert inside(bent, weights) and not inside(exact, weights)


def torch_step(inputs: Arrays, make: Any) -> np.ndarray:
    """Weights after one step of a torch optimizer over a dense gradient."""
    weights = torch.nn.Parameter(torch.from_numpy(inputs["weights"].reshape(-1, D).copy()))
    optimizer = make([weights])
    for _ in range(2):  # the second step has no gradient of some rows, but moments of all
        optimizer.zero_grad()
        bags = torch.nn.functional.embedding_bag(
            torch.from_numpy(inputs["indices"]),
            weights,
            torch.from_numpy(inputs["offsets"][:-1]),
            mode="sum",
        )
        bags.backward(torch.from_numpy(inputs["grad_output"]))
        optimizer.step()
        inputs = {**inputs, "indices": inputs["indices"] // 2}
    return weights.detach().numpy()


def two_steps(inputs: Arrays, options: dict[str, Value], preset: str) -> Truth:
    """The model of `torch_step`."""
    steps: Arrays = {
        k: v for k, v in inputs.items() if k not in ("indices", "offsets", "grad_output")
    }
    for k, indices in enumerate((inputs["indices"], inputs["indices"] // 2)):
        step_inputs = {
            "indices": indices,
            "offsets": inputs["offsets"],
            "grad_output": inputs["grad_output"],
        }
        steps |= {f"step{k}/{name}": array for name, array in step_inputs.items()}
    steps |= {"training": np.array([1, 1]), "learning_rates": np.array([0.125, 0.125])}
    return OPERATORS["trajectory"].truth(steps, options, PRESETS[preset])["step1/weights"]


def test_torch_adam_moves_untouched_rows() -> None:
    inputs = batch()
    weights = torch_step(
        inputs, lambda p: torch.optim.Adam(p, lr=0.125, betas=(0.875, 1 - 2.0**-10), eps=2.0**-20)
    )
    options: dict[str, Value] = {
        "optimizer": "adam",
        "eps": 2.0**-20,
        "beta1": 0.875,
        "beta2": 1 - 2.0**-10,
    }
    assert inside(two_steps(inputs, options, "torch"), weights)
    assert not inside(two_steps(inputs, options, "exact"), weights)


def test_torch_adagrad_has_an_epsilon_of_its_own() -> None:
    inputs = batch()
    inputs["grad_output"] = np.ldexp(inputs["grad_output"], -26).astype(F)
    weights = torch_step(inputs, lambda p: torch.optim.Adagrad(p, lr=0.125))
    options: dict[str, Value] = {"optimizer": "exact_adagrad", "eps": 1e-8}
    assert inside(two_steps(inputs, options, "torch"), weights)
    assert not inside(two_steps(inputs, options, "exact"), weights)
