"""Which operators have a mirror of a peer, bit for bit, and which bits are they?

The registry by preset and operator. A preset's switches say what a peer means, within bounds; its
mirrors compute what it answers: the same additions in the same order, rounded where it rounds. They
are plain NumPy, checked against the peers themselves and against answers recorded from them
(tests/test_oracle_mirrors.py). docs/semantics.md §6 has the table, and what each mirror depends on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neocpu.oracle.mirrors import codes, fbgemm, jagged, maximum, torch, torchrec
from neocpu.oracle.mirrors.order import NoMirror
from neocpu.oracle.operator import Arrays, Options, checked
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.ops.backward import STATES
from neocpu.oracle.ops.trajectory import batches
from neocpu.oracle.truth.states import GLOBAL

__all__ = ["MIRRORS", "Mirror", "NoMirror", "mirror_bits", "mirrors_of"]

Compute = Callable[[Arrays, Options], Arrays]


@dataclass(frozen=True)
class Mirror:
    """The bits of one operator by one peer."""

    preset: str
    op: str
    call: str  # the peer's call whose answer the bits are
    compute: Compute


def _trajectory(lookup: Compute, backward: Compute) -> Compute:
    """Several steps, each a lookup and, in training, a backward.

    Evaluations count as no step: none of the CPU rules that are mirrored sees a difference.
    """

    def steps(inputs: Arrays, options: Options) -> Arrays:
        if options["weights_format"] != "fp32":
            raise NoMirror("trajectories of narrow tables are not mirrored")
        outputs: Arrays = {}
        weights = inputs["weights"]
        states = {name: array for name, array in inputs.items() if name in STATES}
        lookup_options = {
            **OPERATORS["lookup"].options,
            **{name: options[name] for name in ("pooling", "bounds_check")},
        }
        count = 0
        for k, (batch, training) in enumerate(zip(batches(inputs), inputs["training"].tolist())):
            step_inputs = {**batch, "weights": weights, **states}
            outputs[f"step{k}/out"] = lookup(step_inputs, lookup_options)["out"]
            if not training:
                continue
            count += 1
            rate = float(inputs["learning_rates"][k])
            updated = backward(step_inputs, {**options, "learning_rate": rate, "step": count})
            weights = updated["weights"]
            states = {name: array for name, array in updated.items() if name != "weights"}
            outputs |= {f"step{k}/{name}": array for name, array in updated.items()}
        return outputs

    return steps


def _of(preset: str, *mirrors: tuple[str, str, Compute]) -> tuple[Mirror, ...]:
    """Mirrors of one preset: operator, call and bits of each."""
    return tuple(Mirror(preset, *mirror) for mirror in mirrors)


_ALL = (
    *_of(
        "fbgemm_cpu",
        (
            "lookup",
            "SplitTableBatchedEmbeddingBagsCodegen.forward; IntNBit… for nbit rows",
            fbgemm.lookup,
        ),
        ("weight_gradient", "its gradient by per_sample_weights", fbgemm.weight_gradient),
        ("backward", "its fused backward", fbgemm.backward),
        ("trajectory", "both, step by step", _trajectory(fbgemm.lookup, fbgemm.backward)),
        ("round", "FloatToBfloat16Quantized", codes.fbgemm_round),
        ("quantize", "FloatToFused…RowwiseQuantized…", codes.fbgemm_quantize),
        ("dequantize", "Fused…RowwiseQuantized…ToFloat", codes.fbgemm_dequantize),
        *(
            (op, call, jagged.one_answer(op))
            for op, call in (
                ("permute_pooled", "permute_pooled_embs, permute_duplicate_pooled_embs"),
                ("permute_multi_embedding", "permute_multi_embedding"),
                ("group_index_select", "group_index_select_dim0, batch_index_select_dim0"),
                ("jagged_dense_elementwise", "jagged_dense_elementwise_…"),
                ("jagged_dense_elementwise_backward", "its gradient"),
            )
        ),
        ("permute_pooled_backward", "its gradient", jagged.permute_pooled_backward),
        (
            "permute_multi_embedding_backward",
            "its gradient",
            jagged.permute_multi_embedding_backward,
        ),
        ("group_index_select_backward", "its gradient", jagged.group_index_select_backward),
        *(
            (op, call, jagged.products(op))
            for op, call in (
                ("jagged_dense_bmm", "jagged_dense_bmm"),
                ("jagged_dense_bmm_backward", "its gradients"),
                ("jagged_jagged_bmm", "jagged_jagged_bmm"),
                ("jagged_jagged_bmm_backward", "its gradients"),
                ("dense_vec_jagged_mul", "batched_dense_vec_jagged_2d_mul"),
            )
        ),
    ),
    *_of(
        "torch",
        ("lookup", "F.embedding_bag, F.embedding", torch.lookup),
        ("backward", "its dense gradient, then a step of torch.optim", torch.backward),
        ("trajectory", "both, step by step", _trajectory(torch.lookup, torch.backward)),
        ("round", "Tensor.to", codes.torch_round),
        ("lookup_max", "F.embedding_bag, mode='max'", maximum.lookup_max),
        ("lookup_max_backward", "its dense gradient", maximum.lookup_max_backward),
    ),
    *_of(
        "torch_sparse",
        ("lookup", "F.embedding_bag, F.embedding", torch.lookup),
        ("unique_gradient", "its sparse gradient, coalesced", torch.unique_gradient),
        ("backward", "its sparse gradient, then a step of torch.optim", torch.sparse_backward),
        ("trajectory", "both, step by step", _trajectory(torch.lookup, torch.sparse_backward)),
        ("round", "Tensor.to", codes.torch_round),
    ),
    *_of(
        "torchrec_row_wise",
        ("lookup", "EmbeddingBagCollection, row-wise on two ranks", torchrec.lookup),
    ),
)
MIRRORS: dict[tuple[str, str], Mirror] = {(m.preset, m.op): m for m in _ALL}


def mirrors_of(op: str) -> tuple[Mirror, ...]:
    """The mirrors of an operator."""
    return tuple(m for m in MIRRORS.values() if m.op == op)


def _refuse_states(options: Options) -> None:
    """Raise NoMirror for states that no peer keeps on a CPU, or not in these formats."""
    if options.get("weight_decay_mode") == GLOBAL:
        raise NoMirror("no peer decays rows that rest on a CPU")
    if options.get("step_ema") or options.get("step_swap"):
        raise NoMirror("no peer keeps averages of rows on a CPU")
    if any(options.get(f"momentum{k}_format", "fp32") != "fp32" for k in (1, 2)):
        raise NoMirror("optimizer states of narrow formats are not mirrored")


def mirror_bits(preset: str, op: str, inputs: Arrays, options: Options) -> Arrays:
    """The peer's bits. Raises NoMirror, with the reason, where they are not known."""
    mirror = MIRRORS.get((preset, op))
    if mirror is None:
        raise NoMirror(f"{preset} has no bit mirror of {op}")
    complete = OPERATORS[op].complete(options)
    _refuse_states(complete)
    with np.errstate(all="ignore"):
        return mirror.compute(checked(OPERATORS[op], dict(inputs), complete), complete)
