"""What is a switch? One named way to differ from the exact model."""

from dataclasses import dataclass
from typing import Literal

# Operators that a switch may change, by what they do.
MERGES = ("backward", "trajectory", "unique_gradient")
UPDATES = ("backward", "trajectory")
BAGS = ("lookup", "weight_gradient", *MERGES)
WEIGHTED = ("lookup", *MERGES)
AT_SCALE = ("lookup_at_scale", "backward_at_scale")
MAXIMA = ("lookup_max", "lookup_max_backward")
JAGGED = (
    "jagged_dense_bmm",
    "jagged_dense_bmm_backward",
    "jagged_jagged_bmm",
    "jagged_jagged_bmm_backward",
    "dense_vec_jagged_mul",
    "dense_vec_jagged_mul_backward",
    "jagged_softmax",
    "jagged_softmax_backward",
    "jagged_dense_elementwise",
    "jagged_dense_elementwise_backward",
)
SCATTERS = (
    *MERGES,
    "permute_pooled_backward",
    "permute_multi_embedding_backward",
    "group_index_select_backward",
    "keyed_jagged_index_select_backward",
)


@dataclass(frozen=True)
class Switch:
    """One way to differ from the exact model: a mistake, with its remedy, or a peer's quirk."""

    name: str
    kind: Literal["quirk", "mistake"]
    about: str  # what it does: one sentence
    fix: str  # what to do about it: one sentence; "" for a quirk
    ops: tuple[str, ...]  # operators that it changes
    variants: int = 0  # NAME_0, NAME_1, …: bends of which each element may follow another one


def mistake(name: str, ops: tuple[str, ...], about: str, fix: str) -> Switch:
    """A mistake, and what to do about it."""
    return Switch(name, "mistake", about, fix, ops)


def quirk(name: str, ops: tuple[str, ...], about: str) -> Switch:
    """A peer's quirk."""
    return Switch(name, "quirk", about, "", ops)
