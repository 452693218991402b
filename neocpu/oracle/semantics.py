"""Which mistakes do kernels make, and where do peers differ? Every difference is a named switch.

A switch changes the exact model of `Operator.truth`, for a quirk of a peer or a known mistake
alike: it explains the answer of a kernel that lies within the bounds of the changed truth. A preset
is the set of a peer's quirks. Each switch is a row of `switches.csv`, with a line in
docs/semantics.md and a test.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

_MERGES = ("backward", "trajectory", "unique_gradient")
_JAGGED_PRODUCTS = (
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
# Operators that a row of switches.csv names together, by what they do.
OPERATOR_GROUPS: dict[str, tuple[str, ...]] = {
    "MERGES": _MERGES,
    "UPDATES": ("backward", "trajectory"),
    "BAGS": ("lookup", "weight_gradient", *_MERGES),
    "WEIGHTED": ("lookup", *_MERGES),
    "SCALED_ROWS": ("lookup", "weight_gradient", "dequantize"),
    "AT_SCALE": ("lookup_at_scale", "backward_at_scale"),
    "MAXIMA": ("lookup_max", "lookup_max_backward"),
    "PRODUCTS": ("narrow_gemm", "narrow_mlp", "narrow_interaction"),
    "JAGGED": _JAGGED_PRODUCTS,
    "SCATTERS": (
        *_MERGES,
        "permute_pooled_backward",
        "permute_multi_embedding_backward",
        "group_index_select_backward",
        "keyed_jagged_index_select_backward",
    ),
}


@dataclass(frozen=True)
class Switch:
    """One way to differ from the exact model: a mistake, with its remedy, or a peer's quirk."""

    name: str
    about: str  # what it does: one sentence
    fix: str  # what to do about it: one sentence; "" for a quirk
    ops: tuple[str, ...]  # operators that it changes

    @property
    def kind(self) -> Literal["quirk", "mistake"]:
        """A peer means what it does, so a quirk has no remedy."""
        return "mistake" if self.fix else "quirk"


def _switches() -> dict[str, Switch]:
    """Switches by name, in the order of the table."""
    with Path(__file__).with_name("switches.csv").open(encoding="utf-8", newline="") as table:
        return {row["name"]: _switch(row) for row in csv.DictReader(table)}


def _switch(row: dict[str, str]) -> Switch:
    ops = [op for name in row["ops"].split() for op in OPERATOR_GROUPS.get(name, (name,))]
    return Switch(row["name"], row["about"], row["fix"], tuple(ops))


# Explanations are tried in this order, mistakes before quirks.
SWITCHES = _switches()

# What a peer does by default, according to its sources and to measurements (docs/semantics.md names
# the places).
PRESETS: dict[str, frozenset[str]] = {
    "exact": frozenset(),
    "fbgemm_cpu": frozenset(
        {
            "weight_decay_shared_only",
            "max_norm_ignored",
            "stochastic_rounding_ignored",
            "weighted_mean_backward_not_divided",
            "evaluation_counts",
            "counter_decay_grows",
            "out_of_bounds_row_0",
            "bf16_output_half_up",
            "bf16_cast_half_up",
        }
    ),
    "fbgemm_cuda": frozenset(
        {"evaluation_counts", "counter_decay_grows", "out_of_bounds_row_0", "ratio_unguarded"}
    ),
    "torchrec_row_wise": frozenset(
        {
            "mean_divisor_plus_1e6",
            "weighted_mean_by_weights",
            "evaluation_counts",
            "out_of_bounds_row_0",
        }
    ),
    "torchrec_triton": frozenset({"out_of_bounds_row_0"}),
    "torch": frozenset(
        {"untouched_rows_step", "adagrad_eps_1e10", "bf16_output_half_up", "max_skips_nan"}
    ),
    "torch_sparse": frozenset(
        {
            "adagrad_eps_1e10",
            "sgd_duplicates_in_sequence",
            "sparse_adam_eps",
            "bf16_output_half_up",
            "max_skips_nan",
        }
    ),
}


def switches_for(op: str, kind: str | None = None) -> tuple[Switch, ...]:
    """The switches of an operator, mistakes first; of one kind ("mistake", "quirk") if named."""
    switches = (s for s in SWITCHES.values() if op in s.ops and kind in (None, s.kind))
    return tuple(sorted(switches, key=lambda switch: switch.kind != "mistake"))


class Mistake(NamedTuple):
    """What a kernel does, and what to do about it."""

    name: str
    about: str
    fix: str
