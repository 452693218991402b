"""Is TorchRec's Triton TBE right? Its class answers the oracle's cases on a GPU.

    python examples/oracle_from_triton_tbe.py

Needs a CUDA device, triton, fbgemm_gpu and a torchrec that has `torchrec.distributed.triton_tbe`
(July 2026 and later; gradients of per-sample weights since August 21). The published files import
`ads_mkl`, which is not public: an empty module stands in for its AMD kernels.

The class sums bags, trains with SGD or row-wise AdaGrad, and knows no weight decay, no clipping
and no pruned rows. Cases with more are left out, and `reason` says why.
"""

import sys
import types
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import _needs  # noqa: F401, what to install
import numpy as np
import torch

from neocpu.oracle import OPERATORS, PRESETS, Case, check_suite
from neocpu.oracle.adapters import codes_of, to_numpy
from neocpu.oracle.answers import Answers
from neocpu.oracle.cases import all_cases
from neocpu.oracle.suite import ask

FORMATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
OPTIMIZERS = {"exact_sgd": "EXACT_SGD", "exact_rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD"}
# Options that the class lacks, and the values at which they do nothing.
IDLE: dict[str, Any] = {
    "pooling": "sum",
    "weight_decay": 0.0,
    "max_norm": 0.0,
    "max_gradient": 0.0,
    "row_alignment": 1,
    "momentum1_format": "fp32",
}
PRESET = "torchrec_triton"


def options_of(case: Case) -> dict[str, Any]:
    """All options of a case, defaults included."""
    return dict(OPERATORS[case.op].complete(case.options))


def reason(case: Case) -> str:
    """Why the class cannot be asked a case; "" if it can."""
    options = options_of(case)
    for name, value in IDLE.items():
        if options.get(name, value) != value:
            return f"{name} is {options[name]}"
    for name in ("weights_format", "output_format"):
        if options.get(name, "fp32") not in FORMATS:
            return f"{name} is {options[name]}"
    if options.get("optimizer", "exact_sgd") not in OPTIMIZERS:
        return f"optimizer is {options['optimizer']}"
    rounding = options.get("rounding", "nearest")
    if rounding not in ("nearest", "stochastic") or (
        rounding == "stochastic" and options["weights_format"] != "fp16"
    ):
        return f"{options['weights_format']} rows are rounded {rounding}"
    if "weights_low" in case.inputs:
        return "rows are in two halves"
    if not case.inputs["indices"].size or (case.inputs["rows"] == 0).any():
        return "there are no lookups or no rows"
    if (case.inputs["indices"] == -1).any():
        return "rows are pruned"
    if set(case.inputs["feature_table"].tolist()) != set(range(case.inputs["rows"].size)):
        return "a table has no feature"
    return ""


def tensor(array: Any, form: str = "") -> torch.Tensor:
    """A tensor of an array; of a narrow format, its numbers."""
    if array.dtype.names:
        codes = np.ascontiguousarray(codes_of(array))
        return torch.from_numpy(codes.view(np.int16)).view(FORMATS[form])
    return torch.from_numpy(np.array(array))


def module_for(case: Case, cls: Any, device: str) -> Any:
    """The class with a case's rows, states and hyper-parameters."""
    options = {"learning_rate": 1.0, "eps": 1e-8, "optimizer": "exact_sgd", **options_of(case)}
    inputs = case.inputs
    optimizers = import_module("fbgemm_gpu.split_embedding_configs").EmbOptimType
    form = str(options["weights_format"])
    module = cls(
        list(zip(inputs["rows"].tolist(), inputs["dims"].tolist())),
        feature_table_map=inputs["feature_table"].tolist(),
        weights_precision=FORMATS[form],
        output_dtype=FORMATS[str(options.get("output_format", "fp32"))],
        stochastic_rounding=options.get("rounding") == "stochastic",
        learning_rate=float(options["learning_rate"]),
        eps=float(options["eps"]),
        optimizer=optimizers[OPTIMIZERS[options["optimizer"]]],
        device=torch.device(device),
    )
    with torch.no_grad():
        module.weight.copy_(tensor(inputs["weights"], form).reshape(-1))
        if "sum" in inputs:  # an absent state is 0
            module.momentum.copy_(tensor(inputs["sum"]).reshape(-1))
    return module


def answer(case: Case, cls: Any, device: str) -> dict[str, Any]:
    """The class's outputs for one case of lookup, weight_gradient or backward, as arrays."""
    module = module_for(case, cls, device)
    inputs = {
        name: tensor(array).to(device)
        for name, array in case.inputs.items()
        if name in ("indices", "offsets", "grad_output", "per_sample_weights")
    }
    weights = inputs.get("per_sample_weights")
    if case.op == "weight_gradient":
        weights = torch.ones(case.inputs["indices"].size, device=device).requires_grad_()
    sizes = case.inputs.get("batch_sizes")  # of each feature on one rank
    out = module(
        inputs["indices"].clone(),
        inputs["offsets"].clone(),
        weights,
        None if sizes is None else [[size] for size in sizes.reshape(-1).tolist()],
    )
    if case.op == "lookup":
        return {"out": to_numpy(out.detach())}
    out.backward(inputs["grad_output"].reshape(out.shape).to(out.dtype))
    if case.op == "weight_gradient":
        return {"per_sample_weights_grad": to_numpy(weights.grad)}
    outputs = {"weights": to_numpy(module.weight.detach())}
    if options_of(case)["optimizer"] == "exact_rowwise_adagrad":
        outputs["sum"] = to_numpy(module.momentum.detach())
    return outputs


def asked(ops: tuple[str, ...] = ("lookup", "weight_gradient", "backward")) -> Iterator[Case]:
    """The cases that the class can answer."""
    return (case for case in all_cases(ops) if not reason(case))


def report(cls: Any, device: str, cases: list[Case]) -> Any:
    """The oracle's report on the class, by the semantics of its preset."""
    answers = {
        f"{case.name}/{output}": array
        for case in cases
        for output, array in answer(case, cls, device).items()
    }
    suite = {case.name: ask(case) for case in cases}
    return check_suite(suite, Answers(answers), preset=PRESET)


class _Absent(types.ModuleType):
    """A module whose every name is there, and nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


def triton_tbe() -> Any:
    """TorchRec's class. Raises ModuleNotFoundError where it is not installed."""
    names = ["ads_mkl", "ops", "triton", "amd", "triton_table_batched_embeddings"]
    for end in range(1, len(names) + 1):
        sys.modules.setdefault(".".join(names[:end]), _Absent(".".join(names[:end])))
    home = import_module("torchrec.distributed.triton_tbe.triton_table_batched_embeddings")
    return home.TritonTableBatchedEmbeddingBags


def main() -> int:
    """Answer all cases that the class can be asked; the exit status."""
    if not torch.cuda.is_available():
        print("TorchRec's Triton TBE needs a CUDA device", file=sys.stderr)
        return 2
    cases = list(asked())
    print(f"{len(cases)} cases, preset {PRESET}: {', '.join(sorted(PRESETS[PRESET]))}")
    result = report(triton_tbe(), "cuda", cases)
    print(result)
    return 0 if result else 1


if __name__ == "__main__":
    sys.exit(main())
