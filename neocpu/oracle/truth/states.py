"""Which optimizer states do tables have, and in which formats?

A rule's own states, and `prev_iter` of the weight decay `decoupled_global`. The options
`momentum1_format` and `momentum2_format` are of the first and second of the rule's states (elements
before rows; counters are fp32 always), FBGEMM's names of them: a kernel decodes a state, updates it
as fp32, goes on with the fp32 number, and stores it rounded to nearest even.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from neocpu.core.rules import RULES
from neocpu.oracle.operator import Options

GLOBAL = "decoupled_global"  # weight decay in every step, also of rows that it does not update
# Modes of weight decay that are of one rule alone, as in FBGEMM's kernels.
OWNERS = {GLOBAL: "exact_rowwise_adagrad", "adagradw": "exact_rowwise_adagrad_with_counter"}
STATE_FORMATS = ("fp32", "fp16", "bf16")
COUNTERS = ("prev_iter", "row_counter")


@dataclass(frozen=True)
class StateLayout:
    """Names of the states per element and per row, and the format of each."""

    element: tuple[str, ...]
    row: tuple[str, ...]
    formats: Mapping[str, str]

    @property
    def narrow(self) -> bool:
        """Whether any state is not fp32."""
        return any(name != "fp32" for name in self.formats.values())


def layout_of(options: Options) -> StateLayout:
    """The states that the options of `backward` ask for.

    Raises ValueError for a weight decay that the rule does not have.
    """
    rule = RULES[str(options["optimizer"])]
    row = rule.row_state
    mode = str(options.get("weight_decay_mode", ""))
    if rule.name != OWNERS.get(mode, rule.name):
        raise ValueError(f"weight_decay_mode {mode}: use {OWNERS[mode]}, not {rule.name}")
    if mode == GLOBAL:
        row = (*row, "prev_iter")
    names = (*rule.element_state, *row)
    formats = dict.fromkeys(names, "fp32")
    # FBGEMM numbers momenta; counters are no momenta, and always fp32.
    momenta = [name for name in names if name not in COUNTERS]
    for number, name in enumerate(momenta[:2], 1):
        formats[name] = str(options.get(f"momentum{number}_format", "fp32"))
    return StateLayout(rule.element_state, row, formats)
