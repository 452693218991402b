"""Which mistakes do kernels make, and where do peers differ? Every difference is a named switch.

A switch changes the exact model of `Operator.truth`, for a quirk of a peer or a known mistake
alike: it explains the answer of a kernel that lies within the bounds of the changed truth. A preset
is the set of a peer's quirks. Each switch has a line in docs/semantics.md and a test. The texts are
in `switches/`.
"""

from neocpu.oracle.switches.of_operators import MORE
from neocpu.oracle.switches.shared import ALL, Switch

__all__ = ["PRESETS", "SWITCHES", "Switch", "switches_for"]

SWITCHES: dict[str, Switch] = {switch.name: switch for switch in (*ALL, *MORE)}

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
