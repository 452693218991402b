"""What do torch and FBGEMM's CPU library answer to an operator's flat inputs?

They are called as their users call them. Needs the `peers` extra; tests import this file only where
it is installed.
"""

import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neocpu.oracle.ops import OPERATORS
from tests.jobs import ran

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import fbgemm_gpu.split_table_batched_embeddings_ops_inference as inference
    import fbgemm_gpu.split_table_batched_embeddings_ops_training as training
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
        BoundsCheckMode,
        EmbeddingLocation,
        PoolingMode,
    )

# FBGEMM's type of each format.
SPARSE = {"fp32": SparseType.FP32, "fp16": SparseType.FP16, "bf16": SparseType.BF16}
# torch's dtype of each format.
TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def tensor(array: np.ndarray, form: str = "fp32") -> torch.Tensor:
    """A copy of numbers, or of codes of a narrow format, as a torch tensor."""
    codes = array[array.dtype.names[0]] if array.dtype.names else array
    if form == "fp32":
        return torch.from_numpy(codes.astype(np.float32))
    return torch.from_numpy(codes.view(np.int16).copy()).view(TORCH[form])


def array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as NumPy; bf16 as a record of codes."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view([("bf16", "<u2")])
    if tensor.dtype == torch.float16:
        return tensor.view(torch.int16).numpy().view([("fp16", "<u2")])
    return tensor.numpy()


class Width(int):
    """Columns of a table that pass the check of FBGEMM's constructor for multiples of 4.

    FBGEMM's CPU kernels take any number of columns.
    """

    def __mod__(self, divisor: int) -> int:
        return 0


def fbgemm_module(inputs: dict[str, Any], options: dict[str, Any], **module_options: Any) -> Any:
    """FBGEMM's CPU module with the tables of `inputs`."""
    rows = inputs["rows"].tolist()
    dims = inputs["dims"].tolist()
    if options["pooling"] == "none":
        module_options["pooling_mode"] = PoolingMode.NONE
    else:
        module_options["pooling_mode"] = (
            PoolingMode.SUM if options["pooling"] == "sum" else PoolingMode.MEAN
        )
    row_format = str(options["weights_format"])
    module = training.SplitTableBatchedEmbeddingBagsCodegen(
        [
            (r, Width(d), EmbeddingLocation.HOST, training.ComputeDevice.CPU)
            for r, d in zip(rows, dims)
        ],
        feature_table_map=inputs["feature_table"].tolist(),
        weights_precision=SPARSE[row_format],
        bounds_check_mode=BoundsCheckMode.NONE,
        **module_options,
    )
    flat = tensor(inputs["weights"], row_format).reshape(-1)
    start = 0
    for table, (r, d) in zip(module.split_embedding_weights(), zip(rows, dims)):
        table.data.copy_(flat[start : start + r * d].reshape(r, d))
        start += r * d
    return module


def fbgemm_lookup(inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, np.ndarray]:
    """`lookup` of the training module."""
    module = fbgemm_module(inputs, options, output_dtype=SPARSE[str(options["output_format"])])
    weights = inputs.get("per_sample_weights")
    with torch.no_grad():
        out = module(
            torch.from_numpy(inputs["indices"].astype(np.int64)),
            torch.from_numpy(inputs["offsets"].astype(np.int64)),
            None if weights is None else torch.from_numpy(weights),
        )
    return {"out": array(out)}


# FBGEMM's number of each mode of weight decay.
DECAY = {"none": 0, "l2": 1, "decoupled": 2}


def fbgemm_backward(inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, np.ndarray]:
    """`backward` of the training module: weights and states after one step.

    With per-sample weights also their gradient.
    """
    optimizer = getattr(EmbOptimType, str(options["optimizer"]).upper())
    module_options: dict[str, Any] = {
        "learning_rate": options["learning_rate"],
        "eps": options["eps"],
    }
    if options["weight_decay"]:
        module_options["weight_decay"] = options["weight_decay"]
        module_options["weight_decay_mode"] = training.WeightDecayMode(
            DECAY[str(options["weight_decay_mode"])]
        )
    if options["max_gradient"]:
        module_options |= {"gradient_clipping": True, "max_gradient": options["max_gradient"]}
    module = fbgemm_module(
        inputs, options, optimizer=optimizer, stochastic_rounding=False, **module_options
    )
    if "sum" in inputs:
        module.momentum1_host.data.copy_(torch.from_numpy(inputs["sum"]))
    weights = inputs.get("per_sample_weights")
    factors = None if weights is None else torch.from_numpy(weights).requires_grad_()
    out = module(
        torch.from_numpy(inputs["indices"].astype(np.int64)),
        torch.from_numpy(inputs["offsets"].astype(np.int64)),
        factors,
    )
    out.backward(torch.from_numpy(inputs["grad_output"]))
    outputs = {
        "weights": np.concatenate([array(w).reshape(-1) for w in module.split_embedding_weights()])
    }
    if options["optimizer"] != "exact_sgd":
        outputs["sum"] = array(module.momentum1_host)
    return outputs | ({} if factors is None else {"per_sample_weights_grad": array(factors.grad)})


def torch_tables(inputs: dict[str, Any], options: dict[str, Any]) -> list[torch.Tensor]:
    """Copies of the tables, as matrices."""
    row_format = str(options["weights_format"])
    flat = tensor(inputs["weights"], row_format).reshape(-1)
    start = 0
    tables = []
    for r, d in zip(inputs["rows"].tolist(), inputs["dims"].tolist()):
        tables.append(flat[start : start + r * d].reshape(r, d).clone())
        start += r * d
    return tables


def torch_features(
    inputs: dict[str, Any],
    options: dict[str, Any],
    tables: list[torch.Tensor],
    **embedding_options: Any,
) -> torch.Tensor:
    """F.embedding_bag (none: F.embedding) of every feature, side by side."""
    pooled = []
    features = inputs["feature_table"].tolist()
    batch = (inputs["offsets"].size - 1) // len(features)
    for f, t in enumerate(features):
        offsets = inputs["offsets"][f * batch : (f + 1) * batch + 1].astype(np.int64)
        indices = torch.from_numpy(inputs["indices"][offsets[0] : offsets[-1]].astype(np.int64))
        if options["pooling"] == "none":
            pooled.append(torch.nn.functional.embedding(indices, tables[t], **embedding_options))
            continue
        weights = inputs.get("per_sample_weights")
        if weights is not None:
            embedding_options["per_sample_weights"] = torch.from_numpy(
                weights[offsets[0] : offsets[-1]]
            ).to(tables[t].dtype)
        pooled.append(
            torch.nn.functional.embedding_bag(
                indices,
                tables[t],
                torch.from_numpy(offsets[:-1] - offsets[0]),
                mode=str(options["pooling"]),
                **embedding_options,
            )
        )
    return torch.cat(pooled, 0 if options["pooling"] == "none" else 1)


def torch_lookup(inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, np.ndarray]:
    """`lookup` by torch."""
    return {"out": array(torch_features(inputs, options, torch_tables(inputs, options)))}


def torch_optimizer(
    options: dict[str, Any], tables: list[torch.Tensor], sparse: bool
) -> torch.optim.Optimizer:
    """The optimizer that the options of `backward` name, as torch has it."""
    name = str(options["optimizer"])
    rate = float(options["learning_rate"])
    eps = float(options["eps"])
    decay = float(options["weight_decay"]) if options["weight_decay_mode"] != "none" else 0.0
    if name == "exact_sgd":
        return torch.optim.SGD(tables, lr=rate, weight_decay=decay)
    if name == "momentum_sgd":
        return torch.optim.SGD(
            tables, lr=rate, weight_decay=decay, momentum=float(options["momentum"])
        )
    if name == "exact_adagrad":
        return torch.optim.Adagrad(tables, lr=rate, weight_decay=decay)
    if name == "exact_rowwise_adagrad":
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        return RowWiseAdagrad(tables, lr=rate, weight_decay=decay)
    betas = (float(options["beta1"]), float(options["beta2"]))
    if name == "adam" and sparse:
        return torch.optim.SparseAdam(tables, lr=rate, eps=eps, betas=betas)
    if options["weight_decay_mode"] == "decoupled":
        return torch.optim.AdamW(tables, lr=rate, eps=eps, betas=betas, weight_decay=decay)
    return torch.optim.Adam(tables, lr=rate, eps=eps, betas=betas, weight_decay=decay)


# torch's names of each optimizer's states.
STATES_OF = {
    "exact_sgd": (),
    "momentum_sgd": ("momentum_buffer",),
    "exact_adagrad": ("sum",),
    "exact_rowwise_adagrad": ("sum",),
    "adam": ("exp_avg", "exp_avg_sq"),
}


def torch_backward(
    inputs: dict[str, Any], options: dict[str, Any], sparse: bool = False
) -> dict[str, np.ndarray]:
    """`backward`: autograd of embedding_bag, then one step of torch's optimizer."""
    tables = [table.requires_grad_() for table in torch_tables(inputs, options)]
    optimizer = torch_optimizer(options, tables, sparse)
    start = 0
    for table in tables:
        state = optimizer.state[table]
        columns = 1 if options["optimizer"] == "exact_rowwise_adagrad" else table.shape[1]
        for name in STATES_OF[str(options["optimizer"])]:
            # Without a momentum buffer, torch starts it from the first gradient.
            if name in inputs or name != "momentum_buffer":
                flat = inputs.get(
                    name,
                    np.zeros(
                        sum(t.shape[0] * (1 if columns == 1 else t.shape[1]) for t in tables),
                        np.float32,
                    ),
                )
                state[name] = torch.from_numpy(
                    flat[start : start + len(table) * columns].reshape(len(table), columns).copy()
                )
        if "sgd" not in str(options["optimizer"]):
            count = int(options["step"]) - 1
            state["step"] = (
                count if sparse and options["optimizer"] == "adam" else torch.tensor(float(count))
            )
        start += len(table) * columns
    torch_features(inputs, options, tables, sparse=sparse).backward(
        torch.from_numpy(inputs["grad_output"])
    )
    optimizer.step()
    outputs = {"weights": np.concatenate([array(t).reshape(-1) for t in tables])}
    for name in STATES_OF[str(options["optimizer"])]:
        if name in optimizer.state[tables[0]]:
            outputs[name] = np.concatenate(
                [array(optimizer.state[t][name]).reshape(-1) for t in tables]
            )
    return outputs


# FBGEMM's type of each inference format.
NBIT = {"nbit8": SparseType.INT8, "nbit4": SparseType.INT4, "nbit2": SparseType.INT2}


def fbgemm_inference(inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, np.ndarray]:
    """`lookup` of quantised rows by the inference module."""
    rows = inputs["rows"].tolist()
    dims = inputs["dims"].tolist()
    row_type = NBIT[str(options["weights_format"])]
    alignment = int(options["row_alignment"])
    module = inference.IntNBitTableBatchedEmbeddingBagsCodegen(
        [
            (f"t{t}", r, d, row_type, EmbeddingLocation.HOST)
            for t, (r, d) in enumerate(zip(rows, dims))
        ],
        feature_table_map=inputs["feature_table"].tolist(),
        pooling_mode=PoolingMode.SUM if options["pooling"] == "sum" else PoolingMode.MEAN,
        output_dtype=SPARSE[str(options["output_format"])],
        bounds_check_mode=BoundsCheckMode.NONE,
        row_alignment=alignment,
        device="cpu",
    )
    module.initialize_weights()
    start = 0
    for codes, _ in module.split_embedding_weights(split_scale_shifts=False):
        size = codes.numel()
        codes.copy_(
            torch.from_numpy(inputs["weights"][start : start + size].reshape(codes.shape).copy())
        )
        start += size
    assert start == inputs["weights"].size
    weights = inputs.get("per_sample_weights")
    out = module(
        torch.from_numpy(inputs["indices"].astype(np.int32)),
        torch.from_numpy(inputs["offsets"].astype(np.int32)),
        None if weights is None else torch.from_numpy(weights),
    )
    return {"out": array(out)}


def torch_unique(inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, np.ndarray]:
    """`unique_gradient`: sparse gradients of embedding_bag, coalesced."""
    tables = [table.requires_grad_() for table in torch_tables(inputs, options)]
    torch_features(inputs, options, tables, sparse=True).backward(
        torch.from_numpy(inputs["grad_output"])
    )
    first = 0
    rows = []
    values = []
    for table in tables:
        if table.grad is not None:
            merged = table.grad.coalesce()
            rows.append(first + array(merged.indices())[0])
            values.append(array(merged.values()).reshape(-1))
        first += len(table)
    return {"rows": np.concatenate(rows), "values": np.concatenate(values)}


def row_wise_answers(questions: list[Any]) -> list[dict[str, np.ndarray]]:
    """`lookup` by two processes of TorchRec: all questions in one run of `peer_row_wise.py`."""
    inputs = {f"{n}/{k}": a for n, q in enumerate(questions) for k, a in q.inputs.items()}
    inputs |= {f"{n}/pooling": np.array(q.options["pooling"]) for n, q in enumerate(questions)}
    with tempfile.TemporaryDirectory() as folder:
        input_file = Path(folder) / "in.npz"
        output_file = Path(folder) / "out.npz"
        np.savez(input_file, **inputs)
        script = Path(__file__).with_name("peer_row_wise.py")
        process = ran([sys.executable, str(script), input_file, output_file], timeout=300)
        assert process.returncode == 0, process.stderr
        with np.load(output_file) as outputs:
            return [{"out": outputs[str(n)]} for n in range(len(questions))]


def answer(question: Any) -> dict[str, np.ndarray]:
    """The answer of a peer that runs in one process."""
    preset, op, inputs, options = question
    if preset == "fbgemm_cpu" and op == "lookup":
        return (fbgemm_inference if str(options["weights_format"]) in NBIT else fbgemm_lookup)(
            inputs, options
        )
    if preset == "fbgemm_cpu" and op == "weight_gradient":
        backward_options = {**OPERATORS["backward"].options, **options, "optimizer": "exact_sgd"}
        return {
            "per_sample_weights_grad": fbgemm_backward(inputs, backward_options)[
                "per_sample_weights_grad"
            ]
        }
    if preset == "fbgemm_cpu":
        outputs = fbgemm_backward(inputs, options)
        outputs.pop("per_sample_weights_grad", None)
        return outputs
    if op == "lookup":
        return torch_lookup(inputs, options)
    return (
        torch_unique(inputs, options)
        if op == "unique_gradient"
        else torch_backward(inputs, options, preset == "torch_sparse")
    )


def answers(questions: list[Any]) -> list[dict[str, np.ndarray]]:
    """The peers' answers to all questions, in order."""
    row_wise = row_wise_answers([q for q in questions if q.preset == "torchrec_row_wise"])
    return [row_wise.pop(0) if q.preset == "torchrec_row_wise" else answer(q) for q in questions]


def versions() -> dict[str, str]:
    """The peers' versions, and the instruction set that torch uses."""
    names = ("torch", "fbgemm-gpu-cpu", "torchrec", "numpy")
    return {name: version(name) for name in names} | {
        "instructions": torch.backends.cpu.get_cpu_capability()
    }
