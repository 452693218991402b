"""What do torch and FBGEMM's CPU library answer to an operator's flat inputs? The peers themselves,
as users call them.

Needs the `peers` extra; nothing here is imported where it is missing.
"""

import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neocpu.oracle.ops import OPERATORS

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

SPARSE = {"fp32": SparseType.FP32, "fp16": SparseType.FP16, "bf16": SparseType.BF16}
TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def tensor(array: np.ndarray, form: str = "fp32") -> torch.Tensor:
    """Numbers, or codes of a narrow format, as a torch tensor of their own."""
    codes = array[array.dtype.names[0]] if array.dtype.names else array
    if form == "fp32":
        return torch.from_numpy(codes.astype(np.float32))
    return torch.from_numpy(codes.view(np.int16).copy()).view(TORCH[form])


def array(found: torch.Tensor) -> np.ndarray:
    """A tensor as NumPy; bf16 as a record of codes."""
    found = found.detach().contiguous()
    if found.dtype == torch.bfloat16:
        return found.view(torch.int16).numpy().view([("bf16", "<u2")])
    if found.dtype == torch.float16:
        return found.view(torch.int16).numpy().view([("fp16", "<u2")])
    return found.numpy()


class Width(int):
    """Columns of a table. FBGEMM's constructor wants multiples of 4, its CPU kernels take any: this
    passes its check.
    """

    def __mod__(self, other: int) -> int:
        return 0


def fbgemm_module(given: dict[str, Any], o: dict[str, Any], **more: Any) -> Any:
    """FBGEMM's CPU module over the tables of `given`."""
    rows = given["rows"].tolist()
    dims = given["dims"].tolist()
    if o["pooling"] == "none":
        more["pooling_mode"] = PoolingMode.NONE
    else:
        more["pooling_mode"] = PoolingMode.SUM if o["pooling"] == "sum" else PoolingMode.MEAN
    form = str(o["weights_format"])
    module = training.SplitTableBatchedEmbeddingBagsCodegen(
        [
            (r, Width(d), EmbeddingLocation.HOST, training.ComputeDevice.CPU)
            for r, d in zip(rows, dims)
        ],
        feature_table_map=given["feature_table"].tolist(),
        weights_precision=SPARSE[form],
        bounds_check_mode=BoundsCheckMode.NONE,
        **more,
    )
    flat = tensor(given["weights"], form).reshape(-1)
    at = 0
    for table, (r, d) in zip(module.split_embedding_weights(), zip(rows, dims)):
        table.data.copy_(flat[at : at + r * d].reshape(r, d))
        at += r * d
    return module


def fbgemm_lookup(given: dict[str, Any], o: dict[str, Any]) -> dict[str, np.ndarray]:
    """`lookup` of the training module."""
    module = fbgemm_module(given, o, output_dtype=SPARSE[str(o["output_format"])])
    scale = given.get("per_sample_weights")
    with torch.no_grad():
        out = module(
            torch.from_numpy(given["indices"].astype(np.int64)),
            torch.from_numpy(given["offsets"].astype(np.int64)),
            None if scale is None else torch.from_numpy(scale),
        )
    return {"out": array(out)}


DECAY = {"none": 0, "l2": 1, "decoupled": 2}


def fbgemm_backward(given: dict[str, Any], o: dict[str, Any]) -> dict[str, np.ndarray]:
    """`backward` of the training module: weights and states after one step; gradients of the
    per-sample weights besides.
    """
    optimizer = getattr(EmbOptimType, str(o["optimizer"]).upper())
    more: dict[str, Any] = {"learning_rate": o["learning_rate"], "eps": o["eps"]}
    if o["weight_decay"]:
        more["weight_decay"] = o["weight_decay"]
        more["weight_decay_mode"] = training.WeightDecayMode(DECAY[str(o["weight_decay_mode"])])
    if o["max_gradient"]:
        more |= {"gradient_clipping": True, "max_gradient": o["max_gradient"]}
    module = fbgemm_module(given, o, optimizer=optimizer, stochastic_rounding=False, **more)
    if "sum" in given:
        module.momentum1_host.data.copy_(torch.from_numpy(given["sum"]))
    scale = given.get("per_sample_weights")
    factors = None if scale is None else torch.from_numpy(scale).requires_grad_()
    out = module(
        torch.from_numpy(given["indices"].astype(np.int64)),
        torch.from_numpy(given["offsets"].astype(np.int64)),
        factors,
    )
    out.backward(torch.from_numpy(given["grad_output"]))
    found = {
        "weights": np.concatenate([array(w).reshape(-1) for w in module.split_embedding_weights()])
    }
    if o["optimizer"] != "exact_sgd":
        found["sum"] = array(module.momentum1_host)
    return found | ({} if factors is None else {"per_sample_weights_grad": array(factors.grad)})


def torch_tables(given: dict[str, Any], o: dict[str, Any]) -> list[torch.Tensor]:
    """The tables as matrices of their own."""
    form = str(o["weights_format"])
    flat = tensor(given["weights"], form).reshape(-1)
    at = 0
    found = []
    for r, d in zip(given["rows"].tolist(), given["dims"].tolist()):
        found.append(flat[at : at + r * d].reshape(r, d).clone())
        at += r * d
    return found


def torch_features(
    given: dict[str, Any], o: dict[str, Any], tables: list[torch.Tensor], **more: Any
) -> torch.Tensor:
    """F.embedding_bag (none: F.embedding) of every feature, side by side."""
    found = []
    features = given["feature_table"].tolist()
    batch = (given["offsets"].size - 1) // len(features)
    for f, t in enumerate(features):
        at = given["offsets"][f * batch : (f + 1) * batch + 1].astype(np.int64)
        indices = torch.from_numpy(given["indices"][at[0] : at[-1]].astype(np.int64))
        if o["pooling"] == "none":
            found.append(torch.nn.functional.embedding(indices, tables[t], **more))
            continue
        scale = given.get("per_sample_weights")
        if scale is not None:
            more["per_sample_weights"] = torch.from_numpy(scale[at[0] : at[-1]]).to(tables[t].dtype)
        found.append(
            torch.nn.functional.embedding_bag(
                indices,
                tables[t],
                torch.from_numpy(at[:-1] - at[0]),
                mode=str(o["pooling"]),
                **more,
            )
        )
    return torch.cat(found, 0 if o["pooling"] == "none" else 1)


def torch_lookup(given: dict[str, Any], o: dict[str, Any]) -> dict[str, np.ndarray]:
    """`lookup` by torch."""
    return {"out": array(torch_features(given, o, torch_tables(given, o)))}


def torch_optimizer(
    o: dict[str, Any], tables: list[torch.Tensor], sparse: bool
) -> torch.optim.Optimizer:
    """The optimizer that the options of `backward` name, as torch has it."""
    name = str(o["optimizer"])
    rate = float(o["learning_rate"])
    eps = float(o["eps"])
    decay = float(o["weight_decay"]) if o["weight_decay_mode"] != "none" else 0.0
    if name == "exact_sgd":
        return torch.optim.SGD(tables, lr=rate, weight_decay=decay)
    if name == "momentum_sgd":
        return torch.optim.SGD(tables, lr=rate, weight_decay=decay, momentum=float(o["momentum"]))
    if name == "exact_adagrad":
        return torch.optim.Adagrad(tables, lr=rate, weight_decay=decay)
    if name == "exact_rowwise_adagrad":
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        return RowWiseAdagrad(tables, lr=rate, weight_decay=decay)
    betas = (float(o["beta1"]), float(o["beta2"]))
    if name == "adam" and sparse:
        return torch.optim.SparseAdam(tables, lr=rate, eps=eps, betas=betas)
    if o["weight_decay_mode"] == "decoupled":
        return torch.optim.AdamW(tables, lr=rate, eps=eps, betas=betas, weight_decay=decay)
    return torch.optim.Adam(tables, lr=rate, eps=eps, betas=betas, weight_decay=decay)


STATES_OF = {
    "exact_sgd": (),
    "momentum_sgd": ("momentum_buffer",),
    "exact_adagrad": ("sum",),
    "exact_rowwise_adagrad": ("sum",),
    "adam": ("exp_avg", "exp_avg_sq"),
}


def torch_backward(
    given: dict[str, Any], o: dict[str, Any], sparse: bool = False
) -> dict[str, np.ndarray]:
    """`backward`: autograd of embedding_bag, then one step of torch's optimizer."""
    tables = [table.requires_grad_() for table in torch_tables(given, o)]
    optimizer = torch_optimizer(o, tables, sparse)
    at = 0
    for table in tables:
        state = optimizer.state[table]
        wide = 1 if o["optimizer"] == "exact_rowwise_adagrad" else table.shape[1]
        for name in STATES_OF[str(o["optimizer"])]:
            # without one, the first gradient becomes it
            if name in given or name != "momentum_buffer":
                flat = given.get(
                    name,
                    np.zeros(
                        sum(t.shape[0] * (1 if wide == 1 else t.shape[1]) for t in tables),
                        np.float32,
                    ),
                )
                state[name] = torch.from_numpy(
                    flat[at : at + len(table) * wide].reshape(len(table), wide).copy()
                )
        if "sgd" not in str(o["optimizer"]):
            count = int(o["step"]) - 1
            state["step"] = (
                count if sparse and o["optimizer"] == "adam" else torch.tensor(float(count))
            )
        at += len(table) * wide
    torch_features(given, o, tables, sparse=sparse).backward(torch.from_numpy(given["grad_output"]))
    optimizer.step()
    found = {"weights": np.concatenate([array(t).reshape(-1) for t in tables])}
    for name in STATES_OF[str(o["optimizer"])]:
        if name in optimizer.state[tables[0]]:
            found[name] = np.concatenate(
                [array(optimizer.state[t][name]).reshape(-1) for t in tables]
            )
    return found


NBIT = {"nbit8": SparseType.INT8, "nbit4": SparseType.INT4, "nbit2": SparseType.INT2}


def fbgemm_inference(given: dict[str, Any], o: dict[str, Any]) -> dict[str, np.ndarray]:
    """`lookup` of quantised rows by the inference module."""
    rows = given["rows"].tolist()
    dims = given["dims"].tolist()
    kind = NBIT[str(o["weights_format"])]
    alignment = int(o["row_alignment"])
    module = inference.IntNBitTableBatchedEmbeddingBagsCodegen(
        [(f"t{t}", r, d, kind, EmbeddingLocation.HOST) for t, (r, d) in enumerate(zip(rows, dims))],
        feature_table_map=given["feature_table"].tolist(),
        pooling_mode=PoolingMode.SUM if o["pooling"] == "sum" else PoolingMode.MEAN,
        output_dtype=SPARSE[str(o["output_format"])],
        bounds_check_mode=BoundsCheckMode.NONE,
        row_alignment=alignment,
        device="cpu",
    )
    module.initialize_weights()
    at = 0
    for codes, _ in module.split_embedding_weights(split_scale_shifts=False):
        size = codes.numel()
        codes.copy_(torch.from_numpy(given["weights"][at : at + size].reshape(codes.shape).copy()))
        at += size
    assert at == given["weights"].size
    scale = given.get("per_sample_weights")
    out = module(
        torch.from_numpy(given["indices"].astype(np.int32)),
        torch.from_numpy(given["offsets"].astype(np.int32)),
        None if scale is None else torch.from_numpy(scale),
    )
    return {"out": array(out)}


def torch_unique(given: dict[str, Any], o: dict[str, Any]) -> dict[str, np.ndarray]:
    """`unique_gradient`: sparse gradients of embedding_bag, coalesced."""
    tables = [table.requires_grad_() for table in torch_tables(given, o)]
    torch_features(given, o, tables, sparse=True).backward(torch.from_numpy(given["grad_output"]))
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


def row_wise(questions: list[Any]) -> list[dict[str, np.ndarray]]:
    """`lookup` by two processes of TorchRec: all questions in one run of `peer_row_wise.py`."""
    given = {f"{n}/{k}": a for n, q in enumerate(questions) for k, a in q.inputs.items()}
    given |= {f"{n}/pooling": np.array(q.options["pooling"]) for n, q in enumerate(questions)}
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "in.npz"
        answered = Path(folder) / "out.npz"
        np.savez(asked, **given)
        script = Path(__file__).with_name("peer_row_wise.py")
        done = subprocess.run(
            [sys.executable, str(script), asked, answered],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        with np.load(answered) as found:
            return [{"out": found[str(n)]} for n in range(len(questions))]


def answer(question: Any) -> dict[str, np.ndarray]:
    """What a peer of one process answers to a question."""
    preset, op, given, o = question
    if preset == "fbgemm_cpu" and op == "lookup":
        return (fbgemm_inference if str(o["weights_format"]) in NBIT else fbgemm_lookup)(given, o)
    if preset == "fbgemm_cpu" and op == "weight_gradient":
        complete = {**OPERATORS["backward"].options, **o, "optimizer": "exact_sgd"}
        return {
            "per_sample_weights_grad": fbgemm_backward(given, complete)["per_sample_weights_grad"]
        }
    if preset == "fbgemm_cpu":
        found = fbgemm_backward(given, o)
        found.pop("per_sample_weights_grad", None)
        return found
    if op == "lookup":
        return torch_lookup(given, o)
    return (
        torch_unique(given, o)
        if op == "unique_gradient"
        else torch_backward(given, o, preset == "torch_sparse")
    )


def answers(questions: list[Any]) -> list[dict[str, np.ndarray]]:
    """What the peers answer to each question."""
    split = row_wise([q for q in questions if q.preset == "torchrec_row_wise"])
    return [split.pop(0) if q.preset == "torchrec_row_wise" else answer(q) for q in questions]


def versions() -> dict[str, str]:
    """The peers' versions, and the instructions that torch found."""
    names = ("torch", "fbgemm-gpu-cpu", "torchrec", "numpy")
    return {name: version(name) for name in names} | {
        "instructions": torch.backends.cpu.get_cpu_capability()
    }
