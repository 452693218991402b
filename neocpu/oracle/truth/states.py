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
GLOBAL_RULE = "exact_rowwise_adagrad"  # the only rule that has it
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

    Raises ValueError for a format that states cannot have, and for the weight decay
    `decoupled_global` of a rule that has none.
    """
    rule = RULES[str(options["optimizer"])]
    row = rule.row_state
    if options.get("weight_decay_mode") == GLOBAL:
        # FBGEMM has kernels of it for this rule alone.
        if rule.name != GLOBAL_RULE:
            raise ValueError(f"weight_decay_mode {GLOBAL}: use {GLOBAL_RULE}, not {rule.name}")
        row = (*row, "prev_iter")
    names = (*rule.element_state, *row)
    formats = dict.fromkeys(names, "fp32")
    # FBGEMM numbers momenta; counters are no momenta, and always fp32.
    momenta = [name for name in names if name not in COUNTERS]
    for number, name in enumerate(momenta[:2], 1):
        formats[name] = str(options.get(f"momentum{number}_format", "fp32"))
        if formats[name] not in STATE_FORMATS:
            raise ValueError(
                f"momentum{number}_format is {formats[name]!r}: choose {', '.join(STATE_FORMATS)}"
            )
    return StateLayout(rule.element_state, row, formats)
