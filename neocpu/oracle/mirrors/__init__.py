"""Which operators have a mirror of a peer, bit for bit, and which bits are they? The registry by
preset and operator.

A preset's switches say what a peer means, within bounds; its mirrors compute what it answers: the
same additions in the same order, rounded where it rounds. They are plain NumPy, checked against the
peers themselves and against answers recorded from them (tests/test_oracle_mirrors.py).
docs/semantics.md §6 has the table, and what each mirror depends on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neocpu.oracle.mirrors import codes as mirrors_codes
from neocpu.oracle.mirrors import fbgemm as mirrors_fbgemm
from neocpu.oracle.mirrors import torch as mirrors_torch
from neocpu.oracle.mirrors import torchrec as mirrors_torchrec
from neocpu.oracle.mirrors.order import NoMirror
from neocpu.oracle.operator import Arrays, Options, Value
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.ops.backward import STATES
from neocpu.oracle.ops.trajectory import batches

__all__ = ["MIRRORS", "Mirror", "NoMirror", "mirror_bits", "mirrors_of"]

Compute = Callable[[Arrays, dict[str, Value]], Arrays]


@dataclass(frozen=True)
class Mirror:
    """The bits of one operator by one peer: how to get them, and the peer's call that they are the
    answer of.
    """

    preset: str
    op: str
    call: str
    compute: Compute


def _trajectory(lookup: Compute, backward: Compute) -> Compute:
    """Several steps, each a lookup and, in training, a backward. No peer's CPU rule that is
    mirrored counts evaluations.
    """

    def steps(inputs: Arrays, options: dict[str, Value]) -> Arrays:
        found: Arrays = {}
        weights = inputs["weights"]
        states = {n: a for n, a in inputs.items() if n in STATES}
        count = 0
        if options["weights_format"] != "fp32":
            raise NoMirror("trajectories of narrow tables are not mirrored")
        for k, (batch, training) in enumerate(zip(batches(inputs), inputs["training"].tolist())):
            now = {**batch, "weights": weights, **states}
            seen = {
                **OPERATORS["lookup"].options,
                **{n: options[n] for n in ("pooling", "bounds_check")},
            }
            found[f"step{k}/out"] = lookup(now, seen)["out"]
            if not training:
                continue
            count += 1
            rate = float(inputs["learning_rates"][k])
            after = backward(now, {**options, "learning_rate": rate, "step": count})
            weights = after["weights"]
            states = {n: a for n, a in after.items() if n != "weights"}
            found |= {f"step{k}/{name}": array for name, array in after.items()}
        return found

    return steps


_FBGEMM = mirrors_fbgemm
_TORCH = mirrors_torch
_SPLIT = mirrors_torchrec
_ALL = (
    Mirror(
        "fbgemm_cpu",
        "lookup",
        "SplitTableBatchedEmbeddingBagsCodegen.forward; IntNBit… for nbit rows",
        _FBGEMM.lookup,
    ),
    Mirror(
        "fbgemm_cpu",
        "weight_gradient",
        "its gradient by per_sample_weights",
        _FBGEMM.weight_gradient,
    ),
    Mirror("fbgemm_cpu", "backward", "its fused backward", _FBGEMM.backward),
    Mirror(
        "fbgemm_cpu",
        "trajectory",
        "both, step by step",
        _trajectory(_FBGEMM.lookup, _FBGEMM.backward),
    ),
    Mirror("fbgemm_cpu", "round", "FloatToBfloat16Quantized", mirrors_codes.fbgemm_round),
    Mirror(
        "fbgemm_cpu", "quantize", "FloatToFused…RowwiseQuantized…", mirrors_codes.fbgemm_quantize
    ),
    Mirror(
        "fbgemm_cpu",
        "dequantize",
        "Fused…RowwiseQuantized…ToFloat",
        mirrors_codes.fbgemm_dequantize,
    ),
    Mirror("torch", "lookup", "F.embedding_bag, F.embedding", _TORCH.lookup),
    Mirror("torch", "backward", "its dense gradient, then a step of torch.optim", _TORCH.backward),
    Mirror(
        "torch", "trajectory", "both, step by step", _trajectory(_TORCH.lookup, _TORCH.backward)
    ),
    Mirror("torch", "round", "Tensor.to", mirrors_codes.torch_round),
    Mirror("torch_sparse", "lookup", "F.embedding_bag, F.embedding", _TORCH.lookup),
    Mirror(
        "torch_sparse", "unique_gradient", "its sparse gradient, coalesced", _TORCH.unique_gradient
    ),
    Mirror(
        "torch_sparse",
        "backward",
        "its sparse gradient, then a step of torch.optim",
        _TORCH.sparse_backward,
    ),
    Mirror(
        "torch_sparse",
        "trajectory",
        "both, step by step",
        _trajectory(_TORCH.lookup, _TORCH.sparse_backward),
    ),
    Mirror("torch_sparse", "round", "Tensor.to", mirrors_codes.torch_round),
    Mirror(
        "torchrec_row_wise",
        "lookup",
        "EmbeddingBagCollection, row-wise on two ranks",
        _SPLIT.lookup,
    ),
)
MIRRORS: dict[tuple[str, str], Mirror] = {(m.preset, m.op): m for m in _ALL}


def mirrors_of(op: str) -> tuple[Mirror, ...]:
    """The mirrors of an operator."""
    return tuple(m for m in MIRRORS.values() if m.op == op)


def mirror_bits(preset: str, op: str, inputs: Arrays, options: Options) -> Arrays:
    """The peer's bits. Raises NoMirror, and says why, where there are none to be had for this
    question.
    """
    mirror = MIRRORS.get((preset, op))
    if mirror is None:
        raise NoMirror(f"{preset} has no bit mirror of {op}")
    with np.errstate(all="ignore"):
        return mirror.compute(dict(inputs), OPERATORS[op].complete(options))
